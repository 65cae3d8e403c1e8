//! Options of a client.

use std::sync::Arc;
use std::time::Duration;

use super::local::LocalTablets;
use super::security::SecurityConfig;

/// Options of a client.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// `host:port` of all or some masters; the others are discovered. The default port is Kudu's 7051.
    pub masters: Vec<String>,
    /// User name of the client, and the owner of tables that it creates.
    pub user: String,
    /// Time limit of the leader lookup when the client connects.
    pub connect_timeout: Duration,
    /// Time limit of an operation, retries included.
    pub operation_timeout: Duration,
    /// Time limit of one attempt before another server is tried.
    pub rpc_timeout: Duration,
    /// Encryption, trusted CAs and proofs of identity.
    pub security: SecurityConfig,
    /// Tablets of this process, which scans read without calls.
    pub local_tablets: Option<Arc<dyn LocalTablets>>,
}

impl ClientConfig {
    /// Returns a configuration with default timeouts and the user `nyala`.
    pub fn new(masters: impl IntoIterator<Item = impl Into<String>>) -> ClientConfig {
        ClientConfig {
            masters: masters.into_iter().map(Into::into).collect(),
            user: "nyala".to_string(),
            connect_timeout: Duration::from_secs(30),
            operation_timeout: Duration::from_secs(30),
            rpc_timeout: Duration::from_secs(10),
            security: SecurityConfig::default(),
            local_tablets: None,
        }
    }
}
