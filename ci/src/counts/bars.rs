//! What the paths took when somebody last looked, and how much more they may.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::command::Run;

/// More than this above its bar, in percent, and a path has become slower.
const GROWTH_MAX: u64 = 5;

/// What decides over counts besides the code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// The compiler.
    rustc: String,
    /// Whose processor it is, and what it is made after: valgrind leaves out what the machine's does not have.
    valgrind: String,
    processor: String,
    /// Whose `memcpy` and `malloc`.
    libc: String,
}

impl Made {
    pub fn here() -> Result<Made> {
        let first = |program: &str, word: &str| -> Result<String> {
            let said = Run::new(program).args([word]).output()?.stdout;
            Ok(said.lines().next().with_context(|| format!("{program} says nothing"))?.to_owned())
        };
        Ok(Made {
            rustc: first("rustc", "--version")?,
            valgrind: first("valgrind", "--version")?,
            libc: first("getconf", "GNU_LIBC_VERSION")?,
            processor: processor(&fs::read_to_string("/proc/cpuinfo")?),
        })
    }
}

impl std::fmt::Display for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Made { rustc, valgrind, processor, libc } = self;
        write!(f, "{rustc}, {valgrind}, {processor}, {libc}")
    }
}

/// As valgrind has it: it knows AVX2 and nothing newer, and calls every processor with AVX2 by the same name, so that
/// maker and model of the machine's decide over nothing.
fn processor(cpuinfo: &str) -> String {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag: &&str| flags.split_whitespace().any(|word| word == *flag);
    let known: Vec<&str> = ["sse4_2", "avx", "avx2", "bmi2"].into_iter().filter(has).collect();
    format!("{} {}", std::env::consts::ARCH, known.join(" "))
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bars {
    pub made: Made,
    /// By path.
    pub instructions: BTreeMap<String, u64>,
}

/// What is to be printed, and what is wrong.
pub struct Verdict {
    /// A line for each path; the last says why growth was not judged, if it was not.
    pub table: String,
    pub failures: Vec<String>,
}

impl Bars {
    pub fn parse(text: &str) -> Result<Bars> {
        toml::from_str(text).context("the bars cannot be read")
    }

    pub fn show(&self) -> Result<String> {
        let how = "# Instructions of the hot paths; written by `cargo ci counts --bless`, do not edit.\n";
        Ok(format!("{how}\n{}", toml::to_string(self)?))
    }

    /// Compares what was counted with these bars. Growth is no failure if other tools made the counts: it may be
    /// theirs.
    pub fn judge(&self, counted: &Bars) -> Verdict {
        let mut verdict = Verdict { table: String::new(), failures: Vec::new() };
        let same = counted.made == self.made;
        for (path, now) in &counted.instructions {
            let before = self.instructions.get(path);
            verdict.judge(path, before.copied(), *now, same);
        }
        for path in self.instructions.keys().filter(|path| !counted.instructions.contains_key(*path)) {
            verdict.failures.push(format!("{path} has a bar but was not counted"));
        }
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

impl Verdict {
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

    fn bars<const N: usize>(instructions: [(&str, u64); N]) -> Bars {
        let made = Made { rustc: "r".into(), valgrind: "v".into(), libc: "l".into(), processor: "p".into() };
        let instructions = instructions.map(|(path, count)| (path.to_owned(), count));
        Bars { made, instructions: instructions.into() }
    }

    #[test]
    fn of_a_processor_only_what_valgrind_knows_counts() {
        let old = processor("processor: 0\nflags\t\t: fpu sse4_2 avx avx2\n");
        assert_eq!(old, processor("flags : fpu sse4_2 avx avx2 avx512f\n"));
        assert_ne!(old, processor("flags : fpu sse4_2 avx\n"));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let bars = bars([("wal.append", 7), ("raft.lead", 8)]);
        assert_eq!(Bars::parse(&bars.show().unwrap()).unwrap(), bars);
    }

    #[test]
    fn five_percent_pass_and_more_does_not() {
        let old = bars([("a.b", 1000), ("c.d", 1000)]);
        assert!(old.judge(&bars([("a.b", 1050), ("c.d", 500)])).failures.is_empty());
        let verdict = old.judge(&bars([("a.b", 1051), ("c.d", 1000)]));
        let hint = "if that is as it should be: cargo ci counts --bless";
        assert_eq!(verdict.failures, ["a.b takes 5.1 % more instructions", hint]);
        assert_eq!(
            verdict.table,
            "a.b                              1051 instructions   +5.10 %\n\
             c.d                              1000 instructions   +0.00 %\n"
        );
    }

    #[test]
    fn bars_and_counts_are_of_the_same_paths() {
        let failures = bars([("a.b", 1)]).judge(&bars([("c.d", 1)])).failures;
        assert_eq!(failures[..2], ["c.d has no bar", "a.b has a bar but was not counted"]);
    }

    #[test]
    fn growth_under_other_tools_is_told_but_not_judged() {
        let mut counted = bars([("a.b", 2)]);
        counted.made.libc = "other".into();
        let verdict = bars([("a.b", 1)]).judge(&counted);
        assert!(verdict.failures.is_empty(), "{:?}", verdict.failures);
        let lines: Vec<&str> = verdict.table.lines().collect();
        assert!(lines[0].ends_with("+100.00 %"), "{lines:?}");
        assert_eq!(
            lines[1],
            "skipped: growth is not judged, as the bars are of r, v, p, l and this is r, v, p, other"
        );
        counted.instructions.insert("c.d".into(), 1);
        assert_eq!(bars([("a.b", 1)]).judge(&counted).failures[0], "c.d has no bar");
    }
}
