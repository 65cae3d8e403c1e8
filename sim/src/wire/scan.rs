//! Requests of scans of one tablet, and the rows of their replies.

use bytes::Bytes;
use nyala_common::rpc::client::RpcResponse;
use nyala_proto::kudu::tserver::{NewScanRequestPb, ScanResponsePb};
use nyala_proto::kudu::{ColumnSchemaPb, OrderMode, ReadMode};
use sim_plan::client_ops::RowsFormat;
use sim_plan::tables::{ColumnKind, ColumnSpec, TypeWord, Value};

use super::rows::{self, Slot};
use super::schema;
use crate::history::HybridStamp;
use crate::model::Condition;

/// The state that a scan reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanTime {
    /// The newest state of the server that is asked.
    Latest,
    /// A snapshot that the server chooses.
    Chosen,
    /// A snapshot that has all that the client has seen.
    YourWrites,
    /// All before a timestamp.
    Named(HybridStamp),
}

/// A scan of one tablet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TabletScan {
    /// Columns to return, as the client knows them. None for the number of rows alone.
    pub columns: Vec<ColumnSpec>,
    /// Number of the table's key columns.
    pub keys: usize,
    pub conditions: Vec<(ColumnSpec, Condition)>,
    /// Encoded primary keys: the first one, and the one after the last.
    pub lower: Option<Vec<u8>>,
    pub upper: Option<Vec<u8>>,
    pub time: ScanTime,
    /// Start of a diff scan.
    pub since: Option<HybridStamp>,
    pub ordered: bool,
    pub limit: Option<u32>,
    pub format: RowsFormat,
}

/// A row of a scan. `deleted` is set in diff scans only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanRow {
    pub values: Vec<Value>,
    pub deleted: bool,
}

/// A batch of rows and what comes with it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScanBatch {
    pub rows: Vec<ScanRow>,
    /// Number of rows, those without columns too.
    pub count: u64,
}

const PADDED: u64 = 1;
const COLUMNAR: u64 = 2;
/// Features of tablet servers that a scan needs.
const PREDICATES: u32 = 1;
const PADDING: u32 = 2;
const COLUMNAR_LAYOUT: u32 = 5;
const BLOOM: u32 = 6;

impl TabletScan {
    /// Returns the request that begins this scan. `after`: the last encoded key of an earlier attempt.
    pub fn request(&self, tablet: &str, seen: HybridStamp, after: Option<&[u8]>) -> NewScanRequestPb {
        let mut projected: Vec<ColumnSchemaPb> = self
            .columns
            .iter()
            .map(|column| schema::column(column, usize::from(column.number) < self.keys))
            .collect();
        projected.extend(self.since.map(|_| ColumnSchemaPb {
            name: "is gone".to_string(),
            r#type: schema::IS_DELETED,
            is_nullable: Some(false),
            read_default_value: Some(Bytes::from_static(&[0])),
            ..Default::default()
        }));
        let (mode, snapshot) = match self.time {
            ScanTime::Latest => (ReadMode::ReadLatest, None),
            ScanTime::Chosen => (ReadMode::ReadAtSnapshot, None),
            ScanTime::YourWrites => (ReadMode::ReadYourWrites, None),
            ScanTime::Named(stamp) => (ReadMode::ReadAtSnapshot, Some(stamp)),
        };
        let order = if self.ordered { OrderMode::Ordered } else { OrderMode::Unordered };
        let bytes = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        NewScanRequestPb {
            tablet_id: bytes(tablet.as_bytes()),
            limit: self.limit.map(u64::from),
            column_predicates: self
                .conditions
                .iter()
                .map(|(column, of)| schema::predicate(column, of))
                .collect(),
            start_primary_key: self.lower.as_deref().filter(|_| after.is_none()).map(bytes),
            stop_primary_key: self.upper.as_deref().map(bytes),
            last_primary_key: after.map(bytes),
            projected_columns: projected,
            read_mode: Some(mode as i32),
            snap_start_timestamp: self.since,
            snap_timestamp: snapshot,
            propagated_timestamp: (seen > 0).then_some(seen),
            order_mode: Some(order as i32),
            row_format_flags: Some(self.flags()),
            ..Default::default()
        }
    }

    fn flags(&self) -> u64 {
        match self.format {
            RowsFormat::RowWise => 0,
            RowsFormat::Padded => PADDED,
            RowsFormat::Columnar => COLUMNAR,
        }
    }

    /// Returns the features that a server needs for this scan.
    pub fn features(&self) -> Vec<u32> {
        let bloom = self.conditions.iter().any(|(_, of)| matches!(of, Condition::Bloom { .. }));
        let mut features = Vec::new();
        features.extend((!self.conditions.is_empty()).then_some(PREDICATES));
        features.extend((self.format == RowsFormat::Padded).then_some(PADDING));
        features.extend((self.format == RowsFormat::Columnar).then_some(COLUMNAR_LAYOUT));
        features.extend(bloom.then_some(BLOOM));
        features
    }

    /// Decodes the rows of a reply.
    pub fn rows(&self, reply: &RpcResponse<ScanResponsePb>) -> Result<ScanBatch, String> {
        let mut slots: Vec<Slot> = self.columns.iter().map(schema::slot).collect();
        slots.extend(self.since.map(|_| (ColumnKind::plain(TypeWord::Bool), false)));
        let (message, sidecars) = (&reply.message, &reply.sidecars);
        let (rows, count) = match (&message.data, &message.columnar_data) {
            (Some(data), None) if self.format != RowsFormat::Columnar => {
                let padded = self.format == RowsFormat::Padded;
                (rows::row_wise(data, sidecars, &slots, padded)?, i64::from(data.num_rows()))
            }
            (None, Some(data)) if self.format == RowsFormat::Columnar => {
                (rows::columnar(data, sidecars, &slots)?, data.num_rows())
            }
            (None, None) => (Vec::new(), 0),
            _ => return Err("the rows have another format than the scan asked for".to_string()),
        };
        let row = |mut values: Vec<Value>| {
            let deleted = self.since.is_some() && values.pop() == Some(Value::Int(1));
            ScanRow { values, deleted }
        };
        Ok(ScanBatch { rows: rows.into_iter().map(row).collect(), count: count.unsigned_abs() })
    }
}
