//! Faults of a trial: servers that die, return or are replaced, replicas that fail, leaders that are deposed.

use std::time::Duration;

use engine::catalog::HostPort;
use engine::ids::{PeerId, TabletId};

use super::CatalogTrial;
use super::agenda::Occasion;
use super::group::{Group, Member, Pending, ReplicaMode, short};
use super::server::TrialServer;

/// Percentage of trials whose servers have locations.
const LOCATED: u64 = 40;
const LOCATIONS: [&str; 3] = ["/a", "/b", "/c"];

impl CatalogTrial {
    pub(super) fn boot_servers(&mut self) {
        let located = self.random.percent(LOCATED);
        for number in 1..=self.random.between(4, 6) {
            let location = located.then(|| self.random.pick(&LOCATIONS).to_string());
            let address = HostPort { host: format!("host{number}"), port: 7050 };
            self.boot(address, location);
        }
    }

    /// Boots a server with empty disks at an address that none had.
    pub(super) fn boot_another(&mut self, number: usize) {
        let location = self.servers.values().next().and_then(|server| server.location.clone());
        self.boot(HostPort { host: format!("another{number}"), port: 7050 }, location);
    }

    /// Boots a server with empty disks at an address.
    fn boot(&mut self, address: HostPort, location: Option<String>) {
        let server = TrialServer::new(self.next_server, address, location);
        self.next_server += 1;
        self.agenda.add(self.now, Occasion::RegularBeat(server.id, server.instance));
        self.servers.insert(server.id, server);
    }

    pub(super) fn kill(&mut self, id: PeerId) {
        let Some(server) = self.servers.get_mut(&id).filter(|server| server.up) else { return };
        (server.up, server.down_since) = (false, self.now);
        self.groups
            .values_mut()
            .filter(|group| group.leader == Some(id))
            .for_each(|group| group.leader = None);
        self.note(format!("{id} dies"));
    }

    pub(super) fn restart(&mut self, id: PeerId) {
        let Some(server) = self.servers.get_mut(&id).filter(|server| !server.up) else { return };
        server.restart();
        self.agenda.add(self.now, Occasion::RegularBeat(id, server.instance));
        self.note(format!("{id} returns"));
    }

    /// Replaces a server by an empty one at its address, if no group loses what it has committed.
    pub(super) fn replace_server(&mut self, id: PeerId) {
        if self.groups.keys().any(|tablet| !self.may_lose(id, *tablet)) {
            return;
        }
        self.kill(id);
        if let Some(lost) = self.servers.remove(&id) {
            self.note(format!("{id} is replaced"));
            self.boot(lost.address, lost.location);
        }
    }

    /// Returns true if a tablet's group can do without a server's replica.
    fn may_lose(&self, id: PeerId, tablet: TabletId) -> bool {
        let group = &self.groups[&tablet];
        let accepted = group.pending.as_ref().map(|pending| pending.members.as_slice());
        group.term == 0
            || self.model.ended.contains(&tablet)
            || [Some(group.members()), accepted].into_iter().flatten().all(|members| {
                let voters = || members.iter().filter(|member| member.voter);
                let is_voter = voters().any(|member| member.server == id);
                !is_voter || self.stays_whole(group, tablet, &voters().collect::<Vec<_>>(), id)
            })
    }

    /// Returns true if a majority of voters has sound replicas without this server's, one of them with all entries.
    fn stays_whole(&self, group: &Group, tablet: TabletId, voters: &[&Member], lost: PeerId) -> bool {
        let replica = |member: &&&Member| {
            let server = self.servers.get(&member.server).filter(|server| server.id != lost)?;
            server.replicas.get(&tablet).filter(|replica| replica.runs())
        };
        let sound: Vec<_> = voters.iter().filter_map(|member| replica(&member)).collect();
        sound.len() > voters.len() / 2 && sound.iter().any(|replica| replica.has == group.len)
    }

    /// Lets one of a server's replicas fail.
    pub(super) fn fail_replica(&mut self, id: PeerId) {
        let Some(server) = self.servers.get(&id).filter(|server| server.up) else { return };
        let running = server.replicas.iter().filter(|(_, replica)| replica.runs());
        let tablets: Vec<TabletId> = running.map(|(tablet, _)| *tablet).collect();
        if tablets.is_empty() {
            return;
        }
        let tablet = self.random.pick(&tablets);
        if !self.may_lose(id, tablet) {
            return;
        }
        let replica = self.servers.get_mut(&id).and_then(|server| server.replicas.get_mut(&tablet));
        replica.into_iter().for_each(|replica| {
            (replica.mode, replica.leader) = (ReplicaMode::Failed, None);
        });
        self.end_leadership(id, tablet);
        self.note(format!("the replica of {} at {id} fails", short(&tablet)));
        self.mark_changed(id, tablet);
    }

    fn end_leadership(&mut self, id: PeerId, tablet: TabletId) {
        let group = self.groups.get_mut(&tablet).filter(|group| group.leader == Some(id));
        group.into_iter().for_each(|group| group.leader = None);
    }

    /// Deposes the leader of a tablet; what it has accepted may be lost.
    pub(super) fn depose(&mut self) {
        // What a leader has accepted may be lost, and what it could not be asked is asked again.
        let cut_off =
            |id: PeerId| self.servers.get(&id).is_some_and(|server| self.now < server.cut_off_until);
        let accepting = |group: &Group| group.pending.is_some() || group.leader.is_some_and(cut_off);
        let of = |is: &dyn Fn(&Group) -> bool| -> Vec<TabletId> {
            self.groups.iter().filter(|(_, group)| group.term > 0 && is(group)).map(|(id, _)| *id).collect()
        };
        let (busy, all) = (of(&accepting), of(&|_| true));
        let from = if busy.is_empty() || self.random.percent(30) { all } else { busy };
        if !from.is_empty() {
            let tablet = self.random.pick(&from);
            self.elect(tablet);
        }
    }

    /// Lets an operator mark a member for replacement.
    pub(super) fn mark_for_replacement(&mut self) {
        let fit = |(_, group): &(&TabletId, &Group)| {
            let marked = group.members().iter().any(|member| member.replace);
            group.pending.is_none() && !marked && group.members().len() < self.servers.len()
        };
        let tablets: Vec<TabletId> = self.groups.iter().filter(fit).map(|(id, _)| *id).collect();
        if tablets.is_empty() {
            return;
        }
        let tablet = self.random.pick(&tablets);
        let leads = self.groups[&tablet].leader.is_some_and(|leader| self.leads(leader, tablet));
        if leads {
            let at = self.random.below(self.groups[&tablet].members().len() as u64) as usize;
            self.change_mark(tablet, at, true);
        }
    }

    /// Lets the leader accept a configuration with a changed mark.
    pub(super) fn change_mark(&mut self, tablet: TabletId, at: usize, replace: bool) {
        let mut members = self.groups[&tablet].members().to_vec();
        members[at].replace = replace;
        self.note(format!("{} of {} is to be replaced: {replace}", members[at].server, short(&tablet)));
        self.begin_pending(tablet, Pending { members, asked: None });
    }

    /// Lets time pass; events come in the order of their times.
    pub(super) fn pass(&mut self, span: Duration) {
        let until = self.now + span;
        while self.found.is_none() {
            let due = Duration::from_nanos(self.master.catalog.deadline().0);
            let late =
                self.deposed.as_ref().map(|deposed| Duration::from_nanos(deposed.catalog.deadline().0));
            let next = self.agenda.first().unwrap_or(Duration::MAX);
            let first = due.min(next).min(late.unwrap_or(Duration::MAX));
            if first > until {
                break;
            }
            self.now = self.now.max(first);
            if due == first {
                self.turn();
                self.check_asked();
                self.check_creations();
            } else if late == Some(first) {
                self.turn_of_deposed(engine::catalog::CatalogEvent::Tick);
            } else if let Some(occasion) = self.agenda.take() {
                self.meet(occasion);
            }
        }
        self.now = until;
    }

    fn meet(&mut self, occasion: Occasion) {
        match occasion {
            Occasion::Beat(server) => self.beat(server),
            Occasion::RegularBeat(server, instance) => self.beat_regularly(server, instance),
            Occasion::BeatArrives { heartbeat, master, up_to } => self.on_beat(heartbeat, master, up_to),
            Occasion::CallArrives(call) => self.on_call(call),
            Occasion::Answer { generation, task, result } => self.on_answer(generation, task, result),
            Occasion::GroupTurn(tablet) => self.group_turn(tablet),
        }
    }
}
