//! Limit of the log lines of one kind in a second, for lines that peers cause. Pure.

use engine::sync::Mutex;
use engine::time::Instant;

/// Lines of one kind in a second. Further ones are left out.
const LINES_PER_SECOND_MAX: u64 = 10;

/// Lines of one kind in the current second.
#[derive(Debug, Default)]
pub(super) struct LineLimit(Mutex<LineCount>);

#[derive(Debug, Default)]
struct LineCount {
    /// Second of the last line, since the start of the clock.
    second: u64,
    lines: u64,
}

impl LineLimit {
    /// Counts a line. Returns true if it may be written.
    pub(super) fn admits(&self, now: Instant) -> bool {
        let second = now.0 / 1_000_000_000;
        let mut counted = self.0.lock();
        if counted.second != second {
            *counted = LineCount { second, lines: 0 };
        }
        counted.lines += 1;
        counted.lines <= LINES_PER_SECOND_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_has_its_own_lines() {
        let limit = LineLimit::default();
        let admitted =
            |seconds: u64| (0..100).filter(|_| limit.admits(Instant(seconds * 1_000_000_000))).count();
        assert_eq!([admitted(0), admitted(1), admitted(1), admitted(7)], [10, 10, 0, 10]);
    }
}
