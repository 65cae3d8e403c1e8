//! Tablet servers known to the catalog: registration, heartbeats, maintenance.

use std::collections::BTreeSet;

use super::commands::{CommandReply, ServerStateChange};
use super::error::{CatalogError, CatalogResult};
use super::heartbeat::{
    Heartbeat, HeartbeatReply, TabletReport, Tserver, TserverContact, TserverRegistration,
};
use super::record::{HostPort, ServerRecord, SystemRowKey};
use super::{Catalog, CatalogEffects, CatalogNote, Tablet};
use crate::error::Error;
use crate::ids::{PeerId, TabletId, Uuid};
use crate::time::{ClockReading, Instant};

impl Catalog {
    pub(super) fn heartbeat(
        &mut self,
        now: ClockReading,
        beat: Heartbeat,
        out: &mut CatalogEffects,
    ) -> HeartbeatReply {
        let (cluster, level) = (Some(self.cluster_id()), Some(self.level()));
        let mut reply = HeartbeatReply { cluster, level, ..HeartbeatReply::default() };
        if self.is_foreign(beat.cluster) {
            // It may have registered before it joined the other cluster.
            self.forget_server(beat.server);
            reply.foreign = true;
            return reply;
        }
        if let Some(registration) = beat.registration {
            reply.unsupported = self.unsupported(beat.server, &registration);
            if reply.unsupported.is_some() {
                return reply;
            }
            let location = beat.location;
            self.register(now, beat.server, beat.instance, registration, location, out);
        }
        let Some(server) = self.servers.get_mut(&beat.server).filter(|known| known.instance == beat.instance)
        else {
            reply.needs_registration = true;
            return reply;
        };
        server.last_heartbeat = now.mono;
        server.takes_replicas = beat.takes_replicas;
        let Some(report) = beat.report else {
            reply.needs_full_report = !server.reported;
            return reply;
        };
        // A report that arrives after a later one is outdated, and the later one may have contained only what changed
        // in between. A server that begins to count again is asked once more, too.
        let overtaken = server.last_report.zip(report.number).is_some_and(|(last, number)| number <= last);
        server.last_report = report.number.or(server.last_report);
        if overtaken {
            server.reported = false;
            reply.needs_full_report = true;
            return reply;
        }
        if report.incremental && !server.reported {
            reply.needs_full_report = true;
            return reply;
        }
        server.reported = true;
        self.take_report(now, beat.server, report, &mut reply, out);
        reply
    }

    fn register(
        &mut self,
        now: ClockReading,
        id: PeerId,
        instance: i64,
        registration: TserverRegistration,
        location: Option<String>,
        out: &mut CatalogEffects,
    ) {
        let old = self.servers.get(&id);
        // A delayed message of an earlier run of the server. Runs are told apart by their start times, and clocks can
        // be set back, so this applies only after a recent heartbeat.
        let is_recent =
            |old: &Tserver| now.mono.since(old.last_heartbeat) <= self.config.server_unresponsive_after;
        if old.is_some_and(|old| old.instance > instance && is_recent(old)) {
            return;
        }
        let known = old.is_some_and(|old| old.instance == instance && old.registration == registration);
        if !known {
            let address = registration.rpc.first().map_or_else(String::new, HostPort::to_string);
            out.notes.push(CatalogNote::ServerRegistered { server: id, address });
        }
        let last_report = old.filter(|old| old.instance == instance).and_then(|old| old.last_report);
        let last_heartbeat = now.mono;
        self.insert_server(TserverContact {
            id,
            instance,
            registration,
            location,
            cluster: None,
            last_heartbeat,
            last_report,
        });
    }

    /// Imports the state of a tablet server that this master learned before it led. Only a full report from the server
    /// itself counts as one. A server of another cluster is left out, because it would get replicas until its next
    /// heartbeat is refused.
    pub fn import_contact(&mut self, server: TserverContact) {
        if !self.is_foreign(server.cluster) {
            self.insert_server(server);
        }
    }

    /// Returns true for a server that has joined another cluster.
    fn is_foreign(&self, cluster: Option<Uuid>) -> bool {
        cluster.is_some_and(|cluster| cluster != self.cluster_id())
    }

    /// Adds a server that takes replicas and has not reported its tablets yet.
    fn insert_server(&mut self, contact: TserverContact) {
        let TserverContact { id, instance, registration, location, last_heartbeat, last_report, .. } =
            contact;
        let server = Tserver {
            instance,
            registration,
            location,
            last_heartbeat,
            takes_replicas: true,
            reported: false,
            last_report,
        };
        self.servers.insert(id, server);
    }

    fn take_report(
        &mut self,
        now: ClockReading,
        server: PeerId,
        report: TabletReport,
        reply: &mut HeartbeatReply,
        out: &mut CatalogEffects,
    ) {
        let reported: BTreeSet<TabletId> = report.updated.iter().map(|tablet| tablet.tablet).collect();
        // A report may change more tablets than one operation holds, so each of them is a unit.
        for tablet in report.updated {
            reply.tablets.push(tablet.tablet);
            self.take_replica(now, server, tablet, out);
            self.save(out);
        }
        let mut absent = report.removed;
        if !report.incremental {
            let expected = self.expected_on(server);
            absent.extend(expected.into_iter().filter(|tablet| !reported.contains(tablet)));
        }
        for tablet in absent {
            self.replica_absent(now, server, tablet, out);
            self.save(out);
        }
    }

    /// Tablets of which this server has, or should have, a replica.
    fn expected_on(&self, server: PeerId) -> Vec<TabletId> {
        let mut expected = Vec::new();
        for (id, tablet) in &self.tablets {
            let record = &tablet.record;
            let member = record.state.is_live() && record.consensus.peers.iter().any(|p| p.server == server);
            if member || record.doomed.contains(&server) || tablet.replicas.contains_key(&server) {
                expected.push(*id);
            }
        }
        expected
    }

    /// Returns true if the server has sent a recent heartbeat.
    pub(super) fn is_alive(&self, now: Instant, server: PeerId) -> bool {
        let limit = self.config.server_unresponsive_after;
        self.servers.get(&server).is_some_and(|server| now.since(server.last_heartbeat) <= limit)
    }

    pub(super) fn live_servers(&self, now: Instant) -> usize {
        self.servers.keys().filter(|id| self.is_alive(now, **id)).count()
    }

    pub(super) fn in_maintenance(&self, server: PeerId) -> bool {
        self.server_records.get(&server).is_some_and(|record| record.maintenance)
    }

    pub(super) fn can_take_replicas(&self, now: Instant, server: PeerId) -> bool {
        let willing = self.servers.get(&server).is_some_and(|server| server.takes_replicas);
        willing && self.is_alive(now, server) && !self.in_maintenance(server)
    }

    pub(super) fn change_server_state(
        &mut self,
        now: ClockReading,
        server: PeerId,
        change: ServerStateChange,
        allow_missing: bool,
    ) -> CatalogResult<CommandReply> {
        let maintenance = change == ServerStateChange::EnterMaintenance;
        if maintenance && !allow_missing && !self.is_known_server(server) {
            return Err(no_such_server(server));
        }
        if maintenance != self.in_maintenance(server) {
            if maintenance {
                let record = ServerRecord { maintenance, since: now.wall.micros };
                self.server_records.insert(server, record);
            } else {
                self.server_records.remove(&server);
            }
            self.dirty.insert(SystemRowKey::Server(server));
        }
        Ok(CommandReply::Done)
    }

    pub(super) fn unregister_server(
        &mut self,
        now: ClockReading,
        server: PeerId,
        force: bool,
        out: &mut CatalogEffects,
    ) -> CatalogResult<CommandReply> {
        if !self.is_known_server(server) {
            return Err(no_such_server(server));
        }
        if !force && self.is_alive(now.mono, server) {
            let message = format!("tablet server {server} is alive; stop it first, or force it");
            return Err(CatalogError::from(Error::not_leader(message)));
        }
        self.forget_server(server);
        self.forget_doomed(now, server, out);
        if self.server_records.remove(&server).is_some() {
            self.dirty.insert(SystemRowKey::Server(server));
        }
        Ok(CommandReply::Done)
    }

    /// Forgets a registration, with the requests to the server and the reports of its replicas.
    fn forget_server(&mut self, server: PeerId) {
        self.tasks.remove_server(server);
        if self.servers.remove(&server).is_some() {
            for tablet in self.tablets.values_mut() {
                tablet.replicas.remove(&server);
            }
        }
    }

    /// Returns true if the server has registered with this master or has a record. A master that has restarted has
    /// the records before the servers register.
    fn is_known_server(&self, server: PeerId) -> bool {
        self.servers.contains_key(&server) || self.server_records.contains_key(&server)
    }

    /// Counts the replicas of deleted tablets on an unregistered server as removed: no confirmation is awaited from a
    /// server that is gone. If it returns before the records expire, its replicas are deleted after its report.
    fn forget_doomed(&mut self, now: ClockReading, server: PeerId, out: &mut CatalogEffects) {
        let is_doomed = |tablet: &Tablet| tablet.record.doomed.contains(&server);
        let doomed = self.tablets.iter().filter(|(_, tablet)| is_doomed(tablet));
        let doomed: Vec<TabletId> = doomed.map(|(id, _)| *id).collect();
        for id in doomed {
            self.replica_gone(now, id, server);
            self.save(out);
        }
    }
}

fn no_such_server(server: PeerId) -> CatalogError {
    CatalogError::from(Error::not_found(format!("no tablet server {server} has registered")))
}
