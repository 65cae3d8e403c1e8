//! The compatibility page, `ci/COMPATIBILITY.md`. Results of a side that did not run stay on the page: all classes on
//! both sides take an hour.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::upstream::{ClassRun, TestClass, TestOutcome, TestVerdict};

const PAGE: &str = "ci/COMPATIBILITY.md";

const OTHER_CLIENTS: &str = "
## Other clients

`cargo ci interop` also runs the real `kudu` tool of Kudu 1.18.1 and `ci/java/Interop.java`, a program on the
Java client 1.18.1; both pass whole, against nyala as against real Kudu (`--server kudu`).

`cargo ci interop WORD` runs clients that others wrote on top of the Java client, each by a program in
`ci/java/clients` that compares answers with rows of its own and, where the client pushes predicates down, reads from
the tablet servers' metrics that it did; all pass against nyala as against real Kudu (`--server kudu`). `spark` runs in
every `cargo ci`, the others at night:

| word | client | what runs |
|---|---|---|
| spark | kudu-spark3 1.18.1 on Spark 3.5.7 | 13 types, 38 predicates, size for joins, aggregates, SQL, writes, errors |
| spark-upstream | the same | the connector's own 75 tests, of 1.17.1; the same 72 pass on both |
| flink | flink-connector-kudu 2.0.0 on Flink 1.19.1 | catalog, inserts, filters, aggregates, a join, upserts, rename |
| beam | KuduIO 2.71.0 (client 1.11.1) | write, upsert, delete, four kinds of read, a failing insert |
| trino | Trino 368 (client 1.10.0) | TPC-H's tables copied, 7 queries beside their generator, DDL, push-down, DML |
| camel | camel-kudu 4.17.0 | create, insert, update, upsert, delete, scans |
| nifi | PutKudu of NiFi 1.21.0 (client 1.16.0) | seven operations, three flush modes, failures, schema drift |
| old-clients | Java clients 1.9.0, 1.10.0, 1.15.0 | 13 checks of DDL, writes, predicates, scan tokens, consistency |

In all of them MapReduce's place in the Kudu paper (section 5) is taken by Spark. The last release of `kudu-mapreduce`,
1.9.0 with the Java client of that time, was run by hand as local jobs of Hadoop 3.3.6: `ImportCsv`, `RowCounter` and
`ExportCsv` succeed, and what was exported is what was imported.

The Python client (`kudu-python` 1.18.1) is not run: it is published as sources only, and building them stops with
`Cannot find installed kudu client.`, as they need the C++ client's headers (`kudu/client/client.h`), which no
package of Debian and none of the `kudu-binary` artifacts has. It is built on the same C++ library as the `kudu` tool.
";

/// Results of a class on both sides; a run that failed to start has the reason.
pub(super) struct ReportRow {
    pub class: String,
    pub expected: TestClass,
    pub nyala: Result<ClassRun>,
    pub kudu: Result<ClassRun>,
}

/// Replaces the page.
pub(super) fn write(root: &Path, setting: &str, rows: &[ReportRow]) -> Result<()> {
    let commit =
        crate::command::CommandLine::new("git").args(["rev-parse", "--short", "HEAD"]).dir(root).output()?;
    let date = crate::command::CommandLine::new("date").args(["-u", "+%F"]).output()?;
    let path = root.join(PAGE);
    let before = PreviousReport(fs::read_to_string(&path)?);
    let page = page(&before, setting, commit.stdout.trim(), date.stdout.trim(), rows)?;
    Ok(fs::write(path, page)?)
}

/// A tested side: name, column, and runs.
struct Side {
    name: &'static str,
    column: usize,
    run: fn(&ReportRow) -> &Result<ClassRun>,
}

const SIDES: [Side; 2] = [
    Side { name: "nyala", column: 2, run: |row| &row.nyala },
    Side { name: "Kudu", column: 3, run: |row| &row.kudu },
];

/// The page that is replaced.
struct PreviousReport(String);

impl PreviousReport {
    /// Returns the cells of a class for one side; `None` if the page has none.
    fn cells(&self, class: &str, side: &Side) -> Option<(String, String)> {
        let mut rows = self.0.lines().filter(|line| line.starts_with("| "));
        let row = rows.find(|row| row.split(" | ").next() == Some(&format!("| {class}")))?;
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (said, seconds) = (cells.get(side.column)?, cells.get(side.column + 2)?);
        said.starts_with(|first: char| first.is_ascii_digit())
            .then(|| (said.to_string(), seconds.to_string()))
    }

    /// Returns the rows with the failures of a class on one side.
    fn failures<'a>(&'a self, class: &'a str, side: &'a Side) -> impl Iterator<Item = &'a str> {
        let (of, at) = (format!("| {class}."), format!(" | {}", side.name));
        self.0.lines().filter(move |line| line.starts_with(&of) && line.contains(&at))
    }

    /// Returns date and versions of the side's recording.
    fn recorded(&self, side: &Side) -> Option<&str> {
        let kept = format!("{KEPT}{}: ", side.name);
        let line = self.0.lines().find_map(|line| line.strip_prefix(&kept));
        let fresh = || {
            let line = self.0.lines().find(|line| line.starts_with("Written by"))?;
            line.split_once(" on ")?.1.split_once(';').map(|(recorded, _)| recorded)
        };
        line.map(|line| line.trim_end_matches('.')).or_else(fresh)
    }
}

/// Start of the line on results of an earlier recording.
const KEPT: &str = "Not run then, and kept from the page before, of ";

fn page(
    before: &PreviousReport,
    setting: &str,
    commit: &str,
    date: &str,
    rows: &[ReportRow],
) -> Result<String> {
    let mut page = String::new();
    writeln!(page, "# Upstream's tests of the Java client against nyala and Kudu\n")?;
    writeln!(page, "Written by `cargo ci interop record` on {date} at {commit}; do not edit. {setting}")?;
    writeln!(
        page,
        "Kudu's column is its own 1.18.1 servers, started by its own `kudu test mini_cluster`.\n"
    )?;
    writeln!(
        page,
        "A test that fails is run once more by itself; one that passes then counts as passed, and is flaky.\n"
    )?;
    for side in &SIDES {
        let kept = |row: &ReportRow| (side.run)(row).is_err() && before.cells(&row.class, side).is_some();
        if let (true, Some(recorded)) = (rows.iter().any(kept), before.recorded(side)) {
            writeln!(page, "{KEPT}{}: {recorded}.\n", side.name)?;
        }
    }
    let [ours, theirs] = SIDES.each_ref().map(|side| sum(before, rows, side));
    writeln!(page, "{} classes. nyala: {ours}. Kudu: {theirs}.\n", rows.len())?;
    writeln!(page, "| class | nyala passed | Kudu passed | nyala s | Kudu s | in `cargo ci` | note |")?;
    writeln!(page, "|---|---|---|---|---|---|---|")?;
    for row in rows {
        let required = if row.expected.required { "yes" } else { "" };
        let [(nyala, nyala_s), (kudu, kudu_s)] = SIDES.each_ref().map(|side| cells(before, row, side));
        let waits = &row.expected.waits_for;
        writeln!(page, "| {} | {nyala} | {kudu} | {nyala_s} | {kudu_s} | {required} | {waits} |", row.class)?;
    }
    failures(&mut page, before, rows)?;
    page.push_str(OTHER_CLIENTS);
    Ok(page)
}

fn sum(before: &PreviousReport, rows: &[ReportRow], side: &Side) -> String {
    let mut sums = [0, 0, 0];
    for row in rows {
        let counts = counts(&cells(before, row, side).0);
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let [passed, flaky, failed] = sums;
    format!("{passed} tests passed ({flaky} of them flaky), {failed} failed")
}

/// Returns the numbers of passed, flaky and failed tests in a cell of [`cells`].
fn counts(cell: &str) -> [usize; 3] {
    let mut parts = cell.split(", ");
    let number = |text: &str| text.split(' ').next().and_then(|number| number.parse().ok());
    let ran = parts.next().unwrap_or_default();
    let passed: usize = number(ran).unwrap_or(0);
    let all = ran.split_once(" of ").and_then(|(_, all)| number(all)).unwrap_or(passed);
    let flaky = parts.find(|part| part.ends_with(" flaky")).and_then(number).unwrap_or(0);
    [passed, flaky, all - passed]
}

/// Returns the number of passed tests and their time in seconds: of this run, or else from the previous page.
fn cells(before: &PreviousReport, row: &ReportRow, side: &Side) -> (String, String) {
    let run = match (side.run)(row) {
        Ok(run) => run,
        Err(error) => {
            let kept = before.cells(&row.class, side);
            return kept.unwrap_or_else(|| (cell(&error.to_string()), String::new()));
        }
    };
    let (passed, all) = (run.passed(), run.outcomes.len() - run.count(TestVerdict::Ignored));
    let mut said = if passed == all { passed.to_string() } else { format!("{passed} of {all}") };
    if run.count(TestVerdict::Flaky) > 0 {
        said += &format!(", {} flaky", run.count(TestVerdict::Flaky));
    }
    if run.timed_out {
        said += ", stopped: took too long";
    }
    (said, format!("{:.0}", run.seconds()))
}

fn failures(page: &mut String, before: &PreviousReport, rows: &[ReportRow]) -> Result<()> {
    writeln!(page, "\n## What failed\n\n| test | at | what it said | reason |\n|---|---|---|---|")?;
    for row in rows {
        for side in &SIDES {
            match (side.run)(row) {
                Ok(run) => {
                    run.outcomes.iter().try_for_each(|outcome| failure(page, row, side.name, outcome))?
                }
                Err(_) => before.failures(&row.class, side).try_for_each(|line| writeln!(page, "{line}"))?,
            }
        }
    }
    Ok(())
}

fn failure(page: &mut String, row: &ReportRow, name: &str, outcome: &TestOutcome) -> std::fmt::Result {
    let at = match outcome.verdict {
        TestVerdict::Fail => name.to_owned(),
        TestVerdict::Flaky => format!("{name}, flaky"),
        TestVerdict::Pass | TestVerdict::Ignored => return Ok(()),
    };
    let reason = row.expected.known.get(&outcome.test).unwrap_or(&row.expected.waits_for);
    writeln!(page, "| {}.{} | {at} | {} | {reason} |", row.class, outcome.test, cell(&outcome.message))
}

/// Shortens text for a cell of the table. Addresses and ids differ from run to run and are dropped.
fn cell(text: &str) -> String {
    let text: String = text.replace('|', "\\|").chars().take(160).collect();
    text.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_row_per_class_and_one_per_failure() {
        let outcome = |test: &str, verdict, message: &str| TestOutcome {
            test: test.to_owned(),
            verdict,
            milliseconds: 1200,
            message: message.to_owned(),
        };
        let outcomes =
            vec![outcome("testA", TestVerdict::Pass, ""), outcome("testB", TestVerdict::Fail, "a | b")];
        let nyala = ClassRun { outcomes, timed_out: false };
        let outcomes =
            vec![outcome("testA", TestVerdict::Flaky, "slow"), outcome("testB", TestVerdict::Pass, "")];
        let kudu = ClassRun { outcomes, timed_out: false };
        let known = [("testB".to_owned(), "its words".to_owned())].into();
        let expected = TestClass { required: true, known, ..TestClass::default() };
        let rows = [
            ReportRow { class: "TestX".to_owned(), expected, nyala: Ok(nyala), kudu: Ok(kudu) },
            ReportRow {
                class: "TestY".to_owned(),
                expected: TestClass { waits_for: "TLS".to_owned(), ..TestClass::default() },
                nyala: Err(anyhow::anyhow!("no such class")),
                kudu: Err(anyhow::anyhow!("not run")),
            },
        ];
        let page =
            page(&PreviousReport(String::new()), "One master.", "abc1234", "2026-11-21", &rows).unwrap();
        assert!(page.contains("on 2026-11-21 at abc1234; do not edit. One master."), "{page}");
        let sums = "2 classes. nyala: 1 tests passed (0 of them flaky), 1 failed. \
            Kudu: 2 tests passed (1 of them flaky), 0 failed.";
        assert!(page.contains(sums), "{page}");
        assert!(page.contains("| TestX | 1 of 2 | 2, 1 flaky | 2 | 2 | yes |  |"), "{page}");
        assert!(page.contains("| TestY | no such class | not run |  |  |  | TLS |"), "{page}");
        assert!(page.contains("| TestX.testB | nyala | a \\| b | its words |"), "{page}");
        assert!(page.contains("| TestX.testA | Kudu, flaky | slow |  |"), "{page}");
        kept(page, rows);
    }

    /// Checks that a run of nyala alone keeps Kudu's column and notes it, also twice.
    fn kept(mut page: String, rows: [ReportRow; 2]) {
        let [mut row, _] = rows;
        row.kudu = Err(anyhow::anyhow!("not run"));
        let rows = [row];
        for commit in ["def5678", "0123456"] {
            page = super::page(&PreviousReport(page), "One master.", commit, "2026-11-22", &rows).unwrap();
            assert!(page.contains("page before, of Kudu: 2026-11-21 at abc1234.\n"), "{page}");
            assert!(!page.contains("page before, of nyala"), "{page}");
            assert!(page.contains("| TestX | 1 of 2 | 2, 1 flaky | 2 | 2 | yes |  |"), "{page}");
            assert!(page.contains("| TestX.testA | Kudu, flaky | slow |  |"), "{page}");
            assert!(page.contains("Kudu: 2 tests passed (1 of them flaky), 0 failed."), "{page}");
        }
    }
}
