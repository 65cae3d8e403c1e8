//! Thresholds of the paths' instruction counts, and the growth that is allowed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::command::CommandLine;

/// Growth above its threshold, in percent, that makes a path slower.
const GROWTH_MAX: u64 = 5;

/// Paths that may take only a share of another path's instructions, with the share in percent. Both do the same number
/// of inserts, of which the second is a part.
const SHARES: [(&str, &str, u64); 1] = [("spans.off", "raft.lead", 1)];

/// Tools besides the code that determine counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Toolchain {
    /// Version of the compiler.
    rustc: String,
    /// Version of valgrind and features of its processor: valgrind omits features that the machine lacks.
    valgrind: String,
    processor: String,
    /// Version of the C library, with its `memcpy` and `malloc`.
    libc: String,
}

impl Toolchain {
    pub(super) fn here() -> Result<Toolchain> {
        let first = |program: &str, word: &str| -> Result<String> {
            let said = CommandLine::new(program).args([word]).output()?.stdout;
            Ok(said.lines().next().with_context(|| format!("{program} says nothing"))?.to_owned())
        };
        Ok(Toolchain {
            rustc: first("rustc", "--version")?,
            valgrind: first("valgrind", "--version")?,
            libc: first("getconf", "GNU_LIBC_VERSION")?,
            processor: processor(&fs::read_to_string("/proc/cpuinfo")?),
        })
    }
}

impl std::fmt::Display for Toolchain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Toolchain { rustc, valgrind, processor, libc } = self;
        write!(f, "{rustc}, {valgrind}, {processor}, {libc}")
    }
}

/// Returns valgrind's view of the processor. Valgrind knows AVX2 and nothing newer, and all processors with AVX2 are
/// the same to it, so maker and model do not matter.
fn processor(cpuinfo: &str) -> String {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag: &&str| flags.split_whitespace().any(|word| word == *flag);
    let known: Vec<&str> = ["sse4_2", "avx", "avx2", "bmi2"].into_iter().filter(has).collect();
    format!("{} {}", std::env::consts::ARCH, known.join(" "))
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Thresholds {
    pub made: Toolchain,
    /// Instructions by path.
    pub instructions: BTreeMap<String, u64>,
}

/// Text to print, and failures.
pub(super) struct CountsVerdict {
    /// A line for each path; the last gives the reason if growth was not checked.
    pub table: String,
    pub failures: Vec<String>,
}

impl Thresholds {
    pub(super) fn parse(text: &str) -> Result<Thresholds> {
        toml::from_str(text).context("the bars cannot be read")
    }

    pub(super) fn show(&self) -> Result<String> {
        let how = "# Instructions of the hot paths; written by `cargo ci counts --bless`, do not edit.\n";
        Ok(format!("{how}\n{}", toml::to_string(self)?))
    }

    /// Compares counts with these thresholds. Growth is no failure under another toolchain, which may be its cause.
    pub(super) fn compare(&self, counted: &Thresholds) -> CountsVerdict {
        let mut verdict = CountsVerdict { table: String::new(), failures: Vec::new() };
        let same = counted.made == self.made;
        for (path, now) in &counted.instructions {
            let before = self.instructions.get(path);
            verdict.judge(path, before.copied(), *now, same);
        }
        for path in self.instructions.keys().filter(|path| !counted.instructions.contains_key(*path)) {
            verdict.failures.push(format!("{path} has a bar but was not counted"));
        }
        verdict.check_shares(&counted.instructions);
        if !same {
            let (theirs, ours) = (&self.made, &counted.made);
            writeln!(
                verdict.table,
                "skipped: growth is not judged, as the bars are of {theirs} and this is {ours}"
            )
            .expect("writing to a string");
        }
        if !verdict.failures.is_empty() {
            verdict.failures.push("if that is as it should be: cargo ci counts --bless".to_owned());
        }
        verdict
    }
}

impl CountsVerdict {
    /// Checks the paths that may take only a share of another one, under any toolchain.
    fn check_shares(&mut self, instructions: &BTreeMap<String, u64>) {
        for (part, whole, percent_max) in SHARES {
            let (Some(part_count), Some(whole_count)) = (instructions.get(part), instructions.get(whole))
            else {
                continue;
            };
            let percent = *part_count as f64 / (*whole_count).max(1) as f64 * 100.0;
            writeln!(self.table, "{part:<24} takes {percent:.2} % of {whole}, at most {percent_max} %")
                .expect("writing to a string");
            if part_count * 100 > whole_count * percent_max {
                self.failures.push(format!("{part} takes {percent:.2} % of {whole}"));
            }
        }
    }

    fn judge(&mut self, path: &str, before: Option<u64>, now: u64, same: bool) {
        let Some(before) = before else {
            self.failures.push(format!("{path} has no bar"));
            return;
        };
        let growth = (now as f64 / before.max(1) as f64 - 1.0) * 100.0;
        writeln!(self.table, "{path:<24} {now:>12} instructions {growth:>+7.2} %")
            .expect("writing to a string");
        if same && now * 100 > before * (100 + GROWTH_MAX) {
            self.failures.push(format!("{path} takes {growth:.1} % more instructions"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars<const N: usize>(instructions: [(&str, u64); N]) -> Thresholds {
        let made =
            Toolchain { rustc: "r".into(), valgrind: "v".into(), libc: "l".into(), processor: "p".into() };
        let instructions = instructions.map(|(path, count)| (path.to_owned(), count));
        Thresholds { made, instructions: instructions.into() }
    }

    #[test]
    fn only_processor_features_known_to_valgrind_count() {
        let old = processor("processor: 0\nflags\t\t: fpu sse4_2 avx avx2\n");
        assert_eq!(old, processor("flags : fpu sse4_2 avx avx2 avx512f\n"));
        assert_ne!(old, processor("flags : fpu sse4_2 avx\n"));
    }

    #[test]
    fn written_thresholds_read_back() {
        let bars = bars([("wal.append", 7), ("raft.lead", 8)]);
        assert_eq!(Thresholds::parse(&bars.show().unwrap()).unwrap(), bars);
    }

    #[test]
    fn five_percent_pass_and_more_does_not() {
        let old = bars([("a.b", 1000), ("c.d", 1000)]);
        assert!(old.compare(&bars([("a.b", 1050), ("c.d", 500)])).failures.is_empty());
        let verdict = old.compare(&bars([("a.b", 1051), ("c.d", 1000)]));
        let hint = "if that is as it should be: cargo ci counts --bless";
        assert_eq!(verdict.failures, ["a.b takes 5.1 % more instructions", hint]);
        assert_eq!(
            verdict.table,
            "a.b                              1051 instructions   +5.10 %\n\
             c.d                              1000 instructions   +0.00 %\n"
        );
    }

    #[test]
    fn switched_off_spans_take_at_most_one_percent_of_an_insert() {
        let counts = |spans| bars([("spans.off", spans), ("raft.lead", 1000)]);
        let verdict = counts(10).compare(&counts(10));
        assert!(verdict.failures.is_empty(), "{:?}", verdict.failures);
        assert!(verdict.table.ends_with("takes 1.00 % of raft.lead, at most 1 %\n"), "{}", verdict.table);
        let mut other = counts(11);
        other.made.libc = "other".into();
        assert_eq!(counts(11).compare(&other).failures[0], "spans.off takes 1.10 % of raft.lead");
    }

    #[test]
    fn thresholds_and_counts_have_the_same_paths() {
        let failures = bars([("a.b", 1)]).compare(&bars([("c.d", 1)])).failures;
        assert_eq!(failures[..2], ["c.d has no bar", "a.b has a bar but was not counted"]);
    }

    #[test]
    fn growth_under_other_tools_is_reported_and_does_not_fail() {
        let mut counted = bars([("a.b", 2)]);
        counted.made.libc = "other".into();
        let verdict = bars([("a.b", 1)]).compare(&counted);
        assert!(verdict.failures.is_empty(), "{:?}", verdict.failures);
        let lines: Vec<&str> = verdict.table.lines().collect();
        assert!(lines[0].ends_with("+100.00 %"), "{lines:?}");
        assert_eq!(
            lines[1],
            "skipped: growth is not judged, as the bars are of r, v, p, l and this is r, v, p, other"
        );
        counted.instructions.insert("c.d".into(), 1);
        assert_eq!(bars([("a.b", 1)]).compare(&counted).failures[0], "c.d has no bar");
    }
}
