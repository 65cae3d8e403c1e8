//! Scan tokens: a scan split into one token per tablet. A token is a message that another process can scan.

use std::sync::Arc;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::schema::partition_range::PartitionRange;
use prost::Message;

use super::location_cache::{LocationLookup, TabletLocation};
use super::scan::{ReadMode, ScanSpec, Scanner};
use super::{Client, Table, predicate};
use nyala_common::wire::{predicates, schema};
use nyala_proto::kudu::client::ScanTokenPb;
use nyala_proto::kudu::master::TableIdentifierPb;
use nyala_proto::kudu::{ReadMode as ReadModePb, ReplicaSelection};

/// The part of a scan that reads one tablet.
#[derive(Debug, Clone)]
pub struct ScanToken {
    message: ScanTokenPb,
    tablet: Arc<TabletLocation>,
}

impl ScanToken {
    /// Returns the tablet that the token reads.
    pub fn tablet(&self) -> &TabletLocation {
        &self.tablet
    }

    /// Encodes the token for another process; see [`Client::scan_serialized_token`].
    pub fn serialize(&self) -> Vec<u8> {
        self.message.encode_to_vec()
    }
}

impl Table {
    /// Splits a scan into tokens, one per tablet that may hold matching rows. Fails with `NotFound` for a column that
    /// the table does not have, and with `Unsupported` for an aggregation.
    pub async fn scan_tokens(&self, spec: &ScanSpec) -> Result<Vec<ScanToken>> {
        if spec.aggregation.is_some() {
            return Err(Error::unsupported(
                "a scan token has no aggregation; use its partition keys in a scan",
            ));
        }
        self.projection(spec)?;
        let deadline = self.client.deadline();
        let mut tokens: Vec<ScanToken> = Vec::new();
        for range in self.partition_schema().prune(self.schema(), &spec.predicates, &spec.keys) {
            let mut at = range.lower.clone();
            loop {
                let end = match self.client.locate(self, &at, deadline).await? {
                    LocationLookup::Tablet(tablet) => {
                        let end = tablet.partition.end.clone();
                        if !tokens.iter().any(|token| token.tablet.id == tablet.id) {
                            let message = self.token(spec, &tablet);
                            tokens.push(ScanToken { message, tablet });
                        }
                        end
                    }
                    LocationLookup::Gap { end } => end,
                    LocationLookup::Unknown => {
                        return Err(Error::not_ready("the master returned no location for a key"));
                    }
                };
                if end.is_empty() || (!range.upper.is_empty() && end >= range.upper) {
                    break;
                }
                at = end;
            }
        }
        Ok(tokens)
    }

    fn token(&self, spec: &ScanSpec, tablet: &TabletLocation) -> ScanTokenPb {
        let bytes = |key: &[u8]| Some(Bytes::copy_from_slice(key)).filter(|key| !key.is_empty());
        let (read_mode, snap_timestamp) = match spec.read_mode {
            ReadMode::Latest => (ReadModePb::ReadLatest, None),
            ReadMode::AtSnapshot(at) => (ReadModePb::ReadAtSnapshot, at),
            ReadMode::YourWrites => (ReadModePb::ReadYourWrites, None),
        };
        let schema = self.schema();
        let is_wanted = |name: &String| spec.columns.as_ref().is_none_or(|names| names.contains(name));
        let projected = |name: &String| {
            let index = schema.index_of_name(name)?;
            Some(schema::column_to_pb(&schema.columns()[index], index < schema.num_key_columns()))
        };
        let all: Vec<String> = schema.columns().iter().map(|column| column.name.clone()).collect();
        let names = spec.columns.clone().unwrap_or(all);
        let replica =
            if spec.any_replica { ReplicaSelection::ClosestReplica } else { ReplicaSelection::LeaderOnly };
        ScanTokenPb {
            table_id: Some(self.id().to_string()),
            table_name: Some(self.name().to_string()),
            projected_columns: names.iter().filter(|name| is_wanted(name)).filter_map(projected).collect(),
            column_predicates: spec.predicates.iter().filter_map(|p| predicate::to_pb(p, schema)).collect(),
            lower_bound_primary_key: bytes(&spec.keys.lower),
            upper_bound_primary_key: bytes(&spec.keys.upper),
            lower_bound_partition_key: bytes(&tablet.partition.start),
            upper_bound_partition_key: bytes(&tablet.partition.end),
            limit: spec.limit,
            read_mode: Some(read_mode as i32),
            snap_timestamp,
            snap_start_timestamp: spec.diff_from,
            propagated_timestamp: self.client.observed_timestamp(),
            fault_tolerant: Some(spec.fault_tolerant),
            batch_size_bytes: Some(spec.batch_bytes),
            replica_selection: Some(replica as i32),
            authz_token: self.client.shared.authz_tokens.get(self.id()),
            ..Default::default()
        }
    }

    /// Starts the scan of a token.
    pub fn scan_token(&self, token: &ScanToken) -> Result<Scanner> {
        self.scan(self.spec_of(&token.message)?)
    }

    fn spec_of(&self, token: &ScanTokenPb) -> Result<ScanSpec> {
        let columns = match &token.table_metadata {
            None => token.projected_columns.iter().map(|column| column.name.clone()).collect(),
            Some(metadata) => {
                let columns = &metadata.schema.as_ref().map(|schema| &schema.columns[..]).unwrap_or_default();
                let name = |index: &i32| {
                    let column = usize::try_from(*index).ok().and_then(|index| columns.get(index));
                    let missing = || Error::invalid(format!("invalid scan token (column index {index})"));
                    column.map(|column| column.name.clone()).ok_or_else(missing)
                };
                token.projected_column_idx.iter().map(name).collect::<Result<Vec<_>>>()?
            }
        };
        let predicates = token.column_predicates.iter().map(|pb| predicates::from_pb(pb, self.schema()));
        let read_mode = match token.read_mode() {
            ReadModePb::ReadAtSnapshot => ReadMode::AtSnapshot(token.snap_timestamp),
            ReadModePb::ReadYourWrites => ReadMode::YourWrites,
            ReadModePb::ReadLatest | ReadModePb::UnknownReadMode => ReadMode::Latest,
        };
        Ok(ScanSpec {
            columns: Some(columns),
            aggregation: None,
            predicates: predicates.collect::<Result<_>>()?,
            keys: PartitionRange {
                lower: token.lower_bound_primary_key().to_vec(),
                upper: token.upper_bound_primary_key().to_vec(),
            },
            partitions: PartitionRange {
                lower: token.lower_bound_partition_key().to_vec(),
                upper: token.upper_bound_partition_key().to_vec(),
            },
            read_mode,
            diff_from: token.snap_start_timestamp,
            fault_tolerant: token.fault_tolerant(),
            limit: token.limit,
            batch_bytes: token.batch_size_bytes.unwrap_or(1 << 20),
            any_replica: token.replica_selection() != ReplicaSelection::LeaderOnly,
        })
    }
}

impl Client {
    /// Starts the scan of a serialized token from any Kudu client: opens its table and scans its tablet.
    pub async fn scan_serialized_token(&self, token: &[u8]) -> Result<Scanner> {
        let bad = |error| Error::invalid(format!("not a scan token: {error}"));
        let token = ScanTokenPb::decode(token).map_err(bad)?;
        if !token.feature_flags.is_empty() {
            return Err(Error::unsupported(
                "the scan token needs a feature that this client does not support",
            ));
        }
        let metadata = token.table_metadata.as_ref();
        let id = token.table_id.clone().or_else(|| metadata?.table_id.clone());
        let name = token.table_name.clone().or_else(|| metadata?.table_name.clone());
        let table_id = id.map(Bytes::from);
        // The table may have been renamed since, so the id takes precedence.
        let table_name = if table_id.is_some() { None } else { name };
        if let Some(seen) = token.propagated_timestamp {
            self.observe_timestamp(seen);
        }
        let table = self.open(TableIdentifierPb { table_id, table_name }).await?;
        if self.shared.authz_tokens.get(table.id()).is_none() {
            self.shared.authz_tokens.set(table.id(), token.authz_token.clone());
        }
        table.scan(table.spec_of(&token)?)
    }
}
