//! Commit wait at a server whose clock is set back: timestamps stay ahead of it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use engine::time::{ClockReading, Instant};
use nyala_common::env::{BoxFuture, Clock};

const ERROR_MICROS: u64 = 3_000_000;
const HOUR_MICROS: u64 = 3_600_000_000;

/// A clock with a large error bound, whose wall time is behind by as much as the test says.
struct SetBackClock {
    inner: Arc<dyn Clock>,
    behind_micros: AtomicU64,
}

impl SetBackClock {
    fn set_back(&self, micros: u64) {
        self.behind_micros.store(micros, Ordering::Relaxed);
    }
}

impl Clock for SetBackClock {
    fn now(&self) -> ClockReading {
        let mut now = self.inner.now();
        now.wall.micros -= self.behind_micros.load(Ordering::Relaxed);
        now.wall.error_micros = ERROR_MICROS;
        now
    }

    fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()> {
        self.inner.sleep_until(until)
    }
}

/// Starts a server with a tablet, and returns its clock.
async fn with_clock() -> (Group, Arc<SetBackClock>) {
    let mut group = Group::start(1).await;
    group.stop(0).await;
    let clock =
        Arc::new(SetBackClock { inner: group.envs[0].clock.clone(), behind_micros: AtomicU64::new(0) });
    group.envs[0].clock = clock.clone();
    group.run(0).await;
    group.create(&[0]).await;
    group.leader(&[0]).await;
    (group, clock)
}

/// Writes a row with commit wait; its key is the number of the request.
async fn commit_wait(group: &Group, number: i32) -> Result<WriteResponsePb, RpcError> {
    let mut request = write_request(&schema(), &[insert(number, "a")]);
    request.external_consistency_mode = Some(ExternalConsistencyMode::CommitWait as i32);
    let options = CallOptions { request_id: Some(request_id(number.into())), ..CallOptions::default() };
    let called = group.try_call(0, CLIENT_SERVICE, "Write", &request, options).await;
    called.map(|response| response.message)
}

/// Returns the number of calls that have not ended.
fn running_calls(group: &Group) -> usize {
    group.env.tasks.all().iter().filter(|task| task.name == "rpc call").count()
}

#[tokio::test(start_paused = true)]
async fn commit_waits_end_with_their_calls_after_the_clock_was_set_back() {
    let (group, clock) = with_clock().await;
    let set_back = async {
        group.env.sleep(Duration::from_secs(1)).await;
        assert_eq!(running_calls(&group), 1, "the write has begun its wait");
        clock.set_back(HOUR_MICROS);
    };
    let (late, ()) = tokio::join!(commit_wait(&group, 1), set_back);
    assert!(!late.is_ok_and(|response| response.error.is_none()), "its timestamp is not past");
    for number in [2, 2, 4] {
        let refused = commit_wait(&group, number).await.expect_err("the wait would take an hour");
        assert!(refused.is_busy(), "{refused}");
    }
    let repeated = commit_wait(&group, 1).await;
    assert!(!repeated.is_ok_and(|response| response.error.is_none()), "nor is it for a retry");
    group.until("the end of all calls", |group| running_calls(group) == 0).await;
    assert_eq!(group.write(0, &[insert(3, "a")]).await.error, None, "it has no commit wait");
    clock.set_back(0);
    let retried = commit_wait(&group, 1).await.expect("a reply");
    assert_eq!((retried.error, retried.per_row_errors), (None, vec![]), "the first reply");
    assert_eq!(group.keys(0, new_scan(&["key"])).await, [1, 3]);
}
