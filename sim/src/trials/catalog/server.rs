//! A made-up tablet server: its replicas, and the changes of them that the masters have not acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::catalog::{HostPort, TserverRegistration};
use engine::ids::{PeerId, TabletId, Uuid};

use super::group::{Replica, ReplicaMode};
use super::settings::MASTERS;

#[derive(Debug)]
pub(super) struct TrialServer {
    pub(super) id: PeerId,
    pub(super) address: HostPort,
    pub(super) location: Option<String>,
    /// Number of its present life.
    pub(super) instance: i64,
    pub(super) up: bool,
    /// Time at which it went down.
    pub(super) down_since: Duration,
    pub(super) takes_replicas: bool,
    /// Time until which masters cannot reach it.
    pub(super) cut_off_until: Duration,
    pub(super) replicas: BTreeMap<TabletId, Replica>,
    /// Tablets that were deleted here in this life.
    pub(super) deleted: BTreeSet<TabletId>,
    /// Numbers of the last changes and removals of tablets.
    pub(super) changed: BTreeMap<TabletId, u64>,
    pub(super) removed: BTreeMap<TabletId, u64>,
    pub(super) last_change: u64,
    /// For each master: true if it knows this life, true if it led at its last reply, and what it has acknowledged.
    pub(super) registered: [bool; MASTERS],
    pub(super) leads: [bool; MASTERS],
    pub(super) acknowledged: [Option<u64>; MASTERS],
    /// Time at which the heartbeat without a reply is given up.
    pub(super) beating_until: Option<Duration>,
    /// Heartbeats of this life.
    pub(super) beats: i32,
    /// True if a heartbeat is to follow at once.
    pub(super) hinted: bool,
}

impl TrialServer {
    pub(super) fn new(number: u8, address: HostPort, location: Option<String>) -> TrialServer {
        TrialServer {
            id: Uuid([number; 16]),
            address,
            location,
            instance: 1,
            up: true,
            down_since: Duration::ZERO,
            takes_replicas: true,
            cut_off_until: Duration::ZERO,
            replicas: BTreeMap::new(),
            deleted: BTreeSet::new(),
            changed: BTreeMap::new(),
            removed: BTreeMap::new(),
            last_change: 0,
            registered: [false; MASTERS],
            leads: [true; MASTERS],
            acknowledged: [None; MASTERS],
            beating_until: None,
            beats: 0,
            hinted: false,
        }
    }

    pub(super) fn registration(&self) -> TserverRegistration {
        TserverRegistration { rpc: vec![self.address.clone()], ..TserverRegistration::default() }
    }

    /// Begins the next life with the replicas on its disks.
    pub(super) fn restart(&mut self) {
        self.up = true;
        self.instance += 1;
        self.deleted.clear();
        self.removed.clear();
        self.changed.clear();
        self.last_change = 0;
        // A copy ends with the life in which it began.
        self.replicas.retain(|_, replica| replica.mode != ReplicaMode::Copying(false));
        for (tablet, replica) in &mut self.replicas {
            if replica.mode == ReplicaMode::Copying(true) {
                replica.mode = ReplicaMode::Tombstone;
            }
            replica.leader = None;
            self.last_change += 1;
            self.changed.insert(*tablet, self.last_change);
        }
        self.registered = [false; MASTERS];
        self.leads = [true; MASTERS];
        self.acknowledged = [None; MASTERS];
        self.beating_until = None;
        self.beats = 0;
    }

    /// Records a change of a replica, or its removal.
    pub(super) fn mark(&mut self, tablet: TabletId) {
        self.last_change += 1;
        let (into, from) = match self.replicas.contains_key(&tablet) {
            true => (&mut self.changed, &mut self.removed),
            false => (&mut self.removed, &mut self.changed),
        };
        from.remove(&tablet);
        into.insert(tablet, self.last_change);
    }

    pub(super) fn running(&self, tablet: TabletId) -> Option<&Replica> {
        self.replicas.get(&tablet).filter(|replica| self.up && replica.runs())
    }
}
