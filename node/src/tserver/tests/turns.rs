//! Calls that end on the task of their connection, and calls that take one of their own.

use std::sync::mpsc;

use super::*;
use nyala_common::env::testing::CountedTasks;

/// A server that counts the tasks of its calls and runs no maintenance.
pub(super) async fn counted(change: fn(&mut TserverConfig)) -> (Fixture, Arc<CountedTasks>) {
    let mut env = OsEnv::new(&OsOptions::default()).expect("the real world");
    let tasks = CountedTasks::install(&mut env, "rpc call");
    let fixture = Fixture::in_env(env, change).await;
    fixture.create_tablet().await;
    (fixture, tasks)
}

fn without_sync(config: &mut TserverConfig) {
    config.maintenance_interval_ms = 1 << 40;
    config.log_sync = false;
}

/// Writes a row; returns the number of tasks that calls took for it.
async fn tasks_of_write(fixture: &Fixture, tasks: &CountedTasks, key: i32, text: &str) -> u64 {
    let before = tasks.started();
    assert_eq!(fixture.write(&[insert(key, text)]).await.per_row_errors, []);
    tasks.started() - before
}

/// Writes rows from `key` on until one takes no task: the loop may be in a turn of its own before. Returns the next
/// key.
async fn write_without_task(fixture: &Fixture, tasks: &CountedTasks, key: i32) -> i32 {
    for key in key..key + 100 {
        if tasks_of_write(fixture, tasks, key, "small").await == 0 {
            return key + 1;
        }
    }
    panic!("100 writes took tasks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_write_to_an_idle_replica_takes_no_task() {
    let (mut fixture, tasks) = counted(without_sync).await;
    let next = write_without_task(&fixture, &tasks, 0).await;
    assert_eq!(tasks_of_write(&fixture, &tasks, next, &"x".repeat(9 << 10)).await, 1, "it is large");
    let written: Vec<i32> = (0..=next).collect();
    assert_eq!(fixture.keys(new_scan(&["key"])).await, written);
    fixture.restart().await;
    assert_eq!(fixture.keys(new_scan(&["key"])).await, written);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_waits_for_a_sync_takes_a_task() {
    let (fixture, tasks) = counted(|config| config.maintenance_interval_ms = 1 << 40).await;
    assert_eq!(tasks_of_write(&fixture, &tasks, 1, "small").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::disallowed_methods, reason = "tasks of the test, not of the node")]
async fn a_write_during_a_turn_waits_for_it_on_a_task() {
    let (fixture, tasks) = counted(without_sync).await;
    let replica =
        fixture.running.server.tablets.get(TABLET).expect("it was made").running().expect("it runs");
    let (begun_sender, begun) = mpsc::channel();
    let (end_sender, end) = mpsc::channel::<()>();
    let turn = tokio::spawn({
        let replica = replica.clone();
        async move {
            let hold = move |_: &mut _, _: &mut _| {
                begun_sender.send(()).expect("the test waits");
                end.recv().expect("the test ends it");
            };
            replica.run_on_loop(hold).await
        }
    });
    tokio::task::block_in_place(|| begun.recv()).expect("the turn begins");
    let before = tasks.started();
    let rows = [insert(1, "small")];
    let (written, ()) = tokio::join!(fixture.write(&rows), async {
        while tasks.started() == before {
            tokio::task::yield_now().await;
        }
        end_sender.send(()).expect("the turn waits");
    });
    assert_eq!(written.per_row_errors, []);
    turn.await.expect("it ends").expect("the replica runs");
    write_without_task(&fixture, &tasks, 2).await;
}
