//! What every [`Env`] promises while it runs, checked by running it, in the real world and in the simulated ones.
//!
//! *Not here:* what a crash, a partition or a full disk does; only a simulator can be asked for those.

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

/// Where the cases run.
pub struct Place {
    pub env: Env,
    /// Listened on and connected to by this one node; its port is 0.
    pub loopback: SocketAddr,
    /// An address that never answers a connection.
    pub silent: SocketAddr,
    /// A directory that does not exist yet.
    pub dir: String,
}

/// What an environment did that it must not do.
#[derive(Debug)]
pub struct Violation(pub String);

type Check = Result<(), Violation>;

impl From<io::Error> for Violation {
    fn from(error: io::Error) -> Violation {
        Violation(format!("unexpected error: {error}"))
    }
}

/// Runs in a place that it may use up.
pub type Case = for<'a> fn(&'a Place) -> BoxFuture<'a, Check>;

/// The cases, by name.
pub const CASES: &[(&str, Case)] = &[
    ("time_goes_on", |place| Box::pin(time_goes_on(place))),
    ("sleeps_are_long_enough", |place| Box::pin(sleeps_are_long_enough(place))),
    ("timeouts", |place| Box::pin(timeouts(place))),
    ("tasks_run", |place| Box::pin(tasks_run(place))),
    ("aborting_drops_the_future", |place| Box::pin(aborting_drops_the_future(place))),
    ("work_runs_once_and_may_borrow", |place| Box::pin(work_runs_once_and_may_borrow(place))),
    ("randomness_differs", |place| Box::pin(randomness_differs(place))),
    ("addresses", |place| Box::pin(addresses(place))),
    ("ports_are_taken_and_given_back", |place| Box::pin(ports_are_taken_and_given_back(place))),
    ("connecting_ends_at_its_deadline", |place| Box::pin(connecting_ends_at_its_deadline(place))),
    ("streams_carry_bytes_in_order", |place| Box::pin(streams_carry_bytes_in_order(place))),
    ("half_closed_streams", |place| Box::pin(half_closed_streams(place))),
    ("slow_readers_hold_writers_back", |place| Box::pin(slow_readers_hold_writers_back(place))),
    ("streams_end_with_their_task", |place| Box::pin(streams_end_with_their_task(place))),
    ("disks", |place| Box::pin(disks(place))),
];

/// Runs every case.
pub async fn check(place: &Place) -> Check {
    for (name, case) in CASES {
        case(place).await.map_err(|violation| Violation(format!("{name}: {}", violation.0)))?;
    }
    Ok(())
}

fn expect<T: PartialEq + Debug>(what: &str, found: T, wanted: T) -> Check {
    if found == wanted { Ok(()) } else { Err(Violation(format!("{what}: {found:?} instead of {wanted:?}"))) }
}

fn expect_that(what: &str, holds: bool) -> Check {
    if holds { Ok(()) } else { Err(Violation(format!("it does not hold that {what}"))) }
}

/// What waits longer than this waits for ever.
const LONG: Duration = Duration::from_secs(20);

async fn soon<T>(env: &Env, what: &str, future: impl Future<Output = T>) -> Result<T, Violation> {
    env.timeout(LONG, future).await.ok_or_else(|| Violation(format!("{what} does not end")))
}

async fn time_goes_on(place: &Place) -> Check {
    let first = place.env.now();
    place.env.sleep(Duration::from_millis(20)).await;
    let second = place.env.now();
    expect_that("the monotonic clock moves", second.mono > first.mono)?;
    expect_that("the wall clock tells a time after 1970", first.wall.micros > 0)
}

async fn sleeps_are_long_enough(place: &Place) -> Check {
    let env = &place.env;
    for wait in [0, 1, 1_000, 7_777, 25_000].map(Duration::from_micros) {
        let until = env.now().mono.after(wait);
        env.clock.sleep_until(until).await;
        expect_that(&format!("a sleep of {wait:?} ends at its time or after"), env.now().mono >= until)?;
    }
    soon(env, "a sleep until a time long past", env.clock.sleep_until(Instant(0))).await?;
    // The furthest time there is must not overflow anything; the sleep is dropped unfinished.
    let never = env.timeout(Duration::from_millis(1), env.clock.sleep_until(Instant(u64::MAX))).await;
    expect("sleeping for ever", never, None)
}

async fn timeouts(place: &Place) -> Check {
    let env = &place.env;
    let never = std::future::pending::<()>();
    expect("a timeout of what never ends", env.timeout(Duration::from_millis(5), never).await, None)?;
    expect("a timeout of what is there", env.timeout(Duration::ZERO, async { 7 }).await, Some(7))
}

async fn tasks_run(place: &Place) -> Check {
    let env = &place.env;
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
    soon(env, "the tasks", done.notified()).await
}

/// Sends when it is dropped.
struct Tattle(Option<oneshot::Sender<()>>);

impl Drop for Tattle {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            let _ = sender.send(());
        }
    }
}

async fn aborting_drops_the_future(place: &Place) -> Check {
    let env = &place.env;
    let (dropped, heard) = oneshot::channel();
    let ran_on = Arc::new(AtomicBool::new(false));
    let tattle = Tattle(Some(dropped));
    let task = env.spawn("aborted", {
        let (env, ran_on) = (env.clone(), ran_on.clone());
        async move {
            let _tattle = tattle;
            env.sleep(Duration::from_millis(50)).await;
            ran_on.store(true, Ordering::SeqCst);
        }
    });
    env.sleep(Duration::from_millis(5)).await;
    expect("is_finished of a task that sleeps", task.is_finished(), false)?;
    task.abort();
    expect("the future's values", soon(env, "the abort", heard).await?, Ok(()))?;
    env.sleep(Duration::from_millis(100)).await;
    expect("the aborted future went on", ran_on.load(Ordering::SeqCst), false)?;
    expect("is_finished of an aborted task", task.is_finished(), true)
}

async fn work_runs_once_and_may_borrow(place: &Place) -> Check {
    let mut count = 0;
    let result = place
        .env
        .run(|| {
            count += 1;
            "done"
        })
        .await;
    expect("the work's result", result, "done")?;
    let brief = place.env.run_brief(|| count += 1);
    brief.await;
    expect("runs of the work", count, 2)
}

async fn randomness_differs(place: &Place) -> Check {
    let (first, second) = (place.env.random_uuid(), place.env.random_uuid());
    expect_that("two ids differ", first != second)?;
    expect_that("there is memory", place.env.memory.limit_bytes() > 0)
}

async fn addresses(place: &Place) -> Check {
    let addr = SocketAddr::new(place.loopback.ip(), 7051);
    let found = place.env.net.resolve(&addr.to_string()).await?;
    expect("the addresses of an address", found, vec![addr])?;
    let nonsense = place.env.net.resolve("no port here").await;
    expect_that("what is no host and port has no address", nonsense.is_err())
}

async fn listen(place: &Place) -> Result<Box<dyn Listener>, Violation> {
    Ok(place.env.net.listen(place.loopback).await?)
}

async fn ports_are_taken_and_given_back(place: &Place) -> Check {
    let net = &place.env.net;
    let first = listen(place).await?;
    let addr = first.local_addr();
    expect_that("port 0 becomes a port", addr.port() != 0)?;
    expect_that(
        "another port 0 becomes another port",
        listen(place).await?.local_addr().port() != addr.port(),
    )?;
    let again = net.listen(addr).await.map(|_| ());
    let kind = again.expect_err_kind("listening on a port that is taken")?;
    expect("the error", kind, io::ErrorKind::AddrInUse)?;
    drop(first);
    let refused = net.connect(connectable(place, addr), place.env.now().mono.after(LONG)).await.map(|_| ());
    let kind = refused.expect_err_kind("connecting where no one listens")?;
    expect("the error", kind, io::ErrorKind::ConnectionRefused)?;
    net.listen(addr).await?;
    Ok(())
}

trait ExpectKind {
    fn expect_err_kind(self, what: &str) -> Result<io::ErrorKind, Violation>;
}

impl ExpectKind for io::Result<()> {
    fn expect_err_kind(self, what: &str) -> Result<io::ErrorKind, Violation> {
        match self {
            Ok(()) => Err(Violation(format!("{what} succeeded"))),
            Err(error) => Ok(error.kind()),
        }
    }
}

fn connectable(place: &Place, listening: SocketAddr) -> SocketAddr {
    SocketAddr::new(place.loopback.ip(), listening.port())
}

async fn connecting_ends_at_its_deadline(place: &Place) -> Check {
    let env = &place.env;
    let deadline = env.now().mono.after(Duration::from_millis(50));
    let connect = env.net.connect(place.silent, deadline);
    let connected = soon(env, "connecting to a silent address", connect).await?.map(|_| ());
    let kind = connected.expect_err_kind("connecting to a silent address")?;
    expect("the error", kind, io::ErrorKind::TimedOut)?;
    expect_that("the deadline was waited for", env.now().mono >= deadline)
}

/// Both ends of one connection.
async fn pair(place: &Place) -> Result<(Stream, Stream), Violation> {
    let env = &place.env;
    let mut listener = listen(place).await?;
    let addr = connectable(place, listener.local_addr());
    let (send, receive) = oneshot::channel();
    env.spawn("accept", async move {
        let _ = send.send(listener.accept().await);
    });
    let ours = soon(env, "connecting", env.net.connect(addr, env.now().mono.after(LONG))).await??;
    let accepted = soon(env, "accepting", receive).await?;
    let (theirs, remote) = accepted.map_err(|_| Violation("the accepting task is gone".to_string()))??;
    expect("the client's address", remote.ip(), place.loopback.ip())?;
    Ok((ours, theirs))
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + index / 251) as u8).collect()
}

async fn streams_carry_bytes_in_order(place: &Place) -> Check {
    let env = &place.env;
    let (mut ours, mut theirs) = pair(place).await?;
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
    soon(env, "reading to the end", theirs.read_to_end(&mut read)).await??;
    expect_that("what is read is what was written", read == sent)
}

async fn half_closed_streams(place: &Place) -> Check {
    let env = &place.env;
    let (mut ours, mut theirs) = pair(place).await?;
    ours.write_all(b"question").await?;
    ours.flush().await?;
    ours.shutdown().await?;
    let mut read = Vec::new();
    soon(env, "reading to the end", theirs.read_to_end(&mut read)).await??;
    expect("what was said before the end", read.as_slice(), b"question".as_slice())?;
    theirs.write_all(b"answer").await?;
    theirs.flush().await?;
    let mut answer = [0; 6];
    soon(env, "reading after having closed", ours.read_exact(&mut answer)).await??;
    expect("what was said the other way", &answer, b"answer")?;
    drop(theirs);
    expect("the end", soon(env, "reading the end", ours.read(&mut answer)).await??, 0)
}

async fn slow_readers_hold_writers_back(place: &Place) -> Check {
    const BYTES: usize = 64 << 20;
    let env = &place.env;
    let (mut ours, mut theirs) = pair(place).await?;
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
    soon(env, "reading what was written", theirs.read_exact(&mut scrap)).await??;
    writer.abort();
    Ok(())
}

async fn streams_end_with_their_task(place: &Place) -> Check {
    let env = &place.env;
    let (ours, mut theirs) = pair(place).await?;
    let holder = env.spawn("holder", async move {
        let _ours = ours;
        std::future::pending::<()>().await;
    });
    let mut byte = [0; 1];
    let silent = env.timeout(Duration::from_millis(20), theirs.read(&mut byte)).await.is_none();
    expect("reading from a peer that says nothing waits", silent, true)?;
    holder.abort();
    // An end or a reset: either tells that no one is there.
    let read = soon(env, "reading from a stream that was dropped", theirs.read(&mut byte)).await?;
    expect_that("nothing is read from a stream that was dropped", !matches!(read, Ok(1)))
}

async fn disks(place: &Place) -> Check {
    let (first, second) = (place.env.disks.open(&place.dir)?, place.env.disks.open(&place.dir)?);
    let file = first.create("shared")?;
    file.append(b"bytes")?;
    file.sync()?;
    let mut read = [0; 5];
    second.open("shared")?.read_at(0, &mut read)?;
    expect("what another handle of the same directory reads", &read, b"bytes")?;
    first.remove("shared")?;
    place
        .env
        .run(|| engine::disk::conformance::check(first.as_ref()))
        .await
        .map_err(|violation| Violation(format!("the disk: {}", violation.0)))
}
