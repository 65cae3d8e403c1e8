//! Results of runs: printed, stored, merged, reported.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use rusqlite::{Connection, params};

use super::arguments;
use super::plan_source::{PlanSource, RunOptions};
use crate::injector::FAULT_COUNTERS;
use crate::output::outln;
use crate::run::RunOutcome;
use sim_plan::FaultProfile;
use sim_plan::fault_weights::drawn_by;

/// All runs of one command.
pub(super) struct Results {
    pub runs: Vec<(PlanSource, RunOutcome)>,
    pub elapsed: Duration,
}

/// Lines of a violation's story that are printed, at most.
const STORY_LINES: usize = 30;

/// Prints the violations of a run and the commands to replay and shrink it.
pub(super) fn print_failures(outcome: &RunOutcome, source: &PlanSource) {
    for failure in &outcome.failures {
        outln!("FAIL {} {}: {}: {}", source.what, outcome.world, failure.oracle, failure.message);
        for line in failure.story.iter().take(STORY_LINES) {
            outln!("     {line}");
        }
        if std::env::var_os("GITHUB_ACTIONS").is_some() {
            outln!("::error title=sim seed {}::{}: {}", source.what, failure.oracle, failure.message);
        }
    }
    if !outcome.failures.is_empty() {
        let words = source.words().join(" ");
        outln!("     replay: cargo sim replay {words}");
        outln!("     shrink: cargo sim shrink {words}");
    }
}

impl Results {
    /// Returns the number of failed runs.
    pub(super) fn failures(&self) -> usize {
        self.runs.iter().filter(|(_, outcome)| !outcome.failures.is_empty()).count()
    }

    /// Returns the number of facts that oracles checked.
    pub(super) fn checked(&self) -> u64 {
        self.sum(|outcome| outcome.checked)
    }

    /// Returns the number of rows that oracles left undecided.
    pub(super) fn undecided(&self) -> u64 {
        self.sum(|outcome| outcome.undecided)
    }

    fn sum(&self, of: impl Fn(&RunOutcome) -> u64) -> u64 {
        self.runs.iter().map(|(_, outcome)| of(outcome)).sum()
    }

    fn tally(&self, of: impl Fn(&RunOutcome) -> &BTreeMap<String, u64>) -> BTreeMap<String, (u64, u64)> {
        let mut tally: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for (_, outcome) in &self.runs {
            for (name, count) in of(outcome) {
                let entry = tally.entry(name.clone()).or_default();
                *entry = (entry.0 + count, entry.1 + 1);
            }
        }
        tally
    }

    /// Returns the kinds of faults that these runs' plans draw from, and the device counters, that never fired.
    pub(super) fn never_fired(&self) -> Vec<&'static str> {
        let seeds = self.runs.iter().filter(|(source, _)| source.what.parse::<u64>().is_ok());
        let profiles: BTreeSet<FaultProfile> = seeds.map(|(source, _)| source.options.profile).collect();
        let drawn: BTreeSet<&str> = profiles.into_iter().flat_map(drawn_by).collect();
        let counted = FAULT_COUNTERS.iter().filter(|(kind, _)| drawn.contains(kind)).map(|(_, count)| *count);
        let fired = self.tally(|outcome| &outcome.fired);
        drawn.iter().copied().chain(counted).filter(|name| !fired.contains_key(*name)).collect()
    }

    /// Prints the summary.
    pub(super) fn print(&self) {
        let runs = self.runs.len();
        let seconds = self.elapsed.as_secs_f64();
        let cpu = self.sum(|outcome| outcome.cpu_ms) as f64 / 1e3;
        let simulated = self.sum(|outcome| outcome.simulated_ms) as f64 / 1e3;
        let ops = self.sum(|outcome| outcome.answered + outcome.unanswered);
        let oracles = 100.0 * self.sum(|outcome| outcome.judge_ms) as f64 / 1e3 / cpu.max(1e-3);
        outln!(
            "runs        {runs}, {} failed, {:.0} a minute",
            self.failures(),
            runs as f64 * 60.0 / seconds.max(1e-3)
        );
        outln!("CPU         {cpu:.1} s, {:.2} s a run; oracles {oracles:.0} %", cpu / runs.max(1) as f64);
        outln!("simulated   {simulated:.0} s, {:.0} s per CPU second", simulated / cpu.max(1e-3));
        outln!(
            "operations  {ops}, {} unanswered; {} rows written, {} read",
            self.sum(|outcome| outcome.unanswered),
            self.sum(|outcome| outcome.rows_written),
            self.sum(|outcome| outcome.rows_read),
        );
        outln!("checked     {} facts, {} rows undecided", self.checked(), self.undecided());
        let most = self.runs.iter().map(|(_, outcome)| outcome.rss_kib).max().unwrap_or(0);
        outln!("memory      {} MiB at most", most / 1024);
        print_tally("faults", &self.tally(|outcome| &outcome.fired));
        let silent = self.never_fired();
        outln!("never       {} kinds of faults: {}", silent.len(), silent.join("; "));
        let mut marks = self.tally(|outcome| &outcome.marks);
        // `cargo sim coverage` prints the cells of model tables.
        let others = [crate::model_oracle::coverage::PREFIX, crate::oracle::answers::PREFIX];
        marks.retain(|name, _| !others.iter().any(|prefix| name.starts_with(prefix)));
        print_tally("marks", &marks);
        let never = crate::marks::unreached(&marks);
        outln!("never       {} of {} marks: {}", never.len(), crate::marks::MARKS.len(), never.join("; "));
        for (source, outcome) in self.runs.iter().filter(|(_, outcome)| !outcome.failures.is_empty()) {
            let first = &outcome.failures[0];
            outln!("FAIL {} {}: {}", source.what, first.oracle, first.message);
            outln!("     cargo sim replay {}", source.words().join(" "));
        }
    }
}

fn print_tally(what: &str, tally: &BTreeMap<String, (u64, u64)>) {
    if tally.is_empty() {
        return;
    }
    outln!("{what:<12}{:<28}{:>10}{:>10}", "", "times", "runs");
    for (name, (times, runs)) in tally {
        outln!("{:<12}{name:<28}{times:>10}{runs:>10}", "");
    }
}

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS runs (
    what TEXT NOT NULL, world TEXT NOT NULL, profile TEXT NOT NULL, size TEXT NOT NULL,
    hash TEXT NOT NULL, events INTEGER NOT NULL, simulated_ms INTEGER NOT NULL, answered INTEGER NOT NULL,
    unanswered INTEGER NOT NULL, cpu_ms INTEGER NOT NULL, judge_ms INTEGER NOT NULL, rss_kib INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    PRIMARY KEY (what, world, profile, size));
CREATE TABLE IF NOT EXISTS failures (
    what TEXT NOT NULL, world TEXT NOT NULL, profile TEXT NOT NULL, size TEXT NOT NULL,
    number INTEGER NOT NULL, oracle TEXT NOT NULL, message TEXT NOT NULL,
    PRIMARY KEY (what, world, profile, size, number));
CREATE TABLE IF NOT EXISTS fired (
    what TEXT NOT NULL, world TEXT NOT NULL, profile TEXT NOT NULL, size TEXT NOT NULL,
    fault TEXT NOT NULL, times INTEGER NOT NULL,
    PRIMARY KEY (what, world, profile, size, fault));
CREATE TABLE IF NOT EXISTS marks (
    what TEXT NOT NULL, world TEXT NOT NULL, profile TEXT NOT NULL, size TEXT NOT NULL,
    mark TEXT NOT NULL, times INTEGER NOT NULL,
    PRIMARY KEY (what, world, profile, size, mark));
";

/// Version of the tables; files of another version are not written.
const SCHEMA_VERSION: i64 = 2;

/// Opens a file of results and creates it if missing.
fn open(path: &Path) -> Result<Connection> {
    let db = Connection::open(path).with_context(|| format!("opening {}", path.display()))?;
    let tables: i64 = db.query_row("SELECT COUNT(*) FROM sqlite_master", [], |row| row.get(0))?;
    if tables == 0 {
        db.execute_batch(SCHEMA)?;
        db.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    }
    let version: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version != SCHEMA_VERSION {
        let (name, known) = (path.display(), SCHEMA_VERSION);
        let message = format!("{name} holds results of version {version}, not {known}; use another file");
        return Err(arguments::wrong(message));
    }
    Ok(db)
}

/// Stores results in a SQLite file; replaces a run that is already there.
pub(super) fn store(path: &Path, options: &RunOptions, results: &Results) -> Result<()> {
    let mut db = open(path)?;
    let transaction = db.transaction()?;
    for (source, outcome) in &results.runs {
        insert(&transaction, &source.what, options, outcome)?;
    }
    transaction.commit()?;
    Ok(())
}

/// Converts to SQLite's integer.
fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn insert(db: &Connection, what: &str, options: &RunOptions, outcome: &RunOutcome) -> Result<()> {
    let (world, profile, size) = (options.world.word(), options.profile.word(), options.size.word());
    db.execute(
        "INSERT OR REPLACE INTO runs VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
        params![
            what,
            world,
            profile,
            size,
            outcome.hash,
            int(outcome.events),
            int(outcome.simulated_ms),
            int(outcome.answered),
            int(outcome.unanswered),
            int(outcome.cpu_ms),
            int(outcome.judge_ms),
            int(outcome.rss_kib),
            serde_json::to_string(outcome)?
        ],
    )?;
    for table in ["failures", "fired", "marks"] {
        let same = "what = ? AND world = ? AND profile = ? AND size = ?";
        let run = params![what, world, profile, size];
        db.execute(&format!("DELETE FROM {table} WHERE {same}"), run)?;
    }
    for (number, failure) in outcome.failures.iter().enumerate() {
        let row = params![what, world, profile, size, number as i64, failure.oracle, failure.message];
        db.execute("INSERT INTO failures VALUES (?,?,?,?,?,?,?)", row)?;
    }
    for (table, counts) in [("fired", &outcome.fired), ("marks", &outcome.marks)] {
        for (name, times) in counts {
            let row = params![what, world, profile, size, name, int(*times)];
            db.execute(&format!("INSERT INTO {table} VALUES (?,?,?,?,?,?)"), row)?;
        }
    }
    Ok(())
}

#[derive(Args)]
pub(super) struct MergeArgs {
    /// The file that receives everything
    into: PathBuf,
    /// The shards' files
    #[arg(required = true)]
    from: Vec<PathBuf>,
}

/// Merges shards and prints their summary.
pub(super) fn merge(args: &MergeArgs) -> Result<bool> {
    let db = open(&args.into)?;
    for path in &args.from {
        let name = path.display().to_string();
        if !path.is_file() {
            return Err(arguments::wrong(format!("{name}: no such file; name the files of shards")));
        }
        drop(open(path)?);
        db.execute("ATTACH DATABASE ? AS shard", params![name]).with_context(|| format!("reading {name}"))?;
        for table in ["runs", "failures", "fired", "marks"] {
            db.execute(&format!("INSERT OR REPLACE INTO main.{table} SELECT * FROM shard.{table}"), [])?;
        }
        db.execute("DETACH DATABASE shard", [])?;
    }
    let mut rows = db.prepare("SELECT what, world, profile, size, outcome FROM runs ORDER BY what, world")?;
    let rows = rows.query_map([], |row| {
        Ok([row.get::<_, String>(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?])
    })?;
    let mut runs = Vec::new();
    for row in rows {
        runs.push(stored(row?)?);
    }
    if runs.is_empty() {
        let name = args.into.display();
        return Err(arguments::wrong(format!("{name}: no run; name the files of shards")));
    }
    let cpu = runs.iter().map(|(_, outcome)| outcome.cpu_ms).sum();
    let results = Results { runs, elapsed: Duration::from_millis(cpu) };
    results.print();
    Ok(results.failures() == 0)
}

fn stored([what, world, profile, size, outcome]: [String; 5]) -> Result<(PlanSource, RunOutcome)> {
    use sim_plan::line_format::LineField;
    let unknown = |word: &str| anyhow::anyhow!("{word:?} is unknown to this version");
    let options = RunOptions {
        world: LineField::parse(&world).ok_or_else(|| unknown(&world))?,
        profile: LineField::parse(&profile).ok_or_else(|| unknown(&profile))?,
        size: LineField::parse(&size).ok_or_else(|| unknown(&size))?,
    };
    Ok((PlanSource { what, options }, serde_json::from_str(&outcome)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{ViolationRecord, WorldKind};
    use sim_plan::PlanSize;

    fn results(what: &str, failures: Vec<ViolationRecord>) -> (RunOptions, Results) {
        let options =
            RunOptions { world: WorldKind::Turmoil, profile: FaultProfile::Calm, size: PlanSize::Smoke };
        let source = PlanSource { what: what.to_string(), options: options.clone() };
        let fired = BTreeMap::from([("kill".to_string(), 2)]);
        let outcome = RunOutcome { answered: 7, fired, failures, ..RunOutcome::default() };
        (options, Results { runs: vec![(source, outcome)], elapsed: Duration::from_secs(1) })
    }

    #[test]
    fn a_fault_that_never_fired_is_named() {
        let run = |profile, fired: &[&str]| {
            let options = RunOptions { world: WorldKind::Madsim, profile, size: PlanSize::Smoke };
            let fired = fired.iter().map(|name| (name.to_string(), 1)).collect();
            (PlanSource { what: "1".to_string(), options }, RunOutcome { fired, ..RunOutcome::default() })
        };
        let never = |runs| Results { runs, elapsed: Duration::ZERO }.never_fired();
        assert_eq!(never(vec![run(FaultProfile::Calm, &[])]), [""; 0]);
        assert_eq!(never(vec![run(FaultProfile::Memory, &["memory"])]), ["slow-cpu"]);
        let clock = run(FaultProfile::Clock, &["clock-jump", "clock-drift", "clock-step"]);
        assert_eq!(never(vec![clock.clone()]), ["clock-error"]);
        let disk = never(vec![clock, run(FaultProfile::Disk, &["disk-full"])]);
        assert!(disk.contains(&"disk: full") && disk.contains(&"sync-error"), "{disk:?}");
    }

    #[test]
    fn a_seed_has_a_result_for_every_profile() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("all.db");
        let wrong = ViolationRecord { oracle: "once".into(), message: "twice".into(), story: Vec::new() };
        let (options, failed) = results("1", vec![wrong]);
        store(&path, &options, &failed).expect("a new file");
        let (_, clean) = results("1", Vec::new());
        store(&path, &RunOptions { profile: FaultProfile::Disk, ..options }, &clean).expect("the same file");
        let db = Connection::open(&path).expect("it was made");
        let count = |table: &str| {
            let sql = format!("SELECT COUNT(*) FROM {table}");
            db.query_row(&sql, [], |row| row.get::<_, i64>(0)).expect("a table of the schema")
        };
        assert_eq!(["runs", "failures", "fired"].map(count), [2, 1, 2]);
        db.pragma_update(None, "user_version", 1).expect("a number");
        let error = open(&path).expect_err("an older file").to_string();
        assert!(error.contains("use another file"), "{error}");
    }

    #[test]
    fn shards_are_stored_and_merged() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| dir.path().join(name);
        let wrong =
            ViolationRecord { oracle: "once".into(), message: "<twice>".into(), story: vec!["a & b".into()] };
        let (options, clean) = results("1", Vec::new());
        let (_, failed) = results("2", vec![wrong]);
        store(&path("a.db"), &options, &clean).expect("a new file");
        store(&path("a.db"), &options, &clean).expect("a run may be stored again");
        store(&path("b.db"), &options, &failed).expect("a new file");
        let from = vec![path("a.db"), path("b.db")];
        let merged = merge(&MergeArgs { into: path("all.db"), from }).expect("both are there");
        assert!(!merged, "one run failed");
        let db = Connection::open(path("all.db")).expect("it was made");
        let sum =
            |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("a table of the schema");
        assert_eq!(sum("SELECT SUM(answered) FROM runs"), 14);
        assert_eq!(sum("SELECT SUM(times) FROM fired"), 4);
        assert_eq!(sum("SELECT COUNT(*) FROM failures"), 1);
        assert!(merge(&MergeArgs { into: path("all.db"), from: vec![path("none.db")] }).is_err());
        let twice = MergeArgs { into: path("all.db"), from: vec![path("b.db")] };
        merge(&twice).expect("a shard may be merged again");
        assert_eq!(sum("SELECT SUM(times) FROM fired"), 4);
    }
}
