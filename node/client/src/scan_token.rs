//! Scan tokens: a scan split into one token per tablet. A token is a message that another process can scan.
//!
//! The table may be altered before its tokens are read. A column of a token is the one with its id, under any name;
//! tokens of clients that send no ids name it. One that was dropped or has another type since fails the scan.

use std::sync::Arc;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::ids::ColumnId;
use engine::schema::partition_range::PartitionRange;
use engine::schema::predicate::Predicate;
use engine::schema::{ColumnSchema, Schema};
use prost::Message;

use super::location_cache::TabletLocation;
use super::scan::Scanner;
use super::scan_keys::ScanKeys;
use super::scan_spec::{ReadMode, ScanSpec};
use super::{Client, Table, predicate};
use nyala_common::wire::{predicates, schema};
use nyala_proto::kudu::client::ScanTokenPb;
use nyala_proto::kudu::master::TableIdentifierPb;
use nyala_proto::kudu::{ColumnPredicatePb, ColumnSchemaPb, ReadMode as ReadModePb, ReplicaSelection};

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
        let mut tokens = Vec::new();
        let mut keys = ScanKeys::new(self, spec);
        while let Some(tablet) = keys.next_tablet(self, spec, deadline).await? {
            keys.advance(&tablet.partition.end);
            tokens.push(ScanToken { message: self.token(spec, &tablet), tablet });
        }
        Ok(tokens)
    }

    fn token(&self, spec: &ScanSpec, tablet: &TabletLocation) -> ScanTokenPb {
        let bytes = |key: &[u8]| Some(Bytes::copy_from_slice(key)).filter(|key| !key.is_empty());
        let (read_mode, snap_timestamp) = match spec.requested_mode() {
            ReadMode::Latest => (ReadModePb::ReadLatest, None),
            ReadMode::AtSnapshot(at) => (ReadModePb::ReadAtSnapshot, at),
            ReadMode::YourWrites => (ReadModePb::ReadYourWrites, None),
        };
        let held =
            PartitionRange { lower: tablet.partition.start.clone(), upper: tablet.partition.end.clone() };
        let partitions = held.intersection(&spec.partitions).unwrap_or(held);
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
            lower_bound_partition_key: bytes(&partitions.lower),
            upper_bound_partition_key: bytes(&partitions.upper),
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

    /// Starts the scan of a token. Fails with `NotFound` if a column of the token was dropped, and with `Invalid` if it
    /// has another type since.
    pub fn scan_token(&self, token: &ScanToken) -> Result<Scanner> {
        self.scan(self.spec_of(&token.message)?)
    }

    fn spec_of(&self, token: &ScanTokenPb) -> Result<ScanSpec> {
        let of_table = |error: Error| error.context(format!("scan token of table {}", self.name()));
        let name = |pb| Ok(current_column(self.schema(), pb).map_err(of_table)?.name.clone());
        let columns = projected_columns(token)?.into_iter().map(name).collect::<Result<Vec<_>>>()?;
        let predicate = |pb| current_predicate(self.schema(), token, pb).map_err(of_table);
        let predicates = token.column_predicates.iter().map(predicate);
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

/// Returns the columns that a token describes: all of its table, or those that it reads.
fn described_columns(token: &ScanTokenPb) -> &[ColumnSchemaPb] {
    match &token.table_metadata {
        None => &token.projected_columns,
        Some(metadata) => metadata.schema.as_ref().map(|schema| &schema.columns[..]).unwrap_or_default(),
    }
}

/// Returns the columns that a token reads.
fn projected_columns(token: &ScanTokenPb) -> Result<Vec<&ColumnSchemaPb>> {
    if token.table_metadata.is_none() {
        return Ok(token.projected_columns.iter().collect());
    }
    let columns = described_columns(token);
    let column = |index: &i32| {
        let column = usize::try_from(*index).ok().and_then(|index| columns.get(index));
        column.ok_or_else(|| Error::invalid(format!("invalid scan token (column index {index})")))
    };
    token.projected_column_idx.iter().map(column).collect()
}

/// Returns the column of a table that is a token's column. Fails if there is none, or if it has another type.
fn current_column<'a>(current: &'a Schema, pb: &ColumnSchemaPb) -> Result<&'a ColumnSchema> {
    let found = match pb.id {
        Some(id) => current.by_id(ColumnId(id)),
        None => current.index_of_name(&pb.name).map(|index| &current.columns()[index]),
    };
    let name = &pb.name;
    let dropped = || Error::not_found(format!("column {name:?} no longer exists; create the tokens again"));
    let column = found.ok_or_else(dropped)?;
    // Encoding, defaults and comment may have changed since: they do not change how rows are read.
    let typed = ColumnSchemaPb {
        name: name.clone(),
        r#type: pb.r#type,
        is_nullable: pb.is_nullable,
        type_attributes: pb.type_attributes,
        ..Default::default()
    };
    let known = schema::column_from_pb(&typed, column.id)?;
    if (known.ty, known.attributes, known.nullable) == (column.ty, column.attributes, column.nullable) {
        return Ok(column);
    }
    let (known, found) = (known.type_text(), column.type_text());
    Err(Error::invalid(format!("column {name:?} is {found}, not {known}; create the tokens again")))
}

/// Converts a predicate of a token. It names a column as the token describes it, which may have another name by now.
fn current_predicate(current: &Schema, token: &ScanTokenPb, pb: &ColumnPredicatePb) -> Result<Predicate> {
    let described = described_columns(token).iter().find(|column| column.name == pb.column());
    // A column that the token does not describe can be found by its name only.
    let Some(described) = described else { return predicates::from_pb(pb, current) };
    let column = Some(current_column(current, described)?.name.clone());
    predicates::from_pb(&ColumnPredicatePb { column, ..pb.clone() }, current)
}

impl Client {
    /// Starts the scan of a serialized token from any Kudu client: opens its table and scans its tablet. Fails as
    /// [`Table::scan_token`] does.
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

#[cfg(test)]
mod tests {
    use engine::schema::DataType;
    use nyala_proto::kudu::SchemaPb;
    use nyala_proto::kudu::client::TableMetadataPb;
    use nyala_proto::kudu::column_predicate_pb::{IsNull, Predicate as Kind};

    use super::*;

    /// Returns the schema of a table whose columns `a` and `b` were renamed to each other, and whose column `c` was
    /// dropped and added again, since its tokens were created.
    fn altered() -> Schema {
        let columns = vec![
            ColumnSchema::new(0, "k", DataType::Int32),
            ColumnSchema::new(1, "b", DataType::Int32).nullable(),
            ColumnSchema::new(2, "a", DataType::Int32).nullable(),
            ColumnSchema::new(4, "c", DataType::Int64).nullable(),
        ];
        Schema::new(columns, 1).expect("a legal schema")
    }

    fn described(id: Option<u32>, name: &str, ty: DataType) -> ColumnSchemaPb {
        ColumnSchemaPb { id, ..schema::column_to_pb(&ColumnSchema::new(0, name, ty).nullable(), false) }
    }

    #[test]
    fn a_column_of_a_token_is_found_by_its_id_and_checked() {
        let table = altered();
        let found = |pb: &ColumnSchemaPb| match current_column(&table, pb) {
            Ok(column) => format!("column {} {}", column.id.0, column.name),
            Err(error) => error.message,
        };
        let not_null = ColumnSchemaPb { is_nullable: None, ..described(None, "c", DataType::Int64) };
        assert_eq!(found(&described(Some(1), "a", DataType::Int32)), "column 1 b");
        assert_eq!(found(&described(None, "a", DataType::Int32)), "column 2 a");
        let dropped = "column \"c\" no longer exists; create the tokens again";
        assert_eq!(found(&described(Some(3), "c", DataType::Int32)), dropped);
        let other = "column \"c\" is INT64 NULLABLE, not INT32 NULLABLE; create the tokens again";
        assert_eq!(found(&described(None, "c", DataType::Int32)), other);
        let nullable = "column \"c\" is INT64 NULLABLE, not INT64 NOT NULL; create the tokens again";
        assert_eq!(found(&not_null), nullable);
    }

    #[test]
    fn a_predicate_of_a_token_is_on_the_column_that_had_its_name() {
        let columns =
            vec![described(Some(2), "b", DataType::Int32), described(Some(1), "a", DataType::Int32)];
        let metadata = TableMetadataPb { schema: Some(SchemaPb { columns }), ..Default::default() };
        let mut token = ScanTokenPb {
            table_metadata: Some(metadata),
            projected_column_idx: vec![0],
            ..Default::default()
        };
        let is_null =
            ColumnPredicatePb { column: Some("a".to_string()), predicate: Some(Kind::IsNull(IsNull {})) };
        let column = |token: &ScanTokenPb| {
            current_predicate(&altered(), token, &is_null).expect("there is such a column").column
        };
        assert_eq!(column(&token), ColumnId(1));
        let read = projected_columns(&token).expect("a column of the token");
        assert_eq!(read.iter().map(|column| column.name.as_str()).collect::<Vec<_>>(), ["b"]);
        token.table_metadata = None;
        assert_eq!(column(&token), ColumnId(2), "its name is all that is known");
    }
}
