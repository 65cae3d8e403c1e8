//! Order of the batches of a session: one that changes rows waits for the batches of its tablet that were sent before.
//!
//! ```text
//!   sent:    INSERT   INSERT  │  UPSERT  │  INSERT   INSERT  │  UPDATE
//!   group:   └── together ──┘ │ └ alone ┘│ └── together ──┘  │ └ alone ┘
//!                        each group waits for the end of the one before
//! ```
//!
//! A batch that is retried takes effect late. An UPSERT must not do so after a later one of the same row, so batches
//! of one tablet take effect in the order in which they were sent. INSERTs write no row that is there: batches of them
//! only may be in flight together, and only which of two equal keys is refused depends on their order.
//!
//! *Not here:* a batch that fails at its time limit. It may still take effect at the server, after later ones.
//!
//! A tablet is known by its table and the start of its partition: a batch may be sent to a tablet that has replaced its
//! own.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use futures_util::future::Shared;
use tokio::sync::oneshot;

/// Newest groups of batches, by table and start of the partition.
#[derive(Default)]
pub(super) struct BatchOrder(BTreeMap<(String, Vec<u8>), BatchGroup>);

/// Batches of a tablet that may be in flight together.
struct BatchGroup {
    inserts_only: bool,
    /// Sends nothing: the last batch drops it at its end.
    running: Weak<oneshot::Sender<()>>,
    ended: GroupEnd,
    /// End of the group before.
    before: Option<GroupEnd>,
}

type GroupEnd = Shared<oneshot::Receiver<()>>;

/// Place of a batch in the order. The batch ends when it is dropped.
pub(super) struct BatchTurn {
    before: Option<GroupEnd>,
    _running: Arc<oneshot::Sender<()>>,
}

impl BatchOrder {
    /// Adds a batch to those of its tablet.
    pub(super) fn add(&mut self, table: &str, partition_start: &[u8], inserts_only: bool) -> BatchTurn {
        let key = (table.to_string(), partition_start.to_vec());
        let newest = self.0.get(&key).and_then(|group| Some((group, group.running.upgrade()?)));
        let before = match newest {
            Some((group, running)) if inserts_only && group.inserts_only => {
                return BatchTurn { before: group.before.clone(), _running: running };
            }
            newest => newest.map(|(group, _)| group.ended.clone()),
        };
        let (running, ended) = oneshot::channel();
        let (running, ended) = (Arc::new(running), ended.shared());
        let weak = Arc::downgrade(&running);
        self.0.insert(key, BatchGroup { inserts_only, running: weak, ended, before: before.clone() });
        BatchTurn { before, _running: running }
    }

    /// Drops the groups without batches.
    pub(super) fn forget_ended(&mut self) {
        self.0.retain(|_, group| group.running.strong_count() > 0);
    }
}

impl BatchTurn {
    /// Waits for the end of the group before. Returns true if it was in flight when the batch was added.
    pub(super) async fn wait(&mut self) -> bool {
        let Some(before) = self.before.take() else { return false };
        // An error: the sender is dropped.
        let _ = before.await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may_start(turn: &BatchTurn) -> bool {
        turn.before.clone().is_none_or(|before| before.now_or_never().is_some())
    }

    #[test]
    fn only_batches_of_inserts_are_in_flight_together() {
        let mut order = BatchOrder::default();
        let mut add = |start: &[u8], inserts_only| order.add("t", start, inserts_only);
        let (first, second) = (add(b"a", true), add(b"a", true));
        let (upsert, other_tablet) = (add(b"a", false), add(b"b", false));
        let (third, fourth) = (add(b"a", true), add(b"a", true));
        assert_eq!([&first, &second, &other_tablet].map(may_start), [true; 3]);
        assert_eq!([&upsert, &third, &fourth].map(may_start), [false; 3]);
        drop(second);
        assert_eq!([&upsert, &third, &fourth].map(may_start), [false; 3]);
        drop(first);
        assert_eq!([&upsert, &third, &fourth].map(may_start), [true, false, false]);
        drop(upsert);
        assert_eq!([&third, &fourth].map(may_start), [true; 2]);
        drop((third, fourth, other_tablet));
        assert!(may_start(&order.add("t", b"a", false)));
        order.forget_ended();
        assert!(order.0.is_empty());
    }

    #[test]
    fn a_turn_tells_if_a_batch_was_before_it() {
        let mut order = BatchOrder::default();
        let mut first = order.add("t", b"", false);
        let mut second = order.add("t", b"", false);
        assert_eq!(first.wait().now_or_never(), Some(false));
        let mut waiting = Box::pin(second.wait());
        assert_eq!(waiting.as_mut().now_or_never(), None);
        drop(first);
        assert_eq!(waiting.now_or_never(), Some(true));
        drop(second);
        assert_eq!(order.add("t", b"", false).wait().now_or_never(), Some(false));
    }
}
