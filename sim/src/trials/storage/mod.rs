//! A storage trial: a replica of its own, with a leader that is made up, compared with a model after each step.
//!
//! ```text
//! seed ──► table ──► steps: writes, alterations, jobs with writes between their steps, other leaders,
//!                    │      restarts, kills within jobs, power cuts within disk operations, rot
//!                    ├──► [`TrialReplica`]  the engine's Replica and Wal on two MemDisks
//!                    └──► [`TrialRows`]     versions of each key
//!                              after each step: drawn scans, live rows, partition pruning, compaction choice
//! ```
//!
//! A scan stays open over several steps, and jobs of the maintenance policy must free all memory, or all of the log.
//! Some scans are made before a step and again after it ([`same_rows`]). In some trials rows with keys of the greatest
//! length follow ([`long_keys`]), and in some a replica in a tablet server ([`hosted`]).
//!
//! *Not here:* elections and copies, which the group trial has.

mod changed_rows;
mod checks;
mod hosted;
mod jobs;
mod long_keys;
mod paused_scan;
mod replica;
mod rot;
mod same_rows;
mod second_copies;
mod step;
mod upkeep;

use engine::error::Result;
use engine::replica::JobKind;
use engine::tablet::rowset::RowSetId;
use engine::time::Timestamp;
use sim_plan::RandomStream;
use sim_plan::tables::ModelTable;

use self::paused_scan::PausedScan;
use self::replica::TrialReplica;
use self::step::Step;
use crate::history::HybridStamp;
use crate::model::{Incarnation, RowWrite};
use crate::oracle::Violation;
use crate::trials::rows::TrialRows;
use crate::trials::scans::TrialTable;
use crate::trials::{draw, shape};

/// Name of this oracle.
const NAME: &str = "storage trial";

/// Steps of a trial.
const STEPS: u64 = 36;
/// Percentage of steps within which the power of a disk is cut.
const POWER_CUT_PERCENT: u64 = 8;
/// Most disk operations before a power cut.
const POWER_CUT_OPS_MAX: u64 = 16;
/// Percentage of bursts after which the power is cut.
const BURST_CUT_PERCENT: u64 = 30;

/// An operation in the leader's log.
enum TrialOp {
    Write(Vec<RowWrite>),
    Alter(Box<ModelTable>),
    Nothing,
}

struct Trial {
    random: RandomStream,
    /// Draws of scans that are repeated after a step: a stream of their own.
    repetitions: RandomStream,
    replica: TrialReplica,
    /// The table as committed operations left it.
    table: TrialTable,
    rows: TrialRows,
    /// Operations of the leader's log, from index 1 on, and how many of them the model has.
    ops: Vec<TrialOp>,
    applied: usize,
    /// The oldest snapshot that may be read.
    mark: HybridStamp,
    /// The first unused number of a column.
    next_column: u8,
    steps: Vec<String>,
    /// True in a step within which the power of a disk is cut.
    is_cut: bool,
    /// True while writes change and delete rows, and insert none.
    changes_only: bool,
    /// A scan that is read while the tablet changes.
    paused: Option<PausedScan>,
}

/// Runs the trial of a seed; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let mut trial = match Trial::create(seed) {
        Ok(trial) => trial,
        Err(error) => return Some(Violation::new(NAME, format!("seed {seed}: {error}"))),
    };
    let mut found = None;
    for _ in 0..STEPS {
        found = trial.take_step();
        if found.is_some() {
            break;
        }
    }
    let Some(what) = found.or_else(|| trial.rot()) else {
        return long_keys::run(seed).or_else(|| hosted::run(seed));
    };
    let message = format!("seed {seed}, after step {}: {what}", trial.steps.len());
    let story = trial.story();
    Some(Violation { oracle: NAME, message, story })
}

impl Trial {
    fn create(seed: u64) -> Result<Trial> {
        let mut random = RandomStream::new(seed, "storage trial");
        let shape = draw::table(&mut random);
        let config = draw::config(&mut random);
        let table = TrialTable::of(shape)?;
        let (schema, partition) = (table.schema.clone(), table.partition.clone());
        let replica = TrialReplica::create(random.next_u64(), schema, partition, config)?;
        let mark = replica.committed_at();
        Ok(Trial {
            random,
            repetitions: RandomStream::new(seed, "storage trial, repetitions"),
            replica,
            next_column: table.shape.columns.len() as u8,
            table,
            rows: TrialRows::default(),
            ops: Vec::new(),
            applied: 0,
            mark,
            steps: Vec::new(),
            is_cut: false,
            changes_only: false,
            paused: None,
        })
    }

    /// Takes a step and checks the tablet; returns what is wrong.
    fn take_step(&mut self) -> Option<String> {
        let step = step::draw(&mut self.random);
        let cut = self.random.percent(POWER_CUT_PERCENT);
        self.steps.push(format!("{step:?}{}", if cut { " with a power cut" } else { "" }));
        self.is_cut = cut;
        let before = match self.read_for_repetition() {
            Ok(read) => read,
            Err(error) => return Some(error.to_string()),
        };
        if cut {
            let ops = self.random.between(1, POWER_CUT_OPS_MAX);
            let in_log = self.random.percent(50);
            let disk = if in_log { &self.replica.wal_disk } else { &self.replica.data_disk };
            disk.cut_power_at(ops);
        }
        let mut done = self.execute(step);
        if self.replica.lost_power() {
            done = self.cut_power();
        }
        for disk in [&self.replica.wal_disk, &self.replica.data_disk] {
            disk.end_faults();
        }
        let checked = done.and_then(|()| self.check());
        match checked.and_then(|found| Ok(found.or(self.repeat_scans(&before)?))) {
            Ok(found) => found,
            Err(error) => Some(error.to_string()),
        }
    }

    fn execute(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Write => self.write(true),
            Step::Burst => self.burst(),
            Step::Append => self.append_only(),
            Step::Alter => self.alter(),
            Step::RepeatAlteration => self.repeat_alteration(),
            Step::OtherLeader => self.replace_leader(),
            Step::FlushRows => self.job(JobKind::FlushRows),
            Step::Checkpoint => self.job(JobKind::Checkpoint),
            Step::FlushChanges => self.flush_changes(),
            Step::InsertAgain => self.insert_again(),
            Step::FreeMemory => self.free_memory(),
            Step::FreeLog => self.free_log(),
            Step::FlushDeltas => self.jobs(JobKind::FlushDeltas),
            Step::MajorDeltaCompaction => self.jobs(JobKind::MajorDeltaCompaction),
            Step::MinorDeltaCompaction => self.jobs(JobKind::MinorDeltaCompaction),
            Step::Compact => {
                let some: Vec<RowSetId> = self.some_rowsets()?;
                if some.is_empty() { Ok(()) } else { self.job(JobKind::Compact(some)) }
            }
            Step::ChosenCompaction => self.chosen_compaction(),
            Step::LogGc => self.replica.gc(),
            Step::Forget => self.forget(),
            Step::Restart => self.restart(),
            Step::PowerCut => self.cut_power(),
        }
    }

    /// Commits all operations of the leader's log, on both sides.
    fn commit(&mut self, sync: bool) -> Result<()> {
        let committed = self.replica.appended();
        let first = self.applied;
        for at in first..committed as usize {
            let stamp = self.replica.timestamp(at as u64 + 1);
            match &self.ops[at] {
                TrialOp::Write(rows) => drop(self.rows.apply(&self.table.shape, rows, stamp)),
                TrialOp::Alter(shape) => {
                    self.table.schema = shape::schema_of(shape)?;
                    self.table.shape = (**shape).clone();
                    self.table.model =
                        Incarnation::new((**shape).clone(), String::new(), String::new(), 0, 0);
                }
                TrialOp::Nothing => {}
            }
        }
        self.applied = committed as usize;
        self.replica.replicate(committed)?;
        if sync { self.replica.sync() } else { Ok(()) }
    }

    fn append(&mut self, op: TrialOp, encoded: (u8, bytes::Bytes)) {
        let ticks = self.random.between(1, 3);
        self.ops.push(op);
        self.replica.append(encoded, ticks);
    }

    /// Appends a write of some rows to the leader's log.
    fn append_rows(&mut self, count: u64) {
        // Before the end of the log there may be an alteration.
        let shape = self.newest_shape();
        let mut rows = draw::rows(&mut self.random, &shape, &self.rows, count);
        if self.changes_only {
            rows.retain(draw::is_change);
        }
        self.append_drawn(rows);
    }

    /// Appends a write of these rows to the leader's log.
    fn append_drawn(&mut self, rows: Vec<RowWrite>) {
        let (shape, schema) = (self.newest_shape(), &self.table.schema);
        if rows.is_empty() {
            return;
        }
        let encoded = match shape::schema_of(&shape) {
            Ok(newest) => shape::write(&shape, &newest, &rows),
            Err(_) => shape::write(&shape, schema, &rows),
        };
        self.append(TrialOp::Write(rows), encoded);
    }

    /// Returns the table after the operations of the leader's log.
    fn newest_shape(&self) -> ModelTable {
        let altered = self.ops.iter().rev().find_map(|op| match op {
            TrialOp::Alter(shape) => Some((**shape).clone()),
            TrialOp::Write(_) | TrialOp::Nothing => None,
        });
        altered.unwrap_or_else(|| self.table.shape.clone())
    }

    fn write(&mut self, sync: bool) -> Result<()> {
        for _ in 0..self.random.between(1, 3) {
            let count = self.random.between(1, 8);
            self.append_rows(count);
        }
        let sync = sync && self.random.percent(70);
        self.commit(sync)
    }

    fn burst(&mut self) -> Result<()> {
        for _ in 0..self.random.between(2, 8) {
            let count = self.random.between(4, 40);
            self.append_rows(count);
            self.commit(false)?;
        }
        // Several pages of the log are not durable: each of them may be lost.
        if self.random.percent(BURST_CUT_PERCENT) { self.cut_power() } else { Ok(()) }
    }

    fn append_only(&mut self) -> Result<()> {
        for _ in 0..self.random.between(1, 3) {
            self.append_rows(3);
        }
        self.replica.replicate(0)?;
        if self.random.percent(60) { self.replica.sync() } else { Ok(()) }
    }

    fn alter(&mut self) -> Result<()> {
        let shape = self.newest_shape();
        let Some(altered) = draw::alteration(&mut self.random, &shape, &mut self.next_column) else {
            return Ok(());
        };
        let version = self.ops.iter().filter(|op| matches!(op, TrialOp::Alter(_))).count() as u32 + 1;
        let encoded = shape::alter(shape::schema_of(&altered)?, version, "trial");
        self.append(TrialOp::Alter(Box::new(altered)), encoded);
        let sync = self.random.percent(60);
        self.commit(sync)
    }

    /// Appends a committed alteration once more.
    fn repeat_alteration(&mut self) -> Result<()> {
        let committed = self.ops[..self.applied].iter().enumerate();
        let known: Vec<usize> =
            committed.filter(|(_, op)| matches!(op, TrialOp::Alter(_))).map(|(at, _)| at).collect();
        if known.is_empty() {
            return Ok(());
        }
        let at = self.random.pick(&known);
        let again = self.replica.payload(at as u64 + 1);
        self.append(TrialOp::Nothing, again);
        self.write(true)
    }

    fn replace_leader(&mut self) -> Result<()> {
        if self.random.percent(60) {
            self.append_only()?;
        }
        self.replica.replace_leader();
        self.ops.truncate(self.replica.appended() as usize);
        for _ in 0..self.random.between(1, 2) {
            if self.random.percent(40) {
                self.append(TrialOp::Nothing, shape::no_op());
            } else {
                self.append_rows(2);
            }
        }
        match self.random.percent(70) {
            true => self.write(true),
            false => self.replica.replicate(0),
        }
    }

    fn forget(&mut self) -> Result<()> {
        let last = self.replica.committed_at();
        let mark = self.random.between(self.mark, last.max(self.mark));
        self.raise_mark(mark)
    }

    /// Raises the ancient history mark.
    fn raise_mark(&mut self, mark: HybridStamp) -> Result<()> {
        // The policy knows of a choice before the mark rises.
        self.replica.tablet()?.choose_compaction();
        self.mark = mark;
        self.replica.tablet()?.raise_history_mark(Timestamp(mark));
        Ok(())
    }

    /// Restarts the replica, which must choose the same compaction as before, and know the sizes of its files: those of
    /// abandoned jobs are gone.
    fn restart(&mut self) -> Result<()> {
        let gain = |trial: &Trial| -> Result<_> {
            let choice = trial.replica.tablet()?.choose_compaction();
            Ok(choice.map(|choice| (choice.gain, choice.kind)))
        };
        let before = gain(self)?;
        let mark = self.replica.tablet()?.history_mark();
        self.replica.restart()?;
        self.replica.tablet()?.raise_history_mark(mark);
        let after = gain(self)?;
        if before != after {
            let what =
                format!("after a restart the compaction policy chooses {after:?} instead of {before:?}");
            return Err(engine::error::Error::corrupt(what));
        }
        let known = self.replica.tablet()?.state().disk.iter().map(|rowset| rowset.meta().bytes).sum::<u64>();
        let found = self.replica.row_bytes();
        if known != found {
            let what = format!("rowsets have {known} bytes, and their files {found}");
            return Err(engine::error::Error::corrupt(what));
        }
        Ok(())
    }

    fn cut_power(&mut self) -> Result<()> {
        let scattered = self.random.percent(50);
        self.replica.crash(scattered)
    }

    fn story(&self) -> Vec<String> {
        let columns = self.table.shape.columns.iter();
        let columns = columns.map(|column| format!("{} {:?}", column.number, column.kind));
        let mut story: Vec<String> = columns.collect();
        story.extend(self.steps.iter().enumerate().map(|(at, step)| format!("step {}: {step}", at + 1)));
        story
    }
}

#[cfg(test)]
mod tests;
