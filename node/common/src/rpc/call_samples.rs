//! Samples of calls by their time, for the page `/rpcz`, and the log line of slow calls.
//!
//! ```text
//!   a call ends ──▶ its method's class: below 10 ms │ below 100 ms │ below 1 s │ longer
//!                      └─ renewed at most once a second: arrival, steps, caller
//! ```

use engine::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::time::Instant;

use super::call_steps::StepTimes;
use super::line_limit::LineLimit;

/// A call that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSample {
    pub service: &'static str,
    pub method: &'static str,
    pub user: Arc<str>,
    pub remote: SocketAddr,
    /// Bytes of the request, without sidecars.
    pub request_bytes: usize,
    pub received: Instant,
    /// Time from the arrival to the start of the method.
    pub queued: Duration,
    /// Time from the arrival to the reply.
    pub took: Duration,
    /// Time that the caller would have waited.
    pub timeout: Option<Duration>,
    /// Times of the call's steps.
    pub steps: StepTimes,
    /// True if the call took long: `rpc_duration_too_long_ms`, or most of its timeout.
    pub is_slow: bool,
}

/// Upper ends of the classes but the last.
const CLASSES: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];
/// Age of a sample from which another call of its class replaces it.
const RENEWED_AFTER: Duration = Duration::from_secs(1);

type Classes = [Option<CallSample>; CLASSES.len() + 1];

/// Samples of a server's calls, and the rule for slow ones.
#[derive(Debug, Default)]
pub struct CallSamples {
    methods: Mutex<BTreeMap<(&'static str, &'static str), Classes>>,
    /// Slow calls since the start.
    slow: AtomicU64,
    lines: LineLimit,
}

/// Time of a call in milliseconds from which it is slow, unless the server's flag says otherwise.
pub(super) const SLOW_MS: u64 = 1_000;
/// Share of its caller's timeout from which a call is slow.
const TIMEOUT_PERCENT: u32 = 75;

fn class(took: Duration) -> usize {
    CLASSES.iter().position(|end| took < *end).unwrap_or(CLASSES.len())
}

impl CallSamples {
    fn methods(&self) -> MutexGuard<'_, BTreeMap<(&'static str, &'static str), Classes>> {
        self.methods.lock()
    }

    /// Records a call that has ended at `now`.
    pub(super) fn record(&self, sample: CallSample, now: Instant) {
        if sample.is_slow {
            self.slow.fetch_add(1, Ordering::Relaxed);
            self.log(&sample, now);
        }
        let mut methods = self.methods();
        let classes = methods.entry((sample.service, sample.method)).or_default();
        let known = &mut classes[class(sample.took)];
        if known.as_ref().is_none_or(|known| now.since(known.received) >= RENEWED_AFTER) {
            *known = Some(sample);
        }
    }

    /// Writes a line about a slow call, unless there were many in this second.
    fn log(&self, sample: &CallSample, now: Instant) {
        if !self.lines.admits(now) {
            return;
        }
        let CallSample { service, method, user, remote, queued, took, timeout, steps, .. } = sample;
        let (ms, queued_ms) = (took.as_millis() as u64, queued.as_millis() as u64);
        let timeout_ms = timeout.map_or(0, |timeout| timeout.as_millis() as u64);
        // A user's name may hold line ends.
        let user = user.escape_debug();
        let steps = steps.to_text();
        tracing::warn!(
            event = "slow_call", service, method, %user, %remote, ms, queued_ms, timeout_ms, steps, "a slow call"
        );
    }

    /// Returns the number of slow calls since the start.
    pub fn slow(&self) -> u64 {
        self.slow.load(Ordering::Relaxed)
    }

    /// Returns the samples, by service and method, the quick ones first.
    pub fn all(&self) -> Vec<CallSample> {
        self.methods().values().flatten().flatten().cloned().collect()
    }
}

/// Returns true for a time of a call that is long, or most of the time that its caller waits.
pub(super) fn is_slow(took: Duration, timeout: Option<Duration>, slow_ms: u64) -> bool {
    let most = timeout.map(|timeout| timeout * TIMEOUT_PERCENT / 100);
    took >= Duration::from_millis(slow_ms) || most.is_some_and(|most| took > most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(received_ms: u64, took_ms: u64) -> CallSample {
        CallSample {
            service: "kudu.tserver.TabletServerService",
            method: "Write",
            user: Arc::from("ann"),
            remote: SocketAddr::from(([127, 0, 0, 1], 7)),
            request_bytes: 3,
            received: Instant(received_ms * 1_000_000),
            queued: Duration::ZERO,
            took: Duration::from_millis(took_ms),
            timeout: None,
            steps: StepTimes::default(),
            is_slow: took_ms >= SLOW_MS,
        }
    }

    fn record(samples: &CallSamples, received_ms: u64, took_ms: u64) {
        samples.record(sample(received_ms, took_ms), Instant((received_ms + took_ms) * 1_000_000));
    }

    #[test]
    fn each_class_keeps_a_call_for_a_second() {
        let samples = CallSamples::default();
        for (received, took) in [(0, 1), (10, 2), (500, 50), (600, 200), (700, 1500), (1100, 3)] {
            record(&samples, received, took);
        }
        let kept: Vec<u64> = samples.all().iter().map(|sample| sample.took.as_millis() as u64).collect();
        assert_eq!(kept, [3, 50, 200, 1500]);
        assert_eq!(samples.slow(), 1);
    }

    #[test]
    fn a_call_that_takes_most_of_its_timeout_is_slow() {
        let (millis, timeout) = (Duration::from_millis, Some(Duration::from_millis(100)));
        assert!(is_slow(millis(76), timeout, SLOW_MS) && !is_slow(millis(75), timeout, SLOW_MS));
        assert!(is_slow(millis(1000), None, SLOW_MS) && !is_slow(millis(999), None, SLOW_MS));
        assert!(is_slow(millis(7), None, 7) && is_slow(millis(0), None, 0) && !is_slow(millis(6), None, 7));
    }
}
