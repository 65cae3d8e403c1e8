//! Free space of a server's directories: the reserves that keep a full device from failing replicas.
//!
//! ```text
//!   free   ├───────── plenty ─────────┤ reserve ├── no new replicas, no client writes, leaders move away ──┤
//!                                                               reserve / 4 ├── no entries of leaders ─────┤ 0
//! ```
//!
//! Scans, elections, flushes, compactions and log GC continue at any level. A write that meets a full device in spite
//! of the reserve waits for space (`log_writer.rs`). All of it ends by itself when space returns.
//!
//! Source: Kudu's `fs_wal_dir_reserved_bytes` and `fs_data_dirs_reserved_bytes`.

use engine::sync::{Mutex, MutexGuard};
use std::sync::Arc;

use engine::disk::DiskSpace;
use engine::error::{Error, Result};

use crate::dirs::{Directory, ServerDirs};

/// Bytes that a server keeps free in a directory's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpaceReserve {
    /// One percent of the device.
    OnePercent,
    Bytes(u64),
}

impl SpaceReserve {
    /// Parses a flag: bytes, or -1 for one percent.
    pub fn parse(text: &str) -> Result<SpaceReserve> {
        match text.parse::<i64>() {
            Ok(-1) => Ok(SpaceReserve::OnePercent),
            Ok(bytes) if bytes >= 0 => Ok(SpaceReserve::Bytes(bytes as u64)),
            _ => Err(Error::invalid(format!(
                "neither a number of bytes nor -1 (given {text:?}, -1 is 1 percent)"
            ))),
        }
    }

    fn bytes(self, total: u64) -> u64 {
        match self {
            SpaceReserve::OnePercent => total / 100,
            SpaceReserve::Bytes(bytes) => bytes,
        }
    }
}

/// Reserves of a server's directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceReserves {
    pub wal: SpaceReserve,
    pub data: SpaceReserve,
}

impl Default for SpaceReserves {
    fn default() -> SpaceReserves {
        SpaceReserves { wal: SpaceReserve::OnePercent, data: SpaceReserve::OnePercent }
    }
}

/// Free space of a directory against its reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpaceLevel {
    Plenty,
    /// Below the reserve.
    Short,
    /// Below a quarter of the reserve.
    Critical,
}

/// Space of one directory as of the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectorySpace {
    pub free: u64,
    pub total: u64,
    pub device: Option<u64>,
    pub reserved: u64,
    pub level: SpaceLevel,
}

/// Divisor of the reserve above it at which a short directory has plenty again.
const RETURN_DIVISOR: u64 = 10;
/// Divisor of the reserve below which space is critical.
const CRITICAL_DIVISOR: u64 = 4;

impl DirectorySpace {
    /// Returns the next state, given the previous one: a directory at its reserve must not change level all the time.
    fn next(before: Option<DirectorySpace>, found: DiskSpace, reserve: SpaceReserve) -> DirectorySpace {
        let reserved = reserve.bytes(found.total);
        let was_short = before.is_some_and(|before| before.level > SpaceLevel::Plenty);
        let wanted = if was_short { reserved.saturating_add(reserved / RETURN_DIVISOR) } else { reserved };
        let level = match found.free {
            free if free < reserved / CRITICAL_DIVISOR => SpaceLevel::Critical,
            free if free < wanted => SpaceLevel::Short,
            _ => SpaceLevel::Plenty,
        };
        DirectorySpace { free: found.free, total: found.total, device: found.device, reserved, level }
    }
}

/// Bytes that a tablet copy has yet to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyBytes {
    /// Path of the data directory, which gets the files.
    pub data_dir: String,
    pub files: u64,
    /// Bytes of the log, which is in the WAL directory.
    pub log: u64,
}

impl CopyBytes {
    fn bytes_in(&self, watched: &WatchedDirectory) -> u64 {
        match watched.is_wal {
            true => self.log,
            false if watched.dir.path == self.data_dir => self.files,
            false => 0,
        }
    }
}

struct WatchedDirectory {
    dir: Arc<Directory>,
    reserve: SpaceReserve,
    is_wal: bool,
    space: Option<DirectorySpace>,
}

/// Free space of all directories of a server, as of the last [`SpaceWatch::refresh`].
pub struct SpaceWatch {
    watched: Mutex<Vec<WatchedDirectory>>,
}

impl SpaceWatch {
    pub fn new(dirs: &ServerDirs, reserves: SpaceReserves) -> SpaceWatch {
        let watch = |dir: &Arc<Directory>, reserve, is_wal| WatchedDirectory {
            dir: dir.clone(),
            reserve,
            is_wal,
            space: None,
        };
        let wal = [watch(&dirs.wal, reserves.wal, true)];
        let data = dirs.data.iter().map(|dir| watch(dir, reserves.data, false));
        SpaceWatch { watched: Mutex::new(wal.into_iter().chain(data).collect()) }
    }

    fn watched(&self) -> MutexGuard<'_, Vec<WatchedDirectory>> {
        self.watched.lock()
    }

    /// Asks every device for its free space, and logs changes of level. Does disk work.
    pub fn refresh(&self) {
        let dirs: Vec<_> = self.watched().iter().map(|watched| watched.dir.clone()).collect();
        // Without the lock: a device may not answer for long.
        let found: Vec<_> = dirs.iter().map(|dir| dir.disk.space()).collect();
        for (watched, found) in self.watched().iter_mut().zip(found) {
            match found {
                Ok(found) => watched.set(found),
                Err(error) => tracing::warn!(dir = watched.dir.path, %error, "the free space is unknown"),
            }
        }
    }

    /// Returns the space of each directory by path, the WAL directory first.
    pub fn all(&self) -> Vec<(String, DirectorySpace)> {
        let known = |watched: &WatchedDirectory| Some((watched.dir.path.clone(), watched.space?));
        self.watched().iter().filter_map(known).collect()
    }

    /// Returns the reason if clients may not write to tablets with data in `data_dir`.
    pub fn refuse_writes(&self, data_dir: &str) -> Option<String> {
        self.refuse(SpaceLevel::Short, |watched| watched.is_wal || watched.dir.path == data_dir)
    }

    /// Returns the reason if no entries of a leader may be appended for a tablet with data in `data_dir`.
    pub fn refuse_entries(&self, data_dir: &str) -> Option<String> {
        self.refuse(SpaceLevel::Critical, |watched| watched.is_wal || watched.dir.path == data_dir)
    }

    /// Returns the reason if the server has no space for another replica.
    pub fn refuse_replicas(&self) -> Option<String> {
        let short = |watched: &WatchedDirectory| watched.level() >= SpaceLevel::Short;
        let all_data_short = self.watched().iter().filter(|watched| !watched.is_wal).all(short);
        self.refuse(SpaceLevel::Short, |watched| watched.is_wal || all_data_short)
    }

    /// Returns true if the WAL directory has too little space.
    pub fn is_wal_short(&self) -> bool {
        self.refuse(SpaceLevel::Short, |watched| watched.is_wal).is_some()
    }

    /// Returns true if a data directory has plenty of space.
    pub fn has_plenty(&self, data_dir: &str) -> bool {
        self.refuse(SpaceLevel::Short, |watched| !watched.is_wal && watched.dir.path == data_dir).is_none()
    }

    /// Returns the reason if a copy does not fit above the reserves of its directories, beside what the running copies
    /// have yet to write there.
    pub fn refuse_copy(&self, copy: &CopyBytes, running: &[CopyBytes]) -> Option<String> {
        let watched = self.watched();
        let used = watched.iter().filter(|watched| watched.is_wal || watched.dir.path == copy.data_dir);
        used.filter_map(|at| Some((at, at.space?))).find_map(|(at, space)| {
            let shared = watched.iter().filter(|other| other.may_share_device(at));
            let all = || running.iter().chain([copy]);
            let needed: u64 = shared.map(|dir| all().map(|copy| copy.bytes_in(dir)).sum::<u64>()).sum();
            let left = space.free.saturating_sub(space.reserved);
            let path = &at.dir.path;
            (needed > left).then(|| {
                format!(
                    "the copy does not fit ({needed} bytes with those of running copies, {left} above the reserve of \
                     {path})"
                )
            })
        })
    }

    /// Returns the interval to the next look: short while a directory may fill in between.
    pub fn refresh_interval(&self) -> std::time::Duration {
        let near = |watched: &WatchedDirectory| {
            watched.space.is_none_or(|space| space.free / NEAR_FACTOR < space.reserved.max(NEAR_BYTES_MIN))
        };
        if self.watched().iter().any(near) { REFRESH_INTERVAL_NEAR } else { REFRESH_INTERVAL }
    }

    fn refuse(&self, at: SpaceLevel, concerns: impl Fn(&WatchedDirectory) -> bool) -> Option<String> {
        let watched = self.watched();
        let full = watched.iter().find(|watched| concerns(watched) && watched.level() >= at)?;
        let (space, kind) = (full.space?, if full.is_wal { "WAL" } else { "data" });
        Some(format!(
            "the {kind} directory {} has too little space ({} bytes free, {} reserved); free some or add some",
            full.dir.path, space.free, space.reserved
        ))
    }
}

/// A device with less free space than this many reserves is looked at more often.
const NEAR_FACTOR: u64 = 10;
const NEAR_BYTES_MIN: u64 = 64 << 20;
const REFRESH_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);
const REFRESH_INTERVAL_NEAR: std::time::Duration = std::time::Duration::from_millis(100);

impl WatchedDirectory {
    /// Returns true if two directories may be on one device: by its number, or else by its size.
    fn may_share_device(&self, other: &WatchedDirectory) -> bool {
        let device = |watched: &WatchedDirectory| watched.space.map(|space| (space.device, space.total));
        let is_same = match (device(self), device(other)) {
            (Some((Some(own), _)), Some((Some(others), _))) => own == others,
            (own, others) => own.map(|(_, total)| total) == others.map(|(_, total)| total),
        };
        self.dir.path == other.dir.path || is_same
    }

    fn level(&self) -> SpaceLevel {
        self.space.map_or(SpaceLevel::Plenty, |space| space.level)
    }

    fn set(&mut self, found: DiskSpace) {
        let (before, now) = (self.level(), DirectorySpace::next(self.space, found, self.reserve));
        self.space = Some(now);
        let (dir, free, reserved) = (self.dir.path.as_str(), now.free, now.reserved);
        match (before, now.level) {
            (before, now) if before == now => {}
            (_, SpaceLevel::Plenty) => tracing::info!(dir, free, reserved, "there is space again"),
            (_, SpaceLevel::Short) => {
                tracing::warn!(
                    dir,
                    free,
                    reserved,
                    "too little space: writes are refused, leaders move away"
                );
            }
            (_, SpaceLevel::Critical) => {
                tracing::error!(dir, free, reserved, "hardly any space: leaders' entries are refused too");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SpaceLevel::*;

    #[test]
    fn reserves_are_bytes_or_one_percent() {
        assert_eq!(SpaceReserve::parse("-1").unwrap().bytes(5_000), 50);
        assert_eq!(SpaceReserve::parse("7").unwrap().bytes(5_000), 7);
        for bad in ["-2", "", "1k", "1.5"] {
            assert!(SpaceReserve::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn levels_follow_free_space_and_return_above_the_reserve() {
        let mut space = None;
        let mut level = |free| {
            let next = DirectorySpace::next(
                space,
                DiskSpace { total: 10_000, free, device: None },
                SpaceReserve::OnePercent,
            );
            space = Some(next);
            next.level
        };
        let free = [5_000, 100, 99, 25, 24, 60, 100, 109, 110, 100, 99];
        let expected = [Plenty, Plenty, Short, Short, Critical, Short, Short, Short, Plenty, Plenty, Short];
        assert_eq!(free.map(&mut level), expected);
    }

    #[test]
    fn nothing_reserved_is_never_short() {
        let found = DiskSpace { total: 10_000, free: 0, device: None };
        assert_eq!(DirectorySpace::next(None, found, SpaceReserve::Bytes(0)).level, Plenty);
    }
}
