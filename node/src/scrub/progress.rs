//! Progress of the scrubber, kept over restarts in the file `scrub` of the WAL directory.
//!
//! ```text
//!   scrub    codec::seal("NYSC", version, JSON of ScrubProgress)
//! ```
//!
//! Order of a pass: tablets by id, the files of each by path. So a position is the last file that was checked.

use std::io;
use std::time::Duration;

use engine::codec;
use engine::disk::{self, Disk};
use engine::error::{Error, Result};
use engine::format_level::StoredFormat;
use engine::ids::TabletId;
use serde::{Deserialize, Serialize};

/// Name of the file.
const FILE: &str = "scrub";
const MAGIC: [u8; 4] = *b"NYSC";
const VERSION: u16 = StoredFormat::ScrubProgress.only_version();
/// Findings of a pass that are kept.
const FINDINGS_MAX: usize = 100;

/// Consequence of damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FindingOutcome {
    /// The replica failed and is replaced from other servers.
    ReplicaFailed,
    /// The file was written again.
    Repaired,
    /// Nothing can replace the file now; an operator must act, unless the next pass finds that the replica can fail.
    Reported,
}

impl FindingOutcome {
    pub fn name(self) -> &'static str {
        match self {
            FindingOutcome::ReplicaFailed => "replica failed, to be replaced",
            FindingOutcome::Repaired => "repaired",
            FindingOutcome::Reported => "reported",
        }
    }
}

/// A damaged file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub tablet: Option<String>,
    /// Path with its directory.
    pub file: String,
    pub error: String,
    pub outcome: FindingOutcome,
    /// Wall time in microseconds.
    pub at: u64,
}

/// A pass that has ended. Times are wall time in microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishedPass {
    pub began: u64,
    pub ended: u64,
    pub files: u64,
    pub bytes: u64,
    pub findings: Vec<Finding>,
}

/// Progress of the running pass, and the result of the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubProgress {
    /// Wall time in microseconds of the begin of the running pass.
    pub began: Option<u64>,
    /// The last file checked: tablet and path.
    after: Option<(String, String)>,
    pub files: u64,
    pub bytes: u64,
    pub findings: Vec<Finding>,
    pub last: Option<FinishedPass>,
}

impl ScrubProgress {
    /// Returns the time until a pass is to run; `None` if one runs or is due. `interval` zero: never.
    pub(super) fn wait(&self, now: u64, interval: Duration) -> Option<Duration> {
        if interval.is_zero() {
            return Some(Duration::MAX);
        }
        let last = self.last.as_ref().filter(|_| self.began.is_none())?;
        // A clock that was set back must not put the next pass off.
        let since = Duration::from_micros(now.saturating_sub(last.began));
        let wait = interval.checked_sub(since)?;
        (!wait.is_zero() && now >= last.began).then_some(wait)
    }

    /// Begins a pass, unless one runs.
    pub(super) fn begin(&mut self, now: u64) {
        if self.began.is_none() {
            *self = ScrubProgress { began: Some(now), last: self.last.take(), ..ScrubProgress::default() };
        }
    }

    /// Ends the pass, and returns its result.
    pub(super) fn finish(&mut self, now: u64) -> FinishedPass {
        let ScrubProgress { began, files, bytes, findings, .. } = std::mem::take(self);
        let pass = FinishedPass { began: began.unwrap_or(now), ended: now, files, bytes, findings };
        self.last = Some(pass.clone());
        pass
    }

    /// Returns true if the pass is already behind a tablet.
    pub(super) fn has_left(&self, tablet: TabletId) -> bool {
        self.after.as_ref().is_some_and(|(left, _)| *left > tablet.to_string())
    }

    /// Returns true if the pass is already behind a file.
    pub(super) fn has_checked(&self, tablet: TabletId, path: &str) -> bool {
        let tablet = tablet.to_string();
        self.after.as_ref().is_some_and(|(left, file)| (left, file.as_str()) >= (&tablet, path))
    }

    pub(super) fn add_bytes(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    pub(super) fn checked(&mut self, tablet: TabletId, path: &str) {
        self.files += 1;
        self.after = Some((tablet.to_string(), path.to_string()));
    }

    pub(super) fn add_finding(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }

    /// Returns the findings of the running pass, and those of the last one that it has not confirmed or replaced yet.
    pub fn all_findings(&self) -> Vec<Finding> {
        let mut all = self.findings.clone();
        let older = self.last.iter().flat_map(|pass| &pass.findings);
        let is_new = |finding: &&Finding| !self.findings.iter().any(|known| known.file == finding.file);
        all.extend(older.filter(is_new).cloned());
        all
    }

    /// Reads what [`ScrubProgress::store`] wrote last; nothing if it never did.
    pub(super) fn load(wal: &dyn Disk) -> Result<ScrubProgress> {
        let bytes = match disk::read_file(wal, FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ScrubProgress::default()),
            read => read.map_err(|error| Error::io(format_args!("read {FILE}"), &error))?,
        };
        let (_, payload) = codec::unseal(MAGIC, VERSION, &bytes).map_err(|error| error.context(FILE))?;
        serde_json::from_slice(payload).map_err(|error| Error::corrupt(format!("{FILE}: {error}")))
    }

    /// Stores it durably.
    pub(super) fn store(&self, wal: &dyn Disk) -> Result<()> {
        let payload = serde_json::to_vec(self).expect("it has texts and numbers");
        let stored = disk::replace_file(wal, FILE, &codec::seal(MAGIC, VERSION, &payload));
        stored.map_err(|error| Error::io(format_args!("replace {FILE}"), &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::disk::mem::MemDisk;
    use engine::error::ErrorKind;
    use engine::ids::Uuid;

    const HOUR: Duration = Duration::from_secs(3600);
    const MICROS: u64 = 3_600_000_000;

    #[test]
    fn a_pass_is_due_an_interval_after_the_begin_of_the_last() {
        let mut progress = ScrubProgress::default();
        assert_eq!(progress.wait(MICROS, HOUR), None, "the first one is due at once");
        assert_eq!(progress.wait(MICROS, Duration::ZERO), Some(Duration::MAX), "switched off");
        progress.begin(MICROS);
        assert_eq!(progress.wait(MICROS, HOUR), None, "it runs");
        progress.finish(MICROS + 7);
        assert_eq!(progress.wait(MICROS + 7, HOUR), Some(HOUR - Duration::from_micros(7)));
        assert_eq!(progress.wait(2 * MICROS, HOUR), None);
        assert_eq!(progress.wait(0, HOUR), None, "the clock was set back");
    }

    #[test]
    fn a_restart_continues_after_the_last_file() {
        let (disk, tablet) = (MemDisk::new(1), |number| Uuid([number; 16]));
        let mut progress = ScrubProgress::load(&disk).unwrap();
        assert_eq!(progress, ScrubProgress::default());
        progress.begin(5);
        progress.add_bytes(9);
        progress.checked(tablet(2), "data/b");
        progress.store(&disk).unwrap();
        disk.crash();
        let mut again = ScrubProgress::load(&disk).unwrap();
        assert_eq!(again, progress);
        again.begin(6);
        assert_eq!((again.began, again.files, again.bytes), (Some(5), 1, 9));
        assert!(again.has_left(tablet(1)) && !again.has_left(tablet(2)));
        let checked = |number, path| again.has_checked(tablet(number), path);
        assert!(checked(2, "data/a") && checked(2, "data/b") && checked(1, "wals/z"));
        assert!(!checked(2, "data/c") && !checked(3, "data/a"));
    }

    #[test]
    fn a_damaged_record_is_refused() {
        let disk = MemDisk::new(1);
        ScrubProgress::default().store(&disk).unwrap();
        disk.flip_bit(FILE, 20).unwrap();
        assert_eq!(ScrubProgress::load(&disk).unwrap_err().kind, ErrorKind::Corrupt);
    }

    #[test]
    fn findings_of_the_last_pass_stay_until_the_next_one_has_ended() {
        let finding = |file: &str, at| {
            let (error, outcome) = ("bit rot".to_string(), FindingOutcome::Reported);
            Finding { tablet: None, file: file.to_string(), error, outcome, at }
        };
        let mut progress = ScrubProgress::default();
        progress.begin(1);
        progress.add_finding(finding("a", 1));
        progress.add_finding(finding("b", 1));
        progress.finish(2);
        progress.begin(3);
        progress.add_finding(finding("b", 3));
        assert_eq!(progress.all_findings(), [finding("b", 3), finding("a", 1)]);
        progress.finish(4);
        assert_eq!(progress.all_findings(), [finding("b", 3)]);
    }
}
