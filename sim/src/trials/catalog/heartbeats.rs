//! Heartbeats of the made-up servers: registrations, full and incremental reports, replies that get lost.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::catalog::{
    Heartbeat, HeartbeatReply, ReplicaState, ReportedDataState, ReportedTablet, TabletReport, TserverContact,
};
use engine::ids::{PeerId, TabletId};
use engine::time::Instant;

use super::CatalogTrial;
use super::agenda::Occasion;
use super::group::{Replica, ReplicaMode};
use super::messages::SentBeat;
use super::server::TrialServer;
use super::settings::BEAT;

/// Time after which a heartbeat without a reply is given up.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Most milliseconds that a heartbeat takes, and one that is late.
const SOON_MILLIS: u64 = 20;
const LATE_MILLIS: u64 = 2_500;
/// Percentages of heartbeats that are lost, that are late, and whose replies are lost.
const LOST: u64 = 3;
const LATE: u64 = 3;
const REPLY_LOST: u64 = 3;

impl CatalogTrial {
    /// Lets a server send its heartbeat to the leading master, if it waits for no reply.
    pub(super) fn beat(&mut self, id: PeerId) {
        let (now, master) = (self.now, self.master.number);
        let Some(server) = self.servers.get_mut(&id).filter(|server| server.up) else { return };
        server.hinted = false;
        if server.beating_until.is_some_and(|until| now < until) {
            return;
        }
        server.beating_until = Some(now + TIMEOUT);
        server.beats += 1;
        let server = &self.servers[&id];
        let up_to = server.last_change;
        let heartbeat = Box::new(self.heartbeat(server, master));
        let fate = if self.faults { self.random.below(100) } else { 99 };
        let millis = if fate < LOST + LATE { LATE_MILLIS } else { SOON_MILLIS };
        let at = now + Duration::from_millis(self.random.below(millis));
        if fate >= LOST {
            self.agenda.add(at, Occasion::BeatArrives { heartbeat, master, up_to });
        }
    }

    /// Lets a server send its regular heartbeats while its life lasts.
    pub(super) fn beat_regularly(&mut self, id: PeerId, instance: i64) {
        if self.servers.get(&id).is_some_and(|server| server.up && server.instance == instance) {
            self.beat(id);
            self.agenda.add(self.now + BEAT, Occasion::RegularBeat(id, instance));
        }
    }

    fn heartbeat(&self, server: &TrialServer, master: usize) -> Heartbeat {
        let registering = !server.registered[master];
        Heartbeat {
            registration: registering.then(|| server.registration()),
            location: server.location.clone().filter(|_| registering),
            takes_replicas: server.takes_replicas,
            report: server.leads[master].then(|| self.tablet_report(server, master)),
            ..Heartbeat::of(server.id, server.instance)
        }
    }

    fn tablet_report(&self, server: &TrialServer, master: usize) -> TabletReport {
        let known = server.acknowledged[master];
        let after = |changes: &BTreeMap<TabletId, u64>| -> Vec<TabletId> {
            let is_new = |at: &u64| known.is_none_or(|known| *at > known);
            changes.iter().filter(|(_, at)| is_new(at)).map(|(tablet, _)| *tablet).collect()
        };
        let updated = after(&server.changed);
        let reported = |tablet: &TabletId| Some(self.reported(server, *tablet, server.replicas.get(tablet)?));
        TabletReport {
            incremental: known.is_some(),
            number: Some(server.beats),
            updated: updated.iter().filter_map(reported).collect(),
            removed: if known.is_some() { after(&server.removed) } else { Vec::new() },
        }
    }

    fn reported(&self, server: &TrialServer, tablet: TabletId, replica: &Replica) -> ReportedTablet {
        use ReplicaMode::{Copying, Failed, Running, Tombstone};
        let (state, data) = match replica.mode {
            Running => (ReplicaState::Running, ReportedDataState::Ready),
            Failed => (ReplicaState::Failed, ReportedDataState::Ready),
            Copying(_) => (ReplicaState::Initialized, ReportedDataState::Copying),
            Tombstone => (ReplicaState::Stopped, ReportedDataState::Tombstoned),
        };
        let group = self.groups.get(&tablet);
        let leads = replica.runs() && replica.leader == Some(server.id);
        let leader = replica.leader.filter(|_| replica.runs());
        let consensus = group.filter(|_| !matches!(replica.mode, Copying(_)));
        ReportedTablet {
            tablet,
            state,
            data,
            consensus: consensus.map(|group| group.consensus(replica.has, replica.term, leader)),
            config_term: None,
            error: (replica.mode == Failed).then(|| "rot".to_string()),
            schema_version: group.map(|group| group.version_at(replica.has)),
            stats: None,
            health: group.filter(|_| leads).map_or_else(BTreeMap::new, |group| group.health.clone()),
        }
    }

    /// Takes a heartbeat to the leading master, if that is the one to which it was sent.
    pub(super) fn on_beat(&mut self, heartbeat: Box<Heartbeat>, master: usize, up_to: u64) {
        self.record_contact(&heartbeat, master);
        if self.master.number == master {
            self.master.take_heartbeat(heartbeat, up_to);
            self.turn_perhaps();
        }
    }

    /// Records a heartbeat as every master does, whether it leads or not. The report goes to one of them.
    fn record_contact(&mut self, heartbeat: &Heartbeat, master: usize) {
        if let Some(report) = &heartbeat.report {
            self.last_reports.insert((master, heartbeat.server, heartbeat.instance), report.number);
        }
        let last_heartbeat = Instant(self.now.as_nanos() as u64);
        if let Some(registration) = &heartbeat.registration {
            let contact = TserverContact {
                id: heartbeat.server,
                instance: heartbeat.instance,
                registration: registration.clone(),
                location: heartbeat.location.clone(),
                cluster: heartbeat.cluster,
                last_heartbeat,
                last_report: None,
            };
            let known = self.contacts.get(&heartbeat.server);
            if known.is_none_or(|known| known.instance <= heartbeat.instance) {
                self.contacts.insert(heartbeat.server, contact);
            }
        } else if let Some(known) = self.contacts.get_mut(&heartbeat.server)
            && known.instance == heartbeat.instance
        {
            known.last_heartbeat = last_heartbeat;
        }
    }

    /// Lets a server receive the reply to its heartbeat.
    pub(super) fn on_beat_reply(&mut self, heartbeat: &SentBeat, reply: &HeartbeatReply) {
        if self.faults && self.random.percent(REPLY_LOST) {
            return;
        }
        let master = self.master.number;
        let Some(server) = self.servers.get_mut(&heartbeat.server) else { return };
        if server.instance != heartbeat.instance {
            return;
        }
        server.beating_until = None;
        server.registered[master] = !reply.needs_registration;
        let others = (0..server.leads.len()).filter(|number| *number != master);
        others.for_each(|number| server.leads[number] &= !self.random.percent(50));
        server.leads[master] = true;
        if heartbeat.reports {
            server.acknowledged[master] = Some(heartbeat.up_to);
        }
        if reply.needs_full_report {
            server.acknowledged[master] = None;
        }
        let again = reply.needs_registration || reply.needs_full_report || !heartbeat.reports;
        let news = server.last_change > heartbeat.up_to;
        if (again || news) && !std::mem::replace(&mut server.hinted, true) {
            self.agenda.add(self.now + Duration::from_millis(1), Occasion::Beat(heartbeat.server));
        }
    }
}
