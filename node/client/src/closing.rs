//! Scanners that a program leaves open: they are closed on their servers before the program ends, also after Ctrl-C.
//!
//! A dropped scan closes its scanner in a task of its own, which the end of the runtime would cut off.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nyala_common::env::{BoxFuture, Env, TaskHandle, Tasks};
use tokio::sync::Notify;

use super::scan_close::CLOSE_TASK;

/// Longest wait for servers to close scanners; one that is not reached drops them when they expire.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// Tasks of a program, with those counted that close scanners.
struct ClosingTasks {
    tasks: Arc<dyn Tasks>,
    pending: Arc<PendingCloses>,
}

/// Scanners that are being closed.
#[derive(Default)]
pub struct PendingCloses {
    count: AtomicUsize,
    /// Notified when one is closed.
    closed: Notify,
}

/// Counts one scanner until it is closed or its task is aborted.
struct CloseGuard(Arc<PendingCloses>);

impl Drop for CloseGuard {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.closed.notify_waiters();
    }
}

/// Returns the environment for a program, and the scanners that it is closing.
pub fn watch(env: &Env) -> (Env, Arc<PendingCloses>) {
    let pending = Arc::new(PendingCloses::default());
    let tasks = Arc::new(ClosingTasks { tasks: env.tasks.clone(), pending: pending.clone() });
    (Env { tasks, ..env.clone() }, pending)
}

impl PendingCloses {
    /// Waits until all scanners dropped so far are closed.
    pub async fn wait(&self, env: &Env) {
        let all_closed = async {
            loop {
                let closed = self.closed.notified();
                tokio::pin!(closed);
                closed.as_mut().enable();
                if self.count.load(Ordering::Acquire) == 0 {
                    return;
                }
                closed.await;
            }
        };
        env.timeout(CLOSE_TIME, all_closed).await;
    }
}

impl Tasks for ClosingTasks {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn TaskHandle> {
        if name != CLOSE_TASK {
            return self.tasks.spawn(name, future);
        }
        self.pending.count.fetch_add(1, Ordering::AcqRel);
        let guard = CloseGuard(self.pending.clone());
        let counted = async move {
            future.await;
            drop(guard);
        };
        self.tasks.spawn(name, Box::pin(counted))
    }

    fn run<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()> {
        self.tasks.run(work)
    }

    fn run_brief<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()> {
        self.tasks.run_brief(work)
    }

    fn workers(&self) -> Option<nyala_common::env::WorkerStats> {
        self.tasks.workers()
    }

    fn all(&self) -> Vec<nyala_common::env::TaskStats> {
        self.tasks.all()
    }
}
