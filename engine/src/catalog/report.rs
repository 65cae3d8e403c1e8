//! What replicas report, and what follows from it: tablets come up, alterations finish, remains are removed.

use super::record::{Consensus, RowKey, TableState, TabletState};
use super::servers::{DataState, ReplicaState, ReportedTablet};
use super::tasks::{TaskKey, TaskKind};
use super::{Catalog, Effects, Note, Tablet};
use crate::ids::{PeerId, TableId, TabletId};
use crate::time::Now;

impl Catalog {
    /// Takes in the state of one replica.
    pub(super) fn take_replica(
        &mut self,
        now: Now,
        server: PeerId,
        report: ReportedTablet,
        out: &mut Effects,
    ) {
        let id = report.tablet;
        let Some(tablet) = self.tablets.get_mut(&id) else {
            out.notes.push(Note::ReplicaUnknown { tablet: id, server });
            return;
        };
        if !tablet.record.state.is_live() {
            self.doom(now, id, server, report.data);
            return;
        }
        if report.state == ReplicaState::Failed && !was_failed(tablet, server) {
            let error = report.error.clone().unwrap_or_default();
            out.notes.push(Note::ReplicaFailed { tablet: id, server, error });
        }
        let running = report.state == ReplicaState::Running;
        let known = tablet.record.consensus.clone();
        if let Some(reported) = &report.consensus {
            let merged = merged(&known, reported);
            if merged != known {
                tablet.record.consensus = merged;
                self.dirty.insert(RowKey::Tablet(id));
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
        if self.tablets[&id].record.state == TabletState::Running {
            self.tasks.remove(TaskKey { server, tablet: id, kind: TaskKind::Create });
        }
        self.compare_version(now, id, server, out);
        self.members_seen(now, id, server, &known, from_term, health, out);
    }

    /// A replica of a tablet that is no more: have it removed.
    fn doom(&mut self, now: Now, id: TabletId, server: PeerId, data: DataState) {
        if data == DataState::Deleted {
            self.replica_gone(now, id, server);
            return;
        }
        let tablet = self.tablets.get_mut(&id).expect("the caller found it");
        if !tablet.record.doomed.contains(&server) {
            tablet.record.doomed.push(server);
            self.dirty.insert(RowKey::Tablet(id));
        }
        self.add_delete(now, id, server);
    }

    /// A tablet whose leader is known and running is up.
    ///
    /// Members that have not reported a replica are still asked to make one. The leader would have the tablet copied to
    /// them, but it may be lost first: then those that are left need this member's vote to elect another.
    fn replica_runs(&mut self, now: Now, id: TabletId, out: &mut Effects) {
        let tablet = self.tablets.get_mut(&id).expect("the caller found it");
        let record = &mut tablet.record;
        let Some(leader) = record.consensus.leader else { return };
        if record.state == TabletState::Running {
            return;
        }
        record.state = TabletState::Running;
        record.since = now.wall.micros;
        record.message = "Tablet reported with an active leader".to_string();
        let made: Vec<PeerId> = tablet.replicas.keys().copied().collect();
        tablet.first_schema =
            self.tables.get(&record.table).map(|table| table.record.served_schema().clone());
        self.dirty.insert(RowKey::Tablet(id));
        out.notes.push(Note::TabletRunning { tablet: id, leader });
        for server in made {
            self.tasks.remove(TaskKey { server, tablet: id, kind: TaskKind::Create });
        }
    }

    /// Brings a leader's schema up to date, or notices that an alteration has reached every tablet.
    fn compare_version(&mut self, now: Now, id: TabletId, server: PeerId, out: &mut Effects) {
        let tablet = &self.tablets[&id];
        let table = tablet.record.table;
        let (wanted, leader) = (self.tables[&table].record.version, tablet.record.consensus.leader);
        let has = tablet.replicas.get(&server).and_then(|replica| replica.schema_version);
        if leader == Some(server) && has.is_some_and(|has| has < wanted) {
            self.add_task(now, TaskKind::Alter, id, server);
        }
        self.finish_alteration(table, out);
    }

    /// A tablet server has answered that the replica's schema is at `version`.
    pub(super) fn replica_altered(&mut self, now: Now, task: TaskKey, version: u32, out: &mut Effects) {
        let Some(tablet) = self.tablets.get_mut(&task.tablet) else { return };
        if !tablet.record.state.is_live() {
            return;
        }
        if let Some(replica) = tablet.replicas.get_mut(&task.server) {
            replica.schema_version = replica.schema_version.max(Some(version));
        }
        self.compare_version(now, task.tablet, task.server, out);
    }

    /// Drops the memory of an alteration's old schema once no tablet needs it.
    pub(super) fn finish_alteration(&mut self, id: TableId, out: &mut Effects) {
        let Some(table) = self.tables.get(&id) else { return };
        let version = table.record.version;
        if table.record.applied_schema.is_none() {
            return;
        }
        let at_version = |tablet: &TabletId| applied_version(&self.tablets[tablet]) >= Some(version);
        if table.tablets.values().all(at_version) {
            let table = self.tables.get_mut(&id).expect("found above");
            table.record.applied_schema = None;
            self.dirty.insert(RowKey::Table(id));
            out.notes.push(Note::TableApplied { table: id, version });
        }
    }

    /// The server says it has no replica of this tablet.
    pub(super) fn replica_absent(&mut self, now: Now, server: PeerId, id: TabletId, out: &mut Effects) {
        let Some(tablet) = self.tablets.get_mut(&id) else { return };
        let known = tablet.replicas.remove(&server).is_some();
        let member = tablet.record.consensus.has(server);
        self.tasks.remove(TaskKey { server, tablet: id, kind: TaskKind::Remove });
        match tablet.record.state {
            TabletState::Creating if member => self.add_task(now, TaskKind::Create, id, server),
            TabletState::Running if member || known => {
                out.notes.push(Note::ReplicaMissing { tablet: id, server });
            }
            TabletState::Replaced | TabletState::Deleted => self.replica_gone(now, id, server),
            _ => {}
        }
    }

    /// A doomed replica is gone for good. The last one starts the clock after which the tablet is forgotten.
    pub(super) fn replica_gone(&mut self, now: Now, id: TabletId, server: PeerId) {
        let Some(tablet) = self.tablets.get_mut(&id) else { return };
        let record = &mut tablet.record;
        let before = record.doomed.len();
        record.doomed.retain(|doomed| *doomed != server);
        if record.doomed.len() < before {
            if record.doomed.is_empty() {
                record.since = now.wall.micros;
            }
            self.dirty.insert(RowKey::Tablet(id));
        }
        self.tasks.remove(TaskKey { server, tablet: id, kind: TaskKind::Delete });
    }

    /// Looks at everything that time alone can change. Runs once a second.
    pub(super) fn sweep(&mut self, now: Now, out: &mut Effects) {
        self.next_sweep = now.mono.after(std::time::Duration::from_secs(1));
        let timeout = self.config.tablet_creation_timeout;
        let late: Vec<(TabletId, TabletState)> = self
            .tablets
            .iter()
            .filter(|(_, tablet)| match tablet.record.state {
                TabletState::Preparing => true,
                TabletState::Creating => now.mono.since(tablet.waiting_since) > timeout,
                _ => false,
            })
            .map(|(id, tablet)| (*id, tablet.record.state))
            .collect();
        for (id, state) in late {
            match state {
                TabletState::Preparing => self.place(now, id, out),
                _ => {
                    let reason = format!("not up after {} s", timeout.as_secs());
                    self.replace_tablet(now, id, reason, out);
                }
            }
        }
        self.purge_tables(now, out);
        self.repair_all(now, out);
        self.forget_deleted(now);
    }

    /// Removes the records of deleted tablets and tables that nobody can still ask about.
    fn forget_deleted(&mut self, now: Now) {
        let kept = self.config.deleted_metadata_kept.as_micros() as u64;
        let old = |since: u64| since.saturating_add(kept) <= now.wall.micros;
        let gone = |tablet: &Tablet| !tablet.record.state.is_live() && tablet.record.doomed.is_empty();
        let tablets = self.tablets.iter().filter(|(_, tablet)| gone(tablet) && old(tablet.record.since));
        let forgotten: Vec<TabletId> = tablets.map(|(id, _)| *id).collect();
        for id in forgotten {
            self.tablets.remove(&id);
            self.dirty.insert(RowKey::Tablet(id));
        }
        let deleted = self.tables.iter().filter(|(_, table)| match table.record.state {
            TableState::Deleted { at } => old(at),
            _ => false,
        });
        let mut tables: Vec<TableId> = deleted.map(|(id, _)| *id).collect();
        if !tables.is_empty() {
            tables.retain(|id| self.tablets.values().all(|tablet| tablet.record.table != *id));
        }
        for id in tables {
            self.tables.remove(&id);
            self.dirty.insert(RowKey::Table(id));
        }
    }
}

fn was_failed(tablet: &Tablet, server: PeerId) -> bool {
    tablet.replicas.get(&server).is_some_and(|replica| replica.state == ReplicaState::Failed)
}

/// What is known after a replica's report. The configuration and the leader are taken each from whoever has the
/// newer: the configuration with the higher index, the leader of the higher term (of the same term, if none was
/// known). A report that is older in both changes nothing, whenever it arrives.
///
/// A term without a leader is an election under way: until it is won, clients are told of the leader before. It sends
/// them on or has died, which they notice; a tablet that is said to have no leader at all they give up.
fn merged(known: &Consensus, reported: &Consensus) -> Consensus {
    let mut merged = known.clone();
    if reported.config_index > known.config_index && !reported.peers.is_empty() {
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
    let goes_back = merged.term < known.term || merged.config_index < known.config_index;
    debug_assert!(!goes_back, "a master knows of {known:?} and goes back to {merged:?}");
    merged
}

/// The schema version that the tablet serves: its leader's, as last reported.
pub(super) fn applied_version(tablet: &Tablet) -> Option<u32> {
    let leader = tablet.record.consensus.leader?;
    tablet.replicas.get(&leader)?.schema_version
}
