//! Scans: requests, tokens, and predicates against an evaluator of single cells.

use arbitrary::{Arbitrary, Unstructured};
use engine::cfile::page_file::PageRef;
use engine::cfile::page_index::PageEntry;
use engine::cfile::zone_map::{bounds, may_match};
use engine::ids::ColumnId;
use engine::schema::aggregation::Aggregator;
use engine::schema::partition_range::PartitionRange;
use engine::schema::predicate::{Predicate, PredicateKind, compare_cells};
use engine::schema::pruning::key_bounds;
use engine::schema::row_block::{Bitmap, ColumnBlock, ProjectedColumn, RowBlock};
use engine::schema::{DataType, PhysicalType};
use node::tserver::scan_spec::{self, ParsedScan};
use nyala_client::predicate::to_pb;
use nyala_common::wire::{aggregation, predicates, schema};
use nyala_proto::kudu::client::ScanTokenPb;
use nyala_proto::kudu::tserver::NewScanRequestPb;
use nyala_proto::kudu::{ColumnPredicatePb, ColumnSchemaPb};
use prost::Message;

use super::rows::table;

/// Checks a request to scan.
pub(super) fn scan(data: &[u8]) {
    let Ok(request) = NewScanRequestPb::decode(data) else { return };
    let schema = table();
    check_predicates(&request.column_predicates);
    let Ok(parsed) = scan_spec::parse(&request, &schema) else { return };
    assert_eq!(parsed.spec.projection.len(), request.projected_columns.len());
    for bound in [&parsed.spec.lower_key, &parsed.spec.upper_key, &parsed.spec.last_key] {
        assert!(bound.as_ref().is_none_or(|key| !key.is_empty()), "an empty bound is none");
    }
    let keys = PartitionRange {
        lower: parsed.spec.lower_key.clone().unwrap_or_default(),
        upper: parsed.spec.upper_key.clone().unwrap_or_default(),
    };
    let ranges =
        engine::schema::partition::PartitionSchema::default().prune(&schema, &parsed.spec.predicates, &keys);
    assert!(ranges.len() <= 1, "one tablet has one range: {ranges:?}");
    check_aggregation(&parsed);
}

/// Checks that an aggregation that was accepted is the same when it is sent again, and that it takes rows.
fn check_aggregation(parsed: &ParsedScan) {
    let Some(found) = &parsed.aggregation else { return };
    assert_eq!(aggregation::from_pb(&aggregation::to_pb(found)).as_ref(), Ok(&**found));
    assert_eq!(parsed.projection.len(), found.group_by.len() + found.aggregates.len());
    let cell =
        |column: &ProjectedColumn| (!column.nullable).then(|| vec![0; column.ty.width().unwrap_or_default()]);
    let cells: Vec<_> = parsed.spec.projection.iter().map(cell).collect();
    let mut rows = RowBlock::new(&parsed.spec.projection);
    rows.push_row(cells.iter().map(Option::as_deref));
    let mut aggregator = Aggregator::new(found, &parsed.spec.projection);
    aggregator.add(&rows);
    aggregator.add(&rows);
    let groups = aggregator.finish();
    assert_eq!((groups.rows, groups.columns.len()), (1, parsed.projection.len()));
}

/// Checks that decoded predicates are the same when they are sent again.
fn check_predicates(pbs: &[ColumnPredicatePb]) {
    let schema = table();
    for pb in pbs {
        let Ok(predicate) = predicates::from_pb(pb, &schema) else { continue };
        let column = schema.by_id(predicate.column).expect("its column was found");
        predicate.check(column.ty).expect("values of the right width");
        let again = to_pb(&predicate, &schema).expect("it has the column");
        assert_eq!(predicates::from_pb(&again, &schema).expect("what was just written"), predicate);
    }
}

/// Checks a scan token from another client.
pub(super) fn token(data: &[u8]) {
    let Ok(token) = ScanTokenPb::decode(data) else { return };
    check_predicates(&token.column_predicates);
    let metadata = token.table_metadata.clone().unwrap_or_default();
    if let Some(known) = metadata.schema.as_ref().and_then(|schema| schema::schema_from_pb(schema).ok()) {
        let again = schema::schema_from_pb(&schema::schema_to_pb(&known)).expect("just written");
        assert_eq!(again.columns().len(), known.columns().len());
        if let Some(partition) = &metadata.partition_schema {
            let _ = schema::partition_schema_from_pb(partition, &known);
        }
    }
    let columns: &[ColumnSchemaPb] = &token.projected_columns;
    let _ = scan_spec::projection(columns, &table(), false);
    let _ = scan_spec::key_bound(token.lower_bound_primary_key.as_deref(), &table());
}

/// A column and a condition on it.
#[derive(Debug, Arbitrary)]
struct Case {
    ty: u8,
    cells: Vec<Option<u8>>,
    nullable: bool,
    kind: Kind,
    skip: Vec<u8>,
}

#[derive(Debug, Arbitrary)]
enum Kind {
    Range(Option<u8>, Option<u8>),
    Equal(u8),
    In(Vec<u8>),
    IsNull,
    IsNotNull,
}

/// Returns one of few cells of a type, so that equal ones meet; for floating-point numbers every special one.
fn cell(ty: DataType, seed: u8) -> Vec<u8> {
    let special = [0.0, -0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.5, -1.5];
    let float = special.get(usize::from(seed)).copied().unwrap_or(f64::from(seed) - 40.0);
    match ty.physical() {
        PhysicalType::Float => (float as f32).to_le_bytes().to_vec(),
        PhysicalType::Double => float.to_le_bytes().to_vec(),
        PhysicalType::Binary => vec![b'a' + seed % 3; usize::from(seed / 3) % 5],
        PhysicalType::Bool => vec![seed % 2],
        physical => {
            let wide = i128::from(seed as i8) << (if seed.is_multiple_of(5) { 24 } else { 0 });
            wide.to_le_bytes()[..physical.width().expect("numbers have one")].to_vec()
        }
    }
}

impl Kind {
    fn predicate(&self, ty: DataType) -> PredicateKind {
        let bound = |seed: &Option<u8>| seed.map(|seed| cell(ty, seed));
        match self {
            Kind::Range(lower, upper) => PredicateKind::Range { lower: bound(lower), upper: bound(upper) },
            Kind::Equal(seed) => PredicateKind::Equal(cell(ty, *seed)),
            Kind::In(seeds) => PredicateKind::in_list(ty, seeds.iter().map(|seed| cell(ty, *seed)).collect()),
            Kind::IsNull => PredicateKind::IsNull,
            Kind::IsNotNull => PredicateKind::IsNotNull,
        }
    }

    /// Returns true if the condition holds, in the simplest terms.
    fn holds(&self, ty: DataType, found: Option<&[u8]>) -> bool {
        let Some(found) = found else { return matches!(self, Kind::IsNull) };
        let order = |seed: u8| compare_cells(ty.physical(), found, &cell(ty, seed));
        match self {
            Kind::Range(lower, upper) => {
                lower.is_none_or(|lower| order(lower).is_ge())
                    && upper.is_none_or(|upper| order(upper).is_lt())
            }
            Kind::Equal(seed) => order(*seed).is_eq(),
            Kind::In(seeds) => seeds.iter().any(|seed| order(*seed).is_eq()),
            Kind::IsNull => false,
            Kind::IsNotNull => true,
        }
    }
}

/// Checks a predicate over a block, over single cells, over zone maps and over keys: all agree with its meaning.
pub(super) fn predicate(data: &[u8]) {
    let Ok(case) = Case::arbitrary(&mut Unstructured::new(data)) else { return };
    let ty = DataType::ALL[usize::from(case.ty) % DataType::ALL.len()];
    let mut block = ColumnBlock::new(ty.physical(), case.nullable);
    for seed in &case.cells {
        let seed = if case.nullable { *seed } else { Some(seed.unwrap_or(0)) };
        block.push(seed.map(|seed| cell(ty, seed)).as_deref());
    }
    let predicate = Predicate::new(ColumnId(0), case.kind.predicate(ty));
    predicate.check(ty).expect("cells of the type");
    let mut selection = Bitmap::new(block.len(), true);
    for skip in case.skip.iter().map(|skip| usize::from(*skip)).filter(|skip| *skip < block.len()) {
        selection.set(skip, false);
    }
    let before = selection.clone();
    predicate.evaluate(ty, &block, &mut selection);
    for row in 0..block.len() {
        let holds = case.kind.holds(ty, block.cell(row));
        assert_eq!(predicate.matches_cell(ty, block.cell(row)), holds, "{case:?}, row {row}");
        assert_eq!(selection.get(row), holds && before.get(row), "{case:?}, row {row}");
    }
    check_pruning(&case, ty, &block, &predicate);
}

/// Checks that pruning skips no page and no key with a row for which the condition holds.
fn check_pruning(case: &Case, ty: DataType, block: &ColumnBlock, predicate: &Predicate) {
    let any = (0..block.len()).any(|row| case.kind.holds(ty, block.cell(row)));
    let nulls = (0..block.len()).filter(|row| block.is_null(*row)).count() as u32;
    let page = PageEntry {
        at: PageRef { offset: 0, len: 0 },
        first_row: 0,
        rows: block.len() as u32,
        nulls,
        bounds: bounds(block, ty.physical(), false),
    };
    assert!(!any || may_match(predicate, ty.physical(), &page), "{case:?}: {page:?}");
    if !ty.allowed_in_key() || case.nullable {
        return;
    }
    let columns = [engine::schema::ColumnSchema::new(0, "k", ty)];
    let left = key_bounds(&columns, std::slice::from_ref(predicate));
    for row in (0..block.len()).filter(|row| case.kind.holds(ty, block.cell(*row))) {
        let mut key = Vec::new();
        engine::schema::key::encode_key(&columns, |_| block.raw(row), &mut key);
        assert!(left.as_ref().is_some_and(|keys| keys.contains(&key)), "{case:?}: {key:?} of {left:?}");
    }
}
