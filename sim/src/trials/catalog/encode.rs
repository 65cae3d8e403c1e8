//! Requests of the trial as commands of the catalog.

use engine::catalog::{
    AlterStep, AlterTable, CatalogCommand, ColumnChange, ColumnRef, CreateTable, RangeOps, RequestedColumn,
    RequestedHash, RequestedPartitioning, RequestedRange, ServerStateChange, TableRef,
};
use engine::schema::{ColumnSchema, DataType};

use super::ddl::{Alteration, Ddl, NewColumn, NewTable, Part, cell};
use super::model::{KeyRange, Level, Named};

/// The range column.
pub(super) const RANGE_COLUMN: &str = "k";
/// The second key column.
pub(super) const OTHER_KEY: &str = "h";

pub(super) fn table_ref(named: &Named) -> TableRef {
    TableRef { id: named.id, name: named.name.clone() }
}

pub(super) fn command(ddl: &Ddl) -> CatalogCommand {
    match ddl {
        Ddl::Create(new) => CatalogCommand::Create(Box::new(create(new))),
        Ddl::Alter(alteration) => CatalogCommand::Alter(Box::new(alter(alteration))),
        Ddl::Delete { table, reserve_seconds } => {
            CatalogCommand::Delete { table: table_ref(table), reserve_seconds: *reserve_seconds }
        }
        Ddl::Recall { table, new_name } => {
            CatalogCommand::Recall { table: table_ref(table), new_name: new_name.clone() }
        }
        Ddl::Replace(tablet) => CatalogCommand::ReplaceTablet(*tablet),
        Ddl::Maintenance { server, enter, allow_missing } => CatalogCommand::ChangeServerState {
            server: *server,
            change: if *enter {
                ServerStateChange::EnterMaintenance
            } else {
                ServerStateChange::ExitMaintenance
            },
            allow_missing: *allow_missing,
        },
        Ddl::Unregister { server, force } => {
            CatalogCommand::UnregisterServer { server: *server, force: *force }
        }
    }
}

fn create(new: &NewTable) -> CreateTable {
    let columns: Vec<RequestedColumn> = new.columns.iter().map(column).collect();
    let custom = new.ranges.iter().any(|range| range.own.is_some());
    let own = |range: &KeyRange| RequestedRange {
        bounds: bounds(&new.columns, &[range]),
        hash: hashes(range.own.as_ref().unwrap_or(&new.levels)),
    };
    let ranges: Vec<&KeyRange> = new.ranges.iter().collect();
    let plain = if new.ranged && !custom { bounds(&new.columns, &ranges) } else { RangeOps::default() };
    let range = if new.ranged { vec![ColumnRef::Name(RANGE_COLUMN.to_string())] } else { Vec::new() };
    CreateTable {
        name: new.name.clone(),
        columns,
        partitioning: RequestedPartitioning {
            hash: hashes(&new.levels),
            range: Some(range),
            custom: if custom { new.ranges.iter().map(own).collect() } else { Vec::new() },
            splits_and_bounds: plain,
            allow_empty: new.ranges.is_empty(),
        },
        replicas: Some(new.replicas),
        owner: new.owner.clone(),
        comment: new.comment.clone(),
        extra_configs: new.extra.clone(),
        ..CreateTable::default()
    }
}

fn alter(alteration: &Alteration) -> AlterTable {
    let client = [RANGE_COLUMN, OTHER_KEY].map(key);
    AlterTable {
        table: table_ref(&alteration.table),
        steps: alteration.parts.iter().map(|part| step(part, &client)).collect(),
        client_columns: client.iter().map(column).collect(),
        new_name: alteration.new_name.clone(),
        new_owner: alteration.owner.clone(),
        new_comment: alteration.comment.clone(),
        new_extra_configs: alteration.extra.clone(),
        replicas: alteration.replicas,
        ..AlterTable::default()
    }
}

/// Returns a key column.
pub(super) fn key(name: &str) -> NewColumn {
    NewColumn { name: name.to_string(), key: true, nullable: false, default: None }
}

fn step(part: &Part, client: &[NewColumn]) -> AlterStep {
    match part {
        Part::AddColumn(new) => AlterStep::AddColumn(column(new)),
        Part::DropColumn(name) => AlterStep::DropColumn(name.clone()),
        Part::RenameColumn(from, to) => AlterStep::RenameColumn { from: from.clone(), to: to.clone() },
        Part::ChangeDefault(name, value) => AlterStep::ChangeColumn(ColumnChange {
            name: name.clone(),
            default: Some(cell(*value)),
            ..ColumnChange::default()
        }),
        Part::AddRange(range) => AlterStep::AddRange {
            bounds: bounds(client, &[range]),
            hash: range.own.as_ref().map(|own| hashes(own)),
            dimension_label: None,
        },
        Part::DropRange(range) => AlterStep::DropRange { bounds: bounds(client, &[range]) },
    }
}

fn column(new: &NewColumn) -> RequestedColumn {
    let column = ColumnSchema::new(0, &new.name, DataType::Int32);
    let column = ColumnSchema { nullable: new.nullable, read_default: new.default.map(cell), ..column };
    RequestedColumn { column, is_key: new.key, has_id: false }
}

fn hashes(levels: &[Level]) -> Vec<RequestedHash> {
    let hash = |level: &Level| RequestedHash {
        columns: vec![ColumnRef::Name(level.column.clone())],
        buckets: level.buckets,
        seed: 0,
    };
    levels.iter().map(hash).collect()
}

/// Returns ranges as pairs of rows of these columns: a number for the kind, which columns are set, which are NULL, and
/// the cell of the range column.
fn bounds(columns: &[NewColumn], ranges: &[&KeyRange]) -> RangeOps {
    let width = columns.len().div_ceil(8);
    let nulls = if columns.iter().any(|column| column.nullable) { width } else { 0 };
    let at = columns.iter().position(|column| column.name == RANGE_COLUMN).unwrap_or_default();
    let mut rows = Vec::new();
    for range in ranges {
        for (kind, bound) in [(6, range.low), (7, range.high)] {
            let mut is_set = vec![0u8; width];
            is_set[at / 8] |= u8::from(bound.is_some()) << (at % 8);
            rows.push(kind);
            rows.extend(is_set);
            rows.extend(vec![0; nulls]);
            rows.extend(bound.into_iter().flat_map(i32::to_le_bytes));
        }
    }
    RangeOps { rows, indirect: Vec::new() }
}
