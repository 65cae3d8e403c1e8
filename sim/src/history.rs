//! The history: every client operation with its invocation, completion, request and outcome.
//!
//! The history is all that the oracles know of the data; they never look at the code they check. A call that ran into
//! its deadline, or ended in any error not returned by the tablet, is [`CallOutcome::Unknown`]: it may have taken
//! effect, may take effect later, or never.
//!
//! Rows are a key and some columns, all of them numbers here. The workload decides how a table's columns encode
//! numbers (as INT64, as padded text). Columns are those of the table when it was created.

use std::sync::Arc;

use engine::error::{Error, ErrorKind};
use engine::sync::{Mutex, MutexGuard};

use crate::projection::Projection;
pub use crate::rows::{Row, RowOp, RowOpKind, RowOutcome};

/// A client actor, from 0.
pub type ClientNo = u32;
/// A table of the run, from 0, never reused.
pub type TableNo = u32;
/// A hybrid timestamp as clients see it.
pub type HybridStamp = u64;
/// Simulated time in nanoseconds since the run began.
pub type Nanos = u64;

/// Read mode of a scan, as the oracles check it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanMode {
    /// Rows at the time the read is served; each row by itself must be the newest.
    Fresh,
    /// Rows of some replica, or of one that believes it leads: any earlier state. If a server chose a snapshot for it,
    /// the snapshot includes what the client had seen.
    Stale,
    /// All rows just before a timestamp that the client named.
    Snapshot,
}

/// The rows that a scan requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanRequest {
    pub table: TableNo,
    /// First key and the one after the last.
    pub keys: (i64, i64),
    pub mode: ScanMode,
    /// Only rows that changed from this timestamp on, and those deleted since.
    pub diff_from: Option<HybridStamp>,
    /// True if rows must come in key order within a tablet, each once.
    pub ordered: bool,
    /// Filter and columns.
    pub view: Projection,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientRequest {
    /// Each row takes effect by itself; those of one tablet take effect at one timestamp, in order.
    Write {
        table: TableNo,
        rows: Vec<RowOp>,
    },
    Scan(ScanRequest),
    /// A change of a table, or its lookup, as text for the story.
    Other(String),
    /// An operator's change of leaders, members or servers, which may disturb others, as text for the story.
    Operator(String),
}

/// The reply to one row of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowResult {
    At { at: HybridStamp, outcome: RowOutcome },
    Unknown,
}

/// A row that a scan returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedRow {
    pub key: i64,
    /// `None` for a row that a diff scan reports as deleted.
    pub row: Option<Row>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    /// No reply yet.
    Pending,
    Written(Vec<RowResult>),
    /// `at`: the snapshot that was read, if it is one: rows just before it.
    Rows {
        at: Option<HybridStamp>,
        rows: Vec<ScannedRow>,
    },
    Done,
    /// The call certainly had no effect.
    Failed(CallError),
    Unknown(CallError),
}

impl CallOutcome {
    /// Returns the error of a call that ended with one.
    pub fn error(&self) -> Option<&CallError> {
        match self {
            CallOutcome::Failed(error) | CallOutcome::Unknown(error) => Some(error),
            CallOutcome::Pending | CallOutcome::Written(_) | CallOutcome::Rows { .. } | CallOutcome::Done => {
                None
            }
        }
    }
}

/// The reason why a call has no reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallError {
    /// The kind of the client's error; `None` if it gave none.
    pub kind: Option<ErrorKind>,
    pub message: String,
}

impl From<&Error> for CallError {
    fn from(error: &Error) -> CallError {
        CallError { kind: Some(error.kind), message: error.message.clone() }
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> CallError {
        CallError::from(&error)
    }
}

impl From<Option<Error>> for CallError {
    fn from(error: Option<Error>) -> CallError {
        error.map_or(CallError { kind: None, message: "no answer".to_string() }, CallError::from)
    }
}

/// One call of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryOp {
    pub client: ClientNo,
    pub invoked: Nanos,
    /// `None` while the call is pending.
    pub returned: Option<Nanos>,
    /// The newest timestamp that the client had seen or received when it called; 0 for none.
    pub after: HybridStamp,
    pub request: ClientRequest,
    pub outcome: CallOutcome,
}

/// The operations of a run in the order of their calls. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct History {
    operations: Arc<Mutex<Vec<HistoryOp>>>,
}

/// An operation whose reply is awaited. Without a reply it stays pending, which oracles treat as unknown.
#[derive(Debug)]
pub struct PendingCall {
    index: usize,
}

impl History {
    pub fn new() -> History {
        History::default()
    }

    pub fn invoke(
        &self,
        client: ClientNo,
        now: Nanos,
        after: HybridStamp,
        request: ClientRequest,
    ) -> PendingCall {
        let outcome = CallOutcome::Pending;
        let operation = HistoryOp { client, invoked: now, returned: None, after, request, outcome };
        let mut operations = self.lock();
        operations.push(operation);
        PendingCall { index: operations.len() - 1 }
    }

    /// Records the call's reply. A call is consumed, so it has one reply only.
    pub fn answer(&self, call: PendingCall, now: Nanos, outcome: CallOutcome) {
        let mut operations = self.lock();
        let operation = operations.get_mut(call.index).expect("calls index the history they come from");
        operation.returned = Some(now);
        operation.outcome = outcome;
    }

    /// Returns all operations without copying them, as there may be megabytes.
    pub fn operations(&self) -> MutexGuard<'_, Vec<HistoryOp>> {
        self.lock()
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Vec<HistoryOp>> {
        self.operations.lock()
    }
}

impl HistoryOp {
    /// Returns the end of the time at which it may take effect: its return, or `None` for an unknown outcome.
    pub fn settled(&self) -> Option<Nanos> {
        match self.outcome {
            CallOutcome::Pending | CallOutcome::Unknown(_) => None,
            _ => self.returned,
        }
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            Some(kind) => write!(f, "{kind:?}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::fmt::Display for HistoryOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let micros = |nanos: Nanos| nanos / 1_000;
        let returned = self.returned.map_or("never".to_string(), |at| format!("{} us", micros(at)));
        write!(f, "client {} {} us to {returned}: ", self.client, micros(self.invoked))?;
        match &self.request {
            ClientRequest::Write { table, rows } => {
                write!(f, "write table {table}")?;
                rows.iter().take(4).try_for_each(|row| write!(f, " {row}"))?;
                if rows.len() > 4 {
                    write!(f, " and {} rows", rows.len() - 4)?;
                }
            }
            ClientRequest::Scan(scan) => write!(f, "{scan:?}")?,
            ClientRequest::Other(what) | ClientRequest::Operator(what) => f.write_str(what)?,
        }
        match &self.outcome {
            CallOutcome::Rows { at, rows } => write!(f, " -> {} rows at {at:?}", rows.len()),
            CallOutcome::Failed(error) => write!(f, " -> failed: {error}"),
            CallOutcome::Unknown(error) => write!(f, " -> unknown: {error}"),
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
