//! Log recovery: list the segments, check that they join, replay their entries, truncate the torn tail.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::batch_reader::{BatchDamage, BatchReader, BatchStep};
use super::format::{self, SEGMENT_HEADER_MAX, SegmentHeader};
use super::segment::{BatchMark, Segment, TMP, check_follows, damage, mark, segment_path};
use super::truncations::Truncations;
use super::{LogEntry, failed_sync};
use crate::disk::{Disk, DiskFile};
use crate::error::{Error, Result};
use crate::ids::OpId;

/// Result of log recovery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WalRecovery {
    pub segments: u64,
    /// Replicates passed to the caller.
    pub replicates: u64,
    /// Replicates skipped because they were truncated.
    pub void: u64,
    pub commits: u64,
    /// Bytes truncated at the end: a torn batch of a crash, or space that was never written.
    pub cut_bytes: u64,
    pub last_op: OpId,
}

/// A log as recovery found it.
pub(super) struct RecoveredLog {
    pub segments: VecDeque<Segment>,
    pub marks: VecDeque<BatchMark>,
    pub voids: Truncations,
    pub report: WalRecovery,
}

/// Recovers the log in `dir`; see [`super::Wal::open`].
pub(super) fn open(
    disk: &Arc<dyn Disk>,
    dir: &str,
    replay: &mut dyn FnMut(LogEntry) -> Result<()>,
) -> Result<RecoveredLog> {
    let sequences = list_segments(&**disk, dir)?;
    check_joined(dir, &sequences)?;
    let voids = Truncations::read(&**disk, dir)?;
    let mut recovery = LogRecovery {
        disk: &**disk,
        dir,
        voids: &voids,
        replay,
        segments: VecDeque::new(),
        marks: VecDeque::new(),
        last_op: None,
        report: WalRecovery::default(),
    };
    for sequence in &sequences {
        let last = sequences.last() == Some(sequence);
        let path = segment_path(dir, *sequence);
        let file = disk.open(&path).map_err(|error| Error::io(format_args!("open {path}"), &error))?;
        recovery.segment(file, *sequence, last)?;
    }
    recovery.check_end()?;
    let LogRecovery { mut segments, marks, report, .. } = recovery;
    let active = segments.back_mut().expect("at least one sequence was listed");
    failed_sync::rewrite_last_segment(disk, dir, &segment_path(dir, active.sequence), active)?;
    Ok(RecoveredLog { segments, marks, voids, report })
}

/// Returns true if `dir` holds no segment, or a first one with only its header.
pub(super) fn is_unused(disk: &dyn Disk, dir: &str) -> Result<bool> {
    let path = match list_segments(disk, dir)?.as_slice() {
        [] => return Ok(true),
        [1] => segment_path(dir, 1),
        _ => return Ok(false),
    };
    let failed = |error: io::Error| Error::io(format_args!("read {path}"), &error);
    let file = disk.open(&path).map_err(failed)?;
    let len = file.len().map_err(failed)?;
    // A segment with an unreadable header may hold any data.
    Ok(read_header(&*file, len).is_ok_and(|(_, header, _)| header == len))
}

/// Sequences of the segments in `dir`, rising. Removes incomplete segments of a crash.
pub(super) fn list_segments(disk: &dyn Disk, dir: &str) -> Result<Vec<u64>> {
    let names = match disk.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|error| Error::io(format_args!("list {dir}"), &error))?,
    };
    let mut sequences = Vec::new();
    for name in names {
        if name.ends_with(TMP) {
            let path = format!("{dir}/{name}");
            disk.remove(&path).map_err(|error| Error::io(format_args!("remove {path}"), &error))?;
        } else if let Some(number) = name.strip_suffix(".wal") {
            let sequence = number.parse().map_err(|_| {
                Error::corrupt(format!("{dir}/{name} is not the name of a log segment; move it away"))
            })?;
            sequences.push(sequence);
        }
    }
    sequences.sort_unstable();
    Ok(sequences)
}

fn check_joined(dir: &str, sequences: &[u64]) -> Result<()> {
    if sequences.is_empty() {
        return Err(Error::not_found(format!("there is no log in {dir}")));
    }
    for pair in sequences.windows(2) {
        if pair[1] != pair[0] + 1 {
            let missing = segment_path(dir, pair[0] + 1);
            return Err(Error::corrupt(format!("the log segment {missing} is missing")));
        }
    }
    Ok(())
}

/// State of a log recovery.
struct LogRecovery<'a> {
    disk: &'a dyn Disk,
    dir: &'a str,
    voids: &'a Truncations,
    replay: &'a mut dyn FnMut(LogEntry) -> Result<()>,
    segments: VecDeque<Segment>,
    marks: VecDeque<BatchMark>,
    /// `None` before the first segment.
    last_op: Option<OpId>,
    report: WalRecovery,
}

impl LogRecovery<'_> {
    fn segment(&mut self, file: Arc<dyn DiskFile>, sequence: u64, last: bool) -> Result<()> {
        let path = segment_path(self.dir, sequence);
        let io = |error: io::Error| Error::io(format_args!("read {path}"), &error);
        let len = file.len().map_err(io)?;
        let (header, header_bytes, format) =
            read_header(&*file, len).map_err(|error| error.context(&path))?;
        self.check_header(&path, &header, sequence)?;
        let base = self.voids.base(sequence, header.last_op);
        self.last_op.get_or_insert(base);
        let mut segment = Segment { sequence, file, bytes: len, header_bytes, format, base, max_index: 0 };
        let file = segment.file.clone();
        let mut reader = BatchReader::new(&*file, sequence, header_bytes, len);
        if last {
            failed_sync::read_from_device(self.disk, self.dir, &*file).map_err(io)?;
        }
        loop {
            let offset = reader.offset();
            match reader.next().map_err(io)? {
                BatchStep::Batch(batch) => self
                    .batch(&mut segment, offset, &batch.payload)
                    .map_err(|error| error.context(format_args!("{path}, batch at offset {offset}")))?,
                BatchStep::End if offset == len => break,
                BatchStep::End if last => {
                    self.truncate(&mut segment, &path, offset, "the rest was never written")?;
                    break;
                }
                BatchStep::End => return Err(damage(&path, offset, "zeros follow, but the log continues")),
                BatchStep::Damaged(BatchDamage { why, whole: true }) => {
                    return Err(damage(&path, offset, &format!("{why}, although it was written whole")));
                }
                BatchStep::Damaged(BatchDamage { why, .. }) if last => {
                    let synced = reader.synced_mark_after().map_err(io)?;
                    if synced > offset {
                        return Err(damage(&path, offset, why));
                    }
                    self.truncate(&mut segment, &path, offset, why)?;
                    break;
                }
                BatchStep::Damaged(BatchDamage { why, .. }) => return Err(damage(&path, offset, why)),
            }
        }
        self.report.segments += 1;
        self.report.last_op = self.last_op.unwrap_or(OpId::MIN);
        self.segments.push_back(segment);
        Ok(())
    }

    /// Checks that data which was durable at the last truncation is still there. Otherwise operations would be missing
    /// undetected, and new ones would be taken for the truncated ones.
    fn check_end(&self) -> Result<()> {
        let active = self.segments.back().expect("at least one sequence was listed");
        let (sequence, offset) = self.voids.durable_up_to();
        if (active.sequence, active.bytes) >= (sequence, offset) {
            return Ok(());
        }
        let path = segment_path(self.dir, active.sequence);
        let durable_path = segment_path(self.dir, sequence);
        Err(damage(
            &path,
            active.bytes,
            &format!("the log ends here, but was durable up to {offset} of {durable_path}"),
        ))
    }

    fn check_header(&self, path: &str, header: &SegmentHeader, sequence: u64) -> Result<()> {
        if header.sequence != sequence {
            let found = header.sequence;
            return Err(Error::corrupt(format!("{path} holds segment {found} of a log under another name")));
        }
        if let Some(before) = self.segments.back()
            && before.bytes != header.previous_bytes
        {
            let (path, is, was) =
                (segment_path(self.dir, before.sequence), before.bytes, header.previous_bytes);
            return Err(Error::corrupt(format!("{path} has {is} bytes, but had {was} when it was finished")));
        }
        Ok(())
    }

    fn batch(&mut self, segment: &mut Segment, offset: u64, payload: &bytes::Bytes) -> Result<()> {
        let mut first = None;
        format::decode_entries(payload, &mut |entry| {
            match &entry {
                LogEntry::Commit(_) => self.report.commits += 1,
                LogEntry::Replicate(replicate) => {
                    let op = replicate.op;
                    if self.voids.covers(segment.sequence, offset, op.index) {
                        self.report.void += 1;
                        return Ok(());
                    }
                    check_follows(self.last_op.unwrap_or(OpId::MIN), op).map_err(Error::corrupt)?;
                    self.last_op = Some(op);
                    self.report.replicates += 1;
                    segment.max_index = op.index;
                    first.get_or_insert(op.index);
                }
            }
            (self.replay)(entry)
        })?;
        if let Some(index) = first {
            mark(&mut self.marks, BatchMark { index, sequence: segment.sequence, offset });
        }
        Ok(())
    }

    /// Truncates the last segment at `offset`, unless the data there was durable once.
    fn truncate(&mut self, segment: &mut Segment, path: &str, offset: u64, why: &str) -> Result<()> {
        if (segment.sequence, offset) < self.voids.durable_up_to() {
            return Err(damage(path, offset, why));
        }
        segment.file.truncate(offset).map_err(|error| Error::io(format_args!("cut {path}"), &error))?;
        self.report.cut_bytes += segment.bytes - offset;
        segment.bytes = offset;
        Ok(())
    }
}

pub(super) fn read_header(file: &dyn DiskFile, len: u64) -> Result<(SegmentHeader, u64, u16)> {
    let mut bytes = vec![0; SEGMENT_HEADER_MAX.min(len as usize)];
    file.read_at(0, &mut bytes).map_err(|error| Error::io("read the header", &error))?;
    let (header, used, format) = format::decode_header(&bytes)?;
    Ok((header, used as u64, format))
}
