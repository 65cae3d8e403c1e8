//! O10: logs stay bounded. Log GC deletes what was flushed and what every replica has.
//!
//! Segments are numbered from 1, so the name of the newest shows the length of the log without GC. Only tablets with
//! tiny limits write enough in a run; theirs have a segment for every KiB.

use super::Violation;
use sim_plan::EngineLimits;

const NAME: &str = "log retention";

/// Segments that a tiny tablet may retain when no client writes: those of the last operations, each of which may fill
/// one; those retained for lagging replicas; those below the size at which GC begins.
const SEGMENTS_MAX: usize = 64 + 32 + 8;
/// Margin for segments begun since the last maintenance pass.
const SEGMENTS_MARGIN: usize = 8;

/// The log of one tablet on one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogExtent {
    pub server: String,
    pub tablet: String,
    /// Names of its files.
    pub files: Vec<String>,
}

/// Reports logs that retain too much.
pub fn check(limits: EngineLimits, logs: &[LogExtent]) -> Vec<Violation> {
    if limits != EngineLimits::Tiny {
        return Vec::new();
    }
    logs.iter().filter_map(check_one).collect()
}

fn check_one(log: &LogExtent) -> Option<Violation> {
    let number = |name: &String| name.strip_suffix(".wal")?.parse::<u64>().ok();
    let mut segments: Vec<u64> = log.files.iter().filter_map(number).collect();
    segments.sort_unstable();
    let (oldest, newest) = (segments.first()?, segments.last()?);
    let most = SEGMENTS_MAX + SEGMENTS_MARGIN;
    (segments.len() > most).then(|| {
        let (server, tablet, retained) = (&log.server, &log.tablet, segments.len());
        let message = format!(
            "{server} keeps {retained} segments of the log of tablet {tablet}, {oldest} to {newest} (limit {most})"
        );
        Violation::new(NAME, message)
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
            LogExtent { server: "t0".to_string(), tablet: "a".to_string(), files }
        };
        let found = |limits, log| check(limits, &[log]).len();
        assert_eq!(found(EngineLimits::Tiny, log(400, 480)), 0);
        assert_eq!(found(EngineLimits::Tiny, log(1, 480)), 1);
        assert_eq!(found(EngineLimits::Normal, log(1, 480)), 0, "a segment holds the whole run");
    }
}
