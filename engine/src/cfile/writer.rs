//! The writer of one stream, which cuts cells into pages.

use serde::{Deserialize, Serialize};

use super::compress::PAGE_BYTES_MAX;
use super::decoded_page::Dictionary;
use super::encoding::{PAGE_ROWS_MAX, encode, encode_dictionary};
use super::page_file::{PageRef, PageWriter, index_of, stream};
use super::page_index::{PageEntry, PageIndex};
use super::stable_hash::hash64;
use super::zone_map;
use crate::error::{Error, Result};
use crate::schema::row_block::{ColumnBlock, ColumnValues};
use crate::schema::{Compression, Encoding, PhysicalType};

/// A dictionary of more values than this, or of more bytes, is replaced by plain pages.
const DICTIONARY_VALUES_MAX: usize = 1 << 15;
const DICTIONARY_BYTES_MAX: usize = 256 << 10;

/// Bytes of an index, which is one page, from which on pages become larger. Files of new rows end there; the columns
/// that a major delta compaction rewrites have as many rows as their rowset, however long the cells have become.
pub const INDEX_BYTES_MAX: usize = PAGE_BYTES_MAX / 4;
/// Bytes by which an index may grow before the page size doubles, and the page size at which that ends.
const INDEX_GROWTH_BYTES: usize = 1 << 20;
const LARGE_PAGE_BYTES: usize = 1 << 20;

/// Settings of a stream to be written.
#[derive(Debug, Clone)]
pub struct StreamSpec {
    pub stream: u32,
    pub physical: PhysicalType,
    pub nullable: bool,
    /// Encoding as returned by [`super::encoding::resolve`].
    pub encoding: Encoding,
    pub compression: Compression,
    /// Target size of a page, in bytes of cells.
    pub page_bytes: usize,
    /// True if zone maps keep their bounds whole, because the stream is searched by them.
    pub exact_bounds: bool,
}

/// Location and type of a finished stream; part of the footer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamMeta {
    pub stream: u32,
    pub physical: PhysicalType,
    pub nullable: bool,
    pub rows: u32,
    pub index: PageRef,
    pub dictionary: Option<PageRef>,
    /// Bytes of the cells before encoding, and bytes of the pages as stored.
    pub raw_bytes: u64,
    pub stored_bytes: u64,
}

/// Writes one stream. Pages go to the file as they fill up; the index follows in [`StreamWriter::finish`].
pub struct StreamWriter {
    spec: StreamSpec,
    pending: ColumnBlock,
    index: PageIndex,
    index_bytes: usize,
    /// Bytes of the index at which the page size doubles.
    index_bytes_max: usize,
    rows: u32,
    raw_bytes: u64,
    stored_bytes: u64,
    /// Set while pages are dictionary encoded.
    dictionary: Option<DictionaryBuilder>,
    /// True if a page refers to the dictionary.
    dictionary_used: bool,
}

impl StreamWriter {
    pub fn new(spec: StreamSpec) -> StreamWriter {
        let dictionary = (spec.encoding == Encoding::Dict).then(DictionaryBuilder::default);
        StreamWriter {
            pending: ColumnBlock::new(spec.physical, spec.nullable),
            spec,
            index: PageIndex::default(),
            index_bytes: 0,
            index_bytes_max: INDEX_BYTES_MAX,
            rows: 0,
            raw_bytes: 0,
            stored_bytes: 0,
            dictionary,
            dictionary_used: false,
        }
    }

    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Bytes of cells whose page is not full yet.
    pub fn pending_bytes(&self) -> usize {
        self.pending.byte_size()
    }

    /// Bytes of the index of the pages written so far.
    pub fn index_bytes(&self) -> usize {
        self.index_bytes
    }

    /// Bytes of memory allocated.
    pub fn allocated(&self) -> usize {
        let dictionary = self.dictionary.as_ref().map_or(0, DictionaryBuilder::allocated);
        size_of::<StreamWriter>() + self.pending.allocated() + self.index.allocated() + dictionary
    }

    /// Appends the cells of a block of the stream's type.
    pub fn append(&mut self, block: &ColumnBlock, out: &mut PageWriter) -> Result<()> {
        let rows = block.len();
        if self.rows as usize + rows > u32::MAX as usize {
            return Err(Error::invalid("a rowset cannot have more than 2^32 rows"));
        }
        let mut from = 0;
        while from < rows {
            let to = (from + self.cells_that_fit(block, from)).min(rows);
            self.pending.extend(block, from, to - from);
            self.rows += (to - from) as u32;
            from = to;
            if self.is_full() {
                self.flush(out)?;
            }
        }
        Ok(())
    }

    /// Appends one cell.
    pub fn push(&mut self, cell: Option<&[u8]>, out: &mut PageWriter) -> Result<()> {
        self.pending.push(cell);
        self.rows += 1;
        if self.is_full() { self.flush(out) } else { Ok(()) }
    }

    fn is_full(&self) -> bool {
        self.pending.byte_size() >= self.spec.page_bytes || self.pending.len() >= PAGE_ROWS_MAX
    }

    /// Returns the number of cells of `block`, from `from` on, that fit into the pending page; at least one.
    fn cells_that_fit(&self, block: &ColumnBlock, from: usize) -> usize {
        let bytes = self.spec.page_bytes.saturating_sub(self.pending.byte_size());
        let rows = PAGE_ROWS_MAX - self.pending.len();
        let fitting = match &block.values {
            ColumnValues::Fixed { width, .. } => bytes.div_ceil(*width),
            ColumnValues::Var { offsets, .. } => {
                let start = offsets[from] as usize;
                let ends = offsets[from + 1..].iter().enumerate();
                ends.take_while(|(i, end)| **end as usize - start + 4 * i < bytes).count() + 1
            }
        };
        fitting.clamp(1, rows)
    }

    fn flush(&mut self, out: &mut PageWriter) -> Result<()> {
        let block = &self.pending;
        let codes = self.dictionary.as_mut().and_then(|dictionary| dictionary.encode(block));
        if codes.is_none() {
            self.dictionary =
                self.dictionary.take().filter(|_| self.dictionary_used).map(|mut dictionary| {
                    dictionary.closed = true;
                    dictionary
                });
        }
        self.dictionary_used |= codes.is_some();
        let body = encode(block, self.spec.physical, self.spec.encoding, codes.as_deref());
        let ordinal = self.index.pages.len() as u32;
        let at = out.append(self.spec.stream, ordinal, self.spec.compression, &body)?;
        let rows = block.len() as u32;
        let valid = block.validity.as_ref().map_or(rows, |valid| valid.count() as u32);
        self.raw_bytes += block.byte_size() as u64;
        self.stored_bytes += u64::from(at.len);
        let entry = PageEntry {
            at,
            first_row: self.rows - rows,
            rows,
            nulls: rows - valid,
            bounds: zone_map::bounds(block, self.spec.physical, self.spec.exact_bounds),
        };
        self.index_bytes += entry.encoded_bytes();
        self.index.pages.push(entry);
        self.pending.clear();
        if self.index_bytes >= self.index_bytes_max && self.spec.page_bytes < LARGE_PAGE_BYTES {
            self.index_bytes_max += INDEX_GROWTH_BYTES;
            self.spec.page_bytes *= 2;
        }
        Ok(())
    }

    /// Writes the pending cells, the dictionary and the index.
    pub fn finish(mut self, out: &mut PageWriter) -> Result<StreamMeta> {
        if !self.pending.is_empty() {
            self.flush(out)?;
        }
        let dictionary = match self.dictionary.filter(|_| self.dictionary_used) {
            Some(dictionary) => {
                let stream = self.spec.stream | stream::DICTIONARY_OF;
                let body = encode_dictionary(&dictionary.values);
                Some(out.append(stream, 0, self.spec.compression, &body)?)
            }
            None => None,
        };
        let index = out.append(index_of(self.spec.stream), 0, Compression::None, &self.index.encode())?;
        Ok(StreamMeta {
            stream: self.spec.stream,
            physical: self.spec.physical,
            nullable: self.spec.nullable,
            rows: self.rows,
            index,
            dictionary,
            raw_bytes: self.raw_bytes,
            stored_bytes: self.stored_bytes
                + dictionary.map_or(0, |at| u64::from(at.len))
                + u64::from(index.len),
        })
    }
}

/// Distinct values with their codes: open addressing over positions in [`Dictionary`].
#[derive(Default)]
struct DictionaryBuilder {
    values: Dictionary,
    /// Code + 1, or 0 if free. The length is a power of two.
    slots: Vec<u32>,
    /// True if the dictionary grew too large; no further page uses it.
    closed: bool,
}

impl DictionaryBuilder {
    fn allocated(&self) -> usize {
        let Dictionary { offsets, bytes } = &self.values;
        bytes.capacity() + 4 * (offsets.capacity() + self.slots.capacity())
    }

    /// Returns the codes of a page's cells; `None` once a dictionary saves no bytes.
    fn encode(&mut self, block: &ColumnBlock) -> Option<Vec<u32>> {
        if self.closed {
            return None;
        }
        let before = self.values.len();
        let rows = block.len();
        let mut codes = Vec::with_capacity(rows);
        for row in 0..rows {
            codes.push(self.code(block.raw(row)));
            let added = self.values.len() - before;
            let too_many = self.values.len() > DICTIONARY_VALUES_MAX
                || self.values.bytes.len() > DICTIONARY_BYTES_MAX
                || (row == 1023 && added * 8 > 1024 * 7);
            if too_many {
                self.truncate_values(before);
                return None;
            }
        }
        // Cells that are mostly new cost more as dictionary and codes than plain.
        if (self.values.len() - before) * 2 > rows.max(16) {
            self.truncate_values(before);
            return None;
        }
        Some(codes)
    }

    /// Drops the values that only a page without codes has added.
    fn truncate_values(&mut self, len: usize) {
        let end = self.values.offsets.get(len).copied().unwrap_or(0);
        self.values.offsets.truncate(len + 1);
        self.values.bytes.truncate(end as usize);
        self.slots.clear();
    }

    fn code(&mut self, value: &[u8]) -> u32 {
        if self.values.offsets.is_empty() {
            self.values.offsets.push(0);
        }
        if self.slots.len() < 2 * (self.values.len() + 1) {
            self.grow();
        }
        let mask = self.slots.len() - 1;
        let mut at = hash64(value) as usize & mask;
        loop {
            match self.slots[at] {
                0 => break,
                taken if self.values.value(taken - 1) == value => return taken - 1,
                _ => at = (at + 1) & mask,
            }
        }
        self.values.bytes.extend_from_slice(value);
        self.values.offsets.push(self.values.bytes.len() as u32);
        self.slots[at] = self.values.len() as u32;
        self.values.len() as u32 - 1
    }

    fn grow(&mut self) {
        let size = (4 * (self.values.len() + 1)).next_power_of_two().max(64);
        self.slots.clear();
        self.slots.resize(size, 0);
        for code in 0..self.values.len() as u32 {
            let mut at = hash64(self.values.value(code)) as usize & (size - 1);
            while self.slots[at] != 0 {
                at = (at + 1) & (size - 1);
            }
            self.slots[at] = code + 1;
        }
    }
}
