//! An in-memory network between numbered hosts, for tests. Any host can be cut off and connected again.
//!
//! Bytes in flight when a host is cut off stay in flight: streams stall, as with a pulled cable, and continue when
//! the host is connected again.

use engine::sync::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use engine::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::mpsc;

use super::{BoxFuture, Listener, Net, Stream};

type Accepted = (Stream, SocketAddr);

/// Bytes in flight in one direction of a stream.
const WINDOW_BYTES: usize = 256 << 10;

/// Network of all hosts. Clones share it.
#[derive(Clone, Default)]
pub struct PartitionableNet(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    listening: BTreeMap<SocketAddr, (usize, mpsc::UnboundedSender<Accepted>)>,
    ports: u16,
    cut: BTreeSet<usize>,
    stalled: Vec<Waker>,
}

impl PartitionableNet {
    /// Returns the network interface of one host.
    pub fn host(&self, number: usize) -> Arc<dyn Net> {
        Arc::new(Host { network: self.clone(), number })
    }

    /// Stops all traffic to and from this host.
    pub fn cut(&self, host: usize) {
        self.lock().cut.insert(host);
    }

    /// Ends a [`PartitionableNet::cut`].
    pub fn join(&self, host: usize) {
        let mut state = self.lock();
        state.cut.remove(&host);
        state.stalled.drain(..).for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    fn is_cut(&self, a: usize, b: usize) -> bool {
        a != b && (self.cut.contains(&a) || self.cut.contains(&b))
    }
}

struct Host {
    network: PartitionableNet,
    number: usize,
}

impl Net for Host {
    fn listen(&self, mut addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        let mut state = self.network.lock();
        if addr.port() == 0 {
            state.ports += 1;
            addr.set_port(10_000 + state.ports);
        }
        let taken = state.listening.get(&addr).is_some_and(|(_, sender)| !sender.is_closed());
        let result = if taken {
            Err(io::ErrorKind::AddrInUse.into())
        } else {
            let (sender, accepted) = mpsc::unbounded_channel();
            state.listening.insert(addr, (self.number, sender));
            Ok(Box::new(HostListener { addr, accepted }) as Box<dyn Listener>)
        };
        Box::pin(std::future::ready(result))
    }

    fn connect(&self, addr: SocketAddr, _deadline: Instant) -> BoxFuture<'_, io::Result<Stream>> {
        let mut state = self.network.lock();
        state.ports += 1;
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 10_000 + state.ports));
        let result = match state.listening.get(&addr) {
            Some((to, _)) if state.is_cut(self.number, *to) => Err(io::ErrorKind::TimedOut.into()),
            Some((to, listener)) => {
                let (ours, theirs) = tokio::io::duplex(WINDOW_BYTES);
                let end =
                    |stream| NetStream { stream, network: self.network.clone(), ends: (self.number, *to) };
                match listener.send((Box::new(end(theirs)), from)) {
                    Ok(()) => Ok(Box::new(end(ours)) as Stream),
                    Err(_) => Err(io::ErrorKind::ConnectionRefused.into()),
                }
            }
            None => Err(io::ErrorKind::ConnectionRefused.into()),
        };
        Box::pin(std::future::ready(result))
    }

    fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        let parsed = host_port.parse().map_err(|_| io::Error::from(io::ErrorKind::NotFound));
        Box::pin(std::future::ready(parsed.map(|addr| vec![addr])))
    }
}

struct HostListener {
    addr: SocketAddr,
    accepted: mpsc::UnboundedReceiver<Accepted>,
}

impl Listener for HostListener {
    fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<Accepted>> {
        Box::pin(async move { self.accepted.recv().await.ok_or_else(|| io::ErrorKind::NotConnected.into()) })
    }
}

/// One end of a stream. It stalls while one of its hosts is cut off.
struct NetStream {
    stream: DuplexStream,
    network: PartitionableNet,
    ends: (usize, usize),
}

impl NetStream {
    fn stalls(&self, context: &Context<'_>) -> bool {
        let mut state = self.network.lock();
        let cut = state.is_cut(self.ends.0, self.ends.1);
        if cut {
            state.stalled.push(context.waker().clone());
        }
        cut
    }
}

impl AsyncRead for NetStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.stalls(context) {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for NetStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.stalls(context) {
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
