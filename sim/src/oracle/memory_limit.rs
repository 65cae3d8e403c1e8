//! O10: a server's tracked memory stays below its hard limit.
//!
//! A server samples its tracked memory. Between two samples, requests may exceed the limit by the clients' requests in
//! flight, and the page cache is outside of the limit. When the limit drops below the tracked memory, the memory may
//! not grow, and what was released may not be taken again. Opening a tablet takes what its log holds, whatever the
//! limit; that much is allowed until it was released.

use super::Violation;
use crate::server_limits::PAGE_CACHE_BYTES;

const NAME: &str = "memory limit";

/// Bytes that one client may have in flight: a batch of rows, as the session encodes them.
const IN_FLIGHT_BYTES: u64 = 64 << 10;

/// Returns the bytes allowed beyond a limit.
fn beyond(clients: usize) -> u64 {
    PAGE_CACHE_BYTES as u64 + IN_FLIGHT_BYTES * clients as u64
}

/// Memory samples of one server.
#[derive(Debug, Clone, Default)]
pub struct MemoryReadings {
    /// Allowed bytes: the limit, or the tracked memory since the limit dropped.
    allowed_bytes: u64,
    reported: bool,
}

impl MemoryReadings {
    /// Records that a tablet was opened, with what its log holds.
    pub fn opened(&mut self) {
        self.allowed_bytes = u64::MAX;
    }

    /// Checks a sample of `bytes` under `limit`. Reports once.
    pub fn check_sample(
        &mut self,
        server: &str,
        bytes: u64,
        limit: u64,
        clients: usize,
    ) -> Option<Violation> {
        let allowed_bytes = self.allowed_bytes.max(limit).saturating_add(beyond(clients));
        self.allowed_bytes = limit.max(self.allowed_bytes.min(bytes));
        if bytes <= allowed_bytes || std::mem::replace(&mut self.reported, true) {
            return None;
        }
        let message = format!(
            "{server} holds {bytes} bytes of memory; {allowed_bytes} are explained by its limit {limit}"
        );
        Some(Violation::new(NAME, message))
    }
}

/// The memory page of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryReading {
    pub server: String,
    /// Bytes of all trackers together.
    pub bytes: u64,
    /// Trackers below the root, by name.
    pub parts: Vec<(String, u64)>,
}

/// Checks a server's memory page; `limit`: the highest limit of the run.
pub fn check(held: &MemoryReading, limit: u64, clients: usize) -> Option<Violation> {
    let allowed_bytes = limit.saturating_add(beyond(clients));
    let sum: u64 = held.parts.iter().map(|(_, bytes)| bytes).sum();
    let message = if held.bytes > allowed_bytes {
        format!("{} holds {} bytes of memory, its limit is {limit}", held.server, held.bytes)
    } else if sum != held.bytes {
        format!("{} holds {} bytes of memory, its parts {sum}", held.server, held.bytes)
    } else {
        return None;
    };
    let story = held.parts.iter().map(|(name, bytes)| format!("{name}: {bytes}")).collect();
    Some(Violation { oracle: NAME, message, story })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_limit_is_too_much() {
        let (limit, beyond) = (1 << 20, beyond(1));
        let held = |rows, bytes| {
            let parts = vec![("rows".to_string(), rows), ("cache".to_string(), 5)];
            MemoryReading { server: "t0".to_string(), bytes, parts }
        };
        let allowed_bytes = limit + beyond;
        assert_eq!(check(&held(allowed_bytes - 5, allowed_bytes), limit, 1), None);
        assert!(check(&held(allowed_bytes - 4, allowed_bytes + 1), limit, 1).is_some());
        assert!(check(&held(50, 60), limit, 1).is_some(), "the sum of its parts");
    }

    #[test]
    fn a_lowered_limit_is_reached_step_by_step() {
        const MIB: u64 = 1 << 20;
        let objects = |counts: &[(u64, u64)]| {
            let mut counted = MemoryReadings::default();
            let failed_oracles = counts
                .iter()
                .filter_map(|(bytes, limit)| counted.check_sample("t0", bytes * MIB, limit * MIB, 0));
            failed_oracles.count()
        };
        assert_eq!(objects(&[(10, 20), (20, 20), (5, 20)]), 0);
        assert_eq!(objects(&[(10, 20), (21, 20), (22, 20)]), 1, "once");
        assert_eq!(objects(&[(18, 20), (18, 5), (12, 5), (5, 5)]), 0, "it takes its time");
        assert_eq!(objects(&[(18, 20), (18, 5), (12, 5), (14, 5)]), 1, "it takes more");
        assert_eq!(objects(&[(18, 20), (18, 5), (14, 20)]), 0);
    }

    #[test]
    fn a_log_may_exceed_the_limit_once() {
        const MIB: u64 = 1 << 20;
        let mut counted = MemoryReadings::default();
        assert_eq!(counted.check_sample("t0", MIB, MIB, 0), None);
        counted.opened();
        assert_eq!(counted.check_sample("t0", 5 * MIB, MIB, 0), None);
        assert_eq!(counted.check_sample("t0", 4 * MIB, MIB, 0), None);
        assert!(counted.check_sample("t0", 5 * MIB, MIB, 0).is_some(), "it was less already");
    }
}
