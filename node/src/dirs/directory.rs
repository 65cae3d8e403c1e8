//! An open directory of a server.

use engine::sync::Mutex;
use std::io;
use std::sync::Arc;

use engine::disk::overlay::OverlayDisk;
use engine::disk::{self, Disk};
use engine::error::{Error, Result};
use engine::tablet::superblock::Superblock;
use nyala_common::env::Env;

pub(super) const INSTANCE: &str = "instance";

pub(super) const LOCK: &str = "instance.lock";

/// Errors that a device gives when it fails.
const DEVICE_ERRNOS: [i32; 2] = [libc::EIO, libc::EROFS];

/// Returns true for an error that a device gives when it fails.
pub fn is_device_failure(error: &Error) -> bool {
    error.errno.is_some_and(|errno| DEVICE_ERRNOS.contains(&errno))
}

/// An open directory. It stays locked until [`super::ServerDirs::release`] or until it is dropped.
pub struct Directory {
    /// Path as in the configuration.
    pub path: String,
    pub disk: Arc<dyn Disk>,
    pub(super) lock: Mutex<Option<Box<dyn Send + Sync>>>,
}

pub(super) fn open_directory(env: &Env, path: &str) -> Result<Directory> {
    let fail = |error: io::Error| Error::io(format!("open the directory {path}"), &error);
    let disk = env.disks.open(path).map_err(fail)?;
    let lock = disk.lock(LOCK).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Error::invalid(format!(
            "the directory {path} is in use by another process; stop that one or choose another directory"
        )),
        _ => Error::io(format!("lock the directory {path}"), &error),
    })?;
    Ok(Directory { path: path.to_string(), disk, lock: Mutex::new(Some(lock)) })
}

/// Opens a data directory that is given up. Returns `None` if its device fails: a disk that failed while the server ran
/// may still be mounted. One without a failure is opened as any other, because a new disk may be in the place of the
/// lost one.
pub(super) fn open_given_up(env: &Env, path: &str) -> Result<Option<Directory>> {
    let opened = open_directory(env, path);
    match opened.and_then(|dir| probe(&dir).map(|()| dir)) {
        Err(error) if is_device_failure(&error) => {
            tracing::warn!(dir = path, %error, "a data directory that is given up is left out: its device fails");
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

/// Reads what a start cannot do without: the instance, and the names of files.
fn probe(dir: &Directory) -> Result<()> {
    let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let fail = |error: &io::Error| Error::io(format!("read {}", dir.path), error);
    match disk::read_file(&*dir.disk, INSTANCE) {
        Err(error) if !is_missing(&error) => return Err(fail(&error)),
        _ => {}
    }
    for names in ["", "data", "consensus-meta"] {
        match dir.disk.list(names) {
            Err(error) if !is_missing(&error) => return Err(fail(&error)),
            _ => {}
        }
    }
    let superblocks = Superblock::list(&OverlayDisk::new(dir.disk.clone()));
    superblocks.map(drop).map_err(|error| error.context(format!("read {}", dir.path)))
}
