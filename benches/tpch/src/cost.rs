//! Cost of a request: time, CPU and peak memory of this process.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Start of a request.
pub(crate) struct Began {
    at: Instant,
    cpu: Duration,
}

/// Cost of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cost {
    pub(crate) seconds: f64,
    pub(crate) cpu: f64,
    pub(crate) peak_rss: u64,
}

impl Began {
    /// Starts to measure: the peak of memory starts from the current use.
    pub(crate) fn now() -> io::Result<Began> {
        fs::write("/proc/self/clear_refs", "5")?;
        Ok(Began { at: Instant::now(), cpu: cpu_time() })
    }

    pub(crate) fn cost(self) -> io::Result<Cost> {
        let seconds = self.at.elapsed().as_secs_f64();
        Ok(Cost { seconds, cpu: (cpu_time() - self.cpu).as_secs_f64(), peak_rss: peak_rss()? })
    }
}

/// Returns the CPU time of all threads of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn peak_rss() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_costs_time_cpu_and_memory() {
        let began = Began::now().expect("Linux");
        let mut sum = 0u64;
        while began.at.elapsed() < Duration::from_millis(30) {
            sum = std::hint::black_box(sum + 1);
        }
        let cost = began.cost().expect("Linux");
        assert!(cost.seconds >= 0.03 && cost.cpu > 0.0 && cost.peak_rss > 0, "{cost:?}");
    }
}
