//! Verification of a whole file, page by page, without knowledge of what its streams mean.
//!
//! Pages are contiguous up to the trailer, so the length of each tells where the next one begins. A reader finds
//! damage page by page. A tablet copy sends the file as bytes and verifies it first, or damage would spread.

use std::collections::BTreeSet;

use super::{HEADER, Header, PAGE_BYTES_MAX, PageFile, PageRef, TRAILER, parse_trailer};
use crate::error::{Error, Result};

/// Bytes read at a time.
const WINDOW_BYTES: usize = 1 << 20;

impl PageFile {
    /// Reads and checks the whole file. Returns `Corrupt` if a page is damaged, of another file, or present twice in
    /// place of another.
    pub fn check_whole(&self) -> Result<()> {
        let end = self.footer.offset + u64::from(self.footer.len);
        self.check_trailer(end)?;
        let mut window = Window { file: self, end, start: 0, bytes: Vec::new() };
        let (mut offset, mut seen) = (0, BTreeSet::new());
        while offset < end {
            let at = window.page_at(offset)?;
            let bytes = window.get(offset, at.len as usize)?;
            let Header { stream, ordinal, .. } = Header::parse(bytes);
            self.check_page(stream, ordinal, at, bytes)?;
            if !seen.insert((stream, ordinal)) {
                return Err(self.corrupt_error(
                    stream,
                    ordinal,
                    at,
                    "misdirected write: the file has this page twice",
                ));
            }
            offset += u64::from(at.len);
        }
        Ok(())
    }

    fn check_trailer(&self, at: u64) -> Result<()> {
        let mut trailer = [0; TRAILER];
        let read = self.file.read_at(at, &mut trailer);
        read.map_err(|e| Error::io(format_args!("read the end of {}", self.path), &e))?;
        let footer = parse_trailer(&trailer, self.kind, at + TRAILER as u64);
        footer.map(|_| ()).map_err(|error| error.context(&self.path))
    }
}

/// A range of a file's bytes, read ahead.
struct Window<'a> {
    file: &'a PageFile,
    /// Offset at which the pages end.
    end: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    /// Returns the location of the page that begins at `offset`, as its header gives it.
    fn page_at(&mut self, offset: u64) -> Result<PageRef> {
        let (file, left) = (self.file, self.end - offset);
        let unknown = PageRef { offset, len: 0 };
        let broken = |header: &Header| {
            let message = "bit rot: its header's length leads out of the file";
            Err(file.corrupt_error(header.stream, header.ordinal, unknown, message))
        };
        if left < HEADER as u64 {
            return Err(Error::corrupt(format!(
                "{}: {left} bytes before the trailer are no page",
                file.path
            )));
        }
        let header = Header::parse(self.get(offset, HEADER)?);
        match HEADER.checked_add(header.body_len) {
            Some(len) if header.body_len <= PAGE_BYTES_MAX && len as u64 <= left => {
                Ok(PageRef { offset, len: len as u32 })
            }
            _ => broken(&header),
        }
    }

    /// Returns `len` bytes from `offset` on. The range ends before `end`.
    fn get(&mut self, offset: u64, len: usize) -> Result<&[u8]> {
        let held = self.start..self.start + self.bytes.len() as u64;
        if offset < held.start || offset + len as u64 > held.end {
            let left = usize::try_from(self.end - offset).unwrap_or(usize::MAX);
            self.bytes.resize(WINDOW_BYTES.max(len).min(left), 0);
            let read = self.file.file.read_at(offset, &mut self.bytes);
            read.map_err(|e| Error::io(format_args!("read {} at {offset}", self.file.path), &e))?;
            self.start = offset;
        }
        let at = (offset - self.start) as usize;
        Ok(&self.bytes[at..at + len])
    }
}
