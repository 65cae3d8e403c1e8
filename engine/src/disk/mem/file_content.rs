//! The bytes of one file as readers see them, with a journal that undoes what was not synced.
//!
//! ```text
//! live     |<------ synced ------>|<- append ->|<--- append --->|        pending = [append, append]
//! crash    keeps the synced bytes and the first few pending changes, tears the next one, undoes the rest;
//!          or keeps any pages of the first few changes, as a device does that orders nothing between two syncs
//! ```

use crate::sync::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

use rustix::io::Errno;

use super::fault_counts::FaultCounts;
use super::split_mix::SplitMix64;

/// Bytes of the unit that a device writes whole or not at all.
const SECTOR: usize = 512;
/// Bytes that a page cache writes back together.
const PAGE: usize = 4096;

#[derive(Default)]
pub(super) struct FileContent {
    live: Vec<u8>,
    /// Changes since the last sync, oldest first; each can be undone from the end.
    pending: Vec<UnsyncedWrite>,
    /// Bytes that a failed sync marked clean: in the cache, never on the device.
    phantom: Vec<Range<usize>>,
    sync_failed: bool,
    /// Pages that no read returns.
    unreadable: BTreeSet<usize>,
}

/// Unsynced bytes that outlive a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnsyncedKept {
    /// The first changes; the next one may be torn.
    Prefix,
    /// Any pages of the first changes. Lost pages read as zeros.
    Pages,
}

enum UnsyncedWrite {
    Append { len: usize },
    Truncate { cut: Vec<u8>, phantom: Vec<Range<usize>> },
}

impl FileContent {
    /// Returns the live bytes, synced.
    pub(super) fn image(&self) -> FileContent {
        let (live, unreadable) = (self.live.clone(), self.unreadable.clone());
        FileContent { live, unreadable, ..FileContent::default() }
    }

    pub(super) fn len(&self) -> u64 {
        self.live.len() as u64
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.live.extend_from_slice(bytes);
        if !bytes.is_empty() {
            self.pending.push(UnsyncedWrite::Append { len: bytes.len() });
        }
    }

    /// Marks the bytes appended last as cached only; a sync does not make them durable.
    pub(super) fn lose_last(&mut self, len: usize) {
        let end = self.live.len();
        if len > 0 {
            self.phantom.push(end - len..end);
        }
    }

    /// Overwrites the bytes from `start` on with as many foreign ones.
    pub(super) fn overwrite(&mut self, start: usize, bytes: &[u8]) {
        self.live[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Makes a random page unreadable.
    pub(super) fn lose_page(&mut self, rng: &mut SplitMix64) {
        self.unreadable.insert(rng.up_to(self.live.len().saturating_sub(1) / PAGE));
    }

    /// Returns true if these bytes include some of an unreadable page.
    pub(super) fn is_unreadable(&self, offset: u64, len: usize) -> bool {
        let first = usize::try_from(offset).unwrap_or(usize::MAX) / PAGE;
        let last = usize::try_from(offset).unwrap_or(usize::MAX).saturating_add(len.saturating_sub(1)) / PAGE;
        len > 0 && self.unreadable.range(first..=last).next().is_some()
    }

    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = self.live.get(start..).and_then(|rest| rest.get(..out.len()));
        match bytes {
            Some(bytes) => out.copy_from_slice(bytes),
            None if out.is_empty() => {}
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }

    /// Truncates the file and returns the number of bytes removed.
    pub(super) fn truncate(&mut self, len: u64) -> io::Result<u64> {
        let len = usize::try_from(len).ok().filter(|len| *len <= self.live.len()).ok_or(Errno::INVAL)?;
        let cut = self.live.split_off(len);
        let phantom = self.phantom.clone();
        clip(&mut self.phantom, len);
        let bytes = cut.len() as u64;
        if bytes > 0 {
            self.pending.push(UnsyncedWrite::Truncate { cut, phantom });
        }
        Ok(bytes)
    }

    pub(super) fn synced(&mut self) {
        self.pending.clear();
    }

    /// Returns true if a sync failed since the last power failure.
    pub(super) fn has_failed(&self) -> bool {
        self.sync_failed
    }

    /// Records a failed sync, after which the kernel treats the pages as clean.
    pub(super) fn sync_failed(&mut self) {
        self.sync_failed = true;
        let clean = self.durable_len();
        self.pending.clear();
        if clean < self.live.len() {
            self.phantom.push(clean..self.live.len());
        }
    }

    /// Drops clean bytes from the cache: what a failed sync left there alone reads as zeros then.
    pub(super) fn drop_clean(&mut self) {
        for phantom in std::mem::take(&mut self.phantom) {
            self.live[phantom].fill(0);
        }
    }

    pub(super) fn flip_bit(&mut self, offset: u64) -> io::Result<()> {
        let index = usize::try_from(offset).ok();
        let byte = index.and_then(|index| self.live.get_mut(index)).ok_or(Errno::INVAL)?;
        *byte ^= 1 << (offset % 8);
        Ok(())
    }

    /// Leaves one of the states that a power failure may leave.
    pub(super) fn crash(&mut self, kept: UnsyncedKept, rng: &mut SplitMix64, counts: &mut FaultCounts) {
        let keep = rng.up_to(self.pending.len());
        let torn = usize::from(kept == UnsyncedKept::Prefix);
        while self.pending.len() > keep + torn {
            self.undo_last();
            counts.writes_lost += 1;
        }
        match kept {
            UnsyncedKept::Prefix if self.pending.len() > keep => self.tear_last(rng, counts),
            UnsyncedKept::Prefix => {}
            UnsyncedKept::Pages => self.lose_pages(rng, counts),
        }
        self.pending.clear();
        self.sync_failed = false;
        self.lose_phantoms(rng, counts);
    }

    /// Loses some pages of what was not synced. The length stays, because the file system writes it on its own.
    fn lose_pages(&mut self, rng: &mut SplitMix64, counts: &mut FaultCounts) {
        let mut at = self.durable_len();
        while at < self.live.len() {
            let end = ((at / PAGE + 1) * PAGE).min(self.live.len());
            if rng.coin() {
                self.live[at..end].fill(0);
                counts.pages_lost += 1;
            }
            at = end;
        }
    }

    /// Returns the length below which no pending change has touched the file.
    fn durable_len(&self) -> usize {
        let (mut len, mut durable) = (self.live.len(), self.live.len());
        for change in self.pending.iter().rev() {
            match change {
                UnsyncedWrite::Append { len: appended } => len -= appended,
                UnsyncedWrite::Truncate { cut, .. } => len += cut.len(),
            }
            durable = durable.min(len);
        }
        durable
    }

    fn undo_last(&mut self) {
        match self.pending.pop() {
            Some(UnsyncedWrite::Append { len }) => {
                self.live.truncate(self.live.len() - len);
                clip(&mut self.phantom, self.live.len());
            }
            Some(UnsyncedWrite::Truncate { cut, phantom }) => {
                self.live.extend_from_slice(&cut);
                self.phantom = phantom;
            }
            None => {}
        }
    }

    /// Tears the change in progress: some sectors of an append remain, or only its length.
    fn tear_last(&mut self, rng: &mut SplitMix64, counts: &mut FaultCounts) {
        let Some(UnsyncedWrite::Append { len }) = self.pending.last() else {
            self.undo_last();
            counts.writes_lost += 1;
            return;
        };
        let start = self.live.len() - len;
        let sectors = start / SECTOR..self.live.len().div_ceil(SECTOR);
        if rng.coin() {
            // Keeps a prefix of its sectors, and the length with them.
            let sector_end = sectors.start + rng.up_to(sectors.len() - 1);
            self.live.truncate((sector_end * SECTOR).max(start));
        } else {
            // Keeps the whole length, but some sectors read as zeros.
            for sector in sectors {
                if rng.coin() {
                    let end = ((sector + 1) * SECTOR).min(self.live.len());
                    self.live[(sector * SECTOR).max(start)..end].fill(0);
                }
            }
        }
        if self.live.len() == start { counts.writes_lost += 1 } else { counts.writes_torn += 1 }
    }

    fn lose_phantoms(&mut self, rng: &mut SplitMix64, counts: &mut FaultCounts) {
        clip(&mut self.phantom, self.live.len());
        for range in std::mem::take(&mut self.phantom).into_iter().rev() {
            counts.writes_lost += 1;
            if range.end == self.live.len() && rng.coin() {
                self.live.truncate(range.start);
            } else {
                self.live[range].fill(0);
            }
        }
    }
}

fn clip(ranges: &mut Vec<Range<usize>>, len: usize) {
    ranges.retain(|range| range.start < len);
    if let Some(last) = ranges.last_mut() {
        last.end = last.end.min(len);
    }
}

pub(super) fn content(file: &Mutex<FileContent>) -> MutexGuard<'_, FileContent> {
    file.lock()
}
