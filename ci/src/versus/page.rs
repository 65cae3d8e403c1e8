//! Samples to a table of medians and spreads.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::command::Run;

const PAGE: &str = "benches/VERSUS.md";

/// What was measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    pub workload: &'static str,
    pub log_sync: bool,
    pub server: &'static str,
}

/// One measurement.
pub struct Sample {
    pub cell: Cell,
    pub rows_per_second: f64,
    /// Server CPU seconds per million rows.
    pub cpu_per_million: f64,
    pub peak_rss_bytes: u64,
    pub disk_bytes: u64,
}

/// A column of the table: what it is called and how it is read off a sample.
type Measure = (&'static str, fn(&Sample) -> f64, usize);

const MEASURES: [Measure; 4] = [
    ("rows/s", |sample| sample.rows_per_second, 0),
    ("server CPU s per million rows", |sample| sample.cpu_per_million, 2),
    ("peak RSS, MB", |sample| sample.peak_rss_bytes as f64 / 1e6, 0),
    ("on disk, MB", |sample| sample.disk_bytes as f64 / 1e6, 0),
];

/// Prints the table and, unless it is a dry run, replaces the page.
pub fn write(root: &Path, samples: &[Sample], rounds: usize, dry: bool) -> Result<()> {
    let table = table(samples)?;
    println!("{table}");
    if dry {
        return Ok(());
    }
    let date = Run::new("date").args(["-u", "+%F"]).output()?;
    let commit = Run::new("git").args(["rev-parse", "--short", "HEAD"]).dir(root).output()?;
    let page = format!(
        "# nyala and Kudu 1.18.1 side by side\n\n\
         Written by `cargo ci versus` on {} at {}; do not edit. Medians of {rounds} turns each, A B A B, with the \
         smallest and the largest in brackets; each turn on fresh directories with one master and one tablet server, \
         replication 1, the real `kudu` tool as the client of both on the same machine. CPU is that of master and \
         tablet server together, memory the tablet server's, disk what its files occupy, the log's preallocation \
         included. A smaller figure is better but for rows/s.\n\n{}\n\n{table}",
        date.stdout.trim(),
        commit.stdout.trim(),
        machine()?,
    );
    Ok(fs::write(root.join(PAGE), page)?)
}

fn table(samples: &[Sample]) -> Result<String> {
    let mut table = String::new();
    writeln!(table, "| workload | log sync | measure | nyala | kudu | nyala / kudu |")?;
    writeln!(table, "|---|---|---|---|---|---|")?;
    for (workload, log_sync) in workloads(samples) {
        let sync = if log_sync { "on" } else { "off" };
        for (name, read, digits) in MEASURES {
            let of = |server| spread(samples, Cell { workload, log_sync, server }, read);
            let (nyala, kudu) = (of("nyala"), of("kudu"));
            let ratio = match (&nyala, &kudu) {
                (Some(nyala), Some(kudu)) if kudu.median > 0.0 => {
                    format!("{:.2}", nyala.median / kudu.median)
                }
                _ => String::new(),
            };
            let show = |spread: Option<Spread>| spread.map_or(String::new(), |spread| spread.show(digits));
            writeln!(table, "| {workload} | {sync} | {name} | {} | {} | {ratio} |", show(nyala), show(kudu))?;
        }
    }
    Ok(table)
}

/// In the order they were first measured, log sync off before on.
fn workloads(samples: &[Sample]) -> Vec<(&'static str, bool)> {
    let mut order = BTreeMap::new();
    for (at, sample) in samples.iter().enumerate() {
        order.entry((sample.cell.log_sync, sample.cell.workload)).or_insert(at);
    }
    let mut workloads: Vec<_> =
        order.into_iter().map(|((sync, workload), at)| (sync, at, workload)).collect();
    workloads.sort();
    workloads.into_iter().map(|(sync, _, workload)| (workload, sync)).collect()
}

struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn show(&self, digits: usize) -> String {
        format!("{:.digits$} ({:.digits$}–{:.digits$})", self.median, self.least, self.most)
    }
}

fn spread(samples: &[Sample], cell: Cell, read: fn(&Sample) -> f64) -> Option<Spread> {
    let mut values: Vec<f64> = samples.iter().filter(|sample| sample.cell == cell).map(read).collect();
    values.sort_by(f64::total_cmp);
    let (least, most) = (*values.first()?, *values.last()?);
    let middle = values.len() / 2;
    let median =
        if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
    Some(Spread { median, least, most })
}

/// Processor, memory and kernel, in a sentence.
fn machine() -> Result<String> {
    let processors = std::thread::available_parallelism()?;
    let cpus = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let memory = fs::read_to_string("/proc/meminfo")?;
    let kib: u64 = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or(0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let model = model.trim_start_matches(['\t', ':', ' ']);
    Ok(format!("Machine: {processors} × {model}, {} GiB, Linux {}.", (kib + (1 << 19)) >> 20, kernel.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(server: &'static str, rows_per_second: f64) -> Sample {
        let cell = Cell { workload: "load", log_sync: false, server };
        Sample {
            cell,
            rows_per_second,
            cpu_per_million: 1.5,
            peak_rss_bytes: 3_000_000,
            disk_bytes: 4_000_000,
        }
    }

    #[test]
    fn the_table_has_medians_spreads_and_ratios() {
        let samples =
            [sample("nyala", 300.0), sample("nyala", 100.0), sample("nyala", 200.0), sample("kudu", 100.0)];
        let table = table(&samples).unwrap();
        assert!(table.contains("| load | off | rows/s | 200 (100–300) | 100 (100–100) | 2.00 |"), "{table}");
        assert!(
            table.contains("| load | off | server CPU s per million rows | 1.50 (1.50–1.50) |"),
            "{table}"
        );
    }
}
