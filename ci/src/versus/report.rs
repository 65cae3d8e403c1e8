//! Reports: tables of medians and spreads from samples.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::command::CommandLine as Command;

/// Row and column of a measurement.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Cell {
    pub workload: String,
    pub log_sync: bool,
    pub measure: Metric,
    pub server: &'static str,
}

/// Name with unit, and number of digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Metric(pub &'static str, pub usize);

/// One measurement.
#[derive(Clone)]
pub(super) struct Sample {
    pub cell: Cell,
    pub value: f64,
}

/// A report: path, title, and description of a round.
pub(super) struct ReportSpec {
    pub path: &'static str,
    pub title: &'static str,
    pub turn: &'static str,
    /// Charts beside it, by their paths.
    pub figures: &'static [&'static str],
}

/// Input of a report.
pub(super) struct ReportInput<'a> {
    pub samples: &'a [Sample],
    pub rounds: usize,
    /// Further settings to list.
    pub settings: String,
}

impl ReportSpec {
    /// Prints the table and, unless it is a dry run, replaces the report.
    pub(super) fn write(&self, root: &Path, run: &ReportInput<'_>, dry: bool) -> Result<()> {
        let table = table(run.samples)?;
        println!("{table}");
        if dry {
            return Ok(());
        }
        let date = Command::new("date").args(["-u", "+%F"]).output()?;
        let commit = Command::new("git").args(["rev-parse", "--short", "HEAD"]).dir(root).output()?;
        let page = format!(
            "# {}\n\nWritten by `cargo ci versus` on {} at {}; do not edit. Medians of {} turns each, A B A B, with \
             the smallest and the largest in brackets; a ratio is called level where these ranges meet. {}\n\n\
             {}{}\n\n{table}{}",
            self.title,
            date.stdout.trim(),
            commit.stdout.trim(),
            run.rounds,
            self.turn,
            machine()?,
            run.settings,
            self.figures.iter().map(|path| format!("\n![{path}]({path})\n")).collect::<String>(),
        );
        Ok(fs::write(root.join(self.path), page)?)
    }
}

/// Returns the table: a row for each measurement; systems other than nyala and Kudu come last.
fn table(samples: &[Sample]) -> Result<String> {
    let others = others(samples);
    let mut table = String::from("| workload | log sync | measure | nyala |");
    others.iter().try_for_each(|other| write!(table, " {other} | nyala / {other} |"))?;
    writeln!(table, "\n|---|---|---|---|{}", "---|---|".repeat(others.len()))?;
    for row in rows(samples) {
        let sync = if row.log_sync { "on" } else { "off" };
        let Metric(name, digits) = row.measure;
        let of = |server| spread(samples, &Cell { server, ..row.clone() });
        let show =
            |spread: &Option<Spread>| spread.as_ref().map_or(String::new(), |spread| spread.show(digits));
        let nyala = of("nyala");
        write!(table, "| {} | {sync} | {name} | {} |", row.workload, show(&nyala))?;
        for other in others.iter().map(|other| of(other)) {
            let ratio = match (&nyala, &other) {
                (Some(nyala), Some(other)) => nyala.beside(other),
                _ => String::new(),
            };
            write!(table, " {} | {ratio} |", show(&other))?;
        }
        writeln!(table)?;
    }
    Ok(table)
}

/// Returns the systems beside nyala: Kudu first, then in the order of measurement.
fn others(samples: &[Sample]) -> Vec<&'static str> {
    let is_kudu = |sample: &Sample| sample.cell.server == "kudu";
    let mut others = if samples.iter().any(is_kudu) { vec!["kudu"] } else { Vec::new() };
    for Sample { cell, .. } in samples {
        if cell.server != "nyala" && !others.contains(&cell.server) {
            others.push(cell.server);
        }
    }
    others
}

/// Returns one cell of each row, in the order of measurement, log sync off before on.
pub(super) fn rows(samples: &[Sample]) -> Vec<Cell> {
    let mut rows: Vec<Cell> = Vec::new();
    for Sample { cell, .. } in samples {
        if !rows.iter().any(|row| Cell { server: cell.server, ..row.clone() } == *cell) {
            rows.push(cell.clone());
        }
    }
    rows.sort_by_key(|row| row.log_sync);
    rows
}

/// Median and range of the samples of a cell.
pub(super) struct Spread {
    pub median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn show(&self, digits: usize) -> String {
        format!("{:.digits$} ({:.digits$}–{:.digits$})", self.median, self.least, self.most)
    }

    /// Returns the ratio of the medians; "level" if the ranges overlap.
    fn beside(&self, other: &Spread) -> String {
        if self.least <= other.most && other.least <= self.most {
            return "level".to_string();
        }
        if other.median > 0.0 { format!("{:.2}", self.median / other.median) } else { String::new() }
    }
}

pub(super) fn spread(samples: &[Sample], cell: &Cell) -> Option<Spread> {
    let of_cell = samples.iter().filter(|sample| sample.cell == *cell);
    let mut values: Vec<f64> = of_cell.map(|sample| sample.value).collect();
    values.sort_by(f64::total_cmp);
    let (least, most) = (*values.first()?, *values.last()?);
    let middle = values.len() / 2;
    let median =
        if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
    Some(Spread { median, least, most })
}

/// Returns processor, memory and kernel, in a sentence.
pub(super) fn machine() -> Result<String> {
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

    fn sample(server: &'static str, name: &'static str, value: f64) -> Sample {
        let cell = Cell { workload: "load".to_string(), log_sync: false, measure: Metric(name, 1), server };
        Sample { cell, value }
    }

    #[test]
    fn the_table_has_medians_spreads_and_ratios() {
        let mut samples = Vec::from([300.0, 100.0, 200.0].map(|value| sample("nyala", "rows/s", value)));
        samples.push(sample("kudu", "rows/s", 50.0));
        samples.push(sample("kudu", "ms", 7.0));
        let table = table(&samples).unwrap();
        let rows: Vec<&str> = table.lines().skip(2).collect();
        let rates = "| load | off | rows/s | 200.0 (100.0–300.0) | 50.0 (50.0–50.0) | 4.00 |";
        assert_eq!(rows, [rates, "| load | off | ms |  | 7.0 (7.0–7.0) |  |"]);
    }
    #[test]
    fn ranges_that_meet_are_level() {
        let samples = [("nyala", 90.0), ("nyala", 110.0), ("kudu", 105.0), ("kudu", 120.0)];
        let samples = samples.map(|(server, value)| sample(server, "rows/s", value));
        assert!(table(&samples).unwrap().ends_with("| level |\n"));
    }

    #[test]
    fn a_table_without_kudu_has_no_column_of_it() {
        let samples = [("redis", 2.0), ("nyala", 3.0)].map(|(server, value)| sample(server, "µs", value));
        let table = table(&samples).unwrap();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "| workload | log sync | measure | nyala | redis | nyala / redis |");
        assert_eq!(lines[2], "| load | off | µs | 3.0 (3.0–3.0) | 2.0 (2.0–2.0) | 1.50 |");
    }

    #[test]
    fn others_come_behind_kudu() {
        let samples = [("parquet", 1.0), ("nyala", 3.0), ("kudu", 2.0)]
            .map(|(server, value)| sample(server, "MB", value));
        let table = table(&samples).unwrap();
        let lines: Vec<&str> = table.lines().collect();
        let head =
            "| workload | log sync | measure | nyala | kudu | nyala / kudu | parquet | nyala / parquet |";
        assert_eq!(lines[0], head);
        let row = "| load | off | MB | 3.0 (3.0–3.0) | 2.0 (2.0–2.0) | 1.50 | 1.0 (1.0–1.0) | 3.00 |";
        assert_eq!(lines[2], row);
    }
}
