//! Probe of a cluster: whether it believes a mere name.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::time::Instant;
use nyala_client::{Client, ClientConfig, SecurityConfig};
use nyala_common::env::{BoxFuture, Datagrams, Env, Listener, Net, Stream};

/// Longest wait for an answer.
const PROBE_TIME: Duration = Duration::from_secs(3);

/// Network without Kerberos, so that the probe has no ticket.
struct NamedNet(Arc<dyn Net>);

impl Net for NamedNet {
    fn listen(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        self.0.listen(addr)
    }

    fn connect(&self, addr: SocketAddr, deadline: Instant) -> BoxFuture<'_, io::Result<Stream>> {
        self.0.connect(addr, deadline)
    }

    fn datagrams(&self, peer: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Datagrams>>> {
        self.0.datagrams(peer)
    }

    fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        self.0.resolve(host_port)
    }
}

/// Returns true unless the cluster lets in a client that only states the user's name. A cluster that does not answer
/// counts as one that authenticates.
pub async fn requires_authentication(env: &Env, config: &ClientConfig) -> bool {
    let env = Env { net: Arc::new(NamedNet(env.net.clone())), ..env.clone() };
    let security = SecurityConfig {
        jwt: None,
        require_authentication: false,
        sasl_protocol_name: None,
        ..config.security.clone()
    };
    let config = ClientConfig { connect_timeout: PROBE_TIME, security, ..config.clone() };
    Client::connect(env, config).await.is_err()
}
