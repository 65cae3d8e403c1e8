//! The real environment: tokio's clock, sockets and tasks, the operating system's disks, entropy.
//!
//! Invariant: no other module of this crate names `tokio::{net, time, fs, spawn, task}`, starts a thread or reads a
//! clock, except `blocking_disk`, `child_program`, `late_task` and `short_syncs`. No other one names `std::fs`, except
//! `control_group`, `gssapi`, `permissions` and `users`.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "this file is the real world")]

use engine::sync::Mutex;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engine::disk::Disk;
use engine::disk::os::OsDisk;
use engine::observer::ObserverHandle;
use engine::time::{ClockReading, Instant, WallTime};
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::runtime::{Handle, RuntimeFlavor};

use super::blocking_disk::BlockingDisk;
use super::child_program;
use super::control_group;
use super::late_task;
use super::os_stream::OsStream;
use super::permissions;
#[cfg(feature = "pprof")]
use super::profiler::RunningProfile;
use super::task_registry::{Marked, TaskRegistry, TaskStats, WaitMark, marked_work};
use super::users;
use super::{
    BoxFuture, Clock, ClockSync, Datagrams, Disks, Env, Listener, MemoryBudget, Net, ProcessStats, Rng,
    Stream, TaskHandle, Tasks, ThreadStats, WorkerStats,
};

/// Source of the wall clock's maximum error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockError {
    /// The kernel's bound (`adjtimex`), or `otherwise` if the kernel's clock is not synchronised.
    Kernel { otherwise: Duration },
    /// A constant bound.
    Fixed(Duration),
}

/// Options of the real environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OsOptions {
    pub clock_error: ClockError,
    /// Memory limit of the process in bytes; `None`: four fifths of the memory of the machine or its control group.
    pub memory_limit_bytes: Option<u64>,
}

impl Default for OsOptions {
    /// Assumes 10 ms for a clock that is not synchronised: a developer's machine, where all servers read one clock.
    fn default() -> OsOptions {
        let clock_error = ClockError::Kernel { otherwise: Duration::from_millis(10) };
        OsOptions { clock_error, memory_limit_bytes: None }
    }
}

/// Constructor of the real [`Env`].
pub struct OsEnv;

impl OsEnv {
    /// Builds the environment. Must be called inside a tokio runtime with time and IO, which runs its tasks. Fails
    /// without entropy.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(options: &OsOptions) -> io::Result<Env> {
        let limit = options.memory_limit_bytes.unwrap_or_else(|| memory_bytes() / 5 * 4);
        let mut seed = [0; 32];
        io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut seed)?;
        let clock = Arc::new(OsClock::new(options.clock_error));
        Ok(Env {
            clock: clock.clone(),
            disks: Arc::new(OsDisks),
            tasks: Arc::new(OsTasks { registry: clock.registry(), runtime: Handle::try_current().ok() }),
            net: Arc::new(OsNet { clock }),
            memory: Arc::new(OsMemory { limit }),
            rng: Arc::new(OsRng { rng: Mutex::new(ChaCha12Rng::from_seed(seed)) }),
            observer: ObserverHandle::default(),
            spans: Default::default(),
        })
    }
}

struct OsClock {
    start: tokio::time::Instant,
    error: ClockError,
    /// Second in which the kernel was last queried, 0 for never.
    queried_at_second: AtomicU64,
    /// Bound that the kernel returned then, in microseconds.
    bound_micros: AtomicU64,
}

impl OsClock {
    fn new(error: ClockError) -> OsClock {
        let (queried_at_second, bound_micros) = (AtomicU64::new(0), AtomicU64::new(0));
        OsClock { start: tokio::time::Instant::now(), error, queried_at_second, bound_micros }
    }

    fn tokio(&self, at: Instant) -> tokio::time::Instant {
        // A sleep of a century never ends in practice, and the sum must not overflow.
        self.start + Duration::from_nanos(at.0).min(Duration::from_secs(100 * 365 * 24 * 3600))
    }

    /// Returns a registry of tasks that reads this clock.
    fn registry(&self) -> Arc<TaskRegistry> {
        let start = self.start;
        TaskRegistry::new(move || Instant(start.elapsed().as_nanos() as u64))
    }

    fn error_micros(&self, elapsed: Duration) -> u64 {
        let otherwise = match self.error {
            ClockError::Fixed(error) => return error.as_micros() as u64,
            ClockError::Kernel { otherwise } => otherwise,
        };
        // The bound grows by at most 500 µs per second, so one system call per second is enough.
        let second = elapsed.as_secs() + 1;
        if self.queried_at_second.swap(second, Ordering::Relaxed) != second {
            let error = kernel_clock_error().unwrap_or(otherwise);
            self.bound_micros.store(error.as_micros() as u64 + DRIFT_MICROS, Ordering::Relaxed);
        }
        self.bound_micros.load(Ordering::Relaxed)
    }
}

/// Growth of a clock's error in microseconds per second (the kernel's assumption).
const DRIFT_MICROS: u64 = 500;

impl Clock for OsClock {
    fn now(&self) -> ClockReading {
        let elapsed = self.start.elapsed();
        // A clock set before 1970 reads as 1970: timestamps advance logically until the operator sets the clock.
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let error_micros = self.error_micros(elapsed);
        let wall = WallTime { micros: since_1970.as_micros() as u64, error_micros };
        ClockReading { mono: Instant(elapsed.as_nanos() as u64), wall }
    }

    fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()> {
        Box::pin(Marked(WaitMark::Timer, Box::pin(tokio::time::sleep_until(self.tokio(until)))))
    }

    fn synchronisation(&self) -> ClockSync {
        let error = match self.error {
            ClockError::Fixed(error) => Some(error),
            ClockError::Kernel { .. } => kernel_clock_error(),
        };
        error.map_or(ClockSync::Unsynchronised, |error| ClockSync::Synchronised {
            error_micros: error.as_micros() as u64,
        })
    }
}

/// Returns the kernel's bound on its clock's error, or `None` if the clock is not synchronised.
fn kernel_clock_error() -> Option<Duration> {
    // SAFETY: all zeros is a valid timex: a plain struct of numbers, whose modes of 0 ask to read only.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `state` is valid and lives through the call.
    let status = unsafe { libc::adjtimex(&mut state) };
    let synchronised = status >= 0 && status != libc::TIME_ERROR;
    synchronised.then(|| Duration::from_micros(u64::try_from(state.maxerror).unwrap_or(0)))
}

/// Disables transparent huge pages for this process. The allocator requests them, but servers allocate many small
/// objects in many places. Each would cost the zeroing of two megabytes: in total more than half of the CPU of a
/// replicated load, and three times its memory.
pub fn decline_huge_pages() {
    let (yes, unused): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: the arguments are numbers, and the call changes nothing that this program can observe.
    let _unknown = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, yes, unused, unused, unused) };
}

struct OsDisks;

impl Disks for OsDisks {
    fn open(&self, dir: &str) -> io::Result<Arc<dyn Disk>> {
        Ok(Arc::new(BlockingDisk(OsDisk::open(Path::new(dir))?)))
    }

    fn read_file(&self, path: &str) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn file_mode(&self, path: &str) -> io::Result<Option<u32>> {
        permissions::file_mode(path).map(Some)
    }

    fn process_user(&self) -> io::Result<String> {
        users::name_of(users::process_user())
    }

    fn other_owner(&self, path: &str) -> io::Result<Option<String>> {
        users::other_owner(Path::new(path))
    }

    fn program_output(&self, program: &str, arguments: &[String]) -> io::Result<Vec<u8>> {
        child_program::output(program, arguments)
    }
}

struct OsNet {
    clock: Arc<OsClock>,
}

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 512;

impl Net for OsNet {
    fn listen(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // A restarted server can bind its port while connections of the previous process still linger.
            socket.set_reuseaddr(true)?;
            socket.bind(addr)?;
            let listener = socket.listen(BACKLOG)?;
            let local_addr = listener.local_addr()?;
            Ok(Box::new(OsListener { listener, local_addr }) as Box<dyn Listener>)
        })
    }

    fn connect(&self, addr: SocketAddr, deadline: Instant) -> BoxFuture<'_, io::Result<Stream>> {
        Box::pin(async move {
            let connect = Marked(WaitMark::Network, Box::pin(TcpStream::connect(addr)));
            let stream = match tokio::time::timeout_at(self.clock.tokio(deadline), connect).await {
                Ok(connected) => connected?,
                Err(_) => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "no reply before the deadline"));
                }
            };
            to_stream(stream)
        })
    }

    fn datagrams(&self, peer: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Datagrams>>> {
        Box::pin(async move {
            let any: IpAddr = match peer {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            // A port that the system chooses is harder to guess for others.
            let socket = UdpSocket::bind((any, 0)).await?;
            socket.connect(peer).await?;
            Ok(Box::new(OsDatagrams(socket)) as Box<dyn Datagrams>)
        })
    }

    fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        Box::pin(async move {
            let mut addrs: Vec<SocketAddr> = tokio::net::lookup_host(host_port).await?.collect();
            addrs.sort();
            addrs.dedup();
            Ok(addrs)
        })
    }

    fn host_name(&self) -> io::Result<String> {
        host_name()
    }

    #[cfg(feature = "kerberos")]
    fn kerberos(&self) -> Option<Arc<dyn super::kerberos::Kerberos>> {
        Some(Arc::new(super::gssapi::OsKerberos))
    }
}

/// Bytes for the name of a host; Linux allows 64.
const HOST_NAME_BYTES: usize = 256;

/// Returns the name of this host, as `hostname` prints it.
fn host_name() -> io::Result<String> {
    let mut bytes = [0u8; HOST_NAME_BYTES];
    // SAFETY: the pointer is that of a live, writable buffer, and the length is its own without the last byte, a zero.
    let status = unsafe { libc::gethostname(bytes.as_mut_ptr().cast(), bytes.len() - 1) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    let name = std::ffi::CStr::from_bytes_until_nul(&bytes).map_err(io::Error::other)?;
    Ok(name.to_string_lossy().into_owned())
}

fn to_stream(stream: TcpStream) -> io::Result<Stream> {
    // Frames are flushed whole; Nagle's algorithm would only delay the last segment.
    stream.set_nodelay(true)?;
    Ok(Box::new(OsStream(stream)))
}

struct OsDatagrams(UdpSocket);

impl Datagrams for OsDatagrams {
    fn send<'a>(&'a self, bytes: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move { self.0.send(bytes).await.map(drop) })
    }

    fn receive<'a>(&'a self, out: &'a mut [u8]) -> BoxFuture<'a, io::Result<usize>> {
        Box::pin(self.0.recv(out))
    }
}

struct OsListener {
    listener: TcpListener,
    local_addr: SocketAddr,
}

impl Listener for OsListener {
    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    fn accept(&mut self) -> BoxFuture<'_, io::Result<(Stream, SocketAddr)>> {
        Box::pin(async move {
            let accept = Box::pin(self.listener.accept());
            let (stream, remote) = Marked(WaitMark::Network, accept).await?;
            Ok((to_stream(stream)?, remote))
        })
    }
}

struct OsTasks {
    registry: Arc<TaskRegistry>,
    /// The runtime in which the environment was built. A destructor that spawns may run outside of any.
    runtime: Option<Handle>,
}

struct OsTask(tokio::task::JoinHandle<()>);

impl TaskHandle for OsTask {
    fn abort(&self) {
        self.0.abort();
    }

    fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl Tasks for OsTasks {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn TaskHandle> {
        let task = self.registry.register(name, future);
        Box::new(OsTask(match &self.runtime {
            Some(runtime) => runtime.spawn(task),
            None => tokio::spawn(task),
        }))
    }

    fn begin(&self, name: &'static str, future: BoxFuture<'static, ()>) {
        late_task::begin(&self.registry, name, future);
    }

    fn run<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            match Handle::current().runtime_flavor() {
                // No other worker thread exists that could run the other tasks.
                RuntimeFlavor::CurrentThread => marked_work(WaitMark::Work, work),
                _ => marked_work(WaitMark::Work, || tokio::task::block_in_place(work)),
            }
        })
    }

    fn run_brief<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()> {
        // If the work waits for a disk, `BlockingDisk` releases the thread.
        work();
        Box::pin(std::future::ready(()))
    }

    fn workers(&self) -> Option<WorkerStats> {
        let metrics = Handle::try_current().ok()?.metrics();
        let busy = (0..metrics.num_workers()).map(|worker| metrics.worker_total_busy_duration(worker));
        Some(WorkerStats {
            busy: busy.collect(),
            tasks: metrics.num_alive_tasks() as u64,
            queued: metrics.global_queue_depth() as u64,
        })
    }

    fn all(&self) -> Vec<TaskStats> {
        self.registry.all()
    }

    #[cfg(feature = "pprof")]
    fn cpu_profile(&self, time: Duration) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        Box::pin(async move {
            let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let running = RunningProfile::start(began)?;
            tokio::time::sleep(time).await;
            tokio::task::spawn_blocking(move || running.finish(time)).await?
        })
    }
}

struct OsMemory {
    limit: u64,
}

impl MemoryBudget for OsMemory {
    fn limit_bytes(&self) -> u64 {
        self.limit
    }

    fn process(&self) -> Option<ProcessStats> {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}"));
        let open_files = std::fs::read_dir("/proc/self/fd").ok()?.count() as u64;
        Some(ProcessStats::parse(
            &read("stat").ok()?,
            &read("status").ok()?,
            &read("limits").ok()?,
            open_files,
        ))
    }

    fn threads(&self) -> Vec<ThreadStats> {
        let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
        // A thread that ends in the meantime has no text.
        let stats = |task: std::fs::DirEntry| {
            let read = |name: &str| std::fs::read_to_string(task.path().join(name)).ok();
            ThreadStats::parse(&read("stat")?, &read("wchan").unwrap_or_default())
        };
        let mut threads: Vec<ThreadStats> = tasks.flatten().filter_map(stats).collect();
        threads.sort_by_key(|thread| thread.id);
        threads
    }
}

/// Returns the memory available to this process in bytes: the smaller of the machine's and its control groups'.
fn memory_bytes() -> u64 {
    let group = control_group::memory_limit(Path::new("/"));
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_in_meminfo(&text));
    machine.unwrap_or(FALLBACK_BYTES).min(group.unwrap_or(u64::MAX))
}

/// Memory in bytes assumed without `/proc/meminfo` and without a control group.
const FALLBACK_BYTES: u64 = 4 << 30;

fn total_in_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

struct OsRng {
    rng: Mutex<ChaCha12Rng>,
}

impl Rng for OsRng {
    fn next_u64(&self) -> u64 {
        self.rng.lock().next_u64()
    }

    fn fill_secret(&self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            // SAFETY: the pointer and the length are those of a live, writable slice.
            let filled = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            match usize::try_from(filled) {
                Ok(filled) => bytes = &mut bytes[filled..],
                // A signal interrupted the call. Nothing else fails with valid arguments; a key without entropy would
                // be worse than no process.
                Err(_) => {
                    let error = io::Error::last_os_error();
                    let interrupted = error.kind() == io::ErrorKind::Interrupted;
                    assert!(interrupted, "the operating system gives no random bytes: {error}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::conformance::{TestBed, check};

    #[test]
    fn memory_is_read_from_meminfo() {
        assert_eq!(total_in_meminfo("MemTotal:       16 kB\nMemFree: 3 kB\n"), Some(16 << 10));
        assert_eq!(total_in_meminfo("nothing"), None);
    }

    /// Returns a listener whose queue is full: Linux does not reply to further connection attempts.
    async fn silent() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("an address")).expect("it binds");
        let listener = socket.listen(0).expect("it listens");
        let addr = listener.local_addr().expect("it is bound");
        let mut held = Vec::new();
        loop {
            let connect = tokio::time::timeout(Duration::from_millis(50), TcpStream::connect(addr)).await;
            let Ok(stream) = connect else { return (listener, held, addr) };
            held.push(stream.expect("it connects or waits"));
        }
    }

    async fn conforms() {
        let env = OsEnv::new(&OsOptions::default()).expect("an environment");
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path().join("disk").to_str().expect("an ordinary path").to_string();
        let (_listener, _held, silent) = silent().await;
        let loopback = "127.0.0.1:0".parse().expect("an address");
        check(&TestBed { env, loopback, silent, dir }).await.expect("it conforms");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn conforms_with_many_threads() {
        conforms().await;
    }

    #[tokio::test]
    async fn conforms_with_one_thread() {
        conforms().await;
    }

    #[test]
    fn a_task_that_is_spawned_outside_of_a_runtime_runs_in_that_of_the_environment() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let env = runtime.block_on(async { OsEnv::new(&OsOptions::default()) }).expect("an environment");
        let (done, is_done) = tokio::sync::oneshot::channel();
        env.spawn("late", async move { done.send(7).expect("the test waits") });
        assert_eq!(runtime.block_on(is_done), Ok(7));
    }

    #[tokio::test]
    async fn datagrams_come_from_their_peer_only() {
        let env = OsEnv::new(&OsOptions::default()).expect("an environment");
        let peer = UdpSocket::bind("127.0.0.1:0").await.expect("it binds");
        let socket = env.net.datagrams(peer.local_addr().expect("it is bound")).await.expect("it opens");
        socket.send(b"question").await.expect("it is sent");
        let mut bytes = [0; 16];
        let (len, from) = peer.recv_from(&mut bytes).await.expect("it arrives");
        assert_eq!(&bytes[..len], b"question");
        let other = UdpSocket::bind("127.0.0.1:0").await.expect("it binds");
        let forged = other.send_to(b"forged", from).await;
        assert!(forged.is_ok() && peer.send_to(b"answer", from).await.is_ok());
        let len = socket.receive(&mut bytes).await.expect("it arrives");
        assert_eq!(&bytes[..len], b"answer");
    }

    #[tokio::test]
    async fn secret_bytes_do_not_come_from_the_seeded_generator() {
        let rng = OsRng { rng: Mutex::new(ChaCha12Rng::from_seed([7; 32])) };
        let (mut first, mut second) = ([0; 37], [0; 37]);
        rng.fill_secret(&mut first);
        rng.fill_secret(&mut second);
        assert!(first != second && first[32..] != [0; 5]);
        assert_eq!(rng.next_u64(), ChaCha12Rng::from_seed([7; 32]).next_u64(), "the generator was not used");
    }

    #[tokio::test]
    async fn the_clock_error_is_bounded() {
        let fixed = OsClock::new(ClockError::Fixed(Duration::from_micros(7)));
        assert_eq!(fixed.now().wall.error_micros, 7);
        let kernel = OsClock::new(ClockError::Kernel { otherwise: Duration::from_micros(10) });
        assert!(
            kernel.now().wall.error_micros >= 10,
            "the bound of the kernel or the given one, and one second of drift"
        );
    }
}
