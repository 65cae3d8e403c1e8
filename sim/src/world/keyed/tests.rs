//! The executor alone: order, ends and names of tasks.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::{Poll, Waker};

use engine::sync::Mutex;
use nyala_common::env::TaskHandle;

use super::executor::{HostSpawner, TaskExecutor};
use super::order::TaskOrder;
use crate::world::executor_world::FirstTask;
use crate::world::virtual_env::Spawn;

const HOST: usize = 0;
const ROUNDS: usize = 20;

/// Names of tasks in the order of their polls.
type Polls = Arc<Mutex<Vec<&'static str>>>;

/// An executor of one host and a spawner of its tasks.
fn executor(seed: u64, order: TaskOrder) -> (TaskExecutor, HostSpawner) {
    let mut tasks = TaskExecutor::new(seed);
    tasks.ready.set_order(order);
    let first: FirstTask = Arc::new(|| Box::pin(pending()));
    tasks.start(HOST, "t0", first);
    tasks.run_ready();
    let spawner = HostSpawner { ready: tasks.ready.clone(), host: HOST };
    (tasks, spawner)
}

/// Spawns a task that notes each poll and yields, `ROUNDS` times.
fn spawn_yielding(spawner: &HostSpawner, name: &'static str, polls: &Polls) -> Box<dyn TaskHandle> {
    let (polls, mut left) = (polls.clone(), ROUNDS);
    spawner.spawn(
        name,
        Box::pin(poll_fn(move |cx| {
            polls.lock().push(name);
            left -= 1;
            if left == 0 {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })),
    )
}

fn polls_of(seed: u64, order: TaskOrder, names: &[&'static str]) -> Vec<&'static str> {
    let ((mut tasks, spawner), polls) = (executor(seed, order), Polls::default());
    names.iter().for_each(|name| drop(spawn_yielding(&spawner, name, &polls)));
    tasks.run_ready();
    let polls = polls.lock();
    polls.clone()
}

const ORDERS: [TaskOrder; 3] = [TaskOrder::Uniform, TaskOrder::Held { wakes: 8 }, TaskOrder::RoundRobin];

#[test]
fn a_missing_task_leaves_the_order_of_the_others() {
    for order in ORDERS {
        for seed in 0..50 {
            let all = polls_of(seed, order, &["a", "b", "c", "d"]);
            let others: Vec<&str> = all.iter().copied().filter(|name| *name != "b").collect();
            assert_eq!(polls_of(seed, order, &["a", "c", "d"]), others, "seed {seed}, {order:?}");
            assert_eq!(all.len(), 4 * ROUNDS);
        }
    }
}

#[test]
fn the_first_of_two_ready_tasks_is_drawn_evenly() {
    let first = |seed| polls_of(seed, TaskOrder::Uniform, &["a", "b"])[0];
    let count = (0..1_000).filter(|seed| first(*seed) == "a").count();
    assert!((430..570).contains(&count), "{count}");
}

#[test]
fn round_robin_takes_turns() {
    let polls = polls_of(1, TaskOrder::RoundRobin, &["a", "b"]);
    assert!(polls.chunks(2).all(|turn| turn == ["a", "b"]), "{polls:?}");
}

#[test]
fn tasks_of_one_name_are_told_apart() {
    let polls: Vec<Vec<&str>> =
        (0..20).map(|seed| polls_of(seed, TaskOrder::Uniform, &["a", "a", "b"])).collect();
    assert!(polls.iter().all(|polls| polls.iter().filter(|name| **name == "a").count() == 2 * ROUNDS));
    assert!(polls.iter().any(|one| *one != polls[0]), "seeds have orders of their own");
}

/// Spawns a task that stores its waker and counts its polls, and never ends.
fn spawn_waiting(spawner: &HostSpawner, state: &Arc<Mutex<(usize, Option<Waker>)>>) -> Box<dyn TaskHandle> {
    let state = state.clone();
    spawner.spawn(
        "waiting",
        Box::pin(poll_fn(move |cx| {
            let mut state = state.lock();
            state.0 += 1;
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        })),
    )
}

#[test]
fn wakes_of_a_ready_task_count_once_and_those_of_a_dead_one_do_nothing() {
    let (mut tasks, spawner) = executor(1, TaskOrder::Uniform);
    let state = Arc::default();
    let handle = spawn_waiting(&spawner, &state);
    tasks.run_ready();
    let waker = state.lock().1.clone().expect("it was polled");
    waker.wake_by_ref();
    waker.wake_by_ref();
    tasks.run_ready();
    assert_eq!(state.lock().0, 2);
    handle.abort();
    assert!(!handle.is_finished(), "it ends when it would run");
    tasks.run_ready();
    assert!(handle.is_finished());
    waker.wake_by_ref();
    tasks.run_ready();
    assert_eq!(state.lock().0, 2);
    // Another task has its slot; a wake of the dead one is not its.
    let other = Arc::default();
    spawn_waiting(&spawner, &other);
    tasks.run_ready();
    waker.wake();
    tasks.run_ready();
    assert_eq!(other.lock().0, 1);
}

#[test]
fn a_task_that_wakes_itself_during_its_poll_runs_again() {
    assert_eq!(polls_of(3, TaskOrder::Uniform, &["a"]).len(), ROUNDS);
}

#[test]
fn a_paused_host_runs_nothing_until_it_is_resumed() {
    let ((mut tasks, spawner), polls) = (executor(1, TaskOrder::Uniform), Polls::default());
    tasks.pause(HOST);
    let names = ["a", "b", "c"];
    names.iter().for_each(|name| drop(spawn_yielding(&spawner, name, &polls)));
    tasks.run_ready();
    assert!(polls.lock().is_empty());
    tasks.resume(HOST);
    tasks.run_ready();
    assert_eq!(*polls.lock(), polls_of(1, TaskOrder::Uniform, &names), "priorities are those of the wakes");
}

/// Spawns another task when it is dropped.
struct SpawnsAsItGoes(Arc<HostSpawner>, Polls);

impl Drop for SpawnsAsItGoes {
    fn drop(&mut self) {
        self.1.lock().push("dropped");
        assert!(spawn_yielding(&self.0, "late", &self.1).is_finished());
    }
}

#[test]
fn a_killed_host_drops_its_tasks_and_spawns_none_until_it_restarts() {
    let ((mut tasks, spawner), polls) = (executor(1, TaskOrder::Uniform), Polls::default());
    let spawner = Arc::new(spawner);
    let guard = SpawnsAsItGoes(spawner.clone(), polls.clone());
    let handle = spawner.spawn(
        "holder",
        Box::pin(async move {
            pending::<()>().await;
            drop(guard);
        }),
    );
    tasks.pause(HOST);
    tasks.kill(HOST);
    assert!(handle.is_finished());
    assert_eq!(*polls.lock(), ["dropped"]);
    tasks.restart(HOST);
    drop(spawn_yielding(&spawner, "a", &polls));
    tasks.run_ready();
    assert_eq!(polls.lock().len(), 1 + ROUNDS, "a pause ends with its process");
}
