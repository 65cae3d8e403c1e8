//! Servers and tablets without faults, for tests of what commands make of an observation.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::ids::{PeerId, TabletId, Uuid};
use nyala_client::cluster_admin::{LocalReplica, QuiescingStatus, ServerStatus};
use nyala_client::replica_admin::{ReplicaInfo, ServerInfo, TabletReplicas};

use super::observe::{ObservedServer, ObservedTable};

/// The tablet of the table `t`.
pub(super) const TABLET: TabletId = Uuid([0xee; 16]);

pub(super) fn id(n: u8) -> PeerId {
    Uuid([n; 16])
}

pub(super) fn status(n: u8) -> Result<ServerStatus, String> {
    Ok(ServerStatus { id: id(n), version: "nyala 1".to_string(), web: Vec::new() })
}

/// Returns a server that replies, leads no tablet and has none.
pub(super) fn server(n: u8) -> ObservedServer {
    ObservedServer {
        info: ServerInfo {
            id: id(n),
            host: format!("ts-{n}"),
            port: 7050,
            https: false,
            location: None,
            silent_for: Duration::ZERO,
            maintenance: false,
        },
        status: status(n),
        quiescing: Some(QuiescingStatus { quiescing: false, leaders: 0, scanners: 0 }),
        replicas: BTreeMap::new(),
        raft: BTreeMap::new(),
    }
}

/// Returns the replica of the tablet that a server lists, by tablet.
pub(super) fn replicas() -> BTreeMap<TabletId, LocalReplica> {
    let replica = LocalReplica {
        tablet: TABLET,
        table: "t".to_string(),
        state: "RUNNING",
        data_state: "TABLET_DATA_READY",
        running: true,
        tombstoned: false,
        message: String::new(),
        disk_bytes: 0,
    };
    BTreeMap::from([(TABLET, replica)])
}

/// Returns the table `t`, whose tablet has the servers 1 to `voters` as voters; the first one leads it.
pub(super) fn table(voters: u8, wanted: usize) -> ObservedTable {
    let replica =
        |n: u8| ReplicaInfo { server: id(n), address: format!("ts-{n}:7050"), voter: true, leader: n == 1 };
    let tablet = TabletReplicas { id: TABLET, replicas: (1..=voters).map(replica).collect() };
    ObservedTable { name: "t".to_string(), wanted, tablets: vec![tablet] }
}
