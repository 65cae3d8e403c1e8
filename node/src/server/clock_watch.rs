//! The check that the machine's clock is kept right, before a server serves and while it serves.
//!
//! ```text
//!   start ── synchronised within ntp_initial_sync_wait_secs? ── no ──▶ exit code 6
//!   serving ── each second ── unsynchronised, or an error above the bound ──▶ no writes, no leadership
//!                                                         for a minute ──▶ the process ends, exit code 6
//! ```
//!
//! Timestamps of several machines are compared, so a wrong clock breaks snapshots, and a server far ahead blocks
//! others.
//! Servers of one machine share a clock, which need not be right: see [`TimeSource::Auto`].

use engine::sync::{Mutex, MutexGuard};
use std::time::Duration;

use engine::error::{Error, Result};
use engine::time::Instant;
use nyala_common::env::{ClockSync, Env};
use tokio::sync::Notify;

use super::flags::Flags;
use super::health::{CheckResult, HealthCheck};
use super::host_port::is_local_address;

/// Value of the flag `time_source`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeSource {
    /// As `System`, unless all known addresses of the server and of the masters are loopback or wildcard addresses:
    /// then as `SystemUnsync`, because the whole cluster reads one clock. That includes a single master on the wildcard
    /// address without an advertised name, which others may use: the log warns (`startup_warnings.rs`).
    Auto,
    /// The machine's clock, which must be synchronised.
    System,
    /// The machine's clock as it is.
    SystemUnsync,
    /// A clock of the server's own, set by NTP servers (`server/ntp`).
    Builtin,
}

impl TimeSource {
    /// Returns the value of the flag; `Invalid` for one that is not implemented.
    pub fn of(flags: &Flags) -> Result<TimeSource> {
        match flags.text("time_source").as_str() {
            "auto" => Ok(TimeSource::Auto),
            "system" => Ok(TimeSource::System),
            "system_unsync" => Ok(TimeSource::SystemUnsync),
            "builtin" => Ok(TimeSource::Builtin),
            other => Err(Error::invalid(format!(
                "time_source: no such clock here (given {other}, accepted auto, builtin, system or system_unsync); \
                 keep the machine's clock right with an NTP service such as chrony, or name NTP servers"
            ))),
        }
    }

    /// Returns the rule for a server that others reach at `addresses`, of `host:port`.
    pub fn rule(self, addresses: &[String], max_error_micros: u64) -> Option<ClockRule> {
        let checked = match self {
            TimeSource::System | TimeSource::Builtin => true,
            TimeSource::SystemUnsync => false,
            TimeSource::Auto => !addresses.iter().all(|address| is_local_address(address)),
        };
        checked.then_some(ClockRule { max_error_micros })
    }
}

/// Requirement of a server on its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockRule {
    /// Largest error (`max_clock_sync_error_usec`).
    pub max_error_micros: u64,
}

impl ClockRule {
    /// Returns the fault of a clock in this state, if it breaks the rule.
    pub(super) fn fault(self, state: ClockSync) -> Option<String> {
        match state {
            ClockSync::Synchronised { error_micros } if error_micros <= self.max_error_micros => None,
            ClockSync::Synchronised { error_micros } => Some(format!(
                "the clock's error is too large ({error_micros} us, {} allowed); check the NTP service",
                self.max_error_micros
            )),
            ClockSync::Unsynchronised => Some(
                "the machine's clock is not synchronised (by adjtimex; with --time_source=builtin: no majority of \
                 builtin_ntp_servers agrees); start an NTP service such as chrony, or set \
                 --time_source=system_unsync if all servers run on this machine"
                    .to_string(),
            ),
        }
    }
}

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time with a wrong clock after which a server ends.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// Waits up to `patience` until the clock fulfils the rule; returns its fault otherwise.
pub async fn wait_synchronised(env: &Env, rule: ClockRule, patience: Duration) -> Result<()> {
    let deadline = env.now().mono.after(patience);
    let mut said = false;
    while let Some(fault) = rule.fault(env.clock.synchronisation()) {
        if env.now().mono >= deadline {
            return Err(Error::not_ready(format!("time_source: {fault}")));
        }
        if !std::mem::replace(&mut said, true) {
            tracing::warn!(?patience, "{fault}; waiting");
        }
        env.sleep(INTERVAL).await;
    }
    Ok(())
}

/// Trust in the clock of a serving server.
#[derive(Debug, Default)]
pub struct ClockTrust {
    fault: Mutex<Option<(String, Instant)>>,
    lost: Notify,
}

impl ClockTrust {
    fn lock(&self) -> MutexGuard<'_, Option<(String, Instant)>> {
        self.fault.lock()
    }

    /// Returns the fault of the clock, if it has one now.
    pub fn fault(&self) -> Option<String> {
        self.lock().as_ref().map(|(fault, _)| fault.clone())
    }

    /// Checks the clock each second, as long as the server runs.
    pub async fn watch(&self, env: &Env, rule: Option<ClockRule>) {
        let Some(rule) = rule else { return };
        loop {
            self.set(rule.fault(env.clock.synchronisation()), env.now().mono);
            env.observer.mark_if(self.fault().is_some(), "clock: unsynchronized");
            env.sleep(INTERVAL).await;
        }
    }

    fn set(&self, found: Option<String>, now: Instant) {
        let mut fault = self.lock();
        let before = fault.take();
        match (&before, &found) {
            (None, Some(why)) => tracing::error!("{why}; no writes and no leadership until then"),
            (Some(_), None) => tracing::info!("the clock can be trusted again"),
            _ => {}
        }
        let since = before.map_or(now, |(_, since)| since);
        if found.is_some() && now.since(since) >= GIVE_UP_AFTER {
            self.lost.notify_one();
        }
        *fault = found.map(|why| (why, since));
    }

    /// Waits until the clock has been wrong for too long; returns its fault.
    pub async fn lost(&self) -> Error {
        self.lost.notified().await;
        Error::aborted(self.fault().unwrap_or_else(|| "the clock was wrong for too long".to_string()))
    }

    /// Returns the check of `/readyz`.
    pub fn check(&self) -> HealthCheck {
        let result = match self.fault() {
            Some(why) => CheckResult::Failed(why),
            None => CheckResult::Ok("the clock is within its bound, or not checked".to_string()),
        };
        HealthCheck::new("clock", result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: ClockRule = ClockRule { max_error_micros: 1_000 };

    fn synchronised(error_micros: u64) -> ClockSync {
        ClockSync::Synchronised { error_micros }
    }

    #[test]
    fn only_a_cluster_on_one_machine_may_have_any_clock() {
        let rule = |source: TimeSource, addresses: &[&str]| {
            source.rule(&addresses.iter().map(|address| address.to_string()).collect::<Vec<_>>(), 7).is_some()
        };
        let (here, elsewhere) =
            (["127.0.0.1:7050", "localhost:7051", "[::1]:7151"], ["127.0.0.1:7050", "db1:7051"]);
        assert!(!rule(TimeSource::Auto, &here) && rule(TimeSource::Auto, &elsewhere));
        assert!(rule(TimeSource::System, &here) && rule(TimeSource::System, &elsewhere));
        assert!(!rule(TimeSource::SystemUnsync, &elsewhere));
        // A wildcard address alone names no other machine; one of a master elsewhere does.
        assert!(!rule(TimeSource::Auto, &["0.0.0.0:7051"]));
        assert!(rule(TimeSource::Auto, &["0.0.0.0:7050", "db1:7051"]));
        assert!(rule(TimeSource::System, &["0.0.0.0:7051"]));
    }

    #[test]
    fn sources_without_a_clock_are_refused_by_name() {
        let flags = Flags::new();
        assert_eq!(TimeSource::of(&flags), Ok(TimeSource::Auto));
        flags.set("time_source", "mock").expect("a known name");
        let error = TimeSource::of(&flags).expect_err("refused");
        assert!(error.message.contains("(given mock, accepted auto, builtin, system or"), "{error}");
    }

    #[test]
    fn a_clock_is_trusted_within_its_bound_and_given_up_after_a_minute() {
        use futures_util::FutureExt;
        assert_eq!(RULE.fault(synchronised(1_000)), None);
        assert!(RULE.fault(synchronised(1_001)).is_some_and(|why| why.contains("(1001 us, 1000 allowed)")));
        let trust = ClockTrust::default();
        let at = |second| Instant(0).after(Duration::from_secs(second));
        let is_lost = |trust: &ClockTrust| trust.lost().now_or_never().is_some();
        trust.set(RULE.fault(ClockSync::Unsynchronised), at(10));
        assert!(trust.fault().is_some_and(|why| why.starts_with("the machine's clock is not synchronised")));
        trust.set(None, at(60));
        assert_eq!((trust.fault(), is_lost(&trust)), (None, false), "right in time");
        for second in [70, 129] {
            trust.set(RULE.fault(synchronised(5_000)), at(second));
            assert!(!is_lost(&trust), "{second}");
        }
        trust.set(RULE.fault(synchronised(5_000)), at(130));
        assert!(is_lost(&trust));
    }
}
