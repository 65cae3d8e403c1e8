//! Requests to tablet servers: at most one of a kind per replica, retried until done, a few in flight per server.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::config::CatalogConfig;
use super::error::CatalogResult;
use super::record::{ConsensusState, ExtraConfig, HostPort, TabletLifecycle};
use super::repair::MembershipChange;
use super::table_attributes::attributes;
use super::{Catalog, CatalogEffects, CatalogNote};
use crate::error::{Error, ErrorKind};
use crate::ids::{PeerId, TableId, TabletId};
use crate::schema::Schema;
use crate::schema::partition::{Partition, PartitionSchema};
use crate::time::{ClockReading, Instant};

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
        /// A replica whose committed configuration has a higher index than this rejects the request.
        config_index_max: Option<i64>,
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
struct TserverTask {
    attempts: u32,
    /// Time to send it; `None` while it is in flight.
    due: Option<Instant>,
    /// The schema version that was last sent, for [`TaskKind::Alter`].
    version: u32,
    /// For [`TaskKind::ChangeConfig`]: the change, and the index of the configuration it is based on.
    change: Option<(i64, MembershipChange)>,
}

#[derive(Debug)]
pub(super) struct TaskQueue {
    tasks: BTreeMap<TaskKey, TserverTask>,
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
        self.tasks.insert(key, TserverTask { attempts: 0, due: Some(due), version: 0, change });
        self.waiting.entry(key.server).or_default().insert((due, key));
    }

    /// Makes a task due that was never sent.
    fn skip_wait(&mut self, now: Instant, key: TaskKey) {
        let Some(task) = self.tasks.get_mut(&key).filter(|task| task.attempts == 0) else { return };
        let Some(due) = task.due.replace(now) else { return };
        self.unqueue(due, key);
        self.waiting.entry(key.server).or_default().insert((now, key));
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
    fn take_due(&mut self, now: Instant) -> Option<TaskKey> {
        let found = self.waiting.iter().find_map(|(server, queue)| {
            let has_slot = self.in_flight.get(server).is_none_or(|count| *count < IN_FLIGHT_MAX);
            queue.first().filter(|(due, _)| has_slot && *due <= now).copied()
        });
        let (due, key) = found?;
        self.unqueue(due, key);
        *self.in_flight.entry(key.server).or_default() += 1;
        let task = self.tasks.get_mut(&key).expect("waiting tasks are in the map");
        task.due = None;
        task.attempts += 1;
        Some(key)
    }

    fn retry(&mut self, now: Instant, key: TaskKey) {
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

impl Catalog {
    pub(super) fn add_task(&mut self, now: ClockReading, kind: TaskKind, tablet: TabletId, server: PeerId) {
        self.tasks.add(now.mono, TaskKey { server, tablet, kind }, None);
    }

    /// Schedules the permanent deletion of a replica of a deleted tablet. Order: the leader's replica first. A leader
    /// that still runs would treat the others as members that lost their replicas, and have them copied again.
    pub(super) fn add_delete(&mut self, now: ClockReading, tablet: TabletId, server: PeerId) {
        let Some(record) = self.tablets.get(&tablet).map(|tablet| &tablet.record) else { return };
        let leads = |leader: PeerId| leader != server && record.doomed.contains(&leader);
        let wait = match record.consensus.leader {
            Some(leader) if leads(leader) => self.config.delete_head_start,
            _ => Duration::ZERO,
        };
        self.tasks.add(now.mono.after(wait), TaskKey { server, tablet, kind: TaskKind::Delete }, None);
    }

    /// Makes the deletion of the other replicas due: the leader's is removed, or the leader cannot be reached.
    fn try_followers_next(&mut self, now: ClockReading, task: TaskKey) {
        let Some(record) = self.tablets.get(&task.tablet).map(|tablet| &tablet.record) else { return };
        if task.kind == TaskKind::Delete && record.consensus.leader == Some(task.server) {
            for server in record.doomed.iter().filter(|server| **server != task.server) {
                self.tasks.skip_wait(now.mono, TaskKey { server: *server, ..task });
            }
        }
    }

    pub(super) fn send_requests(&mut self, now: ClockReading, out: &mut CatalogEffects) {
        while let Some(task) = self.tasks.take_due(now.mono) {
            let address = self.server_address(task.server, task.tablet);
            match (address, self.call(task)) {
                (Some(address), Some(call)) => {
                    if let (TserverCall::AlterSchema { version, .. }, Some(entry)) =
                        (&call, self.tasks.tasks.get_mut(&task))
                    {
                        entry.version = *version;
                    }
                    out.requests.push(TserverRequest { task, address, call });
                }
                // No address is known, or the task is obsolete.
                _ => self.tasks.remove(task),
            }
        }
    }

    /// The address of a server: as registered, or else from the tablet's configuration.
    fn server_address(&self, server: PeerId, tablet: TabletId) -> Option<HostPort> {
        let registered = self.servers.get(&server).and_then(|server| server.registration.rpc.first());
        let from_config = || {
            let peers = &self.tablets.get(&tablet)?.record.consensus.peers;
            peers.iter().find(|peer| peer.server == server).map(|peer| &peer.address)
        };
        registered.or_else(from_config).cloned()
    }

    /// Builds a task's request from the current state; `None` if the task is obsolete.
    fn call(&self, task: TaskKey) -> Option<TserverCall> {
        let entry = self.tablets.get(&task.tablet)?;
        let tablet = &entry.record;
        let table = &self.tables.get(&tablet.table)?.record;
        match task.kind {
            TaskKind::Create if tablet.state == TabletLifecycle::Creating || entry.has_first_members() => {
                // All replicas begin with one schema, also those whose request is retried after an alteration.
                let schema = entry.first_schema.as_ref().unwrap_or(table.served_schema()).clone();
                Some(TserverCall::CreateTablet(Box::new(CreateTabletCall {
                    table: tablet.table,
                    table_name: table.name.clone(),
                    schema,
                    partition_schema: table.partition_schema.clone(),
                    partition: tablet.partition.clone(),
                    consensus: tablet.consensus.clone(),
                    extra: table.extra.clone(),
                    attributes: attributes(table, tablet),
                    dimension_label: tablet.dimension_label.clone(),
                })))
            }
            TaskKind::Alter if tablet.state.is_live() && tablet.consensus.leader == Some(task.server) => {
                Some(TserverCall::AlterSchema {
                    schema: table.schema.clone(),
                    version: table.version,
                    table_name: table.name.clone(),
                    extra: table.extra.clone(),
                    attributes: attributes(table, tablet),
                })
            }
            TaskKind::Delete if !tablet.state.is_live() => {
                let reason = tablet.message.clone();
                Some(TserverCall::DeleteTablet { reason, tombstone: false, config_index_max: None })
            }
            TaskKind::Remove if tablet.state.is_live() && !tablet.consensus.has(task.server) => {
                let index = tablet.consensus.config_index;
                let reason = format!("the tablet's configuration {index} does not name this server");
                Some(TserverCall::DeleteTablet { reason, tombstone: true, config_index_max: Some(index) })
            }
            TaskKind::ChangeConfig => {
                let (config_index, change) = self.tasks.change(&task)?.clone();
                let current = tablet.state == TabletLifecycle::Running
                    && tablet.consensus.leader == Some(task.server)
                    && tablet.consensus.config_index == config_index;
                current.then_some(TserverCall::ChangeConfig { config_index, change })
            }
            _ => None,
        }
    }

    pub(super) fn answered(
        &mut self,
        now: ClockReading,
        task: TaskKey,
        result: CatalogResult<(), Error>,
        out: &mut CatalogEffects,
    ) {
        let Some(entry) = self.tasks.tasks.get(&task) else { return };
        if entry.due.is_some() {
            return; // A response to an earlier attempt.
        }
        let (attempts, version) = (entry.attempts, entry.version);
        if task.kind == TaskKind::ChangeConfig {
            self.on_config_response(now, task, result, out);
            return;
        }
        self.try_followers_next(now, task);
        match result {
            Err(error) if !is_done(task.kind, &error) => {
                self.tasks.retry(now.mono, task);
                out.notes.push(CatalogNote::RequestFailed { task, attempts, error: error.message });
            }
            _ => {
                self.tasks.remove(task);
                match task.kind {
                    TaskKind::Create | TaskKind::ChangeConfig => {}
                    TaskKind::Remove => self.replica_removed(task.tablet, task.server),
                    TaskKind::Alter => self.replica_altered(now, task, version, out),
                    TaskKind::Delete => self.replica_gone(now, task.tablet, task.server),
                }
            }
        }
    }
}

/// Returns true if the error means that the task is done. An existing tablet was created by an earlier attempt; a
/// missing one needs no deletion.
fn is_done(kind: TaskKind, error: &Error) -> bool {
    match kind {
        TaskKind::Create => error.kind == ErrorKind::AlreadyPresent,
        TaskKind::Delete => error.kind == ErrorKind::NotFound,
        // Removed already, or a member again by a newer configuration.
        TaskKind::Remove => matches!(error.kind, ErrorKind::NotFound | ErrorKind::Aborted),
        TaskKind::Alter | TaskKind::ChangeConfig => false,
    }
}
