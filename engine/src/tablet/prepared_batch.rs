//! A client's batch, decoded once into the form in which rows are stored.
//!
//! ```text
//!   arena   │ key │ cells │ mask │ key │ change │ key │ …
//!           └── insert, upsert ──┘ └─ update ───┘ └─ delete
//! ```
//!
//! Inserts have all cells, with defaults filled in. An upsert also has a mask of the columns that the client set, one
//! bit each, because only those change if the row exists. An update has its row change. The part of an inserted row
//! that a MemRowSet stores is contiguous, so it is copied in one piece.

use std::sync::Arc;

use super::row_errors::RowErrors;
use super::superblock::TabletSchema;
use crate::config::TabletConfig;
use crate::error::{Error, Result};
use crate::schema::Schema;
use crate::schema::key::encode_key;
use crate::schema::partition::{Partition, PartitionSchema, Partitioner};
use crate::schema::row_change::RowChangeBuilder;
use crate::schema::row_ops::{
    ClientCell, ClientColumn, RowError, RowErrorCode, RowOp, RowOpKind, RowOpLimits, RowOpsReader,
};

/// One row of a batch, at offset `at` of its arena.
#[derive(Debug, Clone, Copy)]
pub struct PreparedRow {
    /// Index of the row in the request.
    pub index: u32,
    pub kind: RowOpKind,
    pub at: u32,
    pub key_len: u32,
    /// Inserts and upserts: bytes of the cells.
    pub row_len: u32,
    /// Updates: bytes of the row change; upserts: bytes of the mask.
    pub rest_len: u32,
    /// The first immutable column that the operation sets.
    pub immutable: Option<u16>,
}

/// A batch ready to be applied, under the schema it was decoded for.
#[derive(Debug)]
pub struct PreparedBatch {
    pub schema: Arc<TabletSchema>,
    pub rows: Vec<PreparedRow>,
    pub arena: Vec<u8>,
    /// Rows that fail whatever the tablet contains, ascending.
    pub errors: RowErrors,
    /// The last value given to the auto-incrementing column, if the table has one.
    pub auto_increment: i64,
}

impl PreparedBatch {
    /// Returns the bytes of memory allocated.
    pub fn byte_size(&self) -> usize {
        let rows = self.rows.capacity() * size_of::<PreparedRow>();
        self.arena.capacity() + rows + self.errors.byte_size()
    }
}

impl PreparedRow {
    pub fn key<'a>(&self, arena: &'a [u8]) -> &'a [u8] {
        &arena[self.at as usize..][..self.key_len as usize]
    }

    /// Returns the part of an inserted row that a MemRowSet stores.
    pub fn key_and_cells<'a>(&self, arena: &'a [u8]) -> &'a [u8] {
        &arena[self.at as usize..][..(self.key_len + self.row_len) as usize]
    }

    pub fn cells<'a>(&self, arena: &'a [u8]) -> &'a [u8] {
        &arena[(self.at + self.key_len) as usize..][..self.row_len as usize]
    }

    /// Returns an update's row change, or an upsert's mask.
    pub fn rest<'a>(&self, arena: &'a [u8]) -> &'a [u8] {
        &arena[(self.at + self.key_len + self.row_len) as usize..][..self.rest_len as usize]
    }
}

/// Returns true if bit `column` of an upsert's mask is set.
pub fn in_mask(mask: &[u8], column: usize) -> bool {
    mask[column / 8] >> (column % 8) & 1 == 1
}

/// Check that rows belong to the tablet's partition.
pub struct PartitionCheck<'a> {
    pub schema: &'a PartitionSchema,
    pub partition: &'a Partition,
}

/// Decision which rows fail whatever the tablet contains.
#[derive(Clone, Copy)]
pub enum RowAdmission<'a> {
    /// Rows above the server's limits fail.
    Limits(&'a TabletConfig),
    /// The rows that failed, ascending, as the log records them. The server may have had other limits then.
    Recorded(&'a [(u32, RowError)]),
}

impl RowAdmission<'_> {
    fn limits(self) -> RowOpLimits {
        match self {
            RowAdmission::Limits(config) => {
                RowOpLimits { cell_bytes_max: config.cell_bytes_max, key_bytes_max: config.key_bytes_max }
            }
            RowAdmission::Recorded(_) => RowOpLimits::UNLIMITED,
        }
    }

    /// Returns the error of a row that fails before the tablet is read, and so takes no auto-increment value. `found`
    /// is the reader's. `Corrupt` if the record does not have that.
    fn error(self, index: u32, found: Option<RowError>) -> Result<Option<RowError>> {
        let RowAdmission::Recorded(errors) = self else { return Ok(found) };
        let recorded = errors.binary_search_by_key(&index, |(at, _)| *at).ok().map(|at| &errors[at].1);
        let recorded = recorded.filter(|error| error.code == RowErrorCode::InvalidArgument);
        match (recorded, found) {
            (None, Some(RowError { message, .. })) => Err(Error::corrupt(format!(
                "row {index}: no error is recorded, but the row has one: {message}"
            ))),
            (recorded, _) => Ok(recorded.cloned()),
        }
    }
}

/// Decodes a batch.
///
/// `partition_check` is given for a write that is proposed here. Operations of the log have passed it, and the limits
/// of a write's size do not apply to them, because earlier builds had none. `auto_increment` is the last value given.
/// Undecodable bytes, columns that are not in the schema, and rows of other tablets fail the whole batch. A problem of
/// a single row becomes the row's error.
pub fn prepare(
    schema: &Arc<TabletSchema>,
    admission: RowAdmission<'_>,
    partition_check: Option<PartitionCheck<'_>>,
    columns: &[ClientColumn],
    rows: &[u8],
    indirect: &[u8],
    auto_increment: i64,
) -> Result<PreparedBatch> {
    let mut reader = RowOpsReader::new(columns, &schema.schema, rows, indirect, admission.limits())?;
    let is_proposal = partition_check.is_some();
    let partition_check = match partition_check {
        Some(partition_check) => {
            Some((Partitioner::new(partition_check.schema, &schema.schema)?, partition_check.partition))
        }
        None => None,
    };
    let (arena, bytes) =
        (Vec::with_capacity((rows.len() + indirect.len() + 64).min(FIRST_BYTES)), rows.len());
    let mut preparer = Preparer {
        schema,
        admission,
        partition_check,
        auto_column: schema.schema.auto_incrementing(),
        partition_key: Vec::new(),
        index: 0,
        auto_increment,
        rows: Vec::new(),
        arena,
        errors: RowErrors::default(),
    };
    while let Some(op) = reader.next()? {
        preparer.add(op)?;
        if is_proposal {
            check_size(preparer.index, reader.indirect_read(), indirect.len())?;
        }
        if preparer.index == 1 && reader.bytes_left() > 0 {
            preparer.reserve(bytes.div_ceil(bytes - reader.bytes_left()), bytes, indirect.len());
        }
    }
    let Preparer { rows, arena, errors, auto_increment, .. } = preparer;
    Ok(PreparedBatch { schema: schema.clone(), rows, arena, errors, auto_increment })
}

/// Most rows of a write: their outcome must fit the log, whatever it is.
pub(crate) const ROWS_MAX: usize = 1 << 24;

/// Checks the size of the first `rows` rows of a write, whose cells of any length have `read` bytes. Cells that share
/// bytes would need more memory than is reserved for the write.
fn check_size(rows: u32, read: u64, indirect: usize) -> Result<()> {
    if rows as usize > ROWS_MAX {
        return Err(Error::invalid(format!(
            "a write of more than {ROWS_MAX} rows; send fewer rows at a time"
        )));
    }
    if read > indirect as u64 {
        let row = rows - 1;
        return Err(Error::invalid(format!(
            "indirect data: the cells of the rows up to row {row} share bytes ({read} bytes of cells in {indirect} \
             bytes); send the bytes of each cell separately"
        )));
    }
    Ok(())
}

struct Preparer<'a> {
    schema: &'a Arc<TabletSchema>,
    admission: RowAdmission<'a>,
    partition_check: Option<(Partitioner, &'a Partition)>,
    auto_column: Option<usize>,
    /// Reused buffer for the partition key of a row.
    partition_key: Vec<u8>,
    index: u32,
    auto_increment: i64,
    rows: Vec<PreparedRow>,
    arena: Vec<u8>,
    errors: RowErrors,
}

/// Initial capacity of the arena at most, in bytes; many batches have only one row.
const FIRST_BYTES: usize = 4 << 10;

impl Preparer<'_> {
    /// Reserves arena space for `count` rows of the size of the first one. Many writes may be waiting to be applied, so
    /// spare capacity would be wasted many times. A constant guess or doubling would waste more.
    fn reserve(&mut self, count: usize, bytes: usize, indirect: usize) {
        let Some(first) = self.rows.first() else { return };
        let data = (first.row_len as usize).saturating_sub(self.schema.layout.fixed_len());
        let wanted = (self.arena.len() - data).saturating_mul(count).saturating_add(indirect);
        // Keys may be a little longer. The cap keeps the arena small if the other rows are shorter than the first one.
        let wanted = wanted.saturating_add(wanted / 128).min(bytes + bytes / 2 + indirect);
        self.arena.reserve_exact(wanted.saturating_sub(self.arena.len()));
    }

    fn add(&mut self, op: RowOp<'_>) -> Result<()> {
        let index = self.index;
        self.index += 1;
        if let Some(error) = self.admission.error(index, op.error)? {
            self.errors.push(index, error);
            return Ok(());
        }
        let mut number = [0; 8];
        let Some(column) = self.auto_column else {
            return self.add_row(index, op.kind, op.cells, op.insert_cells);
        };
        let (mut cells, mut insert_cells) = (op.cells.to_vec(), op.insert_cells.to_vec());
        self.assign_auto_increment(op.kind, cells[column], &mut number)?;
        cells[column] = ClientCell::Value(&number);
        if let Some(cell) = insert_cells.get_mut(column) {
            *cell = ClientCell::Value(&number);
        }
        self.add_row(index, op.kind, &cells, &insert_cells)
    }

    fn add_row(
        &mut self,
        index: u32,
        kind: RowOpKind,
        cells: &[ClientCell<'_>],
        insert_cells: &[ClientCell<'_>],
    ) -> Result<()> {
        let schema = self.schema;
        let key = |column: usize| cells[column].value().expect("the reader refuses rows without a whole key");
        if let Some((partitioner, partition)) = &mut self.partition_check {
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

    /// Writes the value of an auto-incrementing cell: the client's, or the next one.
    fn assign_auto_increment(
        &mut self,
        kind: RowOpKind,
        cell: ClientCell<'_>,
        number: &mut [u8; 8],
    ) -> Result<()> {
        match cell {
            ClientCell::Value(given) => {
                number.copy_from_slice(given);
                if kind.base() == RowOpKind::Upsert {
                    self.auto_increment = self.auto_increment.max(i64::from_le_bytes(*number));
                }
            }
            _ => {
                let next = self.auto_increment.checked_add(1);
                let exhausted = || Error::invalid("the auto-incrementing column has no values left");
                self.auto_increment = next.ok_or_else(exhausted)?;
                *number = self.auto_increment.to_le_bytes();
            }
        }
        Ok(())
    }
}

/// Appends the mask of the columns that are set. Returns the first immutable one.
fn push_mask(schema: &Schema, cells: &[ClientCell<'_>], out: &mut Vec<u8>) -> Option<u16> {
    let start = out.len();
    out.resize(start + cells.len().div_ceil(8), 0);
    let mut immutable = None;
    for (i, _) in cells.iter().enumerate().filter(|(_, cell)| cell.is_set()) {
        out[start + i / 8] |= 1 << (i % 8);
        // Key columns identify the row and do not change it.
        if schema.columns()[i].immutable && i >= schema.num_key_columns() {
            immutable = immutable.or(Some(i as u16));
        }
    }
    immutable
}

/// Appends the row change of an update, without immutable columns. Returns the first of those. Appends nothing if
/// no other column is set.
fn push_update(schema: &Schema, cells: &[ClientCell<'_>], out: &mut Vec<u8>) -> Option<u16> {
    let start = out.len();
    let keys = schema.num_key_columns();
    let mut immutable = None;
    let mut change = RowChangeBuilder::update(out);
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::ids::ColumnId;
    use crate::schema::{ColumnSchema, DataType};

    #[test]
    fn cells_of_the_log_may_share_bytes_and_cells_of_a_proposal_may_not() {
        let schema = Schema::new(vec![ColumnSchema::new(0, "k", DataType::String)], 1).expect("a schema");
        let schema = Arc::new(TabletSchema::new(schema, 0, "t".to_string(), BTreeMap::new()));
        let columns = [ClientColumn { id: ColumnId(0), ty: DataType::String, nullable: false }];
        let config = TabletConfig::default();
        let (how, partition) = (PartitionSchema::default(), Partition::default());
        let rows_of = |cells: [(u64, u64); 2], is_proposal: bool| {
            let insert =
                |(at, len): (u64, u64)| [&[1u8, 1][..], &at.to_le_bytes(), &len.to_le_bytes()].concat();
            let rows = cells.map(insert).concat();
            let home = is_proposal.then_some(PartitionCheck { schema: &how, partition: &partition });
            let admission = RowAdmission::Limits(&config);
            let batch = prepare(&schema, admission, home, &columns, &rows, b"abcdef", 0);
            batch.map(|batch| batch.rows.len()).map_err(|error| error.message)
        };
        let (apart, shared) = ([(3, 3), (0, 3)], [(0, 4), (2, 4)]);
        assert_eq!(
            [rows_of(apart, true), rows_of(apart, false), rows_of(shared, false)],
            [Ok(2), Ok(2), Ok(2)]
        );
        let error = rows_of(shared, true).expect_err("both rows have two of the bytes");
        assert!(error.contains("up to row 1 share bytes (8 bytes of cells in 6 bytes)"), "{error}");
    }
}
