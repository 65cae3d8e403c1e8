//! The environment of a node: clock, disks, network, tasks, memory budget, randomness.
//!
//! One value, cheap to clone, without generics. `env::os` builds the real one, each simulator builds its own, and the
//! code in between cannot tell them apart. [`conformance`] checks the contract of every implementation.
//!
//! ```text
//!   node, client ──► Env { clock, disks, net, tasks, memory, rng }
//!                     ├─ env::os    tokio, files, sockets, /dev/urandom
//!                     └─ simulated  whole cluster in one process, time and faults from a seed
//! ```

mod blocking_disk;
mod child_program;
pub mod conformance;
mod control_group;
#[cfg(feature = "kerberos")]
mod gssapi;
pub mod kerberos;
#[cfg(any(test, feature = "testing"))]
pub mod kerberos_double;
mod late_task;
#[cfg(any(test, feature = "testing"))]
pub mod mem_net;
pub mod os;
mod os_stream;
#[cfg(any(test, feature = "testing"))]
pub mod partitionable_net;
pub mod permissions;
mod process_stats;
#[cfg(feature = "pprof")]
mod profiler;
mod short_syncs;
mod task_registry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod users;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use engine::disk::Disk;
use engine::observer::ObserverHandle;
use engine::time::{ClockReading, Instant};
use rustls::crypto::{CryptoProvider, KeyProvider, SupportedKxGroup};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::spans::SpanRecorder;
use kerberos::Kerberos;
pub use process_stats::{ProcessStats, ThreadStats, WorkerStats};
pub use task_registry::{TaskState, TaskStats};

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Environment of one node.
#[derive(Clone)]
pub struct Env {
    pub clock: Arc<dyn Clock>,
    pub disks: Arc<dyn Disks>,
    pub net: Arc<dyn Net>,
    pub tasks: Arc<dyn Tasks>,
    pub memory: Arc<dyn MemoryBudget>,
    pub rng: Arc<dyn Rng>,
    pub observer: ObserverHandle,
    /// Recorder of spans; off unless the owner of the environment switches it on.
    pub spans: SpanRecorder,
}

pub trait Clock: Send + Sync {
    fn now(&self) -> ClockReading;
    /// Returns a future that is ready at `until` or later, never earlier.
    fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()>;
    /// Returns whether something keeps the wall clock right, and its largest error now.
    fn synchronisation(&self) -> ClockSync {
        ClockSync::Synchronised { error_micros: self.now().wall.error_micros }
    }
}

/// State of a wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockSync {
    Synchronised {
        error_micros: u64,
    },
    /// Nothing keeps it right, so its error is unknown.
    Unsynchronised,
}

/// Directories that a node may use, by the path in its configuration.
pub trait Disks: Send + Sync {
    /// Opens the directory as a disk; creates it if missing.
    fn open(&self, dir: &str) -> io::Result<Arc<dyn Disk>>;
    /// Reads a file outside any disk: a configuration or an import.
    fn read_file(&self, path: &str) -> io::Result<Vec<u8>>;
    /// Returns the permissions of a file outside any disk, as `chmod` takes them; `None` where files have none. Only
    /// the real environment has other users.
    fn file_mode(&self, _path: &str) -> io::Result<Option<u32>> {
        Ok(None)
    }
    /// Returns the name of the user whose process this is. Only the real environment has several.
    fn process_user(&self) -> io::Result<String> {
        Ok("nyala".to_string())
    }
    /// Returns the name of the user in whose directory this is, or would be made, if this process is root's and could
    /// leave files there that the owner cannot open. Only the real environment has several users.
    fn other_owner(&self, _path: &str) -> io::Result<Option<String>> {
        Ok(None)
    }
    /// Runs a program and returns its standard output if it exits with status 0 within ten seconds. Only the real
    /// environment supports programs.
    fn program_output(&self, program: &str, _arguments: &[String]) -> io::Result<Vec<u8>> {
        Err(io::Error::new(io::ErrorKind::NotFound, format!("program {program} does not exist")))
    }
}

/// A byte stream to one peer. A read returns end-of-file after the peer closed its half in order, and `ECONNRESET`
/// after the peer vanished.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}
pub type Stream = Box<dyn ByteStream>;

pub trait Net: Send + Sync {
    /// Listens on `addr`; port 0 selects a free port. Fails with `EADDRINUSE` if the port is taken.
    fn listen(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>>;
    /// Connects to `addr`. Fails with `TimedOut` at the deadline, whatever the network does.
    fn connect(&self, addr: SocketAddr, deadline: Instant) -> BoxFuture<'_, io::Result<Stream>>;
    /// Opens a socket for datagrams to and from `peer`. Environments without them need no such network.
    fn datagrams(&self, _peer: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Datagrams>>> {
        Box::pin(async { Err(io::Error::new(io::ErrorKind::Unsupported, "this network has no datagrams")) })
    }
    /// Returns the addresses of a `host:port` in a stable order.
    fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;
    /// Returns the name of this host, by which others may know it. Only the real environment has one.
    fn host_name(&self) -> io::Result<String> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "hosts of this network have no names"))
    }
    /// Returns the host's Kerberos; `None` in a program that was built without it.
    fn kerberos(&self) -> Option<Arc<dyn Kerberos>> {
        None
    }
}

/// A socket for datagrams to and from one peer. Any of them may be lost, and others may forge them.
pub trait Datagrams: Send + Sync {
    fn send<'a>(&'a self, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>>;
    /// Waits for a datagram. Returns its length; what does not fit is cut off.
    fn receive<'a>(&'a self, out: &'a mut [u8]) -> BoxFuture<'a, io::Result<usize>>;
}

pub trait Listener: Send {
    fn local_addr(&self) -> SocketAddr;
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>>;
}

/// A running task. The task continues if the handle is dropped; [`TaskHandle::abort`] drops its future.
pub trait TaskHandle: Send + Sync {
    fn abort(&self);
    fn is_finished(&self) -> bool;
}

pub trait Tasks: Send + Sync {
    /// Runs `future` concurrently until it ends or the node stops.
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn TaskHandle>;
    /// Runs the first step of `future` on this task. See [`Env::begin`].
    fn begin(&self, name: &'static str, mut future: BoxFuture<'static, ()>) {
        // Invariant: a pending future is polled again by its task, so no waker of this poll is needed.
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.spawn(name, future);
        }
    }
    /// Runs synchronous work that may wait for a disk or use much CPU, without delaying other tasks. See [`Env::run`].
    fn run<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()>;
    /// As [`Tasks::run`], for work that ends in microseconds unless it waits for a disk. See [`Env::run_brief`].
    fn run_brief<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()> {
        self.run(work)
    }
    /// Returns the work of the threads that run tasks; `None` if there are no such threads.
    fn workers(&self) -> Option<WorkerStats> {
        None
    }
    /// Returns the tasks that have not ended, the oldest first; none if the environment keeps no list.
    fn all(&self) -> Vec<TaskStats> {
        Vec::new()
    }
    /// Samples the CPU time of the process for `time`, and returns a profile in pprof's format. Only one profile is
    /// made at a time. Environments without a process have none.
    fn cpu_profile(&self, _time: Duration) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        let message = "this program was built without its profiler (cargo feature pprof)";
        Box::pin(async move { Err(io::Error::new(io::ErrorKind::Unsupported, message)) })
    }
}

/// Memory limit of this node, in bytes. It may shrink while the node runs.
pub trait MemoryBudget: Send + Sync {
    fn limit_bytes(&self) -> u64;

    /// Returns what the operating system counts for this process; `None` if there is none.
    fn process(&self) -> Option<ProcessStats> {
        None
    }

    /// Returns the threads of this process; none if there is no process.
    fn threads(&self) -> Vec<ThreadStats> {
        Vec::new()
    }
}

/// Randomness: entropy in production, a seed in a simulator.
pub trait Rng: Send + Sync {
    fn next_u64(&self) -> u64;

    /// Fills `bytes` for keys, nonces and serial numbers. Production takes them from the operating system's generator,
    /// never from a generator of this process; this default is for environments with a seed.
    fn fill_secret(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Returns the primitives of TLS whose secrets the library does not take from [`Rng::fill_secret`]: the groups of a
    /// key exchange and the loader of private keys. Those of the library take the operating system's generator; an
    /// environment with a seed returns its own.
    fn tls_primitives(&self) -> TlsPrimitives {
        let CryptoProvider { kx_groups, key_provider, .. } = rustls::crypto::ring::default_provider();
        TlsPrimitives { kx_groups, key_provider }
    }
}

/// Primitives of TLS that draw secrets.
pub struct TlsPrimitives {
    pub kx_groups: Vec<&'static dyn SupportedKxGroup>,
    pub key_provider: &'static dyn KeyProvider,
}

impl Env {
    pub fn now(&self) -> ClockReading {
        self.clock.now()
    }

    pub async fn sleep(&self, wait: Duration) {
        self.clock.sleep_until(self.now().mono.after(wait)).await;
    }

    /// Runs synchronous `work` (disk, CPU) and returns its result. This is the only bridge from async to sync code.
    pub async fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let mut work = Some(work);
        let mut result = None;
        let mut once = || result = work.take().map(|work| work());
        self.tasks.run(&mut once).await;
        result.expect("Tasks::run runs its work once")
    }

    /// Runs `work` that uses little CPU and usually finds its data in memory: a key lookup, a small batch of writes.
    ///
    /// [`Env::run`] moves the other tasks to another thread first. That costs about 20 µs and two thread switches,
    /// more than such work takes.
    pub async fn run_brief<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let mut work = Some(work);
        let mut result = None;
        let mut once = || result = work.take().map(|work| work());
        self.tasks.run_brief(&mut once).await;
        result.expect("Tasks::run_brief runs its work once")
    }

    pub fn spawn(
        &self,
        name: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Box<dyn TaskHandle> {
        self.tasks.spawn(name, Box::pin(future))
    }

    /// Runs the first step of `future` on this task, and the others, if it waits, on a task of its own. The first step
    /// must be shorter than a wake-up.
    pub fn begin(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.tasks.begin(name, Box::pin(future));
    }

    /// Aborts tasks and waits until all have ended. A task inside a disk operation ends after that operation.
    pub async fn end(&self, tasks: &[Box<dyn TaskHandle>]) {
        tasks.iter().for_each(|task| task.abort());
        for task in tasks {
            while !task.is_finished() {
                self.sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// Returns the result of `future`, or `None` if `limit` passes first. The future is polled first.
    pub async fn timeout<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let sleep = self.sleep(limit);
        tokio::select! { biased; done = future => Some(done), () = sleep => None }
    }

    pub fn random_uuid(&self) -> engine::ids::Uuid {
        let halves = (u128::from(self.rng.next_u64()) << 64) | u128::from(self.rng.next_u64());
        engine::ids::Uuid(halves.to_be_bytes())
    }
}
