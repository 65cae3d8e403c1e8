//! Keeping tablets in shape beside their work, and watching memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::server::Server;
use crate::env::{Env, MemoryBudget};

/// How much of its memory a server uses, and whether that leaves room for writes.
///
/// Up to the soft limit every write may begin. From there to the hard limit more and more are refused, so that
/// clients slow down before everything stops. Source: Kudu's `memory_limit_soft_percentage`.
pub struct MemoryPressure {
    budget: Arc<dyn MemoryBudget>,
    soft_percent: u64,
    used_bytes: AtomicU64,
}

impl MemoryPressure {
    pub fn new(env: &Env, soft_percent: u64) -> MemoryPressure {
        MemoryPressure { budget: env.memory.clone(), soft_percent, used_bytes: AtomicU64::new(0) }
    }

    /// What was counted last.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    fn set_used_bytes(&self, bytes: u64) {
        self.used_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that a write is about to take, until the next count of everything.
    pub fn add(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes above which memory has to be freed.
    pub fn soft_limit_bytes(&self) -> u64 {
        self.budget.limit_bytes() / 100 * self.soft_percent.min(100)
    }

    pub fn is_above_soft_limit(&self) -> bool {
        self.used_bytes() > self.soft_limit_bytes()
    }

    /// Why a write may not begin now, if it may not. `random` decides between the limits.
    pub fn refuse(&self, random: u64) -> Option<String> {
        let (used, soft) = (self.used_bytes(), self.soft_limit_bytes());
        if used <= soft {
            return None;
        }
        let room = self.budget.limit_bytes().saturating_sub(soft).max(1);
        let refused = used - soft >= room || random % room < used - soft;
        refused.then(|| format!("Soft memory limit exceeded: {used} bytes are used, {soft} may be"))
    }
}

/// Counts memory and lets tablets do what is due, for as long as the server runs.
pub async fn run(server: Arc<Server>) {
    loop {
        server.env.sleep(Duration::from_millis(server.config.maintenance_interval_ms)).await;
        count_memory(&server);
    }
}

fn count_memory(server: &Server) {
    let tablets = server.tablets.all();
    let bytes = tablets.iter().filter_map(|entry| entry.tablet()).map(|tablet| tablet.stats().memory_bytes);
    server.memory.set_used_bytes(bytes.sum());
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Budget(u64);

    impl MemoryBudget for Budget {
        fn limit_bytes(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn writes_are_refused_more_and_more_between_the_limits() {
        let budget = Arc::new(Budget(1000));
        let memory = MemoryPressure { budget, soft_percent: 80, used_bytes: AtomicU64::new(800) };
        assert!((0..200).all(|random| memory.refuse(random).is_none()));
        memory.add(50);
        let refused = (0..200).filter(|random| memory.refuse(*random).is_some()).count();
        assert_eq!(refused, 50, "a quarter of the way, a quarter of the writes");
        memory.add(150);
        assert!((0..200).all(|random| memory.refuse(random).is_some()));
    }
}
