//! Time, network and devices for a world with an executor only: an [`Env`] whose clock moves only when the world moves
//! it.
//!
//! ```text
//! executor idle ──► VirtualWorld::step: to the next timer or network event, wake its waiters ──► executor
//! ```
//!
//! Times are exact to the nanosecond, whatever the executor's own timers can do. No time passes while tasks run: the
//! cost of work is slept afterwards ([`Machine::busy_until`]).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use engine::sync::{Mutex, MutexGuard};
use engine::time::{ClockReading, Instant};
use nyala_common::env::kerberos::Kerberos;
use nyala_common::env::{
    BoxFuture, Clock, Env, Listener, Net, Rng, Stream, TaskHandle, Tasks, TlsPrimitives,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{BOOTED, EPOCH};
use crate::event_log::{EventLog, ExecutionContext, InContext, Series};
use crate::machine::Machine;
use crate::net::rules::HostId;
use crate::net::{ConnId, NetCounts, Network, Side};
use crate::tls_primitives::tls_primitives;

/// An event of a host that the world's driver must handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostSignal {
    LostPower(HostId),
    /// The trigger of a fault of the plan fired.
    Fired(usize),
    Exited(HostId, Option<String>),
    ClientFailed(HostId, String),
    ClientEnded,
}

/// The state that all hosts of a world share.
pub struct VirtualWorld {
    state: Mutex<State>,
    /// The state's `now`, which is read far more often than anything else.
    now: AtomicU64,
    /// Polls of tasks.
    polls: AtomicU64,
}

struct State {
    /// Nanoseconds since the run began.
    now: u64,
    timers: BTreeMap<(u64, u64), Waker>,
    next_timer: u64,
    net: Network,
    signals: VecDeque<HostSignal>,
    counts: StepCounts,
}

/// Counters of what the world does for its tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// Times at which something was due.
    pub steps: u64,
    /// Polls of tasks.
    pub polls: u64,
    pub timers_set: u64,
    /// Polls of a sleep that is not over.
    pub timer_polls: u64,
    pub timers_fired: u64,
    pub timers_cancelled: u64,
}

impl VirtualWorld {
    pub fn new(net: Network) -> Arc<VirtualWorld> {
        let state = State {
            now: 0,
            timers: BTreeMap::new(),
            next_timer: 0,
            net,
            signals: VecDeque::new(),
            counts: StepCounts::default(),
        };
        Arc::new(VirtualWorld { state: Mutex::new(state), now: AtomicU64::new(0), polls: AtomicU64::new(0) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the nanoseconds since the run began.
    pub fn nanos(&self) -> u64 {
        self.now.load(Ordering::Acquire)
    }

    /// Runs `work` on the network, then wakes the tasks it concerns.
    pub fn net<R>(&self, work: impl FnOnce(&mut Network, u64) -> R) -> R {
        let mut state = self.state();
        let now = state.now;
        let result = work(&mut state.net, now);
        let wakes = std::mem::take(&mut state.net.wakes);
        drop(state);
        wakes.into_iter().for_each(Waker::wake);
        result
    }

    /// Returns the counters of steps, tasks and timers, and those of the network.
    pub fn counts(&self) -> (StepCounts, NetCounts) {
        let state = self.state();
        let counts = StepCounts { polls: self.polls.load(Ordering::Relaxed), ..state.counts };
        (counts, state.net.counts)
    }

    pub fn signal(&self, signal: HostSignal) {
        self.state().signals.push_back(signal);
    }

    pub fn next_signal(&self) -> Option<HostSignal> {
        self.state().signals.pop_front()
    }

    pub fn has_signals(&self) -> bool {
        !self.state().signals.is_empty()
    }

    /// Advances time to the next event that is due, but no further than `until`; false when that is reached.
    ///
    /// Only while no task is ready to run, as running tasks take no time.
    pub fn step(&self, until: u64) -> bool {
        let mut state = self.state();
        let timer = state.timers.keys().next().map(|(at, _)| *at);
        let next = timer.into_iter().chain(state.net.next_at()).min();
        let Some(next) = next.filter(|next| *next <= until) else {
            state.now = state.now.max(until);
            self.now.store(state.now, Ordering::Release);
            return false;
        };
        state.now = state.now.max(next);
        self.now.store(state.now, Ordering::Release);
        state.counts.steps += 1;
        let now = state.now;
        let mut due = Vec::new();
        while let Some(timer) = state.timers.first_entry().filter(|timer| timer.key().0 <= now) {
            due.push(timer.remove());
        }
        state.counts.timers_fired += due.len() as u64;
        state.net.advance(now);
        due.append(&mut state.net.wakes);
        drop(state);
        due.into_iter().for_each(Waker::wake);
        true
    }
}

/// One machine of the virtual world.
pub struct VirtualNode {
    pub virtual_world: Arc<VirtualWorld>,
    pub machine: Arc<Machine>,
    pub id: HostId,
}

impl ExecutionContext for VirtualNode {
    fn host(&self) -> &str {
        &self.machine.name
    }

    fn nanos(&self) -> u64 {
        self.virtual_world.nanos()
    }

    fn log(&self) -> &EventLog {
        &self.machine.log
    }

    fn stepped(&self) {
        self.virtual_world.polls.fetch_add(1, Ordering::Relaxed);
        for fault in self.machine.triggers().take_fired() {
            self.virtual_world.signal(HostSignal::Fired(fault));
        }
        // Small disk work is done inside tasks.
        if self.machine.triggers().take_power_cut(|| self.machine.lost_power()) {
            self.power_off();
        }
    }
}

impl VirtualNode {
    fn power_off(&self) {
        self.record("no power", &[]);
        self.virtual_world.net(|net, _| net.power_off(self.id));
        self.virtual_world.signal(HostSignal::LostPower(self.id));
    }
}

/// The executor of one host's tasks.
pub trait Spawn: Send + Sync {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn TaskHandle>;
}

impl VirtualNode {
    /// Returns the environment of this machine's programs.
    pub fn env(self: &Arc<VirtualNode>, spawner: Arc<dyn Spawn>) -> Env {
        Env {
            clock: self.clone(),
            disks: self.machine.clone(),
            net: self.clone(),
            tasks: Arc::new(NodeTasks { node: self.clone(), spawner }),
            memory: self.machine.clone(),
            rng: self.clone(),
            observer: self.machine.observer(),
            spans: Default::default(),
        }
    }

    fn record(&self, what: &str, bytes: &[u8]) {
        self.machine.log.record(self.virtual_world.nanos(), &self.machine.name, what, bytes);
    }

    fn mono(&self) -> Instant {
        Instant(BOOTED.as_nanos() as u64 + self.virtual_world.nanos())
    }

    fn sleep(self: &Arc<VirtualNode>, until: Instant) -> Sleep {
        let until = until.0.saturating_sub(BOOTED.as_nanos() as u64);
        Sleep { virtual_world: self.virtual_world.clone(), until, timer: None }
    }
}

/// A future that is ready from a given time on.
struct Sleep {
    virtual_world: Arc<VirtualWorld>,
    until: u64,
    timer: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let virtual_world = self.virtual_world.clone();
        let mut state = virtual_world.state();
        if state.now >= self.until {
            self.timer = None;
            return Poll::Ready(());
        }
        let timer = match self.timer {
            Some(timer) => timer,
            None => {
                state.counts.timers_set += 1;
                state.next_timer += 1;
                (self.until, state.next_timer)
            }
        };
        self.timer = Some(timer);
        state.counts.timer_polls += 1;
        let stale = match state.timers.entry(timer) {
            Entry::Vacant(unset) => {
                unset.insert(cx.waker().clone());
                None
            }
            Entry::Occupied(set) if set.get().will_wake(cx.waker()) => None,
            Entry::Occupied(mut set) => Some(set.insert(cx.waker().clone())),
        };
        // Order: outside of the lock, as in `drop`.
        drop(state);
        drop(stale);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            let mut state = self.virtual_world.state();
            let waker = state.timers.remove(&timer);
            state.counts.timers_cancelled += u64::from(waker.is_some());
            drop(state);
            // A waker may be the last to hold a task, which holds sleeps: drop it outside of the lock.
            drop(waker);
        }
    }
}

impl Clock for VirtualNode {
    fn now(&self) -> ClockReading {
        let nanos = self.virtual_world.nanos();
        let true_micros = EPOCH.as_micros() as u64 + nanos / 1_000;
        ClockReading { mono: Instant(BOOTED.as_nanos() as u64 + nanos), wall: self.machine.wall(true_micros) }
    }

    fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()> {
        let until = until.0.saturating_sub(BOOTED.as_nanos() as u64);
        Box::pin(Sleep { virtual_world: self.virtual_world.clone(), until, timer: None })
    }
}

impl Rng for VirtualNode {
    fn next_u64(&self) -> u64 {
        let drawn = self.machine.next_u64();
        self.record("random", &drawn.to_le_bytes());
        drawn
    }

    fn tls_primitives(&self) -> TlsPrimitives {
        tls_primitives(&self.machine)
    }
}

struct NodeTasks {
    node: Arc<VirtualNode>,
    spawner: Arc<dyn Spawn>,
}

impl Tasks for NodeTasks {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn TaskHandle> {
        self.node.record("spawn", name.as_bytes());
        let task = Some(self.node.machine.begin_task(name));
        self.spawner.spawn(name, Box::pin(InContext { here: self.node.clone(), task, future }))
    }

    fn run<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let node = &self.node;
            let delay = node.machine.pool_delay(node.virtual_world.nanos());
            if !delay.is_zero() {
                node.sleep(node.mono().after(delay)).await;
            }
            work();
            if node.machine.lost_power() {
                // Signalled again: the server may have been restarted on a disk without power.
                node.power_off();
                return std::future::pending().await;
            }
            let now = node.mono();
            let ends = node.machine.busy_until(now);
            let took = ends.since(now);
            node.record("run", &(took.as_nanos() as u64).to_le_bytes());
            let (log, micros) = (&node.machine.log, took.as_micros() as u64);
            log.add_sample(node.virtual_world.nanos(), &node.machine.name, Series::Work, micros);
            node.sleep(ends).await;
        })
    }
}

impl Net for VirtualNode {
    fn listen(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        let listening = self.virtual_world.net(|net, _| net.listen(self.id, addr));
        let listening = listening.map(|local_addr| {
            self.record("listen", local_addr.to_string().as_bytes());
            let (virtual_world, machine) = (self.virtual_world.clone(), self.machine.clone());
            let node = Arc::new(VirtualNode { virtual_world, machine, id: self.id });
            Box::new(NodeListener { node, local_addr }) as Box<dyn Listener>
        });
        Box::pin(std::future::ready(listening))
    }

    fn connect(&self, addr: SocketAddr, deadline: Instant) -> BoxFuture<'_, io::Result<Stream>> {
        Box::pin(async move {
            let id = self.virtual_world.net(|net, now| net.connect(now, self.id, addr))?;
            let mut attempt = Attempt { virtual_world: self.virtual_world.clone(), id: Some(id) };
            let mut late = self.sleep_until(deadline);
            let connected = poll_fn(|cx| {
                if let Some(outcome) = self.virtual_world.net(|net, _| net.connected(id, cx.waker())) {
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
            let ip = self.virtual_world.net(|net, _| net.resolve(name))?;
            Some(SocketAddr::new(ip, port.parse().ok()?))
        });
        let not_found = || io::Error::new(io::ErrorKind::NotFound, format!("{host_port:?} has no address"));
        Box::pin(std::future::ready(resolved.map(|addr| vec![addr]).ok_or_else(not_found)))
    }

    fn kerberos(&self) -> Option<Arc<dyn Kerberos>> {
        self.machine.kerberos()
    }
}

impl VirtualNode {
    fn stream(&self, conn: ConnId, side: Side) -> Stream {
        let (virtual_world, machine) = (self.virtual_world.clone(), self.machine.clone());
        Box::new(NodeStream { virtual_world, machine, end: (conn, side) })
    }
}

/// An attempt to connect that is aborted when it is dropped.
struct Attempt {
    virtual_world: Arc<VirtualWorld>,
    id: Option<ConnId>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.virtual_world.net(|net, now| net.abandon(now, id));
        }
    }
}

struct NodeListener {
    node: Arc<VirtualNode>,
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
                poll_fn(|cx| match self.node.virtual_world.net(|net, _| net.accept(id, port, cx.waker())) {
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
        self.node.virtual_world.net(|net, now| net.unlisten(now, id, port));
    }
}

/// One end of a connection. Writes are recorded with their bytes; reads return the same bytes.
struct NodeStream {
    virtual_world: Arc<VirtualWorld>,
    machine: Arc<Machine>,
    end: (ConnId, Side),
}

impl NodeStream {
    fn record(&self, what: &str, bytes: &[u8]) {
        self.machine.log.record(self.virtual_world.nanos(), &self.machine.name, what, bytes);
    }
}

impl AsyncRead for NodeStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if out.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let Some(read) = self.virtual_world.net(|net, _| net.read(self.end, out, cx.waker())) else {
            return Poll::Pending;
        };
        let count = read?;
        self.record("read", &(count as u64).to_le_bytes());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for NodeStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(written) = self.virtual_world.net(|net, now| net.write(now, self.end, bytes, cx.waker()))
        else {
            return Poll::Pending;
        };
        if let Ok(count) = &written {
            self.record("write", &bytes[..*count]);
            let (log, name) = (&self.machine.log, &self.machine.name);
            log.add_sample(self.virtual_world.nanos(), name, Series::Sent, *count as u64);
        }
        Poll::Ready(written)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.virtual_world.net(|net, now| net.finish(now, self.end));
        Poll::Ready(Ok(()))
    }
}

impl Drop for NodeStream {
    fn drop(&mut self) {
        self.virtual_world.net(|net, now| net.close(now, self.end));
    }
}

/// Converts to the virtual world's nanoseconds.
pub fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}
