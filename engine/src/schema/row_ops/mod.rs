//! Row operations as clients send them: decoding without copying, and encoding for our own client.
//!
//! ```text
//! u8    kind
//! bytes isset bitmap       1 bit per column of the client's schema, least significant first
//! bytes null bitmap        same size, only if the client's schema has a nullable column; 1 = NULL
//! cells                    of the columns set and not NULL, in the client's order:
//!                          fixed width: the bytes; any length: u64 offset, u64 length into the indirect data
//! ```
//!
//! Columns are the client's; [`bind_columns`] maps them to the tablet's. Bytes that can't be decoded fail the
//! whole request. An error of one row is that row's [`RowError`], and the rows after it are decoded.

use serde::{Deserialize, Serialize};

use super::{ColumnSchema, DataType, Schema};
use crate::error::{Error, Result};
use crate::ids::ColumnId;

mod row_error;

pub use row_error::{RowError, RowErrorCode};

/// One column of the client's schema, bound to the tablet's column of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientColumn {
    pub id: ColumnId,
    pub ty: DataType,
    pub nullable: bool,
}

/// Kind of a row operation; the numbers are Kudu's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum RowOpKind {
    Insert = 1,
    Update = 2,
    Delete = 3,
    Upsert = 5,
    InsertIgnore = 10,
    UpdateIgnore = 11,
    DeleteIgnore = 12,
    UpsertIgnore = 13,
}

impl RowOpKind {
    pub fn from_number(number: u8) -> Option<RowOpKind> {
        Some(match number {
            1 => RowOpKind::Insert,
            2 => RowOpKind::Update,
            3 => RowOpKind::Delete,
            5 => RowOpKind::Upsert,
            10 => RowOpKind::InsertIgnore,
            11 => RowOpKind::UpdateIgnore,
            12 => RowOpKind::DeleteIgnore,
            13 => RowOpKind::UpsertIgnore,
            _ => return None,
        })
    }

    /// Returns the kind without its IGNORE.
    pub fn base(self) -> RowOpKind {
        match self {
            RowOpKind::InsertIgnore => RowOpKind::Insert,
            RowOpKind::UpdateIgnore => RowOpKind::Update,
            RowOpKind::DeleteIgnore => RowOpKind::Delete,
            RowOpKind::UpsertIgnore => RowOpKind::Upsert,
            base => base,
        }
    }

    /// Returns true if duplicate, missing and immutable-column errors are counted instead of reported.
    pub fn ignores_errors(self) -> bool {
        self != self.base()
    }

    pub fn name(self) -> &'static str {
        match self {
            RowOpKind::Insert => "INSERT",
            RowOpKind::Update => "UPDATE",
            RowOpKind::Delete => "DELETE",
            RowOpKind::Upsert => "UPSERT",
            RowOpKind::InsertIgnore => "INSERT_IGNORE",
            RowOpKind::UpdateIgnore => "UPDATE_IGNORE",
            RowOpKind::DeleteIgnore => "DELETE_IGNORE",
            RowOpKind::UpsertIgnore => "UPSERT_IGNORE",
        }
    }
}

/// One column of a row operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCell<'a> {
    /// The client did not set the column.
    #[default]
    Unset,
    Null,
    Value(&'a [u8]),
}

impl<'a> ClientCell<'a> {
    /// Returns the cell's bytes; `None` if NULL or not set.
    pub fn value(self) -> Option<&'a [u8]> {
        match self {
            ClientCell::Value(value) => Some(value),
            ClientCell::Unset | ClientCell::Null => None,
        }
    }

    pub fn is_set(self) -> bool {
        self != ClientCell::Unset
    }
}

impl<'a> From<Option<&'a [u8]>> for ClientCell<'a> {
    fn from(cell: Option<&'a [u8]>) -> ClientCell<'a> {
        cell.map_or(ClientCell::Null, ClientCell::Value)
    }
}

/// Limits on the sizes of a row, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowOpLimits {
    /// Most bytes of one cell of any length.
    pub cell_bytes_max: usize,
    /// Most bytes of an encoded primary key; checked for inserts.
    pub key_bytes_max: usize,
}

impl RowOpLimits {
    /// Limits that every row is within.
    pub const UNLIMITED: RowOpLimits = RowOpLimits { cell_bytes_max: usize::MAX, key_bytes_max: usize::MAX };
}

impl Default for RowOpLimits {
    fn default() -> RowOpLimits {
        RowOpLimits { cell_bytes_max: 64 << 10, key_bytes_max: 16 << 10 }
    }
}

/// One decoded operation.
#[derive(Debug)]
pub struct RowOp<'r> {
    pub kind: RowOpKind,
    /// Cells by the tablet's column index, as the client sent them. In an INSERT, columns that the client left out have
    /// their write default or NULL; only the auto-incrementing column remains unset.
    pub cells: &'r [ClientCell<'r>],
    /// For INSERT and UPSERT: the row to insert if the key is new. Empty for the other kinds.
    pub insert_cells: &'r [ClientCell<'r>],
    /// Set if the row must be rejected; its cells must then not be used.
    pub error: Option<RowError>,
}

struct Slot {
    /// Index of the tablet's column.
    index: usize,
    /// Bytes of a fixed-width cell, 0 for any length.
    width: usize,
    is_bool: bool,
    nullable: bool,
}

/// Decodes a batch row by row without allocating per row.
pub struct RowOpsReader<'a> {
    tablet: &'a Schema,
    slots: Vec<Slot>,
    rows: &'a [u8],
    indirect: &'a [u8],
    /// Bytes of the cells of any length so far.
    indirect_read: u64,
    bitmap: usize,
    null_bitmap: usize,
    /// The row before the client sets anything: write default, NULL, or unset if neither is allowed.
    defaults: Vec<ClientCell<'a>>,
    auto_incrementing: Option<usize>,
    cells: Vec<ClientCell<'a>>,
    insert_cells: Vec<ClientCell<'a>>,
    limits: RowOpLimits,
}

impl Slot {
    /// Returns the slot of a client's column; `Invalid` if the tablet has dropped it.
    fn of(column: &ClientColumn, tablet: &Schema) -> Result<Slot> {
        let index = tablet.index_of_id(column.id).ok_or_else(|| {
            Error::invalid(format!("the table has no column with id {} any more", column.id.0))
        })?;
        let (width, is_bool) = (column.ty.width().unwrap_or(0), column.ty == DataType::Bool);
        Ok(Slot { index, width, is_bool, nullable: tablet.columns()[index].nullable })
    }
}

/// Returns the bytes of the bitmap of set columns, and of that of NULLs.
fn bitmap_bytes(client: &[ClientColumn]) -> (usize, usize) {
    let bytes = client.len().div_ceil(8);
    let has_nulls = client.iter().any(|column| column.nullable);
    (bytes, if has_nulls { bytes } else { 0 })
}

/// Returns the least bytes of an operation, which may have no key and fail.
pub fn op_bytes_min(client: &[ClientColumn]) -> usize {
    let (set, nulls) = bitmap_bytes(client);
    1 + set + nulls
}

/// Returns the least bytes of an operation with a key, without indirect data. Fails as [`RowOpsReader::new`].
pub fn row_bytes_min(client: &[ClientColumn], tablet: &Schema) -> Result<usize> {
    let mut bytes = op_bytes_min(client);
    for column in client {
        let slot = Slot::of(column, tablet)?;
        if slot.index < tablet.num_key_columns() {
            bytes += if slot.width == 0 { 16 } else { slot.width };
        }
    }
    Ok(bytes)
}

impl<'a> RowOpsReader<'a> {
    /// Creates a reader. `client` are the columns of the rows, as [`bind_columns`] bound them. Returns `Invalid`, as
    /// there, if the tablet has dropped one of them since.
    pub fn new(
        client: &[ClientColumn],
        tablet: &'a Schema,
        rows: &'a [u8],
        indirect: &'a [u8],
        limits: RowOpLimits,
    ) -> Result<RowOpsReader<'a>> {
        let mut slots = Vec::with_capacity(client.len());
        for column in client {
            slots.push(Slot::of(column, tablet)?);
        }
        let (bitmap, null_bitmap) = bitmap_bytes(client);
        let default = |column: &'a ColumnSchema| match &column.write_default {
            Some(value) => ClientCell::Value(value),
            None if column.nullable => ClientCell::Null,
            None => ClientCell::Unset,
        };
        Ok(RowOpsReader {
            tablet,
            slots,
            rows,
            indirect,
            indirect_read: 0,
            bitmap,
            null_bitmap,
            defaults: tablet.columns().iter().map(default).collect(),
            auto_incrementing: tablet.auto_incrementing(),
            cells: vec![ClientCell::Unset; tablet.columns().len()],
            insert_cells: Vec::new(),
            limits,
        })
    }

    /// Returns the number of remaining operations. Usually all set the same columns, and then are as long as the first.
    pub fn count_rows(mut self) -> Result<usize> {
        let (mut count, mut len) = (0, usize::MAX);
        let mut set: Option<&[u8]> = None;
        while let Some((_, rest)) = self.rows.split_first() {
            let here = rest.get(..self.bitmap + self.null_bitmap);
            if here == set && len <= rest.len() {
                self.rows = &rest[len..];
            } else {
                self.next()?;
                (set, len) = (here, rest.len() - self.rows.len());
            }
            count += 1;
        }
        Ok(count)
    }

    /// Returns the next operation, `None` at the end. An error is about the request as a whole, never about stored
    /// bytes: `Corrupt` for bytes that don't decode, `Unsupported` for an operation that is not a write.
    #[allow(clippy::should_implement_trait)] // lends from self
    pub fn next(&mut self) -> Result<Option<RowOp<'_>>> {
        let Some((number, rest)) = self.rows.split_first() else { return Ok(None) };
        let kind = RowOpKind::from_number(*number)
            .ok_or_else(|| Error::unsupported(format!("row operation type {number} is not a write")))?;
        self.rows = rest;
        let inserts = matches!(kind.base(), RowOpKind::Insert | RowOpKind::Upsert);
        if kind.base() == RowOpKind::Insert {
            self.cells.copy_from_slice(&self.defaults);
        } else {
            self.cells.fill(ClientCell::Unset);
        }
        if kind.base() == RowOpKind::Upsert {
            // Order: the key is checked before the other columns, because its error takes precedence.
            let keys = ..self.tablet.num_key_columns();
            self.cells[keys].copy_from_slice(&self.defaults[keys]);
        }
        let mut error = self.decode_cells(kind.base() == RowOpKind::Delete)?;
        if error.is_none() {
            error = self.check(kind).err();
        }
        if kind.base() == RowOpKind::Upsert {
            self.insert_cells.clear();
            let filled = |(cell, default): (&ClientCell<'a>, &ClientCell<'a>)| {
                if cell.is_set() { *cell } else { *default }
            };
            self.insert_cells.extend(self.cells.iter().zip(&self.defaults).map(filled));
        }
        let insert_cells = match kind.base() {
            RowOpKind::Insert => &self.cells,
            _ if inserts => &self.insert_cells,
            _ => &[][..],
        };
        Ok(Some(RowOp { kind, cells: &self.cells, insert_cells, error }))
    }

    /// Returns the bytes of the remaining rows.
    pub fn bytes_left(&self) -> usize {
        self.rows.len()
    }

    /// Returns the bytes of the cells of any length that were read. More than there are of indirect data means that
    /// cells share bytes.
    pub fn indirect_read(&self) -> u64 {
        self.indirect_read
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.rows.split_at_checked(len) else {
            let left = self.rows.len();
            return Err(Error::corrupt(format!("row operations end {} bytes too early", len - left)));
        };
        self.rows = rest;
        Ok(taken)
    }

    /// Reads bitmaps and cells into `self.cells`. Returns the first error of the row.
    fn decode_cells(&mut self, key_only: bool) -> Result<Option<RowError>> {
        let is_set = self.take(self.bitmap)?;
        let nulls = self.take(self.null_bitmap)?;
        let mut error = None;
        for i in 0..self.slots.len() {
            let bit = 1 << (i % 8);
            if is_set[i / 8] & bit == 0 {
                continue;
            }
            let Slot { index, width, is_bool, nullable } = self.slots[i];
            let cell = if !nulls.is_empty() && nulls[i / 8] & bit != 0 {
                if !nullable {
                    error.get_or_insert_with(|| self.null_error(index));
                }
                ClientCell::Null
            } else if width == 0 {
                ClientCell::Value(self.take_indirect(index, &mut error)?)
            } else {
                ClientCell::Value(normal(self.take(width)?, is_bool))
            };
            if key_only && index >= self.tablet.num_key_columns() {
                error.get_or_insert_with(|| {
                    let column = &self.tablet.columns()[index];
                    RowError::invalid(format!("DELETE should not have a value for column: {column}"))
                });
            }
            self.cells[index] = cell;
        }
        Ok(error)
    }

    fn take_indirect(&mut self, index: usize, error: &mut Option<RowError>) -> Result<&'a [u8]> {
        let slot = self.take(16)?;
        let number = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().expect("eight bytes"));
        let (offset, len) = (number(0), number(8));
        let end = offset.checked_add(len).filter(|end| *end <= self.indirect.len() as u64);
        let Some(end) = end else {
            return Err(Error::corrupt(format!(
                "a cell at {offset} of {len} bytes lies outside the {} bytes of indirect data",
                self.indirect.len()
            )));
        };
        self.indirect_read += len;
        let max = self.limits.cell_bytes_max;
        if len > max as u64 {
            error.get_or_insert_with(|| {
                let name = &self.tablet.columns()[index].name;
                RowError::invalid(format!(
                    "value too large for column '{name}' ({len} bytes, maximum is {max} bytes)"
                ))
            });
        }
        Ok(&self.indirect[offset as usize..end as usize])
    }

    fn null_error(&self, index: usize) -> RowError {
        RowError::invalid(format!("NULL values not allowed for column: {}", self.tablet.columns()[index]))
    }

    /// Checks the rules of the kind of operation about which columns are set.
    fn check(&self, kind: RowOpKind) -> Result<(), RowError> {
        let keys = self.tablet.num_key_columns();
        let auto = self.auto_incrementing;
        match kind.base() {
            RowOpKind::Insert => {
                if let Some(auto) = auto.filter(|auto| self.cells[*auto].is_set()) {
                    let column = &self.tablet.columns()[auto];
                    return Err(RowError::invalid(format!("auto-incrementing column is set: {column}")));
                }
                self.check_complete(auto)
            }
            RowOpKind::Upsert => self.check_complete(None),
            RowOpKind::Update if !self.updates(keys, kind.ignores_errors()) => {
                self.check_key()?;
                Err(RowError::invalid(format!("No fields updated, key is: ({})", self.redacted_key())))
            }
            _ => self.check_key(),
        }
    }

    /// Returns true if a column is set that an update may change. An update that skips immutable columns has nothing to
    /// do if it sets no other; any other update fails later with an error that names the column.
    fn updates(&self, keys: usize, skips_immutable: bool) -> bool {
        let mut columns = self.tablet.columns().iter().zip(&self.cells).skip(keys);
        columns.any(|(column, cell)| cell.is_set() && !(skips_immutable && column.immutable))
    }

    /// Returns the names of the key columns without their values, because errors end up in logs.
    fn redacted_key(&self) -> String {
        let column =
            |column: &ColumnSchema| format!("{} {}=<redacted>", column.ty.name().to_lowercase(), column.name);
        self.tablet.key_columns().iter().map(column).collect::<Vec<_>>().join(", ")
    }

    fn check_key(&self) -> Result<(), RowError> {
        let keys = self.tablet.key_columns();
        match keys.iter().zip(&self.cells).find(|(_, cell)| !cell.is_set()) {
            None => Ok(()),
            Some((column, _)) => {
                Err(RowError::invalid(format!("No value provided for key column: {column}")))
            }
        }
    }

    /// Checks that every column is set or can be filled in, and that the key is not too long.
    fn check_complete(&self, unless: Option<usize>) -> Result<(), RowError> {
        let columns = self.tablet.columns();
        for (i, cell) in self.cells.iter().enumerate() {
            if *cell == ClientCell::Unset && self.defaults[i] == ClientCell::Unset && unless != Some(i) {
                let message = format!("No value provided for required column: {}", columns[i]);
                return Err(RowError::invalid(message));
            }
        }
        let len = self.key_len();
        if len > self.limits.key_bytes_max {
            let max = self.limits.key_bytes_max;
            return Err(RowError::invalid(format!(
                "encoded primary key too large ({len} bytes, maximum is {max} bytes)"
            )));
        }
        Ok(())
    }

    /// Returns the bytes of the encoded key, counted exactly only if it could be too long.
    fn key_len(&self) -> usize {
        let keys = &self.cells[..self.tablet.num_key_columns()];
        let raw: usize = keys.iter().map(|cell| cell.value().map_or(16, <[u8]>::len) + 2).sum();
        if raw * 2 <= self.limits.key_bytes_max {
            return raw;
        }
        let last = keys.len() - 1;
        let len = |(i, cell): (usize, &ClientCell<'_>)| {
            let value = cell.value().unwrap_or_default();
            let any_length = self.tablet.columns()[i].ty.width().is_none();
            if any_length && i < last {
                value.len() + value.iter().filter(|byte| **byte == 0).count() + 2
            } else {
                value.len()
            }
        };
        keys.iter().enumerate().map(len).sum()
    }
}

/// Normalizes a cell: BOOL is stored as 0 or 1, whatever byte the client sends.
#[inline]
fn normal(cell: &[u8], is_bool: bool) -> &[u8] {
    if is_bool && cell[0] > 1 { &[1] } else { cell }
}

/// Finds the client's columns in the tablet's schema, by name.
///
/// Returns `Invalid` if a column is missing there or has another type or nullability, if a column is named twice, or if
/// the client leaves out a column that can't be filled in.
pub fn bind_columns(client: &[ColumnSchema], tablet: &Schema) -> Result<Vec<ClientColumn>> {
    let mut bound: Vec<ClientColumn> = Vec::with_capacity(client.len());
    for column in client {
        let Some(own) = tablet.index_of_name(&column.name).map(|i| &tablet.columns()[i]) else {
            return Err(Error::invalid(format!("Client provided column {column} not present in tablet")));
        };
        check_same_type(column, own)?;
        if bound.iter().any(|earlier| earlier.id == own.id) {
            return Err(Error::invalid(format!("duplicate column name: {}", column.name)));
        }
        bound.push(ClientColumn { id: own.id, ty: own.ty, nullable: own.nullable });
    }
    for own in tablet.columns() {
        let fillable = own.nullable || own.write_default.is_some() || own.auto_incrementing;
        if !fillable && !bound.iter().any(|column| column.id == own.id) {
            return Err(Error::invalid(format!("Client missing required column: {own}")));
        }
    }
    Ok(bound)
}

pub(super) fn check_same_type(client: &ColumnSchema, own: &ColumnSchema) -> Result<()> {
    if client.ty == own.ty && client.attributes == own.attributes && client.nullable == own.nullable {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "The column '{}' must have type {} found {}",
        own.name,
        own.type_text(),
        client.type_text()
    )))
}

/// Encodes operations as a client does, in the order of a schema's columns.
#[derive(Debug, Clone)]
pub struct RowOpsWriter {
    /// Bytes of a fixed-width cell, 0 for any length.
    widths: Vec<usize>,
    null_bitmap: bool,
    rows: Vec<u8>,
    indirect: Vec<u8>,
    count: usize,
}

impl RowOpsWriter {
    pub fn new(schema: &Schema) -> RowOpsWriter {
        RowOpsWriter {
            widths: schema.columns().iter().map(|column| column.ty.width().unwrap_or(0)).collect(),
            null_bitmap: schema.has_nullable(),
            rows: Vec::new(),
            indirect: Vec::new(),
            count: 0,
        }
    }

    /// Appends an operation on the row made of `cells`, one per column.
    ///
    /// Panics if a fixed-width cell has another width, or a cell is NULL in a schema without nullable
    /// columns.
    pub fn push(&mut self, kind: RowOpKind, cells: &[ClientCell<'_>]) {
        assert_eq!(cells.len(), self.widths.len(), "a row has one cell per column");
        let bitmap = cells.len().div_ceil(8);
        self.rows.push(kind as u8);
        let (is_set, nulls) = (self.rows.len(), self.rows.len() + bitmap);
        self.rows.resize(if self.null_bitmap { nulls + bitmap } else { nulls }, 0);
        for (i, (cell, width)) in cells.iter().zip(&self.widths).enumerate() {
            let bit = 1 << (i % 8);
            match cell {
                ClientCell::Unset => continue,
                ClientCell::Null => {
                    assert!(self.null_bitmap, "NULL in a schema without nullable columns");
                    self.rows[nulls + i / 8] |= bit;
                }
                ClientCell::Value(value) if *width == 0 => {
                    self.rows.extend_from_slice(&(self.indirect.len() as u64).to_le_bytes());
                    self.rows.extend_from_slice(&(value.len() as u64).to_le_bytes());
                    self.indirect.extend_from_slice(value);
                }
                ClientCell::Value(value) => {
                    assert_eq!(value.len(), *width, "a cell has its column's width");
                    self.rows.extend_from_slice(value);
                }
            }
            self.rows[is_set + i / 8] |= bit;
        }
        self.count += 1;
    }

    /// Number of operations written.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Number of bytes written.
    pub fn byte_size(&self) -> usize {
        self.rows.len() + self.indirect.len()
    }

    /// Returns the rows and their indirect data.
    pub fn finish(self) -> (Vec<u8>, Vec<u8>) {
        (self.rows, self.indirect)
    }
}

#[cfg(test)]
mod tests;
