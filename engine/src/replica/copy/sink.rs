//! The sink of a tablet copy: puts a source's files and log in their places, so that a crash never leaves half of it.

use std::io;
use std::sync::Arc;

use super::super::bootstrap::wal_dir;
use super::super::{cmeta, tombstone};
use super::{Chunk, Has, Local, Manifest, Part};
use crate::disk::{self, Disk, File};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{OpId, TabletId, Term};
use crate::raft::ConsensusMeta;
use crate::tablet::flush::data_dir;
use crate::tablet::meta::{DataState, TabletMeta};
use crate::wal::{TRUNCATIONS, segment_name};

/// The bytes to fetch next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    pub part: Part,
    pub offset: u64,
    /// How many are missing from there on.
    pub bytes: u64,
}

/// A copy under way. What it knows is enough to go on after any failure of the network; a crash ends it.
pub struct CopySink {
    wal: Arc<dyn Disk>,
    data: Arc<dyn Disk>,
    manifest: Manifest,
    merged: ConsensusMeta,
    /// In the order they are fetched.
    files: Vec<Incoming>,
    /// Which of them is being written, and how much of it is there.
    at: usize,
    written: u64,
    open: Option<Arc<dyn File>>,
}

struct Incoming {
    part: Part,
    path: String,
    bytes: u64,
}

impl CopySink {
    /// Begins to copy what `manifest` says onto this server, whose own state is `local`. `caller_term` is the term of
    /// the leader that ordered it, if one did.
    ///
    /// When this returns the superblock says COPYING, what was here is gone, and the consensus metadata is merged.
    /// Errors of [`Local::admit`]: then nothing has changed.
    pub fn begin(
        wal: Arc<dyn Disk>,
        data: Arc<dyn Disk>,
        local: &Local,
        caller_term: Option<Term>,
        manifest: Manifest,
    ) -> Result<CopySink> {
        caller_term.map_or(Ok(()), |term| local.admit_term(term))?;
        local.admit(&manifest)?;
        let tablet = local.tablet;
        let merged = merge(&*data, local, &manifest.consensus)?;
        copying(local, &manifest).store(&*data)?;
        tombstone::remove_data(&*wal, &*data, tablet)?;
        cmeta::store(&*data, &merged)?;
        make_dir(&*wal, &wal_dir(tablet))?;
        make_dir(&*data, &data_dir(tablet))?;
        let files = incoming(&manifest);
        Ok(CopySink { wal, data, manifest, merged, files, at: 0, written: 0, open: None })
    }

    pub fn tablet(&self) -> TabletId {
        self.manifest.superblock.tablet
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// This server's term and vote for the tablet, as merged.
    pub fn consensus(&self) -> &ConsensusMeta {
        &self.merged
    }

    /// What to fetch next; `None` when everything is there.
    pub fn wanted(&self) -> Option<Wanted> {
        let file = self.files.get(self.at)?;
        Some(Wanted { part: file.part, offset: self.written, bytes: file.bytes - self.written })
    }

    /// Takes the bytes that [`CopySink::wanted`] asked for, or the first of them.
    ///
    /// `Corrupt` if they are damaged or not of that file, `Invalid` if they are others: nothing is taken then, and
    /// they can be fetched again.
    pub fn put(&mut self, part: Part, chunk: &Chunk) -> Result<()> {
        let Some(wanted) = self.wanted() else {
            return Err(Error::invalid(format!("{part:?} was not asked for: the copy has everything")));
        };
        check_fits(&wanted, part, chunk).map_err(|error| error.context(format_args!("{part:?}")))?;
        let file = self.open_file()?;
        let path = &self.files[self.at].path;
        let failed = |error: &io::Error| Error::io(format_args!("write {path}"), error);
        if let Err(error) = file.append(&chunk.data) {
            // Some of it may be there; the next chunk begins where this one did.
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

    /// The file being written; made if it is the first time.
    fn open_file(&mut self) -> Result<Arc<dyn File>> {
        if let Some(file) = &self.open {
            return Ok(file.clone());
        }
        let Incoming { part, path, .. } = &self.files[self.at];
        let disk = if matches!(part, Part::Segment(_)) { &self.wal } else { &self.data };
        let file = disk.create(path).map_err(|error| Error::io(format_args!("create {path}"), &error))?;
        self.open = Some(file.clone());
        Ok(file)
    }

    /// Makes everything durable, and then the replica: READY. `Invalid` if bytes are missing. When this fails, the
    /// copy is to be aborted, or a restart does it.
    pub fn finish(&self) -> Result<()> {
        if let Some(Wanted { part, offset, bytes }) = self.wanted() {
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
        let ready = TabletMeta {
            data_state: DataState::Ready,
            tombstone_last_op: None,
            ..self.manifest.superblock.clone()
        };
        ready.store(&*self.data)
    }

    /// Gives the copy up: the tombstone is back, with the operation it remembered.
    pub fn abort(self) -> Result<()> {
        let CopySink { wal, data, manifest, open, .. } = self;
        drop(open);
        tombstone::recover(&*wal, &*data, manifest.superblock.tablet).map(drop)
    }
}

/// The superblock while the copy is under way: the tombstone that it becomes if it never ends.
fn copying(local: &Local, manifest: &Manifest) -> TabletMeta {
    TabletMeta {
        data_state: DataState::Copying,
        tombstone_last_op: match local.has {
            Has::Nothing => Some(OpId::MIN),
            _ => local.last_op,
        },
        rowsets: Vec::new(),
        last_op: OpId::MIN,
        ..manifest.superblock.clone()
    }
}

/// What this server has promised, and what the source knows.
fn merge(data: &dyn Disk, local: &Local, source: &ConsensusMeta) -> Result<ConsensusMeta> {
    // Without a superblock, metadata is what an interrupted creation or deletion left, and says nothing.
    let own = match local.has {
        Has::Nothing => None,
        _ => match cmeta::load(data, local.tablet) {
            Err(error) if error.kind == ErrorKind::NotFound => None,
            // Nobody knows then for whom this server voted; only an operator can decide to forget it.
            loaded => Some(loaded?),
        },
    };
    let mut merged = own.unwrap_or_else(|| ConsensusMeta::new(local.tablet, source.committed.clone()));
    merged.merge(source);
    Ok(merged)
}

fn incoming(manifest: &Manifest) -> Vec<Incoming> {
    let files = manifest.files().zip(&manifest.file_bytes).zip(0..);
    let files = files.map(|((path, bytes), number)| Incoming {
        part: Part::File(number),
        path: path.to_string(),
        bytes: *bytes,
    });
    let dir = wal_dir(manifest.superblock.tablet);
    let segments = manifest.segments.iter().map(|segment| Incoming {
        part: Part::Segment(segment.sequence),
        path: format!("{dir}/{}", segment_name(segment.sequence)),
        bytes: segment.bytes,
    });
    files.chain(segments).collect()
}

fn check_fits(wanted: &Wanted, part: Part, chunk: &Chunk) -> Result<()> {
    if part != wanted.part || chunk.offset != wanted.offset {
        let Wanted { part, offset, .. } = wanted;
        return Err(Error::invalid(format!(
            "it came from offset {}, but {part:?} from {offset} on is wanted",
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
