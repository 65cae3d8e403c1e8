//! An attempt to connect, until its outcome is known.

use std::io;
use std::net::SocketAddr;
use std::task::Waker;

use super::lane::Lane;
use super::rules::HostId;

/// An attempt to connect.
pub(super) struct ConnectAttempt {
    pub(super) from: HostId,
    pub(super) to: HostId,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) lane: Lane,
    pub(super) waker: Option<Waker>,
    pub(super) outcome: Option<io::Result<()>>,
    /// True if the listening side has accepted; only its reply is missing.
    pub(super) accepted: bool,
    /// Nanoseconds until the next retry.
    pub(super) retry_nanos: u64,
}
