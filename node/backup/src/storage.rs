//! Where the files of backups are: a directory of a disk, or an object store outside this crate.
//!
//! Paths are relative, with `/`; the root is `""`. A file is complete or not there.

use std::io::{self, Write};
use std::sync::Arc;

use engine::disk::{Disk, create_dir_durably};
use engine::error::{Error, Result};

use super::files::{InputFile, OutputFile};

/// File that the run which writes a backup creates first, and locks where there are locks.
pub const CLAIM: &str = ".nyala-run";

/// State of the run that claimed a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    Running,
    /// Running, or interrupted: within a day in an object store, which has no locks; in a directory whose lock this
    /// user may not take.
    Unknown,
    Ended,
}

/// A new file. It is there once it is finished; dropped before, it leaves nothing.
pub trait NewFile: Write + Send {
    /// Makes the file durable under its name.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// A store of files.
pub trait Storage: Send + Sync {
    /// Returns the names in a directory, sorted; `ENOTDIR` for a file.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;
    /// Opens a file; `ENOENT` if there is none.
    fn open(&self, path: &str) -> io::Result<InputFile>;
    /// Creates a file; `EEXIST` if the name is taken.
    fn create(&self, path: &str) -> io::Result<Box<dyn NewFile>>;
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, dir: &str) -> io::Result<()>;
    /// Makes the removal of files in a directory durable.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    /// Claims a new directory by creating its file [`CLAIM`]; `EEXIST` if it has one.
    fn claim(&self, dir: &str) -> io::Result<Box<dyn Send + Sync>>;
    /// Returns the state of the run that claimed a directory.
    fn run_state(&self, dir: &str) -> RunState;
}

/// A directory of a disk. A run holds the lock of its file [`CLAIM`].
pub(crate) struct DiskStorage(pub(crate) Arc<dyn Disk>);

impl NewFile for OutputFile {
    fn finish(self: Box<Self>) -> Result<()> {
        OutputFile::finish(*self).map(|_| ())
    }
}

impl Storage for DiskStorage {
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.0.list(dir)
    }

    fn open(&self, path: &str) -> io::Result<InputFile> {
        InputFile::open_on(&*self.0, path)
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn NewFile>> {
        if self.0.entry_kind(path)?.is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let partial = format!("{path}.partial");
        // Only the run that claimed a directory writes there: a file of the name is left of a restore that was killed.
        let _ = self.0.remove(&partial);
        Ok(Box::new(OutputFile::create_on(self.0.clone(), path, partial, false)?))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.0.remove(path)
    }

    fn remove_dir(&self, dir: &str) -> io::Result<()> {
        self.0.remove(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.0.sync_dir(dir)
    }

    fn claim(&self, dir: &str) -> io::Result<Box<dyn Send + Sync>> {
        let claim = format!("{dir}/{CLAIM}");
        create_dir_durably(&*self.0, dir)?;
        self.0.create(&claim)?;
        // Order: the claim is durable before a part is, because remains without it are taken for another program's.
        self.0.sync_dir(dir)?;
        self.0.lock(&claim)
    }

    fn run_state(&self, dir: &str) -> RunState {
        let claim = format!("{dir}/{CLAIM}");
        // Order: the claim is opened first, because a lock creates its file, which only the run may do.
        match self.0.open_read(&claim).and_then(|_| self.0.lock(&claim)) {
            Ok(_) => RunState::Ended,
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound => RunState::Ended,
                io::ErrorKind::WouldBlock => RunState::Running,
                _ => RunState::Unknown,
            },
        }
    }
}

/// Reads a whole file.
pub(crate) fn read_file(storage: &dyn Storage, path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut storage.open(path)?, &mut bytes)?;
    Ok(bytes)
}

/// Opens the storage of a location such as `s3://bucket/path`; `None` for a location of another kind.
pub type OpenStorage = dyn Fn(&str) -> Option<Result<Arc<dyn Storage>>> + Send + Sync;

/// Returns the error of a location that has a password, without repeating it.
pub fn refuse_password(location: &str) -> Result<()> {
    let Some((scheme, rest)) = location.split_once("://") else { return Ok(()) };
    let authority = rest.split('/').next().unwrap_or_default();
    match authority.contains('@') || rest.contains('?') {
        true => Err(Error::invalid(format!(
            "a {scheme}:// location with a user, a password or a query; give credentials by the environment"
        ))),
        false => Ok(()),
    }
}
