//! The compatibility page, `ci/COMPATIBILITY.md`, written by a run.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::upstream::{Class, ClassRun, Verdict};

const PAGE: &str = "ci/COMPATIBILITY.md";

const OTHER_CLIENTS: &str = "
## Other clients

`cargo ci interop` also runs the real `kudu` tool of Kudu 1.18.1 and `ci/java/Interop.java`, a program on the
Java client 1.18.1; both pass whole, against nyala as against real Kudu (`--server kudu`).

The Python client (`kudu-python` 1.18.1) is not run: it is published as sources only, and building them stops with
`Cannot find installed kudu client.`, as they need the C++ client's headers (`kudu/client/client.h`), which no
package of Debian and none of the `kudu-binary` artifacts has. It is built on the same C++ library as the `kudu` tool.
";

/// A class and how it went; a class that could not be run has the reason.
pub struct Row {
    pub class: String,
    pub expected: Class,
    pub run: Result<ClassRun>,
}

/// Replaces the page.
pub fn write(root: &Path, server: &str, setting: &str, rows: &[Row]) -> Result<()> {
    let commit = crate::command::Run::new("git").args(["rev-parse", "--short", "HEAD"]).dir(root).output()?;
    let date = crate::command::Run::new("date").args(["-u", "+%F"]).output()?;
    let page = page(server, setting, commit.stdout.trim(), date.stdout.trim(), rows)?;
    Ok(fs::write(root.join(PAGE), page)?)
}

fn page(server: &str, setting: &str, commit: &str, date: &str, rows: &[Row]) -> Result<String> {
    let mut page = String::new();
    let runs = || rows.iter().filter_map(|row| row.run.as_ref().ok());
    let passed: usize = runs().map(|run| run.count(Verdict::Pass)).sum();
    let failed: usize = runs().map(|run| run.count(Verdict::Fail)).sum();
    writeln!(page, "# Upstream's tests of the Java client against {server}\n")?;
    writeln!(page, "Written by `cargo ci interop record` on {date} at {commit}; do not edit. {setting}\n")?;
    writeln!(page, "{} classes, {passed} tests passed, {failed} failed.\n", rows.len())?;
    writeln!(page, "| class | passed | failed | ignored | seconds | in `cargo ci` | note |")?;
    writeln!(page, "|---|---|---|---|---|---|---|")?;
    for row in rows {
        let required = if row.expected.required { "yes" } else { "" };
        let waits = &row.expected.waits_for;
        match &row.run {
            Ok(run) => {
                let [pass, fail, ignored] =
                    [Verdict::Pass, Verdict::Fail, Verdict::Ignored].map(|verdict| run.count(verdict));
                let note = if run.timed_out { "stopped: took too long" } else { waits };
                writeln!(
                    page,
                    "| {} | {pass} | {fail} | {ignored} | {:.0} | {required} | {note} |",
                    row.class,
                    run.seconds()
                )?;
            }
            Err(error) => {
                writeln!(page, "| {} | | | | | {required} | {} |", row.class, cell(&error.to_string()))?
            }
        }
    }
    failures(&mut page, rows)?;
    page.push_str(OTHER_CLIENTS);
    Ok(page)
}

fn failures(page: &mut String, rows: &[Row]) -> Result<()> {
    writeln!(page, "\n## What failed\n\n| test | what it said | reason |\n|---|---|---|")?;
    for row in rows {
        for failure in row.run.iter().flat_map(ClassRun::failures) {
            let reason = row.expected.known.get(&failure.test).unwrap_or(&row.expected.waits_for);
            writeln!(page, "| {}.{} | {} | {reason} |", row.class, failure.test, cell(&failure.message))?;
        }
    }
    Ok(())
}

/// Text that fits a cell of the table. Addresses and ids differ from run to run and say nothing.
fn cell(text: &str) -> String {
    let text: String = text.replace('|', "\\|").chars().take(160).collect();
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interop::upstream::Outcome;

    #[test]
    fn a_page_has_a_row_per_class_and_one_per_failure() {
        let outcome = |test: &str, verdict, message: &str| Outcome {
            test: test.to_owned(),
            verdict,
            milliseconds: 1200,
            message: message.to_owned(),
        };
        let outcomes = vec![outcome("testA", Verdict::Pass, ""), outcome("testB", Verdict::Fail, "a | b")];
        let run = ClassRun { outcomes, timed_out: false };
        let expected = Class { required: true, ..Class::default() };
        let rows = [
            Row { class: "TestX".to_owned(), expected, run: Ok(run) },
            Row {
                class: "TestY".to_owned(),
                expected: Class::default(),
                run: Err(anyhow::anyhow!("no such class")),
            },
        ];
        let page = page("nyala", "One master.", "abc1234", "2026-11-21", &rows).unwrap();
        assert!(page.contains("on 2026-11-21 at abc1234; do not edit. One master."), "{page}");
        assert!(page.contains("2 classes, 1 tests passed, 1 failed."), "{page}");
        assert!(page.contains("| TestX | 1 | 1 | 0 | 2 | yes |  |"), "{page}");
        assert!(page.contains("| TestY | | | | |  | no such class |"), "{page}");
        assert!(page.contains("| TestX.testB | a \\| b |  |"), "{page}");
    }
}
