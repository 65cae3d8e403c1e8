//! What the operating system and the executor count for a process.

use std::time::Duration;

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

/// A thread of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadStats {
    pub id: u64,
    pub name: String,
    /// State as the kernel names it: `R` running, `S` sleeping, `D` waiting for a device.
    pub state: char,
    /// Function of the kernel in which the thread sleeps; empty if it runs or the kernel does not tell.
    pub waits_in: String,
    /// CPU time in milliseconds.
    pub user_ms: u64,
    pub system_ms: u64,
}

/// Work of the threads that run this process' tasks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkerStats {
    /// Time that each worker has spent in tasks since the start.
    pub busy: Vec<Duration>,
    /// Tasks that have not ended.
    pub tasks: u64,
    /// Tasks that are ready, and that no worker has taken.
    pub queued: u64,
}

impl ThreadStats {
    /// Parses the texts of `stat` and `wchan` in `/proc/self/task/ID`.
    pub fn parse(stat: &str, wchan: &str) -> Option<ThreadStats> {
        let (id, rest) = stat.split_once(" (")?;
        // The name of a thread may contain parentheses and spaces.
        let (name, rest) = rest.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(ThreadStats {
            id: id.parse().ok()?,
            name: name.to_owned(),
            state: fields.first()?.chars().next()?,
            // A thread that does not sleep has 0.
            waits_in: if wchan == "0" { String::new() } else { wchan.to_owned() },
            user_ms: ticks(11)? * 1000 / TICKS_PER_SECOND,
            system_ms: ticks(12)? * 1000 / TICKS_PER_SECOND,
        })
    }
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
        let thread = |waits_in: &str| ThreadStats {
            id: 7,
            name: "a) b".to_owned(),
            state: 'S',
            waits_in: waits_in.to_owned(),
            user_ms: 2500,
            system_ms: 310,
        };
        assert_eq!(ThreadStats::parse(stat, "futex_wait"), Some(thread("futex_wait")));
        assert_eq!(ThreadStats::parse(stat, "0"), Some(thread("")));
        assert_eq!(ThreadStats::parse("7 (cut", "0"), None);
    }
}
