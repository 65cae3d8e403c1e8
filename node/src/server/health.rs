//! Health of a server, as three questions: is it alive, is it ready for work, does it answer.
//!
//! ```text
//!   /livez    restart it?     200 while its tasks run
//!   /readyz   send it work?   200 unless a check fails; warnings fail it with ?strict=1
//!   /healthz  does it answer? 200 once it has started, as Kudu's
//! ```

use engine::sync::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::time::Instant;
use nyala_common::env::Env;

/// Result of one check, with a line for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckResult {
    Ok(String),
    /// The server works, and an operator should look.
    Warning(String),
    /// The server should get no work.
    Failed(String),
}

/// A named check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    pub name: &'static str,
    pub result: CheckResult,
}

impl HealthCheck {
    pub fn new(name: &'static str, result: CheckResult) -> HealthCheck {
        HealthCheck { name, result }
    }

    /// Returns the word for the result and its text.
    pub fn parts(&self) -> (&'static str, &str) {
        match &self.result {
            CheckResult::Ok(text) => ("ok", text),
            CheckResult::Warning(text) => ("warning", text),
            CheckResult::Failed(text) => ("failed", text),
        }
    }

    fn passes(&self, strict: bool) -> bool {
        match self.result {
            CheckResult::Ok(_) => true,
            CheckResult::Warning(_) => !strict,
            CheckResult::Failed(_) => false,
        }
    }
}

type CheckSource = Box<dyn Fn(&mut Vec<HealthCheck>) + Send + Sync>;

/// Sources of checks, and the last sign of life.
#[derive(Default)]
pub struct HealthBoard {
    sources: Mutex<Vec<CheckSource>>,
    /// Monotonic nanoseconds.
    beat: AtomicU64,
}

/// Interval of the signs of life, and their age above which the server counts as hanging.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
const BEAT_AGE_MAX: Duration = Duration::from_secs(10);

impl HealthBoard {
    fn sources(&self) -> MutexGuard<'_, Vec<CheckSource>> {
        self.sources.lock()
    }

    /// Adds a source of checks.
    pub fn register(&self, source: impl Fn(&mut Vec<HealthCheck>) + Send + Sync + 'static) {
        self.sources().push(Box::new(source));
    }

    /// Runs all checks, in the order of registration.
    pub fn checks(&self) -> Vec<HealthCheck> {
        let mut checks = Vec::new();
        self.sources().iter().for_each(|source| source(&mut checks));
        checks
    }

    /// Returns true if no check fails.
    pub fn is_ready(checks: &[HealthCheck], strict: bool) -> bool {
        checks.iter().all(|check| check.passes(strict))
    }

    /// Gives signs of life as long as the server's tasks run.
    pub async fn give_signs_of_life(&self, env: &Env) {
        loop {
            self.beat.store(env.now().mono.0, Ordering::Relaxed);
            env.sleep(BEAT_INTERVAL).await;
        }
    }

    /// Returns true if there was a sign of life lately.
    pub fn is_alive(&self, now: Instant) -> bool {
        now.since(Instant(self.beat.load(Ordering::Relaxed))) <= BEAT_AGE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_fail_only_strict_readers() {
        let check = |result: fn(String) -> CheckResult| HealthCheck::new("a", result("b".to_string()));
        let (ok, warning, failed) =
            (check(CheckResult::Ok), check(CheckResult::Warning), check(CheckResult::Failed));
        let ready = |checks: &[&HealthCheck], strict| {
            HealthBoard::is_ready(&checks.iter().map(|check| (*check).clone()).collect::<Vec<_>>(), strict)
        };
        assert!(ready(&[], true) && ready(&[&ok], true));
        assert!(ready(&[&ok, &warning], false) && !ready(&[&ok, &warning], true));
        assert!(!ready(&[&failed, &ok], false));
    }

    #[test]
    fn a_server_without_signs_of_life_hangs() {
        let board = HealthBoard::default();
        assert!(board.is_alive(Instant(0).after(Duration::from_secs(10))));
        assert!(!board.is_alive(Instant(0).after(Duration::from_secs(11))));
    }
}
