//! Rot of a stored file, which the scrubber must find. It is the end of a trial, as the replica may fail by it.
//!
//! ```text
//!   a start with a scrubber ──► a pass: all is sound ──► rot ──► a kill within a pass, or none ──► two passes
//!                                      the replica has failed, or the check "scrub" names the file ◄───┘
//! ```
//!
//! The tablet has one replica, which no other one can replace. So the scrubber reports what it finds, and the replica
//! fails only if it does not open.
//!
//! - A file that is gone or written again by then is left out: jobs replace files of rows and superblocks, and log GC
//!   removes segments.
//! - The second pass begins after the rot, whatever the first one had checked before.

use std::time::Duration;

use engine::disk::mem::MemDisk;
use engine::disk::read_file;
use engine::replica::wal_dir;
use engine::tablet::superblock::Superblock;
use node::scrub::ScrubConfig;
use node::tserver::TserverConfig;

use super::{HostedTrial, SERVER, TABLET};
use crate::cluster;
use crate::oracle::readiness::ServerCheck;
use crate::server_files::{CONSENSUS, superblocks};
use crate::trials::fleet::host;
use crate::trials::rot;

/// Percentage of hosted trials with this end, and of these with a kill.
const SCRUBBED_PERCENT: u64 = 50;
const KILLED_PERCENT: u64 = 50;
/// A pass takes some hundred milliseconds at this rate, so that a kill meets one.
const SCRUB: ScrubConfig = ScrubConfig { interval: Duration::from_secs(1), bytes_per_second: 64 << 10 };
/// Looks at whether passes have ended, and the time before each. Other work delays each step of a pass by ten seconds
/// at most, and a quiet server has none.
const PASS_LOOKS: u32 = 60;
const PASS_LOOK: Duration = Duration::from_secs(1);
/// Looks at whether a pass has begun, and the time before each; most time until the kill then, in milliseconds.
const BEGIN_LOOKS: u32 = 100;
const BEGIN_LOOK: Duration = Duration::from_millis(20);
const KILL_MILLIS: u64 = 400;
/// Mark of a finished pass, name of the scrubber's check, and its word if no damage waits for an operator.
const FINISHED: &str = "scrub: pass finished";
const CHECK: &str = "scrub";
const OK: &str = "ok";

/// A kind of stored file of a tablet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TabletFileKind {
    Superblock,
    ConsensusMeta,
    Rows,
    LogSegment,
}

const KINDS: [TabletFileKind; 4] = [
    TabletFileKind::Superblock,
    TabletFileKind::ConsensusMeta,
    TabletFileKind::Rows,
    TabletFileKind::LogSegment,
];

impl TabletFileKind {
    /// Returns the files of this kind that are durable as a whole.
    fn files(self, [wal, data]: &[MemDisk; 2]) -> Vec<String> {
        match self {
            TabletFileKind::Superblock => vec![Superblock::path(TABLET)],
            TabletFileKind::ConsensusMeta => vec![format!("{CONSENSUS}/{TABLET}")],
            TabletFileKind::Rows => {
                let metas = superblocks(data);
                let rowsets = metas.iter().flat_map(|meta| &meta.rowsets);
                rowsets.flat_map(|rowset| rowset.files()).map(str::to_string).collect()
            }
            TabletFileKind::LogSegment => rot::whole_files(wal, &wal_dir(TABLET)),
        }
    }

    fn is_in_log(self) -> bool {
        self == TabletFileKind::LogSegment
    }
}

/// A file of which a bit has changed, and its bytes since.
pub(super) struct RottenFile {
    kind: TabletFileKind,
    path: String,
    bytes: Vec<u8>,
}

impl HostedTrial {
    /// Lets the scrubber read sound files, and then a rotten one.
    pub(super) fn check_scrubber(&mut self) {
        if !self.random.percent(SCRUBBED_PERCENT) {
            return;
        }
        let plain = cluster::tserver_config(&self.fleet.plan, host(SERVER));
        if let Some(error) = self.fleet.reboot(SERVER, TserverConfig { scrub: SCRUB, ..plain }) {
            return self.fleet.report(format!("the server does not start with a scrubber: {error}"));
        }
        self.finish_passes(1);
        if let Some(check) = self.scrub_check().filter(|check| check.word != OK) {
            return self.fleet.report(format!("sound files, and the scrubber's check is {check:?}"));
        }
        let kind = self.random.pick(&KINDS);
        let Some(rotten) = self.damage(kind) else { return };
        if self.random.percent(KILLED_PERCENT) {
            self.kill_within_pass();
        }
        self.finish_passes(2);
        self.check_rot(&rotten);
    }

    /// Changes a bit of one of the tablet's files of a kind, if there is one.
    pub(super) fn damage(&mut self, kind: TabletFileKind) -> Option<RottenFile> {
        let disks = self.disks();
        // Of copies of the disks: reading counts as an operation.
        let files = kind.files(&disks.each_ref().map(MemDisk::image));
        let [wal, data] = &disks;
        let disk = if kind.is_in_log() { wal } else { data };
        let path = rot::damage(&mut self.random, disk, &files)?;
        let bytes = read_file(&disk.image(), &path).ok()?;
        Some(RottenFile { kind, path, bytes })
    }

    /// Reports rot of a file that the tablet still has, if neither its replica has failed nor the scrubber's check
    /// names the file.
    pub(super) fn check_rot(&mut self, rotten: &RottenFile) {
        if !self.fleet.up[SERVER] {
            return;
        }
        let (path, check) = (&rotten.path, self.scrub_check());
        let entry = self.fleet.entry(SERVER, TABLET);
        let has_failed = entry.is_some_and(|entry| entry.failure().is_some());
        let is_named = check.as_ref().is_some_and(|check| check.word != OK && check.text.contains(path));
        let outcome = match (has_failed, is_named) {
            (true, _) => "the replica has failed",
            (false, true) => "the scrubber's check names it",
            (false, false) if self.has_file(rotten) => {
                return self.fleet.report(format!("rot of {path} is not found, and the check is {check:?}"));
            }
            (false, false) => "the file is gone",
        };
        self.fleet.note(format!("rot of {path}: {outcome}"));
    }

    /// Returns true if the tablet has a file as rot has left it.
    fn has_file(&mut self, rotten: &RottenFile) -> bool {
        let images = self.disks().each_ref().map(MemDisk::image);
        let is_own = rotten.kind.files(&images).contains(&rotten.path);
        let [wal, data] = &images;
        let disk = if rotten.kind.is_in_log() { wal } else { data };
        is_own && read_file(disk, &rotten.path).is_ok_and(|bytes| bytes == rotten.bytes)
    }

    /// Lets time pass until the scrubber has finished more passes, which it must.
    fn finish_passes(&mut self, passes: u64) {
        let wanted = self.fleet.observer.mark_count(FINISHED) + passes;
        for _ in 0..PASS_LOOKS {
            self.fleet.pass(PASS_LOOK);
            if self.fleet.observer.mark_count(FINISHED) >= wanted {
                return;
            }
        }
        let time = PASS_LOOK * PASS_LOOKS;
        self.fleet.report(format!("the scrubber does not finish {passes} passes within {time:?}"));
    }

    /// Kills the server, within a pass of the scrubber if one begins in time, and starts it again.
    fn kill_within_pass(&mut self) {
        for _ in 0..BEGIN_LOOKS {
            if self.is_scrubbing() {
                break;
            }
            self.fleet.pass(BEGIN_LOOK);
        }
        let millis = self.random.below(KILL_MILLIS);
        self.fleet.pass(Duration::from_millis(millis));
        let within = self.is_scrubbing();
        self.fleet.note(format!("the server is killed, within a pass: {within}"));
        self.fleet.kill(SERVER);
        self.fleet.restart(SERVER);
    }

    fn is_scrubbing(&self) -> bool {
        let scrubber = self.fleet.running(SERVER).and_then(|server| server.scrubber.clone());
        scrubber.is_some_and(|scrubber| scrubber.progress().began.is_some())
    }

    fn scrub_check(&self) -> Option<ServerCheck> {
        let checks = self.fleet.observer.running().health.checks();
        checks.into_iter().find(|check| check.name == CHECK)
    }
}
