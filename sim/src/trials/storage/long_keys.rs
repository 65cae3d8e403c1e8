//! Keys as long as a tablet takes them, many with zero bytes, which are longer in a key than in their cell.
//!
//! ```text
//!   cells of a key, one of them filled up ──► encoded key: limit - 2 … limit + 2 bytes
//!      │                                        up to the limit: it is written, else refused by its length
//!      └──► model: only what is not too long ◄── scans, after flushes and restarts, too
//! ```

use engine::error::{Error, Result};
use engine::replica::log_payload::LoggedOp;
use engine::replica::{JobKind, Op, WriteOp};
use engine::schema::row_ops::{RowOpLimits, RowOpsReader};
use sim_plan::RandomStream;
use sim_plan::client_ops::WriteKind;
use sim_plan::tables::{ModelTable, TypeWord, Value};

use super::replica::TrialReplica;
use crate::history::HybridStamp;
use crate::model::{ColNo, RowAnswer, RowWrite, draws};
use crate::oracle::Violation;
use crate::trials::rows::{TrialRows, key_of};
use crate::trials::scans::TrialTable;
use crate::trials::{draw, shape};

/// Name of this oracle.
const NAME: &str = "storage trial, long keys";

/// Percentage of storage trials that have this part, and its steps.
const LONG_KEYS_PERCENT: u64 = 30;
const STEPS: usize = 5;
/// Most rows of a step, and scans after it.
const ROWS: u64 = 8;
const SCANS: u64 = 2;
/// Bytes of the longest key of a trial.
const LIMIT: (u64, u64) = (40, 120);
/// Different fillings of keys, so that rows are changed.
const FILLINGS: u64 = 3;

struct LongKeyTrial {
    random: RandomStream,
    replica: TrialReplica,
    table: TrialTable,
    rows: TrialRows,
    /// The key column that is filled up.
    column: ColNo,
    limit: usize,
    first: HybridStamp,
}

/// Runs this part of the trial of a seed, if it has it; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let mut random = RandomStream::new(seed, NAME);
    if !random.percent(LONG_KEYS_PERCENT) {
        return None;
    }
    let found = LongKeyTrial::create(random).and_then(|mut trial| trial.run());
    let what = found.unwrap_or_else(|error| Some(error.to_string()))?;
    Some(Violation::new(NAME, format!("seed {seed}: {what}")))
}

/// Draws a table and the number of a key column of any length.
fn drawn_table(random: &mut RandomStream) -> (ModelTable, ColNo) {
    loop {
        let table = draw::table(random);
        let any_length = |word: TypeWord| matches!(word, TypeWord::String | TypeWord::Binary);
        let column = table.key_columns().iter().find(|column| any_length(column.kind.word));
        if let Some(number) = column.map(|column| column.number) {
            return (table, number);
        }
    }
}

fn inserts(row: &RowWrite) -> bool {
    use WriteKind::{Insert, InsertIgnore, Upsert, UpsertIgnore};
    matches!(row.kind, Insert | InsertIgnore | Upsert | UpsertIgnore)
}

impl LongKeyTrial {
    fn create(mut random: RandomStream) -> Result<LongKeyTrial> {
        let (shape, column) = drawn_table(&mut random);
        let limit = random.between(LIMIT.0, LIMIT.1) as usize;
        let mut config = draw::config(&mut random);
        config.key_bytes_max = limit;
        let table = TrialTable::of(shape)?;
        let (schema, partition) = (table.schema.clone(), table.partition.clone());
        let replica = TrialReplica::create(random.next_u64(), schema, partition, config)?;
        let first = replica.committed_at();
        Ok(LongKeyTrial { random, replica, table, rows: TrialRows::default(), column, limit, first })
    }

    fn run(&mut self) -> Result<Option<String>> {
        for _ in 0..STEPS {
            let rows = self.draw_rows();
            if let Some(wrong) = self.wrong_errors(&rows)? {
                return Ok(Some(wrong));
            }
            self.write(&rows)?;
            match self.random.below(3) {
                0 => self.flush()?,
                1 => self.replica.restart()?,
                _ => {}
            }
            let (tablet, last) = (self.replica.tablet()?.clone(), self.replica.committed_at() + 1);
            let within = ((self.first, last), SCANS);
            if let Some(wrong) = self.table.check_all(&mut self.random, &tablet, &self.rows, within)? {
                return Ok(Some(wrong));
            }
        }
        Ok(None)
    }

    /// Draws rows with keys of about the longest length. Each has the values that it needs.
    fn draw_rows(&mut self) -> Vec<RowWrite> {
        use WriteKind::{Delete, Insert, InsertIgnore, Update, Upsert, UpsertIgnore};
        let kinds =
            [(Insert, 6), (InsertIgnore, 1), (Upsert, 5), (UpsertIgnore, 1), (Update, 3), (Delete, 1)];
        let mut rows = Vec::new();
        for _ in 0..self.random.between(1, ROWS) {
            let kind = self.random.weighted(&kinds);
            let row = draws::row(&mut self.random, &self.table.shape, kind);
            rows.extend(self.with_long_key(row).filter(|row| !self.lacks_value(row)));
        }
        rows
    }

    /// Fills up the key of a row; `None` if its other cells leave too little space.
    fn with_long_key(&mut self, mut row: RowWrite) -> Option<RowWrite> {
        let target = self.limit + 2 - self.random.below(5) as usize;
        let filling = &mut RandomStream::new(self.random.below(FILLINGS), "filling");
        let zero_percent = self.random.pick(&[0, 30, 100]);
        let mut bytes: Vec<u8> = Vec::new();
        loop {
            row.cells.insert(self.column, Value::bytes(&bytes));
            let len = key_of(&self.table.shape, &row.cells).len();
            if len >= target {
                return (len == target).then_some(row);
            }
            // A zero byte may take two.
            let is_zero = target - len > 1 && filling.percent(zero_percent);
            bytes.push(if is_zero { 0 } else { b'a' + filling.below(2) as u8 });
        }
    }

    /// Returns true if a row is refused for a value that it lacks.
    fn lacks_value(&self, row: &RowWrite) -> bool {
        let keys = self.table.shape.key_columns().len();
        let effect = crate::model::rows::apply(&self.table.shape.columns, keys, row, &None);
        effect.answers.contains(&RowAnswer::Refused)
    }

    /// Returns the error of a row whose key is too long.
    fn refusal(&self, row: &RowWrite) -> Option<String> {
        let (len, max) = (key_of(&self.table.shape, &row.cells).len(), self.limit);
        let is_refused = inserts(row) && len > max;
        is_refused.then(|| format!("encoded primary key too large ({len} bytes, maximum is {max} bytes)"))
    }

    fn encoded(&self, rows: &[RowWrite]) -> Result<WriteOp> {
        match shape::write_op(&self.table.shape, &self.table.schema, rows) {
            Op::Write(write) => Ok(write),
            other => Err(Error::corrupt(format!("rows are encoded as {other:?}"))),
        }
    }

    /// Compares the errors of inserts, as a server tells them.
    fn wrong_errors(&self, rows: &[RowWrite]) -> Result<Option<String>> {
        let WriteOp { columns, rows: bytes, indirect } = self.encoded(rows)?;
        let limits = RowOpLimits { key_bytes_max: self.limit, ..RowOpLimits::default() };
        let mut reader = RowOpsReader::new(&columns, &self.table.schema, &bytes, &indirect, limits)?;
        for row in rows {
            let Some(op) = reader.next()? else { return Ok(Some("a row is not decoded".to_string())) };
            let (told, expected) = (op.error.map(|error| error.message), self.refusal(row));
            if inserts(row) && told != expected {
                return Ok(Some(format!("{row} has the error {told:?} instead of {expected:?}")));
            }
        }
        Ok(None)
    }

    /// Commits a write on both sides; the model gets only rows whose keys are not too long.
    fn write(&mut self, rows: &[RowWrite]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let op = Op::Write(self.encoded(rows)?);
        self.replica.append(LoggedOp { op, request: None, auto_increment: 0 }.encode(), 1);
        let committed = self.replica.appended();
        let taken: Vec<RowWrite> = rows.iter().filter(|row| self.refusal(row).is_none()).cloned().collect();
        self.rows.apply(&self.table.shape, &taken, self.replica.timestamp(committed));
        self.replica.replicate(committed)?;
        self.replica.sync()
    }

    fn flush(&mut self) -> Result<()> {
        let Some(mut job) = self.replica.start_job(JobKind::FlushRows)? else { return Ok(()) };
        while self.replica.job_step(&mut job)? {}
        self.replica.end_job(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a trial of a seed that has this part.
    fn created(seed: u64) -> LongKeyTrial {
        LongKeyTrial::create(RandomStream::new(seed, "test")).expect("a new replica")
    }

    #[test]
    fn keys_are_as_long_as_the_limit_and_longer() {
        let (mut longest, mut refused, mut zeros) = (0, 0, 0);
        for seed in 0..20 {
            let mut trial = created(seed);
            let rows: Vec<RowWrite> = (0..5).flat_map(|_| trial.draw_rows()).collect();
            let is_longest = |row: &&RowWrite| key_of(&trial.table.shape, &row.cells).len() == trial.limit;
            longest += rows.iter().filter(is_longest).count();
            refused += rows.iter().filter(|row| trial.refusal(row).is_some()).count();
            let has_zero = |row: &&RowWrite| match &row.cells[&trial.column] {
                Value::Bytes(bytes) => bytes.contains(&0),
                _ => false,
            };
            zeros += rows.iter().filter(has_zero).count();
            assert_eq!(trial.run().expect("a sound disk"), None, "seed {seed}");
        }
        assert!(longest > 10 && refused > 10 && zeros > 10, "{longest}, {refused}, {zeros}");
    }

    #[test]
    fn a_limit_of_another_length_is_found() {
        let mut found = 0;
        for seed in 0..20 {
            let mut trial = created(seed);
            trial.limit -= 1;
            found += u64::from(trial.run().expect("a sound disk").is_some());
        }
        assert!(found > 5, "{found}");
    }
}
