//! The page index of a stream: location, rows and zone map of each page.

use serde::{Deserialize, Serialize};

use super::encoding::PAGE_ROWS_MAX;
use super::page_file::PageRef;
use crate::error::{Error, Result};

/// One page of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageEntry {
    pub at: PageRef,
    pub first_row: u32,
    pub rows: u32,
    /// Number of NULL cells among the rows.
    pub nulls: u32,
    /// Zone map: lower and upper bound of the page's cells. `None` if unknown (only NULLs, or a NaN among them). Bounds
    /// of long cells are shortened: the lower to a prefix, the upper to a larger value.
    pub bounds: Option<(Vec<u8>, Vec<u8>)>,
}

/// Approximate bytes of an encoded entry without its bounds.
const ENTRY_BYTES: usize = 16;

impl PageEntry {
    /// Returns about the bytes that the entry has in [`PageIndex::encode`].
    pub fn encoded_bytes(&self) -> usize {
        ENTRY_BYTES + self.bounds_bytes()
    }

    fn bounds_bytes(&self) -> usize {
        self.bounds.as_ref().map_or(0, |(low, high)| low.len() + high.len())
    }
}

/// All pages of a stream, by row.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PageIndex {
    pub pages: Vec<PageEntry>,
}

impl PageIndex {
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("numbers and bytes always encode")
    }

    /// Decodes what [`PageIndex::encode`] wrote for a stream of `rows` cells. `width` is the cell size in bytes if it
    /// is fixed.
    pub fn decode(body: &[u8], rows: u32, width: Option<usize>) -> Result<PageIndex> {
        let index: PageIndex = postcard::from_bytes(body)
            .map_err(|error| Error::corrupt(format!("a page index does not decode: {error}")))?;
        let mut next = 0u32;
        for page in &index.pages {
            let fits = page.rows > 0 && page.rows as usize <= PAGE_ROWS_MAX && page.nulls <= page.rows;
            let bounds = page.bounds.iter().flat_map(|(low, high)| [low.len(), high.len()]);
            let wide = width.is_none_or(|width| bounds.into_iter().all(|len| len == width));
            if page.first_row != next || !fits || !wide {
                return Err(Error::corrupt(format!("a page index is broken at row {next}")));
            }
            next = next
                .checked_add(page.rows)
                .ok_or_else(|| Error::corrupt("a page index has too many rows"))?;
        }
        if next != rows {
            return Err(Error::corrupt(format!("a page index has {next} rows, its stream has {rows}")));
        }
        Ok(index)
    }

    /// Returns the page that has `row`; the last one for rows past the end.
    pub fn page_of(&self, row: u32) -> usize {
        self.pages.partition_point(|page| page.first_row <= row).saturating_sub(1)
    }

    pub fn byte_size(&self) -> usize {
        self.bounds_bytes() + size_of_val(&self.pages[..])
    }

    /// Bytes of memory allocated while the index grows.
    pub fn allocated(&self) -> usize {
        self.bounds_bytes() + self.pages.capacity() * size_of::<PageEntry>()
    }

    /// Returns about the bytes that [`PageIndex::encode`] returns.
    pub fn encoded_bytes(&self) -> usize {
        self.pages.iter().map(PageEntry::encoded_bytes).sum()
    }

    fn bounds_bytes(&self) -> usize {
        self.pages.iter().map(PageEntry::bounds_bytes).sum()
    }
}
