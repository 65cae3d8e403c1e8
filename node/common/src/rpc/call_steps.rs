//! Steps of one call with their times, for `/rpcz`, the log of slow calls, and spans.
//!
//! ```text
//!   received ─▶ admitted ─▶ decoded ─▶ prepared ─┬─▶ appending ─▶ appended ─▶ logged ─┬─▶ applied ─▶ answered
//!                                                └──────────────▶ replicated ─────────┘
//! ```
//!
//! A step costs one store, and a clock reading where none is at hand. A step that a call does not take has no time: a
//! scan is not logged, and a follower's update is not applied before its reply.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::time::Instant;

use crate::env::Clock;
use crate::spans::CallSpan;

/// A step of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallStep {
    /// The call has a slot of its service, and may be made by its caller.
    Admitted,
    /// The request message is decoded.
    Decoded,
    /// The request is checked, and its operation is given to the replica; or a scan's snapshot is complete.
    Prepared,
    /// The log task begins to write the group of the operation.
    Appending,
    /// The operation is in the log file.
    Appended,
    /// The operation is durable.
    Logged,
    /// The operation is committed: a majority has it.
    Replicated,
    /// The operation is applied.
    Applied,
    /// The reply is in the send queue.
    Answered,
}

/// Number of steps.
pub const STEPS: usize = 9;

impl CallStep {
    pub const ALL: [CallStep; STEPS] = [
        CallStep::Admitted,
        CallStep::Decoded,
        CallStep::Prepared,
        CallStep::Appending,
        CallStep::Appended,
        CallStep::Logged,
        CallStep::Replicated,
        CallStep::Applied,
        CallStep::Answered,
    ];

    /// Returns the word for logs and pages.
    pub fn name(self) -> &'static str {
        match self {
            CallStep::Admitted => "admitted",
            CallStep::Decoded => "decoded",
            CallStep::Prepared => "prepared",
            CallStep::Appending => "appending",
            CallStep::Appended => "appended",
            CallStep::Logged => "logged",
            CallStep::Replicated => "replicated",
            CallStep::Applied => "applied",
            CallStep::Answered => "answered",
        }
    }
}

/// Steps of a call that runs. Tasks that work for the call share them.
pub struct CallSteps {
    clock: Arc<dyn Clock>,
    received: Instant,
    /// Nanoseconds from the arrival to each step, plus one; 0 for a step that was not taken.
    at: [AtomicU64; STEPS],
    /// Span of the call, if it is sampled.
    pub span: Option<CallSpan>,
}

impl CallSteps {
    pub fn new(clock: Arc<dyn Clock>, received: Instant, span: Option<CallSpan>) -> CallSteps {
        CallSteps { clock, received, at: Default::default(), span }
    }

    /// Records that a step was taken at `now`. The first time counts.
    pub fn mark(&self, step: CallStep, now: Instant) {
        let at = &self.at[step as usize];
        if at.load(Ordering::Relaxed) == 0 {
            at.store(now.0.saturating_sub(self.received.0).saturating_add(1), Ordering::Relaxed);
        }
    }

    /// Records that a step is taken now.
    pub fn mark_now(&self, step: CallStep) {
        self.mark(step, self.clock.now().mono);
    }

    /// Returns the times so far.
    pub fn times(&self) -> StepTimes {
        StepTimes(self.at.each_ref().map(|at| at.load(Ordering::Relaxed)))
    }
}

impl fmt::Debug for CallSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallSteps {{ {} }}", self.times().to_text())
    }
}

/// Times of a call's steps since its arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepTimes([u64; STEPS]);

impl StepTimes {
    /// Returns the time from the arrival to a step, if it was taken.
    pub fn of(&self, step: CallStep) -> Option<Duration> {
        self.0[step as usize].checked_sub(1).map(Duration::from_nanos)
    }

    /// Returns the steps in the order of their times.
    pub fn in_order(&self) -> Vec<(CallStep, Duration)> {
        let taken = CallStep::ALL.into_iter().filter_map(|step| Some((step, self.of(step)?)));
        let mut steps: Vec<_> = taken.collect();
        // Stable: steps of the same time keep the order of the enumeration.
        steps.sort_by_key(|(_, at)| *at);
        steps
    }

    /// Returns the steps on one line: `admitted 12 us, decoded 30 us`.
    pub fn to_text(&self) -> String {
        let steps = self.in_order().into_iter();
        let texts: Vec<String> =
            steps.map(|(step, at)| format!("{} {} us", step.name(), at.as_micros())).collect();
        texts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::mem_net;

    #[test]
    fn steps_are_shown_in_the_order_of_their_times() {
        let steps = CallSteps::new(mem_net::env().clock, Instant(1_000_000), None);
        let marks = [
            (CallStep::Admitted, 1_000_000),
            (CallStep::Logged, 1_900_000),
            (CallStep::Replicated, 1_800_000),
            (CallStep::Prepared, 1_050_000),
            // The first time counts.
            (CallStep::Prepared, 1_700_000),
        ];
        marks.into_iter().for_each(|(step, at)| steps.mark(step, Instant(at)));
        let times = steps.times();
        assert_eq!(times.to_text(), "admitted 0 us, prepared 50 us, replicated 800 us, logged 900 us");
        assert_eq!(times.of(CallStep::Applied), None);
        assert_eq!(StepTimes::default().to_text(), "");
    }

    #[test]
    fn every_step_has_a_place_of_its_own() {
        for (place, step) in CallStep::ALL.into_iter().enumerate() {
            assert_eq!(step as usize, place);
        }
    }
}
