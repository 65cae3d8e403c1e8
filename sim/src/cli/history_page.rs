//! HISTORY.md: the bugs that Kudu and systems of its kind shipped, and what killed each as a mutant.
//!
//! A patch with a line `# History: ISSUE` is such a bug. The page is written from the patches and all stored results
//! whenever a result is stored.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::mutant_results::MutantResult;

/// A mutant that is a bug of history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShippedBug {
    /// The name of the patch.
    pub mutant: String,
    /// The issue that reported the bug.
    issue: String,
    /// The bug in a sentence.
    summary: String,
    /// The reason for which no run can show the bug here, if it is a control.
    control: Option<String>,
}

impl ShippedBug {
    /// Returns the bug that the text of a patch describes; `None` if it names no issue.
    pub(super) fn parse(mutant: &str, patch: &str) -> Option<ShippedBug> {
        let head = || patch.lines().map_while(|line| line.strip_prefix("# "));
        let field = |name: &str| head().find_map(|line| line.strip_prefix(name)).map(str::to_string);
        let is_field = |line: &&str| FIELDS.iter().any(|field| line.starts_with(field));
        let summary = head().take_while(|line| !is_field(line)).collect::<Vec<_>>().join(" ");
        let control = field("Control: ");
        Some(ShippedBug { mutant: mutant.to_string(), issue: field("History: ")?, summary, control })
    }
}

/// Beginnings of the lines that follow the description of a patch.
const FIELDS: [&str; 4] = ["History: ", "Caught by: ", "Profile: ", "Control: "];

const HEAD: &str = "# Bugs that shipped

Written by `cargo sim mutants`. Each row is a bug of Apache Kudu or of a system of its kind, reported under `issue` and
a mutant here, of one to five lines. `killed by`: the oracle or invariant that reported a violation first.
`plan`: profile, size and seed of that run. `needs`: kinds of faults without which the mutant survives that plan; `?`:
not determined. `runs`, `CPU s`: all runs of the search, the killing one included, on one core. [MUTANTS.md](MUTANTS.md)
has all mutants.

";
const TABLE: &str = "| issue | mutant | what went wrong | killed by | plan | needs | runs | CPU s |
| --- | --- | --- | --- | --- | --- | --: | --: |
";

/// Returns the page of these bugs with their results.
fn page<'a>(bugs: &[ShippedBug], result: impl Fn(&str) -> Option<&'a MutantResult>) -> String {
    let (mut rows, mut controls, mut times) = (String::new(), String::new(), Vec::new());
    for ShippedBug { mutant, issue, summary, control } in bugs {
        let known = result(mutant);
        if let Some(reason) = control {
            let outcome = known.map_or("not searched", |known| match known.caught {
                Some(_) => "reported",
                None => "not reported",
            });
            let _ = writeln!(controls, "| {issue} | {mutant} | {summary} | {reason} | {outcome} |");
            continue;
        }
        let _ = write!(rows, "| {issue} | {mutant} | {summary} | ");
        let _ = match known {
            None => writeln!(rows, "not searched | | | | |"),
            Some(MutantResult { caught: None, seeds, cpu, .. }) => {
                writeln!(rows, "survived | | | {seeds} | {:.1} |", cpu.as_secs_f64())
            }
            Some(MutantResult { caught: Some((oracle, run)), needs, seeds, cpu, .. }) => {
                times.push(*cpu);
                let (needs, cpu) = (needs.join(", "), cpu.as_secs_f64());
                writeln!(rows, "{oracle} | {run} | {needs} | {seeds} | {cpu:.1} |")
            }
        };
    }
    times.sort();
    let all = bugs.iter().filter(|bug| bug.control.is_none()).count();
    let median = times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64);
    let (most, killed) = (times.last().map_or(0.0, Duration::as_secs_f64), times.len());
    let counts = format!(
        "Killed: {killed} of {all}. CPU seconds of the killed: median {median:.1}, most {most:.1}.\n\n"
    );
    let mut page = format!("{HEAD}{counts}{TABLE}{rows}");
    if !controls.is_empty() {
        page += "\nControls, whose patches no run can show:\n\n";
        page += "| issue | mutant | what went wrong | reason | outcome |\n";
        page += &format!("| --- | --- | --- | --- | --- |\n{controls}");
    }
    page
}

/// Writes the page of these bugs with their results.
pub(super) fn write<'a>(
    path: &Path,
    bugs: &[ShippedBug],
    result: impl Fn(&str) -> Option<&'a MutantResult>,
) -> Result<()> {
    // An interrupted write leaves the old file or the new one.
    let fresh = path.with_extension("new");
    fs::write(&fresh, page(bugs, result)).with_context(|| format!("writing {}", fresh.display()))?;
    fs::rename(&fresh, path).with_context(|| format!("renaming {}", fresh.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH: &str =
        "# A bug: it shipped.\n# History: KUDU-1\n# Caught by: rows (a restart).\n--- a/x\n+++ b/x\n";

    fn result(caught: Option<(&str, &str)>) -> MutantResult {
        let caught = caught.map(|(oracle, run)| (oracle.to_string(), run.to_string()));
        let (needs, cpu) = (vec!["kill".to_string(), "loss".to_string()], Duration::from_millis(1_250));
        MutantResult { caught, needs, seeds: 7, differ: 3, cpu, day: "2026-01-31".to_string() }
    }

    #[test]
    fn only_patches_that_name_an_issue_are_history() {
        let bug = ShippedBug::parse("1-bug", PATCH).expect("an issue");
        assert_eq!((bug.issue.as_str(), bug.summary.as_str()), ("KUDU-1", "A bug: it shipped."));
        assert_eq!(bug.control, None);
        assert_eq!(ShippedBug::parse("2-own", &PATCH.replace("# History: KUDU-1\n", "")), None);
    }

    #[test]
    fn the_page_has_a_row_for_each_bug_and_a_reason_for_each_control() {
        let reason = PATCH.replace("# Caught", "# Control: another check answers first.\n# Caught");
        let patches = [("1-a", PATCH), ("2-b", PATCH), ("3-c", PATCH), ("4-control-d", &reason)];
        let bugs: Vec<_> =
            patches.iter().filter_map(|(name, patch)| ShippedBug::parse(name, patch)).collect();
        let (killed, survived) = (result(Some(("rows", "swarm smoke 3"))), result(None));
        let page = page(&bugs, |name| match name {
            "1-a" => Some(&killed),
            "2-b" | "4-control-d" => Some(&survived),
            _ => None,
        });
        for line in [
            "Killed: 1 of 3. CPU seconds of the killed: median 1.2, most 1.2.",
            "| KUDU-1 | 1-a | A bug: it shipped. | rows | swarm smoke 3 | kill, loss | 7 | 1.2 |",
            "| KUDU-1 | 2-b | A bug: it shipped. | survived | | | 7 | 1.2 |",
            "| KUDU-1 | 3-c | A bug: it shipped. | not searched | | | | |",
            "| KUDU-1 | 4-control-d | A bug: it shipped. | another check answers first. | not reported |",
        ] {
            assert!(page.lines().any(|other| other == line), "no {line:?} in:\n{page}");
        }
    }
}
