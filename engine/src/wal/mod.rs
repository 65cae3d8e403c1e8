//! The log of one tablet: operations as agreed, and what applying them did, durable before anyone is told.
//!
//! ```text
//! wals/<tablet>/0000000001.wal   0000000002.wal   0000000003.wal     truncations   unsynced
//!               |--------------  one log  ---------------------->    what was      there once a
//!                                                                    taken back    sync failed
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
//! - A segment is begun under another name and renamed when its header is durable, after the one before it is;
//!   so only the last segment can end in a torn batch, and a header is never torn.
//! - Each batch says up to where its segment was synced when it was written. Damage below such a mark was durable
//!   once: that is `Corrupt`. Damage above all marks is the torn tail of a crash: it is cut.
//! - Taking operations back ([`Wal::truncate_after`]) rewrites nothing: it notes, durably, that replicates above
//!   an index and before a place in the log are void.
//! - A sync that failed ends the use of the log: what it should have kept may be gone, and no later sync tells. A
//!   process that starts again writes the last segment anew ([`unsynced`]).
//!
//! *Not here:* what the payloads mean, and which operations are committed (see `replica`).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::disk::{self, Disk, File};
use crate::error::{Error, Result};
use crate::ids::OpId;
use crate::memory::Held;
use crate::time::Timestamp;
use format::{Place, SegmentHeader};
use scan::{Scanner, Step};
use voids::Voids;

mod format;
mod open;
mod scan;
mod unsynced;
mod view;
mod voids;

pub use open::WalRecovery;
pub use view::{SegmentView, WalView};
pub use voids::FILE as TRUNCATIONS;

/// How a log is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalConfig {
    /// A batch that would take a segment past this many bytes begins the next one; a larger batch has its own.
    pub segment_bytes_max: u64,
    /// Reserve a segment's space on the device when it is made, so that syncs need not find it.
    pub preallocate: bool,
    /// Compress batches that it makes an eighth shorter. Segments that older builds began stay as they are.
    pub compress: bool,
}

/// One record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Replicate(Replicate),
    Commit(Commit),
}

/// An operation as agreed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replicate {
    pub op: OpId,
    pub timestamp: Timestamp,
    /// What kind of operation; the log does not look at it.
    pub kind: u8,
    pub payload: Bytes,
}

/// What applying an operation did, so that a restart can repeat it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    pub op: OpId,
    pub payload: Bytes,
}

/// A log open for appending. It has one owner; readers go through it.
pub struct Wal {
    disk: Arc<dyn Disk>,
    dir: String,
    config: WalConfig,
    /// In order of sequence, never empty; the last one takes appends.
    segments: VecDeque<Segment>,
    /// Where replicates are, oldest first: rising in index and in place, none void.
    marks: VecDeque<Mark>,
    voids: Voids,
    last_op: OpId,
    /// Up to where the last segment is known to be durable.
    synced: u64,
    /// Why this log must not be used any more.
    failed: Option<Error>,
    buffer: Vec<u8>,
    /// Counts the buffer.
    held: Held,
}

struct Segment {
    sequence: u64,
    file: Arc<dyn File>,
    /// How far it is filled with whole batches.
    bytes: u64,
    header_bytes: u64,
    format: u16,
    /// The last operation before this segment.
    base: OpId,
    /// The largest index of its replicates that are not void, 0 if none.
    max_index: u64,
}

/// The batch at `offset` has `index` as its first replicate.
#[derive(Debug, Clone, Copy)]
struct Mark {
    index: u64,
    sequence: u64,
    offset: u64,
}

/// Marks within a segment are at least this far apart: what a read may have to skip.
const MARK_BYTES: u64 = 64 << 10;
/// So many bytes at a time go to the device before somebody waits for them.
const WRITE_AHEAD_BYTES: u64 = 512 << 10;
/// A buffer for batches that has grown beyond this is given back.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

impl Wal {
    /// Begins a log in `dir`, which is made if it is missing; `AlreadyPresent` if there is one.
    pub fn create(disk: Arc<dyn Disk>, dir: &str, config: WalConfig) -> Result<Wal> {
        disk::create_dir_durably(&*disk, dir)
            .map_err(|error| Error::io(format_args!("create {dir}"), &error))?;
        let names = open::list_segments(&*disk, dir)?;
        if !names.is_empty() {
            return Err(Error::already_present(format!("there is already a log in {dir}")));
        }
        let header = SegmentHeader { sequence: 1, last_op: OpId::MIN, previous_bytes: 0 };
        let segment = write_segment(&*disk, dir, config, &header)?;
        publish_segment(&*disk, dir, 1)
            .map_err(|error| Error::io(format_args!("begin the log in {dir}"), &error))?;
        Ok(Wal {
            synced: segment.bytes,
            segments: VecDeque::from([segment]),
            disk,
            dir: dir.to_string(),
            config,
            marks: VecDeque::new(),
            voids: Voids::default(),
            last_op: OpId::MIN,
            failed: None,
            buffer: Vec::new(),
            held: Held::default(),
        })
    }

    /// Opens the log in `dir` and gives all its entries to `replay`, in order and without what was taken back.
    ///
    /// A torn tail is cut; everything given is durable when this returns. `NotFound` if there is no log,
    /// `Corrupt` if something is missing or damaged that was durable once, `Unsupported` if a newer build wrote it.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &str,
        config: WalConfig,
        replay: &mut dyn FnMut(Entry) -> Result<()>,
    ) -> Result<(Wal, WalRecovery)> {
        open::open(disk, dir, config, replay)
    }

    /// From now on what it keeps in memory is counted by `held`.
    pub fn counted_by(&mut self, held: Held) {
        held.set(self.buffer.capacity() as u64, 0);
        self.held = held;
    }

    /// Whether the log in `dir` was begun at most: nothing was ever written to it.
    pub fn is_unused(disk: &dyn Disk, dir: &str) -> Result<bool> {
        open::is_unused(disk, dir)
    }

    /// Writes the entries as one batch. They are durable after the next [`Wal::sync`].
    ///
    /// Replicates must follow the last one without a gap. If this fails nothing was appended, and unless
    /// [`Wal::failure`] says otherwise the log can go on (a full disk may have room again).
    pub fn append(&mut self, entries: &[Entry]) -> Result<()> {
        self.check_usable()?;
        let Some(last_op) = self.check_order(entries)? else { return Ok(()) };
        let len = format::batch_len(entries)?;
        self.make_room(len)?;
        let active = self.segments.back_mut().expect("a log has a segment");
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.reserve(len as usize);
        let compress = self.config.compress && active.format >= format::SEGMENT_VERSION;
        let place = Place { sequence: active.sequence, offset: active.bytes, synced: self.synced };
        format::encode_batch(&mut buffer, entries, compress, place);
        debug_assert!(buffer.len() as u64 <= len);
        let len = buffer.len() as u64;
        self.held.set(buffer.capacity() as u64, 0);
        let written = active.file.append(&buffer);
        buffer.clear();
        buffer.shrink_to(BUFFER_BYTES_KEPT);
        self.held.set(buffer.capacity() as u64, 0);
        self.buffer = buffer;
        match written {
            Ok(()) => self.note_batch(entries, len, last_op),
            Err(error) => return Err(self.take_back(&error)),
        }
        Ok(())
    }

    /// Makes everything appended so far durable.
    pub fn sync(&mut self) -> Result<()> {
        self.check_usable()?;
        let active = self.segments.back().expect("a log has a segment");
        if self.synced == active.bytes {
            return Ok(());
        }
        match active.file.sync() {
            Ok(()) => {
                self.synced = active.bytes;
                Ok(())
            }
            Err(error) => Err(self.fail("sync", &error)),
        }
    }

    /// The last replicate, or [`OpId::MIN`]; known even when its segment is long gone.
    pub fn last_op(&self) -> OpId {
        self.last_op
    }

    /// The first index that [`Wal::read`] can give; `None` if no replicate is left.
    pub fn first_index(&self) -> Option<u64> {
        self.marks.front().map(|mark| mark.index)
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Why the log must not be used any more, if so: a failed sync, or a failed write that could not be taken back.
    pub fn failure(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// Removes segments whose replicates are all below `keep_from_index`; gives the bytes freed.
    pub fn gc(&mut self, keep_from_index: u64) -> Result<u64> {
        self.gc_sparing(keep_from_index, keep_from_index, 0)
    }

    /// The same, but leaves those with replicates from `wanted_from_index` on as long as the log is not longer than
    /// `spared_bytes_max`.
    pub fn gc_sparing(
        &mut self,
        keep_from_index: u64,
        wanted_from_index: u64,
        spared_bytes_max: u64,
    ) -> Result<u64> {
        self.check_usable()?;
        let (segments, freed) = self.superfluous(keep_from_index, wanted_from_index, spared_bytes_max);
        for _ in 0..segments {
            // Oldest first, so that what a crash brings back still joins what is left.
            let path = segment_path(&self.dir, self.segments[0].sequence);
            self.disk.remove(&path).map_err(|error| Error::io(format_args!("remove {path}"), &error))?;
            let gone = self.segments.pop_front().expect("it was counted");
            while self.marks.front().is_some_and(|mark| mark.sequence == gone.sequence) {
                self.marks.pop_front();
            }
            self.voids.forget_before(self.segments[0].sequence);
        }
        if segments > 0 {
            sync_dir(&*self.disk, &self.dir)?;
        }
        Ok(freed)
    }

    /// How many of the oldest segments [`Wal::gc_sparing`] would remove, and their bytes.
    pub fn superfluous(
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

    /// Takes back all replicates after `index`; durable when this returns. Commits stay.
    ///
    /// `Invalid` if the log does not hold the operation at `index` (or begin right after it).
    pub fn truncate_after(&mut self, index: u64) -> Result<()> {
        self.check_usable()?;
        if index == self.last_op.index {
            return Ok(());
        }
        let op = self.op_at(index)?;
        // What the note speaks of must not be cut by a crash: new replicates would fall under it.
        self.sync()?;
        let active = self.segments.back().expect("a log has a segment");
        let mut voids = self.voids.clone();
        voids.add(active.sequence, active.bytes, op);
        if let Err(error) = voids.write(&*self.disk, &self.dir) {
            return Err(self.fail("note the truncation of", &error));
        }
        self.voids = voids;
        self.forget_after(op);
        self.last_op = op;
        Ok(())
    }

    /// Replicates from `from_index` on, in order: as many as fit into `max_bytes` of payload, at least one if there
    /// is any.
    ///
    /// Empty if `from_index` is after the last one; `NotFound` if it was removed by [`Wal::gc`].
    pub fn read(&self, from_index: u64, max_bytes: usize) -> Result<Vec<Replicate>> {
        if from_index > self.last_op.index {
            return Ok(Vec::new());
        }
        let after = self.marks.partition_point(|mark| mark.index <= from_index);
        let Some(mark) = after.checked_sub(1).map(|at| self.marks[at]) else {
            let dir = &self.dir;
            return Err(Error::not_found(format!("operation {from_index} is no longer in the log in {dir}")));
        };
        let mut found = Found { from_index, max_bytes, bytes: 0, replicates: Vec::new() };
        let first = self.segments.partition_point(|segment| segment.sequence < mark.sequence);
        for segment in self.segments.iter().skip(first) {
            let start = if segment.sequence == mark.sequence { mark.offset } else { segment.header_bytes };
            if self.read_segment(segment, start, &mut found)? {
                break;
            }
        }
        Ok(found.replicates)
    }

    /// Adds what a segment has; true once there is enough.
    fn read_segment(&self, segment: &Segment, start: u64, found: &mut Found) -> Result<bool> {
        let path = segment_path(&self.dir, segment.sequence);
        let mut scanner = Scanner::new(&*segment.file, segment.sequence, start, segment.bytes);
        loop {
            let offset = scanner.offset();
            let batch =
                match scanner.next().map_err(|error| Error::io(format_args!("read {path}"), &error))? {
                    Step::Batch(batch) => batch,
                    Step::End => return Ok(false),
                    Step::Damaged(why) => return Err(open::damage(&path, offset, why)),
                };
            let mut enough = false;
            format::decode_entries(&batch.payload, &mut |entry| {
                if let Entry::Replicate(replicate) = entry
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
            Some(error) => Err(error.clone().context("the log failed before and must not be used any more")),
            None => Ok(()),
        }
    }

    /// The last operation once `entries` are in; `None` if there are no entries.
    fn check_order(&self, entries: &[Entry]) -> Result<Option<OpId>> {
        let mut last = self.last_op;
        for entry in entries {
            if let Entry::Replicate(replicate) = entry {
                check_follows(last, replicate.op).map_err(Error::invalid)?;
                last = replicate.op;
            }
        }
        Ok((!entries.is_empty()).then_some(last))
    }

    /// Begins another segment if a batch of `len` bytes does not fit into this one.
    fn make_room(&mut self, len: u64) -> Result<()> {
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
            // Cut to the length it has: what was reserved beyond is given back, if the file system can.
            let _hint = active.file.truncate(active.bytes);
        }
        self.sync()?;
        let segment = write_segment(&*self.disk, &self.dir, self.config, &header)?;
        if let Err(error) = publish_segment(&*self.disk, &self.dir, header.sequence) {
            // It may be there or not; going on with the segment before it would contradict its header.
            return Err(self.fail("begin another segment of", &error));
        }
        self.synced = segment.bytes;
        self.segments.push_back(segment);
        Ok(())
    }

    fn note_batch(&mut self, entries: &[Entry], len: u64, last_op: OpId) {
        let active = self.segments.back_mut().expect("a log has a segment");
        let offset = active.bytes;
        active.bytes += len;
        // Whoever does not sync batches waits for a whole segment when it is full: its bytes are sent on their way.
        let (from, to) = (offset / WRITE_AHEAD_BYTES, active.bytes / WRITE_AHEAD_BYTES);
        if from < to {
            active.file.begin_writing(from * WRITE_AHEAD_BYTES, (to - from) * WRITE_AHEAD_BYTES);
        }
        if let Some(index) = first_replicate(entries) {
            active.max_index = last_op.index;
            mark(&mut self.marks, Mark { index, sequence: active.sequence, offset });
        }
        self.last_op = last_op;
    }

    /// After a failed append: cuts off what of it was written.
    fn take_back(&mut self, cause: &io::Error) -> Error {
        let active = self.segments.back().expect("a log has a segment");
        match active.file.truncate(active.bytes) {
            Ok(()) => Error::io(format_args!("append to the log in {}", self.dir), cause),
            Err(error) => self.fail("take back a failed append to", &error),
        }
    }

    fn fail(&mut self, what: &str, cause: &io::Error) -> Error {
        let error = Error::io(format_args!("{what} the log in {}", self.dir), cause);
        let error = unsynced::note(&*self.disk, &self.dir, error);
        self.failed = Some(error.clone());
        error
    }

    fn op_at(&self, index: u64) -> Result<OpId> {
        let base = self.segments[0].base;
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

    fn forget_after(&mut self, op: OpId) {
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

/// What a read has collected.
struct Found {
    from_index: u64,
    max_bytes: usize,
    bytes: usize,
    replicates: Vec<Replicate>,
}

impl Found {
    /// True once there is enough.
    fn add(&mut self, replicate: Replicate) -> bool {
        let bytes = self.bytes.saturating_add(replicate.payload.len());
        if replicate.op.index < self.from_index {
            return false;
        }
        if bytes > self.max_bytes && !self.replicates.is_empty() {
            // Nothing after it may be taken either, were it ever so small.
            self.max_bytes = 0;
            return true;
        }
        self.bytes = bytes;
        self.replicates.push(replicate);
        false
    }
}

fn first_replicate(entries: &[Entry]) -> Option<u64> {
    entries.iter().find_map(|entry| match entry {
        Entry::Replicate(replicate) => Some(replicate.op.index),
        Entry::Commit(_) => None,
    })
}

/// Says what is wrong if `next` cannot come right after `last`.
fn check_follows(last: OpId, next: OpId) -> Result<(), String> {
    let first = last == OpId::MIN && next.index > 0;
    if first || (next.index == last.index + 1 && next.term >= last.term) {
        return Ok(());
    }
    Err(format!("operation {next} cannot follow {last} in a log"))
}

fn mark(marks: &mut VecDeque<Mark>, mark: Mark) {
    let near = |last: &Mark| last.sequence == mark.sequence && mark.offset - last.offset < MARK_BYTES;
    if !marks.back().is_some_and(near) {
        marks.push_back(mark);
    }
}

/// The name of a segment in its log's directory.
pub fn segment_name(sequence: u64) -> String {
    format!("{sequence:010}.wal")
}

fn segment_path(dir: &str, sequence: u64) -> String {
    format!("{dir}/{}", segment_name(sequence))
}

fn sync_dir(disk: &dyn Disk, dir: &str) -> Result<()> {
    disk.sync_dir(dir).map_err(|error| Error::io(format_args!("sync the directory {dir}"), &error))
}

/// Writes an empty segment under its name; the directory is yet to be synced.
fn write_segment(disk: &dyn Disk, dir: &str, config: WalConfig, header: &SegmentHeader) -> Result<Segment> {
    let path = segment_path(dir, header.sequence);
    let tmp = format!("{path}{TMP}");
    let bytes = format::encode_header(header);
    let write = || {
        let file = disk.create(&tmp)?;
        if config.preallocate {
            // A full device may still have room for what is really written.
            let _hint = file.reserve(config.segment_bytes_max);
        }
        file.append(&bytes)?;
        file.sync()?;
        Ok(file)
    };
    let file = write().map_err(|error: io::Error| {
        // It is in nobody's way; opening the log removes it too.
        let _ = disk.remove(&tmp);
        Error::io(format_args!("write the log segment {tmp}"), &error)
    })?;
    Ok(Segment {
        sequence: header.sequence,
        file,
        bytes: bytes.len() as u64,
        header_bytes: bytes.len() as u64,
        format: format::SEGMENT_VERSION,
        base: header.last_op,
        max_index: 0,
    })
}

/// Gives a segment its name, durably.
fn publish_segment(disk: &dyn Disk, dir: &str, sequence: u64) -> io::Result<()> {
    let path = segment_path(dir, sequence);
    disk.rename(&format!("{path}{TMP}"), &path)?;
    disk.sync_dir(dir)
}

const TMP: &str = ".tmp";

#[cfg(test)]
mod tests;
