//! The source of a tablet copy: a snapshot of a replica's files and log.

use std::sync::Arc;

use super::super::{Replica, wal_dir};
use super::{CopyChunk, CopyManifest, CopyPart, SegmentInfo};
use crate::cfile::page_file::PageFile;
use crate::disk::DiskFile;
use crate::error::{Error, Result};
use crate::ids::{OpId, Term};
use crate::raft::ConsensusMeta;
use crate::tablet::superblock::Superblock;
use crate::wal::{SegmentCheck, SegmentSnapshot, WalSnapshot};

/// The replica's part of a copy: its superblock and the files that it names, open.
pub struct CopySnapshot {
    superblock: Superblock,
    consensus: ConsensusMeta,
    files: Vec<PageFile>,
}

impl CopySnapshot {
    /// Raises the term if it advanced while the log was synced: a holder of entries of a term must know that term.
    pub fn reached(&mut self, term: Term) {
        self.consensus.term = self.consensus.term.max(term);
    }
}

impl Replica {
    /// Pins the files of the superblock. Order: called between two steps, before the log's snapshot is taken.
    pub fn copy_view(&self, consensus: ConsensusMeta) -> Result<CopySnapshot> {
        if let Some(error) = self.failure() {
            return Err(error.clone());
        }
        let superblock = self.meta().clone();
        let open: Vec<_> = self.tablet().state().disk.iter().flat_map(|rowset| rowset.open_files()).collect();
        let mut files = Vec::with_capacity(open.len());
        for path in superblock.rowsets.iter().flat_map(|rowset| rowset.files()) {
            let found = open.iter().find(|file| file.path() == path);
            let file = found.ok_or_else(|| Error::not_ready(format!("{path} is being replaced")))?;
            files.push(file.clone());
        }
        Ok(CopySnapshot { superblock, consensus, files })
    }
}

/// Data of one tablet copy session. It stays unchanged and readable as long as this exists.
pub struct CopySource {
    manifest: CopyManifest,
    encoded: Vec<u8>,
    files: Vec<PageFile>,
    segments: Vec<Arc<dyn DiskFile>>,
}

impl CopySource {
    /// Combines a replica's snapshot with its log's; `committed` is the highest index that the replica knows to be
    /// committed. `NotReady` if log GC removed entries in between that the superblock needs: then both must be taken
    /// again.
    pub fn new(replica: CopySnapshot, log: WalSnapshot, committed: u64) -> Result<CopySource> {
        let CopySnapshot { superblock, consensus, files } = replica;
        let first = log.first_index.unwrap_or(log.last_op.index + 1);
        if first > superblock.replay_from {
            return Err(Error::not_ready(format!(
                "the log begins with {first}, but the superblock needs it from {}: it was cut meanwhile",
                superblock.replay_from
            )));
        }
        let bytes = |file: &PageFile| {
            let len = file.handle().len();
            len.map_err(|error| Error::io(format_args!("the size of {} to copy", file.path()), &error))
        };
        let manifest = CopyManifest {
            superblock,
            consensus,
            last_op: log.last_op,
            committed: committed.min(log.last_op.index),
            file_bytes: files.iter().map(bytes).collect::<Result<_>>()?,
            segments: log
                .segments
                .iter()
                .map(|s| SegmentInfo { sequence: s.sequence, bytes: s.bytes })
                .collect(),
            truncations: log.truncations,
        };
        manifest.check()?;
        let segments = log.segments.into_iter().map(|segment| segment.file).collect();
        Ok(CopySource { encoded: manifest.encode(), manifest, files, segments })
    }

    pub fn manifest(&self) -> &CopyManifest {
        &self.manifest
    }

    /// The last operation that the copy will hold.
    pub fn last_op(&self) -> OpId {
        self.manifest.last_op
    }

    /// Returns the number of bytes of a part. `NotFound` if there is no such part.
    pub fn size(&self, part: CopyPart) -> Result<u64> {
        match part {
            CopyPart::Manifest => Ok(self.encoded.len() as u64),
            CopyPart::File(number) => Ok(self.manifest.file_bytes[self.file_at(number)?]),
            CopyPart::Segment(sequence) => Ok(self.manifest.segments[self.segment_at(sequence)?].bytes),
        }
    }

    fn file_at(&self, number: u64) -> Result<usize> {
        let at = usize::try_from(number).ok().filter(|at| *at < self.files.len());
        at.ok_or_else(|| missing(CopyPart::File(number)))
    }

    fn segment_at(&self, sequence: u64) -> Result<usize> {
        let found = self.manifest.segments.binary_search_by_key(&sequence, |s| s.sequence);
        found.map_err(|_| missing(CopyPart::Segment(sequence)))
    }

    /// Reads up to `max` bytes of a part from `offset` on; empty at its end. `NotFound` if there is no such part,
    /// `Invalid` if it ends before `offset`. `Corrupt` at the beginning of a damaged file or segment: then the replica
    /// must be replaced by a copy of another one instead.
    pub fn read(&self, part: CopyPart, offset: u64, max: usize) -> Result<CopyChunk> {
        let total = self.size(part)?;
        let file = match part {
            CopyPart::Manifest => None,
            CopyPart::File(number) => {
                let file = &self.files[self.file_at(number)?];
                if offset == 0 {
                    // Order: verified first, because the chunks' checksums cover the bytes read here, even rotten ones.
                    file.check_whole()?;
                }
                Some(file.handle())
            }
            CopyPart::Segment(sequence) => {
                let at = self.segment_at(sequence)?;
                if offset == 0 {
                    // Order: as for files.
                    self.check_segment(at)?;
                }
                Some(self.segments[at].clone())
            }
        };
        let left = total.checked_sub(offset).ok_or_else(|| {
            Error::invalid(format!("{part:?} has {total} bytes, and none at offset {offset}"))
        })?;
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(max);
        let data = match file {
            Some(file) => {
                let mut data = vec![0; len];
                file.read_at(offset, &mut data)
                    .map_err(|error| Error::io(format_args!("read {part:?} at {offset}"), &error))?;
                data
            }
            None => self.encoded[offset as usize..][..len].to_vec(),
        };
        Ok(CopyChunk::new(offset, data, total))
    }

    /// Verifies the segment at this position, up to its end in the copy, about a MiB at a time.
    fn check_segment(&self, at: usize) -> Result<()> {
        let SegmentInfo { sequence, bytes } = self.manifest.segments[at];
        let segment = SegmentSnapshot { sequence, bytes, file: self.segments[at].clone() };
        let mut check = SegmentCheck::new(&wal_dir(self.manifest.superblock.tablet), segment);
        while check.step()? > 0 {}
        Ok(())
    }
}

fn missing(part: CopyPart) -> Error {
    Error::not_found(format!("the copy has no {part:?}"))
}
