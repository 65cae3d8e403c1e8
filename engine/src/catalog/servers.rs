//! Tablet servers as the catalog sees them: registration, heartbeats, maintenance.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{Consensus, HostPort, RowKey, ServerRecord};
use super::refusal::{Refusal, Result};
use super::request::{Answer, ServerStateChange};
use super::{Catalog, Effects, Health, Note};
use crate::error::Error;
use crate::ids::{PeerId, TabletId};
use crate::time::{Instant, Now};

/// How a tablet server can be reached, in its own words.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Registration {
    pub rpc: Vec<HostPort>,
    pub http: Vec<HostPort>,
    pub software_version: String,
    pub https_enabled: bool,
    /// Seconds since 1970.
    pub start_time: Option<i64>,
}

/// A replica's state as its server reports it; the numbers are Kudu's `TabletStatePB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(i32)]
pub enum ReplicaState {
    Bootstrapping = 0,
    Running = 1,
    Failed = 2,
    Stopping = 3,
    Shutdown = 4,
    Initialized = 5,
    NotInitialized = 6,
    Stopped = 7,
    #[default]
    Unknown = 999,
}

/// What a replica's data is good for; the numbers are Kudu's `TabletDataState`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(i32)]
pub enum DataState {
    Copying = 0,
    Ready = 1,
    Deleted = 2,
    Tombstoned = 3,
    #[default]
    Unknown = 999,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicaStats {
    pub disk_bytes: u64,
    /// Absent while the replica does not know.
    pub live_rows: Option<u64>,
}

/// One replica in a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedTablet {
    pub tablet: TabletId,
    pub state: ReplicaState,
    pub data: DataState,
    pub consensus: Option<Consensus>,
    /// Why it failed.
    pub error: Option<String>,
    pub schema_version: Option<u32>,
    /// Sent by leaders.
    pub stats: Option<ReplicaStats>,
    /// How a leader finds the members of its configuration.
    pub health: BTreeMap<PeerId, Health>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TabletReport {
    /// Only what changed since the last report that was answered; otherwise all there is.
    pub incremental: bool,
    pub updated: Vec<ReportedTablet>,
    pub removed: Vec<TabletId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    pub server: PeerId,
    /// Grows with each start of the server.
    pub instance: i64,
    /// In the first heartbeat, and whenever asked for.
    pub registration: Option<Registration>,
    /// Where the server stands, `/` and a path of names: goes with a registration.
    pub location: Option<String>,
    pub report: Option<TabletReport>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeartbeatReply {
    pub needs_registration: bool,
    pub needs_full_report: bool,
    /// Tablets of the report that was taken in.
    pub tablets: Vec<TabletId>,
}

/// A tablet server as a master that does not lead knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownServer {
    pub id: PeerId,
    pub instance: i64,
    pub registration: Registration,
    pub location: Option<String>,
    pub last_heartbeat: Instant,
}

/// A tablet server that has registered with this master since it started.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) instance: i64,
    pub(super) registration: Registration,
    pub(super) location: Option<String>,
    pub(super) last_heartbeat: Instant,
    /// A full report has been taken in since the registration.
    reported: bool,
}

impl Catalog {
    pub(super) fn heartbeat(&mut self, now: Now, beat: Heartbeat, out: &mut Effects) -> HeartbeatReply {
        if let Some(registration) = beat.registration {
            let location = beat.location;
            self.register(now, beat.server, beat.instance, registration, location, out);
        }
        let mut reply = HeartbeatReply::default();
        let Some(server) = self.servers.get_mut(&beat.server).filter(|known| known.instance == beat.instance)
        else {
            reply.needs_registration = true;
            return reply;
        };
        server.last_heartbeat = now.mono;
        let Some(report) = beat.report else {
            reply.needs_full_report = !server.reported;
            return reply;
        };
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
        now: Now,
        id: PeerId,
        instance: i64,
        registration: Registration,
        location: Option<String>,
        out: &mut Effects,
    ) {
        let old = self.servers.get(&id);
        // A message of an earlier life that was long under way; but clocks are set back, and lives are told apart by
        // when they began.
        let lately =
            |old: &Server| now.mono.since(old.last_heartbeat) <= self.config.server_unresponsive_after;
        if old.is_some_and(|old| old.instance > instance && lately(old)) {
            return;
        }
        let known = old.is_some_and(|old| old.instance == instance && old.registration == registration);
        if !known {
            let address = registration.rpc.first().map_or_else(String::new, HostPort::to_string);
            out.notes.push(Note::ServerRegistered { server: id, address });
        }
        let server = Server { instance, registration, location, last_heartbeat: now.mono, reported: false };
        self.servers.insert(id, server);
    }

    /// Takes over what a master learned of a tablet server while it did not lead. Only a full report from the
    /// server itself counts as one.
    pub fn acquaint(&mut self, server: KnownServer) {
        let KnownServer { id, instance, registration, location, last_heartbeat } = server;
        self.servers.insert(id, Server { instance, registration, location, last_heartbeat, reported: false });
    }

    fn take_report(
        &mut self,
        now: Now,
        server: PeerId,
        report: TabletReport,
        reply: &mut HeartbeatReply,
        out: &mut Effects,
    ) {
        let reported: BTreeSet<TabletId> = report.updated.iter().map(|tablet| tablet.tablet).collect();
        for tablet in report.updated {
            reply.tablets.push(tablet.tablet);
            self.take_replica(now, server, tablet, out);
        }
        for tablet in report.removed {
            self.replica_absent(now, server, tablet, out);
        }
        if !report.incremental {
            for tablet in self.expected_on(server) {
                if !reported.contains(&tablet) {
                    self.replica_absent(now, server, tablet, out);
                }
            }
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

    /// Whether the server was heard of lately.
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
        self.is_alive(now, server) && !self.in_maintenance(server)
    }

    pub(super) fn change_server_state(
        &mut self,
        now: Now,
        server: PeerId,
        change: ServerStateChange,
        allow_missing: bool,
    ) -> Result<Answer> {
        if !allow_missing && !self.servers.contains_key(&server) {
            return Err(no_such_server(server));
        }
        let maintenance = change == ServerStateChange::EnterMaintenance;
        if maintenance != self.in_maintenance(server) {
            if maintenance {
                let record = ServerRecord { maintenance, since: now.wall.micros };
                self.server_records.insert(server, record);
            } else {
                self.server_records.remove(&server);
            }
            self.dirty.insert(RowKey::Server(server));
        }
        Ok(Answer::Done)
    }

    pub(super) fn unregister_server(&mut self, now: Now, server: PeerId, force: bool) -> Result<Answer> {
        if !self.servers.contains_key(&server) {
            return Err(no_such_server(server));
        }
        if !force && self.is_alive(now.mono, server) {
            let message = format!("tablet server {server} is alive; stop it first, or force it");
            return Err(Refusal::from(Error::not_leader(message)));
        }
        self.servers.remove(&server);
        self.tasks.remove_server(server);
        for tablet in self.tablets.values_mut() {
            tablet.replicas.remove(&server);
        }
        if self.server_records.remove(&server).is_some() {
            self.dirty.insert(RowKey::Server(server));
        }
        Ok(Answer::Done)
    }
}

fn no_such_server(server: PeerId) -> Refusal {
    Refusal::from(Error::not_found(format!("no tablet server {server} has registered")))
}
