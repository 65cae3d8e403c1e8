//! Calls of the catalog to tablet servers against what their tablets allow.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::catalog::{
    CreateTabletCall, Heartbeat, MembershipChange, PeerRecord, ReportedHealth, ReportedTablet, TaskKey,
    TserverCall, TserverRequest,
};
use engine::ids::{PeerId, TabletId};

use super::CatalogTrial;
use super::group::{Group, Member, short};
use super::master::{LeaderReport, RegisteredServer};
use super::model::ModelTablet;
use super::observe::columns;
use super::server::TrialServer;
use super::table_settings::has_settings;

/// A configuration with the health that its leader reports.
struct Members<'a> {
    members: &'a [Member],
    health: &'a BTreeMap<PeerId, ReportedHealth>,
    wanted: usize,
}

impl Members<'_> {
    fn health(&self, server: PeerId) -> ReportedHealth {
        self.health.get(&server).copied().unwrap_or_default()
    }

    fn has_failed(&self, server: PeerId) -> bool {
        matches!(self.health(server), ReportedHealth::Failed | ReportedHealth::FailedUnrecoverable)
    }

    fn member(&self, server: PeerId) -> Option<&Member> {
        self.members.iter().find(|member| member.server == server)
    }

    /// Returns voters but this one, and how many of them are healthy, and healthy and not to be replaced.
    fn voters_but(&self, left_out: Option<PeerId>) -> (usize, usize, usize) {
        let voters: Vec<&Member> =
            self.members.iter().filter(|member| member.voter && Some(member.server) != left_out).collect();
        let is_healthy = |member: &&&Member| self.health(member.server) == ReportedHealth::Healthy;
        let healthy: Vec<&&Member> = voters.iter().filter(is_healthy).collect();
        (voters.len(), healthy.len(), healthy.iter().filter(|member| !member.replace).count())
    }

    /// Returns true if voters, or learners on the way, are missing.
    fn lacks_voter(&self, spared: impl Fn(PeerId) -> bool) -> bool {
        let stays = |member: &Member| {
            let failed = self.has_failed(member.server) && !(member.voter && spared(member.server));
            !member.replace && !failed && (member.voter || member.promote)
        };
        self.members.iter().filter(|member| stays(member)).count() < self.wanted
    }

    fn check_eviction(&self, server: PeerId) -> Result<(), &'static str> {
        let member = self.member(server).ok_or("it is no member")?;
        let (voters, healthy, good) = self.voters_but(Some(server).filter(|_| member.voter));
        if healthy <= voters / 2 {
            return Err("no majority would be healthy");
        }
        let failed = self.has_failed(server);
        let lost = self.health(server) == ReportedHealth::FailedUnrecoverable;
        let spare = good >= self.wanted || lost || failed && (voters >= self.wanted || !member.voter);
        if spare { Ok(()) } else { Err("too few good ones would remain") }
    }
}

impl CatalogTrial {
    /// Records what the leading master learns from a heartbeat that it is about to process.
    pub(super) fn before_heartbeat(&mut self, beat: &Heartbeat) {
        let (now, silence) = (self.now, self.config.server_unresponsive_after);
        let known = self.master.registered.get(&beat.server);
        let outdated = known.is_some_and(|known| known.instance > beat.instance && now - known.at <= silence);
        if beat.registration.is_some() && !outdated {
            let last_report =
                known.filter(|known| known.instance == beat.instance).and_then(|it| it.last_report);
            let server = RegisteredServer::new(beat.instance, now, beat.location.clone());
            self.master.registered.insert(beat.server, RegisteredServer { last_report, ..server });
        }
        let Some(server) = self.master.registered.get_mut(&beat.server) else { return };
        if server.instance != beat.instance {
            return;
        }
        (server.at, server.takes_replicas) = (now, beat.takes_replicas);
        let Some(report) = &beat.report else { return };
        let overtaken = server.last_report >= report.number;
        server.last_report = report.number;
        if overtaken {
            server.reported = false;
            return;
        }
        if report.incremental && !server.reported {
            return;
        }
        server.reported = true;
        report.updated.iter().for_each(|tablet| self.record_report(beat.server, tablet));
    }

    fn record_report(&mut self, server: PeerId, tablet: &ReportedTablet) {
        self.master.creations.confirm(server, tablet.tablet);
        let Some(consensus) = &tablet.consensus else { return };
        let known = self.master.reports.get_mut(&tablet.tablet);
        let Some(leader) = consensus.leader else {
            // A former leader knows nothing of its members.
            let former = known.filter(|known| (known.term, known.leader) == (consensus.term, server));
            return former.into_iter().for_each(|known| known.health.clear());
        };
        let health = if leader == server { tablet.health.clone() } else { BTreeMap::new() };
        match known {
            Some(known) if known.term > consensus.term => {}
            Some(known) if known.term == consensus.term => {
                if leader == server {
                    known.health = health;
                }
            }
            known => {
                // The same leader in a later term has been asked before.
                let unasked_since =
                    known.filter(|known| known.leader == leader).and_then(|it| it.unasked_since);
                let report = LeaderReport { term: consensus.term, leader, health, unasked_since };
                self.master.reports.insert(tablet.tablet, report);
            }
        }
    }

    /// Checks a call of the leading master.
    pub(super) fn check_order(&mut self, request: &TserverRequest) {
        let TserverRequest { task, address, call } = request;
        let checked = match call {
            TserverCall::CreateTablet(create) => self.check_create(*task, create),
            TserverCall::AlterSchema { schema, version, table_name, extra, attributes } => {
                let newest = self.model.tablet(task.tablet).is_some_and(|(table, _)| {
                    (table.version, &table.name, &table.columns) == (*version, table_name, &columns(schema))
                        && has_settings(table, extra, attributes)
                });
                let leads = self.known_leader(task.tablet) == Some(task.server);
                if newest && leads { Ok(()) } else { Err("it has another version, or is to no leader") }
            }
            TserverCall::DeleteTablet { tombstone, config_index_max, .. } => {
                self.check_delete(*task, *tombstone, *config_index_max, true)
            }
            TserverCall::ChangeConfig { config_index, change } => {
                self.check_change(*task, *config_index, change)
            }
        };
        let known = self.servers.get(&task.server);
        let astray = known.is_some_and(|server| server.address != *address);
        let checked = checked.and(if astray { Err("it goes to another address") } else { Ok(()) });
        self.check(checked.map_err(|what| format!("the call {task}, {call:?}: {what}")));
    }

    /// Checks a call of a deposed master, which does not know the newest state.
    pub(super) fn check_late_order(&mut self, request: &TserverRequest) {
        let TserverRequest { task, call, .. } = request;
        let checked = match call {
            TserverCall::DeleteTablet { tombstone, config_index_max, .. } => {
                self.check_delete(*task, *tombstone, *config_index_max, false)
            }
            _ => Ok(()),
        };
        self.check(checked.map_err(|what| format!("the call {task} of a deposed master, {call:?}: {what}")));
    }

    fn known_leader(&self, tablet: TabletId) -> Option<PeerId> {
        self.master.catalog.tablet(tablet)?.record.consensus.leader
    }

    fn check_create(&self, task: TaskKey, call: &CreateTabletCall) -> Result<(), &'static str> {
        let (table, tablet) = self.model.tablet(task.tablet).ok_or("the tablet has ended")?;
        if table.tablets.get(&call.partition.start) != Some(tablet) || tablet.end != call.partition.end {
            return Err("it has other keys");
        }
        if call.table_name != table.name || !call.consensus.has(task.server) {
            return Err("it has another name, or members without the server");
        }
        if !has_settings(table, &call.extra, &call.attributes) {
            return Err("it has other settings than the table");
        }
        match self.groups.get(&task.tablet) {
            Some(group) if group.first_schema != call.schema => Err("the replicas began with another schema"),
            Some(group) if !same_servers(group, &call.consensus.peers) => Err("it has other members"),
            None if columns(&call.schema) != table.served => Err("it has a schema that is not served"),
            _ => Ok(()),
        }
    }

    fn check_delete(
        &self,
        task: TaskKey,
        tombstone: bool,
        index: Option<i64>,
        leading: bool,
    ) -> Result<(), &'static str> {
        let live = self.model.tablet(task.tablet);
        if !tombstone {
            return if live.is_none() { Ok(()) } else { Err("the tablet lives") };
        }
        let index = index.ok_or("it names no configuration")?;
        let group = self.groups.get(&task.tablet).ok_or("no replica was ever created")?;
        let known = live.map_or(index, |(_, tablet)| tablet.config_index);
        if leading && known != index {
            return Err("it names another configuration than the newest that is known");
        }
        match group.members_of(index) {
            None => Err("there never was such a configuration"),
            Some(members) if members.iter().any(|member| member.server == task.server) => {
                Err("that configuration has the server")
            }
            Some(_) => Ok(()),
        }
    }

    fn check_change(
        &mut self,
        task: TaskKey,
        index: i64,
        change: &MembershipChange,
    ) -> Result<(), &'static str> {
        let (table, tablet) = self.model.tablet(task.tablet).ok_or("the tablet has ended")?;
        if self.known_leader(task.tablet) != Some(task.server) || tablet.config_index != index {
            return Err("it is to no leader, or of no known configuration");
        }
        if self.master.open.contains(&task) {
            return Err("another change is in flight");
        }
        let wanted = table.replicas as usize;
        let report = self.master.reports.get(&task.tablet).ok_or("no leader has reported")?;
        let group = self.groups.get(&task.tablet).ok_or("no replica was ever created")?;
        let members = group.members_of(index).ok_or("there never was such a configuration")?;
        let members = Members { members, health: &report.health, wanted };
        // It may have been decided before another report, and have waited for earlier calls to the server.
        let waited = self.open_at(task.server) >= OPEN_MAX;
        match change {
            MembershipChange::Evict(server) if *server == task.server => Err("the leader is evicted"),
            _ if waited => Ok(()),
            MembershipChange::Evict(server) => members.check_eviction(*server),
            MembershipChange::Add(peer) => self.check_addition(task.tablet, &members, peer),
            MembershipChange::HandOver(server) => {
                let replaced = members.member(task.server).is_some_and(|leader| leader.replace);
                let fit = members.member(*server).is_some_and(|next| next.voter && !next.replace);
                let healthy = members.health(*server) == ReportedHealth::Healthy;
                if replaced && fit && healthy { Ok(()) } else { Err("leadership is not to be transferred") }
            }
        }?;
        self.reached.repairs += 1;
        let report = self.master.reports.get_mut(&task.tablet);
        report.into_iter().for_each(|report| report.unasked_since = Some(Duration::MAX));
        Ok(())
    }

    fn check_addition(
        &self,
        tablet: TabletId,
        members: &Members,
        peer: &PeerRecord,
    ) -> Result<(), &'static str> {
        let (voters, healthy, _) = members.voters_but(None);
        let spared = |server| self.model.maintenance.contains(&server);
        let address = self.servers.get(&peer.server).map(|server| &server.address);
        if members.member(peer.server).is_some() || peer.voter || !peer.promote {
            return Err("it is a member, or no learner to be promoted");
        }
        if !self.can_take(peer.server) || address.is_some_and(|address| *address != peer.address) {
            return Err("the server can take no replica, or has another address");
        }
        if healthy <= voters / 2 || !members.lacks_voter(spared) {
            return Err("no voter is missing, or too few are healthy");
        }
        if self.is_crowded(tablet, members, peer.server) {
            return Err("another location has fewer of the replicas that stay");
        }
        Ok(())
    }

    /// Returns true if the location of a server has more replicas that stay than that of another server, which could
    /// take the new one and was never to have one.
    fn is_crowded(&self, tablet: TabletId, members: &Members, chosen: PeerId) -> bool {
        let stay =
            members.members.iter().filter(|member| !member.replace && !members.has_failed(member.server));
        let stay: Vec<PeerId> = stay.map(|member| member.server).collect();
        let beside =
            |server| stay.iter().filter(|other| self.location(**other) == self.location(server)).count();
        let is_free = |server: &PeerId| {
            // Where a replica is, or was to be, a removal may still be under way.
            let is_clear = |server: &TrialServer| server.up && !server.replicas.contains_key(&tablet);
            let is_clear = self.servers.get(server).is_some_and(is_clear);
            let was_member = self.groups.get(&tablet).is_some_and(|group| group.has_named(*server));
            self.can_take(*server) && is_clear && !was_member
        };
        let mut others = self.master.registered.keys().filter(|server| is_free(server));
        others.any(|other| beside(*other) < beside(chosen))
    }

    /// Checks that leaders which need a change are asked for it soon, whatever an earlier leader has refused.
    pub(super) fn check_asked(&mut self) {
        let tablets: Vec<TabletId> = self.master.reports.keys().copied().collect();
        for tablet in tablets {
            let needs = self.needs_change(tablet);
            let now = self.now;
            let Some(report) = self.master.reports.get_mut(&tablet) else { continue };
            match report.unasked_since {
                _ if !needs && report.unasked_since != Some(Duration::MAX) => report.unasked_since = None,
                None => report.unasked_since = Some(now),
                Some(since) if now.saturating_sub(since) > ASKED_AFTER => {
                    let leader = report.leader;
                    let waited = now - since;
                    let tablet = short(&tablet);
                    return self.report(format!(
                        "the new leader {leader} of {tablet} is not asked for a change, needed for {waited:?}"
                    ));
                }
                Some(_) => {}
            }
        }
    }

    /// Checks that members of a tablet which the leading master saw come up are asked for their replicas until these
    /// are there. Those of a later configuration get a copy from their leader instead.
    pub(super) fn check_creations(&mut self) {
        for (task, overdue) in self.master.creations.failed(self.now, &self.config) {
            let is_first = |tablet: &ModelTablet| tablet.running && tablet.config_index == FIRST_CONFIG;
            let runs = self.model.tablet(task.tablet).is_some_and(|(_, tablet)| is_first(tablet));
            // Requests wait for others to the same server.
            if !runs || self.open_at(task.server) >= OPEN_MAX {
                continue;
            }
            self.reached.creations += 1;
            if overdue {
                let (server, tablet) = (task.server, short(&task.tablet));
                self.report(format!("{tablet} runs, and {server} is not asked again for its replica"));
            }
        }
    }

    fn open_at(&self, server: PeerId) -> usize {
        self.master.open.iter().filter(|task| task.server == server).count()
    }

    /// Returns true if a tablet's leader must be asked for a change now.
    fn needs_change(&self, id: TabletId) -> bool {
        let (Some((table, tablet)), Some(group)) = (self.model.tablet(id), self.groups.get(&id)) else {
            return false;
        };
        let report = &self.master.reports[&id];
        let asks =
            TaskKey { server: report.leader, tablet: id, kind: engine::catalog::TaskKind::ChangeConfig };
        let leads = self.known_leader(id) == Some(report.leader) && group.term == report.term;
        let leads = leads && self.leads(report.leader, id);
        let Some(members) = group.members_of(tablet.config_index) else { return false };
        let members = Members { members, health: &report.health, wanted: table.replicas as usize };
        let (voters, healthy, _) = members.voters_but(None);
        let spared = |server| self.model.maintenance.contains(&server);
        let is_free = |server: &PeerId| members.member(*server).is_none() && self.can_take(*server);
        leads
            && tablet.running
            && self.is_live(report.leader)
            && !self.master.open.contains(&asks)
            && self.open_at(report.leader) < OPEN_MAX
            && healthy > voters / 2
            && members.lacks_voter(spared)
            && self.master.registered.keys().any(is_free)
    }
}

/// Index of a tablet's first configuration.
const FIRST_CONFIG: i64 = -1;
/// Calls to a server after which others may wait.
const OPEN_MAX: usize = 8;
/// Time within which a new leader is asked for a change that it needs. A transfer of leadership that has just ended
/// delays it by up to five seconds.
const ASKED_AFTER: Duration = Duration::from_millis(6_500);

fn same_servers(group: &Group, peers: &[PeerRecord]) -> bool {
    group.configs.iter().any(|(_, members)| {
        members.iter().map(|member| member.server).eq(peers.iter().map(|peer| peer.server))
    })
}
