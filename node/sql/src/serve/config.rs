//! Options of a server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::encryption::Encryption;
use super::scram::Passwords;

/// Options of a server.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// Address of the Postgres protocol; port 0 selects a free port.
    pub listen: SocketAddr,
    /// Address of Flight SQL; `None` for none.
    pub flight_listen: Option<SocketAddr>,
    /// Largest number of clients at a time.
    pub connections_max: usize,
    /// Largest size of a message of a client.
    pub message_bytes_max: usize,
    /// Largest memory of the statements of all clients; by default half of what the process may use.
    pub memory_bytes_max: Option<usize>,
    /// Longest time of a statement, unless a client of the Postgres protocol sets another; `None` for no limit.
    pub statement_timeout: Option<Duration>,
    /// Users with their passwords; without it clients of this machine need none.
    pub passwords: Option<Arc<Passwords>>,
    /// Encryption of both protocols, which all clients must use.
    pub encryption: Option<Encryption>,
    /// True if clients may leave encryption out, and other hosts may connect where there is none.
    pub allow_plaintext: bool,
    /// True if scans continue at another replica when a server is lost.
    pub fault_tolerant: bool,
    /// True if tablet servers aggregate where they can.
    pub server_aggregation: bool,
}

impl Default for ServeConfig {
    fn default() -> ServeConfig {
        ServeConfig {
            listen: ([127, 0, 0, 1], 5432).into(),
            connections_max: 100,
            message_bytes_max: 16 << 20,
            memory_bytes_max: None,
            statement_timeout: None,
            flight_listen: None,
            passwords: None,
            encryption: None,
            allow_plaintext: false,
            fault_tolerant: false,
            server_aggregation: true,
        }
    }
}
