//! Messages between masters and the made-up servers.

use engine::catalog::TserverRequest;
use engine::ids::PeerId;

/// A call that is on its way.
#[derive(Debug, Clone)]
pub(super) struct SentCall {
    pub(super) request: TserverRequest,
    pub(super) generation: u64,
    /// The server's life at the time: a connection ends with it.
    pub(super) instance: i64,
    /// False if the master has given it up.
    pub(super) awaited: bool,
}

/// A heartbeat that waits for its reply.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentBeat {
    pub(super) server: PeerId,
    pub(super) instance: i64,
    pub(super) reports: bool,
    pub(super) up_to: u64,
}
