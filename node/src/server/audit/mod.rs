//! The audit log: one JSON object per line for each audited action, in files that are rotated.
//!
//! ```text
//!   calls, negotiations ──▶ queue (bounded) ──▶ task: lines ──▶ DIR/<server>.<number>.jsonl, synced
//!                              └── full: lost, counted                └── full: next number, oldest file removed
//! ```
//!
//! - A call never waits for the log. With `audit_log_required` audited calls are rejected while it cannot be written.
//! - A write that fails is repeated until it succeeds; health warns, and fails with `audit_log_required`.
//! - Lines are ASCII: whatever a name contains cannot break a line, or move a terminal's cursor.
//! - The flags take effect at the start only, so that no user of SetFlag can stop the log.

mod line;

use engine::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use engine::error::{Error, Result};
use engine::ids::Uuid;
use tokio::sync::Notify;

use super::flags::Flags;
use super::health::{CheckResult, HealthBoard, HealthCheck};
use super::line_files::{LineFiles, LineFilesConfig};
use nyala_common::env::{Env, TaskHandle};
use nyala_common::security::audit::{AuditEvent, AuditSink};

/// Events that wait for the task. With one more, the newest is lost.
const WAITING_MAX: usize = 10_000;
/// Events in one write.
const BATCH_MAX: usize = 256;
/// Wait after a failed write.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for the last events when the server stops.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Configuration of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AuditConfig {
    dir: String,
    files: LineFilesConfig,
    /// True if audited calls are rejected while the log cannot be written.
    required: bool,
}

impl AuditConfig {
    /// Returns the configuration in the flags; `None` without a directory.
    fn of(flags: &Flags) -> Option<AuditConfig> {
        let dir = flags.text("audit_log_dir");
        (!dir.is_empty()).then(|| AuditConfig {
            dir,
            files: LineFilesConfig {
                bytes_max: flags.number("audit_log_file_size_mb") << 20,
                files_max: usize::try_from(flags.number("audit_log_files_max")).unwrap_or(usize::MAX),
                sync: true,
            },
            required: flags.bool("audit_log_required"),
        })
    }
}

/// The audit log of one server.
pub(crate) struct AuditLog {
    env: Env,
    server: Uuid,
    required: bool,
    state: Mutex<AuditState>,
    /// Notified when events wait.
    waiting: Notify,
    /// Notified when no event waits any more.
    drained: Notify,
    task: Mutex<Option<Box<dyn TaskHandle>>>,
}

#[derive(Default)]
struct AuditState {
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

impl AuditLog {
    /// Opens the log of a server and starts its task, if the flags ask for one. Fails if it cannot be written.
    pub(crate) async fn open(
        env: &Env,
        server: Uuid,
        flags: &Flags,
        checks: &HealthBoard,
    ) -> Result<Option<Arc<AuditLog>>> {
        let Some(config) = AuditConfig::of(flags) else { return Ok(None) };
        let open = || LineFiles::open(env, &config.dir, server.to_string(), config.files);
        let files = env.run(open).await.map_err(|error| Error::io("open the audit log", &error))?;
        let log = Arc::new(AuditLog {
            env: env.clone(),
            server,
            required: config.required,
            state: Mutex::default(),
            waiting: Notify::new(),
            drained: Notify::new(),
            task: Mutex::default(),
        });
        let checked = log.clone();
        checks.register(move |checks| checks.push(checked.check()));
        let task = env.spawn("audit log", log.clone().write_all(files));
        *log.task.lock() = Some(task);
        Ok(Some(log))
    }

    /// Waits until all events so far are durable, for some seconds at most.
    async fn flush(&self) {
        let drained = async {
            loop {
                let drained = self.drained.notified();
                {
                    let state = self.lock();
                    if state.queue.is_empty() && state.writing == 0 {
                        return;
                    }
                }
                drained.await;
            }
        };
        if self.env.timeout(FLUSH_TIMEOUT, drained).await.is_none() {
            tracing::error!("the last audit events could not be written");
        }
    }

    /// Writes the last events and ends the task.
    pub(crate) async fn close(&self) {
        let Some(task) = self.task.lock().take() else { return };
        self.flush().await;
        self.env.end(&[task]).await;
    }

    async fn write_all(self: Arc<Self>, mut files: LineFiles) {
        loop {
            let batch = self.next_batch().await;
            while let Err(error) = self.env.run(|| files.append(batch.as_bytes())).await {
                self.failed(&error.to_string());
                self.env.sleep(RETRY_INTERVAL).await;
            }
            self.succeeded();
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

    fn check(&self) -> HealthCheck {
        let state = self.lock();
        let waiting = state.queue.len() + state.writing;
        let (written, lost) = (state.written, state.lost_total);
        let result = match &state.fault {
            Some(why) => {
                let text = format!("cannot be written ({why}); {waiting} events wait, {lost} are lost");
                if self.required { CheckResult::Failed(text) } else { CheckResult::Warning(text) }
            }
            None if lost > 0 => CheckResult::Warning(format!("{written} events written, {lost} lost")),
            None => CheckResult::Ok(format!("{written} events written")),
        };
        HealthCheck::new("audit log", result)
    }

    fn lock(&self) -> MutexGuard<'_, AuditState> {
        self.state.lock()
    }
}

impl AuditSink for AuditLog {
    fn record(&self, event: AuditEvent) {
        let micros = self.env.now().wall.micros;
        let mut state = self.lock();
        if state.queue.len() < WAITING_MAX {
            state.queue.push_back((micros, event));
        } else {
            state.lost += 1;
            state.lost_total += 1;
        }
        drop(state);
        self.waiting.notify_one();
    }

    fn refusal(&self) -> Option<String> {
        let state = self.lock();
        let full = state.queue.len() >= WAITING_MAX;
        let why = state.fault.clone().or_else(|| full.then(|| "too many events wait".to_string()));
        let why = why.filter(|_| self.required)?;
        Some(format!("the audit log cannot be written ({why}); retry when the operator has made space"))
    }
}

#[cfg(test)]
mod tests;
