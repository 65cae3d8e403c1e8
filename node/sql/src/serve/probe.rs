//! Probe of a cluster: whether it believes a mere name.

use std::time::Duration;

use nyala_client::{Client, ClientConfig, SecurityConfig};
use nyala_common::env::Env;

use super::tickets::with_tickets;

/// Longest wait for an answer.
const PROBE_TIME: Duration = Duration::from_secs(3);

/// Returns true unless the cluster lets in a client that only states the user's name. A cluster that does not answer
/// counts as one that authenticates.
pub async fn requires_authentication(env: &Env, config: &ClientConfig) -> bool {
    let security = SecurityConfig {
        jwt: None,
        require_authentication: false,
        sasl_protocol_name: None,
        ..config.security.clone()
    };
    let config = ClientConfig { connect_timeout: PROBE_TIME, security, ..config.clone() };
    Client::connect(with_tickets(env, None), config).await.is_err()
}
