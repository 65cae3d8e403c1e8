//! O10: the memory that a server knows of stays below its hard limit.
//!
//! A server counts what it holds now and then; what is asked of it between two counts may pass the limit by as much as
//! clients have under way, and pages are kept whatever the limit says. A limit that shrinks below what is held forbids
//! to hold more than that, and whatever was let go may not be taken again. Opening a tablet takes what its log says,
//! whatever the limit is: what is held after that may be held until it was let go.

use super::Finding;
use crate::cluster::PAGE_CACHE_BYTES;

const NAME: &str = "memory";

/// What one client may have under way: a batch of rows, as the session encodes them.
const UNDER_WAY: u64 = 64 << 10;

/// What may be held beyond a limit.
fn beyond(clients: usize) -> u64 {
    PAGE_CACHE_BYTES as u64 + UNDER_WAY * clients as u64
}

/// What one server counts, over time.
#[derive(Debug, Clone, Default)]
pub struct Counted {
    /// The most that it may hold: its limit, or what it has held since that shrank.
    most: u64,
    complained: bool,
}

impl Counted {
    /// A tablet was opened, with what its log holds.
    pub fn opened(&mut self) {
        self.most = u64::MAX;
    }

    /// The server holds `bytes` and may hold `limit`. Objects once.
    pub fn take(&mut self, server: &str, bytes: u64, limit: u64, clients: usize) -> Option<Finding> {
        let most = self.most.max(limit).saturating_add(beyond(clients));
        self.most = limit.max(self.most.min(bytes));
        if bytes <= most || std::mem::replace(&mut self.complained, true) {
            return None;
        }
        let message =
            format!("{server} holds {bytes} bytes of memory; {most} are explained by its limit {limit}");
        Some(Finding::new(NAME, message))
    }
}

/// What a server said of its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub server: String,
    /// Bytes, all trackers together.
    pub bytes: u64,
    /// Trackers below the root, by name.
    pub parts: Vec<(String, u64)>,
}

/// `limit`: the most that any moment of the run has allowed.
pub fn check(held: &Held, limit: u64, clients: usize) -> Option<Finding> {
    let most = limit.saturating_add(beyond(clients));
    let sum: u64 = held.parts.iter().map(|(_, bytes)| bytes).sum();
    let message = if held.bytes > most {
        format!("{} holds {} bytes of memory, its limit is {limit}", held.server, held.bytes)
    } else if sum != held.bytes {
        format!("{} holds {} bytes of memory, its parts {sum}", held.server, held.bytes)
    } else {
        return None;
    };
    let story = held.parts.iter().map(|(name, bytes)| format!("{name}: {bytes}")).collect();
    Some(Finding { oracle: NAME, message, story })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_limit_is_too_much() {
        let (limit, beyond) = (1 << 20, beyond(1));
        let held = |rows, bytes| {
            let parts = vec![("rows".to_string(), rows), ("cache".to_string(), 5)];
            Held { server: "t0".to_string(), bytes, parts }
        };
        let most = limit + beyond;
        assert_eq!(check(&held(most - 5, most), limit, 1), None);
        assert!(check(&held(most - 4, most + 1), limit, 1).is_some());
        assert!(check(&held(50, 60), limit, 1).is_some(), "the sum of its parts");
    }

    #[test]
    fn a_limit_that_shrinks_is_reached_step_by_step() {
        const MIB: u64 = 1 << 20;
        let objects = |counts: &[(u64, u64)]| {
            let mut counted = Counted::default();
            let objections =
                counts.iter().filter_map(|(bytes, limit)| counted.take("t0", bytes * MIB, limit * MIB, 0));
            objections.count()
        };
        assert_eq!(objects(&[(10, 20), (20, 20), (5, 20)]), 0);
        assert_eq!(objects(&[(10, 20), (21, 20), (22, 20)]), 1, "once");
        assert_eq!(objects(&[(18, 20), (18, 5), (12, 5), (5, 5)]), 0, "it takes its time");
        assert_eq!(objects(&[(18, 20), (18, 5), (12, 5), (14, 5)]), 1, "it takes more");
        assert_eq!(objects(&[(18, 20), (18, 5), (14, 20)]), 0);
    }

    #[test]
    fn what_a_log_holds_is_taken_all_the_same_once() {
        const MIB: u64 = 1 << 20;
        let mut counted = Counted::default();
        assert_eq!(counted.take("t0", MIB, MIB, 0), None);
        counted.opened();
        assert_eq!(counted.take("t0", 5 * MIB, MIB, 0), None);
        assert_eq!(counted.take("t0", 4 * MIB, MIB, 0), None);
        assert!(counted.take("t0", 5 * MIB, MIB, 0).is_some(), "it was less already");
    }
}
