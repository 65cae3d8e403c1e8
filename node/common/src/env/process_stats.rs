//! What the operating system counts for a process.

/// Counts of a process since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessStats {
    /// CPU time in milliseconds.
    pub user_ms: u64,
    pub system_ms: u64,
    pub threads: u64,
    pub resident_bytes: u64,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
    pub open_files: u64,
    pub open_files_max: u64,
}

/// Clock ticks a second in `/proc`; Linux has this value on every architecture that is supported here.
const TICKS_PER_SECOND: u64 = 100;

impl ProcessStats {
    /// Parses the texts of `/proc/self/stat`, `status` and `limits`; what is missing is 0.
    pub fn parse(stat: &str, status: &str, limits: &str, open_files: u64) -> ProcessStats {
        // The name of the program, in parentheses, may contain spaces.
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        let line = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        let limit = limit.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        ProcessStats {
            user_ms: ticks(11) * 1000 / TICKS_PER_SECOND,
            system_ms: ticks(12) * 1000 / TICKS_PER_SECOND,
            threads: line("Threads"),
            resident_bytes: line("VmRSS") * 1024,
            voluntary_switches: line("voluntary_ctxt_switches"),
            involuntary_switches: line("nonvoluntary_ctxt_switches"),
            open_files,
            open_files_max: limit.unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_of_proc_are_parsed() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 9 0 0 0 250 31 0 0 20 0 12 0 100 0 0";
        let status = "Name:\tnyala\nVmRSS:\t    2048 kB\nThreads:\t12\nvoluntary_ctxt_switches:\t5\n\
                      nonvoluntary_ctxt_switches:\t6\n";
        let limits = "Limit Soft Hard Units\nMax open files            1024                 4096   files\n";
        let expected = ProcessStats {
            user_ms: 2500,
            system_ms: 310,
            threads: 12,
            resident_bytes: 2 << 20,
            voluntary_switches: 5,
            involuntary_switches: 6,
            open_files: 9,
            open_files_max: 1024,
        };
        assert_eq!(ProcessStats::parse(stat, status, limits, 9), expected);
        assert_eq!(ProcessStats::parse("", "", "", 0), ProcessStats::default());
    }
}
