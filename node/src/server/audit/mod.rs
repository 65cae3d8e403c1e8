//! The audit log: one JSON object per line for each audited action, in files that are rotated.
//!
//! ```text
//!   calls, negotiations ──▶ texts cut ─┬─ allowed, failed ──▶ queue ──▶ task ──▶ DIR/<server>.<number>.jsonl
//!                                      └─ denied, failed unproved ──▶ small queue ──▶ task
//!                                                                └──▶ DIR/<server>.denied.<number>.jsonl
//!   queue full: lost, counted; file full: next number, oldest file removed
//! ```
//!
//! - A call never waits for the log. With `audit_log_required` audited calls are rejected while it cannot be written.
//! - Denials need no right, and neither do calls that fail before a right is found. So any peer can cause as many as it
//!   likes. Invariant: they displace, delay and reject no other event, neither in a queue nor in a file.
//! - A write that fails is repeated until it succeeds; health warns, and fails with `audit_log_required`.
//! - Lines are ASCII: whatever a name contains cannot break a line, or move a terminal's cursor.
//! - The flags take effect at the start only, so that no user of SetFlag can stop the log.

mod event_writer;
mod line;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use engine::error::{Error, Result};
use engine::ids::Uuid;
use engine::sync::Mutex;

use self::event_writer::EventWriter;
use super::flags::Flags;
use super::health::{CheckResult, HealthBoard, HealthCheck};
use super::line_files::{LineFiles, LineFilesConfig};
use nyala_common::env::{Env, TaskHandle};
use nyala_common::security::audit::{AuditEvent, AuditOutcome, AuditSink};

/// Allowed and failed actions that wait for their task.
const ACTIONS_WAITING_MAX: usize = 10_000;
/// Denials that wait for theirs. One batch follows the other, so only a flood needs more.
const DENIALS_WAITING_MAX: usize = 1_000;
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
    required: bool,
    /// Allowed and failed actions.
    actions: Arc<EventWriter>,
    /// Denials, and failures before a right of the caller was found.
    denials: Arc<EventWriter>,
    tasks: Mutex<Vec<Box<dyn TaskHandle>>>,
}

impl AuditLog {
    /// Opens the log of a server and starts its tasks, if the flags ask for one. Fails if it cannot be written.
    pub(crate) async fn open(
        env: &Env,
        server: Uuid,
        flags: &Flags,
        checks: &HealthBoard,
    ) -> Result<Option<Arc<AuditLog>>> {
        let Some(config) = AuditConfig::of(flags) else { return Ok(None) };
        let open = |owner: String| LineFiles::open(env, &config.dir, owner, config.files);
        let open_both =
            || -> io::Result<_> { Ok((open(server.to_string())?, open(format!("{server}.denied"))?)) };
        let opened = env.run(open_both).await;
        let (of_actions, of_denials) = opened.map_err(|error| Error::io("open the audit log", &error))?;
        let log = Arc::new(AuditLog {
            env: env.clone(),
            required: config.required,
            actions: EventWriter::new(env, server, ACTIONS_WAITING_MAX),
            denials: EventWriter::new(env, server, DENIALS_WAITING_MAX),
            tasks: Mutex::default(),
        });
        let checked = log.clone();
        checks.register(move |checks| checks.push(checked.check()));
        let of_log = [
            env.spawn("audit log", log.actions.clone().run(of_actions)),
            env.spawn("audit log of denials", log.denials.clone().run(of_denials)),
        ];
        log.tasks.lock().extend(of_log);
        Ok(Some(log))
    }

    /// Waits until all events so far are durable, for some seconds at most.
    async fn flush(&self) {
        let durable = async {
            self.actions.flush().await;
            self.denials.flush().await;
        };
        if self.env.timeout(FLUSH_TIMEOUT, durable).await.is_none() {
            tracing::error!("the last audit events could not be written");
        }
    }

    /// Writes the last events and ends the tasks.
    pub(crate) async fn close(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        if tasks.is_empty() {
            return;
        }
        self.flush().await;
        self.env.end(&tasks).await;
    }

    fn check(&self) -> HealthCheck {
        let (actions, denials) = (self.actions.summary(), self.denials.summary());
        let (written, lost) = (actions.written + denials.written, actions.lost);
        let unwritten = |why: &str, waiting: usize, lost: u64| {
            format!("cannot be written ({why}); {waiting} events wait, {lost} are lost")
        };
        let result = match (&actions.fault, &denials.fault) {
            (Some(why), _) => {
                let text = unwritten(why, actions.waiting, lost);
                if self.required { CheckResult::Failed(text) } else { CheckResult::Warning(text) }
            }
            (None, Some(why)) => {
                let text = unwritten(why, denials.waiting, denials.lost);
                CheckResult::Warning(format!("denials: {text}"))
            }
            (None, None) if lost > 0 => {
                CheckResult::Warning(format!("{written} events written, {lost} lost"))
            }
            // Any peer can bring this about, so it is no warning.
            (None, None) if denials.lost > 0 => {
                CheckResult::Ok(format!("{written} events written, {} denials lost", denials.lost))
            }
            (None, None) => CheckResult::Ok(format!("{written} events written")),
        };
        HealthCheck::new("audit log", result)
    }
}

impl AuditSink for AuditLog {
    fn record(&self, event: AuditEvent) {
        let event = line::with_short_texts(event);
        match event.outcome {
            AuditOutcome::Denied(_) | AuditOutcome::FailedUnproved(_) => self.denials.record(event),
            AuditOutcome::Allowed | AuditOutcome::Failed(_) => self.actions.record(event),
        }
    }

    fn refusal(&self) -> Option<String> {
        let why = self.actions.obstacle().filter(|_| self.required)?;
        Some(format!("the audit log cannot be written ({why}); retry when the operator has made space"))
    }
}

#[cfg(test)]
mod tests;
