//! The report of `drive floor`, and what it says per operation.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::report::Metric;

pub(super) const P50: Metric = Metric("p50, µs", 1);
pub(super) const SERVER_CPU: Metric = Metric("server CPU µs per operation", 1);

/// Result of a run, as the program prints it.
#[derive(Debug, Deserialize)]
pub(super) struct DriveReport {
    /// Rows that exist after the run.
    pub rows: u64,
    operations: u64,
    seconds: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    server_cpu_seconds: f64,
    client_cpu_seconds: f64,
}

impl DriveReport {
    /// Parses a report, which must be of some operations.
    pub(super) fn parse(json: &str) -> Result<DriveReport> {
        let report: DriveReport =
            serde_json::from_str(json).with_context(|| format!("not a report of drive floor: {json:?}"))?;
        ensure!(report.operations > 0 && report.seconds > 0.0, "nothing was done: {json}");
        Ok(report)
    }

    /// Returns its figures. A file has no server.
    pub(super) fn figures(&self, has_server: bool) -> Vec<(Metric, f64)> {
        let operations = self.operations as f64;
        let mut figures = vec![
            (Metric("operations/s", 0), operations / self.seconds),
            (P50, self.p50_us),
            (Metric("p99, µs", 1), self.p99_us),
            (Metric("p99.9, µs", 1), self.p999_us),
        ];
        if has_server {
            figures.push((SERVER_CPU, self.server_cpu_seconds / operations * 1e6));
        }
        figures.push((Metric("client CPU µs per operation", 1), self.client_cpu_seconds / operations * 1e6));
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"rows":70,"operations":1000,"seconds":0.5,"p50_us":80.25,"p99_us":120.0,
        "p999_us":300.0,"server_cpu_seconds":0.03,"client_cpu_seconds":0.02}"#;

    fn figures(has_server: bool) -> Vec<(&'static str, f64)> {
        let report = DriveReport::parse(JSON).unwrap();
        assert_eq!(report.rows, 70);
        report.figures(has_server).into_iter().map(|(Metric(name, _), value)| (name, value)).collect()
    }

    #[test]
    fn figures_are_per_operation() {
        let wanted = [
            ("operations/s", 2000.0),
            ("p50, µs", 80.25),
            ("p99, µs", 120.0),
            ("p99.9, µs", 300.0),
            ("server CPU µs per operation", 30.0),
            ("client CPU µs per operation", 20.0),
        ];
        assert_eq!(figures(true).len(), wanted.len());
        for ((name, value), wanted) in figures(true).into_iter().zip(wanted) {
            assert!(name == wanted.0 && (value - wanted.1).abs() < 1e-9, "{name}: {value}");
        }
        assert!(figures(false).iter().all(|(name, _)| !name.starts_with("server")));
    }

    #[test]
    fn a_run_without_operations_and_other_text_are_refused() {
        assert!(DriveReport::parse(&JSON.replace("1000", "0")).is_err());
        assert!(DriveReport::parse("drive: no").unwrap_err().to_string().contains("drive: no"));
    }
}
