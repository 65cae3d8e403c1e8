//! Steps of the calls whose operations are in flight in one replica.
//!
//! ```text
//!   add ──┬─▶ to log ── Persisted ──▶ appending, appended, logged
//!         └─▶ to apply ── applied index ──▶ replicated ── end of the turn ──▶ applied
//! ```
//!
//! Invariant: both queues are in the order of the log. An operation that is truncated leaves them when a later one with
//! its index passes; its call has ended by then, so the late marks are seen by nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::ids::OpId;
use engine::raft::RaftMessage;
use engine::time::Instant;
use engine::wal::ReplicateEntry;

use crate::hosting::log_writer::GroupTimes;
use nyala_common::metrics::Histogram;
use nyala_common::rpc::call_steps::{CallStep, CallSteps};
use nyala_common::spans::SpanContext;

/// Calls by the index of their last operation.
#[derive(Default)]
pub(super) struct OpSteps {
    /// True if the server records spans.
    records_spans: bool,
    to_log: VecDeque<(u64, Arc<CallSteps>)>,
    to_apply: VecDeque<(u64, Arc<CallSteps>)>,
    /// Calls whose operations this turn has applied.
    applied: Vec<Arc<CallSteps>>,
}

impl OpSteps {
    pub(super) fn new(records_spans: bool) -> OpSteps {
        OpSteps { records_spans, ..OpSteps::default() }
    }

    /// Adds a call that proposed an operation, by the last operations before and after it. A rejected proposal, or a
    /// retry of one in flight, adds no operation.
    pub(super) fn add_proposal(&mut self, (before, after): (OpId, OpId), steps: Option<Arc<CallSteps>>) {
        let Some(steps) = steps.filter(|_| before != after) else { return };
        self.to_apply.push_back((after.index, steps.clone()));
        self.to_log.push_back((after.index, steps));
    }

    /// Adds a leader's call, by its last operation. It waits for the log of its operations and no longer.
    pub(super) fn add_update(&mut self, steps: Option<(u64, Arc<CallSteps>)>) {
        self.to_log.extend(steps);
    }

    /// Records that all operations up to `index` are durable.
    pub(super) fn logged(&mut self, index: u64, times: &GroupTimes) {
        while let Some((_, steps)) = self.to_log.pop_front_if(|(last, _)| *last <= index) {
            steps.mark(CallStep::Appending, times.began);
            steps.mark(CallStep::Appended, times.appended);
            steps.mark(CallStep::Logged, times.synced);
        }
    }

    /// Records that all operations up to `index` are committed, by an event that arrived at `now`, and the times of
    /// their replication.
    pub(super) fn committed(&mut self, index: u64, now: Instant, replication: &Histogram) {
        while let Some((_, steps)) = self.to_apply.pop_front_if(|(op, _)| *op <= index) {
            steps.mark(CallStep::Replicated, now);
            let times = steps.times();
            if let (Some(prepared), Some(replicated)) =
                (times.of(CallStep::Prepared), times.of(CallStep::Replicated))
            {
                replication.record_micros(replicated.saturating_sub(prepared));
            }
            self.applied.push(steps);
        }
    }

    /// Records that the committed operations are applied.
    pub(super) fn applied(&mut self, now: impl FnOnce() -> Instant) {
        if self.applied.is_empty() {
            return;
        }
        let now = now();
        self.applied.drain(..).for_each(|steps| steps.mark(CallStep::Applied, now));
    }

    /// Returns the span of the first sampled call with an operation of this message.
    pub(super) fn span_of(&self, message: &RaftMessage) -> Option<SpanContext> {
        match message {
            RaftMessage::Update(request) if self.records_spans => self.span_of_entries(&request.entries),
            _ => None,
        }
    }

    fn span_of_entries(&self, entries: &[ReplicateEntry]) -> Option<SpanContext> {
        let (first, last) = (entries.first()?.op.index, entries.last()?.op.index);
        let mut sent = self.to_apply.iter().filter(|(op, _)| (first..=last).contains(op));
        sent.find_map(|(_, steps)| Some(steps.span?.context))
    }

    /// Drops all calls.
    pub(super) fn clear(&mut self) {
        self.to_log.clear();
        self.to_apply.clear();
        self.applied.clear();
    }
}

#[cfg(test)]
mod tests {
    use nyala_common::env::Env;
    use nyala_common::env::os::{OsEnv, OsOptions};
    use nyala_common::spans::CallSpan;

    use super::*;

    fn call(env: &Env, span: u64) -> Arc<CallSteps> {
        let context = SpanContext { trace: 7, span };
        let span = (span > 0).then_some(CallSpan { context, parent: None });
        Arc::new(CallSteps::new(env.clock.clone(), Instant(0), span))
    }

    fn entry(index: u64) -> ReplicateEntry {
        let op = OpId { term: 1, index };
        ReplicateEntry { op, timestamp: Default::default(), kind: 1, payload: Default::default() }
    }

    #[tokio::test]
    async fn each_call_gets_the_steps_of_its_operation() {
        let env = OsEnv::new(&OsOptions::default()).expect("there is entropy");
        let (first, second, update) = (call(&env, 0), call(&env, 5), call(&env, 0));
        let mut steps = OpSteps::default();
        let op = |index| OpId { term: 1, index };
        steps.add_proposal((op(0), op(1)), Some(first.clone()));
        steps.add_proposal((op(1), op(2)), Some(second.clone()));
        steps.add_proposal((op(2), op(2)), Some(call(&env, 9)));
        steps.add_proposal((op(2), op(3)), None);
        steps.add_update(Some((3, update.clone())));
        steps.add_update(None);
        assert_eq!(steps.span_of_entries(&[entry(1)]), None);
        assert_eq!(steps.span_of_entries(&[entry(1), entry(2)]).map(|context| context.span), Some(5));
        assert_eq!(steps.span_of_entries(&[]), None);
        let micros = |micros: u64| Instant(micros * 1_000);
        let group = |at| GroupTimes { began: micros(at), appended: micros(at + 1), synced: micros(at + 9) };
        let replication = Histogram::default();
        steps.committed(1, micros(4), &replication);
        steps.logged(2, &group(10));
        steps.applied(|| micros(30));
        steps.committed(1, micros(40), &replication);
        steps.applied(|| panic!("nothing was applied"));
        let logged = "appending 10 us, appended 11 us, logged 19 us";
        assert_eq!(first.times().to_text(), format!("replicated 4 us, {logged}, applied 30 us"));
        assert_eq!(second.times().to_text(), logged);
        assert_eq!(update.times().to_text(), "");
        steps.logged(9, &group(50));
        assert_eq!(update.times().to_text(), "appending 50 us, appended 51 us, logged 59 us");
    }
}
