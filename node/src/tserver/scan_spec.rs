//! Parser of NewScanRequest, checked against the tablet's schema. Pure.
//!
//! Sources: `rows.md` §7 and `behaviour.md` §9 for the error of each mistake.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::error::Error;
use engine::schema::aggregation::Aggregation;
use engine::schema::row_block::ProjectedColumn;
use engine::schema::{ColumnSchema, DataType, PhysicalType, Schema, TypeParameters, key};
use engine::tablet::scan::{self, ScanSpec};
use engine::time::Timestamp;

use nyala_common::wire::errors::{TabletError, TabletErrorCode};
use nyala_common::wire::rows::RowsFormat;
use nyala_common::wire::{aggregation, predicates, schema};
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::tserver::{NewScanRequestPb, RowFormatFlags};
use nyala_proto::kudu::{ColumnSchemaPb, OrderMode, ReadMode};

/// Read mode of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotMode {
    /// All operations applied so far.
    Latest,
    /// The given snapshot timestamp, or the current time.
    Snapshot(Option<Timestamp>),
    /// At least everything up to the timestamp that the client has seen.
    YourWrites { seen: Option<Timestamp> },
}

/// A checked request. The snapshot in `spec` is filled in once it is chosen.
#[derive(Debug, Clone)]
pub struct ParsedScan {
    pub spec: ScanSpec,
    /// Columns of the replies: those of `spec`, or the results of the aggregation.
    pub projection: Arc<[ProjectedColumn]>,
    pub aggregation: Option<Arc<Aggregation>>,
    pub layout: RowsFormat,
    pub read_at: SnapshotMode,
    pub propagated: Option<Timestamp>,
}

/// Most column predicates of a scan. Each takes memory and time in every rowset; clients merge those of a column.
const PREDICATES_MAX: usize = 4096;

/// Parses and checks a request.
pub fn parse(request: &NewScanRequestPb, schema: &Schema) -> Result<ParsedScan, TabletError> {
    parse_with(request, schema, |diff| Ok(projection(&request.projected_columns, schema, diff)?.into()))
}

/// Parses and checks a request whose columns were found to be `projection`, which has no virtual ones, for an equal
/// schema before.
pub(super) fn parse_projected(
    request: &NewScanRequestPb,
    schema: &Schema,
    projection: Arc<[ProjectedColumn]>,
) -> Result<ParsedScan, TabletError> {
    parse_with(request, schema, |_diff| Ok(projection))
}

/// Parses and checks a request; `projection` gives its columns, and is told if the scan is a diff scan.
fn parse_with(
    request: &NewScanRequestPb,
    schema: &Schema,
    projection: impl FnOnce(bool) -> Result<Arc<[ProjectedColumn]>, TabletError>,
) -> Result<ParsedScan, TabletError> {
    let layout = layout(request.row_format_flags())?;
    let ordered = ordered(request)?;
    let propagated = request.propagated_timestamp.map(Timestamp);
    let read_at = read_at(request, propagated)?;
    if ordered && !matches!(read_at, SnapshotMode::Snapshot(_)) {
        return Err(bad_spec("an ordered scan has to be a snapshot scan (READ_AT_SNAPSHOT)"));
    }
    let diff_from = diff_from(request, ordered, read_at)?;
    let projection = projection(diff_from.is_some())?;
    if !request.deprecated_range_predicates.is_empty() {
        let message = "range predicates in their old form are not supported; send column predicates";
        return Err(TabletError::new(TabletErrorCode::InvalidScanSpec, ErrorCode::NotSupported, message));
    }
    check_predicate_count(request.column_predicates.len())?;
    let predicates = request.column_predicates.iter().map(|pb| predicates::from_pb(pb, schema));
    let predicates = predicates.collect::<Result<_, Error>>().map_err(|error| spec_error(&error))?;
    let bound = |bytes: &Option<bytes::Bytes>| key_bound(bytes.as_deref(), schema);
    if request.last_primary_key.is_some() && request.start_primary_key.is_some() {
        return Err(bad_spec("a scan can begin at start_primary_key or after last_primary_key, not both"));
    }
    let spec = ScanSpec {
        predicates,
        lower_key: bound(&request.start_primary_key)?,
        upper_key: bound(&request.stop_primary_key)?,
        last_key: last_key(request.last_primary_key.as_deref(), schema)?,
        diff_from,
        ordered,
        limit: request.limit,
        projection,
        ..ScanSpec::latest(Vec::new())
    };
    let aggregation = aggregation(request, layout)?.map(Arc::new);
    let projection = match &aggregation {
        None => spec.projection.clone(),
        Some(aggregation) => aggregation.output(&spec.projection).map_err(|error| spec_error(&error))?.into(),
    };
    Ok(ParsedScan { spec, projection, aggregation, layout, read_at, propagated })
}

/// Returns the aggregation of a request. It reads all rows that the predicates select, by column.
fn aggregation(request: &NewScanRequestPb, layout: RowsFormat) -> Result<Option<Aggregation>, TabletError> {
    let Some(pb) = &request.nyala_aggregation else { return Ok(None) };
    if layout != RowsFormat::Columnar {
        return Err(bad_spec("an aggregation needs the columnar layout"));
    }
    if request.limit.is_some() || request.snap_start_timestamp.is_some() {
        return Err(bad_spec("an aggregation has no limit and no start of a diff scan"));
    }
    aggregation::from_pb(pb).map(Some).map_err(|error| spec_error(&error))
}

fn check_predicate_count(count: usize) -> Result<(), TabletError> {
    if count <= PREDICATES_MAX {
        return Ok(());
    }
    Err(bad_spec(format!(
        "too many column predicates ({count}, limit {PREDICATES_MAX}); send one IN list for values of the same column"
    )))
}

fn bad_spec(message: impl Into<String>) -> TabletError {
    TabletError::new(TabletErrorCode::InvalidScanSpec, ErrorCode::InvalidArgument, message)
}

fn spec_error(error: &Error) -> TabletError {
    TabletError::of(TabletErrorCode::InvalidScanSpec, error)
}

fn layout(flags: u64) -> Result<RowsFormat, TabletError> {
    let pad = RowFormatFlags::PadUnixTimeMicrosTo16Bytes as u64;
    let columnar = RowFormatFlags::ColumnarLayout as u64;
    match flags {
        0 => Ok(RowsFormat::RowWise { pad_timestamps: false }),
        flag if flag == pad => Ok(RowsFormat::RowWise { pad_timestamps: true }),
        flag if flag == columnar => Ok(RowsFormat::Columnar),
        both if both == pad | columnar => {
            Err(bad_spec("padded timestamps and the columnar layout do not go together"))
        }
        other => Err(bad_spec(format!("unknown row format flags {other:#x}"))),
    }
}

fn ordered(request: &NewScanRequestPb) -> Result<bool, TabletError> {
    match OrderMode::try_from(request.order_mode.unwrap_or(OrderMode::Unordered as i32)) {
        Ok(OrderMode::Unordered) => Ok(false),
        Ok(OrderMode::Ordered) => Ok(true),
        _ => Err(bad_spec("unknown order mode")),
    }
}

fn read_at(request: &NewScanRequestPb, seen: Option<Timestamp>) -> Result<SnapshotMode, TabletError> {
    match ReadMode::try_from(request.read_mode.unwrap_or(ReadMode::ReadLatest as i32)) {
        Ok(ReadMode::ReadLatest) if request.snap_timestamp.is_some() => {
            Err(bad_spec("a snapshot timestamp needs the read mode READ_AT_SNAPSHOT"))
        }
        Ok(ReadMode::ReadLatest) => Ok(SnapshotMode::Latest),
        Ok(ReadMode::ReadAtSnapshot) => Ok(SnapshotMode::Snapshot(request.snap_timestamp.map(Timestamp))),
        Ok(ReadMode::ReadYourWrites) if request.snap_timestamp.is_some() => {
            Err(bad_spec("READ_YOUR_WRITES chooses its own timestamp; none may be given"))
        }
        Ok(ReadMode::ReadYourWrites) => Ok(SnapshotMode::YourWrites { seen }),
        _ => Err(bad_spec("unknown read mode")),
    }
}

fn diff_from(
    request: &NewScanRequestPb,
    ordered: bool,
    at: SnapshotMode,
) -> Result<Option<Timestamp>, TabletError> {
    let Some(start) = request.snap_start_timestamp.map(Timestamp) else { return Ok(None) };
    let SnapshotMode::Snapshot(Some(end)) = at else {
        return Err(bad_spec("a diff scan needs READ_AT_SNAPSHOT with both timestamps"));
    };
    if !ordered {
        return Err(bad_spec("a diff scan has to be ordered"));
    }
    if start > end {
        let message = format!("a diff scan cannot go from {start} back to {end}");
        return Err(TabletError::new(TabletErrorCode::InvalidSnapshot, ErrorCode::InvalidArgument, message));
    }
    Ok(Some(start))
}

/// Returns the columns to read, found by name in the tablet's schema. Types and nullability of the request must match.
pub fn projection(
    columns: &[ColumnSchemaPb],
    schema: &Schema,
    diff: bool,
) -> Result<Vec<ProjectedColumn>, TabletError> {
    schema::refuse_ids(columns).map_err(|error| TabletError::of(TabletErrorCode::InvalidSchema, &error))?;
    // A projection is wrong within this many columns if it has more than all real ones and a virtual one: a column is
    // missing, is named twice or is virtual again. So the work for a projection does not depend on its length.
    let columns = &columns[..columns.len().min(schema.columns().len() + 2)];
    let mut found: Vec<ProjectedColumn> = Vec::with_capacity(columns.len());
    let (mut names, mut missing, mut has_virtual) = (BTreeSet::new(), Vec::new(), false);
    for pb in columns {
        if !names.insert(pb.name.as_str()) {
            let message = format!("the projection names column {:?} twice", pb.name);
            return Err(TabletError::new(
                TabletErrorCode::InvalidSchema,
                ErrorCode::InvalidArgument,
                message,
            ));
        }
        if pb.r#type == DataType::IsDeleted as i32 {
            if std::mem::replace(&mut has_virtual, true) {
                return Err(scan::refused_virtual_column().into());
            }
            found.push(is_deleted(pb, diff)?);
            continue;
        }
        match schema.index_of_name(&pb.name) {
            Some(i) => found.push(matching(pb, &schema.columns()[i])?),
            None => missing.push(pb.name.as_str()),
        }
    }
    if !missing.is_empty() {
        let message = format!("Some columns are not present in the current schema: {}", missing.join(", "));
        return Err(mismatch(message));
    }
    Ok(found)
}

fn mismatch(message: String) -> TabletError {
    TabletError::new(TabletErrorCode::MismatchedSchema, ErrorCode::InvalidArgument, message)
}

fn is_deleted(pb: &ColumnSchemaPb, diff: bool) -> Result<ProjectedColumn, TabletError> {
    if !diff {
        return Err(bad_spec(format!("column {:?}: only a diff scan has an IS_DELETED column", pb.name)));
    }
    if pb.is_nullable() || pb.read_default_value.is_none() {
        let message =
            format!("column {:?}: IS_DELETED may not be nullable and needs a read default", pb.name);
        return Err(bad_spec(message));
    }
    Ok(ProjectedColumn {
        id: None,
        name: pb.name.clone(),
        ty: DataType::IsDeleted,
        nullable: false,
        read_default: Some(vec![0]),
    })
}

/// Returns the tablet's column if it matches the client's description of it.
fn matching(pb: &ColumnSchemaPb, column: &ColumnSchema) -> Result<ProjectedColumn, TabletError> {
    let given = pb.type_attributes.unwrap_or_default();
    let attributes = column.attributes;
    let same_attributes = match column.ty.parameters() {
        TypeParameters::Digits(_) => {
            (given.precision(), given.scale()) == (attributes.precision.into(), attributes.scale.into())
        }
        TypeParameters::Length => given.length() == i32::from(attributes.length),
        TypeParameters::None => true,
    };
    if pb.r#type == column.ty as i32 && same_attributes && pb.is_nullable() == column.nullable {
        return Ok(ProjectedColumn::from(column));
    }
    let nullability = |nullable| if nullable { "NULLABLE" } else { "NOT NULL" };
    let believed = DataType::from_number(pb.r#type).map_or("of an unknown type", DataType::name);
    Err(mismatch(format!(
        "The column '{}' must have type {} {} found {believed} {}",
        column.name,
        column.ty.name(),
        nullability(column.nullable),
        nullability(pb.is_nullable()),
    )))
}

/// Decodes the key after which a scan continues. The empty text is a row's key if that is one column of text.
fn last_key(bytes: Option<&[u8]>, schema: &Schema) -> Result<Option<Vec<u8>>, TabletError> {
    match (bytes, schema.key_columns()) {
        (Some([]), [column]) if column.ty.physical() == PhysicalType::Binary => Ok(Some(Vec::new())),
        (bytes, _) => key_bound(bytes, schema),
    }
}

/// Decodes an encoded primary key; `None` for an empty one.
pub fn key_bound(bytes: Option<&[u8]>, schema: &Schema) -> Result<Option<Vec<u8>>, TabletError> {
    let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else { return Ok(None) };
    key::decode_key(schema.key_columns(), bytes)
        .map_err(|error| bad_spec(format!("a primary key bound of the scan: {}", error.message)))?;
    Ok(Some(bytes.to_vec()))
}

#[cfg(test)]
mod tests {
    use nyala_proto::kudu::ColumnPredicatePb;
    use nyala_proto::kudu::column_predicate_pb::{IsNotNull, Predicate};

    use super::*;

    fn refusal(columns: &[ColumnSchemaPb]) -> String {
        let tablet =
            ["k", "v"].iter().zip(0..).map(|(name, id)| ColumnSchema::new(id, name, DataType::Int32));
        let tablet = Schema::new(tablet.collect(), 1).expect("a schema");
        projection(columns, &tablet, true).expect_err("the projection is wrong").to_string()
    }

    fn column(name: &str, ty: DataType) -> ColumnSchemaPb {
        let read_default_value = (ty == DataType::IsDeleted).then(|| bytes::Bytes::from_static(&[0]));
        ColumnSchemaPb { name: name.to_string(), r#type: ty as i32, read_default_value, ..Default::default() }
    }

    #[test]
    fn a_projection_that_is_too_long_is_refused_without_reading_it_whole() {
        let virtuals: Vec<_> = (0..50_000).map(|i| column(&format!("d{i}"), DataType::IsDeleted)).collect();
        let once = "a virtual IS_DELETED column is allowed once, in a diff scan";
        assert!(refusal(&virtuals).contains(once), "{}", refusal(&virtuals));
        let missing: Vec<_> = (0..50_000).map(|i| column(&format!("x{i}"), DataType::Int32)).collect();
        let text = refusal(&missing);
        assert!(text.ends_with("not present in the current schema: x0, x1, x2, x3"), "{text}");
        let twice = ["k", "v", "k"].map(|name| column(name, DataType::Int32));
        assert!(refusal(&twice).contains("names column \"k\" twice"));
    }

    #[test]
    fn a_scan_with_too_many_predicates_is_refused_before_they_are_parsed() {
        let tablet = Schema::new(vec![ColumnSchema::new(0, "k", DataType::Int32)], 1).expect("a schema");
        let parse_many = |name: &str, count| {
            let is_not_null = Some(Predicate::IsNotNull(IsNotNull::default()));
            let predicate = ColumnPredicatePb { column: Some(name.to_string()), predicate: is_not_null };
            let column_predicates = vec![predicate; count];
            parse(&NewScanRequestPb { column_predicates, ..Default::default() }, &tablet)
        };
        let parsed = parse_many("k", PREDICATES_MAX).expect("as many as are allowed");
        assert_eq!(parsed.spec.predicates.len(), PREDICATES_MAX);
        let error = parse_many("no column", PREDICATES_MAX + 1).expect_err("one more");
        assert_eq!(error.code, TabletErrorCode::InvalidScanSpec);
        let text =
            "too many column predicates (4097, limit 4096); send one IN list for values of the same column";
        assert!(error.to_string().contains(text), "{error}");
    }

    #[test]
    fn a_scan_continues_after_the_empty_key_of_a_text_column() {
        let of = |ty| Schema::new(vec![ColumnSchema::new(0, "k", ty)], 1).expect("a schema");
        let after = |ty, bytes| last_key(bytes, &of(ty)).expect("a key");
        assert_eq!(after(DataType::String, Some(b"")), Some(Vec::new()));
        assert_eq!(after(DataType::String, None), None);
        assert_eq!(after(DataType::Binary, Some(b"x")), Some(b"x".to_vec()));
        assert_eq!(after(DataType::Int8, Some(b"")), None, "no key of a number is empty");
    }
}
