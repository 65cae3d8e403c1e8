//! Registry of the real environment's tasks: name, age, and what each waits for, for the page `/stacks`.
//!
//! ```text
//!   spawn ──▶ record in a shard ──poll──▶ CURRENT of the thread ◀── mark: timer, network, device (env/os*.rs)
//!   end, abort ──▶ the record goes
//! ```
//!
//! - A poll costs a clock reading, three relaxed stores and no lock; a spawn and an end take the lock of a shard.
//! - Marks come from the environment's own futures. A task without a mark waits for another task: for a message, a lock
//!   or a permit.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use engine::sync::Mutex;
use engine::time::Instant;

use super::BoxFuture;

/// Shards of the registry; a power of two.
const SHARDS: usize = 16;

/// A task that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskStats {
    /// Number of the task; later ones are larger.
    pub id: u64,
    pub name: &'static str,
    pub age: Duration,
    /// Times that the task has run.
    pub polls: u64,
    /// Time since the task last began to run; `None` if it has not run yet.
    pub since: Option<Duration>,
    pub state: TaskState,
}

/// State of a task. Several events may end a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskState(u8);

impl TaskState {
    const RUNNING: u8 = 1;
    const TIMER: u8 = 2;
    const NETWORK: u8 = 4;
    const DEVICE: u8 = 8;
    const WORK: u8 = 16;

    /// The task waits for a message, a lock or a permit only.
    pub const WAITING: TaskState = TaskState(0);
    pub const RUNS: TaskState = TaskState(Self::RUNNING);

    /// Returns true if a thread runs the task now.
    pub fn is_running(self) -> bool {
        self.0 & Self::RUNNING != 0
    }

    /// Returns what the task waits for or does.
    pub fn text(self) -> String {
        let of = |bit: u8, text: &'static str| (self.0 & bit != 0).then_some(text);
        if self.is_running() {
            let doing = of(Self::DEVICE, "waits for a device").or(of(Self::WORK, "runs disk or CPU work"));
            return doing.unwrap_or("runs").to_owned();
        }
        let waits: Vec<_> =
            [of(Self::NETWORK, "network"), of(Self::TIMER, "timer")].into_iter().flatten().collect();
        match waits.as_slice() {
            [] => "another task".to_owned(),
            some => format!("{}, or another task", some.join(", ")),
        }
    }
}

/// Event that may end a wait, or work of a running task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum WaitMark {
    Timer = TaskState::TIMER,
    Network = TaskState::NETWORK,
    Device = TaskState::DEVICE,
    Work = TaskState::WORK,
}

struct TaskRecord {
    name: &'static str,
    started: Instant,
    polls: AtomicU64,
    /// Nanoseconds at the start of the last poll.
    polled: AtomicU64,
    /// Bits of [`TaskState`]. Only the thread that polls writes them.
    state: AtomicU8,
}

impl TaskRecord {
    fn stats(&self, id: u64, now: Instant) -> TaskStats {
        let polls = self.polls.load(Ordering::Relaxed);
        let polled = Instant(self.polled.load(Ordering::Relaxed));
        TaskStats {
            id,
            name: self.name,
            age: now.since(self.started),
            polls,
            since: (polls > 0).then(|| now.since(polled)),
            state: TaskState(self.state.load(Ordering::Relaxed)),
        }
    }
}

thread_local! {
    /// Record of the task that this thread polls.
    static CURRENT: Cell<Option<Arc<TaskRecord>>> = const { Cell::new(None) };
}

/// Records what the task of this thread waits for or does; without a task, nothing.
pub(super) fn mark(event: WaitMark) {
    change(|state| state | event as u8);
}

/// Removes a mark of the task of this thread.
fn unmark(event: WaitMark) {
    change(|state| state & !(event as u8));
}

fn change(to: impl FnOnce(u8) -> u8) {
    CURRENT.with(|current| {
        let Some(record) = current.take() else { return };
        record.state.store(to(record.state.load(Ordering::Relaxed)), Ordering::Relaxed);
        current.set(Some(record));
    });
}

/// Runs synchronous work of the task of this thread under a mark.
pub(super) fn marked_work<R>(event: WaitMark, work: impl FnOnce() -> R) -> R {
    mark(event);
    let result = work();
    unmark(event);
    result
}

/// A future that marks its task while it waits.
pub(super) struct Marked<F>(pub WaitMark, pub F);

impl<F: Future + Unpin> Future for Marked<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let polled = Pin::new(&mut self.1).poll(context);
        if polled.is_pending() {
            mark(self.0);
        }
        polled
    }
}

/// All tasks of an environment that have not ended.
pub(super) struct TaskRegistry {
    now: Box<dyn Fn() -> Instant + Send + Sync>,
    next: AtomicU64,
    shards: [Mutex<BTreeMap<u64, Arc<TaskRecord>>>; SHARDS],
}

impl TaskRegistry {
    pub(super) fn new(now: impl Fn() -> Instant + Send + Sync + 'static) -> Arc<TaskRegistry> {
        let (next, shards) = (AtomicU64::new(1), Default::default());
        Arc::new(TaskRegistry { now: Box::new(now), next, shards })
    }

    /// Returns the future of a task, which is registered until it is dropped.
    pub(super) fn register(
        self: &Arc<Self>,
        name: &'static str,
        future: BoxFuture<'static, ()>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let record = Arc::new(TaskRecord {
            name,
            started: (self.now)(),
            polls: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            state: AtomicU8::new(0),
        });
        self.shard(id).lock().insert(id, record.clone());
        RegisteredTask { registry: self.clone(), id, record: Some(record), future }
    }

    /// Returns all tasks, the oldest first.
    pub(super) fn all(&self) -> Vec<TaskStats> {
        let now = (self.now)();
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().iter().map(|(id, record)| record.stats(*id, now)));
        }
        all.sort_by_key(|task| task.id);
        all
    }

    fn shard(&self, id: u64) -> &Mutex<BTreeMap<u64, Arc<TaskRecord>>> {
        &self.shards[id as usize % SHARDS]
    }
}

struct RegisteredTask {
    registry: Arc<TaskRegistry>,
    id: u64,
    /// `None` only inside a poll: then it is the thread's.
    record: Option<Arc<TaskRecord>>,
    future: BoxFuture<'static, ()>,
}

impl Drop for RegisteredTask {
    fn drop(&mut self) {
        self.registry.shard(self.id).lock().remove(&self.id);
    }
}

/// Gives the thread its previous record back, also after a panic.
struct CurrentGuard<'a> {
    own: &'a mut Option<Arc<TaskRecord>>,
    previous: Option<Arc<TaskRecord>>,
}

impl Drop for CurrentGuard<'_> {
    fn drop(&mut self) {
        *self.own = CURRENT.replace(self.previous.take());
        if let Some(record) = &self.own {
            let state = record.state.load(Ordering::Relaxed);
            record.state.store(state & !TaskState::RUNNING, Ordering::Relaxed);
        }
    }
}

impl Future for RegisteredTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if let Some(record) = &this.record {
            record.polled.store((this.registry.now)().0, Ordering::Relaxed);
            record.polls.store(record.polls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            record.state.store(TaskState::RUNNING, Ordering::Relaxed);
        }
        let previous = CURRENT.replace(this.record.take());
        let _guard = CurrentGuard { own: &mut this.record, previous };
        this.future.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// A registry whose clock the test sets.
    fn registry() -> (Arc<TaskRegistry>, Arc<AtomicU64>) {
        let clock = Arc::new(AtomicU64::new(5));
        let read = clock.clone();
        (TaskRegistry::new(move || Instant(read.load(Ordering::Relaxed))), clock)
    }

    fn poll(task: &mut Pin<Box<impl Future<Output = ()>>>) -> bool {
        task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_task_is_listed_from_its_spawn_to_its_end() {
        let (registry, clock) = registry();
        let (send, receive) = tokio::sync::oneshot::channel::<()>();
        let wait = async move { drop(receive.await) };
        let mut task = Box::pin(registry.register("waiter", Box::pin(wait)));
        clock.store(12, Ordering::Relaxed);
        let expected = |polls, since, age| TaskStats {
            id: 1,
            name: "waiter",
            age: Duration::from_nanos(age),
            polls,
            since,
            state: TaskState::WAITING,
        };
        assert_eq!(registry.all(), [expected(0, None, 7)]);
        assert!(!poll(&mut task));
        clock.store(15, Ordering::Relaxed);
        assert_eq!(registry.all(), [expected(1, Some(Duration::from_nanos(3)), 10)]);
        send.send(()).expect("it waits");
        assert!(poll(&mut task));
        drop(task);
        assert_eq!(registry.all(), []);
        // An aborted task is dropped without its end.
        drop(registry.register("aborted", Box::pin(std::future::pending())));
        assert_eq!(registry.all(), []);
    }

    #[test]
    fn marks_tell_what_a_task_waits_for() {
        let (registry, _) = registry();
        let seen = registry.clone();
        let own = move || seen.all()[0].state.text();
        let body = async move {
            assert_eq!(own(), "runs");
            marked_work(WaitMark::Work, || assert_eq!(own(), "runs disk or CPU work"));
            marked_work(WaitMark::Device, || assert_eq!(own(), "waits for a device"));
            assert_eq!(own(), "runs");
            let pending = || std::future::pending::<()>();
            tokio::select! {
                () = Marked(WaitMark::Timer, pending()) => {}
                () = Marked(WaitMark::Network, pending()) => {}
            }
        };
        let mut task = Box::pin(registry.register("marked", Box::pin(body)));
        assert!(!poll(&mut task));
        assert_eq!(registry.all()[0].state.text(), "network, timer, or another task");
        assert_eq!(TaskState::WAITING.text(), "another task");
        // Outside a task nothing is recorded.
        mark(WaitMark::Timer);
        assert!(CURRENT.take().is_none());
    }

    #[test]
    fn a_task_polled_inside_another_leaves_the_marks_of_both_apart() {
        let (registry, _) = registry();
        let mut inner = Box::pin(
            registry.register("inner", Box::pin(Marked(WaitMark::Network, Box::pin(std::future::pending())))),
        );
        let outer = async move {
            assert!(!poll(&mut inner));
            Marked(WaitMark::Timer, Box::pin(std::future::pending::<()>())).await;
        };
        let mut outer = Box::pin(registry.register("outer", Box::pin(outer)));
        assert!(!poll(&mut outer));
        let states: Vec<String> = registry.all().iter().map(|task| task.state.text()).collect();
        assert_eq!(states, ["network, or another task", "timer, or another task"]);
    }

    #[test]
    fn a_task_that_panics_is_removed() {
        let (registry, _) = registry();
        let mut task = Box::pin(registry.register("broken", Box::pin(async { panic!("broken") })));
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| poll(&mut task)));
        assert!(polled.is_err() && CURRENT.take().is_none());
        drop(task);
        assert_eq!(registry.all(), []);
    }
}
