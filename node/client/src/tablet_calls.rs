//! Location lookup, and classification of failed calls to tablet servers.

use bytes::Bytes;
use engine::error::{Error, ErrorKind, Result};
use engine::time::Instant;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::location_cache::{LocationCache, LocationLookup, ReplicaLocation, TabletLocation};
use super::master_calls::error_from_rpc;
use super::{Client, Table};
use nyala_common::rpc::RpcErrorCodePb;
use nyala_common::rpc::client::RpcError;
use nyala_common::wire::errors::error_from_status;
use nyala_common::wire::partition;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::master::{
    GetTableLocationsRequestPb, GetTableLocationsResponsePb, GetTableSchemaRequestPb,
    GetTableSchemaResponsePb, MasterFeatures, TableIdentifierPb, TabletLocationsPb, TsInfoPb,
};
use nyala_proto::kudu::security::SignedTokenPb;
use nyala_proto::kudu::tserver::TabletServerErrorPb;
use nyala_proto::kudu::tserver::tablet_server_error_pb::Code;

/// Maximum number of tablets in one lookup; enough for most tables.
const LOCATIONS_AT_ONCE: u32 = 200;

/// Failure of a call to a tablet server, by the required reaction.
pub(super) enum TabletCallFailure {
    Final(Error),
    /// Retry at the same server.
    Busy(Error),
    /// The server or its replica does not serve: look up the tablet and retry at another replica.
    OtherReplica(Error),
    /// The scanner does not exist any more: open a new one.
    Scanner(Error),
    /// The authorization token is not accepted: get a new one and repeat.
    Token(Error),
}

impl TabletCallFailure {
    pub(super) fn error(self) -> Error {
        match self {
            TabletCallFailure::Final(error)
            | TabletCallFailure::Busy(error)
            | TabletCallFailure::OtherReplica(error)
            | TabletCallFailure::Scanner(error)
            | TabletCallFailure::Token(error) => error,
        }
    }

    pub(super) fn of_rpc(error: &RpcError) -> TabletCallFailure {
        if matches!(error, RpcError::Remote { code: RpcErrorCodePb::ErrorInvalidAuthorizationToken, .. }) {
            return TabletCallFailure::Token(error_from_rpc(error));
        }
        let status = error_from_rpc(error);
        match error {
            _ if error.is_busy() => TabletCallFailure::Busy(status),
            RpcError::TimedOut { .. } => TabletCallFailure::OtherReplica(status),
            _ if error.is_unreachable() => TabletCallFailure::OtherReplica(status),
            _ => TabletCallFailure::Final(status),
        }
    }

    pub(super) fn of_reply(error: &TabletServerErrorPb) -> TabletCallFailure {
        let status = error_from_status(&error.status);
        match error.code() {
            Code::TabletNotFound | Code::TabletNotRunning | Code::NotTheLeader | Code::TabletFailed => {
                TabletCallFailure::OtherReplica(status)
            }
            Code::ScannerExpired => TabletCallFailure::Scanner(status),
            Code::Throttled => TabletCallFailure::Busy(status),
            _ => match status.kind {
                ErrorKind::NotReady | ErrorKind::Throttled => TabletCallFailure::Busy(status),
                ErrorKind::NotLeader | ErrorKind::Aborted => TabletCallFailure::OtherReplica(status),
                _ => TabletCallFailure::Final(status),
            },
        }
    }
}

impl TabletLocation {
    /// Returns the number of failed attempts at the current leader: `failed` + 1 if the leader is the one in `before`.
    pub(super) fn failed_since(&self, before: &TabletLocation, failed: u32) -> u32 {
        let leader = |tablet: &TabletLocation| {
            tablet.replicas.iter().find(|replica| replica.leader).map(|replica| replica.server_id.clone())
        };
        if leader(self) == leader(before) { failed + 1 } else { 0 }
    }

    /// Returns the replica for the attempt after `failed` failures: the leader first, then all replicas in turn.
    pub(super) fn replica(&self, failed: u32) -> Option<&ReplicaLocation> {
        let leader = self.replicas.iter().find(|replica| replica.leader);
        if failed == 0 && leader.is_some() {
            return leader;
        }
        let first = self.replicas.iter().position(|replica| replica.leader).unwrap_or(0);
        self.replicas.get((first + failed as usize) % self.replicas.len().max(1))
    }
}

impl Client {
    /// Looks up a partition key in the location cache, and at the masters if it is not cached.
    pub(super) async fn locate(
        &self,
        table: &Table,
        key: &[u8],
        deadline: Instant,
    ) -> Result<LocationLookup> {
        match self.located(table, key) {
            LocationLookup::Unknown => {}
            known => return Ok(known),
        }
        let request = GetTableLocationsRequestPb {
            table: TableIdentifierPb { table_id: Some(table.id_bytes()), table_name: None },
            partition_key_start: (!key.is_empty()).then(|| Bytes::copy_from_slice(key)),
            max_returned_locations: Some(LOCATIONS_AT_ONCE),
            intern_ts_infos_in_response: Some(true),
            ..Default::default()
        };
        let generation = self.shared.locations.lock().get(table.id()).map(LocationCache::generation);
        let response: GetTableLocationsResponsePb =
            self.shared.masters.call("GetTableLocations", &request, deadline, &[]).await?;
        let now = self.env().now().mono;
        let expires = now.after(Duration::from_millis(response.ttl_millis().into()));
        let complete = (response.tablet_locations.len() as u32) < LOCATIONS_AT_ONCE;
        let tablet = |pb: &TabletLocationsPb| tablet_from_pb(pb, &response.ts_infos);
        let tablets = response.tablet_locations.iter().map(tablet).collect::<Result<Vec<_>>>()?;
        // The response itself is used even if its time to live has passed.
        let mut fresh = LocationCache::default();
        fresh.learn(key, tablets.clone(), complete, Instant(u64::MAX));
        let mut caches = self.shared.locations.lock();
        let cache = caches.entry(table.id().to_string()).or_default();
        cache.note_lookup(now);
        cache.learn_response(generation.unwrap_or_default(), key, tablets, complete, expires);
        match fresh.get(key, Instant(0)) {
            LocationLookup::Unknown => Err(Error::not_ready("the master returned no location for a key")),
            known => Ok(known),
        }
    }

    /// Looks up a partition key in the location cache.
    pub(super) fn located(&self, table: &Table, key: &[u8]) -> LocationLookup {
        let now = self.env().now().mono;
        let caches = self.shared.locations.lock();
        caches.get(table.id()).map_or(LocationLookup::Unknown, |cache| cache.get(key, now))
    }

    /// Returns the cached tablet of the same partition, or `tablet` if the cache has none.
    pub(super) fn newest_location(&self, table: &Table, tablet: Arc<TabletLocation>) -> Arc<TabletLocation> {
        match self.located(table, &tablet.partition.start) {
            LocationLookup::Tablet(found) if found.partition == tablet.partition => found,
            _ => tablet,
        }
    }

    /// Drops a tablet from the location cache.
    pub(super) fn forget(&self, table_id: &str, tablet_id: &str) {
        if let Some(cache) = self.shared.locations.lock().get_mut(table_id) {
            cache.forget(tablet_id);
        }
    }

    /// Drops a table from the location cache, and makes lookups in flight not cache their responses.
    pub(super) fn forget_all(&self, table_id: &str) {
        self.shared.locations.lock().entry(table_id.to_string()).or_default().forget_all();
        self.shared.locations_dropped.fetch_add(1, Ordering::SeqCst);
    }

    /// Drops the gaps of a table from the location cache, and makes lookups in flight not cache theirs.
    pub(super) fn forget_gaps(&self, table_id: &str) {
        self.shared.locations.lock().entry(table_id.to_string()).or_default().forget_gaps();
    }

    /// Returns the time of the last location lookup of a table; `None` if there was none.
    pub(super) fn looked_up(&self, table_id: &str) -> Option<Instant> {
        self.shared.locations.lock().get(table_id).and_then(LocationCache::looked_up)
    }

    /// Returns how often the locations of a table were dropped. A tablet that was located before may be one of a
    /// range that is gone.
    pub(super) fn locations_dropped(&self) -> u64 {
        self.shared.locations_dropped.load(Ordering::SeqCst)
    }

    /// Looks up the tablet with the partition of `tablet`. Fails with `NotFound` if the partition was dropped.
    pub(super) async fn relocate(
        &self,
        table: &Table,
        tablet: &TabletLocation,
        deadline: Instant,
    ) -> Result<Arc<TabletLocation>> {
        self.forget(table.id(), &tablet.id);
        match self.locate(table, &tablet.partition.start, deadline).await? {
            LocationLookup::Tablet(found) if found.partition == tablet.partition => Ok(found),
            _ => Err(Error::not_found(format!("tablet {} of table {} was dropped", tablet.id, table.name()))),
        }
    }

    /// Replaces a token that a tablet server rejected. Another call may have done so meanwhile.
    pub(super) async fn renew_authz_token(
        &self,
        table: &Table,
        rejected: Option<&SignedTokenPb>,
        deadline: Instant,
    ) -> Result<()> {
        let tokens = &self.shared.authz_tokens;
        // The call that fetches a token may have a later deadline than this one.
        let wait = deadline.since(self.env().now().mono);
        let Some(_fetching) = self.env().timeout(wait, tokens.fetching.lock()).await else {
            return Err(Error::timed_out(format!(
                "table {}: another call's request for an authorization token has no reply; retry",
                table.name()
            )));
        };
        let current = tokens.get(table.id());
        if current.is_some() && current.as_ref() != rejected {
            return Ok(());
        }
        let by_id = TableIdentifierPb { table_id: Some(table.id_bytes()), table_name: None };
        let request = GetTableSchemaRequestPb { table: by_id };
        let features = [MasterFeatures::GenerateAuthzToken as u32];
        let reply: GetTableSchemaResponsePb =
            self.shared.masters.call("GetTableSchema", &request, deadline, &features).await?;
        if reply.authz_token.is_none() {
            return Err(Error::not_authorized(format!(
                "table {}: the masters give no authorization token, and its tablet servers demand one",
                table.name()
            )));
        }
        tokens.set(table.id(), reply.authz_token);
        Ok(())
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

fn replica(server: &TsInfoPb, leader: bool) -> Option<ReplicaLocation> {
    let address = server.rpc_addresses.first()?;
    Some(ReplicaLocation {
        server_id: String::from_utf8_lossy(&server.permanent_uuid).into_owned(),
        address: format!("{}:{}", address.host, address.port),
        leader,
    })
}
