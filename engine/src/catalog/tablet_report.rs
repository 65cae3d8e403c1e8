//! Tablet reports and their effects: tablets start running, alterations finish, evicted and deleted replicas are
//! removed.

use super::heartbeat::{ReplicaState, ReportedDataState, ReportedTablet};
use super::record::{ConsensusState, SystemRowKey, TabletLifecycle};
use super::task_queue::{TaskKey, TaskKind};
use super::{Catalog, CatalogEffects, CatalogNote, Tablet};
use crate::ids::{PeerId, TableId, TabletId};
use crate::time::ClockReading;

impl Catalog {
    /// Processes the reported state of one replica.
    pub(super) fn take_replica(
        &mut self,
        now: ClockReading,
        server: PeerId,
        report: ReportedTablet,
        out: &mut CatalogEffects,
    ) {
        let id = report.tablet;
        let Some(tablet) = self.tablets.get(&id) else {
            out.notes.push(CatalogNote::ReplicaUnknown { tablet: id, server });
            return;
        };
        if !tablet.record.state.is_live() {
            self.schedule_delete(now, id, server, report.data);
            return;
        }
        if report.state == ReplicaState::Failed && !was_failed(tablet, server) {
            let error = report.error.clone().unwrap_or_default();
            out.notes.push(CatalogNote::ReplicaFailed { tablet: id, server, error });
        }
        let running = report.state == ReplicaState::Running;
        let known = tablet.record.consensus.clone();
        if let Some(reported) = &report.consensus {
            let merged = merged(&known, reported, tablet.is_newer_config(server, &report));
            if merged != known {
                self.set_consensus(id, merged);
            }
        }
        let tablet = self.tablets.get_mut(&id).expect("found above");
        let old_stats = tablet.replicas.get(&server).and_then(|old| old.stats);
        let stats = report.stats.or(old_stats);
        let health = report.health.clone();
        let from_term = report.consensus.as_ref().map(|consensus| consensus.term);
        tablet.replicas.insert(server, ReportedTablet { stats, ..report });
        if running {
            self.replica_runs(now, id, out);
        }
        if self.tablets[&id].record.state == TabletLifecycle::Running {
            self.tasks.remove(TaskKey { server, tablet: id, kind: TaskKind::Create });
        }
        self.compare_version(now, id, server, out);
        self.on_members_reported(now, id, server, &known, from_term, health, out);
    }

    /// Takes the merged state of a live tablet.
    fn set_consensus(&mut self, id: TabletId, merged: ConsensusState) {
        self.uncount(id);
        let tablet = self.tablets.get_mut(&id).expect("the caller found it");
        tablet.record.consensus = merged;
        self.recount(id);
        self.dirty.insert(SystemRowKey::Tablet(id));
    }

    /// Schedules the removal of a replica of a deleted tablet.
    fn schedule_delete(&mut self, now: ClockReading, id: TabletId, server: PeerId, data: ReportedDataState) {
        if data == ReportedDataState::Deleted {
            self.replica_gone(now, id, server);
            return;
        }
        let tablet = self.tablets.get_mut(&id).expect("the caller found it");
        if !tablet.record.doomed.contains(&server) {
            tablet.record.doomed.push(server);
            self.dirty.insert(SystemRowKey::Tablet(id));
        }
        self.tasks.note_report(&TaskKey { server, tablet: id, kind: TaskKind::Delete });
        self.add_delete(now, id, server);
    }

    /// Marks a tablet as running once its leader is known and running.
    ///
    /// Members that have not reported a replica are still asked to create one. The leader would have the tablet copied
    /// to them, but it may be lost first: then the remaining members need this member's vote to elect another.
    fn replica_runs(&mut self, now: ClockReading, id: TabletId, out: &mut CatalogEffects) {
        let tablet = self.tablets.get_mut(&id).expect("the caller found it");
        let record = &mut tablet.record;
        let Some(leader) = record.consensus.leader else { return };
        if record.state == TabletLifecycle::Running {
            return;
        }
        record.state = TabletLifecycle::Running;
        record.since = now.wall.micros;
        record.message = "Tablet reported with an active leader".to_string();
        let created_on: Vec<PeerId> = tablet.replicas.keys().copied().collect();
        tablet.first_schema =
            self.tables.get(&record.table).map(|table| table.record.served_schema().clone());
        self.dirty.insert(SystemRowKey::Tablet(id));
        out.notes.push(CatalogNote::TabletRunning { tablet: id, leader });
        for server in created_on {
            self.tasks.remove(TaskKey { server, tablet: id, kind: TaskKind::Create });
        }
    }

    /// Sends an outdated leader the new schema, or finishes an alteration that has reached every tablet.
    fn compare_version(&mut self, now: ClockReading, id: TabletId, server: PeerId, out: &mut CatalogEffects) {
        let tablet = &self.tablets[&id];
        let table = tablet.record.table;
        let (wanted, leader) = (self.tables[&table].record.version, tablet.record.consensus.leader);
        let has = tablet.replicas.get(&server).and_then(|replica| replica.schema_version);
        if leader == Some(server) && has.is_some_and(|has| has < wanted) {
            self.add_task(now, TaskKind::Alter, id, server);
        }
        self.finish_alteration(table, out);
    }

    /// Handles the response that the replica's schema is at `version`.
    pub(super) fn replica_altered(
        &mut self,
        now: ClockReading,
        task: TaskKey,
        version: u32,
        out: &mut CatalogEffects,
    ) {
        let Some(tablet) = self.tablets.get_mut(&task.tablet) else { return };
        if !tablet.record.state.is_live() {
            return;
        }
        if let Some(replica) = tablet.replicas.get_mut(&task.server) {
            replica.schema_version = replica.schema_version.max(Some(version));
        }
        self.compare_version(now, task.tablet, task.server, out);
    }

    /// Drops the old schema of an alteration once no tablet needs it.
    pub(super) fn finish_alteration(&mut self, id: TableId, out: &mut CatalogEffects) {
        let Some(table) = self.tables.get(&id) else { return };
        let version = table.record.version;
        if table.record.applied_schema.is_none() {
            return;
        }
        let at_version = |tablet: &TabletId| applied_version(&self.tablets[tablet]) >= Some(version);
        if table.tablets.values().all(at_version) {
            let table = self.tables.get_mut(&id).expect("found above");
            table.record.applied_schema = None;
            self.dirty.insert(SystemRowKey::Table(id));
            out.notes.push(CatalogNote::TableApplied { table: id, version });
        }
    }

    /// Handles the report that the server has no replica of this tablet.
    pub(super) fn replica_absent(
        &mut self,
        now: ClockReading,
        server: PeerId,
        id: TabletId,
        out: &mut CatalogEffects,
    ) {
        let Some(tablet) = self.tablets.get_mut(&id) else { return };
        let known = tablet.replicas.remove(&server).is_some();
        let member = tablet.record.consensus.has(server);
        self.tasks.remove(TaskKey { server, tablet: id, kind: TaskKind::Remove });
        match tablet.record.state {
            TabletLifecycle::Creating if member => self.add_task(now, TaskKind::Create, id, server),
            TabletLifecycle::Running if member || known => {
                out.notes.push(CatalogNote::ReplicaMissing { tablet: id, server });
            }
            TabletLifecycle::Replaced | TabletLifecycle::Deleted => self.replica_gone(now, id, server),
            _ => {}
        }
    }

    /// Records that a replica of a deleted tablet is removed permanently. The last one starts the retention time of the
    /// tablet's record.
    pub(super) fn replica_gone(&mut self, now: ClockReading, id: TabletId, server: PeerId) {
        let Some(tablet) = self.tablets.get_mut(&id) else { return };
        let record = &mut tablet.record;
        let before = record.doomed.len();
        record.doomed.retain(|doomed| *doomed != server);
        if record.doomed.len() < before {
            if record.doomed.is_empty() {
                record.since = now.wall.micros;
            }
            self.dirty.insert(SystemRowKey::Tablet(id));
        }
        self.tasks.remove(TaskKey { server, tablet: id, kind: TaskKind::Delete });
    }
}

fn was_failed(tablet: &Tablet, server: PeerId) -> bool {
    tablet.replicas.get(&server).is_some_and(|replica| replica.state == ReplicaState::Failed)
}

/// Merges a replica's report into the known state. The configuration and the leader are taken separately from the newer
/// side: the newer configuration, the leader of the higher term (of the same term, if none was known). A report that is
/// older in both changes nothing, whenever it arrives.
///
/// A term without a leader is an election in progress: until it is won, clients get the previous leader. It redirects
/// them or has failed, which they notice. Clients give up a tablet that is reported without a leader.
fn merged(known: &ConsensusState, reported: &ConsensusState, is_newer_config: bool) -> ConsensusState {
    let mut merged = known.clone();
    if is_newer_config && !reported.peers.is_empty() {
        merged.config_index = reported.config_index;
        merged.peers.clone_from(&reported.peers);
    }
    let newer = reported.term > known.term && (reported.leader.is_some() || known.leader.is_none());
    if newer || (reported.term == known.term && known.leader.is_none()) {
        merged.term = reported.term;
        merged.leader = reported.leader;
    }
    for peer in merged.peers.iter_mut().filter(|peer| peer.address.host.is_empty()) {
        if let Some(old) = known.peers.iter().find(|old| old.server == peer.server) {
            peer.address.clone_from(&old.address);
        }
    }
    let config_goes_back = merged.config_index < known.config_index && !is_newer_config;
    let goes_back = merged.term < known.term || config_goes_back;
    debug_assert!(!goes_back, "a tablet report must not move the state back, from {known:?} to {merged:?}");
    merged
}

/// The schema version that the tablet serves: its leader's, as last reported.
pub(super) fn applied_version(tablet: &Tablet) -> Option<u32> {
    let leader = tablet.record.consensus.leader?;
    tablet.replicas.get(&leader)?.schema_version
}
