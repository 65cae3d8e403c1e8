//! Write-ahead log of one tablet: replicated operations and their outcomes, durable before any reply.
//!
//! ```text
//! wals/<tablet>/0000000001.wal   0000000002.wal   0000000003.wal     truncations   unsynced
//!               |--------------  one log  ---------------------->    truncated     exists after
//!                                                                    ranges        a failed sync
//!
//! segment   sealed header { sequence, last op before it, length of the segment before it } | batch | batch | ...
//! batch     magic | length | CRC32C of payload | sequence | offset | synced | CRC32C of this header | payload
//! payload   count, then entries: replicate { op, timestamp, kind, bytes } | commit { op, bytes };
//!           or the length of that and an LZ4 block of it, as the magic says
//! ```
//!
//! Rules:
//!
//! - A batch is one append: all of it counts or nothing. It is durable once [`Wal::sync`] returned after it.
//! - Order: a segment is written under a temporary name and renamed when its header is durable, after the previous
//!   segment is. So only the last segment can end in a torn batch, and a header is never torn.
//! - Each batch records the offset up to which its segment was synced when it was written. Damage below such a mark was
//!   durable once: that is `Corrupt`. So is a damaged batch that was written whole, since a torn write leaves out whole
//!   sectors, which read as zeros. Other damage above all marks is the torn tail of a crash: recovery truncates it.
//! - Truncation of operations ([`Wal::truncate_after`]) rewrites nothing: it records, durably, that replicates above an
//!   index and before a position in the log are void.
//! - A failed sync ends the use of the log: its data may be lost, and no later sync reports that. A restarted process
//!   rewrites the last segment (`failed_sync.rs`).
//!
//! *Not here:* the meaning of payloads, and the commit index (see `replica`).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::disk::{self, Disk};
use crate::error::{Error, Result};
use crate::ids::OpId;
use crate::memory::TrackedBytes;
use batch_reader::{BatchReader, BatchStep};
use format::{BatchPosition, SegmentHeader};
use packer::BatchPacker;
use segment::{
    BatchMark, Segment, check_follows, mark, publish_segment, segment_path, sync_dir, write_segment,
};
use truncations::Truncations;

mod batch_reader;
mod cut;
mod entry;
mod failed_sync;
mod format;
mod packer;
mod recovery;
mod segment;
mod snapshot;
mod truncations;
mod verify;

pub use cut::{backup_dir, cut_after, finish_cut};
pub use entry::{CommitEntry, LogEntry, ReplicateEntry};
pub(crate) use format::{BATCH_BYTES_MAX, entry_len};
pub use recovery::WalRecovery;
pub use segment::segment_name;
pub use snapshot::{SegmentSnapshot, WalSnapshot};
pub use truncations::FILE as TRUNCATIONS;
pub use verify::{SegmentCheck, check_truncations};

/// Settings of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalConfig {
    /// Largest segment in bytes. A batch that would exceed it starts the next segment; a larger batch has its own.
    pub segment_bytes_max: u64,
    /// True to reserve a segment's space on the device when it is created, so that syncs do not allocate it.
    pub preallocate: bool,
    /// True to compress batches that become at least an eighth shorter. Segments of older builds stay as they are.
    pub compress: bool,
}

impl WalConfig {
    /// Bytes to reserve for a new segment.
    fn preallocated_bytes(&self) -> Option<u64> {
        self.preallocate.then_some(self.segment_bytes_max)
    }
}

/// A log open for appending. It has one owner; readers go through it.
pub struct Wal {
    disk: Arc<dyn Disk>,
    dir: String,
    config: WalConfig,
    /// In order of sequence, never empty; the last one is appended to.
    segments: VecDeque<Segment>,
    /// Positions of replicates, oldest first: rising in index and in position, none void.
    marks: VecDeque<BatchMark>,
    voids: Truncations,
    last_op: OpId,
    /// Offset up to which the last segment is known to be durable.
    synced: u64,
    /// True from the truncation of a failed append until the next sync: a power cut may bring the partial batch back.
    /// At the end of the log that is a torn tail; a finished segment must not have one.
    undone: bool,
    /// The error that ended the use of this log.
    failed: Option<Error>,
    buffer: Vec<u8>,
    packer: BatchPacker,
    /// Tracked memory of the buffer.
    tracked: TrackedBytes,
}

/// Bytes sent to the device at a time, before a sync waits for them.
const WRITE_AHEAD_BYTES: u64 = 512 << 10;
/// Largest buffer in bytes that is retained between batches.
const BUFFER_BYTES_RETAINED: usize = 4 << 20;

impl Wal {
    /// Creates a log in `dir`, which is created if missing; `AlreadyPresent` if there is one.
    pub fn create(disk: Arc<dyn Disk>, dir: &str, config: WalConfig) -> Result<Wal> {
        Wal::create_after(disk, dir, config, OpId::MIN)
    }

    /// As [`Wal::create`], for a log whose first operation comes after `base`.
    fn create_after(disk: Arc<dyn Disk>, dir: &str, config: WalConfig, base: OpId) -> Result<Wal> {
        disk::create_dir_durably(&*disk, dir)
            .map_err(|error| Error::io(format_args!("create {dir}"), &error))?;
        let names = recovery::list_segments(&*disk, dir)?;
        if !names.is_empty() {
            return Err(Error::already_present(format!("there is already a log in {dir}")));
        }
        let header = SegmentHeader { sequence: 1, last_op: base, previous_bytes: 0 };
        let segment = write_segment(&*disk, dir, config.preallocated_bytes(), &header)?;
        publish_segment(&*disk, dir, 1)
            .map_err(|error| Error::io(format_args!("begin the log in {dir}"), &error))?;
        Ok(Wal {
            synced: segment.bytes,
            segments: VecDeque::from([segment]),
            disk,
            dir: dir.to_string(),
            config,
            marks: VecDeque::new(),
            voids: Truncations::default(),
            last_op: base,
            undone: false,
            failed: None,
            buffer: Vec::new(),
            packer: BatchPacker::default(),
            tracked: TrackedBytes::default(),
        })
    }

    /// Opens the log in `dir` and passes all entries to `replay`, in order and without truncated ones.
    ///
    /// A torn tail is truncated; everything replayed is durable when this returns. `NotFound` if there is no log,
    /// `Corrupt` if durable data is missing or damaged, `Unsupported` if a newer build wrote it.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &str,
        config: WalConfig,
        replay: &mut dyn FnMut(LogEntry) -> Result<()>,
    ) -> Result<(Wal, WalRecovery)> {
        let recovered = recovery::open(&disk, dir, replay)?;
        let synced = recovered.segments.back().map_or(0, |active| active.bytes);
        let wal = Wal {
            synced,
            segments: recovered.segments,
            marks: recovered.marks,
            last_op: recovered.report.last_op,
            disk,
            dir: dir.to_string(),
            config,
            voids: recovered.voids,
            undone: false,
            failed: None,
            buffer: Vec::new(),
            packer: BatchPacker::default(),
            tracked: TrackedBytes::default(),
        };
        Ok((wal, recovered.report))
    }

    /// Sets the tracker of the log's memory.
    pub fn counted_by(&mut self, tracked: TrackedBytes) {
        tracked.set(self.buffer.capacity() as u64, 0);
        self.tracked = tracked;
    }

    /// Returns true if nothing was ever appended to the log in `dir`.
    pub fn is_unused(disk: &dyn Disk, dir: &str) -> Result<bool> {
        recovery::is_unused(disk, dir)
    }

    /// Writes the entries as one batch. They are durable after the next [`Wal::sync`].
    ///
    /// Replicates must follow the last one without a gap. If this fails nothing was appended. Unless [`Wal::failure`]
    /// is set the log stays usable (a full disk may get free space).
    pub fn append(&mut self, entries: &[LogEntry]) -> Result<()> {
        self.check_usable()?;
        let Some(last_op) = self.check_order(entries)? else { return Ok(()) };
        let len = format::batch_len(entries)?;
        self.roll_segment_if_full(len)?;
        let active = self.segments.back_mut().expect("a log has a segment");
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.reserve(len as usize);
        let compress = self.config.compress && active.format >= format::SEGMENT_VERSION;
        let packer = compress.then_some(&mut self.packer);
        let place = BatchPosition { sequence: active.sequence, offset: active.bytes, synced: self.synced };
        format::encode_batch(&mut buffer, entries, packer, place);
        debug_assert!(buffer.len() as u64 <= len);
        let len = buffer.len() as u64;
        self.tracked.set(buffer.capacity() as u64, 0);
        let written = active.file.append(&buffer);
        buffer.clear();
        buffer.shrink_to(BUFFER_BYTES_RETAINED);
        self.tracked.set(buffer.capacity() as u64, 0);
        self.buffer = buffer;
        match written {
            Ok(()) => self.note_batch(entries, len, last_op),
            Err(error) => return Err(self.undo_failed_append(&error)),
        }
        Ok(())
    }

    /// Makes everything appended so far durable.
    pub fn sync(&mut self) -> Result<()> {
        self.check_usable()?;
        let active = self.segments.back().expect("a log has a segment");
        if self.synced == active.bytes && !self.undone {
            return Ok(());
        }
        match active.file.sync() {
            Ok(()) => {
                self.synced = active.bytes;
                self.undone = false;
                Ok(())
            }
            Err(error) => Err(self.fail("sync", &error)),
        }
    }

    /// The last replicate, or [`OpId::MIN`]; known even after log GC of its segment.
    pub fn last_op(&self) -> OpId {
        self.last_op
    }

    /// The last operation before the log, or [`OpId::MIN`].
    fn base(&self) -> OpId {
        self.segments[0].base
    }

    /// The first index that [`Wal::read`] can return; `None` if no replicate is left.
    pub fn first_index(&self) -> Option<u64> {
        self.marks.front().map(|mark| mark.index)
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Bytes that all segments take on the device: as [`Wal::bytes`], with the space reserved for the active segment.
    pub fn disk_bytes(&self) -> u64 {
        let active = self.segments.back().filter(|_| self.config.preallocate);
        let reserved = active.map_or(0, |active| self.config.segment_bytes_max.saturating_sub(active.bytes));
        self.bytes() + reserved
    }

    /// The error that ended the use of the log, if any: a failed sync, or a failed append that could not be undone.
    pub fn failure(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// Removes segments whose replicates are all below `keep_from_index`; returns the bytes freed.
    pub fn gc(&mut self, keep_from_index: u64) -> Result<u64> {
        self.gc_keeping_from(keep_from_index, keep_from_index, 0)
    }

    /// Removes segments as [`Wal::gc`] does, but spares those with replicates from `wanted_from_index` on while the log
    /// has at most `spared_bytes_max` bytes.
    pub fn gc_keeping_from(
        &mut self,
        keep_from_index: u64,
        wanted_from_index: u64,
        spared_bytes_max: u64,
    ) -> Result<u64> {
        self.check_usable()?;
        let (segments, freed) = self.gcable_size(keep_from_index, wanted_from_index, spared_bytes_max);
        for _ in 0..segments {
            // Order: oldest first, so that segments which a crash restores still join the remaining ones.
            let path = segment_path(&self.dir, self.segments[0].sequence);
            self.disk.remove(&path).map_err(|error| Error::io(format_args!("remove {path}"), &error))?;
            let removed = self.segments.pop_front().expect("counted before");
            while self.marks.front().is_some_and(|mark| mark.sequence == removed.sequence) {
                self.marks.pop_front();
            }
            self.voids.drop_before(self.segments[0].sequence);
        }
        if segments > 0 {
            sync_dir(&*self.disk, &self.dir)?;
        }
        Ok(freed)
    }

    /// Number of the oldest segments that [`Wal::gc_keeping_from`] would remove, and their bytes.
    pub fn gcable_size(
        &self,
        keep_from_index: u64,
        wanted_from_index: u64,
        spared_bytes_max: u64,
    ) -> (usize, u64) {
        let (mut freed, all) = (0, self.bytes());
        let mut count = 0;
        for segment in self.segments.iter().take(self.segments.len() - 1) {
            let spared = segment.max_index >= wanted_from_index && all - freed <= spared_bytes_max;
            if segment.max_index >= keep_from_index || spared {
                break;
            }
            count += 1;
            freed += segment.bytes;
        }
        (count, freed)
    }

    /// Truncates all replicates after `index`; durable when this returns. Commits stay.
    ///
    /// `Invalid` if the log does not hold the operation at `index` (or begin right after it).
    pub fn truncate_after(&mut self, index: u64) -> Result<()> {
        self.check_usable()?;
        if index == self.last_op.index {
            return Ok(());
        }
        let op = self.op_at(index)?;
        // Order: synced before the truncation is recorded. If a crash lost the truncated entries, new replicates would
        // fall under the record.
        self.sync()?;
        let active = self.segments.back().expect("a log has a segment");
        let mut voids = self.voids.clone();
        voids.add(active.sequence, active.bytes, op);
        if let Err(error) = voids.write(&*self.disk, &self.dir) {
            let found = Error::io(format_args!("record the truncation of the log in {}", self.dir), &error);
            // Whether the record replaced the old one or not, the caller can only repeat this call: the log takes no
            // operation that does not follow its last one.
            return Err(if found.is_no_space() {
                found
            } else {
                self.fail("record the truncation of", &error)
            });
        }
        self.voids = voids;
        self.drop_marks_after(op);
        self.last_op = op;
        Ok(())
    }

    /// Replicates from `from_index` on, in order: as many as fit into `max_bytes` of payload, at least one if there is
    /// any.
    ///
    /// Empty if `from_index` is after the last one; `NotFound` if [`Wal::gc`] removed it.
    pub fn read(&self, from_index: u64, max_bytes: usize) -> Result<Vec<ReplicateEntry>> {
        if from_index > self.last_op.index {
            return Ok(Vec::new());
        }
        let after = self.marks.partition_point(|mark| mark.index <= from_index);
        let Some(mark) = after.checked_sub(1).map(|at| self.marks[at]) else {
            let dir = &self.dir;
            return Err(Error::not_found(format!("operation {from_index} is no longer in the log in {dir}")));
        };
        let mut found = ReadResult { from_index, max_bytes, bytes: 0, replicates: Vec::new() };
        let first = self.segments.partition_point(|segment| segment.sequence < mark.sequence);
        for segment in self.segments.iter().skip(first) {
            let start = if segment.sequence == mark.sequence { mark.offset } else { segment.header_bytes };
            if self.read_segment(segment, start, &mut found)? {
                break;
            }
        }
        Ok(found.replicates)
    }

    /// Adds the replicates of a segment; returns true once there is enough.
    fn read_segment(&self, segment: &Segment, start: u64, found: &mut ReadResult) -> Result<bool> {
        let path = segment_path(&self.dir, segment.sequence);
        let mut reader = BatchReader::new(&*segment.file, segment.sequence, start, segment.bytes);
        loop {
            let offset = reader.offset();
            let batch = match reader.next().map_err(|error| Error::io(format_args!("read {path}"), &error))? {
                BatchStep::Batch(batch) => batch,
                BatchStep::End => return Ok(false),
                BatchStep::Damaged(damage) => return Err(segment::damage(&path, offset, damage.why)),
            };
            let mut enough = false;
            format::decode_entries(&batch.payload, &mut |entry| {
                if let LogEntry::Replicate(replicate) = entry
                    && !self.voids.covers(segment.sequence, offset, replicate.op.index)
                {
                    enough |= found.add(replicate);
                }
                Ok(())
            })?;
            if enough {
                return Ok(true);
            }
        }
    }

    fn check_usable(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone().context("log: unusable after an earlier failure")),
            None => Ok(()),
        }
    }

    /// The last operation after appending `entries`; `None` if there are no entries.
    fn check_order(&self, entries: &[LogEntry]) -> Result<Option<OpId>> {
        let mut last = self.last_op;
        for entry in entries {
            if let LogEntry::Replicate(replicate) = entry {
                check_follows(last, replicate.op).map_err(Error::invalid)?;
                last = replicate.op;
            }
        }
        Ok((!entries.is_empty()).then_some(last))
    }

    /// Starts another segment if a batch of `len` bytes does not fit into this one.
    fn roll_segment_if_full(&mut self, len: u64) -> Result<()> {
        let active = self.segments.back().expect("a log has a segment");
        let fits = active.bytes.saturating_add(len) <= self.config.segment_bytes_max;
        if fits || active.bytes == active.header_bytes {
            return Ok(());
        }
        let header = SegmentHeader {
            sequence: active.sequence + 1,
            last_op: self.last_op,
            previous_bytes: active.bytes,
        };
        if self.config.preallocate {
            // Truncates to the current length: that frees the reserved space, if the file system can.
            let _hint = active.file.truncate(active.bytes);
        }
        self.sync()?;
        let segment = write_segment(&*self.disk, &self.dir, self.config.preallocated_bytes(), &header)?;
        if let Err(error) = publish_segment(&*self.disk, &self.dir, header.sequence) {
            // The rename may or may not be durable; appending to the previous segment would contradict the new header.
            return Err(self.fail("start another segment of", &error));
        }
        self.synced = segment.bytes;
        self.segments.push_back(segment);
        Ok(())
    }

    fn note_batch(&mut self, entries: &[LogEntry], len: u64, last_op: OpId) {
        let active = self.segments.back_mut().expect("a log has a segment");
        let offset = active.bytes;
        active.bytes += len;
        // Without a sync per batch, a full segment would be synced all at once: its bytes are written ahead.
        let (from, to) = (offset / WRITE_AHEAD_BYTES, active.bytes / WRITE_AHEAD_BYTES);
        if from < to {
            active.file.begin_writing(from * WRITE_AHEAD_BYTES, (to - from) * WRITE_AHEAD_BYTES);
        }
        if let Some(index) = first_replicate(entries) {
            active.max_index = last_op.index;
            mark(&mut self.marks, BatchMark { index, sequence: active.sequence, offset });
        }
        self.last_op = last_op;
    }

    /// Truncates the partial data of a failed append.
    fn undo_failed_append(&mut self, cause: &io::Error) -> Error {
        let active = self.segments.back().expect("a log has a segment");
        match active.file.truncate(active.bytes) {
            Ok(()) => {
                self.undone = true;
                Error::io(format_args!("append to the log in {}", self.dir), cause)
            }
            Err(error) => self.fail("undo a failed append to", &error),
        }
    }

    fn fail(&mut self, what: &str, cause: &io::Error) -> Error {
        let error = Error::io(format_args!("{what} the log in {}", self.dir), cause);
        let error = failed_sync::note(&*self.disk, &self.dir, error);
        self.failed = Some(error.clone());
        error
    }

    fn op_at(&self, index: u64) -> Result<OpId> {
        let base = self.base();
        if index == base.index {
            return Ok(base);
        }
        match self.read(index, 0) {
            Ok(found) if !found.is_empty() => Ok(found[0].op),
            Err(error) if error.kind != crate::error::ErrorKind::NotFound => Err(error),
            _ => Err(Error::invalid(format!(
                "the log in {} cannot be truncated after {index}: it holds {} to {}",
                self.dir,
                self.first_index().unwrap_or(base.index + 1),
                self.last_op.index
            ))),
        }
    }

    fn drop_marks_after(&mut self, op: OpId) {
        while self.marks.back().is_some_and(|mark| mark.index > op.index) {
            self.marks.pop_back();
        }
        for segment in &mut self.segments {
            segment.max_index = segment.max_index.min(op.index);
            if segment.base.index > op.index {
                segment.base = op;
            }
        }
    }
}

/// Replicates collected by a read.
struct ReadResult {
    from_index: u64,
    max_bytes: usize,
    bytes: usize,
    replicates: Vec<ReplicateEntry>,
}

impl ReadResult {
    /// Adds a replicate; returns true once there is enough.
    fn add(&mut self, replicate: ReplicateEntry) -> bool {
        let bytes = self.bytes.saturating_add(replicate.payload.len());
        if replicate.op.index < self.from_index {
            return false;
        }
        if bytes > self.max_bytes && !self.replicates.is_empty() {
            // No later replicate may be added either, however small.
            self.max_bytes = 0;
            return true;
        }
        self.bytes = bytes;
        self.replicates.push(replicate);
        false
    }
}

fn first_replicate(entries: &[LogEntry]) -> Option<u64> {
    entries.iter().find_map(|entry| match entry {
        LogEntry::Replicate(replicate) => Some(replicate.op.index),
        LogEntry::Commit(_) => None,
    })
}

#[cfg(test)]
mod tests;
