//! What clients saw: every operation with its times, its request and what came back.
//!
//! The history is all that the oracles know of the data: they are judges who never look at the code they judge.
//! A call that ran into its deadline, or ended in any error that does not come from the tablet's own answer, is
//! [`Outcome::Unknown`]: it may have happened, may happen still, or never.
//!
//! Rows are a key and some columns, all of them numbers here; how a table's columns write numbers down (as INT64,
//! as padded text) is the workload's business. Columns are those of the table when it was made.

use std::sync::{Arc, Mutex, MutexGuard};

pub use engine::schema::ops::RowOpKind;

use crate::view::View;

/// A client actor, from 0.
pub type ClientNo = u32;
/// A table of the run, from 0, never used again.
pub type TableNo = u32;
/// A hybrid timestamp as clients see it.
pub type Stamp = u64;
/// Simulated time in nanoseconds since the run began.
pub type Nanos = u64;

/// A row's columns after its key; `None` is NULL.
pub type Row = Vec<Option<i64>>;

/// One row operation of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowOp {
    pub kind: RowOpKind,
    pub key: i64,
    /// By column; the outer `None` leaves it unset.
    pub cells: Vec<Option<Option<i64>>>,
}

/// How a scan reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Rows as they are when the read is served; each row by itself must be the newest.
    Fresh,
    /// Rows as some replica has them, or one that believes it leads: any state it once was in. If a server chose a
    /// snapshot for it, the snapshot includes what the client had seen.
    Stale,
    /// All rows as they were just before a timestamp that the client named.
    Snapshot,
}

/// Which rows a scan asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scan {
    pub table: TableNo,
    /// First key and the one after the last.
    pub keys: (i64, i64),
    pub mode: Mode,
    /// Only rows that changed from this timestamp on, and those deleted since.
    pub diff_from: Option<Stamp>,
    /// Whether rows must come in key order within a tablet, each once.
    pub ordered: bool,
    /// Which rows it gives, and what of them.
    pub view: View,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Each row happens by itself; those of one tablet happen at one timestamp, in their order.
    Write {
        table: TableNo,
        rows: Vec<RowOp>,
    },
    Scan(Scan),
    /// Something else, for the story only.
    Other(String),
}

/// What became of one row of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowOutcome {
    /// It took effect, or an IGNORE operation had nothing to do.
    Done,
    AlreadyPresent,
    NotFound,
    /// Refused for a reason that says nothing about the row; it had no effect.
    Refused,
}

/// The answer to one row of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowAnswer {
    At { at: Stamp, outcome: RowOutcome },
    Unknown,
}

/// A row that a scan gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub key: i64,
    /// `None` for a row that a diff scan reports as deleted.
    pub row: Option<Row>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// No answer yet.
    Pending,
    Written(Vec<RowAnswer>),
    /// `at`: the snapshot that was read, if it is one: rows as they were just before.
    Rows {
        at: Option<Stamp>,
        rows: Vec<Seen>,
    },
    Done,
    /// It certainly had no effect.
    Failed(String),
    Unknown(String),
}

/// One call of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    pub client: ClientNo,
    pub invoked: Nanos,
    /// `None` as long as it has not.
    pub returned: Option<Nanos>,
    /// The newest timestamp that the client had seen or was told when it called; 0 for none.
    pub after: Stamp,
    pub request: Request,
    pub outcome: Outcome,
}

/// The operations of a run in the order of their calls. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct History {
    operations: Arc<Mutex<Vec<Operation>>>,
}

/// An operation whose answer is awaited. An operation that is never answered stays pending, which oracles take for
/// unknown.
#[derive(Debug)]
pub struct Call {
    index: usize,
}

impl History {
    pub fn new() -> History {
        History::default()
    }

    pub fn invoke(&self, client: ClientNo, now: Nanos, after: Stamp, request: Request) -> Call {
        let outcome = Outcome::Pending;
        let operation = Operation { client, invoked: now, returned: None, after, request, outcome };
        let mut operations = self.lock();
        operations.push(operation);
        Call { index: operations.len() - 1 }
    }

    /// The call's answer. A call is answered once, which its being consumed ensures.
    pub fn answer(&self, call: Call, now: Nanos, outcome: Outcome) {
        let mut operations = self.lock();
        let operation = operations.get_mut(call.index).expect("calls index the history they come from");
        operation.returned = Some(now);
        operation.outcome = outcome;
    }

    /// All operations, for as long as none is added: there may be megabytes of them.
    pub fn operations(&self) -> MutexGuard<'_, Vec<Operation>> {
        self.lock()
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Operation>> {
        self.operations.lock().expect("nothing panics while it holds the history")
    }
}

impl Operation {
    /// When its effect can be no longer pending: its return, or never for an answer that tells nothing.
    pub fn settled(&self) -> Option<Nanos> {
        match self.outcome {
            Outcome::Pending | Outcome::Unknown(_) => None,
            _ => self.returned,
        }
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let micros = |nanos: Nanos| nanos / 1_000;
        let returned = self.returned.map_or("never".to_string(), |at| format!("{} us", micros(at)));
        write!(f, "client {} {} us to {returned}: ", self.client, micros(self.invoked))?;
        match &self.request {
            Request::Write { table, rows } => {
                write!(f, "write table {table}")?;
                rows.iter().take(4).try_for_each(|row| write!(f, " {row}"))?;
                if rows.len() > 4 {
                    write!(f, " and {} rows", rows.len() - 4)?;
                }
            }
            Request::Scan(scan) => write!(f, "{scan:?}")?,
            Request::Other(what) => f.write_str(what)?,
        }
        match &self.outcome {
            Outcome::Rows { at, rows } => write!(f, " -> {} rows at {at:?}", rows.len()),
            other => write!(f, " -> {other:?}"),
        }
    }
}

impl std::fmt::Display for RowOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} (", self.kind.name(), self.key)?;
        for (i, cell) in self.cells.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            match cell {
                None => write!(f, "{comma}unset")?,
                Some(None) => write!(f, "{comma}null")?,
                Some(Some(value)) => write!(f, "{comma}{value}")?,
            }
        }
        f.write_str(")")
    }
}
