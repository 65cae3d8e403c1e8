//! Keeping each tablet at its replication factor.
//!
//! ```text
//! leader's report (configuration, health) ──▶ decide ──▶ evict?      ── ChangeConfig to the leader, by
//!                                                   ├──▶ add?        ──  compare-and-set on the index
//!                                                   └──▶ hand over?  ── LeaderStepDown to the leader
//! a server reports a replica that the configuration does not name ──▶ DeleteTablet (tombstone), until done
//! ```
//!
//! A replacement comes before the eviction ("3-4-3"): a new NON_VOTER is added, marked to be promoted; the leader
//! copies the tablet to it and makes it a voter when it has caught up; only then the failed one goes. A replica that
//! is lost beyond recovery goes first. Nothing is changed unless a majority of the voters that would remain is
//! healthy: such a change could not commit, or would leave the tablet worse off than before. A leader that is marked
//! for replacement is not evicted: when the others have sufficed for a while, it hands over, as whoever marked it may
//! be gone.
//!
//! Decisions are made anew from every report and once a second. They are not stored: the next master makes them again.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::record::{Consensus, Peer, TabletState};
use super::servers::{DataState, ReplicaState, ReportedTablet};
use super::tasks::{TaskKey, TaskKind};
use super::{Catalog, Effects, Note, Tablet};
use crate::error::Error;
use crate::ids::{PeerId, TabletId};
use crate::time::{Instant, Now};

/// How a leader finds a member; the numbers are Kudu's `HealthStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(i32)]
pub enum Health {
    /// Not heard of for long.
    Failed = 0,
    Healthy = 1,
    /// It cannot catch up any more: what it needs is gone from the leader's log, or its data is lost.
    FailedUnrecoverable = 2,
    /// The leader has not heard of it yet.
    #[default]
    Unknown = 999,
}

impl Health {
    fn is_failed(self) -> bool {
        matches!(self, Health::Failed | Health::FailedUnrecoverable)
    }
}

/// One change of a tablet's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberChange {
    /// Add this server as a NON_VOTER to be promoted.
    Add(Peer),
    Evict(PeerId),
    /// Has the leader, which is to go, let this voter lead.
    HandOver(PeerId),
}

impl fmt::Display for MemberChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberChange::Add(peer) => write!(f, "add {}", peer.server),
            MemberChange::Evict(server) => write!(f, "evict {server}"),
            MemberChange::HandOver(server) => write!(f, "hand over to {server}"),
        }
    }
}

/// What became of the last change asked for.
#[derive(Debug, Default)]
pub(super) struct RepairState {
    /// The last change done, and the index of the configuration it replaced; a report of the new one is on its way.
    done: Option<(i64, MemberChange)>,
    failures: u32,
    /// Not to be tried before.
    due: Instant,
    /// Since when its leader might hand over and go.
    leader_spare: Option<Instant>,
    /// It has been said that no server is left.
    noted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Add,
    Evict(PeerId),
    HandOver(PeerId),
}

/// A configuration as its leader sees it.
struct Members<'a> {
    consensus: &'a Consensus,
    health: &'a BTreeMap<PeerId, Health>,
    /// Replicas wanted.
    wanted: usize,
    /// Servers that may be silent for a while: they are in maintenance.
    excused: &'a dyn Fn(PeerId) -> bool,
}

impl Members<'_> {
    fn health(&self, peer: &Peer) -> Health {
        self.health.get(&peer.server).copied().unwrap_or_default()
    }

    fn voters(&self) -> impl Iterator<Item = &Peer> {
        self.consensus.peers.iter().filter(|peer| peer.voter)
    }

    fn is_healthy(&self, peer: &Peer) -> bool {
        self.health(peer) == Health::Healthy
    }

    /// Healthy and there to stay.
    fn is_good(&self, peer: &Peer) -> bool {
        self.is_healthy(peer) && !peer.replace
    }

    /// Whether the voters without `gone` can commit.
    fn can_commit(&self, gone: Option<PeerId>) -> bool {
        let rest = || self.voters().filter(|peer| Some(peer.server) != gone);
        let healthy = rest().filter(|peer| self.is_healthy(peer)).count();
        healthy > rest().count() / 2
    }

    /// Whether a voter or voter-to-be is missing, and could be added.
    fn lacks(&self) -> bool {
        let leaves =
            |peer: &&Peer| peer.replace || (self.health(peer).is_failed() && !(self.excused)(peer.server));
        let staying = self.voters().filter(|peer| !leaves(peer)).count();
        let coming =
            |peer: &&Peer| !peer.voter && peer.promote && !peer.replace && !self.health(peer).is_failed();
        let coming = self.consensus.peers.iter().filter(coming).count();
        staying + coming < self.wanted
    }

    /// A NON_VOTER that is of no use, the worst first.
    fn useless_learner(&self) -> Option<PeerId> {
        let learners = || self.consensus.peers.iter().filter(|peer| !peer.voter);
        let of = |health: Health| learners().find(|peer| self.health(peer) == health);
        let failed = of(Health::FailedUnrecoverable).or_else(|| of(Health::Failed));
        let enough = self.voters().filter(|peer| self.is_good(peer)).count() >= self.wanted;
        let surplus = || learners().find(|peer| !self.is_healthy(peer)).or_else(|| learners().next());
        let found = failed.or_else(|| enough.then(surplus).flatten());
        found.filter(|_| self.can_commit(None)).map(|peer| peer.server)
    }

    /// How gladly a voter is seen to go: 0 is the first.
    fn rank(&self, peer: &Peer) -> u32 {
        match self.health(peer) {
            Health::FailedUnrecoverable => 0,
            Health::Failed => 1,
            _ if peer.replace => 2,
            Health::Unknown => 3,
            Health::Healthy => 4,
        }
    }

    fn may_evict(&self, peer: &Peer) -> bool {
        let total = self.voters().count();
        let others = self.voters().filter(|other| other.server != peer.server);
        let good = others.filter(|other| self.is_good(other)).count();
        let spare = match self.health(peer) {
            Health::FailedUnrecoverable => total > 1,
            Health::Failed => total > self.wanted,
            // Those that can still be read from stay until enough others can.
            Health::Unknown | Health::Healthy => false,
        };
        (spare || good >= self.wanted) && self.can_commit(Some(peer.server))
    }

    /// A voter that has to go, never the leader. Among equals it is the one in the fullest location.
    fn useless_voter(&self, crowd: impl Fn(PeerId) -> usize) -> Option<PeerId> {
        let leader = self.consensus.leader;
        let candidates = self.voters().filter(|peer| Some(peer.server) != leader && self.may_evict(peer));
        let key = |peer: &&Peer| (self.rank(peer), usize::MAX - crowd(peer.server), peer.server);
        candidates.min_by_key(key).map(|peer| peer.server)
    }

    fn decide(&self, crowd: impl Fn(PeerId) -> usize) -> Option<Decision> {
        self.consensus.leader?;
        if let Some(server) = self.useless_learner().or_else(|| self.useless_voter(crowd)) {
            return Some(Decision::Evict(server));
        }
        if self.lacks() && self.can_commit(None) {
            return Some(Decision::Add);
        }
        self.successor().map(Decision::HandOver)
    }

    /// Who should lead instead of a leader that is marked for replacement, if that one is needed no more.
    fn successor(&self) -> Option<PeerId> {
        let leader = self.voters().find(|peer| Some(peer.server) == self.consensus.leader)?;
        let mut good = self.voters().filter(|peer| self.is_good(peer));
        good.next().filter(|_| leader.replace && self.may_evict(leader)).map(|peer| peer.server)
    }
}

const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How long a leader that is marked for replacement may lead on once it is needed no more.
const HAND_OVER_AFTER: Duration = Duration::from_secs(5);
/// A leader that said that it hands over is not asked again for so long.
const HAND_OVER_TIME: Duration = Duration::from_secs(5);

impl Catalog {
    /// A replica was reported; `known` is what was known of its tablet before.
    #[expect(clippy::too_many_arguments, reason = "the parts of one report")]
    pub(super) fn members_seen(
        &mut self,
        now: Now,
        id: TabletId,
        server: PeerId,
        known: &Consensus,
        term: Option<i64>,
        health: BTreeMap<PeerId, Health>,
        out: &mut Effects,
    ) {
        let Some(tablet) = self.tablets.get_mut(&id) else { return };
        let consensus = &tablet.record.consensus;
        if consensus.config_index != known.config_index || consensus.leader != known.leader {
            tablet.repair = RepairState::default();
        }
        if consensus.term != known.term || consensus.leader != known.leader {
            tablet.health.clear();
        }
        if consensus.leader == Some(server) && term == Some(consensus.term) {
            tablet.health = health;
        }
        self.remove_evicted(now, id, &known.peers, out);
        self.repair(now, id, out);
    }

    /// Has the replicas removed that the configuration does not name: those of servers it named before, and those
    /// that servers report. One that knows as new a configuration may be a copy for the next, which its leader has in
    /// its log only (Kudu too removes those of older configurations).
    fn remove_evicted(&mut self, now: Now, id: TabletId, before: &[Peer], out: &mut Effects) {
        let tablet = &self.tablets[&id];
        let consensus = &tablet.record.consensus;
        if !self.config.remove_evicted || tablet.record.state != TabletState::Running {
            return;
        }
        let is_old = |replica: &ReportedTablet| {
            let index = replica.consensus.as_ref().map_or(-1, |consensus| consensus.config_index);
            replica.data == DataState::Ready && index < consensus.config_index
        };
        let reported = tablet.replicas.iter().filter(|(_, replica)| is_old(replica)).map(|(id, _)| *id);
        let mut evicted: Vec<PeerId> = before.iter().map(|peer| peer.server).chain(reported).collect();
        // Those that are not registered report what they have when they come back.
        let registered = |server: &PeerId| self.servers.contains_key(server);
        evicted.retain(|server| {
            registered(server) && !consensus.has(*server) && !self.is_being_added(id, *server)
        });
        evicted.sort();
        evicted.dedup();
        for server in evicted {
            let key = TaskKey { server, tablet: id, kind: TaskKind::Remove };
            if !self.tasks.has(&key) {
                out.notes.push(Note::ReplicaEvicted { tablet: id, server });
                self.add_task(now, TaskKind::Remove, id, server);
            }
        }
    }

    /// Whether the leader has been asked to add this server: it may report itself before the leader does.
    fn is_being_added(&self, tablet: TabletId, server: PeerId) -> bool {
        let Some(leader) = self.tablets[&tablet].record.consensus.leader else { return false };
        let key = TaskKey { server: leader, tablet, kind: TaskKind::ChangeConfig };
        let asked = self.tasks.change(&key).or(self.tablets[&tablet].repair.done.as_ref());
        matches!(asked, Some((_, MemberChange::Add(peer))) if peer.server == server)
    }

    /// The server has removed its replica and kept a tombstone.
    pub(super) fn replica_removed(&mut self, id: TabletId, server: PeerId) {
        let Some(tablet) = self.tablets.get_mut(&id) else { return };
        if let Some(replica) = tablet.replicas.get_mut(&server) {
            replica.data = DataState::Tombstoned;
            replica.state = ReplicaState::Shutdown;
        }
    }

    /// Looks at every tablet, as failed changes are to be tried again and servers come and go.
    pub(super) fn repair_all(&mut self, now: Now, out: &mut Effects) {
        let ids: Vec<TabletId> = self
            .tablets
            .iter()
            .filter(|(_, tablet)| !tablet.health.is_empty() && tablet.record.state == TabletState::Running)
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.repair(now, id, out);
        }
    }

    pub(super) fn lacks_replicas(&self, tablet: &Tablet) -> bool {
        tablet.record.state == TabletState::Running
            && !tablet.health.is_empty()
            && self.members(tablet, &|server| self.in_maintenance(server)).lacks()
    }

    fn members<'a>(&self, tablet: &'a Tablet, excused: &'a dyn Fn(PeerId) -> bool) -> Members<'a> {
        let wanted = self.tables[&tablet.record.table].record.replicas.max(1) as usize;
        Members { consensus: &tablet.record.consensus, health: &tablet.health, wanted, excused }
    }

    /// Decides what the tablet needs and asks its leader for it.
    fn repair(&mut self, now: Now, id: TabletId, out: &mut Effects) {
        let tablet = &self.tablets[&id];
        let consensus = &tablet.record.consensus;
        let Some(leader) = consensus.leader else { return };
        let done = tablet.repair.done.as_ref().is_some_and(|(index, _)| *index == consensus.config_index);
        let waits = tablet.repair.due > now.mono || done;
        let idle = tablet.health.is_empty() || tablet.record.state != TabletState::Running;
        let key = TaskKey { server: leader, tablet: id, kind: TaskKind::ChangeConfig };
        if !self.config.repair || waits || idle || !self.is_alive(now.mono, leader) || self.tasks.has(&key) {
            return;
        }
        let excused = |server| self.in_maintenance(server);
        let members = self.members(tablet, &excused);
        let Some(decision) = members.decide(|server| self.crowd(consensus, server)) else { return };
        if matches!(decision, Decision::HandOver(_)) && !self.is_overdue(now, id) {
            return;
        }
        let consensus = &self.tablets[&id].record.consensus;
        let index = consensus.config_index;
        let change = match decision {
            Decision::Evict(server) => Some(MemberChange::Evict(server)),
            Decision::Add => self.new_member(now, id),
            Decision::HandOver(server) => Some(MemberChange::HandOver(server)),
        };
        let Some(change) = change else {
            self.note_no_server(id, out);
            return;
        };
        out.notes.push(Note::ReplicaWanted { tablet: id, change: change.clone() });
        self.tasks.add(now.mono, key, Some((index, change)));
    }

    /// Whether a leader that is marked for replacement has been left where it is for long enough: whoever marked it
    /// may be about to have it step down.
    fn is_overdue(&mut self, now: Now, id: TabletId) -> bool {
        let Some(tablet) = self.tablets.get_mut(&id) else { return false };
        now.mono.since(*tablet.repair.leader_spare.get_or_insert(now.mono)) >= HAND_OVER_AFTER
    }

    /// How many members stand in the location of this one.
    fn crowd(&self, consensus: &Consensus, server: PeerId) -> usize {
        let Some(location) = self.location(server) else { return 0 };
        consensus.peers.iter().filter(|peer| self.location(peer.server) == Some(location)).count()
    }

    /// A server for one more replica, which may stand in for any that is about to go.
    fn new_member(&mut self, now: Now, id: TabletId) -> Option<MemberChange> {
        let tablet = &self.tablets[&id];
        let peers = &tablet.record.consensus.peers;
        let all: Vec<PeerId> = peers.iter().map(|peer| peer.server).collect();
        let stays = |peer: &&Peer| {
            let health = tablet.health.get(&peer.server).copied().unwrap_or_default();
            !peer.replace && !health.is_failed()
        };
        let staying: Vec<PeerId> = peers.iter().filter(stays).map(|peer| peer.server).collect();
        let range = self.range_start(&tablet.record);
        let loads = self.loads(now.mono, tablet.record.table);
        // A replica made where an older one is about to be removed may meet that order, and would be copied twice.
        let is_cleared = |server: &PeerId| {
            self.tasks.has(&TaskKey { server: *server, tablet: id, kind: TaskKind::Remove })
        };
        let cleared = self.servers.keys().copied().filter(is_cleared);
        let taken: Vec<PeerId> = all.iter().copied().chain(cleared).collect();
        let chosen = loads.pick(&mut self.dice, &taken, &staying, &range);
        let chosen = chosen.or_else(|| loads.pick(&mut self.dice, &all, &staying, &range))?;
        let peer = self.new_peer(chosen)?;
        Some(MemberChange::Add(Peer { voter: false, promote: true, ..peer }))
    }

    fn note_no_server(&mut self, id: TabletId, out: &mut Effects) {
        let tablet = self.tablets.get_mut(&id).expect("the caller found it");
        if !std::mem::replace(&mut tablet.repair.noted, true) {
            let reason = "no other live tablet server can take a replica".to_string();
            out.notes.push(Note::TabletUnderReplicated { tablet: id, reason });
        }
    }

    /// The leader has answered. Whatever went wrong, what is to be done is decided anew, a little later.
    pub(super) fn config_answered(
        &mut self,
        now: Now,
        task: TaskKey,
        result: Result<(), Error>,
        out: &mut Effects,
    ) {
        let change = self.tasks.change(&task).cloned();
        self.tasks.remove(task);
        let Some(tablet) = self.tablets.get_mut(&task.tablet) else { return };
        let repair = &mut tablet.repair;
        match result {
            // Another leader's report tells that it did; the configuration stays as it is.
            Ok(()) if matches!(change, Some((_, MemberChange::HandOver(_)))) => {
                repair.due = now.mono.after(HAND_OVER_TIME);
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
                out.notes.push(Note::RequestFailed { task, attempts, error: error.message });
            }
        }
    }
}

#[cfg(test)]
mod tests;
