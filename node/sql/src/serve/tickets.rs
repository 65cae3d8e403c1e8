//! Environment with other tickets than those of this process: none, so that what is reached through it never gets them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use engine::time::Instant;
use nyala_common::env::kerberos::Kerberos;
use nyala_common::env::{BoxFuture, Datagrams, Env, Listener, Net, Stream};

/// Network of a host with other tickets.
struct TicketsNet {
    net: Arc<dyn Net>,
    kerberos: Option<Arc<dyn Kerberos>>,
}

impl Net for TicketsNet {
    fn listen(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        self.net.listen(addr)
    }

    fn connect(&self, addr: SocketAddr, deadline: Instant) -> BoxFuture<'_, io::Result<Stream>> {
        self.net.connect(addr, deadline)
    }

    fn datagrams(&self, peer: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Datagrams>>> {
        self.net.datagrams(peer)
    }

    fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        self.net.resolve(host_port)
    }

    fn kerberos(&self) -> Option<Arc<dyn Kerberos>> {
        self.kerberos.clone()
    }
}

/// Returns `env` with these tickets in place of its own.
pub(super) fn with_tickets(env: &Env, kerberos: Option<Arc<dyn Kerberos>>) -> Env {
    Env { net: Arc::new(TicketsNet { net: env.net.clone(), kerberos }), ..env.clone() }
}
