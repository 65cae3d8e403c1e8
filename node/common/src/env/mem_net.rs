//! An in-memory network for tests: streams are pipes, addresses are keys of a map, time may be paused.

use engine::sync::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use engine::time::Instant;
use tokio::sync::mpsc;

use super::os::{OsEnv, OsOptions};
use super::{BoxFuture, Env, Listener, Net, Stream};

/// Returns the real environment with an in-memory network.
pub fn env() -> Env {
    let env = OsEnv::new(&OsOptions::default()).expect("there is entropy");
    Env { net: Arc::new(MemoryNet::default()), ..env }
}

/// Bytes in flight in one direction of a stream.
const WINDOW_BYTES: usize = 64 << 10;

type Accepted = (Stream, SocketAddr);

#[derive(Default)]
struct MemoryNet {
    listening: Arc<Mutex<BTreeMap<SocketAddr, mpsc::UnboundedSender<Accepted>>>>,
    ports: Mutex<u16>,
}

impl MemoryNet {
    fn port(&self) -> u16 {
        let mut ports = self.ports.lock();
        *ports += 1;
        10_000 + *ports
    }
}

impl Net for MemoryNet {
    fn listen(&self, mut addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        if addr.port() == 0 {
            addr.set_port(self.port());
        }
        let mut listening = self.listening.lock();
        let result = if listening.get(&addr).is_some_and(|sender| !sender.is_closed()) {
            Err(io::ErrorKind::AddrInUse.into())
        } else {
            let (sender, accepted) = mpsc::unbounded_channel();
            listening.insert(addr, sender);
            Ok(Box::new(MemoryListener { addr, accepted }) as Box<dyn Listener>)
        };
        Box::pin(std::future::ready(result))
    }

    fn connect(&self, addr: SocketAddr, _deadline: Instant) -> BoxFuture<'_, io::Result<Stream>> {
        let (ours, theirs) = tokio::io::duplex(WINDOW_BYTES);
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()));
        let listening = self.listening.lock();
        let sent =
            listening.get(&addr).is_some_and(|listener| listener.send((Box::new(theirs), from)).is_ok());
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let result = if sent { Ok(Box::new(ours) as Stream) } else { Err(refused()) };
        Box::pin(std::future::ready(result))
    }

    fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        let parsed = host_port.parse().map_err(|_| io::Error::from(io::ErrorKind::NotFound));
        Box::pin(std::future::ready(parsed.map(|addr| vec![addr])))
    }
}

struct MemoryListener {
    addr: SocketAddr,
    accepted: mpsc::UnboundedReceiver<Accepted>,
}

impl Listener for MemoryListener {
    fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Accepted>> {
        Box::pin(async move { self.accepted.recv().await.ok_or_else(|| io::ErrorKind::NotConnected.into()) })
    }
}
