//! Everything a node may ask of the world: time, disk, network, tasks, memory, randomness.
//!
//! One value, cheap to clone, no generics: `env::os` makes the real one, the simulators make theirs, and no code
//! between can tell which it got. What each part promises is what [`conformance`] checks of any implementation.

pub mod conformance;
#[cfg(test)]
pub(crate) mod memory;
pub mod os;
mod os_disk;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
pub(crate) mod wires;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use engine::disk::Disk;
use engine::time::{Instant, Now};
use engine::watch::Watch;
use tokio::io::{AsyncRead, AsyncWrite};

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The world as one node sees it.
#[derive(Clone)]
pub struct Env {
    pub clock: Arc<dyn Clock>,
    pub disks: Arc<dyn Disks>,
    pub net: Arc<dyn Net>,
    pub tasks: Arc<dyn Tasks>,
    pub memory: Arc<dyn MemoryBudget>,
    pub rng: Arc<dyn Rng>,
    pub watch: Watch,
}

pub trait Clock: Send + Sync {
    fn now(&self) -> Now;
    /// Ready at `until` or after, never before.
    fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()>;
}

/// The directories a node may use, by the path its configuration names.
pub trait Disks: Send + Sync {
    /// Opens (and makes, if missing) the directory as a disk.
    fn open(&self, dir: &str) -> io::Result<Arc<dyn Disk>>;
    /// Reads a file outside any disk: a configuration or an import.
    fn read_file(&self, path: &str) -> io::Result<Vec<u8>>;
    /// What a program of the machine prints, once it has ended well. Only the real world has any.
    fn program_output(&self, program: &str, _arguments: &[String]) -> io::Result<Vec<u8>> {
        Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no program {program}")))
    }
}

/// A byte stream to one peer. Reading gives end-of-file after the peer closed its half in order,
/// `ECONNRESET` after it vanished.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}
pub type Stream = Box<dyn Io>;

pub trait Net: Send + Sync {
    /// Port 0 takes a free port. `EADDRINUSE` if the port is taken.
    fn listen(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>>;
    /// Fails with `TimedOut` at the deadline, whatever the network does.
    fn connect(&self, addr: SocketAddr, deadline: Instant) -> BoxFuture<'_, io::Result<Stream>>;
    /// Addresses of a `host:port`, in a stable order.
    fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;
}

pub trait Listener: Send {
    fn local_addr(&self) -> SocketAddr;
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>>;
}

/// A running task; dropping the handle lets it run on, [`TaskHandle::abort`] drops its future.
pub trait TaskHandle: Send + Sync {
    fn abort(&self);
    fn is_finished(&self) -> bool;
}

pub trait Tasks: Send + Sync {
    /// Runs `future` beside the others, until it ends or the node does.
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn TaskHandle>;
    /// Runs synchronous work that may wait for a disk or burn CPU, without holding up other tasks. See [`Env::run`].
    fn run<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()>;
    /// The same for work that is over in microseconds unless it meets a wait for a disk. See [`Env::run_brief`].
    fn run_brief<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()> {
        self.run(work)
    }
}

/// How many bytes this node may use. It may shrink while the node runs.
pub trait MemoryBudget: Send + Sync {
    fn limit_bytes(&self) -> u64;
}

/// Randomness: entropy in production, a seed in a simulator.
pub trait Rng: Send + Sync {
    fn next_u64(&self) -> u64;
}

impl Env {
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    pub async fn sleep(&self, wait: Duration) {
        self.clock.sleep_until(self.now().mono.after(wait)).await;
    }

    /// The one bridge from async to sync: runs `work` (disk, CPU) and gives its result.
    pub async fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let mut work = Some(work);
        let mut result = None;
        let mut once = || result = work.take().map(|work| work());
        self.tasks.run(&mut once).await;
        result.expect("Tasks::run runs its work once")
    }

    /// [`Env::run`] for work that burns little CPU and finds what it reads in memory, mostly: a lookup of a key, a
    /// small batch of writes. To make way for other tasks before it is known to wait would cost more than it takes
    /// (about 20 µs and two switches of threads).
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

    /// Ends tasks and waits until they are gone: a task that is at work on a disk goes when that work is done.
    pub async fn end(&self, tasks: &[Box<dyn TaskHandle>]) {
        tasks.iter().for_each(|task| task.abort());
        for task in tasks {
            while !task.is_finished() {
                self.sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// `future`'s result, or `None` if `limit` passes first. The future is polled first.
    pub async fn timeout<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let sleep = self.sleep(limit);
        tokio::select! { biased; done = future => Some(done), () = sleep => None }
    }

    pub fn random_uuid(&self) -> engine::ids::Uuid {
        let halves = (u128::from(self.rng.next_u64()) << 64) | u128::from(self.rng.next_u64());
        engine::ids::Uuid(halves.to_be_bytes())
    }
}
