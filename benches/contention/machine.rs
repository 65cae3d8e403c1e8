//! Cores of this machine: those that this process may use, and the time that they were busy.

use std::fs;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Done;

/// Time of a core in a field of `/proc/stat`, in ticks of 10 ms.
const TICKS_PER_SECOND: f64 = 100.0;

/// Returns the numbers of the cores that this process may use.
pub(crate) fn allowed_cores() -> Done<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect())
}

/// Limits this thread, and the threads and processes that it starts, to the first `count` of its cores.
pub(crate) fn use_cores(count: usize) -> Done<Vec<usize>> {
    let mut cores = allowed_cores()?;
    cores.truncate(count);
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    sched_setaffinity(None, &set)?;
    Ok(cores)
}

/// Time for which some cores were busy, from its creation on.
pub(crate) struct BusyCores<'a> {
    cores: &'a [usize],
    began: Instant,
    busy: f64,
}

impl BusyCores<'_> {
    pub(crate) fn begin(cores: &[usize]) -> BusyCores<'_> {
        BusyCores { cores, began: Instant::now(), busy: busy_seconds(cores) }
    }

    /// Returns the mean number of busy cores.
    pub(crate) fn count(&self) -> f64 {
        (busy_seconds(self.cores) - self.busy) / self.began.elapsed().as_secs_f64()
    }
}

fn busy_seconds(cores: &[usize]) -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let busy = |core: &usize| text.lines().find_map(|line| line.strip_prefix(&format!("cpu{core} ")));
    cores.iter().filter_map(busy).map(busy_ticks).sum::<f64>() / TICKS_PER_SECOND
}

/// Returns the busy ticks of a line: user, nice, system, (idle, waiting,) interrupts, soft interrupts, stolen.
fn busy_ticks(line: &str) -> f64 {
    let fields: Vec<f64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    [0, 1, 2, 5, 6, 7].iter().filter_map(|at| fields.get(*at)).sum()
}

/// Returns the words of a page about this machine and its load.
pub(crate) fn description(seconds: f64) -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("a processor without a name", |(_, name)| name);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("unknown").to_string();
    let cores = allowed_cores().map_or(0, |cores| cores.len());
    let date = std::process::Command::new("date").arg("+%-d %B %Y").output();
    let date =
        date.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_string());
    format!(
        "Measured on {date} on {cores} cores of {model}, {seconds} s for each operation; the load average at the end \
         was {load}, of which about {cores} are the measured processes' own."
    )
}
