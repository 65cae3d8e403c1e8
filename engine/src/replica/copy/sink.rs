//! The sink of a tablet copy: stores a source's files and log so that a crash never leaves a partial replica.

use std::io;
use std::sync::Arc;

use super::super::dirs::wal_dir;
use super::super::{consensus_meta_store, tombstone};
use super::{CopyChunk, CopyLeader, CopyManifest, CopyPart, LocalData, LocalReplica, RejectedSource};
use crate::disk::{self, Disk, DiskFile};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{OpId, PeerId, TabletId};
use crate::raft::ConsensusMeta;
use crate::tablet::flush::data_dir;
use crate::tablet::superblock::{DataState, Superblock};
use crate::wal::{TRUNCATIONS, Wal, segment_name};

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
    /// Starts to copy the data of `manifest` onto this server, whose own state is `local`. `leader` is the source if it
    /// requested the copy as the leader.
    ///
    /// When this returns the superblock is COPYING, the old data is removed, and the consensus metadata is merged.
    /// Errors of [`LocalReplica::admit_term`] and [`LocalReplica::check_source_state`], `Corrupt` if this server's
    /// vote is unknown: then nothing has changed.
    pub fn begin(
        wal: Arc<dyn Disk>,
        data: Arc<dyn Disk>,
        local: &LocalReplica,
        leader: Option<CopyLeader>,
        manifest: CopyManifest,
    ) -> Result<CopySink> {
        leader.map_or(Ok(()), |leader| local.admit_term(leader.term))?;
        local.check_source_state(&manifest)?;
        let tablet = local.tablet;
        let merged = merge((&*wal, &*data), local, leader, &manifest.consensus)?;
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
    (wal, data): (&dyn Disk, &dyn Disk),
    local: &LocalReplica,
    leader: Option<CopyLeader>,
    source: &ConsensusMeta,
) -> Result<ConsensusMeta> {
    // Without a superblock, metadata is a leftover of an interrupted creation or deletion, and means nothing.
    let own = match local.has {
        LocalData::Nothing => None,
        _ => match consensus_meta_store::load(data, local.tablet) {
            Err(error) if is_vote_lost((wal, data), local.tablet, &error)? => {
                let vote = void_votes(local, leader, source);
                let vote = vote.map_err(|why| {
                    Error::corrupt(format!("the vote of this server is unknown: {why}: {}", error.message))
                })?;
                Some(ConsensusMeta { voted_for: Some(vote), ..source.clone() })
            }
            Err(error) if error.kind == ErrorKind::NotFound => None,
            loaded => Some(loaded?),
        },
    };
    let mut merged = own.unwrap_or_else(|| ConsensusMeta::new(local.tablet, source.committed.clone()));
    merged.merge(source);
    Ok(merged)
}

/// Returns true if this server may have given a vote that it does not know any more: its metadata cannot be read, or
/// were lost with their data directory.
pub fn is_vote_unknown(wal: &dyn Disk, data: &dyn Disk, local: &LocalReplica) -> bool {
    let loaded = consensus_meta_store::load(data, local.tablet);
    loaded.is_err_and(|error| is_vote_lost((wal, data), local.tablet, &error).unwrap_or(true))
}

/// `error`: why the metadata cannot be loaded. A log with operations proves that missing metadata were there, and so
/// does a tombstone without a last operation. Only a first copy stores a superblock before the metadata, and that one
/// has an operation.
fn is_vote_lost((wal, data): (&dyn Disk, &dyn Disk), tablet: TabletId, error: &Error) -> Result<bool> {
    match error.kind {
        ErrorKind::Corrupt => return Ok(true),
        ErrorKind::NotFound => {}
        _ => return Ok(false),
    }
    match Superblock::load(data, tablet) {
        Ok(meta) if meta.data_state != DataState::Ready => Ok(meta.tombstone_last_op.is_none()),
        Err(error) if error.kind == ErrorKind::Io => Err(error),
        _ => Wal::is_unused(wal, &wal_dir(tablet)).map(|unused| !unused),
    }
}

/// Checks that votes of this server which were in its unreadable or lost metadata do no harm any more. Returns the
/// server for which it votes in the term of the source.
///
/// The leader must have committed a configuration with this server as a learner *after* the last of these votes. It did
/// if that configuration is newer than all that the same leader's log had at an earlier attempt, as this server has not
/// voted since. How far its own log reaches proves nothing: a learner may be promoted while its log ends before the
/// configuration. Let `t` be the term of a vote that was lost, for a candidate that asked before the configuration was
/// there, and so lacks it:
///
/// - `t` is higher than the leader's term: the candidate loses. A majority without this server has the configuration,
///   and refuses it (Raft dissertation §4.2.1). So a second vote in `t`, which this server may give, is the only one
///   that counts.
/// - `t` is the leader's term: the leader has won it, perhaps by this vote. This server votes for the leader.
/// - `t` is lower: this server votes in no such term any more.
fn void_votes(
    local: &LocalReplica,
    leader: Option<CopyLeader>,
    source: &ConsensusMeta,
) -> std::result::Result<PeerId, &'static str> {
    if source.committed.peer(local.server).is_none_or(|peer| peer.is_voter()) {
        return Err("it must be evicted first");
    }
    let Some(leader) = leader.filter(|leader| leader.term == source.term) else {
        return Err("only a leader can replace it");
    };
    let learner_at = source.committed.opid_index.unwrap_or(0);
    let before = |rejected: RejectedSource| rejected.term == source.term && rejected.last_index < learner_at;
    match local.rejected.is_some_and(before) {
        true => Ok(leader.id),
        false => Err("it may have voted after it became a learner; it must be added again"),
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
