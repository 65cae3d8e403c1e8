//! An open directory of a server.

use engine::sync::Mutex;
use std::io;
use std::sync::Arc;

use engine::disk::Disk;
use engine::error::{Error, Result};
use nyala_common::env::Env;

pub(super) const INSTANCE: &str = "instance";

pub(super) const LOCK: &str = "instance.lock";

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
