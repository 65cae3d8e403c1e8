//! Executions of orders: none of a tracked one begins while another is in progress, or while its reply is remembered.
//!
//! ```text
//!   call ──► in progress ──► effect ──► end ──── remembered ────► forgotten: a late call may execute it again
//! ```
//!
//! A server remembers a reply for some time after it, and a client without requests for some time after its last call.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::time::Instant;
use sim_plan::RandomStream;

/// Percentage of trials whose servers forget within the trial.
const FORGETFUL_PERCENT: u64 = 35;
/// Times for which servers remember: some shorter than an order takes, the last one longer than a trial.
const SPANS: [Duration; 3] = [Duration::from_millis(150), Duration::from_secs(1), Duration::from_secs(600)];

/// Server, number of its start, and order.
pub(super) type ExecutionKey = (usize, u64, u64);

/// Times for which servers remember replies, and clients without requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RememberedSpans {
    pub replies: Duration,
    pub clients: Duration,
}

impl RememberedSpans {
    /// Returns times that are longer than a trial.
    pub(super) fn long() -> RememberedSpans {
        RememberedSpans { replies: SPANS[2], clients: SPANS[2] }
    }

    /// Draws the times of a trial from a stream of their own.
    pub(super) fn draw(seed: u64) -> RememberedSpans {
        let mut random = RandomStream::new(seed, "rpc trial, remembered");
        match random.percent(FORGETFUL_PERCENT) {
            true => RememberedSpans { replies: random.pick(&SPANS), clients: random.pick(&SPANS) },
            false => RememberedSpans::long(),
        }
    }
}

/// Executions of an order by a start of a server.
#[derive(Debug, Default)]
struct OrderExecutions {
    in_progress: u32,
    effects: u32,
    /// Time of the last effect, or of the end of the call that had it: its reply is cached then, or later.
    last: Option<Instant>,
}

pub(super) struct Executions {
    pub spans: RememberedSpans,
    /// Times at which the first call of each order began: its server knew the client after that.
    begun: BTreeMap<u64, Instant>,
    all: BTreeMap<ExecutionKey, OrderExecutions>,
}

impl Executions {
    pub(super) fn new(spans: RememberedSpans) -> Executions {
        Executions { spans, begun: BTreeMap::new(), all: BTreeMap::new() }
    }

    /// A caller begins a call of an order.
    pub(super) fn begin(&mut self, order: u64, now: Instant) {
        self.begun.entry(order).or_insert(now);
    }

    /// The service begins to execute a tracked order; returns what is wrong.
    pub(super) fn enter(&mut self, key: ExecutionKey, now: Instant) -> Option<String> {
        let (server, _, order) = key;
        let began = self.begun.get(&order).copied().unwrap_or(now);
        let client_is_known_until = began.after(self.spans.clients);
        let own = self.all.entry(key).or_default();
        own.in_progress += 1;
        if own.in_progress > 1 {
            return Some(format!("tracked order {order} begins at server {server} while it is in progress"));
        }
        let until = own.last?.after(self.spans.replies).min(client_is_known_until);
        (now < until).then(|| format!("tracked order {order} is executed twice by server {server}"))
    }

    /// An order has its effect. Returns true if that is the first one, and what is wrong.
    pub(super) fn effect(
        &mut self,
        key: ExecutionKey,
        is_tracked: bool,
        now: Instant,
    ) -> (bool, Option<String>) {
        let own = self.all.entry(key).or_default();
        own.effects += 1;
        own.last = Some(now);
        let is_first = own.effects == 1;
        let (server, _, order) = key;
        let wrong = || format!("order {order} is executed twice by server {server}");
        (is_first, (!is_first && !is_tracked).then(wrong))
    }

    /// The call that executes a tracked order is about to reply.
    pub(super) fn complete(&mut self, key: ExecutionKey, now: Instant) {
        self.all.entry(key).or_default().last = Some(now);
    }

    /// The call that executes a tracked order ends, or is given up.
    pub(super) fn leave(&mut self, key: ExecutionKey) {
        if let Some(own) = self.all.get_mut(&key) {
            own.in_progress = own.in_progress.saturating_sub(1);
        }
    }

    /// Returns true if an order had an effect at any server.
    pub(super) fn has_effect(&self, order: u64) -> bool {
        self.all.iter().any(|((_, _, of), own)| *of == order && own.effects > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ExecutionKey = (1, 1, 7);

    fn at(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    /// Returns an order that began at 100 ms and ended at 200, at a server that remembers for these milliseconds.
    fn ended(replies: u64, clients: u64) -> Executions {
        let (replies, clients) = (Duration::from_millis(replies), Duration::from_millis(clients));
        let mut executions = Executions::new(RememberedSpans { replies, clients });
        executions.begin(7, at(100));
        assert_eq!(executions.enter(KEY, at(110)), None);
        assert!(!executions.has_effect(7));
        assert_eq!(executions.effect(KEY, true, at(150)), (true, None));
        executions.complete(KEY, at(200));
        executions
    }

    #[test]
    fn an_order_is_not_executed_while_it_is_in_progress() {
        let mut executions = ended(10, 10);
        assert!(executions.enter(KEY, at(9_000)).is_some());
        executions.leave(KEY);
        executions.leave(KEY);
        assert_eq!(executions.enter(KEY, at(9_000)), None, "it is forgotten");
    }

    #[test]
    fn an_order_is_not_executed_again_while_it_is_remembered() {
        for (replies, clients, until) in [(500, 5_000, 700), (5_000, 300, 400)] {
            let mut executions = ended(replies, clients);
            executions.leave(KEY);
            assert!(executions.enter(KEY, at(until - 1)).is_some());
            executions.leave(KEY);
            assert_eq!(executions.enter(KEY, at(until)), None);
        }
        assert_eq!(ended(500, 500).enter((1, 2, 7), at(210)), None, "the server has restarted");
    }

    #[test]
    fn an_order_that_is_not_tracked_has_one_effect() {
        let mut executions = ended(10, 10);
        assert!(executions.effect(KEY, false, at(9_000)).1.is_some());
        assert!(executions.has_effect(7));
    }
}
