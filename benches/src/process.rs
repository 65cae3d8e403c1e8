//! Resources of a process, from the kernel. Zero if the process is gone or the kernel does not report them.

use std::fs;
use std::time::Duration;

/// A process, by its name under `/proc`.
pub struct ProcessStats(String);

impl ProcessStats {
    /// Returns this process.
    pub fn own() -> ProcessStats {
        ProcessStats("self".to_string())
    }

    pub fn of(pid: u32) -> ProcessStats {
        ProcessStats(pid.to_string())
    }

    /// Returns the bytes that it wrote to devices.
    pub fn written_bytes(&self) -> u64 {
        field(&self.read("io"), "write_bytes:")
    }

    /// Returns its resident memory.
    pub fn resident_bytes(&self) -> u64 {
        field(&self.read("status"), "VmRSS:") << 10
    }

    /// Returns its CPU time, in ticks of 10 ms.
    pub fn cpu(&self) -> Duration {
        let stat = self.read("stat");
        // The name may hold anything but ends at the last bracket; user and system time are the 12th and 13th field
        // after it.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
        Duration::from_millis(fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.0)).unwrap_or_default()
    }
}

/// Returns the number after a label at the start of a line; a unit may follow it.
fn field(text: &str, label: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(label));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_with_and_without_a_unit() {
        assert_eq!(field("wchar: 7\nwrite_bytes: 4096\n", "write_bytes:"), 4096);
        assert_eq!(field("VmHWM:\t  9 kB\nVmRSS:\t  12 kB\n", "VmRSS:"), 12);
        assert_eq!(field("", "VmRSS:"), 0);
    }
}
