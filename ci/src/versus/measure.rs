//! Costs of a run, read from `/proc`, from folders and from the tool's output.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::command::CommandLine;
use crate::interop::cluster::Cluster;

/// CPU time of the cluster's servers, master and tablet server together.
#[derive(Clone, Copy)]
pub(super) struct Cpu {
    seconds: f64,
}

impl Cpu {
    pub(super) fn of(cluster: &Cluster) -> Result<Cpu> {
        let mut ticks = 0;
        for pid in pids(cluster) {
            ticks += cpu_ticks(&fs::read_to_string(format!("/proc/{pid}/stat"))?, OWN)?;
        }
        Cpu::of_ticks(ticks)
    }

    /// Returns the CPU time of ended child programs.
    pub(super) fn of_ended() -> Result<Cpu> {
        Cpu::of_ticks(cpu_ticks(&fs::read_to_string("/proc/self/stat")?, ENDED_CHILDREN)?)
    }

    fn of_ticks(ticks: u64) -> Result<Cpu> {
        let ticks_per_second: f64 =
            CommandLine::new("getconf").args(["CLK_TCK"]).output()?.stdout.trim().parse()?;
        Ok(Cpu { seconds: ticks as f64 / ticks_per_second })
    }

    pub(super) fn since(self, before: Cpu) -> f64 {
        self.seconds - before.seconds
    }
}

/// Returns the processes of all servers.
pub(super) fn pids(cluster: &Cluster) -> impl Iterator<Item = u32> {
    cluster.masters.iter().chain(&cluster.tservers).filter_map(|daemon| daemon.pid())
}

/// Field of a process's utime in a stat line after the name, and of its children's. Each stime follows its utime.
const OWN: usize = 11;
const ENDED_CHILDREN: usize = 13;

/// Returns utime + stime of a `/proc/PID/stat` line, in clock ticks. The name before them may hold spaces and
/// brackets.
fn cpu_ticks(stat: &str, user: usize) -> Result<u64> {
    let after_name = stat.rsplit_once(')').context("a stat line without a name")?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let field = |at: usize| -> Result<u64> { Ok(fields.get(at).context("a short stat line")?.parse()?) };
    Ok(field(user)? + field(user + 1)?)
}

/// Returns the process of the first tablet server.
pub(super) fn tserver_pid(cluster: &Cluster) -> Result<u32> {
    cluster.tservers.first().and_then(|tserver| tserver.pid()).context("no tablet server runs")
}

/// Returns the peak memory of the tablet server.
pub(super) fn peak_rss_bytes(cluster: &Cluster) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", tserver_pid(cluster)?))?;
    Ok(number(&status, "VmHWM:")? << 10)
}

/// Returns the bytes that the tablet server wrote to devices.
pub(super) fn written_bytes(cluster: &Cluster) -> Result<u64> {
    number(&fs::read_to_string(format!("/proc/{}/io", tserver_pid(cluster)?))?, "write_bytes:")
}

/// Returns the number on the line with this label, without its unit.
fn number(text: &str, label: &str) -> Result<u64> {
    let rest =
        text.lines().find_map(|line| line.strip_prefix(label)).with_context(|| format!("no {label}"))?;
    Ok(rest.trim().trim_end_matches(" kB").parse()?)
}

/// Returns the disk space of the files under `dir`, with preallocated blocks.
pub(super) fn disk_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        // A server may remove a file concurrently.
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += if metadata.is_dir() { disk_bytes(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}

/// Returns the bytes of the files under `dir` that hold data: without preallocated blocks and holes.
pub(super) fn held_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        bytes += if path.is_dir() { held_bytes(&path)? } else { held_by_file(&path)? };
    }
    Ok(bytes)
}

fn held_by_file(path: &Path) -> Result<u64> {
    // A server may remove a file concurrently.
    let Ok(file) = fs::File::open(path) else { return Ok(0) };
    let (mut bytes, mut at) = (0, 0);
    loop {
        let data = match seek(&file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => return Ok(bytes),
            data => data.with_context(|| format!("where {} has data", path.display()))?,
        };
        at = seek(&file, SeekFrom::Hole(data))?;
        bytes += at - data;
    }
}

/// Result of a command of the tool.
#[derive(Debug, PartialEq)]
pub(super) struct Timed {
    pub rows: f64,
    pub seconds: f64,
}

impl Timed {
    /// Parses a load's `rows total:` and `time total: … ms`, or a scan's `Total count … cost … seconds`.
    pub(super) fn parse(output: &str) -> Result<Timed> {
        let after = |label: &str| output.lines().find_map(|line| line.trim().strip_prefix(label));
        if let Some(scan) = after("Total count ") {
            let words: Vec<&str> = scan.split_whitespace().collect();
            let [rows, "cost", seconds, "seconds"] = words[..] else {
                anyhow::bail!("a scan output {scan:?}")
            };
            return Ok(Timed { rows: rows.parse()?, seconds: seconds.parse()? });
        }
        let rows = after("rows total:").with_context(|| format!("no count of rows in {output:?}"))?;
        let time = after("time total:").with_context(|| format!("no time in {output:?}"))?;
        let milliseconds: f64 = time.trim().trim_end_matches(" ms").parse()?;
        Ok(Timed { rows: rows.trim().parse()?, seconds: milliseconds / 1e3 })
    }
}

/// Returns the table that a load created for itself.
pub(super) fn auto_table(output: &str) -> Option<String> {
    let line = output.lines().find_map(|line| line.strip_prefix("Using auto-created table '"))?;
    Some(line.trim_end_matches('\'').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_after_its_name() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 900 0 0 0 123 45 30 4 20 0 1 0 5 6 7";
        assert_eq!(cpu_ticks(stat, OWN).unwrap(), 168);
        assert_eq!(cpu_ticks(stat, ENDED_CHILDREN).unwrap(), 34);
        assert!(cpu_ticks("7 (x) S 1", OWN).is_err());
    }

    #[test]
    fn preallocated_blocks_and_holes_hold_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        let file = fs::File::create(dir.path().join("sub/file")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], 1 << 20).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 2 << 20, 1 << 20).unwrap();
        assert_eq!(held_bytes(dir.path()).unwrap(), 4096);
        assert!(disk_bytes(dir.path()).unwrap() >= (1 << 20) + 4096);
    }

    #[test]
    fn labelled_numbers_are_read() {
        assert_eq!(number("Name:\tx\nVmHWM:\t    2048 kB\n", "VmHWM:").unwrap(), 2048);
        assert_eq!(number("cancelled_write_bytes: 1\nwrite_bytes: 70\n", "write_bytes:").unwrap(), 70);
        assert!(number("", "VmHWM:").is_err());
    }

    #[test]
    fn the_tools_reports_are_read() {
        let load = "Using auto-created table 'default.loadgen_auto_1'\n\nINSERT report\n    rows total: 2000\n    \
                    time total: 16.5 ms\n  time per row: 0.008 ms\n";
        assert_eq!(Timed::parse(load).unwrap(), Timed { rows: 2000.0, seconds: 0.0165 });
        assert_eq!(auto_table(load).as_deref(), Some("default.loadgen_auto_1"));
        let scan = Timed::parse("Total count 300 cost 0.5 seconds\n").unwrap();
        assert_eq!(scan, Timed { rows: 300.0, seconds: 0.5 });
        assert!(Timed::parse("nothing").is_err());
    }
}
