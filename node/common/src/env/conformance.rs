//! Conformance tests of the [`Env`] contract, run against the real environment and the simulated ones.
//!
//! *Not here:* the effects of a crash, a partition or a full disk; only a simulator can cause those.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use engine::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, oneshot};

use super::{BoxFuture, Env, Listener, Stream};

/// Environment and addresses that the cases use.
pub struct TestBed {
    pub env: Env,
    /// Address on which the node under test listens and to which it connects; its port is 0.
    pub loopback: SocketAddr,
    /// Address that never accepts a connection.
    pub silent: SocketAddr,
    /// Directory that does not exist yet.
    pub dir: String,
}

/// Description of behaviour that breaks the contract.
#[derive(Debug)]
pub struct ContractViolation(pub String);

type Check = Result<(), ContractViolation>;

impl From<io::Error> for ContractViolation {
    fn from(error: io::Error) -> ContractViolation {
        ContractViolation(format!("unexpected error: {error}"))
    }
}

/// One test; it may use up the test bed.
pub type ConformanceCase = for<'a> fn(&'a TestBed) -> BoxFuture<'a, Check>;

/// All cases with their names.
pub const CASES: &[(&str, ConformanceCase)] = &[
    ("time_advances", |bed| Box::pin(time_advances(bed))),
    ("sleeps_are_long_enough", |bed| Box::pin(sleeps_are_long_enough(bed))),
    ("timeouts", |bed| Box::pin(timeouts(bed))),
    ("tasks_run", |bed| Box::pin(tasks_run(bed))),
    ("aborting_drops_the_future", |bed| Box::pin(aborting_drops_the_future(bed))),
    ("work_runs_once_and_may_borrow", |bed| Box::pin(work_runs_once_and_may_borrow(bed))),
    ("what_has_begun_continues", |bed| Box::pin(what_has_begun_continues(bed))),
    ("randomness_differs", |bed| Box::pin(randomness_differs(bed))),
    ("addresses", |bed| Box::pin(addresses(bed))),
    ("ports_are_taken_and_released", |bed| Box::pin(ports_are_taken_and_released(bed))),
    ("connecting_ends_at_its_deadline", |bed| Box::pin(connecting_ends_at_its_deadline(bed))),
    ("streams_carry_bytes_in_order", |bed| Box::pin(streams_carry_bytes_in_order(bed))),
    ("half_closed_streams", |bed| Box::pin(half_closed_streams(bed))),
    ("slow_readers_block_writers", |bed| Box::pin(slow_readers_block_writers(bed))),
    ("streams_end_with_their_task", |bed| Box::pin(streams_end_with_their_task(bed))),
    ("disks", |bed| Box::pin(disks(bed))),
];

/// Runs every case.
pub async fn check(bed: &TestBed) -> Check {
    for (name, case) in CASES {
        case(bed).await.map_err(|violation| ContractViolation(format!("{name}: {}", violation.0)))?;
    }
    Ok(())
}

fn expect<T: PartialEq + Debug>(what: &str, found: T, wanted: T) -> Check {
    if found == wanted {
        Ok(())
    } else {
        Err(ContractViolation(format!("{what}: {found:?} instead of {wanted:?}")))
    }
}

fn expect_that(what: &str, holds: bool) -> Check {
    if holds { Ok(()) } else { Err(ContractViolation(format!("it does not hold that {what}"))) }
}

/// A wait longer than this counts as endless.
const LONG: Duration = Duration::from_secs(20);

async fn within_deadline<T>(
    env: &Env,
    what: &str,
    future: impl Future<Output = T>,
) -> Result<T, ContractViolation> {
    env.timeout(LONG, future).await.ok_or_else(|| ContractViolation(format!("{what} does not end")))
}

async fn time_advances(bed: &TestBed) -> Check {
    let first = bed.env.now();
    bed.env.sleep(Duration::from_millis(20)).await;
    let second = bed.env.now();
    expect_that("the monotonic clock moves", second.mono > first.mono)?;
    expect_that("the wall clock shows a time after 1970", first.wall.micros > 0)
}

async fn sleeps_are_long_enough(bed: &TestBed) -> Check {
    let env = &bed.env;
    for wait in [0, 1, 1_000, 7_777, 25_000].map(Duration::from_micros) {
        let until = env.now().mono.after(wait);
        env.clock.sleep_until(until).await;
        expect_that(&format!("a sleep of {wait:?} ends at its time or after"), env.now().mono >= until)?;
    }
    within_deadline(env, "a sleep until a time long past", env.clock.sleep_until(Instant(0))).await?;
    // The furthest time there is must not overflow anything; the sleep is dropped unfinished.
    let never = env.timeout(Duration::from_millis(1), env.clock.sleep_until(Instant(u64::MAX))).await;
    expect("sleeping without end", never, None)
}

async fn timeouts(bed: &TestBed) -> Check {
    let env = &bed.env;
    let never = std::future::pending::<()>();
    expect(
        "a timeout of a future that never ends",
        env.timeout(Duration::from_millis(5), never).await,
        None,
    )?;
    expect("a timeout of a ready future", env.timeout(Duration::ZERO, async { 7 }).await, Some(7))
}

async fn tasks_run(bed: &TestBed) -> Check {
    let env = &bed.env;
    let sum = Arc::new(AtomicU64::new(0));
    let done = Arc::new(Notify::new());
    for number in 1..=10 {
        let (sum, done, inner) = (sum.clone(), done.clone(), env.clone());
        env.spawn("adder", async move {
            // Tasks may spawn tasks.
            inner.spawn("inner adder", async move {
                if sum.fetch_add(number, Ordering::SeqCst) + number == 55 {
                    done.notify_one();
                }
            });
        });
    }
    within_deadline(env, "the tasks", done.notified()).await
}

/// Sends a message when dropped.
struct DropSignal(Option<oneshot::Sender<()>>);

impl Drop for DropSignal {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            let _ = sender.send(());
        }
    }
}

async fn aborting_drops_the_future(bed: &TestBed) -> Check {
    let env = &bed.env;
    let (drop_sender, drop_receiver) = oneshot::channel();
    let continued = Arc::new(AtomicBool::new(false));
    let drop_signal = DropSignal(Some(drop_sender));
    let task = env.spawn("aborted", {
        let (env, continued) = (env.clone(), continued.clone());
        async move {
            let _drop_signal = drop_signal;
            env.sleep(Duration::from_millis(50)).await;
            continued.store(true, Ordering::SeqCst);
        }
    });
    env.sleep(Duration::from_millis(5)).await;
    expect("is_finished of a task that sleeps", task.is_finished(), false)?;
    task.abort();
    expect("the future's values", within_deadline(env, "the abort", drop_receiver).await?, Ok(()))?;
    env.sleep(Duration::from_millis(100)).await;
    expect("the aborted future continued", continued.load(Ordering::SeqCst), false)?;
    expect("is_finished of an aborted task", task.is_finished(), true)
}

async fn work_runs_once_and_may_borrow(bed: &TestBed) -> Check {
    let mut count = 0;
    let result = bed
        .env
        .run(|| {
            count += 1;
            "done"
        })
        .await;
    expect("the work's result", result, "done")?;
    let brief = bed.env.run_brief(|| count += 1);
    brief.await;
    expect("runs of the work", count, 2)
}

/// A future that waits in its first step continues when it is woken.
async fn what_has_begun_continues(bed: &TestBed) -> Check {
    let (wake, woken) = oneshot::channel();
    let (done, is_done) = oneshot::channel();
    let begun = Arc::new(AtomicBool::new(false));
    bed.env.begin("begun", {
        let (env, begun) = (bed.env.clone(), begun.clone());
        async move {
            begun.store(true, Ordering::SeqCst);
            let value = woken.await;
            env.sleep(Duration::from_millis(1)).await;
            drop(done.send(value));
        }
    });
    expect_that("the first step has run", begun.load(Ordering::SeqCst))?;
    expect_that("the future waits", wake.send(7).is_ok())?;
    expect("the value", within_deadline(&bed.env, "the future", is_done).await?, Ok(Ok(7)))
}

async fn randomness_differs(bed: &TestBed) -> Check {
    let (first, second) = (bed.env.random_uuid(), bed.env.random_uuid());
    expect_that("two ids differ", first != second)?;
    expect_that("there is memory", bed.env.memory.limit_bytes() > 0)
}

async fn addresses(bed: &TestBed) -> Check {
    let addr = SocketAddr::new(bed.loopback.ip(), 7051);
    let found = bed.env.net.resolve(&addr.to_string()).await?;
    expect("the addresses of an address", found, vec![addr])?;
    let nonsense = bed.env.net.resolve("no port here").await;
    expect_that("text that is not host and port has no address", nonsense.is_err())
}

async fn listen(bed: &TestBed) -> Result<Box<dyn Listener>, ContractViolation> {
    Ok(bed.env.net.listen(bed.loopback).await?)
}

async fn ports_are_taken_and_released(bed: &TestBed) -> Check {
    let net = &bed.env.net;
    let first = listen(bed).await?;
    let addr = first.local_addr();
    expect_that("port 0 becomes a port", addr.port() != 0)?;
    expect_that(
        "another port 0 becomes another port",
        listen(bed).await?.local_addr().port() != addr.port(),
    )?;
    let again = net.listen(addr).await.map(|_| ());
    let kind = again.expect_err_kind("listening on a port that is taken")?;
    expect("the error", kind, io::ErrorKind::AddrInUse)?;
    drop(first);
    let refused = net.connect(connectable(bed, addr), bed.env.now().mono.after(LONG)).await.map(|_| ());
    let kind = refused.expect_err_kind("connecting to a port without a listener")?;
    expect("the error", kind, io::ErrorKind::ConnectionRefused)?;
    net.listen(addr).await?;
    Ok(())
}

trait ExpectKind {
    fn expect_err_kind(self, what: &str) -> Result<io::ErrorKind, ContractViolation>;
}

impl ExpectKind for io::Result<()> {
    fn expect_err_kind(self, what: &str) -> Result<io::ErrorKind, ContractViolation> {
        match self {
            Ok(()) => Err(ContractViolation(format!("{what} succeeded"))),
            Err(error) => Ok(error.kind()),
        }
    }
}

fn connectable(bed: &TestBed, listening: SocketAddr) -> SocketAddr {
    SocketAddr::new(bed.loopback.ip(), listening.port())
}

async fn connecting_ends_at_its_deadline(bed: &TestBed) -> Check {
    let env = &bed.env;
    let deadline = env.now().mono.after(Duration::from_millis(50));
    let connect = env.net.connect(bed.silent, deadline);
    let connected = within_deadline(env, "connecting to a silent address", connect).await?.map(|_| ());
    let kind = connected.expect_err_kind("connecting to a silent address")?;
    expect("the error", kind, io::ErrorKind::TimedOut)?;
    expect_that("connecting waits until the deadline", env.now().mono >= deadline)
}

/// Both ends of one connection.
async fn pair(bed: &TestBed) -> Result<(Stream, Stream), ContractViolation> {
    let env = &bed.env;
    let mut listener = listen(bed).await?;
    let addr = connectable(bed, listener.local_addr());
    let (send, receive) = oneshot::channel();
    env.spawn("accept", async move {
        let _ = send.send(listener.accept().await);
    });
    let ours =
        within_deadline(env, "connecting", env.net.connect(addr, env.now().mono.after(LONG))).await??;
    let accepted = within_deadline(env, "accepting", receive).await?;
    let (theirs, remote) =
        accepted.map_err(|_| ContractViolation("the accepting task is gone".to_string()))??;
    expect("the client's address", remote.ip(), bed.loopback.ip())?;
    Ok((ours, theirs))
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + index / 251) as u8).collect()
}

async fn streams_carry_bytes_in_order(bed: &TestBed) -> Check {
    let env = &bed.env;
    let (mut ours, mut theirs) = pair(bed).await?;
    let sent = pattern(1 << 20);
    let writing = sent.clone();
    env.spawn("writer", async move {
        for chunk in writing.chunks(100_003) {
            let slices = [io::IoSlice::new(&chunk[..3]), io::IoSlice::new(&chunk[3..])];
            let written = ours.write_vectored(&slices).await.unwrap_or(0);
            let _ = ours.write_all(&chunk[written..]).await;
        }
        let _ = ours.flush().await;
        let _ = ours.shutdown().await;
    });
    let mut read = Vec::new();
    within_deadline(env, "reading to the end", theirs.read_to_end(&mut read)).await??;
    expect_that("the bytes read are the bytes written", read == sent)
}

async fn half_closed_streams(bed: &TestBed) -> Check {
    let env = &bed.env;
    let (mut ours, mut theirs) = pair(bed).await?;
    ours.write_all(b"question").await?;
    ours.flush().await?;
    ours.shutdown().await?;
    let mut read = Vec::new();
    within_deadline(env, "reading to the end", theirs.read_to_end(&mut read)).await??;
    expect("bytes read before the end of the stream", read.as_slice(), b"question".as_slice())?;
    theirs.write_all(b"answer").await?;
    theirs.flush().await?;
    let mut answer = [0; 6];
    within_deadline(env, "reading after shutdown of the other half", ours.read_exact(&mut answer)).await??;
    expect("bytes read in the other direction", &answer, b"answer")?;
    drop(theirs);
    expect("the end", within_deadline(env, "reading the end", ours.read(&mut answer)).await??, 0)
}

async fn slow_readers_block_writers(bed: &TestBed) -> Check {
    const BYTES: usize = 64 << 20;
    let env = &bed.env;
    let (mut ours, mut theirs) = pair(bed).await?;
    let written = Arc::new(AtomicU64::new(0));
    let counter = written.clone();
    let writer = env.spawn("writer", async move {
        let chunk = pattern(64 << 10);
        while counter.load(Ordering::SeqCst) < BYTES as u64 && ours.write_all(&chunk).await.is_ok() {
            counter.fetch_add(chunk.len() as u64, Ordering::SeqCst);
        }
    });
    env.sleep(Duration::from_millis(200)).await;
    let unread = written.load(Ordering::SeqCst);
    expect_that("a writer waits for its reader", unread < BYTES as u64)?;
    let mut scrap = vec![0; unread as usize + (1 << 20)];
    within_deadline(env, "reading what was written", theirs.read_exact(&mut scrap)).await??;
    writer.abort();
    Ok(())
}

async fn streams_end_with_their_task(bed: &TestBed) -> Check {
    let env = &bed.env;
    let (ours, mut theirs) = pair(bed).await?;
    let holder = env.spawn("holder", async move {
        let _ours = ours;
        std::future::pending::<()>().await;
    });
    let mut byte = [0; 1];
    let silent = env.timeout(Duration::from_millis(20), theirs.read(&mut byte)).await.is_none();
    expect("reading from a peer that sends nothing waits", silent, true)?;
    holder.abort();
    // End of file or a reset: both show that the peer is gone.
    let read = within_deadline(env, "reading from a stream that was dropped", theirs.read(&mut byte)).await?;
    expect_that("nothing is read from a stream that was dropped", !matches!(read, Ok(1)))
}

async fn disks(bed: &TestBed) -> Check {
    let (first, second) = (bed.env.disks.open(&bed.dir)?, bed.env.disks.open(&bed.dir)?);
    let file = first.create("shared")?;
    file.append(b"bytes")?;
    file.sync()?;
    let mut read = [0; 5];
    second.open("shared")?.read_at(0, &mut read)?;
    expect("bytes read through another handle of the same directory", &read, b"bytes")?;
    first.remove("shared")?;
    bed.env
        .run(|| engine::disk::conformance::check(first.as_ref()))
        .await
        .map_err(|violation| ContractViolation(format!("the disk: {}", violation.0)))
}
