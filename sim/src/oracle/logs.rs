//! O10: a log does not grow for ever. What was flushed and what every replica has is cut off it.
//!
//! Segments are numbered from 1, so the name of the newest tells how long the log would be had nothing been cut. Only
//! tablets with tiny limits write enough in a run; theirs have a segment for every KiB.

use super::Finding;
use crate::plan::Limits;

const NAME: &str = "logs";

/// Segments that a tiny tablet may keep once nobody writes: those of the last operations, of which each may fill one;
/// those spared for replicas that lag; those below the size at which one begins to cut.
const KEPT_MAX: usize = 64 + 32 + 8;
/// Room for those that were begun since maintenance looked last.
const ROOM: usize = 8;

/// The log of one tablet on one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub server: String,
    pub tablet: String,
    /// Names of its files.
    pub files: Vec<String>,
}

/// Who keeps too much.
pub fn check(limits: Limits, logs: &[Kept]) -> Vec<Finding> {
    if limits != Limits::Tiny {
        return Vec::new();
    }
    logs.iter().filter_map(check_one).collect()
}

fn check_one(log: &Kept) -> Option<Finding> {
    let number = |name: &String| name.strip_suffix(".wal")?.parse::<u64>().ok();
    let mut segments: Vec<u64> = log.files.iter().filter_map(number).collect();
    segments.sort_unstable();
    let (oldest, newest) = (segments.first()?, segments.last()?);
    let most = KEPT_MAX + ROOM;
    (segments.len() > most).then(|| {
        let (server, tablet, kept) = (&log.server, &log.tablet, segments.len());
        let message = format!(
            "{server} keeps {kept} segments of the log of tablet {tablet}, {oldest} to {newest}; {most} are explained"
        );
        Finding::new(NAME, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_never_cut_is_noticed() {
        let log = |from: u64, to: u64| {
            let files = (from..=to).map(|number| format!("{number:010}.wal"));
            let others = ["truncations".to_string(), "0000000001.wal.tmp".to_string()];
            let files = files.chain(others).collect();
            Kept { server: "t0".to_string(), tablet: "a".to_string(), files }
        };
        let found = |limits, log| check(limits, &[log]).len();
        assert_eq!(found(Limits::Tiny, log(400, 480)), 0);
        assert_eq!(found(Limits::Tiny, log(1, 480)), 1);
        assert_eq!(found(Limits::Normal, log(1, 480)), 0, "a segment holds the whole run");
    }
}
