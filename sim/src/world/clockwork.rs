//! Time, network and devices for a world that has an executor but nothing else: an [`Env`] whose clock moves only
//! when the world moves it.
//!
//! ```text
//! executor idle ──► Clockwork::step: to the next timer or network event, wake who waits for it ──► executor
//! ```
//!
//! Times are exact to the nanosecond, whatever the executor's own timers can do, and no time passes while tasks
//! run: what work takes is slept afterwards ([`Machine::work_ends`]).

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use engine::time::{Instant, Now};
use node::env::{BoxFuture, Clock, Env, Listener, Net, Rng, Stream, TaskHandle, Tasks};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{BOOTED, EPOCH};
use crate::machine::Machine;
use crate::net::rules::HostId;
use crate::net::{ConnId, Network, Side};
use crate::trace::{At, EventLog, Lane, Whereabouts};

/// Something a host did that the world's driver must see to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    LostPower(HostId),
    /// A fault of the plan that waited for a moment.
    Struck(usize),
    Exited(HostId, Option<String>),
    ClientFailed(HostId, String),
    ClientEnded,
}

/// The state that all hosts of a world share.
pub struct Clockwork {
    state: Mutex<State>,
}

struct State {
    /// Nanoseconds since the run began.
    now: u64,
    timers: BTreeMap<(u64, u64), Waker>,
    next_timer: u64,
    net: Network,
    signals: VecDeque<Signal>,
}

impl Clockwork {
    pub fn new(net: Network) -> Arc<Clockwork> {
        let state = State { now: 0, timers: BTreeMap::new(), next_timer: 0, net, signals: VecDeque::new() };
        Arc::new(Clockwork { state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds the clockwork")
    }

    /// Nanoseconds since the run began.
    pub fn nanos(&self) -> u64 {
        self.state().now
    }

    /// Works on the network, then wakes whom that concerns.
    pub fn net<R>(&self, work: impl FnOnce(&mut Network, u64) -> R) -> R {
        let mut state = self.state();
        let now = state.now;
        let result = work(&mut state.net, now);
        let wakes = std::mem::take(&mut state.net.wakes);
        drop(state);
        wakes.into_iter().for_each(Waker::wake);
        result
    }

    pub fn signal(&self, signal: Signal) {
        self.state().signals.push_back(signal);
    }

    pub fn next_signal(&self) -> Option<Signal> {
        self.state().signals.pop_front()
    }

    pub fn has_signals(&self) -> bool {
        !self.state().signals.is_empty()
    }

    /// Moves time to the next thing that is due, but no further than `until`; false when that is reached.
    ///
    /// Only while no task is ready to run: what they do takes no time.
    pub fn step(&self, until: u64) -> bool {
        let mut state = self.state();
        let timer = state.timers.keys().next().map(|(at, _)| *at);
        let next = timer.into_iter().chain(state.net.next_at()).min();
        let Some(next) = next.filter(|next| *next <= until) else {
            state.now = state.now.max(until);
            return false;
        };
        state.now = state.now.max(next);
        let now = state.now;
        let later = state.timers.split_off(&(now + 1, 0));
        let due = std::mem::replace(&mut state.timers, later);
        state.net.advance(now);
        let wakes = std::mem::take(&mut state.net.wakes);
        drop(state);
        due.into_values().chain(wakes).for_each(Waker::wake);
        true
    }
}

/// One machine's place in the clockwork.
pub struct Node {
    pub clockwork: Arc<Clockwork>,
    pub machine: Arc<Machine>,
    pub id: HostId,
}

impl Whereabouts for Node {
    fn host(&self) -> &str {
        &self.machine.name
    }

    fn nanos(&self) -> u64 {
        self.clockwork.nanos()
    }

    fn log(&self) -> &EventLog {
        &self.machine.log
    }

    fn stepped(&self) {
        for fault in self.machine.fuses().struck() {
            self.clockwork.signal(Signal::Struck(fault));
        }
        // Some disk work is so small that tasks do it by the way.
        if self.machine.fuses().power_went(|| self.machine.lost_power()) {
            self.power_off();
        }
    }
}

impl Node {
    fn power_off(&self) {
        self.record("no power", &[]);
        self.clockwork.net(|net, _| net.power_off(self.id));
        self.clockwork.signal(Signal::LostPower(self.id));
    }
}

/// Spawns a task on the current host of the executor.
pub type Spawn = fn(&'static str, BoxFuture<'static, ()>) -> Box<dyn TaskHandle>;

impl Node {
    /// The world as this machine's programs see it.
    pub fn env(self: &Arc<Node>, spawn: Spawn) -> Env {
        Env {
            clock: self.clone(),
            disks: self.machine.clone(),
            net: self.clone(),
            tasks: Arc::new(NodeTasks { node: self.clone(), spawn }),
            memory: self.machine.clone(),
            rng: self.clone(),
            watch: self.machine.watch(),
        }
    }

    fn record(&self, what: &str, bytes: &[u8]) {
        self.machine.log.record(self.clockwork.nanos(), &self.machine.name, what, bytes);
    }

    fn mono(&self) -> Instant {
        Instant(BOOTED.as_nanos() as u64 + self.clockwork.nanos())
    }

    fn sleep(self: &Arc<Node>, until: Instant) -> Sleep {
        let until = until.0.saturating_sub(BOOTED.as_nanos() as u64);
        Sleep { clockwork: self.clockwork.clone(), until, timer: None }
    }
}

/// Ready at a time or after.
struct Sleep {
    clockwork: Arc<Clockwork>,
    until: u64,
    timer: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let clockwork = self.clockwork.clone();
        let mut state = clockwork.state();
        if state.now >= self.until {
            self.timer = None;
            return Poll::Ready(());
        }
        let timer = match self.timer {
            Some(timer) => timer,
            None => {
                state.next_timer += 1;
                (self.until, state.next_timer)
            }
        };
        self.timer = Some(timer);
        state.timers.insert(timer, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            let waker = self.clockwork.state().timers.remove(&timer);
            // A waker may be the last to hold a task, which holds sleeps: not under the lock.
            drop(waker);
        }
    }
}

impl Clock for Node {
    fn now(&self) -> Now {
        let nanos = self.clockwork.nanos();
        let true_micros = EPOCH.as_micros() as u64 + nanos / 1_000;
        Now { mono: Instant(BOOTED.as_nanos() as u64 + nanos), wall: self.machine.wall(true_micros) }
    }

    fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()> {
        let until = until.0.saturating_sub(BOOTED.as_nanos() as u64);
        Box::pin(Sleep { clockwork: self.clockwork.clone(), until, timer: None })
    }
}

impl Rng for Node {
    fn next_u64(&self) -> u64 {
        let drawn = self.machine.next_u64();
        self.record("random", &drawn.to_le_bytes());
        drawn
    }
}

struct NodeTasks {
    node: Arc<Node>,
    spawn: Spawn,
}

impl Tasks for NodeTasks {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn TaskHandle> {
        self.node.record("spawn", name.as_bytes());
        (self.spawn)(name, Box::pin(At { here: self.node.clone(), future }))
    }

    fn run<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            work();
            let node = &self.node;
            if node.machine.lost_power() {
                // Again where it was said before: who was down then has started on a disk without power.
                node.power_off();
                return std::future::pending().await;
            }
            let now = node.mono();
            let ends = node.machine.work_ends(now);
            let took = ends.since(now);
            node.record("run", &(took.as_nanos() as u64).to_le_bytes());
            let (log, micros) = (&node.machine.log, took.as_micros() as u64);
            log.lane(node.clockwork.nanos(), &node.machine.name, Lane::Work, micros);
            node.sleep(ends).await;
        })
    }
}

impl Net for Node {
    fn listen(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        let listening = self.clockwork.net(|net, _| net.listen(self.id, addr));
        let listening = listening.map(|local_addr| {
            self.record("listen", local_addr.to_string().as_bytes());
            let (clockwork, machine) = (self.clockwork.clone(), self.machine.clone());
            let node = Arc::new(Node { clockwork, machine, id: self.id });
            Box::new(NodeListener { node, local_addr }) as Box<dyn Listener>
        });
        Box::pin(std::future::ready(listening))
    }

    fn connect(&self, addr: SocketAddr, deadline: Instant) -> BoxFuture<'_, io::Result<Stream>> {
        Box::pin(async move {
            let id = self.clockwork.net(|net, now| net.connect(now, self.id, addr))?;
            let mut attempt = Attempt { clockwork: self.clockwork.clone(), id: Some(id) };
            let mut late = self.sleep_until(deadline);
            let connected = poll_fn(|cx| {
                if let Some(outcome) = self.clockwork.net(|net, _| net.connected(id, cx.waker())) {
                    return Poll::Ready(outcome);
                }
                let late = late.as_mut().poll(cx);
                late.map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer before the deadline")))
            });
            let connected = connected.await;
            let outcome = if connected.is_ok() { "connected" } else { "not connected" };
            self.record(outcome, addr.to_string().as_bytes());
            connected?;
            attempt.id = None;
            Ok(self.stream(id, 0))
        })
    }

    fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        let resolved = host_port.parse().ok().or_else(|| {
            let (name, port) = host_port.rsplit_once(':')?;
            let ip = self.clockwork.net(|net, _| net.resolve(name))?;
            Some(SocketAddr::new(ip, port.parse().ok()?))
        });
        let not_found = || io::Error::new(io::ErrorKind::NotFound, format!("{host_port:?} has no address"));
        Box::pin(std::future::ready(resolved.map(|addr| vec![addr]).ok_or_else(not_found)))
    }
}

impl Node {
    fn stream(&self, conn: ConnId, side: Side) -> Stream {
        let (clockwork, machine) = (self.clockwork.clone(), self.machine.clone());
        Box::new(NodeStream { clockwork, machine, end: (conn, side) })
    }
}

/// An attempt to connect that is given up when it is dropped.
struct Attempt {
    clockwork: Arc<Clockwork>,
    id: Option<ConnId>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.clockwork.net(|net, now| net.give_up(now, id));
        }
    }
}

struct NodeListener {
    node: Arc<Node>,
    local_addr: SocketAddr,
}

impl Listener for NodeListener {
    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>> {
        Box::pin(async move {
            let (id, port) = (self.node.id, self.local_addr.port());
            let accepted =
                poll_fn(|cx| match self.node.clockwork.net(|net, _| net.accept(id, port, cx.waker())) {
                    Some(accepted) => Poll::Ready(accepted),
                    None => Poll::Pending,
                });
            let (conn, remote) = accepted.await?;
            self.node.record("accept", remote.to_string().as_bytes());
            Ok((self.node.stream(conn, 1), remote))
        })
    }
}

impl Drop for NodeListener {
    fn drop(&mut self) {
        let (id, port) = (self.node.id, self.local_addr.port());
        self.node.clockwork.net(|net, now| net.unlisten(now, id, port));
    }
}

/// One end of a connection. What is written is recorded; it is what will be read.
struct NodeStream {
    clockwork: Arc<Clockwork>,
    machine: Arc<Machine>,
    end: (ConnId, Side),
}

impl NodeStream {
    fn record(&self, what: &str, bytes: &[u8]) {
        self.machine.log.record(self.clockwork.nanos(), &self.machine.name, what, bytes);
    }
}

impl AsyncRead for NodeStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if out.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let Some(read) = self.clockwork.net(|net, _| net.read(self.end, out, cx.waker())) else {
            return Poll::Pending;
        };
        let count = read?;
        self.record("read", &(count as u64).to_le_bytes());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for NodeStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(written) = self.clockwork.net(|net, now| net.write(now, self.end, bytes, cx.waker())) else {
            return Poll::Pending;
        };
        if let Ok(count) = &written {
            self.record("write", &bytes[..*count]);
            let (log, name) = (&self.machine.log, &self.machine.name);
            log.lane(self.clockwork.nanos(), name, Lane::Sent, *count as u64);
        }
        Poll::Ready(written)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.clockwork.net(|net, now| net.finish(now, self.end));
        Poll::Ready(Ok(()))
    }
}

impl Drop for NodeStream {
    fn drop(&mut self) {
        self.clockwork.net(|net, now| net.close(now, self.end));
    }
}

/// Simulated time as the clockwork counts it.
pub fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}
