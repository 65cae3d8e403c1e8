//! Charts of the YCSB study, drawn from reports: a line for each.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use chart::{BLUE, GREEN, Line, ORANGE, RED};
use clap::Args;

use crate::report::{Report, Sample};

#[derive(Args)]
pub(crate) struct Options {
    /// The folder of the charts
    #[arg(long)]
    out: PathBuf,
    /// Prefix of the charts' names
    #[arg(long)]
    prefix: String,
    /// NAME=FILE: a report and the name of its line
    reports: Vec<String>,
}

type Figure = (&'static str, &'static str, fn(&Sample) -> f64);

const MB: f64 = 1e6;
const FIGURES: [Figure; 6] = [
    ("throughput", "rows per second", |s| s.operations as f64 / s.over_seconds),
    ("latency", "99th percentile, ms", |s| s.p99_ms),
    ("memory", "memory resident, MB", |s| s.resident_bytes as f64 / MB),
    ("rejections", "writes refused per second", |s| s.refused / s.over_seconds),
    ("written", "MB written to disk per second", |s| s.written_bytes as f64 / MB / s.over_seconds),
    ("lookups", "lookups in Bloom filters per row", |s| s.bloom_lookups / s.operations.max(1) as f64),
];

pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(&options.out)?;
    let mut reports = Vec::new();
    for named in &options.reports {
        let (name, file) = named.split_once('=').ok_or_else(|| format!("{named:?} is not as NAME=FILE"))?;
        reports.push((name, serde_json::from_str::<Report>(&fs::read_to_string(file)?)?));
    }
    for (figure, title, of) in FIGURES {
        let coloured = [BLUE, ORANGE, GREEN, RED].into_iter().zip(&reports);
        let points =
            |report: &Report| report.samples.iter().map(|sample| (sample.seconds, of(sample))).collect();
        let lines: Vec<Line<'_>> = coloured
            .map(|(colour, (label, report))| Line { label, colour, points: points(report) })
            .collect();
        chart::draw(&options.out.join(format!("{}-{figure}.svg", options.prefix)), title, &lines)?;
    }
    Ok(())
}
