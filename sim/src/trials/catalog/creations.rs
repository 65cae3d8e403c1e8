//! Requests of a leading master for new replicas, and what is known of each.
//!
//! A member whose replica neither a report nor a reply has confirmed is asked for it again, also once its tablet runs
//! without it: its vote may be the one that is missing after another member is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::catalog::{CatalogConfig, TaskKey, TaskKind};
use engine::error::{Error, ErrorKind};
use engine::ids::{PeerId, TabletId};

/// Time after a request is due within which it is made. It is made in the turn of that time.
const SLACK: Duration = Duration::from_millis(200);
/// Most doublings of the wait between two attempts.
const DOUBLINGS_MAX: u32 = 16;

/// Attempts for one replica.
#[derive(Debug, Clone, Copy, Default)]
struct Asked {
    attempts: u32,
    /// Time at which the master learned that the last attempt has failed; `None` while it is under way.
    failed_at: Option<Duration>,
}

#[derive(Debug, Default)]
pub(super) struct Creations {
    asked: BTreeMap<TaskKey, Asked>,
    /// Replicas that are there, or were: the master need not ask for them again.
    confirmed: BTreeSet<TaskKey>,
    /// Servers that were unregistered, with which the master drops requests that wait.
    forgotten: BTreeSet<PeerId>,
}

fn creation(server: PeerId, tablet: TabletId) -> TaskKey {
    TaskKey { server, tablet, kind: TaskKind::Create }
}

impl Creations {
    pub(super) fn on_request(&mut self, task: TaskKey) {
        let excused = self.confirmed.contains(&task) || self.forgotten.contains(&task.server);
        if task.kind == TaskKind::Create && !excused {
            let attempts = self.asked.get(&task).map_or(0, |asked| asked.attempts) + 1;
            self.asked.insert(task, Asked { attempts, failed_at: None });
        }
    }

    pub(super) fn on_answer(&mut self, task: TaskKey, result: &Result<(), Error>, now: Duration) {
        if task.kind != TaskKind::Create {
            return;
        }
        match result {
            Err(error) if error.kind != ErrorKind::AlreadyPresent => {
                let asked = self.asked.get_mut(&task);
                asked.into_iter().for_each(|asked| asked.failed_at = Some(now));
            }
            _ => self.confirm(task.server, task.tablet),
        }
    }

    /// Records that a server has a replica.
    pub(super) fn confirm(&mut self, server: PeerId, tablet: TabletId) {
        let task = creation(server, tablet);
        self.asked.remove(&task);
        self.confirmed.insert(task);
    }

    /// Records that a server was unregistered.
    pub(super) fn forget(&mut self, server: PeerId) {
        self.asked.retain(|task, _| task.server != server);
        self.forgotten.insert(server);
    }

    /// Returns the requests of which the last attempt has failed; true if the next one is overdue.
    pub(super) fn failed(&self, now: Duration, config: &CatalogConfig) -> Vec<(TaskKey, bool)> {
        let is_overdue = |asked: &Asked, at: Duration| {
            let doublings = asked.attempts.saturating_sub(1).min(DOUBLINGS_MAX);
            let wait = (config.retry_wait_min * 2u32.pow(doublings)).min(config.retry_wait_max);
            now > at + wait + SLACK
        };
        let failed = self.asked.iter().filter_map(|(task, asked)| Some((task, asked, asked.failed_at?)));
        failed.map(|(task, asked, at)| (*task, is_overdue(asked, at))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::ids::Uuid;

    const TASK: TaskKey = TaskKey { server: Uuid([1; 16]), tablet: Uuid([2; 16]), kind: TaskKind::Create };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn failed_once() -> Creations {
        let mut creations = Creations::default();
        creations.on_request(TASK);
        creations.on_answer(TASK, &Err(Error::not_ready("no connection")), seconds(1));
        creations
    }

    fn config() -> CatalogConfig {
        let (retry_wait_min, retry_wait_max) = (seconds(1), seconds(3));
        CatalogConfig { retry_wait_min, retry_wait_max, ..CatalogConfig::default() }
    }

    #[test]
    fn a_request_that_has_failed_is_due_again_after_a_wait_that_doubles() {
        let mut creations = failed_once();
        assert_eq!(creations.failed(seconds(2), &config()), [(TASK, false)]);
        assert_eq!(creations.failed(seconds(3), &config()), [(TASK, true)]);
        creations.on_request(TASK);
        assert!(creations.failed(seconds(9), &config()).is_empty(), "it is under way");
        creations.on_answer(TASK, &Err(Error::not_ready("no connection")), seconds(9));
        assert_eq!(creations.failed(seconds(11), &config()), [(TASK, false)]);
        assert_eq!(creations.failed(seconds(12), &config()), [(TASK, true)]);
    }

    #[test]
    fn a_replica_that_is_there_or_whose_server_was_unregistered_is_not_asked_for() {
        let is_free = |creations: &mut Creations| {
            creations.on_request(TASK);
            creations.on_answer(TASK, &Err(Error::not_ready("no connection")), seconds(1));
            creations.failed(seconds(9), &config()).is_empty()
        };
        assert!(!is_free(&mut failed_once()));
        let mut creations = failed_once();
        creations.confirm(TASK.server, TASK.tablet);
        assert!(is_free(&mut creations));
        let mut creations = failed_once();
        creations.on_answer(TASK, &Err(Error::already_present("it exists")), seconds(2));
        assert!(is_free(&mut creations));
        let mut creations = failed_once();
        creations.forget(TASK.server);
        assert!(is_free(&mut creations));
    }
}
