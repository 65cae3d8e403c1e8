//! Environment without Kerberos: what is reached through it never presents the tickets of this process.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use engine::time::Instant;
use nyala_common::env::{BoxFuture, Datagrams, Env, Listener, Net, Stream};

/// Network that says nothing of the host's Kerberos.
struct TicketlessNet(Arc<dyn Net>);

impl Net for TicketlessNet {
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

/// Returns `env` without Kerberos.
pub(super) fn without_tickets(env: &Env) -> Env {
    Env { net: Arc::new(TicketlessNet(env.net.clone())), ..env.clone() }
}
