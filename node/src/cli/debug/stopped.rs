//! Replicas of a stopped server, opened as the server opens them, without a change of its directories.

use std::fmt;
use std::sync::Arc;

use clap::ArgMatches;
use engine::cfile::cache::PageCache;
use engine::config::TabletConfig;
use engine::disk::Disk;
use engine::disk::overlay::OverlayDisk;
use engine::error::{Error, ErrorKind, Result};
use engine::ids::TabletId;
use engine::raft::{Peer, RaftOptions};
use engine::replica::{Replica, ReplicaSetup};
use engine::tablet::superblock::Superblock;
use engine::wal::{Wal, WalConfig};

use super::super::exit::ExitError;
use super::super::options::text;
use crate::config;
use crate::dirs::{Directory, StoppedServer, open_stopped};
use crate::server::flags::Flags;
use nyala_common::env::Env;

/// Bytes of decoded pages that a tool keeps.
const CACHE_BYTES: usize = 64 << 20;

/// Settings of a log that a tool reads or writes.
pub(super) const LOG_CONFIG: WalConfig =
    WalConfig { segment_bytes_max: 8 << 20, preallocate: false, compress: false };

/// Opens the directories that the flags name.
pub(super) async fn open_server(env: &Env, flags: &Flags) -> Result<StoppedServer, ExitError> {
    let (wal, _) = config::directories(flags).map_err(ExitError::usage)?;
    let data = flags.list("fs_data_dirs");
    env.run(|| open_stopped(env, &wal, &data)).await.map_err(ExitError::start)
}

/// Returns a view of a directory that keeps changes in memory.
pub(super) fn view(dir: &Directory) -> Arc<dyn Disk> {
    Arc::new(OverlayDisk::new(dir.disk.clone()))
}

/// Lists the tablets that have a superblock, readable or not, with their directories.
pub(super) fn tablets(server: &StoppedServer) -> Result<Vec<(TabletId, Arc<Directory>)>> {
    let mut found = Vec::new();
    for dir in &server.data {
        let listed = Superblock::list(&*view(dir)).map_err(|error| error.context(&dir.path))?;
        found.extend(listed.into_iter().map(|tablet| (tablet, dir.clone())));
    }
    found.sort_by_key(|(tablet, _)| *tablet);
    Ok(found)
}

/// Lists tablets as [`tablets`] does, only the wanted one if there is a wanted one; `NotFound` if no directory has it.
pub(super) fn wanted_tablets(
    server: &StoppedServer,
    wanted: Option<&str>,
) -> Result<Vec<(TabletId, Arc<Directory>)>> {
    let mut found = tablets(server)?;
    let Some(wanted) = wanted else { return Ok(found) };
    found.retain(|(tablet, _)| tablet.to_string().eq_ignore_ascii_case(wanted));
    if found.is_empty() { Err(no_superblock(wanted)) } else { Ok(found) }
}

fn no_superblock(tablet: impl fmt::Display) -> Error {
    Error::not_found(format!("tablet {tablet}: no superblock in these directories"))
}

/// Returns the tablet that the command line names, and its directory.
pub(super) fn named_tablet(
    server: &StoppedServer,
    matches: &ArgMatches,
) -> Result<(TabletId, Arc<Directory>)> {
    let id = TabletId::parse(text(matches, "tablet").unwrap_or_default().as_bytes())?;
    let found = directory_of(server, id)?.map(|dir| (id, dir));
    found.ok_or_else(|| no_superblock(id))
}

/// Returns the data directory that has a tablet's superblock, readable or not; `Invalid` if several have one.
pub(super) fn directory_of(server: &StoppedServer, id: TabletId) -> Result<Option<Arc<Directory>>> {
    let mut homes = tablets(server)?.into_iter().filter(|(tablet, _)| *tablet == id).map(|(_, dir)| dir);
    match (homes.next(), homes.next()) {
        (Some(first), Some(second)) => Err(Error::invalid(format!(
            "tablet {id}: both {} and {} have a superblock, and one of them is old; name one in --fs-data-dirs",
            first.path, second.path
        ))),
        (home, _) => Ok(home),
    }
}

/// Opens a replica and its log over views: recovery happens in memory.
pub(super) fn open_replica(
    env: &Env,
    server: &StoppedServer,
    dir: &Directory,
    tablet: TabletId,
) -> Result<(Replica, Wal)> {
    let setup = ReplicaSetup {
        me: Peer::voter(server.uuid, "127.0.0.1", 0),
        options: RaftOptions::default(),
        seed: env.rng.next_u64(),
    };
    let (wal, data) = (view(&server.wal), view(dir));
    // Cells and keys that were written may have any size.
    let config =
        TabletConfig { cell_bytes_max: usize::MAX, key_bytes_max: usize::MAX, ..TabletConfig::default() };
    let cache = PageCache::new(CACHE_BYTES);
    let (replica, log, _) = Replica::open(wal, data, tablet, setup, config, cache)?;
    Ok((replica, log))
}

/// Returns true for an error that means "no such file".
pub(super) fn is_missing(error: &Error) -> bool {
    error.kind == ErrorKind::NotFound
}
