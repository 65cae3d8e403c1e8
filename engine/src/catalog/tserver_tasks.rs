//! Requests to tablet servers: at most one of a kind per replica, retried until done, a few in flight per server.

use std::time::Duration;

use super::error::CatalogResult;
use super::record::{HostPort, TabletLifecycle};
use super::table_attributes::attributes;
use super::task_queue::{CreateTabletCall, TaskKey, TaskKind, TserverCall, TserverRequest};
use super::{Catalog, CatalogEffects, CatalogNote};
use crate::error::{Error, ErrorKind};
use crate::ids::{PeerId, TabletId};
use crate::time::ClockReading;

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
                let (config_index_max, config_term) = (None, None);
                Some(TserverCall::DeleteTablet { reason, tombstone: false, config_index_max, config_term })
            }
            TaskKind::Remove if tablet.state.is_live() && !tablet.consensus.has(task.server) => {
                let index = tablet.consensus.config_index;
                let reason = format!("the tablet's configuration {index} does not name this server");
                let (config_index_max, config_term) = (Some(index), entry.config_term());
                Some(TserverCall::DeleteTablet { reason, tombstone: true, config_index_max, config_term })
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
        let (attempts, version, reported) = (entry.attempts, entry.version, entry.reported);
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
            // The replica may have been created after the server had looked for it.
            Err(error) if reported && error.kind == ErrorKind::NotFound => {
                self.tasks.remove(task);
                match task.kind {
                    TaskKind::Delete => self.add_delete(now, task.tablet, task.server),
                    _ => self.remove_evicted(now, task.tablet, &[], out),
                }
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
