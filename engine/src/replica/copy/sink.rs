//! The sink of a tablet copy: stores a source's files and log so that a crash never leaves a partial replica.

use std::io;
use std::sync::Arc;

use super::super::dirs::wal_dir;
use super::super::{consensus_meta_store, tombstone};
use super::{CopyChunk, CopyManifest, CopyPart, LocalData, LocalReplica};
use crate::disk::{self, Disk, DiskFile};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{OpId, TabletId, Term};
use crate::raft::ConsensusMeta;
use crate::tablet::flush::data_dir;
use crate::tablet::superblock::{DataState, Superblock};
use crate::wal::{TRUNCATIONS, segment_name};

/// The bytes to fetch next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchRange {
    pub part: CopyPart,
    pub offset: u64,
    /// Number of bytes missing from `offset` on.
    pub bytes: u64,
}

/// A tablet copy in progress. It can continue after any network failure; a crash ends it.
pub struct CopySink {
    wal: Arc<dyn Disk>,
    data: Arc<dyn Disk>,
    manifest: CopyManifest,
    merged: ConsensusMeta,
    /// In the order they are fetched.
    files: Vec<Incoming>,
    /// Index of the file being written, and the number of its bytes written.
    at: usize,
    written: u64,
    open: Option<Arc<dyn DiskFile>>,
}

struct Incoming {
    part: CopyPart,
    path: String,
    bytes: u64,
}

impl CopySink {
    /// Starts to copy the data of `manifest` onto this server, whose own state is `local`. `caller_term` is the term of
    /// the leader that requested it, if one did.
    ///
    /// When this returns the superblock is COPYING, the old data is removed, and the consensus metadata is merged.
    /// Errors of [`LocalReplica::admit_term`] and [`LocalReplica::check_source_state`], `Corrupt` if this server's vote is
    /// unknown: then nothing has changed.
    pub fn begin(
        wal: Arc<dyn Disk>,
        data: Arc<dyn Disk>,
        local: &LocalReplica,
        caller_term: Option<Term>,
        manifest: CopyManifest,
    ) -> Result<CopySink> {
        caller_term.map_or(Ok(()), |term| local.admit_term(term))?;
        local.check_source_state(&manifest)?;
        let tablet = local.tablet;
        let merged = merge(&*data, local, caller_term, &manifest)?;
        copying_superblock(local, &manifest).store(&*data)?;
        tombstone::remove_data(&*wal, &*data, tablet)?;
        consensus_meta_store::store(&*data, &merged)?;
        make_dir(&*wal, &wal_dir(tablet))?;
        make_dir(&*data, &data_dir(tablet))?;
        let files = incoming(&manifest);
        Ok(CopySink { wal, data, manifest, merged, files, at: 0, written: 0, open: None })
    }

    pub fn tablet(&self) -> TabletId {
        self.manifest.superblock.tablet
    }

    pub fn manifest(&self) -> &CopyManifest {
        &self.manifest
    }

    /// This server's term and vote for the tablet, as merged.
    pub fn consensus(&self) -> &ConsensusMeta {
        &self.merged
    }

    /// The bytes to fetch next; `None` when everything is there.
    pub fn wanted(&self) -> Option<FetchRange> {
        let file = self.files.get(self.at)?;
        Some(FetchRange { part: file.part, offset: self.written, bytes: file.bytes - self.written })
    }

    /// Writes the bytes that [`CopySink::wanted`] names, or the first of them.
    ///
    /// `Corrupt` if they are damaged or not of that file, `Invalid` if they are others: nothing is written then, and
    /// they can be fetched again.
    pub fn put(&mut self, part: CopyPart, chunk: &CopyChunk) -> Result<()> {
        let Some(wanted) = self.wanted() else {
            return Err(Error::invalid(format!("{part:?} was not requested: the copy is complete")));
        };
        check_fits(&wanted, part, chunk).map_err(|error| error.context(format_args!("{part:?}")))?;
        let file = self.open_file()?;
        let path = &self.files[self.at].path;
        let failed = |error: &io::Error| Error::io(format_args!("write {path}"), error);
        if let Err(error) = file.append(&chunk.data) {
            // A part of it may be written; the next chunk has the same offset.
            file.truncate(self.written).map_err(|error| failed(&error))?;
            return Err(failed(&error));
        }
        self.written += chunk.data.len() as u64;
        if chunk.data.len() as u64 == wanted.bytes {
            file.sync().map_err(|error| failed(&error))?;
            (self.at, self.written, self.open) = (self.at + 1, 0, None);
        }
        Ok(())
    }

    /// The file being written; created on first use.
    fn open_file(&mut self) -> Result<Arc<dyn DiskFile>> {
        if let Some(file) = &self.open {
            return Ok(file.clone());
        }
        let Incoming { part, path, .. } = &self.files[self.at];
        let disk = if matches!(part, CopyPart::Segment(_)) { &self.wal } else { &self.data };
        let file = disk.create(path).map_err(|error| Error::io(format_args!("create {path}"), &error))?;
        self.open = Some(file.clone());
        Ok(file)
    }

    /// Makes everything durable, then the replica READY. `Invalid` if bytes are missing. When this fails, the copy must
    /// be aborted, now or by a restart.
    pub fn finish(&self) -> Result<()> {
        if let Some(FetchRange { part, offset, bytes }) = self.wanted() {
            return Err(Error::invalid(format!("{bytes} bytes of {part:?} are missing from {offset} on")));
        }
        let tablet = self.tablet();
        let dir = wal_dir(tablet);
        if !self.manifest.truncations.is_empty() {
            let path = format!("{dir}/{TRUNCATIONS}");
            disk::replace_file(&*self.wal, &path, &self.manifest.truncations)
                .map_err(|error| Error::io(format_args!("write {path}"), &error))?;
        }
        sync_dir(&*self.wal, &dir)?;
        sync_dir(&*self.data, &data_dir(tablet))?;
        let ready = Superblock {
            data_state: DataState::Ready,
            tombstone_last_op: None,
            ..self.manifest.superblock.clone()
        };
        ready.store(&*self.data)
    }

    /// Aborts the copy: restores the tombstone with the last operation stored before it.
    pub fn abort(self) -> Result<()> {
        let CopySink { wal, data, manifest, open, .. } = self;
        drop(open);
        tombstone::recover(&*wal, &*data, manifest.superblock.tablet).map(drop)
    }
}

/// The superblock during the copy: on abort it becomes the tombstone.
fn copying_superblock(local: &LocalReplica, manifest: &CopyManifest) -> Superblock {
    Superblock {
        data_state: DataState::Copying,
        tombstone_last_op: match local.has {
            LocalData::Nothing => Some(OpId::MIN),
            _ => local.last_op,
        },
        rowsets: Vec::new(),
        last_op: OpId::MIN,
        ..manifest.superblock.clone()
    }
}

/// Merges the persisted vote of this server with the source's metadata.
fn merge(
    data: &dyn Disk,
    local: &LocalReplica,
    caller_term: Option<Term>,
    manifest: &CopyManifest,
) -> Result<ConsensusMeta> {
    let source = &manifest.consensus;
    // Without a superblock, metadata is a leftover of an interrupted creation or deletion, and means nothing.
    let own = match local.has {
        LocalData::Nothing => None,
        _ => match consensus_meta_store::load(data, local.tablet) {
            Err(error) if error.kind == ErrorKind::NotFound => None,
            Err(error) if error.kind == ErrorKind::Corrupt => {
                check_votes_void(local, caller_term, source).map_err(|why| error.context(why))?;
                // The source's vote is for the leader of its term, which has won: so this server elects no other one.
                Some(source.clone())
            }
            loaded => Some(loaded?),
        },
    };
    let mut merged = own.unwrap_or_else(|| ConsensusMeta::new(local.tablet, source.committed.clone()));
    merged.merge(source);
    Ok(merged)
}

/// Checks that no election can count a vote of this server that was in its unreadable metadata.
///
/// That holds if a majority has committed a configuration with this server as a learner *after* its last vote: a
/// candidate that lacks this configuration is refused by that majority, and one that has it does not count this server
/// (Raft dissertation §4.2.1). It was promoted and voted again only with a log that reaches beyond the configuration. If
/// the end of its log is unknown, the configuration must be newer than all that the same leader had at an earlier
/// attempt, as this server has not voted since.
fn check_votes_void(
    local: &LocalReplica,
    caller_term: Option<Term>,
    source: &ConsensusMeta,
) -> std::result::Result<(), String> {
    let unknown = |what: &str| Err(format!("the vote of this server is unknown: {what}"));
    if source.committed.peer(local.server).is_none_or(|peer| peer.is_voter()) {
        return unknown("it must be evicted first");
    }
    let learner_at = source.committed.opid_index.unwrap_or(0);
    let never_promoted = local.last_op.is_some_and(|last| last.index < learner_at);
    let added_since = local.rejected.is_some_and(|rejected| {
        caller_term == Some(source.term) && rejected.term == source.term && rejected.last_index < learner_at
    });
    match never_promoted || added_since {
        true => Ok(()),
        false => unknown("it may have voted after it became a learner; it must be added again"),
    }
}

fn incoming(manifest: &CopyManifest) -> Vec<Incoming> {
    let files = manifest.files().zip(&manifest.file_bytes).zip(0..);
    let files = files.map(|((path, bytes), number)| Incoming {
        part: CopyPart::File(number),
        path: path.to_string(),
        bytes: *bytes,
    });
    let dir = wal_dir(manifest.superblock.tablet);
    let segments = manifest.segments.iter().map(|segment| Incoming {
        part: CopyPart::Segment(segment.sequence),
        path: format!("{dir}/{}", segment_name(segment.sequence)),
        bytes: segment.bytes,
    });
    files.chain(segments).collect()
}

fn check_fits(wanted: &FetchRange, part: CopyPart, chunk: &CopyChunk) -> Result<()> {
    if part != wanted.part || chunk.offset != wanted.offset {
        let FetchRange { part, offset, .. } = wanted;
        return Err(Error::invalid(format!(
            "chunk is from offset {}, but {part:?} from {offset} on is needed",
            chunk.offset
        )));
    }
    chunk.check()?;
    let (total, expected) = (chunk.total, wanted.offset + wanted.bytes);
    if total != expected {
        return Err(Error::corrupt(format!(
            "the source has {total} bytes of it, but {expected} were announced"
        )));
    }
    let len = chunk.data.len() as u64;
    if len > wanted.bytes || (len == 0 && wanted.bytes > 0) {
        return Err(Error::corrupt(format!("{len} bytes came where up to {} are missing", wanted.bytes)));
    }
    Ok(())
}

fn make_dir(disk: &dyn Disk, dir: &str) -> Result<()> {
    disk::create_dir_durably(disk, dir)
        .map_err(|error| Error::io(format_args!("make directory {dir}"), &error))
}

fn sync_dir(disk: &dyn Disk, dir: &str) -> Result<()> {
    disk.sync_dir(dir).map_err(|error| Error::io(format_args!("sync the directory {dir}"), &error))
}
