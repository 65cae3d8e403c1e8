//! The discovery curve: how many features fresh seeds have shown, and how many a further seed is likely to add.
//!
//! Of fresh seeds only: children come from runs that were rich, so they say nothing about the next seed. `f1` is the
//! number of features that exactly one run had; `f1 / n` estimates the new features of the next run (Good and Turing).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use crate::features::{AXES, DISTURBANCE, RunFeatures, STATES};
use crate::output::outln;

/// Estimate below which an axis brings nothing more.
const EXHAUSTED: f64 = 0.01;
/// Growth between two points of the curve: a quarter.
const STEP_DIVISOR: u64 = 4;

/// One axis: its features, and true for those that one run had.
#[derive(Default)]
struct Axis {
    seen: BTreeMap<u64, bool>,
    once: u64,
}

/// Features and estimate of each axis after a number of runs.
#[derive(Debug, Clone, PartialEq)]
struct Point {
    runs: u64,
    axes: [(usize, f64); AXES.len()],
}

/// The curve of one campaign.
#[derive(Default)]
pub(super) struct Curve {
    runs: u64,
    axes: [Axis; AXES.len()],
    points: Vec<Point>,
}

impl Axis {
    fn add(&mut self, feature: u64) {
        match self.seen.insert(feature, false) {
            None => {
                self.seen.insert(feature, true);
                self.once += 1;
            }
            Some(true) => self.once -= 1,
            Some(false) => {}
        }
    }
}

impl Curve {
    /// Adds a run of a fresh seed.
    pub(super) fn add(&mut self, features: &RunFeatures) {
        self.runs += 1;
        for (axis, found) in self.axes.iter_mut().zip(&features.axes) {
            found.iter().for_each(|feature| axis.add(*feature));
        }
        let last = self.points.last().map_or(0, |point| point.runs);
        if self.runs > last + last / STEP_DIVISOR {
            self.points.push(self.now());
        }
    }

    fn now(&self) -> Point {
        let estimate = |axis: &Axis| axis.once as f64 / self.runs.max(1) as f64;
        let axes = std::array::from_fn(|at| (self.axes[at].seen.len(), estimate(&self.axes[at])));
        Point { runs: self.runs, axes }
    }

    /// Returns true if the next fresh seed is unlikely to show a new state or a new disturbance.
    pub(super) fn is_exhausted(&self) -> bool {
        let now = self.now();
        self.runs > 0 && [STATES, DISTURBANCE].iter().all(|axis| now.axes[*axis].1 < EXHAUSTED)
    }

    /// Returns the curve as a table with tabs.
    pub(super) fn table(&self) -> String {
        let mut text = "runs".to_string();
        for axis in AXES {
            // Writing to a string does not fail.
            let _ = write!(text, "\t{axis}\tf1/n");
        }
        let now = (self.points.last().map(|point| point.runs) != Some(self.runs)).then(|| self.now());
        for point in self.points.iter().chain(&now) {
            let _ = write!(text, "\n{}", point.runs);
            for (seen, estimate) in point.axes {
                let _ = write!(text, "\t{seen}\t{estimate:.3}");
            }
        }
        text + "\n"
    }

    /// Prints the curve, and what clean runs say about the next one.
    pub(super) fn print(&self, failed: u64) {
        self.table().lines().for_each(|line| outln!("{}", line.replace('\t', "  ")));
        let runs = self.runs;
        if failed == 0 && runs > 0 {
            let rate = 3.0 / runs as f64;
            outln!("{runs} clean fresh seeds: less than {rate:.4} failures a seed, with 95 % confidence");
        }
    }

    /// Writes the curve into a folder.
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join("curve.tsv");
        std::fs::write(&path, self.table()).with_context(|| format!("writing {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(features: &[u64]) -> RunFeatures {
        let mut run = RunFeatures::default();
        run.axes[STATES].extend(features);
        run
    }

    #[test]
    fn the_estimate_is_of_features_that_one_run_had() {
        let mut curve = Curve::default();
        curve.add(&run(&[1, 2, 3]));
        assert_eq!(curve.now().axes[STATES], (3, 3.0));
        curve.add(&run(&[1, 2, 4]));
        curve.add(&run(&[1, 2]));
        curve.add(&run(&[1, 2]));
        assert_eq!(curve.now().axes[STATES], (4, 0.5));
        assert!(!curve.is_exhausted());
        (0..300).for_each(|_| curve.add(&run(&[1, 3])));
        assert_eq!(curve.now().axes[STATES].0, 4);
        assert!(curve.is_exhausted(), "one of 304 runs had feature 4");
        let table = curve.table();
        assert!(table.starts_with("runs\tstates\tf1/n\torder"), "{table}");
        assert!(table.contains("\n304\t4\t0.003\t0\t0.000"), "{table}");
        assert!(table.lines().count() < 30, "points are a quarter apart");
    }
}
