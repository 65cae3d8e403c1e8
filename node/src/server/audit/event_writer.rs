//! Events on their way to the files of their kind: a bounded queue, and the task that writes them.
//!
//! - The task repeats a write until it succeeds.
//! - Events that find the queue full are lost, and a line in the files has their number.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use engine::ids::Uuid;
use engine::sync::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::line;
use crate::server::line_files::LineFiles;
use nyala_common::env::Env;
use nyala_common::security::audit::AuditEvent;

/// Events in one write.
pub(super) const BATCH_MAX: usize = 256;
/// Wait after a failed write.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Queue and writer of one kind of events.
pub(super) struct EventWriter {
    env: Env,
    server: Uuid,
    /// Events that wait. With one more, the newest is lost.
    waiting_max: usize,
    state: Mutex<WriterState>,
    /// Notified when events wait.
    waiting: Notify,
    /// Notified when no event waits any more.
    drained: Notify,
}

#[derive(Default)]
struct WriterState {
    /// Events with their time, in microseconds since 1970.
    queue: VecDeque<(u64, AuditEvent)>,
    /// Events taken by the task and not durable yet.
    writing: usize,
    /// Events that found the queue full, and are not reported by a line yet.
    lost: u64,
    lost_total: u64,
    written: u64,
    /// Reason that the last write failed.
    fault: Option<String>,
}

/// Numbers of events since the start, and the reason that the last write failed.
pub(super) struct WriterSummary {
    pub(super) written: u64,
    pub(super) waiting: usize,
    pub(super) lost: u64,
    pub(super) fault: Option<String>,
}

impl EventWriter {
    pub(super) fn new(env: &Env, server: Uuid, waiting_max: usize) -> Arc<EventWriter> {
        Arc::new(EventWriter {
            env: env.clone(),
            server,
            waiting_max,
            state: Mutex::default(),
            waiting: Notify::new(),
            drained: Notify::new(),
        })
    }

    /// Takes an event, whose texts have a limited length. Never waits.
    pub(super) fn record(&self, event: AuditEvent) {
        let micros = self.env.now().wall.micros;
        let mut state = self.lock();
        if state.queue.len() < self.waiting_max {
            state.queue.push_back((micros, event));
        } else {
            state.lost += 1;
            state.lost_total += 1;
        }
        drop(state);
        self.waiting.notify_one();
    }

    /// Writes events as long as the server runs.
    pub(super) async fn run(self: Arc<EventWriter>, mut files: LineFiles) {
        loop {
            let batch = self.next_batch().await;
            while let Err(error) = self.env.run(|| files.append(batch.as_bytes())).await {
                self.failed(&error.to_string());
                self.env.sleep(RETRY_INTERVAL).await;
            }
            self.succeeded();
        }
    }

    /// Waits until all events so far are durable.
    pub(super) async fn flush(&self) {
        loop {
            let drained = self.drained.notified();
            {
                let state = self.lock();
                if state.queue.is_empty() && state.lost == 0 && state.writing == 0 {
                    return;
                }
            }
            drained.await;
        }
    }

    /// Returns the reason that an event of now may not become durable, if there is one.
    pub(super) fn obstacle(&self) -> Option<String> {
        let state = self.lock();
        let full = state.queue.len() >= self.waiting_max;
        state.fault.clone().or_else(|| full.then(|| "too many events wait".to_string()))
    }

    pub(super) fn summary(&self) -> WriterSummary {
        let state = self.lock();
        WriterSummary {
            written: state.written,
            waiting: state.queue.len() + state.writing,
            lost: state.lost_total,
            fault: state.fault.clone(),
        }
    }

    /// Returns the next lines; waits for events.
    async fn next_batch(&self) -> String {
        loop {
            let waiting = self.waiting.notified();
            if let Some(batch) = self.take_batch() {
                return batch;
            }
            waiting.await;
        }
    }

    fn take_batch(&self) -> Option<String> {
        let mut state = self.lock();
        if state.queue.is_empty() && state.lost == 0 {
            return None;
        }
        let count = state.queue.len().min(BATCH_MAX);
        let mut lines = String::new();
        for (micros, event) in state.queue.drain(..count) {
            line::push_event(&mut lines, self.server, micros, &event);
        }
        state.writing = count;
        // Order: events are lost while the queue is full, so after those that were in it.
        if state.queue.is_empty() && state.lost > 0 {
            let lost = std::mem::take(&mut state.lost);
            line::push_lost(&mut lines, self.server, self.env.now().wall.micros, lost);
        }
        Some(lines)
    }

    fn failed(&self, why: &str) {
        let mut state = self.lock();
        if state.fault.is_none() {
            tracing::error!(why, "the audit log cannot be written; retrying");
        }
        state.fault = Some(why.to_string());
    }

    fn succeeded(&self) {
        let mut state = self.lock();
        if state.fault.take().is_some() {
            tracing::info!("the audit log can be written again");
        }
        state.written += std::mem::take(&mut state.writing) as u64;
        if state.queue.is_empty() {
            self.drained.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock()
    }
}
