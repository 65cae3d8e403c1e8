//! A made-up tablet server: its identity, its replicas, and the changes of them that masters have not acknowledged.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::ids::Uuid;
use engine::time::Instant;
use nyala_proto::kudu::{HostPortPb, ServerRegistrationPb};

use super::settings::server_id;
use crate::trials::fleet::{address_pb, host};

/// Web port and start of a life, the numbers of later lives above these.
const WEB_PORT: u32 = 8_050;
const START_SECONDS: i64 = 1_700_000_000;

/// Returns the registration that a server sends in a life. No two lives and servers have the same.
pub(super) fn registration(number: usize, life: i64) -> ServerRegistrationPb {
    let port = WEB_PORT + life as u32;
    ServerRegistrationPb {
        rpc_addresses: vec![address_pb(number)],
        http_addresses: vec![HostPortPb { host: host(number).name(), port }],
        software_version: Some(format!("trial {life}")),
        https_enabled: Some(life % 2 == 0),
        start_time: Some(START_SECONDS + life),
        ..ServerRegistrationPb::default()
    }
}

#[derive(Debug)]
pub(super) struct DoubleServer {
    pub(super) number: usize,
    pub(super) identity: u8,
    /// Number of its present life.
    pub(super) life: i64,
    pub(super) up: bool,
    /// Time since which it is up or down.
    pub(super) since: Instant,
    /// Interval of its heartbeats, and the time until which it sends none.
    pub(super) interval: Duration,
    pub(super) late_until: Instant,
    /// Its replicas, and tablets whose replica was deleted in this life, by the number of their last change.
    pub(super) replicas: BTreeMap<Uuid, u64>,
    pub(super) removed: BTreeMap<Uuid, u64>,
    pub(super) last_change: u64,
}

impl DoubleServer {
    pub(super) fn new(number: usize, interval: Duration) -> DoubleServer {
        DoubleServer {
            number,
            identity: 0,
            life: 0,
            up: false,
            since: Instant::default(),
            interval,
            late_until: Instant::default(),
            replicas: BTreeMap::new(),
            removed: BTreeMap::new(),
            last_change: 0,
        }
    }

    pub(super) fn id(&self) -> Uuid {
        server_id(self.number, self.identity)
    }

    /// Returns true if it has this identity or had it before.
    pub(super) fn has_had(&self, id: Uuid) -> bool {
        (0..=self.identity).any(|identity| server_id(self.number, identity) == id)
    }

    /// Begins the next life, with the replicas on its disks. Returns its number.
    pub(super) fn start(&mut self, now: Instant) -> i64 {
        (self.up, self.since) = (true, now);
        self.life += 1;
        self.removed.clear();
        self.last_change += 1;
        let change = self.last_change;
        self.replicas.values_mut().for_each(|at| *at = change);
        self.life
    }

    pub(super) fn stop(&mut self, now: Instant) {
        (self.up, self.since) = (false, now);
    }

    /// Loses its disks: it comes back as another server.
    pub(super) fn wipe(&mut self) {
        self.identity += 1;
        self.replicas.clear();
    }

    /// Returns true if it runs a replica of the tablet.
    pub(super) fn runs(&self, tablet: &Uuid) -> bool {
        self.up && self.replicas.contains_key(tablet)
    }

    pub(super) fn create(&mut self, tablet: Uuid) {
        self.last_change += 1;
        self.removed.remove(&tablet);
        self.replicas.insert(tablet, self.last_change);
    }

    pub(super) fn delete(&mut self, tablet: Uuid) {
        self.last_change += 1;
        self.replicas.remove(&tablet);
        self.removed.insert(tablet, self.last_change);
    }

    /// Records a change of a replica, if it has one.
    pub(super) fn mark(&mut self, tablet: &Uuid) {
        self.last_change += 1;
        if let Some(at) = self.replicas.get_mut(tablet) {
            *at = self.last_change;
        }
    }
}
