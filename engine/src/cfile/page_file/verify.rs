//! Verification of a whole file, page by page, without knowledge of what its streams mean.
//!
//! Pages are contiguous up to the trailer, so the length of each tells where the next one begins. A reader finds
//! damage page by page. A tablet copy sends the file as bytes and verifies it first, or damage would spread. A scrubber
//! verifies it in steps, so that it can pause between them.

use std::collections::BTreeSet;

use super::{HEADER, Header, PAGE_BYTES_MAX, PageFile, PageRef, TRAILER, parse_trailer};
use crate::error::{Error, Result};

/// Bytes read at a time.
const WINDOW_BYTES: usize = 1 << 20;

impl PageFile {
    /// Reads and checks the whole file. Returns `Corrupt` if a page is damaged, of another file, or present twice in
    /// place of another.
    pub fn check_whole(&self) -> Result<()> {
        let mut check = PageFileCheck::new(self.clone());
        while check.step()? > 0 {}
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

/// A check of a whole file that proceeds in steps. It keeps the file open.
pub struct PageFileCheck {
    /// Offset of the next page.
    offset: u64,
    seen: BTreeSet<(u32, u32)>,
    window: Window,
}

impl PageFileCheck {
    pub fn new(file: PageFile) -> PageFileCheck {
        let end = file.footer.offset + u64::from(file.footer.len);
        let window = Window { file, end, start: 0, bytes: Vec::new(), read: 0 };
        PageFileCheck { offset: 0, seen: BTreeSet::new(), window }
    }

    pub fn path(&self) -> &str {
        self.window.file.path()
    }

    /// Checks the next pages, about a MiB of them. Returns the bytes read; 0 after the last page.
    pub fn step(&mut self) -> Result<u64> {
        let (end, before) = (self.window.end, self.window.read);
        if self.offset == 0 {
            self.window.file.file.will_verify();
            self.window.file.check_trailer(end)?;
        }
        while self.offset < end && self.window.read - before < WINDOW_BYTES as u64 {
            self.check_next()?;
        }
        Ok(self.window.read - before)
    }

    fn check_next(&mut self) -> Result<()> {
        let at = self.window.page_at(self.offset)?;
        self.window.get(at.offset, at.len as usize)?;
        let (file, bytes) = (&self.window.file, self.window.held(at.offset, at.len as usize));
        let Header { stream, ordinal, .. } = Header::parse(bytes);
        file.check_page(stream, ordinal, at, bytes)?;
        if !self.seen.insert((stream, ordinal)) {
            let what = "misdirected write: the file has this page twice";
            return Err(file.corrupt_error(stream, ordinal, at, what));
        }
        self.offset += u64::from(at.len);
        Ok(())
    }
}

/// A range of a file's bytes, read ahead.
struct Window {
    file: PageFile,
    /// Offset at which the pages end.
    end: u64,
    start: u64,
    bytes: Vec<u8>,
    /// Bytes read so far.
    read: u64,
}

impl Window {
    /// Returns the location of the page that begins at `offset`, as its header gives it.
    fn page_at(&mut self, offset: u64) -> Result<PageRef> {
        let left = self.end - offset;
        if left < HEADER as u64 {
            let path = &self.file.path;
            return Err(Error::corrupt(format!("{path}: {left} bytes before the trailer are no page")));
        }
        self.get(offset, HEADER)?;
        let header = Header::parse(self.held(offset, HEADER));
        match HEADER.checked_add(header.body_len) {
            Some(len) if header.body_len <= PAGE_BYTES_MAX && len as u64 <= left => {
                Ok(PageRef { offset, len: len as u32 })
            }
            _ => {
                let message = "bit rot: its header's length leads out of the file";
                let unknown = PageRef { offset, len: 0 };
                Err(self.file.corrupt_error(header.stream, header.ordinal, unknown, message))
            }
        }
    }

    /// Reads `len` bytes from `offset` on, unless they are held. The range ends before `end`.
    fn get(&mut self, offset: u64, len: usize) -> Result<()> {
        let held = self.start..self.start + self.bytes.len() as u64;
        if offset < held.start || offset + len as u64 > held.end {
            let left = usize::try_from(self.end - offset).unwrap_or(usize::MAX);
            self.bytes.resize(WINDOW_BYTES.max(len).min(left), 0);
            let read = self.file.file.read_at(offset, &mut self.bytes);
            read.map_err(|e| Error::io(format_args!("read {} at {offset}", self.file.path), &e))?;
            self.start = offset;
            self.read += self.bytes.len() as u64;
        }
        Ok(())
    }

    /// Returns bytes that [`Window::get`] has read.
    fn held(&self, offset: u64, len: usize) -> &[u8] {
        let at = (offset - self.start) as usize;
        &self.bytes[at..at + len]
    }
}
