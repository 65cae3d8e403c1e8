//! Queue of requests to tablet servers: what is due, and what is in flight.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::config::CatalogConfig;
use super::membership::MembershipChange;
use super::record::{ConsensusState, ExtraConfig, HostPort};
use crate::ids::{PeerId, TableId, TabletId};
use crate::schema::Schema;
use crate::schema::partition::{Partition, PartitionSchema};
use crate::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskKind {
    Create,
    Alter,
    Delete,
    /// Remove an evicted replica, leaving a tombstone.
    Remove,
    /// Ask the leader to add or evict a replica.
    ChangeConfig,
}

/// Key of a request: its kind and replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskKey {
    pub server: PeerId,
    pub tablet: TabletId,
    pub kind: TaskKind,
}

impl fmt::Display for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.kind {
            TaskKind::Create => "create",
            TaskKind::Alter => "alter",
            TaskKind::Delete => "delete",
            TaskKind::Remove => "remove",
            TaskKind::ChangeConfig => "change the configuration of",
        };
        write!(f, "{verb} {} on {}", self.tablet, self.server)
    }
}

/// A request to send to a tablet server; its response returns as [`super::CatalogEvent::Answered`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TserverRequest {
    pub task: TaskKey,
    pub address: HostPort,
    pub call: TserverCall,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TserverCall {
    CreateTablet(Box<CreateTabletCall>),
    /// Alter the replica's table to `version`; a replica at that version or a later one has nothing to do.
    AlterSchema {
        schema: Arc<Schema>,
        version: u32,
        table_name: String,
        extra: ExtraConfig,
        /// The table's attributes, which its tablets keep for a rebuild of the catalog.
        attributes: BTreeMap<String, String>,
    },
    /// Remove the replica and its data: permanently, or leaving a tombstone that votes.
    DeleteTablet {
        reason: String,
        tombstone: bool,
        /// A replica whose newest configuration has a higher index than this rejects the request.
        config_index_max: Option<i64>,
        /// Term of the operation of that index, if known. A configuration of an older term is void at higher indexes.
        config_term: Option<i64>,
    },
    /// Change the tablet's configuration if the committed one still has this index.
    ChangeConfig {
        config_index: i64,
        change: MembershipChange,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateTabletCall {
    pub table: TableId,
    pub table_name: String,
    pub schema: Arc<Schema>,
    pub partition_schema: Arc<PartitionSchema>,
    pub partition: Partition,
    pub consensus: ConsensusState,
    pub extra: ExtraConfig,
    /// As [`TserverCall::AlterSchema::attributes`].
    pub attributes: BTreeMap<String, String>,
    pub dimension_label: Option<String>,
}

/// Requests in flight per server: enough to keep it busy, too few to fill its queue.
const IN_FLIGHT_MAX: usize = 10;

#[derive(Debug)]
pub(super) struct TserverTask {
    pub(super) attempts: u32,
    /// Time to send it; `None` while it is in flight.
    pub(super) due: Option<Instant>,
    /// The schema version that was last sent, for [`TaskKind::Alter`].
    pub(super) version: u32,
    /// For [`TaskKind::ChangeConfig`]: the change, and the index of the configuration it is based on.
    pub(super) change: Option<(i64, MembershipChange)>,
    /// True if the server has reported the replica that is to be removed since the request was sent: it may be one that
    /// was created after the request.
    pub(super) reported: bool,
}

#[derive(Debug)]
pub(super) struct TaskQueue {
    pub(super) tasks: BTreeMap<TaskKey, TserverTask>,
    /// Tasks that wait to be sent, by server and time.
    waiting: BTreeMap<PeerId, BTreeSet<(Instant, TaskKey)>>,
    in_flight: BTreeMap<PeerId, usize>,
    retry_min: Duration,
    retry_max: Duration,
}

impl TaskQueue {
    pub(super) fn new(config: &CatalogConfig) -> TaskQueue {
        TaskQueue {
            tasks: BTreeMap::new(),
            waiting: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            retry_min: config.retry_wait_min,
            retry_max: config.retry_wait_max,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Adds a task unless it exists already.
    pub(super) fn add(&mut self, due: Instant, key: TaskKey, change: Option<(i64, MembershipChange)>) {
        if self.tasks.contains_key(&key) {
            return;
        }
        let task = TserverTask { attempts: 0, due: Some(due), version: 0, change, reported: false };
        self.tasks.insert(key, task);
        self.waiting.entry(key.server).or_default().insert((due, key));
    }

    /// Makes a task due that was never sent.
    pub(super) fn skip_wait(&mut self, now: Instant, key: TaskKey) {
        let Some(task) = self.tasks.get_mut(&key).filter(|task| task.attempts == 0) else { return };
        let Some(due) = task.due.replace(now) else { return };
        self.unqueue(due, key);
        self.waiting.entry(key.server).or_default().insert((now, key));
    }

    /// Records a report of the replica that this task removes.
    pub(super) fn note_report(&mut self, key: &TaskKey) {
        if let Some(task) = self.tasks.get_mut(key) {
            task.reported = true;
        }
    }

    pub(super) fn has(&self, key: &TaskKey) -> bool {
        self.tasks.contains_key(key)
    }

    /// The change that this task requests.
    pub(super) fn change(&self, key: &TaskKey) -> Option<&(i64, MembershipChange)> {
        self.tasks.get(key)?.change.as_ref()
    }

    pub(super) fn remove(&mut self, key: TaskKey) {
        let Some(task) = self.tasks.remove(&key) else { return };
        match task.due {
            Some(due) => self.unqueue(due, key),
            None => self.on_call_finished(key.server),
        }
    }

    /// Drops the tasks that wait for this server; its reports create them again when it returns.
    pub(super) fn remove_server(&mut self, server: PeerId) {
        for (_, key) in self.waiting.remove(&server).unwrap_or_default() {
            self.tasks.remove(&key);
        }
    }

    /// The earliest time at which a task may be sent.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let free = |server: &PeerId| self.in_flight.get(server).is_none_or(|count| *count < IN_FLIGHT_MAX);
        let queues = self.waiting.iter().filter(|(server, _)| free(server));
        queues.filter_map(|(_, queue)| queue.first()).map(|(due, _)| *due).min()
    }

    /// Takes a task that is due, counting it as in flight.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<TaskKey> {
        let found = self.waiting.iter().find_map(|(server, queue)| {
            let has_slot = self.in_flight.get(server).is_none_or(|count| *count < IN_FLIGHT_MAX);
            queue.first().filter(|(due, _)| has_slot && *due <= now).copied()
        });
        let (due, key) = found?;
        self.unqueue(due, key);
        *self.in_flight.entry(key.server).or_default() += 1;
        let task = self.tasks.get_mut(&key).expect("waiting tasks are in the map");
        (task.due, task.reported) = (None, false);
        task.attempts += 1;
        Some(key)
    }

    pub(super) fn retry(&mut self, now: Instant, key: TaskKey) {
        let Some(task) = self.tasks.get_mut(&key) else { return };
        let doublings = task.attempts.saturating_sub(1).min(16);
        let due = now.after((self.retry_min * 2u32.pow(doublings)).min(self.retry_max));
        task.due = Some(due);
        self.on_call_finished(key.server);
        self.waiting.entry(key.server).or_default().insert((due, key));
    }

    fn unqueue(&mut self, due: Instant, key: TaskKey) {
        if let Some(queue) = self.waiting.get_mut(&key.server) {
            queue.remove(&(due, key));
            if queue.is_empty() {
                self.waiting.remove(&key.server);
            }
        }
    }

    fn on_call_finished(&mut self, server: PeerId) {
        if let Some(count) = self.in_flight.get_mut(&server) {
            *count = count.saturating_sub(1);
        }
    }
}
