//! Charts of all reports: throughput, latency and memory of nyala as a share of Kudu's, log sync off.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use chart::{Better, Ratio};

/// Folder of the charts.
const FOLDER: &str = "benches/versus";

/// A chart: file, title, which ratios are better, and the measures that it shows.
struct Chart {
    file: &'static str,
    title: &'static str,
    better: Better,
    shows: fn(&str) -> bool,
}

const CHARTS: [Chart; 3] = [
    Chart {
        file: "throughput.svg",
        title: "Throughput, nyala / Kudu (longer is better)",
        better: Better::Above1,
        shows: |measure| matches!(measure, "rows/s" | "operations/s" | "MB/s"),
    },
    Chart {
        file: "latency.svg",
        title: "Latency, 99th percentile, nyala / Kudu (shorter is better)",
        better: Better::Below1,
        shows: |measure| measure.starts_with("p99,") || measure.starts_with("p99 of"),
    },
    Chart {
        file: "memory.svg",
        title: "Peak memory of the tablet server, nyala / Kudu (shorter is better)",
        better: Better::Below1,
        shows: |measure| measure == "peak RSS, MB",
    },
];

/// Draws the charts from the reports with these paths; a report that does not exist is left out.
pub(super) fn draw(root: &Path, reports: &[&str]) -> Result<()> {
    let mut rows = Vec::new();
    for report in reports.iter().map(|report| root.join(report)).filter(|path| path.exists()) {
        let page = fs::read_to_string(&report)?;
        rows.extend(table_rows(&page).with_context(|| format!("{}: no table", report.display()))?);
    }
    fs::create_dir_all(root.join(FOLDER))?;
    for chart in &CHARTS {
        let shown = rows.iter().filter(|row| (chart.shows)(&row.measure));
        let ratios: Vec<Ratio> =
            shown.map(|row| Ratio { label: row.workload.clone(), value: row.nyala / row.kudu }).collect();
        ensure!(!ratios.is_empty(), "{}: no report has such a measure", chart.file);
        let path = root.join(FOLDER).join(chart.file);
        chart::draw_ratios(&path, chart.title, chart.better, &ratios)
            .map_err(|error| anyhow!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// A row of a report's table: medians of both systems.
#[derive(Debug, PartialEq)]
struct Row {
    workload: String,
    measure: String,
    nyala: f64,
    kudu: f64,
}

/// Returns the rows without log sync that have medians of both systems.
fn table_rows(page: &str) -> Result<Vec<Row>> {
    let lines = page.lines().filter(|line| line.starts_with("| "));
    let cells = lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    let rows: Vec<Row> =
        cells.filter(|cells| cells.get(1) == Some(&"off")).filter_map(|cells| row(&cells)).collect();
    ensure!(!rows.is_empty(), "no row has medians of both systems");
    Ok(rows)
}

fn row(cells: &[&str]) -> Option<Row> {
    let [workload, _, measure, nyala, kudu, ..] = cells else { return None };
    let median = |cell: &str| cell.split_whitespace().next()?.parse::<f64>().ok();
    let (nyala, kudu) = (median(nyala)?, median(kudu)?);
    (kudu > 0.0).then(|| Row { workload: (*workload).into(), measure: (*measure).into(), nyala, kudu })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_log_sync_are_read() {
        let page = "# Title\n\n| workload | log sync | measure | nyala | kudu | nyala / kudu |\n|---|---|---|---|---|---|\n\
                    | load | off | rows/s | 30 (20–40) | 15 (10–20) | level |\n\
                    | load | off | client | 30 (20–40) |  |  |\n\
                    | load | on | rows/s | 3 (2–4) | 1 (1–2) | level |\n";
        let row = Row { workload: "load".into(), measure: "rows/s".into(), nyala: 30.0, kudu: 15.0 };
        assert_eq!(table_rows(page).unwrap(), [row]);
        assert!(table_rows("# Title\n").is_err());
    }
}
