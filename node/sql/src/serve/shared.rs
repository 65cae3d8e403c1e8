//! Options of a server, and the state that its connections share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use nyala_common::env::Env;
use pgwire::api::RandomPidSecretKeyGenerator;

use super::super::executor::Executor;
use super::cancel::Cancels;
use super::scram::Passwords;

/// Options of a server.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// Address to listen at; port 0 selects a free port.
    pub listen: SocketAddr,
    /// Largest number of clients at a time.
    pub connections_max: usize,
    /// Largest size of a message of a client.
    pub message_bytes_max: usize,
    /// Users with their passwords; without it clients of this machine need none.
    pub passwords: Option<Arc<Passwords>>,
    /// True if scans continue at another replica when a server is lost.
    pub fault_tolerant: bool,
}

impl Default for ServeConfig {
    fn default() -> ServeConfig {
        ServeConfig {
            listen: ([127, 0, 0, 1], 5432).into(),
            connections_max: 100,
            message_bytes_max: 16 << 20,
            passwords: None,
            fault_tolerant: false,
        }
    }
}

/// State that all connections share.
pub(super) struct Shared {
    pub(super) env: Env,
    pub(super) executor: Executor,
    pub(super) config: ServeConfig,
    pub(super) cancels: Arc<Cancels>,
    /// Source of the numbers and keys that cancel requests name.
    pub(super) processes: Arc<RandomPidSecretKeyGenerator>,
    /// Number of connections.
    pub(super) connections: AtomicUsize,
}
