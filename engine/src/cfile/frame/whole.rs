//! Checks a whole file, page after page, without knowing what its streams mean.
//!
//! Pages lie side by side up to the trailer, so that each tells where the next one begins. What reads a file for
//! itself finds damage page by page; what hands the file on as bytes has to look first, or damage would spread.

use std::collections::BTreeSet;

use super::{HEADER, Header, PAGE_BYTES_MAX, PageFile, PageRef, TRAILER, parse_trailer};
use crate::error::{Error, Result};

/// Bytes read at a time.
const WINDOW_BYTES: usize = 1 << 20;

impl PageFile {
    /// Reads everything. `Corrupt` if some page is not whole, not of this file, or there twice in place of another.
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
                return Err(self.broken(
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

/// Some bytes of a file, read ahead.
struct Window<'a> {
    file: &'a PageFile,
    /// Where pages end.
    end: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    /// Where the page that begins at `offset` lies, by its own word.
    fn page_at(&mut self, offset: u64) -> Result<PageRef> {
        let (file, left) = (self.file, self.end - offset);
        let nowhere = PageRef { offset, len: 0 };
        let broken = |header: &Header| {
            let what = "bit rot: its header's length leads out of the file";
            Err(file.broken(header.stream, header.ordinal, nowhere, what))
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

    /// `len` bytes from `offset` on, which lie before the end.
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
