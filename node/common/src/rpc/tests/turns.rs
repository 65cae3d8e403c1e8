//! Calls that begin on the task of their connection.

use super::*;
use crate::env::testing::CountedTasks;
use crate::rpc::dispatch::TURN_CALLS_MAX;

async fn counted() -> (World, Arc<CountedTasks>) {
    let mut env = mem_net::env();
    let tasks = CountedTasks::install(&mut env, "rpc call");
    (World::over(env, RpcConfig::default()).await, tasks)
}

/// Sends one call; returns its reply and the number of tasks that calls have taken so far.
async fn taken(raw: &mut Raw, tasks: &CountedTasks, call_id: i32, method: &str) -> (String, u64) {
    raw.call(call_id, method, "text").await;
    let reply = raw.reply().await.expect("a reply");
    (reply, tasks.started())
}

#[tokio::test(start_paused = true)]
async fn a_call_takes_a_task_if_it_waits_or_leaves_or_may_not_begin() {
    let (world, tasks) = counted().await;
    let mut raw = world.raw().await;
    assert_eq!(taken(&mut raw, &tasks, 0, "Echo").await, ("0: ok text".to_string(), 0));
    let refused = "1: FATAL_UNAUTHORIZED not for root".to_string();
    assert_eq!(taken(&mut raw, &tasks, 1, "Forbidden").await, (refused, 0));
    assert_eq!(taken(&mut raw, &tasks, 2, "Sidecars").await, ("2: ok text".to_string(), 1));
    assert_eq!(taken(&mut raw, &tasks, 3, "WhoAmI").await.1, 2);
    world.echo.gate.open(1);
    assert_eq!(taken(&mut raw, &tasks, 4, "Hold").await, ("4: ok text".to_string(), 2), "its gate is open");
    raw.call(5, "Hold", "text").await;
    world.settle().await;
    assert_eq!(tasks.started(), 3, "it waits");
    assert_eq!(taken(&mut raw, &tasks, 6, "Echo").await, ("6: ok text".to_string(), 3));
    world.echo.gate.open(1);
    assert_eq!(raw.reply().await.as_deref(), Some("5: ok text"));
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_a_turn_take_tasks() {
    let (world, tasks) = counted().await;
    let mut raw = world.raw().await;
    let beyond = 3;
    for turn in 1..=2 {
        let ids = 0..(TURN_CALLS_MAX + beyond) as i32;
        let calls: Vec<u8> = ids.clone().flat_map(|id| call_bytes(id, "Echo", "text")).collect();
        raw.write(&calls).await;
        for _ in ids {
            raw.reply().await.expect("a reply");
        }
        assert_eq!(tasks.started(), (turn * beyond) as u64);
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_request_takes_a_task() {
    let (world, tasks) = counted().await;
    let mut raw = world.raw().await;
    raw.call(0, "Echo", &"x".repeat(9 << 10)).await;
    raw.reply().await.expect("a reply");
    assert_eq!(tasks.started(), 1);
}
