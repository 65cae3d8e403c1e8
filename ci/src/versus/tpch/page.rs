//! The report: tables of times, ratios and costs, and charts of the ratios.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Result, anyhow};
use chart::{Better, Ratio};

use super::samples::{Phase, Samples};
use super::systems::{Cost, DUCKDB, EMBEDDED, KUDU, NYALA, PARQUET, System};
use crate::command::CommandLine;
use crate::versus::report::machine;
use crate::versus::round::VersusOptions;

pub(super) const TITLE: &str = "TPC-H's queries in nyala, Kudu 1.18.1 and Parquet files";

/// Folder of the charts.
const FOLDER: &str = "versus-tpch";
/// Charts: file, title, system, and state of the tables.
const CHARTS: [(&str, &str, &str, Phase); 3] = [
    (
        "in-process.svg",
        "Time over nyala in process / over Parquet (shorter is better)",
        EMBEDDED,
        Phase::Loaded,
    ),
    ("wire.svg", "Time over nyala by the wire / over Parquet (shorter is better)", NYALA, Phase::Loaded),
    (
        "updated.svg",
        "Time over nyala in process / over Parquet after the updates (shorter is better)",
        EMBEDDED,
        Phase::Updated,
    ),
];

/// Largest geometric means of ratios to Parquet that are aimed at.
const BARS: [(Phase, &str, f64); 3] =
    [(Phase::Loaded, EMBEDDED, 0.76), (Phase::Loaded, NYALA, 1.5), (Phase::Updated, EMBEDDED, 1.0)];

const METHOD: &str = "\
    All systems run side by side on this machine and answer in turn, query by query; a first run of each query is \
    not counted. nyala, Kudu and Parquet are tables of DataFusion in a process of `benches/tpch` with as many \
    threads and partitions as there are processors: nyala in process is a master and a tablet server in that \
    process, whose tablets are read without calls; nyala and Kudu are a master and a tablet server of their own on \
    loopback, read by `nyala-sql`; Parquet is DataFusion's own reader with its defaults over files with ZSTD and \
    statistics. DuckDB reads the same files with the same number of threads. Tables are partitioned by hash of the \
    first key column, 8 buckets; log sync is off; page caches hold all tables. Rows are flushed (a \
    `flush_threshold_secs` of 1) and data directories have not changed for three seconds before the queries. The \
    updates add 1 to two columns of `lineitem` and one of `orders`, where the order's key ends in 3: a tenth of the \
    rows, by key. Parquet's and DuckDB's files are rewritten for them. Every answer is compared with Parquet's, \
    before and after the updates. Client CPU is that of the query's process, server CPU that of master and tablet \
    server.";

/// Everything that is reported beside the queries.
pub(super) struct Report {
    scale: f64,
    rounds: usize,
    threads: usize,
    note: String,
    versions: String,
    pub missing: Vec<&'static str>,
    /// True if answers were compared with the published ones.
    pub is_published: bool,
    /// Seconds to generate the files, and to write those of the updated tables.
    pub files_written: Option<f64>,
    pub files_rewritten: Option<f64>,
    pub files_bytes: Option<u64>,
    writes: Vec<WriteCost>,
    memory: Vec<(Phase, &'static str, f64)>,
}

/// Writes into a system.
struct WriteCost {
    system: &'static str,
    what: &'static str,
    cost: Cost,
    bytes: Option<u64>,
}

impl Report {
    pub(super) fn new(options: &VersusOptions, threads: usize) -> Report {
        Report {
            scale: options.scale,
            rounds: options.rounds,
            threads,
            note: options.note.clone(),
            versions: String::new(),
            missing: Vec::new(),
            is_published: false,
            files_written: None,
            files_rewritten: None,
            files_bytes: None,
            writes: Vec::new(),
            memory: Vec::new(),
        }
    }

    /// Notes the versions of the query engines.
    pub(super) fn versions(&mut self, systems: &[System]) {
        let version = |name| systems.iter().find(|system| system.name == name);
        for (engine, system) in [("DataFusion", PARQUET), (DUCKDB, DUCKDB)] {
            if let Some(system) = version(system) {
                let _ = write!(self.versions, " {engine} {}.", system.worker.version);
            }
        }
    }

    /// Notes the load of all tables of a system, and the bytes of its data directory.
    pub(super) fn loaded(&mut self, system: &'static str, loads: &[(&str, Cost)], bytes: Option<u64>) {
        let sum = |of: fn(&Cost) -> f64| loads.iter().map(|(_, cost)| of(cost)).sum();
        let cost = Cost {
            seconds: sum(|cost| cost.seconds),
            client_cpu: sum(|cost| cost.client_cpu),
            server_cpu: sum(|cost| cost.server_cpu),
            client_rss: loads.iter().map(|(_, cost)| cost.client_rss).fold(0.0, f64::max),
        };
        self.writes.push(WriteCost { system, what: "load of all tables", cost, bytes });
        if let Some((_, cost)) = loads.last() {
            self.writes.push(WriteCost { system, what: "load of lineitem", cost: *cost, bytes: None });
        }
    }

    pub(super) fn updated(&mut self, system: &'static str, cost: Cost, bytes: Option<u64>) {
        self.writes.push(WriteCost { system, what: "updates", cost, bytes });
    }

    pub(super) fn server_rss(&mut self, phase: Phase, system: &'static str, bytes: f64) {
        self.memory.push((phase, system, bytes));
    }

    /// Returns the tables of the report.
    pub(super) fn tables(&self, samples: &Samples) -> Result<String> {
        let mut text = String::new();
        summary(&mut text, samples)?;
        for (phase, title) in [
            (Phase::Loaded, "Queries"),
            (Phase::Updated, "Queries after a tenth of lineitem and orders was updated by key"),
        ] {
            writeln!(text, "\n## {title}\n")?;
            times(&mut text, samples, phase)?;
        }
        writeln!(text, "\n## The queries of the comparison with Phoenix\n")?;
        phoenix(&mut text, samples)?;
        writeln!(text, "\n## Cost of a round of the 22 queries\n")?;
        self.costs(&mut text, samples)?;
        writeln!(text, "\n## Writes\n")?;
        self.writes(&mut text)?;
        Ok(text)
    }

    /// Returns the whole page.
    pub(super) fn page(&self, root: &Path, tables: &str) -> Result<String> {
        let date = CommandLine::new("date").args(["-u", "+%F"]).output()?;
        let commit = CommandLine::new("git").args(["rev-parse", "--short", "HEAD"]).dir(root).output()?;
        let missing: String = self.missing.iter().map(|name| format!(" {name} was not installed.")).collect();
        let published = if self.is_published {
            " Parquet's answers are the published ones of scale 1, but for queries 11 and 17; DuckDB's are equal."
        } else {
            ""
        };
        let note = if self.note.is_empty() { String::new() } else { format!(" {}", self.note) };
        let charts: String =
            CHARTS.iter().map(|(file, ..)| format!("\n![{file}]({FOLDER}/{file})\n")).collect();
        Ok(format!(
            "# {TITLE}\n\nWritten by `cargo ci versus tpch` on {} at {}; do not edit. Scale {}, medians of {} rounds, \
             {} threads. {METHOD}{published}{missing}\n\n{}{}{note}\n\n{tables}{charts}",
            date.stdout.trim(),
            commit.stdout.trim(),
            self.scale,
            self.rounds,
            self.threads,
            machine()?,
            self.versions,
        ))
    }

    fn costs(&self, text: &mut String, samples: &Samples) -> Result<()> {
        let head = "| tables | system | time, s | client CPU, s | server CPU, s | client, MB | server, MB |";
        writeln!(text, "{head}\n|---|---|--:|--:|--:|--:|--:|")?;
        for (phase, state) in [(Phase::Loaded, "loaded"), (Phase::Updated, "updated")] {
            for system in samples.systems(phase) {
                let sum = |of: fn(&Cost) -> f64| samples.per_round(phase, system, of);
                let memory = self.memory.iter().find(|(of, name, _)| *of == phase && *name == system);
                writeln!(
                    text,
                    "| {state} | {system} | {:.2} | {:.2} | {} | {:.0} | {} |",
                    sum(|cost| cost.seconds),
                    sum(|cost| cost.client_cpu),
                    memory.map_or(String::new(), |_| format!("{:.2}", sum(|cost| cost.server_cpu))),
                    samples.peak(phase, system, |cost| cost.client_rss) / 1e6,
                    memory.map_or(String::new(), |(.., bytes)| format!("{:.0}", bytes / 1e6)),
                )?;
            }
        }
        Ok(())
    }

    fn writes(&self, text: &mut String) -> Result<()> {
        let head = "| write | system | time, s | client CPU, s | server CPU, s | data directory, MB |";
        writeln!(text, "{head}\n|---|---|--:|--:|--:|--:|")?;
        for what in ["load of all tables", "load of lineitem", "updates"] {
            for write in self.writes.iter().filter(|write| write.what == what) {
                let Cost { seconds, client_cpu, server_cpu, .. } = write.cost;
                let megabytes =
                    write.bytes.map_or(String::new(), |bytes| format!("{:.0}", bytes as f64 / 1e6));
                let server =
                    if write.system == EMBEDDED { String::new() } else { format!("{server_cpu:.2}") };
                let system = write.system;
                writeln!(
                    text,
                    "| {what} | {system} | {seconds:.2} | {client_cpu:.2} | {server} | {megabytes} |"
                )?;
            }
            let seconds = match what {
                "load of all tables" => self.files_written,
                "updates" => self.files_rewritten,
                _ => None,
            };
            if let Some(seconds) = seconds {
                let bytes = self.files_bytes.filter(|_| what != "updates");
                let megabytes = bytes.map_or(String::new(), |bytes| format!("{:.0}", bytes as f64 / 1e6));
                writeln!(
                    text,
                    "| {what} | {PARQUET}, with the generator | {seconds:.2} | | | {megabytes} |"
                )?;
            }
        }
        Ok(())
    }
}

/// Writes the geometric means beside the bars, and the CPU of all processes.
fn summary(text: &mut String, samples: &Samples) -> Result<()> {
    writeln!(
        text,
        "Geometric means of the times as shares of Parquet's, and CPU of all processes as a share of its:\n"
    )?;
    writeln!(text, "| | time, loaded | bar | time, updated | bar | CPU, loaded | CPU, updated |")?;
    writeln!(text, "|---|--:|--:|--:|--:|--:|--:|")?;
    for system in samples.systems(Phase::Loaded).into_iter().filter(|system| *system != PARQUET) {
        let mean = |phase| shown(samples.geometric_mean(phase, system, PARQUET));
        let bar = |phase| {
            let found = BARS.iter().find(|(of, name, _)| *of == phase && *name == system);
            found.map_or(String::new(), |(.., bar)| format!("{bar}"))
        };
        let cpu = |phase| {
            let of = |system| samples.per_round(phase, system, |cost| cost.client_cpu + cost.server_cpu);
            shown(Some(of(system) / of(PARQUET)))
        };
        let [loaded, updated] = [Phase::Loaded, Phase::Updated];
        writeln!(
            text,
            "| {system} | {} | {} | {} | {} | {} | {} |",
            mean(loaded),
            bar(loaded),
            mean(updated),
            bar(updated),
            cpu(loaded),
            cpu(updated)
        )?;
    }
    Ok(())
}

fn shown(ratio: Option<f64>) -> String {
    ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"))
}

/// Writes the times of Parquet and the ratios of the others, query by query.
fn times(text: &mut String, samples: &Samples, phase: Phase) -> Result<()> {
    let others: Vec<&str> = samples.systems(phase).into_iter().filter(|system| *system != PARQUET).collect();
    write!(text, "| query | {PARQUET}, ms |")?;
    others.iter().try_for_each(|system| write!(text, " {system}, of {PARQUET} |"))?;
    writeln!(text, "\n|---|--:|{}", "--:|".repeat(others.len()))?;
    for query in samples.queries(phase) {
        let parquet = samples.median(phase, query, PARQUET, |cost| cost.seconds * 1e3).unwrap_or_default();
        write!(text, "| {query} | {parquet:.1} |")?;
        for system in &others {
            write!(text, " {} |", shown(samples.ratio(phase, query, system, PARQUET)))?;
        }
        writeln!(text)?;
    }
    write!(text, "| geometric mean | |")?;
    for system in &others {
        write!(text, " {} |", shown(samples.geometric_mean(phase, system, PARQUET)))?;
    }
    Ok(writeln!(text)?)
}

/// Writes the times of the other queries, in milliseconds, with nyala's by the wire as a share of Kudu's.
fn phoenix(text: &mut String, samples: &Samples) -> Result<()> {
    let systems = samples.systems(Phase::Phoenix);
    write!(text, "| query, ms |")?;
    systems.iter().try_for_each(|system| write!(text, " {system} |"))?;
    writeln!(text, " {NYALA} / {KUDU} |\n|---|{}--:|", "--:|".repeat(systems.len()))?;
    for query in samples.queries(Phase::Phoenix) {
        write!(text, "| {query} |")?;
        for system in &systems {
            let time = samples.median(Phase::Phoenix, query, system, |cost| cost.seconds * 1e3);
            write!(text, " {:.1} |", time.unwrap_or_default())?;
        }
        let ratio = samples.ratio(Phase::Phoenix, query, NYALA, KUDU);
        writeln!(text, " {} |", shown(ratio))?;
    }
    Ok(())
}

/// Draws the charts.
pub(super) fn draw(root: &Path, samples: &Samples) -> Result<()> {
    let folder = root.join("benches").join(FOLDER);
    fs::create_dir_all(&folder)?;
    for (file, title, system, phase) in CHARTS {
        let ratio = |query: &&str| {
            let value = samples.ratio(phase, query, system, PARQUET)?;
            Some(Ratio { label: (*query).to_string(), value })
        };
        let queries = samples.queries(phase);
        let mut ratios: Vec<Ratio> = queries.iter().filter_map(ratio).collect();
        if let Some(value) = samples.geometric_mean(phase, system, PARQUET) {
            ratios.push(Ratio { label: "geometric mean".to_string(), value });
        }
        let path = folder.join(file);
        chart::draw_ratios(&path, title, Better::Below1, &ratios)
            .map_err(|error| anyhow!("{}: {error}", path.display()))?;
    }
    Ok(())
}
