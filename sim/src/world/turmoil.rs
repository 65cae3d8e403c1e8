//! The world of fidelity: tokio's own scheduler on each host, and turmoil's network of segments between them.
//!
//! turmoil's ways, and what is done about them:
//!
//! - `tokio::spawn`ed tasks die in an order that differs from run to run: every task is spawned on the host's
//!   `LocalSet`.
//! - Time outside of a host's tasks is the real one: code that runs while a dead host's values are dropped reads
//!   the last time that was.
//! - A dropped stream says goodbye: for a power failure the host is first cut off from the others.
//! - Segments lost to a partition are never sent again, and the stream is stuck for ever: calls must have
//!   deadlines. [`TurmoilWorld::hold`] delays instead, as TCP would.
//! - Any write is taken whole, as one segment: writes are cut here, so that partial ones happen.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::{Duration, UNIX_EPOCH};

use ::turmoil::net::{TcpListener, TcpStream};
use ::turmoil::{Builder, Sim};
use engine::time::{Instant, Now};
use node::env::{BoxFuture, Clock, Env, Listener, Net, Rng, Stream, TaskHandle, Tasks};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;

use crate::machine::Machine;
use crate::trace::{EventLog, Fingerprint};

/// When simulated time begins: 2026-01-01, UTC.
const EPOCH: Duration = Duration::from_secs(1_767_225_600);
const TICK: Duration = Duration::from_millis(1);
/// Where clocks start. Not at zero: the first moments of a machine's life are nobody's special case.
const BOOTED: Duration = Duration::from_secs(100);

/// How a host's program or a client ends: an error ends the run.
pub type Ended = Result<(), Box<dyn std::error::Error>>;

type Names = Arc<Mutex<BTreeMap<String, IpAddr>>>;

/// One simulated network of machines.
pub struct TurmoilWorld {
    sim: Sim<'static>,
    seed: u64,
    log: EventLog,
    machines: BTreeMap<String, Arc<Machine>>,
    names: Names,
}

impl TurmoilWorld {
    /// `limit`: simulated time after which a run that has not ended is a failure.
    pub fn new(seed: u64, limit: Duration, log: EventLog) -> TurmoilWorld {
        let sim = Builder::new()
            .rng_seed(seed)
            .epoch(UNIX_EPOCH + EPOCH)
            .tick_duration(TICK)
            .simulation_duration(limit)
            .min_message_latency(Duration::from_micros(100))
            .max_message_latency(Duration::from_millis(4))
            .tcp_capacity(1024)
            .enable_random_order()
            .build();
        TurmoilWorld { sim, seed, log, machines: BTreeMap::new(), names: Names::default() }
    }

    /// The machine of this name, made when it is first asked for.
    pub fn machine(&mut self, name: &str) -> Arc<Machine> {
        if let Some(machine) = self.machines.get(name) {
            return machine.clone();
        }
        let number = self.machines.len() as u64 + 1;
        let seed = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number);
        let machine = Arc::new(Machine::new(name, seed, self.log.clone()));
        let ip = self.sim.lookup(name);
        self.names.lock().expect("nothing panics while it holds the names").insert(name.to_string(), ip);
        self.machines.insert(name.to_string(), machine.clone());
        machine
    }

    /// The address of a machine.
    pub fn ip(&mut self, name: &str) -> IpAddr {
        self.machine(name);
        self.sim.lookup(name)
    }

    /// Runs `program` on a machine, from now on and after each restart.
    pub fn host<F>(&mut self, name: &str, program: impl Fn(Env) -> F + 'static)
    where
        F: Future<Output = Ended> + 'static,
    {
        let env = self.env(name);
        self.sim.host(name, move || program(env.clone()));
    }

    /// Runs `program` on a machine; the run ends when all of these have.
    pub fn client<F>(&mut self, name: &str, program: impl FnOnce(Env) -> F)
    where
        F: Future<Output = Ended> + 'static,
    {
        let env = self.env(name);
        self.sim.client(name, program(env));
    }

    /// Lets time pass until every client has ended.
    pub fn run(&mut self) -> Ended {
        self.sim.run()
    }

    /// Lets this much time pass, or less if every client ends before.
    pub fn run_for(&mut self, time: Duration) -> Result<bool, Box<dyn std::error::Error>> {
        let end = self.sim.elapsed() + time;
        while self.sim.elapsed() < end {
            if self.sim.step()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The process dies, its machine does not: peers see their connections end, files keep what was written.
    pub fn kill(&mut self, name: &str) {
        self.note(name, "kill");
        self.sim.crash(name);
    }

    /// The power fails: peers hear nothing, disks keep what was synced and perhaps some of the rest.
    pub fn cut_power(&mut self, name: &str) {
        self.note(name, "power cut");
        for other in self.others(name) {
            self.sim.partition(name, other.as_str());
        }
        self.sim.crash(name);
        self.machine(name).crash_disks();
    }

    /// A dead machine comes back and runs its program.
    pub fn restart(&mut self, name: &str) {
        self.note(name, "restart");
        for other in self.others(name) {
            self.sim.repair(name, other.as_str());
        }
        self.sim.bounce(name);
    }

    /// Nothing passes between two machines until [`TurmoilWorld::release`]; nothing is lost.
    pub fn hold(&mut self, one: &str, other: &str) {
        self.note(one, "hold");
        self.sim.hold(one, other);
    }

    pub fn release(&mut self, one: &str, other: &str) {
        self.note(one, "release");
        self.sim.release(one, other);
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.log.fingerprint()
    }

    fn note(&self, name: &str, what: &str) {
        self.log.record(self.sim.elapsed().as_nanos() as u64, name, what, &[]);
    }

    fn others(&self, name: &str) -> Vec<String> {
        self.machines.keys().filter(|other| *other != name).cloned().collect()
    }

    fn env(&mut self, name: &str) -> Env {
        let machine = self.machine(name);
        let ip = self.ip(name);
        let host = Arc::new(Host {
            machine: machine.clone(),
            ip,
            names: self.names.clone(),
            last: AtomicU64::new(0),
        });
        Env {
            clock: Arc::new(HostClock { host: host.clone() }),
            disks: machine.clone(),
            net: Arc::new(HostNet { host: host.clone() }),
            tasks: Arc::new(HostTasks { host }),
            memory: machine.clone(),
            rng: Arc::new(HostRng { machine }),
        }
    }
}

/// One machine within this world.
struct Host {
    machine: Arc<Machine>,
    ip: IpAddr,
    names: Names,
    /// The last time read, in nanoseconds since the run began.
    last: AtomicU64,
}

impl Host {
    /// Nanoseconds since the run began.
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
    host: Arc<Host>,
}

impl Clock for HostClock {
    fn now(&self) -> Now {
        let true_micros = EPOCH.as_micros() as u64 + self.host.elapsed() / 1_000;
        Now { mono: self.host.now(), wall: self.host.machine.wall(true_micros) }
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
}

struct HostTasks {
    host: Arc<Host>,
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
        Box::new(HostTask(tokio::task::spawn_local(future)))
    }

    fn run<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            work();
            let owed = self.host.machine.take_owed_latency();
            self.host.record("run", &(owed.as_nanos() as u64).to_le_bytes());
            self.host.sleep_until(self.host.now().after(owed)).await;
        })
    }
}

struct HostNet {
    host: Arc<Host>,
}

impl Net for HostNet {
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
            let known = addr.ip().is_loopback()
                || self
                    .host
                    .names
                    .lock()
                    .expect("nothing panics holding it")
                    .values()
                    .any(|ip| *ip == addr.ip());
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
            Ok(HostStream::new(&self.host, connected?))
        })
    }

    fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        let resolved = self.host.resolve(host_port);
        let not_found = || io::Error::new(io::ErrorKind::NotFound, format!("{host_port:?} has no address"));
        Box::pin(std::future::ready(resolved.map(|addr| vec![addr]).ok_or_else(not_found)))
    }
}

impl Host {
    fn resolve(&self, host_port: &str) -> Option<SocketAddr> {
        if let Ok(addr) = host_port.parse() {
            return Some(addr);
        }
        let (name, port) = host_port.rsplit_once(':')?;
        let ip = *self.names.lock().expect("nothing panics while it holds the names").get(name)?;
        Some(SocketAddr::new(ip, port.parse().ok()?))
    }
}

struct HostListener {
    host: Arc<Host>,
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
            Ok((HostStream::new(&self.host, stream), remote))
        })
    }
}

/// A stream whose traffic is recorded and whose writes are cut at random lengths.
struct HostStream {
    host: Arc<Host>,
    stream: TcpStream,
}

/// The longest segment, and how often a write is cut to a random part of that.
const SEGMENT_BYTES_MAX: usize = 16 << 10;
const CUT_ONE_IN: u64 = 8;

impl HostStream {
    #[allow(clippy::new_ret_no_self, reason = "a stream is known by its trait")]
    fn new(host: &Arc<Host>, stream: TcpStream) -> Stream {
        Box::new(HostStream { host: host.clone(), stream })
    }
}

impl AsyncRead for HostStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, out));
        self.host.record("read", &out.filled()[before..]);
        Poll::Ready(read)
    }
}

impl AsyncWrite for HostStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut length = bytes.len().min(SEGMENT_BYTES_MAX);
        let drawn = self.host.machine.next_u64();
        if length > 1 && drawn.is_multiple_of(CUT_ONE_IN) {
            length = 1 + (drawn / CUT_ONE_IN) as usize % (length - 1);
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &bytes[..length]));
        if let Ok(written) = &written {
            self.host.record("write", &bytes[..*written]);
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
