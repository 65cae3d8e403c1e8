//! One host of turmoil's world: the [`Env`] of the programs on it.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};

use ::turmoil::net::{TcpListener, TcpStream};
use engine::sync::Mutex;
use engine::time::{ClockReading, Instant};
use nyala_common::env::kerberos::Kerberos;
use nyala_common::env::{
    BoxFuture, Clock, Env, Listener, Net, Rng, Stream, TaskHandle, Tasks, TlsPrimitives,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;

use super::super::{BOOTED, EPOCH, StopReason, WorldFailure};
use crate::event_log::{EventLog, ExecutionContext, InContext, Series};
use crate::machine::Machine;
use crate::net::call_cuts::CallCuts;
use crate::tls_primitives::tls_primitives;
use sim_plan::faults::CallPart;

/// Addresses by name.
pub(super) type HostAddresses = Arc<Mutex<BTreeMap<String, IpAddr>>>;
/// Events inside the world that the driver must handle.
pub(super) type Signals = Arc<Mutex<VecDeque<TurmoilSignal>>>;
pub(super) type TurmoilSignal = Result<StopReason, WorldFailure>;
pub(super) type Streams = Arc<Mutex<Vec<Arc<StreamState>>>>;
/// Calls to cut, by the addresses of their hosts.
pub(super) type ArmedCuts = Arc<Mutex<CallCuts<IpAddr>>>;

/// The reset state of a stream, and the tasks to wake on a reset.
pub(super) struct StreamState {
    /// Own address and the peer's.
    pub ips: [IpAddr; 2],
    /// True if this end opened the connection.
    is_opener: bool,
    reset: AtomicBool,
    wakers: Mutex<[Option<Waker>; 2]>,
}

impl StreamState {
    pub(super) fn reset(&self) {
        self.reset.store(true, Ordering::Relaxed);
        let wakers = std::mem::take(&mut *self.wakers.lock());
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Returns an error if the stream was reset; otherwise stores the waker of a reader (0) or a writer (1).
    fn check(&self, who: usize, cx: &Context<'_>) -> io::Result<()> {
        if self.reset.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        self.wakers.lock()[who] = Some(cx.waker().clone());
        Ok(())
    }
}

impl TurmoilHost {
    pub(super) fn env(self: &Arc<TurmoilHost>) -> Env {
        let (host, machine) = (self.clone(), self.machine.clone());
        Env {
            clock: Arc::new(HostClock { host: host.clone() }),
            disks: machine.clone(),
            net: Arc::new(HostNet { host: host.clone() }),
            tasks: Arc::new(HostTasks { host }),
            memory: machine.clone(),
            rng: Arc::new(HostRng { machine: machine.clone() }),
            observer: machine.observer(),
            spans: Default::default(),
        }
    }
}

/// One machine of this world.
pub(super) struct TurmoilHost {
    pub machine: Arc<Machine>,
    pub ip: IpAddr,
    pub names: HostAddresses,
    /// The last time read, in nanoseconds since the run began.
    pub last: AtomicU64,
    pub signals: Signals,
    pub streams: Streams,
    pub cuts: ArmedCuts,
}

impl ExecutionContext for TurmoilHost {
    fn host(&self) -> &str {
        &self.machine.name
    }

    fn nanos(&self) -> u64 {
        self.elapsed()
    }

    fn log(&self) -> &EventLog {
        &self.machine.log
    }

    fn stepped(&self) {
        for fault in self.machine.triggers().take_fired() {
            self.signals.lock().push_back(Ok(StopReason::Fired { fault }));
        }
        // Small disk work is done inside tasks.
        if self.machine.triggers().take_power_cut(|| self.machine.lost_power()) {
            self.lost_power();
        }
    }
}

impl TurmoilHost {
    fn lost_power(&self) {
        self.record("no power", &[]);
        let host = self.machine.name.clone();
        self.signals.lock().push_back(Ok(StopReason::LostPower { host }));
    }

    /// Returns the nanoseconds since the run began.
    fn elapsed(&self) -> u64 {
        let in_task = Handle::try_current().is_ok();
        match ::turmoil::sim_elapsed().filter(|_| in_task) {
            Some(elapsed) => {
                let elapsed = elapsed.as_nanos() as u64;
                self.last.fetch_max(elapsed, Ordering::Relaxed).max(elapsed)
            }
            None => self.last.load(Ordering::Relaxed),
        }
    }

    fn now(&self) -> Instant {
        Instant(BOOTED.as_nanos() as u64 + self.elapsed())
    }

    fn record(&self, what: &str, bytes: &[u8]) {
        self.machine.log.record(self.elapsed(), &self.machine.name, what, bytes);
    }

    async fn sleep_until(&self, until: Instant) {
        loop {
            let now = self.now();
            if now >= until {
                return;
            }
            tokio::time::sleep(until.since(now)).await;
        }
    }
}

struct HostClock {
    host: Arc<TurmoilHost>,
}

impl Clock for HostClock {
    fn now(&self) -> ClockReading {
        let true_micros = EPOCH.as_micros() as u64 + self.host.elapsed() / 1_000;
        ClockReading { mono: self.host.now(), wall: self.host.machine.wall(true_micros) }
    }

    fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()> {
        let host = self.host.clone();
        Box::pin(async move { host.sleep_until(until).await })
    }
}

struct HostRng {
    machine: Arc<Machine>,
}

impl Rng for HostRng {
    fn next_u64(&self) -> u64 {
        let drawn = self.machine.next_u64();
        // Without a time: randomness may be drawn where there is none.
        self.machine.log.record(0, &self.machine.name, "random", &drawn.to_le_bytes());
        drawn
    }

    fn tls_primitives(&self) -> TlsPrimitives {
        tls_primitives(&self.machine)
    }
}

struct HostTasks {
    host: Arc<TurmoilHost>,
}

struct HostTask(tokio::task::JoinHandle<()>);

impl TaskHandle for HostTask {
    fn abort(&self) {
        self.0.abort();
    }

    fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl Tasks for HostTasks {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn TaskHandle> {
        self.host.record("spawn", name.as_bytes());
        let task = Some(self.host.machine.begin_task(name));
        Box::new(HostTask(tokio::task::spawn_local(InContext { here: self.host.clone(), task, future })))
    }

    fn run<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let host = &self.host;
            let delay = host.machine.pool_delay(host.elapsed());
            if !delay.is_zero() {
                host.sleep_until(host.now().after(delay)).await;
            }
            work();
            if host.machine.lost_power() {
                host.lost_power();
                return std::future::pending().await;
            }
            let now = host.now();
            let ends = host.machine.busy_until(now);
            let took = ends.since(now);
            host.record("run", &(took.as_nanos() as u64).to_le_bytes());
            let (log, micros) = (&host.machine.log, took.as_micros() as u64);
            log.add_sample(host.elapsed(), &host.machine.name, Series::Work, micros);
            host.sleep_until(ends).await;
        })
    }
}

struct HostNet {
    host: Arc<TurmoilHost>,
}

impl Net for HostNet {
    fn kerberos(&self) -> Option<Arc<dyn Kerberos>> {
        self.host.machine.kerberos()
    }

    fn listen(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            // turmoil knows the machine's own address only as "any".
            let any = SocketAddr::new([0, 0, 0, 0].into(), addr.port());
            let bind = if addr.ip().is_loopback() { addr } else { any };
            let listener = TcpListener::bind(bind).await?;
            let ip = if addr.ip().is_loopback() { addr.ip() } else { self.host.ip };
            let local_addr = SocketAddr::new(ip, listener.local_addr()?.port());
            self.host.record("listen", local_addr.to_string().as_bytes());
            Ok(Box::new(HostListener { host: self.host.clone(), listener, local_addr }) as Box<dyn Listener>)
        })
    }

    fn connect(&self, addr: SocketAddr, deadline: Instant) -> BoxFuture<'_, io::Result<Stream>> {
        Box::pin(async move {
            let known = addr.ip().is_loopback() || self.host.names.lock().values().any(|ip| *ip == addr.ip());
            if !known {
                return Err(io::Error::new(io::ErrorKind::HostUnreachable, format!("{addr} is no machine")));
            }
            let left = deadline.since(self.host.now());
            let connected = match tokio::time::timeout(left, TcpStream::connect(addr)).await {
                Ok(connected) => connected,
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer before the deadline")),
            };
            let outcome = match &connected {
                Ok(_) => "connected",
                Err(_) => "not connected",
            };
            self.host.record(outcome, addr.to_string().as_bytes());
            Ok(HostStream::new(&self.host, connected?, addr.ip(), true))
        })
    }

    fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        let resolved = self.host.resolve(host_port);
        let not_found = || io::Error::new(io::ErrorKind::NotFound, format!("{host_port:?} has no address"));
        Box::pin(std::future::ready(resolved.map(|addr| vec![addr]).ok_or_else(not_found)))
    }
}

impl TurmoilHost {
    fn resolve(&self, host_port: &str) -> Option<SocketAddr> {
        if let Ok(addr) = host_port.parse() {
            return Some(addr);
        }
        let (name, port) = host_port.rsplit_once(':')?;
        let ip = *self.names.lock().get(name)?;
        Some(SocketAddr::new(ip, port.parse().ok()?))
    }
}

struct HostListener {
    host: Arc<TurmoilHost>,
    listener: TcpListener,
    local_addr: SocketAddr,
}

impl Listener for HostListener {
    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>> {
        Box::pin(async move {
            let (stream, remote) = self.listener.accept().await?;
            self.host.record("accept", remote.to_string().as_bytes());
            Ok((HostStream::new(&self.host, stream, remote.ip(), false), remote))
        })
    }
}

/// A stream whose traffic is recorded and whose writes are cut at random lengths.
struct HostStream {
    host: Arc<TurmoilHost>,
    stream: TcpStream,
    fate: Arc<StreamState>,
}

/// Longest segment in bytes; a write is cut to a random part of that once every `CUT_ONE_IN`.
const SEGMENT_BYTES_MAX: usize = 16 << 10;
const CUT_ONE_IN: u64 = 8;

impl HostStream {
    #[allow(clippy::new_ret_no_self, reason = "a stream is known by its trait")]
    fn new(host: &Arc<TurmoilHost>, stream: TcpStream, remote: IpAddr, is_opener: bool) -> Stream {
        let (ips, reset, wakers) = ([host.ip, remote], AtomicBool::new(false), Mutex::default());
        let fate = Arc::new(StreamState { ips, is_opener, reset, wakers });
        host.streams.lock().push(fate.clone());
        Box::new(HostStream { host: host.clone(), stream, fate })
    }
}

impl HostStream {
    /// Counts a write for the calls to cut; true if this one is cut.
    fn is_call_cut(&self) -> bool {
        let [own, peer] = &self.fate.ips;
        let mut cuts = self.host.cuts.lock();
        match self.fate.is_opener {
            true => cuts.is_due(own, peer, CallPart::Request),
            false => cuts.is_due(peer, own, CallPart::Answer),
        }
    }

    /// Resets both ends of the connection. This world cannot tell connections of two hosts apart, so all of them are.
    fn cut(&self) {
        let [own, peer] = self.fate.ips;
        let between = |state: &&Arc<StreamState>| state.ips == [own, peer] || state.ips == [peer, own];
        let reset: Vec<_> = self.host.streams.lock().iter().filter(between).cloned().collect();
        reset.iter().for_each(|state| state.reset());
    }
}

impl AsyncRead for HostStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.fate.check(0, cx)?;
        let before = out.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, out));
        self.host.record("read", &out.filled()[before..]);
        Poll::Ready(read)
    }
}

impl AsyncWrite for HostStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.fate.check(1, cx)?;
        let mut length = bytes.len().min(SEGMENT_BYTES_MAX);
        let drawn = self.host.machine.next_u64();
        if length > 1 && drawn.is_multiple_of(CUT_ONE_IN) {
            length = 1 + (drawn / CUT_ONE_IN) as usize % (length - 1);
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &bytes[..length]));
        if self.is_call_cut() {
            self.host.record("cut", &bytes[..length]);
            self.cut();
        }
        if let Ok(written) = &written {
            self.host.record("write", &bytes[..*written]);
            let (log, name) = (&self.host.machine.log, &self.host.machine.name);
            log.add_sample(self.host.elapsed(), name, Series::Sent, *written as u64);
        }
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
