//! Parts of an environment for tests of the node: clocks, random numbers, and directories that are in-memory disks.

use engine::sync::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::time::{ClockReading, Instant, WallTime};
use tokio::sync::Semaphore;

use super::os::{OsEnv, OsOptions};
use super::partitionable_net::PartitionableNet;
use super::{BoxFuture, Clock, Disks, Env, Rng, TaskHandle, Tasks};

/// A wall clock derived from the monotonic clock: pausing time pauses both.
pub struct SteadyClock(pub Arc<dyn Clock>);

impl Clock for SteadyClock {
    fn now(&self) -> ClockReading {
        let mono = self.0.now().mono;
        let micros = 1_700_000_000_000_000 + mono.0 / 1_000;
        ClockReading { mono, wall: WallTime { micros, error_micros: 100 } }
    }

    fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()> {
        self.0.sleep_until(until)
    }
}

/// Returns the environments of `count` connected hosts. They share one clock; each has separate disks and randomness.
pub fn hosts(network: &PartitionableNet, count: usize) -> Vec<Env> {
    let os = OsEnv::new(&OsOptions::default()).expect("there is entropy");
    let clock: Arc<dyn Clock> = Arc::new(SteadyClock(os.clock.clone()));
    let host = |number| Env {
        net: network.host(number),
        disks: Arc::new(MemDisks::default()),
        rng: Arc::new(SeededRng::new(1 + number as u64)),
        clock: clock.clone(),
        ..os.clone()
    };
    (0..count).map(host).collect()
}

/// Tasks of an environment that counts those with one name.
pub struct CountedTasks {
    inner: Arc<dyn Tasks>,
    name: &'static str,
    started: AtomicU64,
}

impl CountedTasks {
    /// Replaces the tasks of `env` by tasks that count those named `name`.
    pub fn install(env: &mut Env, name: &'static str) -> Arc<CountedTasks> {
        let started = AtomicU64::new(0);
        let tasks = Arc::new(CountedTasks { inner: env.tasks.clone(), name, started });
        env.tasks = tasks.clone();
        tasks
    }

    /// Returns the number of tasks that were started.
    pub fn started(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
    }
}

impl Tasks for CountedTasks {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn TaskHandle> {
        self.started.fetch_add(u64::from(name == self.name), Ordering::Relaxed);
        self.inner.spawn(name, future)
    }

    fn run<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()> {
        self.inner.run(work)
    }

    fn run_brief<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()> {
        self.inner.run_brief(work)
    }
}

/// Tasks of an environment that hold those with one name until they are released.
pub struct HeldTasks {
    inner: Arc<dyn Tasks>,
    name: &'static str,
    released: Arc<Semaphore>,
}

impl HeldTasks {
    /// Replaces the tasks of `env` by tasks that hold those named `name`.
    pub fn install(env: &mut Env, name: &'static str) -> Arc<HeldTasks> {
        let released = Arc::new(Semaphore::new(0));
        let tasks = Arc::new(HeldTasks { inner: env.tasks.clone(), name, released });
        env.tasks = tasks.clone();
        tasks
    }

    /// Releases the task that has waited longest.
    pub fn release_one(&self) {
        self.released.add_permits(1);
    }
}

impl Tasks for HeldTasks {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn TaskHandle> {
        if name != self.name {
            return self.inner.spawn(name, future);
        }
        let released = self.released.clone();
        let held = async move {
            released.acquire().await.expect("it is never closed").forget();
            future.await;
        };
        self.inner.spawn(name, Box::pin(held))
    }

    fn run<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()> {
        self.inner.run(work)
    }

    fn run_brief<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()> {
        self.inner.run_brief(work)
    }
}

/// Waits until `met` returns true, at most one minute. Returns true if it did.
pub async fn becomes(env: &Env, met: impl Fn() -> bool) -> bool {
    for _ in 0..6_000 {
        if met() {
            return true;
        }
        env.sleep(Duration::from_millis(10)).await;
    }
    false
}

/// A deterministic splitmix64 sequence.
pub struct SeededRng(Mutex<u64>);

impl SeededRng {
    pub fn new(seed: u64) -> SeededRng {
        SeededRng(Mutex::new(seed))
    }
}

impl Rng for SeededRng {
    fn next_u64(&self) -> u64 {
        let mut state = self.0.lock();
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Directories that are in-memory disks.
#[derive(Clone, Default)]
pub struct MemDisks(Arc<Mutex<BTreeMap<String, MemDisk>>>);

impl MemDisks {
    pub fn disk(&self, dir: &str) -> MemDisk {
        let mut disks = self.0.lock();
        let seed = disks.len() as u64;
        disks.entry(dir.to_string()).or_insert_with(|| MemDisk::new(seed)).clone()
    }
}

impl Disks for MemDisks {
    fn open(&self, dir: &str) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(self.disk(dir)))
    }

    fn read_file(&self, _: &str) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }
}
