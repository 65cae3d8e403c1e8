//! Tasks that are spawned when they are first woken.
//!
//! ```text
//!   begin ─▶ first step on the caller's task ─┬─ ready ─▶ no task
//!                                             └─ waits ─▶ kept by its waker ── woken ─▶ spawned by who wakes it
//! ```
//!
//! A task that is spawned at once is polled at once, in vain, and takes the place of the next task of this thread: the
//! one that was woken by the first step moves to another thread, with a system call and a switch.

#![allow(clippy::disallowed_methods, reason = "this file is the real world")]

use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use engine::sync::Mutex;
use tokio::runtime::Handle;

use super::BoxFuture;
use super::task_registry::TaskRegistry;

/// Waker of a future that has no task yet, and its place until then.
struct LateTask {
    runtime: Handle,
    state: Mutex<LateState>,
}

#[derive(Default)]
struct LateState {
    is_woken: bool,
    waiting: Option<BoxFuture<'static, ()>>,
}

impl Wake for LateTask {
    fn wake(self: Arc<Self>) {
        let waiting = {
            let mut state = self.state.lock();
            state.is_woken = true;
            state.waiting.take()
        };
        if let Some(future) = waiting {
            self.runtime.spawn(future);
        }
    }
}

impl LateTask {
    /// Keeps a future until it is woken, if it has not been.
    fn keep(&self, future: BoxFuture<'static, ()>) {
        let mut state = self.state.lock();
        if !state.is_woken {
            state.waiting = Some(future);
            return;
        }
        drop(state);
        self.runtime.spawn(future);
    }
}

/// Runs the first step of `future` here. If it waits, it is registered, and spawned when it is woken.
pub(super) fn begin(registry: &Arc<TaskRegistry>, name: &'static str, mut future: BoxFuture<'static, ()>) {
    let task = Arc::new(LateTask { runtime: Handle::current(), state: Mutex::default() });
    let waker = Waker::from(task.clone());
    if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        task.keep(Box::pin(registry.register(name, future)));
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use tokio::sync::oneshot;

    use super::*;
    use crate::env::os::{OsEnv, OsOptions};
    use engine::time::Instant;

    fn registry() -> Arc<TaskRegistry> {
        TaskRegistry::new(|| Instant(1))
    }

    #[tokio::test]
    async fn a_future_that_waits_is_registered_and_spawned_when_it_is_woken() {
        let (registry, (wake, woken), (done, is_done)) = (registry(), oneshot::channel(), oneshot::channel());
        let future = async move { done.send(woken.await).expect("the test waits") };
        begin(&registry, "late", Box::pin(future));
        assert_eq!(registry.all().len(), 1);
        tokio::task::yield_now().await;
        assert_eq!(registry.all()[0].polls, 0, "it has no task yet");
        wake.send(7).expect("it waits");
        assert_eq!(is_done.await, Ok(Ok(7)));
        tokio::task::yield_now().await;
        assert_eq!(registry.all().len(), 0);
    }

    #[tokio::test]
    async fn a_future_that_is_woken_within_its_first_step_continues() {
        let (done, is_done) = oneshot::channel();
        let mut is_second = false;
        let wakes_itself = std::future::poll_fn(move |context| {
            context.waker().wake_by_ref();
            if std::mem::replace(&mut is_second, true) { Poll::Ready(()) } else { Poll::Pending }
        });
        let future = async move {
            wakes_itself.await;
            done.send(()).expect("the test waits");
        };
        begin(&registry(), "late", Box::pin(future));
        assert_eq!(is_done.await, Ok(()));
    }

    #[tokio::test]
    async fn a_future_that_ends_in_its_first_step_gets_no_task() {
        let env = OsEnv::new(&OsOptions::default()).expect("there is entropy");
        let (done, mut is_done) = oneshot::channel();
        env.begin("short", async move { done.send(()).expect("the test waits") });
        assert_eq!(is_done.try_recv(), Ok(()));
        assert!(env.tasks.all().is_empty());
    }
}
