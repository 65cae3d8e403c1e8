//! Looking tablets up and calling their servers.

use bytes::Bytes;
use engine::error::{Error, ErrorKind, Result};
use engine::time::Instant;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::locations::{LocationCache, Lookup, Replica, TabletLocation};
use super::masters::error_from_rpc;
use super::{Client, Table, lock};
use crate::proto::kudu::consensus::raft_peer_pb::Role;
use crate::proto::kudu::master::{
    GetTableLocationsRequestPb, GetTableLocationsResponsePb, TableIdentifierPb, TabletLocationsPb, TsInfoPb,
};
use crate::proto::kudu::tserver::TabletServerErrorPb;
use crate::proto::kudu::tserver::tablet_server_error_pb::Code;
use crate::rpc::client::RpcError;
use crate::wire::partition;
use crate::wire::status::error_from_status;

/// Tablets asked for at once: enough for most tables.
const LOCATIONS_AT_ONCE: u32 = 200;

/// What to do about a call to a tablet server that failed.
pub(super) enum TabletFailure {
    Final(Error),
    /// Again at the same server.
    Busy(Error),
    /// The server or its replica does not serve: look the tablet up again, try another replica.
    Elsewhere(Error),
    /// The scanner is gone; the tablet may be fine.
    Scanner(Error),
}

impl TabletFailure {
    pub(super) fn error(self) -> Error {
        match self {
            TabletFailure::Final(error)
            | TabletFailure::Busy(error)
            | TabletFailure::Elsewhere(error)
            | TabletFailure::Scanner(error) => error,
        }
    }

    pub(super) fn of_rpc(error: &RpcError) -> TabletFailure {
        let status = error_from_rpc(error);
        match error {
            _ if error.is_busy() => TabletFailure::Busy(status),
            RpcError::TimedOut { .. } => TabletFailure::Elsewhere(status),
            _ if error.is_unreachable() => TabletFailure::Elsewhere(status),
            _ => TabletFailure::Final(status),
        }
    }

    pub(super) fn of_reply(error: &TabletServerErrorPb) -> TabletFailure {
        let status = error_from_status(&error.status);
        match error.code() {
            Code::TabletNotFound | Code::TabletNotRunning | Code::NotTheLeader | Code::TabletFailed => {
                TabletFailure::Elsewhere(status)
            }
            Code::ScannerExpired => TabletFailure::Scanner(status),
            Code::Throttled => TabletFailure::Busy(status),
            _ => match status.kind {
                ErrorKind::NotReady | ErrorKind::Throttled => TabletFailure::Busy(status),
                ErrorKind::NotLeader | ErrorKind::Aborted => TabletFailure::Elsewhere(status),
                _ => TabletFailure::Final(status),
            },
        }
    }
}

impl TabletLocation {
    /// How many attempts have failed since its leader was last known to be another one than in `before`.
    pub(super) fn failed_since(&self, before: &TabletLocation, failed: u32) -> u32 {
        let leader = |tablet: &TabletLocation| {
            tablet.replicas.iter().find(|replica| replica.leader).map(|replica| replica.server_id.clone())
        };
        if leader(self) == leader(before) { failed + 1 } else { 0 }
    }

    /// Whom to ask, when `failed` attempts have failed: the leader first, then everyone in turn.
    pub(super) fn replica(&self, failed: u32) -> Option<&Replica> {
        let leader = self.replicas.iter().find(|replica| replica.leader);
        if failed == 0 && leader.is_some() {
            return leader;
        }
        let first = self.replicas.iter().position(|replica| replica.leader).unwrap_or(0);
        self.replicas.get((first + failed as usize) % self.replicas.len().max(1))
    }
}

impl Client {
    /// What holds this partition key: from memory if possible, else from the masters.
    pub(super) async fn locate(&self, table: &Table, key: &[u8], deadline: Instant) -> Result<Lookup> {
        match self.located(table, key) {
            Lookup::Unknown => {}
            known => return Ok(known),
        }
        let request = GetTableLocationsRequestPb {
            table: TableIdentifierPb { table_id: Some(table.id_bytes()), table_name: None },
            partition_key_start: (!key.is_empty()).then(|| Bytes::copy_from_slice(key)),
            max_returned_locations: Some(LOCATIONS_AT_ONCE),
            intern_ts_infos_in_response: Some(true),
            ..Default::default()
        };
        let era =
            |caches: &BTreeMap<String, LocationCache>| caches.get(table.id()).map_or(0, LocationCache::era);
        let asked_in = era(&lock(&self.shared.locations));
        let answer: GetTableLocationsResponsePb =
            self.shared.masters.call("GetTableLocations", &request, deadline, &[]).await?;
        let expires = self.env().now().mono.after(Duration::from_millis(answer.ttl_millis().into()));
        let complete = (answer.tablet_locations.len() as u32) < LOCATIONS_AT_ONCE;
        let tablet = |pb: &TabletLocationsPb| tablet_from_pb(pb, &answer.ts_infos);
        let tablets = answer.tablet_locations.iter().map(tablet).collect::<Result<Vec<_>>>()?;
        // The answer itself holds even if its time to live is over by now.
        let mut fresh = LocationCache::default();
        fresh.learn(key, tablets.clone(), complete, Instant(u64::MAX));
        let mut caches = lock(&self.shared.locations);
        if era(&caches) == asked_in {
            caches.entry(table.id().to_string()).or_default().learn(key, tablets, complete, expires);
        }
        match fresh.get(key, Instant(0)) {
            Lookup::Unknown => Err(Error::not_ready("the master does not say who holds a key")),
            known => Ok(known),
        }
    }

    /// What is known to hold this partition key.
    pub(super) fn located(&self, table: &Table, key: &[u8]) -> Lookup {
        let now = self.env().now().mono;
        let caches = lock(&self.shared.locations);
        caches.get(table.id()).map_or(Lookup::Unknown, |cache| cache.get(key, now))
    }

    /// Forgets where a tablet was.
    pub(super) fn forget(&self, table_id: &str, tablet_id: &str) {
        if let Some(cache) = lock(&self.shared.locations).get_mut(table_id) {
            cache.forget(tablet_id);
        }
    }

    /// Forgets a table's tablets and the gaps between them, and what was asked about them and is not answered yet.
    pub(super) fn forget_all(&self, table_id: &str) {
        lock(&self.shared.locations).entry(table_id.to_string()).or_default().forget_all();
    }

    /// The tablet that holds what `tablet` held; `NotFound` if its range is gone.
    pub(super) async fn relocate(
        &self,
        table: &Table,
        tablet: &TabletLocation,
        deadline: Instant,
    ) -> Result<Arc<TabletLocation>> {
        self.forget(table.id(), &tablet.id);
        match self.locate(table, &tablet.partition.start, deadline).await? {
            Lookup::Tablet(found) if found.partition == tablet.partition => Ok(found),
            _ => Err(Error::not_found(format!("tablet {} of table {} is gone", tablet.id, table.name()))),
        }
    }
}

fn tablet_from_pb(pb: &TabletLocationsPb, servers: &[TsInfoPb]) -> Result<TabletLocation> {
    let id = String::from_utf8_lossy(&pb.tablet_id).into_owned();
    let partition = partition::from_pb(pb.partition.as_ref().unwrap_or(&Default::default()))?;
    let mut replicas = Vec::new();
    for interned in &pb.interned_replicas {
        let server = servers.get(interned.ts_info_idx as usize);
        let server = server.ok_or_else(|| Error::invalid(format!("tablet {id} names an unknown server")))?;
        replicas.extend(replica(server, interned.role() == Role::Leader));
    }
    for old in &pb.deprecated_replicas {
        replicas.extend(replica(&old.ts_info, old.role() == Role::Leader));
    }
    Ok(TabletLocation { id, partition, replicas })
}

fn replica(server: &TsInfoPb, leader: bool) -> Option<Replica> {
    let address = server.rpc_addresses.first()?;
    Some(Replica {
        server_id: String::from_utf8_lossy(&server.permanent_uuid).into_owned(),
        address: format!("{}:{}", address.host, address.port),
        leader,
    })
}
