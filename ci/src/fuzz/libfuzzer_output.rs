//! libFuzzer's output: numbers of a search, and the crash input that ended it.

/// Returns a number of libFuzzer's final list.
pub(super) fn stat(log: &str, name: &str) -> Option<u64> {
    let line = log.lines().rev().find_map(|line| line.strip_prefix("stat::")?.strip_prefix(name))?;
    line.trim_start_matches(':').trim().parse().ok()
}

/// Returns the reached edges, from the last line that has them.
pub(super) fn coverage(log: &str) -> Option<u64> {
    let after = log.lines().rev().find_map(|line| line.split_once(" cov: "))?.1;
    after.split_whitespace().next()?.parse().ok()
}

/// Returns the file of the crash input.
pub(super) fn found(log: &str) -> Option<&str> {
    log.lines().rev().find_map(|line| line.split_once("Test unit written to ").map(|(_, file)| file.trim()))
}

/// Returns the panic's place and message, or the sanitizer's summary, which tell crashes apart.
pub(super) fn reason(log: &str) -> String {
    let mut lines = log.lines();
    let panicked = lines.by_ref().find(|line| line.contains(" panicked at "));
    if let Some(at) = panicked {
        let place = at.split_once(" panicked at ").map_or(at, |(_, place)| place);
        let message = lines.next().unwrap_or_default();
        return format!("{place} {message}");
    }
    let summary = log.lines().rev().find_map(|line| line.strip_prefix("SUMMARY: "));
    summary.unwrap_or("no reason given").to_string()
}

/// Returns the CPU ticks of ended children from `/proc/self/stat`: user and system time.
pub(super) fn children_ticks(stat: &str) -> Option<u64> {
    // The name may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(13);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
        #2\tINITED cov: 81 ft: 82 corp: 1/1b exec/s: 0 rss: 33Mb\n\
        #71\tNEW    cov: 90 ft: 95 corp: 2/4b lim: 4 exec/s: 0 rss: 33Mb L: 3/3 MS: 4 CrossOver-\n\
        #8191\tDONE   cov: 91 ft: 99 corp: 4/9b lim: 80 exec/s: 4095 rss: 34Mb\n\
        Done 8191 runs in 2 second(s)\n\
        stat::number_of_executed_units: 8191\n\
        stat::average_exec_per_sec:     4095\n\
        stat::new_units_added:          3\n\
        stat::slowest_unit_time_sec:    0\n";

    #[test]
    fn numbers_are_read() {
        assert_eq!(stat(LOG, "number_of_executed_units"), Some(8191));
        assert_eq!(stat(LOG, "average_exec_per_sec"), Some(4095));
        assert_eq!(stat(LOG, "new_units_added"), Some(3));
        assert_eq!(stat(LOG, "peak_rss_mb"), None);
        assert_eq!(coverage(LOG), Some(91));
        assert_eq!(found(LOG), None);
    }

    #[test]
    fn a_crash_and_its_reason_are_read() {
        let log = "thread '<unnamed>' (7) panicked at engine/src/schema/key/mod.rs:9:5:\n\
                   attempt to add with overflow\n\
                   SUMMARY: libFuzzer: deadly signal\n\
                   artifact_prefix='/t/key-'; Test unit written to /t/key-crash-1a2b\n\
                   Base64: AA==\n";
        assert_eq!(found(log), Some("/t/key-crash-1a2b"));
        assert_eq!(reason(log), "engine/src/schema/key/mod.rs:9:5: attempt to add with overflow");
        assert_eq!(reason("SUMMARY: libFuzzer: timeout\n"), "libFuzzer: timeout");
        assert_eq!(reason(""), "no reason given");
    }

    #[test]
    fn ticks_of_children_are_those_after_ones_own() {
        let stat = "7 (a) b)) S 1 7 7 0 -1 4194304 100 200 3 4 11 12 130 14 20 0 1 0 500 1000 10";
        assert_eq!(children_ticks(stat), Some(144));
        assert_eq!(children_ticks(""), None);
    }
}
