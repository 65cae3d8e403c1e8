//! A client's batch, decoded once into the form in which rows are kept.
//!
//! ```text
//!   arena   │ key │ cells │ mask │ key │ change │ key │ …
//!           └── insert, upsert ──┘ └─ update ───┘ └─ delete
//! ```
//!
//! Inserts keep all cells, defaults filled in. An upsert also keeps which columns the client set, one bit each,
//! because only those change if the row is there. An update keeps its change. What a MemRowSet keeps of an inserted
//! row lies together, to be copied as it is.

use std::sync::Arc;

use super::meta::TabletSchema;
use crate::config::TabletConfig;
use crate::error::{Error, Result};
use crate::schema::Schema;
use crate::schema::change::ChangeBuilder;
use crate::schema::key::encode_key;
use crate::schema::ops::{Cell, OpLimits, RowError, RowOp, RowOpKind, RowOpsReader, WireColumn};
use crate::schema::partition::{Partition, PartitionSchema, Partitioner};

/// One row of a batch, at `at` of its arena.
#[derive(Debug, Clone, Copy)]
pub struct PreparedRow {
    /// Its position in the request.
    pub index: u32,
    pub kind: RowOpKind,
    pub at: u32,
    pub key_len: u32,
    /// Inserts and upserts: cells.
    pub row_len: u32,
    /// Updates: the change; upserts: the mask.
    pub rest_len: u32,
    /// The first column it sets that may only be set by the insert.
    pub immutable: Option<u16>,
}

/// A batch ready to be applied under the schema it was decoded for.
#[derive(Debug)]
pub struct Prepared {
    pub schema: Arc<TabletSchema>,
    pub rows: Vec<PreparedRow>,
    pub arena: Vec<u8>,
    /// Rows that cannot be applied whatever the tablet holds, ascending.
    pub errors: Vec<(u32, RowError)>,
    /// The last number given to the auto-incrementing column, if the table has one.
    pub auto_increment: i64,
}

impl Prepared {
    /// Bytes of memory taken.
    pub fn byte_size(&self) -> usize {
        self.arena.capacity() + self.rows.capacity() * size_of::<PreparedRow>()
    }
}

impl PreparedRow {
    pub fn key<'a>(&self, arena: &'a [u8]) -> &'a [u8] {
        &arena[self.at as usize..][..self.key_len as usize]
    }

    /// What a MemRowSet keeps of an inserted row.
    pub fn key_and_cells<'a>(&self, arena: &'a [u8]) -> &'a [u8] {
        &arena[self.at as usize..][..(self.key_len + self.row_len) as usize]
    }

    pub fn cells<'a>(&self, arena: &'a [u8]) -> &'a [u8] {
        &arena[(self.at + self.key_len) as usize..][..self.row_len as usize]
    }

    /// An update's change, or an upsert's mask.
    pub fn rest<'a>(&self, arena: &'a [u8]) -> &'a [u8] {
        &arena[(self.at + self.key_len + self.row_len) as usize..][..self.rest_len as usize]
    }
}

/// Bit `column` of an upsert's mask.
pub fn in_mask(mask: &[u8], column: usize) -> bool {
    mask[column / 8] >> (column % 8) & 1 == 1
}

/// Which rows belong to the tablet.
pub struct Home<'a> {
    pub schema: &'a PartitionSchema,
    pub partition: &'a Partition,
}

/// Decodes a batch.
///
/// `home` is `None` when the rows are known to belong here, on replay. `auto_increment` is the last number
/// given. Bytes that make no sense, columns that the schema does not have and rows of other tablets fail the
/// batch as a whole; problems of a single row become its error.
pub fn prepare(
    schema: &Arc<TabletSchema>,
    config: &TabletConfig,
    home: Option<Home<'_>>,
    columns: &[WireColumn],
    rows: &[u8],
    indirect: &[u8],
    auto_increment: i64,
) -> Result<Prepared> {
    let limits = OpLimits { cell_bytes_max: config.cell_bytes_max, key_bytes_max: config.key_bytes_max };
    let mut reader = RowOpsReader::new(columns, &schema.schema, rows, indirect, limits)?;
    let home = match home {
        Some(home) => Some((Partitioner::new(home.schema, &schema.schema)?, home.partition)),
        None => None,
    };
    let (arena, bytes) =
        (Vec::with_capacity((rows.len() + indirect.len() + 64).min(FIRST_BYTES)), rows.len());
    let mut preparer = Preparer {
        schema,
        home,
        auto_column: schema.schema.auto_incrementing(),
        partition_key: Vec::new(),
        index: 0,
        auto_increment,
        rows: Vec::new(),
        arena,
        errors: Vec::new(),
    };
    while let Some(op) = reader.next()? {
        preparer.add(op)?;
        if preparer.index == 1 && reader.bytes_left() > 0 {
            preparer.reserve(bytes.div_ceil(bytes - reader.bytes_left()), bytes, indirect.len());
        }
    }
    let Preparer { rows, arena, errors, auto_increment, .. } = preparer;
    Ok(Prepared { schema: schema.clone(), rows, arena, errors, auto_increment })
}

struct Preparer<'a> {
    schema: &'a Arc<TabletSchema>,
    home: Option<(Partitioner, &'a Partition)>,
    auto_column: Option<usize>,
    /// Reused: the partition key of the row.
    partition_key: Vec<u8>,
    index: u32,
    auto_increment: i64,
    rows: Vec<PreparedRow>,
    arena: Vec<u8>,
    errors: Vec<(u32, RowError)>,
}

/// What the arena begins with at most: many batches have only one row.
const FIRST_BYTES: usize = 4 << 10;

impl Preparer<'_> {
    /// Makes room for as many rows like the first one: many writes wait to be applied, so that room that is not filled
    /// would be lost many times. Neither a guess for all tables nor doubling would do.
    fn reserve(&mut self, count: usize, bytes: usize, indirect: usize) {
        let Some(first) = self.rows.first() else { return };
        let data = (first.row_len as usize).saturating_sub(self.schema.layout.fixed_len());
        let wanted = (self.arena.len() - data).saturating_mul(count).saturating_add(indirect);
        // Keys may be a little longer. Rows unlike the first one must not make it large.
        let wanted = wanted.saturating_add(wanted / 128).min(bytes + bytes / 2 + indirect);
        self.arena.reserve_exact(wanted.saturating_sub(self.arena.len()));
    }

    fn add(&mut self, op: RowOp<'_>) -> Result<()> {
        let index = self.index;
        self.index += 1;
        if let Some(error) = op.error {
            self.errors.push((index, error));
            return Ok(());
        }
        let mut number = [0; 8];
        let Some(column) = self.auto_column else {
            return self.add_row(index, op.kind, op.cells, op.insert_cells);
        };
        let (mut cells, mut insert_cells) = (op.cells.to_vec(), op.insert_cells.to_vec());
        self.number(op.kind, cells[column], &mut number)?;
        cells[column] = Cell::Value(&number);
        if let Some(cell) = insert_cells.get_mut(column) {
            *cell = Cell::Value(&number);
        }
        self.add_row(index, op.kind, &cells, &insert_cells)
    }

    fn add_row(
        &mut self,
        index: u32,
        kind: RowOpKind,
        cells: &[Cell<'_>],
        insert_cells: &[Cell<'_>],
    ) -> Result<()> {
        let schema = self.schema;
        let key = |column: usize| cells[column].value().expect("the reader refuses rows without a whole key");
        if let Some((partitioner, partition)) = &mut self.home {
            self.partition_key.clear();
            partitioner.partition_key(key, &mut self.partition_key);
            if !partition.contains(&self.partition_key) {
                return Err(Error::not_found(format!(
                    "Row not in tablet partition: row {index} of the write"
                )));
            }
        }
        let at = self.arena.len();
        encode_key(schema.schema.key_columns(), key, &mut self.arena);
        let cells_at = self.arena.len();
        if !insert_cells.is_empty() {
            schema.layout.encode(insert_cells, &mut self.arena);
        }
        let rest_at = self.arena.len();
        let immutable = match kind.base() {
            RowOpKind::Upsert => push_mask(&schema.schema, cells, &mut self.arena),
            RowOpKind::Update => push_update(&schema.schema, cells, &mut self.arena),
            _ => None,
        };
        let end = self.arena.len();
        if end > u32::MAX as usize {
            return Err(Error::invalid("a write of more than 4 GiB; send fewer rows at a time"));
        }
        self.rows.push(PreparedRow {
            index,
            kind,
            at: at as u32,
            key_len: (cells_at - at) as u32,
            row_len: (rest_at - cells_at) as u32,
            rest_len: (end - rest_at) as u32,
            immutable,
        });
        Ok(())
    }

    /// The number in an auto-incrementing cell: the client's, or the next one.
    fn number(&mut self, kind: RowOpKind, cell: Cell<'_>, number: &mut [u8; 8]) -> Result<()> {
        match cell {
            Cell::Value(given) => {
                number.copy_from_slice(given);
                if kind.base() == RowOpKind::Upsert {
                    self.auto_increment = self.auto_increment.max(i64::from_le_bytes(*number));
                }
            }
            _ => {
                let next = self.auto_increment.checked_add(1);
                let used_up = || Error::invalid("the numbers of the auto-incrementing column are used up");
                self.auto_increment = next.ok_or_else(used_up)?;
                *number = self.auto_increment.to_le_bytes();
            }
        }
        Ok(())
    }
}

/// Appends which columns are set; the first of those that only the insert may set.
fn push_mask(schema: &Schema, cells: &[Cell<'_>], out: &mut Vec<u8>) -> Option<u16> {
    let start = out.len();
    out.resize(start + cells.len().div_ceil(8), 0);
    let mut immutable = None;
    for (i, _) in cells.iter().enumerate().filter(|(_, cell)| cell.is_set()) {
        out[start + i / 8] |= 1 << (i % 8);
        // What names the row does not change it.
        if schema.columns()[i].immutable && i >= schema.num_key_columns() {
            immutable = immutable.or(Some(i as u16));
        }
    }
    immutable
}

/// Appends the change an update makes, without immutable columns; the first of those. Nothing is appended if
/// nothing is left to change.
fn push_update(schema: &Schema, cells: &[Cell<'_>], out: &mut Vec<u8>) -> Option<u16> {
    let start = out.len();
    let keys = schema.num_key_columns();
    let mut immutable = None;
    let mut change = ChangeBuilder::update(out);
    for (i, (column, cell)) in schema.columns().iter().zip(cells).enumerate().skip(keys) {
        if column.immutable && cell.is_set() {
            immutable = immutable.or(Some(i as u16));
        } else if cell.is_set() {
            change.set(column.id, cell.value());
        }
    }
    if change.is_empty() {
        out.truncate(start);
    }
    immutable
}
