//! Numbers of the tasks of one process that have not ended, by the names under which they were spawned.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::sync::Mutex;

/// Counts of one process. Clones share them.
#[derive(Clone, Default)]
pub struct LiveTasks {
    counts: Arc<Mutex<BTreeMap<&'static str, u64>>>,
}

/// One task; dropping it counts the task as ended.
pub struct LiveTaskGuard {
    tasks: LiveTasks,
    name: &'static str,
}

impl LiveTasks {
    /// Counts a task until the guard is dropped.
    pub fn begin(&self, name: &'static str) -> LiveTaskGuard {
        *self.counts.lock().entry(name).or_default() += 1;
        LiveTaskGuard { tasks: self.clone(), name }
    }

    /// Returns the counts that are not zero.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.counts.lock();
        counts.iter().filter(|(_, count)| **count > 0).map(|(name, count)| (*name, *count)).collect()
    }
}

impl Drop for LiveTaskGuard {
    fn drop(&mut self) {
        if let Some(count) = self.tasks.counts.lock().get_mut(self.name) {
            *count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_counts_until_it_is_dropped() {
        let tasks = LiveTasks::default();
        let (first, _second) = (tasks.begin("call"), tasks.begin("call"));
        let _other = tasks.begin("copy");
        assert_eq!(tasks.counts(), BTreeMap::from([("call", 2), ("copy", 1)]));
        drop(first);
        assert_eq!(tasks.counts()["call"], 1);
    }
}
