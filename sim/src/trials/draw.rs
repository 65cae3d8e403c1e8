//! Draws of a trial: its table and limits, rows and alterations.

use engine::config::{ColumnFileConfig, TabletConfig};
use sim_plan::RandomStream;
use sim_plan::client_ops::{TableStep, WriteKind};
use sim_plan::tables::{ModelTable, Value, draw};

use super::rows::TrialRows;
use crate::model::alter_draws;
use crate::model::draws;
use crate::model::{RowCells, RowWrite};

/// Percentage of rows whose key had a row before.
const KNOWN_KEY_PERCENT: u64 = 45;
/// Percentage of inserts of numbered rows that name a number.
const NAMED_PERCENT: u64 = 10;

pub(super) fn table(random: &mut RandomStream) -> ModelTable {
    draw::table(random, 0)
}

/// Draws limits so low that a few rows fill pages, blocks and segments.
pub(super) fn config(random: &mut RandomStream) -> TabletConfig {
    let tiny = TabletConfig::tiny();
    let scan_block_rows: usize = random.pick(&[1, 2, 4, 7]);
    TabletConfig {
        scan_block_rows,
        // Runs that are parts of blocks are long ones, too.
        scan_long_run_rows: scan_block_rows.div_ceil(2).max(2),
        job_step_rows: random.pick(&[1, 3, 10]),
        rowset_roll_bytes: random.pick(&[1 << 9, 1 << 10, 1 << 13]),
        wal_segment_bytes_max: random.pick(&[1 << 9, 1 << 10, 8 << 10, 64 << 10]),
        wal_compress: random.percent(50),
        columns: ColumnFileConfig {
            page_bytes: random.pick(&[32, 64, 512]),
            key_page_bytes: random.pick(&[24, 48, 512]),
            delta_page_bytes: random.pick(&[24, 64, 256]),
            ..tiny.columns
        },
        ..tiny
    }
}

/// Draws rows; many of them have keys that had rows before.
pub(super) fn rows(
    random: &mut RandomStream,
    table: &ModelTable,
    rows: &TrialRows,
    count: u64,
) -> Vec<RowWrite> {
    use WriteKind::*;
    let kinds = [
        (Insert, 4),
        (InsertIgnore, 1),
        (Upsert, 4),
        (UpsertIgnore, 1),
        (Update, 5),
        (UpdateIgnore, 1),
        (Delete, 3),
        (DeleteIgnore, 1),
    ];
    let one = |random: &mut RandomStream| {
        let kind = random.weighted(&kinds);
        if table.auto_increment().is_some() {
            return numbered_row(random, table, kind, rows.key_cells());
        }
        let mut row = draws::row(random, table, kind);
        let known = rows.key_cells();
        if !known.is_empty() && random.percent(KNOWN_KEY_PERCENT) {
            row.cells.extend(known[random.below(known.len() as u64) as usize].clone());
        }
        row
    };
    (0..count).map(|_| one(random)).collect()
}

/// Draws a row of a table whose rows are numbered: changes are of `known` rows. Some inserts name a number, which they
/// may not.
fn numbered_row(
    random: &mut RandomStream,
    table: &ModelTable,
    kind: WriteKind,
    known: &[RowCells],
) -> RowWrite {
    let mut row = draws::row_among(random, table, kind, known);
    let inserts = matches!(row.kind, WriteKind::Insert | WriteKind::InsertIgnore);
    let auto = table.auto_increment().filter(|_| inserts && random.percent(NAMED_PERCENT));
    row.cells.extend(auto.map(|auto| (auto, Value::Int(random.between(1, 9).into()))));
    row
}

/// Returns true if a write can change a row, and inserts none.
pub(super) fn is_change(row: &RowWrite) -> bool {
    use WriteKind::{Delete, DeleteIgnore, Update, UpdateIgnore};
    matches!(row.kind, Update | UpdateIgnore | Delete | DeleteIgnore)
}

/// Draws an alteration of columns; returns the table after it. `next`: the first unused number of a column,
/// before and after it.
pub(super) fn alteration(random: &mut RandomStream, table: &ModelTable, next: &mut u8) -> Option<ModelTable> {
    use TableStep::*;
    let step = random.pick(&[AddColumn, Several, DropColumn, RenameColumn, ChangeDefault, ChangeLayout]);
    let altered = alter_draws::alteration(random, step, ("trial", table), *next, &[])?.table;
    let newest = altered.columns.iter().map(|column| column.number + 1).max();
    *next = newest.unwrap_or_default().max(*next);
    Some(altered)
}
