//! Re-replication: keeps each tablet at its replication factor.
//!
//! ```text
//! leader's report (configuration, health) ──▶ decide ──▶ evict?      ── ChangeConfig to the leader, by
//!                                                   ├──▶ add?        ──  compare-and-set on the index
//!                                                   └──▶ transfer?   ── LeaderStepDown to the leader
//! a server reports a replica outside the configuration ──▶ DeleteTablet (tombstone), until done
//! ```
//!
//! A replacement precedes the eviction ("3-4-3"). A new learner is added, marked to be promoted. The leader copies the
//! tablet to it and promotes it when it has caught up; only then the failed one is evicted. A replica that is lost
//! beyond recovery is evicted first. No change is made unless a majority of the remaining voters is healthy: it could
//! not commit, or would leave the tablet worse off than before.
//!
//! A leader that is marked for replacement is not evicted. Once the other voters have sufficed for a while, it
//! transfers its leadership, as the tool that marked it may be gone.
//!
//! Decisions are made again from every report and once per second. They are not stored: the next master makes them
//! again.

use std::collections::BTreeMap;
use std::time::Duration;

use super::heartbeat::{ReplicaState, ReportedDataState, ReportedTablet};
use super::membership::{MembershipChange, PendingRepair, ReportedHealth};
use super::placement::TableRange;
use super::record::{ConsensusState, PeerRecord, TabletLifecycle};
use super::task_queue::{TaskKey, TaskKind};
use super::{Catalog, CatalogEffects, CatalogNote, Tablet};
use crate::error::Error;
use crate::ids::{PeerId, TabletId};
use crate::time::ClockReading;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RepairDecision {
    Add,
    Evict(PeerId),
    HandOver(PeerId),
}

/// A configuration as its leader sees it.
struct MemberView<'a> {
    consensus: &'a ConsensusState,
    health: &'a BTreeMap<PeerId, ReportedHealth>,
    /// Replication factor.
    wanted: usize,
    /// Returns true for servers that may be silent for a while: they are in maintenance.
    in_maintenance: &'a dyn Fn(PeerId) -> bool,
}

impl MemberView<'_> {
    fn health(&self, peer: &PeerRecord) -> ReportedHealth {
        self.health.get(&peer.server).copied().unwrap_or_default()
    }

    fn voters(&self) -> impl Iterator<Item = &PeerRecord> {
        self.consensus.peers.iter().filter(|peer| peer.voter)
    }

    fn is_healthy(&self, peer: &PeerRecord) -> bool {
        self.health(peer) == ReportedHealth::Healthy
    }

    /// Returns true if the member is healthy and not marked for replacement.
    fn is_good(&self, peer: &PeerRecord) -> bool {
        self.is_healthy(peer) && !peer.replace
    }

    /// Returns true if the voters without `evicted` can commit.
    fn can_commit(&self, evicted: Option<PeerId>) -> bool {
        let remaining = || self.voters().filter(|peer| Some(peer.server) != evicted);
        let healthy = remaining().filter(|peer| self.is_healthy(peer)).count();
        healthy > remaining().count() / 2
    }

    /// Returns true if a voter, or a learner to be promoted, is missing and could be added.
    fn needs_voter(&self) -> bool {
        let leaves = |peer: &&PeerRecord| {
            peer.replace || (self.health(peer).is_failed() && !(self.in_maintenance)(peer.server))
        };
        let staying = self.voters().filter(|peer| !leaves(peer)).count();
        let is_coming = |peer: &&PeerRecord| {
            !peer.voter && peer.promote && !peer.replace && !self.health(peer).is_failed()
        };
        let coming = self.consensus.peers.iter().filter(is_coming).count();
        staying + coming < self.wanted
    }

    /// A learner that is failed or surplus, the worst first.
    fn evictable_learner(&self) -> Option<PeerId> {
        let learners = || self.consensus.peers.iter().filter(|peer| !peer.voter);
        let with_health = |health: ReportedHealth| learners().find(|peer| self.health(peer) == health);
        let failed =
            with_health(ReportedHealth::FailedUnrecoverable).or_else(|| with_health(ReportedHealth::Failed));
        let enough = self.voters().filter(|peer| self.is_good(peer)).count() >= self.wanted;
        let surplus = || learners().find(|peer| !self.is_healthy(peer)).or_else(|| learners().next());
        let found = failed.or_else(|| enough.then(surplus).flatten());
        found.filter(|_| self.can_commit(None)).map(|peer| peer.server)
    }

    /// Order of eviction of a voter: 0 is the first.
    fn rank(&self, peer: &PeerRecord) -> u32 {
        match self.health(peer) {
            ReportedHealth::FailedUnrecoverable => 0,
            ReportedHealth::Failed => 1,
            _ if peer.replace => 2,
            ReportedHealth::Unknown => 3,
            ReportedHealth::Healthy => 4,
        }
    }

    fn may_evict(&self, peer: &PeerRecord) -> bool {
        let total = self.voters().count();
        let others = self.voters().filter(|other| other.server != peer.server);
        let good = others.filter(|other| self.is_good(other)).count();
        let spare = match self.health(peer) {
            ReportedHealth::FailedUnrecoverable => total > 1,
            ReportedHealth::Failed => total > self.wanted,
            // Readable replicas stay until enough others are good.
            ReportedHealth::Unknown | ReportedHealth::Healthy => false,
        };
        (spare || good >= self.wanted) && self.can_commit(Some(peer.server))
    }

    /// A voter to evict, never the leader. Among equals it is the one in the fullest location.
    fn evictable_voter(&self, crowd: impl Fn(PeerId) -> usize) -> Option<PeerId> {
        let leader = self.consensus.leader;
        let candidates = self.voters().filter(|peer| Some(peer.server) != leader && self.may_evict(peer));
        let key = |peer: &&PeerRecord| (self.rank(peer), usize::MAX - crowd(peer.server), peer.server);
        candidates.min_by_key(key).map(|peer| peer.server)
    }

    fn decide(&self, crowd: impl Fn(PeerId) -> usize) -> Option<RepairDecision> {
        self.consensus.leader?;
        if let Some(server) = self.evictable_learner().or_else(|| self.evictable_voter(crowd)) {
            return Some(RepairDecision::Evict(server));
        }
        if self.needs_voter() && self.can_commit(None) {
            return Some(RepairDecision::Add);
        }
        self.next_leader().map(RepairDecision::HandOver)
    }

    /// The next leader instead of one that is marked for replacement, if the group can do without that one.
    fn next_leader(&self) -> Option<PeerId> {
        let leader = self.voters().find(|peer| Some(peer.server) == self.consensus.leader)?;
        let mut good = self.voters().filter(|peer| self.is_good(peer));
        good.next().filter(|_| leader.replace && self.may_evict(leader)).map(|peer| peer.server)
    }
}

const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Time for which a leader that is marked for replacement may still lead once it is dispensable.
const TRANSFER_AFTER: Duration = Duration::from_secs(5);
/// Time after a requested transfer before the leader is asked again.
const TRANSFER_RETRY_AFTER: Duration = Duration::from_secs(5);

impl Catalog {
    /// Handles a replica's report; `known` is the earlier state of its tablet.
    #[expect(clippy::too_many_arguments, reason = "the parts of one report")]
    pub(super) fn on_members_reported(
        &mut self,
        now: ClockReading,
        id: TabletId,
        server: PeerId,
        known: &ConsensusState,
        term: Option<i64>,
        health: BTreeMap<PeerId, ReportedHealth>,
        out: &mut CatalogEffects,
    ) {
        let Some(tablet) = self.tablets.get_mut(&id) else { return };
        let consensus = &tablet.record.consensus;
        if consensus.config_index != known.config_index || consensus.leader != known.leader {
            tablet.repair = PendingRepair::default();
        }
        if consensus.term != known.term || consensus.leader != known.leader {
            tablet.health.clear();
        }
        if consensus.leader == Some(server) && term == Some(consensus.term) {
            tablet.health = health;
        }
        self.tasks.note_report(&TaskKey { server, tablet: id, kind: TaskKind::Remove });
        self.remove_evicted(now, id, &known.peers, out);
        self.repair(now, id, out);
    }

    /// Has replicas outside the configuration removed: those of evicted members, and those that servers report. A
    /// replica that knows an equally new configuration may be a copy for the next one, which its leader has only in its
    /// log (Kudu too removes those of older configurations).
    pub(super) fn remove_evicted(
        &mut self,
        now: ClockReading,
        id: TabletId,
        before: &[PeerRecord],
        out: &mut CatalogEffects,
    ) {
        let Some(tablet) = self.tablets.get(&id) else { return };
        let consensus = &tablet.record.consensus;
        if !self.config.remove_evicted || tablet.record.state != TabletLifecycle::Running {
            return;
        }
        let is_old = |replica: &ReportedTablet| {
            replica.data == ReportedDataState::Ready && tablet.is_older_config(replica)
        };
        let reported = tablet.replicas.iter().filter(|(_, replica)| is_old(replica)).map(|(id, _)| *id);
        let mut evicted: Vec<PeerId> = before.iter().map(|peer| peer.server).chain(reported).collect();
        // Servers that are not registered report their replicas when they return.
        let registered = |server: &PeerId| self.servers.contains_key(server);
        evicted.retain(|server| {
            registered(server) && !consensus.has(*server) && !self.is_being_added(id, *server)
        });
        evicted.sort();
        evicted.dedup();
        for server in evicted {
            let key = TaskKey { server, tablet: id, kind: TaskKind::Remove };
            if !self.tasks.has(&key) {
                out.notes.push(CatalogNote::ReplicaEvicted { tablet: id, server });
                self.add_task(now, TaskKind::Remove, id, server);
            }
        }
    }

    /// Returns true if the leader has been asked to add this server: it may send a report before the leader does.
    fn is_being_added(&self, tablet: TabletId, server: PeerId) -> bool {
        self.requested_addition(tablet).is_some_and(|(_, requested)| requested == server)
    }

    /// The server that the leader has been asked to add, with the index of the configuration to which it is added.
    pub(super) fn requested_addition(&self, tablet: TabletId) -> Option<(i64, PeerId)> {
        let entry = self.tablets.get(&tablet)?;
        let key = TaskKey { server: entry.record.consensus.leader?, tablet, kind: TaskKind::ChangeConfig };
        match self.tasks.change(&key).or(entry.repair.done.as_ref())? {
            (index, MembershipChange::Add(peer)) => Some((*index, peer.server)),
            _ => None,
        }
    }

    /// Records that the server has removed its replica and kept a tombstone.
    pub(super) fn replica_removed(&mut self, id: TabletId, server: PeerId) {
        let Some(tablet) = self.tablets.get_mut(&id) else { return };
        if let Some(replica) = tablet.replicas.get_mut(&server) {
            replica.data = ReportedDataState::Tombstoned;
            replica.state = ReplicaState::Shutdown;
        }
    }

    /// Checks every tablet: failed changes are retried, and servers join and leave.
    pub(super) fn repair_all(&mut self, now: ClockReading, out: &mut CatalogEffects) {
        let ids: Vec<TabletId> = self
            .tablets
            .iter()
            .filter(|(_, tablet)| {
                !tablet.health.is_empty() && tablet.record.state == TabletLifecycle::Running
            })
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.repair(now, id, out);
        }
    }

    pub(super) fn lacks_replicas(&self, tablet: &Tablet) -> bool {
        tablet.record.state == TabletLifecycle::Running
            && !tablet.health.is_empty()
            && self.members(tablet, &|server| self.in_maintenance(server)).needs_voter()
    }

    fn members<'a>(&self, tablet: &'a Tablet, in_maintenance: &'a dyn Fn(PeerId) -> bool) -> MemberView<'a> {
        let wanted = self.tables[&tablet.record.table].record.replicas.max(1) as usize;
        MemberView { consensus: &tablet.record.consensus, health: &tablet.health, wanted, in_maintenance }
    }

    /// Decides the next change of the tablet and requests it from its leader.
    fn repair(&mut self, now: ClockReading, id: TabletId, out: &mut CatalogEffects) {
        let tablet = &self.tablets[&id];
        let consensus = &tablet.record.consensus;
        let Some(leader) = consensus.leader else { return };
        let done = tablet.repair.done.as_ref().is_some_and(|(index, _)| *index == consensus.config_index);
        let must_wait = tablet.repair.due > now.mono || done;
        let not_repairable = tablet.health.is_empty() || tablet.record.state != TabletLifecycle::Running;
        let key = TaskKey { server: leader, tablet: id, kind: TaskKind::ChangeConfig };
        if !self.config.repair
            || must_wait
            || not_repairable
            || !self.is_alive(now.mono, leader)
            || self.tasks.has(&key)
        {
            return;
        }
        let in_maintenance = |server| self.in_maintenance(server);
        let members = self.members(tablet, &in_maintenance);
        let Some(decision) = members.decide(|server| self.replicas_in_location(consensus, server)) else {
            return;
        };
        if matches!(decision, RepairDecision::HandOver(_)) && !self.is_overdue(now, id) {
            return;
        }
        let consensus = &self.tablets[&id].record.consensus;
        let index = consensus.config_index;
        let change = match decision {
            RepairDecision::Evict(server) => Some(MembershipChange::Evict(server)),
            RepairDecision::Add => self.new_member(now, id),
            RepairDecision::HandOver(server) => Some(MembershipChange::HandOver(server)),
        };
        let Some(change) = change else {
            self.note_no_server(id, out);
            return;
        };
        out.notes.push(CatalogNote::ReplicaWanted { tablet: id, change: change.clone() });
        self.tasks.add(now.mono, key, Some((index, change)));
    }

    /// Returns true if a leader that is marked for replacement has led long enough since it became dispensable: the
    /// tool that marked it may be about to make it step down.
    fn is_overdue(&mut self, now: ClockReading, id: TabletId) -> bool {
        let Some(tablet) = self.tablets.get_mut(&id) else { return false };
        now.mono.since(*tablet.repair.leader_dispensable_since.get_or_insert(now.mono)) >= TRANSFER_AFTER
    }

    /// Number of members in the location of this one.
    fn replicas_in_location(&self, consensus: &ConsensusState, server: PeerId) -> usize {
        let Some(location) = self.location(server) else { return 0 };
        consensus.peers.iter().filter(|peer| self.location(peer.server) == Some(location)).count()
    }

    /// Chooses a server for one more replica, which may replace one that is about to be evicted.
    fn new_member(&mut self, now: ClockReading, id: TabletId) -> Option<MembershipChange> {
        let tablet = &self.tablets[&id];
        let peers = &tablet.record.consensus.peers;
        let all: Vec<PeerId> = peers.iter().map(|peer| peer.server).collect();
        let stays = |peer: &&PeerRecord| {
            let health = tablet.health.get(&peer.server).copied().unwrap_or_default();
            !peer.replace && !health.is_failed()
        };
        let staying: Vec<PeerId> = peers.iter().filter(stays).map(|peer| peer.server).collect();
        let (table, range) = (tablet.record.table, TableRange::of(&tablet.record));
        let is_candidate =
            |server: &PeerId| !all.contains(server) && self.can_take_replicas(now.mono, *server);
        // Order: the replicas are counted only if there is a server, because this is repeated every second.
        if !self.servers.keys().any(is_candidate) {
            return None;
        }
        self.count_replicas(now.mono, table);
        let loads = self.loads.as_ref().expect("just counted");
        // Servers where an older replica is being removed are avoided: the deletion may hit the new replica, which
        // would be copied twice.
        let is_cleared = |server: &PeerId| {
            self.tasks.has(&TaskKey { server: *server, tablet: id, kind: TaskKind::Remove })
        };
        let cleared = self.servers.keys().copied().filter(is_cleared);
        let taken: Vec<PeerId> = all.iter().copied().chain(cleared).collect();
        let chosen = loads.pick(&mut self.id_rng, &taken, &staying, &range);
        let chosen = chosen.or_else(|| loads.pick(&mut self.id_rng, &all, &staying, &range))?;
        let peer = self.new_peer(chosen)?;
        if let Some(loads) = &mut self.loads {
            loads.plan(id, chosen, &range);
        }
        Some(MembershipChange::Add(PeerRecord { voter: false, promote: true, ..peer }))
    }

    fn note_no_server(&mut self, id: TabletId, out: &mut CatalogEffects) {
        let tablet = self.tablets.get_mut(&id).expect("the caller found it");
        if !std::mem::replace(&mut tablet.repair.noted, true) {
            let reason = "no other live tablet server can take a replica".to_string();
            out.notes.push(CatalogNote::TabletUnderReplicated { tablet: id, reason });
        }
    }

    /// Handles the leader's response. After any error the change is decided again, a little later.
    pub(super) fn on_config_response(
        &mut self,
        now: ClockReading,
        task: TaskKey,
        result: Result<(), Error>,
        out: &mut CatalogEffects,
    ) {
        let change = self.tasks.change(&task).cloned();
        self.tasks.remove(task);
        let Some(tablet) = self.tablets.get_mut(&task.tablet) else { return };
        let repair = &mut tablet.repair;
        match result {
            // Another leader's report confirms the transfer; the configuration does not change.
            Ok(()) if matches!(change, Some((_, MembershipChange::HandOver(_)))) => {
                repair.due = now.mono.after(TRANSFER_RETRY_AFTER);
                repair.failures = 0;
            }
            Ok(()) => {
                repair.done = change;
                repair.failures = 0;
            }
            Err(error) => {
                repair.failures += 1;
                let wait = RETRY_MIN * 2u32.pow(repair.failures.min(10) - 1);
                repair.due = now.mono.after(wait.min(RETRY_MAX));
                let attempts = repair.failures;
                out.notes.push(CatalogNote::RequestFailed { task, attempts, error: error.message });
                // The server that was to be added may have an old replica, which was spared for it.
                self.remove_evicted(now, task.tablet, &[], out);
            }
        }
    }
}

#[cfg(test)]
mod tests;
