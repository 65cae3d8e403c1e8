//! The report: one SVG per chart of the study, and a page that shows them.

use std::error::Error;
use std::fmt::Write as _;

use chart::{BLUE, GRAY, GREEN, Line, ORANGE, RED};
use plotters::style::RGBColor;

use crate::Options;
use crate::sampler::{EVERY, OverloadSample};

type Series = (&'static str, RGBColor, fn(&OverloadSample) -> f64);

const MIB: f64 = (1 << 20) as f64;

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB
}

fn per_second(count: f64) -> f64 {
    count / EVERY.as_secs_f64()
}

/// Writes the report's folder.
pub(crate) fn report(options: &Options, samples: &[OverloadSample]) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(&options.out)?;
    let figures: [(&str, &str, Vec<Series>); 6] = [
        ("throughput", "rows per second", vec![("rows", BLUE, |s| per_second(s.rows as f64))]),
        ("latency", "99th percentile of a batch, ms", vec![("p99", BLUE, |s| s.p99.as_secs_f64() * 1e3)]),
        (
            "memory",
            "memory, MiB",
            vec![
                ("limit", RED, |s| mib(s.limit)),
                ("resident", GRAY, |s| mib(s.resident)),
                ("tracked", BLUE, |s| mib(s.tracked)),
                ("rows and changes", GREEN, |s| mib(s.tablets)),
                ("pages", ORANGE, |s| mib(s.pages)),
            ],
        ),
        ("refusals", "writes refused per second", vec![("refused", BLUE, |s| per_second(s.refused))]),
        (
            "written",
            "MiB written to disk per second",
            vec![("written", BLUE, |s| per_second(mib(s.bytes_written)))],
        ),
        (
            "lookups",
            "lookups per row",
            vec![("Bloom filters", BLUE, |s| s.bloom_lookups), ("key indexes", ORANGE, |s| s.key_lookups)],
        ),
    ];
    for (name, title, series) in &figures {
        draw(options, name, title, samples, series)?;
    }
    let names: Vec<&str> = figures.iter().map(|(name, ..)| *name).collect();
    let page = page(options, samples, &names);
    std::fs::write(options.out.join("README.md"), &page)?;
    println!("{page}\nreport: {}", options.out.display());
    Ok(())
}

fn draw(
    options: &Options,
    name: &str,
    title: &str,
    samples: &[OverloadSample],
    series: &[Series],
) -> Result<(), Box<dyn Error>> {
    let line = |(label, colour, of): &Series| {
        let points = samples.iter().map(|sample| (sample.at.as_secs_f64(), of(sample))).collect();
        Line { label, colour: *colour, points }
    };
    let lines: Vec<Line<'_>> = series.iter().map(line).collect();
    chart::draw(&options.out.join(format!("{name}.svg")), title, &lines)
}

fn page(options: &Options, samples: &[OverloadSample], figures: &[&str]) -> String {
    let seconds = samples.last().map_or(1.0, |sample| sample.at.as_secs_f64());
    let rows: u64 = samples.iter().map(|sample| sample.rows).sum();
    let failed: u64 = samples.iter().map(|sample| sample.failed).sum();
    let refused: f64 = samples.iter().map(|sample| sample.refused).sum();
    let mut rates: Vec<f64> = samples.iter().map(|sample| sample.rows as f64 / EVERY.as_secs_f64()).collect();
    rates.sort_by(f64::total_cmp);
    let at = |share: f64| rates.get(((rates.len() - 1) as f64 * share) as usize).copied().unwrap_or(0.0);
    let held = samples.iter().map(|sample| sample.tracked as f64 / sample.limit as f64).fold(0.0, f64::max);
    let mut page = String::from("# Overload\n\n");
    let _ = writeln!(
        page,
        "{} clients, each with {} rows of YCSB of 1 KB at a time, {seconds:.0} s; a tablet server that may use {} MiB, \
         and a third less in the last third of the time.\n",
        options.clients, options.batch, options.memory_mib
    );
    let _ = writeln!(
        page,
        "- rows per second: {:.0} on average; over half seconds: median {:.0}, 5th percentile {:.0}, least {:.0}",
        rows as f64 / seconds,
        at(0.5),
        at(0.05),
        at(0.0)
    );
    let _ = writeln!(
        page,
        "- rows that failed: {failed}; writes refused for memory, and tried again: {refused:.0}"
    );
    let _ = writeln!(page, "- tracked memory at most {:.0} % of the limit of its moment\n", held * 100.0);
    for name in figures {
        let _ = writeln!(page, "![{name}]({name}.svg)");
    }
    page
}
