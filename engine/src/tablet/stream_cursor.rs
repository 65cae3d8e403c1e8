//! Cursor over the pages of one stored column.
//!
//! ```text
//!   rows      0 ────────── 4000 ── 4010 ────────── 9000      4010 and later rows are short
//!   pages     │   256 KiB    │ 256 KiB │    256 KiB    │     4000 to 4009 are long
//! ```
//!
//! A page ends where its cells reach a number of bytes. So the page index says about how long the cells of some rows
//! are, before a page is read.

use std::ops::Range;
use std::sync::Arc;

use crate::cfile::cache::CachePriority;
use crate::cfile::decoded_page::DecodedPage;
use crate::cfile::page_index::PageIndex;
use crate::cfile::reader::StreamReader;
use crate::error::Result;
use crate::ids::RowId;
use crate::schema::row_block::ColumnBlock;

/// A stream's index and the last page read.
pub(super) struct StreamCursor {
    pub index: Arc<PageIndex>,
    page: Option<(usize, Arc<DecodedPage>)>,
}

impl StreamCursor {
    pub(super) fn new(stream: &StreamReader) -> Result<StreamCursor> {
        Ok(StreamCursor { index: stream.index()?, page: None })
    }

    pub(super) fn allocated(&self) -> usize {
        self.page.as_ref().map_or(0, |(_, page)| page.byte_size())
    }

    /// Returns about the bytes of the cells of some rows; 0 if all cells of the stream have the same length.
    pub(super) fn cell_bytes(&self, stream: &StreamReader, rows: &Range<RowId>) -> u64 {
        let (pages, meta) = (&self.index.pages[..], stream.meta());
        if meta.physical.width().is_some() || pages.is_empty() {
            return 0;
        }
        let (page_bytes, first) = (meta.raw_bytes / pages.len() as u64, self.index.page_of(rows.start));
        let overlapping = (first..).zip(&pages[first..]).take_while(|(_, page)| page.first_row < rows.end);
        let bytes = overlapping.map(|(at, page)| {
            let end = rows.end.min(page.first_row + page.rows);
            let wanted = end.saturating_sub(rows.start.max(page.first_row));
            // The last page is seldom full: its cells count for no more than those before it.
            let before = at.checked_sub(1).filter(|_| at + 1 == pages.len()).map_or(0, |at| pages[at].rows);
            page_bytes * u64::from(wanted) / u64::from(page.rows.max(before))
        });
        bytes.sum()
    }

    /// Returns the page that contains `row`, and the page's first row.
    pub(super) fn page(&mut self, stream: &StreamReader, row: RowId) -> Result<(&DecodedPage, RowId)> {
        let at = match &self.page {
            Some((at, page)) if (row.wrapping_sub(self.index.pages[*at].first_row) as usize) < page.rows => {
                *at
            }
            _ => {
                let at = self.index.page_of(row);
                self.page = Some((at, stream.page(&self.index, at, CachePriority::Scan)?));
                at
            }
        };
        let (_, page) = self.page.as_ref().expect("the page was set above");
        Ok((page, self.index.pages[at].first_row))
    }

    /// Appends the cells of a range of rows.
    pub(super) fn copy(
        &mut self,
        stream: &StreamReader,
        rows: Range<RowId>,
        out: &mut ColumnBlock,
    ) -> Result<()> {
        let mut row = rows.start;
        while row < rows.end {
            let (page, first) = self.page(stream, row)?;
            let to = rows.end.min(first + page.rows as u32);
            page.copy_range((row - first) as usize, (to - first) as usize, out);
            row = to;
        }
        Ok(())
    }

    /// Appends the cells of the selected rows, ascending and relative to `start`.
    pub(super) fn gather(
        &mut self,
        stream: &StreamReader,
        start: RowId,
        selected: &[u32],
        out: &mut ColumnBlock,
    ) -> Result<()> {
        let mut rest = selected;
        while let Some(row) = rest.first() {
            let (page, first) = self.page(stream, start + row)?;
            let end = first + page.rows as u32;
            let (here, later) = rest.split_at(rest.partition_point(|row| start + row < end));
            page.gather(here.iter().map(|row| (start + row - first) as usize), out);
            rest = later;
        }
        Ok(())
    }
}
