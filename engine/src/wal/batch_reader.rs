//! Reader of the batches of a segment, and search for durable batches behind damage.

use std::io;

use bytes::Bytes;

use super::format::{self, BATCH_HEADER};
use crate::disk::DiskFile;

/// Bytes read at once.
const WINDOW: u64 = 1 << 20;
/// Smallest unit in bytes that a device writes whole or not at all.
const SECTOR: u64 = 512;

/// Reads batches one after the other.
pub(super) struct BatchReader<'a> {
    file: &'a dyn DiskFile,
    sequence: u64,
    offset: u64,
    end: u64,
    window: Bytes,
    window_start: u64,
}

pub(super) struct Batch {
    pub payload: Bytes,
}

pub(super) enum BatchStep {
    Batch(Batch),
    /// Only zeros follow, or the end.
    End,
    /// Data follows that is not a whole batch.
    Damaged(BatchDamage),
}

/// Damage found in place of a batch.
#[derive(Clone, Copy)]
pub(super) struct BatchDamage {
    pub why: &'static str,
    /// True if no part of it is missing that a torn write could have left out: it was written whole, and rotted.
    pub whole: bool,
}

fn torn(why: &'static str) -> BatchStep {
    BatchStep::Damaged(BatchDamage { why, whole: false })
}

impl<'a> BatchReader<'a> {
    /// Creates a reader of the bytes from `start` to `end` of a segment's file.
    pub(super) fn new(file: &'a dyn DiskFile, sequence: u64, start: u64, end: u64) -> BatchReader<'a> {
        BatchReader { file, sequence, offset: start, end, window: Bytes::new(), window_start: 0 }
    }

    /// Offset at which the next batch should begin.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next batch. After damage or the end the position does not advance.
    pub(super) fn next(&mut self) -> io::Result<BatchStep> {
        let left = self.end - self.offset;
        if left < BATCH_HEADER as u64 {
            let zeros = self.only_zeros_follow()?;
            return Ok(if zeros { BatchStep::End } else { torn("the batch header is cut short") });
        }
        let head = self.bytes(self.offset, BATCH_HEADER)?;
        let head = head[..].try_into().expect("a header's length was requested");
        let header = match format::decode_batch_header(head, self.sequence, self.offset) {
            Ok(header) => header,
            Err(_) if head == &[0; BATCH_HEADER] && self.only_zeros_follow()? => return Ok(BatchStep::End),
            Err(why) => return self.damaged(why, BATCH_HEADER),
        };
        if header.payload_len as u64 > left - BATCH_HEADER as u64 {
            return Ok(torn("the batch is cut short"));
        }
        let payload = self.bytes(self.offset + BATCH_HEADER as u64, header.payload_len)?;
        if crc32c::crc32c(&payload) != header.payload_crc {
            return self.damaged("the batch fails its checksum", BATCH_HEADER + header.payload_len);
        }
        let payload = match header.packed {
            true => match format::unpack(&payload) {
                Ok(payload) => payload,
                Err(why) => return Ok(BatchStep::Damaged(BatchDamage { why, whole: true })),
            },
            false => payload,
        };
        self.offset += (BATCH_HEADER + header.payload_len) as u64;
        Ok(BatchStep::Batch(Batch { payload }))
    }

    /// Returns the damage of a batch whose first `len` bytes are in the file. A torn write leaves whole sectors out,
    /// which then read as zeros.
    fn damaged(&mut self, why: &'static str, len: usize) -> io::Result<BatchStep> {
        let (start, end) = (self.offset, self.offset + len as u64);
        let (mut at, mut whole) = (start, true);
        while whole && at < end {
            let next = ((at / SECTOR + 1) * SECTOR).min(end);
            whole = self.bytes(at, (next - at) as usize)?.iter().any(|byte| *byte != 0);
            at = next;
        }
        Ok(BatchStep::Damaged(BatchDamage { why, whole }))
    }

    /// After damage: the highest durable offset that a later batch's header records, 0 if there is none.
    pub(super) fn synced_mark_after(&mut self) -> io::Result<u64> {
        let mut synced = 0;
        let mut at = self.offset + 1;
        while at + BATCH_HEADER as u64 <= self.end {
            let len = (self.end - at).min(WINDOW) as usize;
            let bytes = self.bytes(at, len)?;
            for start in 0..=len - BATCH_HEADER {
                if !format::begins_batch(&bytes[start..]) {
                    continue;
                }
                let head = bytes[start..start + BATCH_HEADER].try_into().expect("as long as a header");
                let place = at + start as u64;
                if let Ok(header) = format::decode_batch_header(head, self.sequence, place) {
                    synced = synced.max(header.synced);
                }
            }
            at += (len - BATCH_HEADER) as u64 + 1;
        }
        Ok(synced)
    }

    fn only_zeros_follow(&mut self) -> io::Result<bool> {
        let mut at = self.offset;
        while at < self.end {
            let len = (self.end - at).min(WINDOW) as usize;
            if self.bytes(at, len)?.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += len as u64;
        }
        Ok(true)
    }

    /// Returns `len` bytes that are within the file; reads ahead.
    fn bytes(&mut self, at: u64, len: usize) -> io::Result<Bytes> {
        let have = self.window_start..self.window_start + self.window.len() as u64;
        if at < have.start || at + len as u64 > have.end {
            let ahead = (self.end - at).min(WINDOW.max(len as u64));
            let mut window = vec![0; ahead as usize];
            self.file.read_at(at, &mut window)?;
            self.window = window.into();
            self.window_start = at;
        }
        let start = (at - self.window_start) as usize;
        Ok(self.window.slice(start..start + len))
    }
}
