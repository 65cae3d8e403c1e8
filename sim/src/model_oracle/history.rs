//! The history of calls on model tables. Each call is to one tablet.

use std::sync::Arc;

use engine::sync::{Mutex, MutexGuard};
use sim_plan::line_format::LineField;

use super::metadata::Metadata;
use crate::history::{ClientNo, HybridStamp, Nanos};
use crate::model::rows::show;
use crate::model::{ColNo, Condition, RowAnswer, RowWrite};
use crate::wire::scan::{ScanRow, ScanTime};

/// A call to a tablet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableEvent {
    pub client: ClientNo,
    pub invoked: Nanos,
    pub returned: Nanos,
    /// The newest timestamp that the client had seen when it called.
    pub after: HybridStamp,
    /// Index of the table's incarnation.
    pub table: usize,
    /// Id of the tablet. Empty for a write of unknown outcome that any of the table's tablets may have.
    pub tablet: String,
    /// Number of the version whose columns the client used.
    pub view: usize,
    pub call: TableCall,
}

/// Request and outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableCall {
    /// Rows take effect at one timestamp, in order.
    Write {
        rows: Vec<RowWrite>,
        outcome: WriteOutcome,
    },
    Read {
        call: ReadCall,
        outcome: ReadOutcome,
    },
    /// An answer about the table. `since`: beginning of the time whose versions it may be of.
    Metadata {
        answer: Metadata,
        since: Nanos,
    },
}

/// A scan of a tablet, by numbers of columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadCall {
    /// Columns of the rows, the key columns among them; none if only the number of rows was asked for.
    pub columns: Vec<ColNo>,
    pub conditions: Vec<(ColNo, Condition)>,
    pub lower: Option<Vec<u8>>,
    pub upper: Option<Vec<u8>>,
    pub time: ScanTime,
    pub since: Option<HybridStamp>,
    pub ordered: bool,
    pub limit: Option<u32>,
    /// True if the scan may have passed the tablet by, or a part of it: rows that it lacks say nothing.
    pub partial: bool,
}

/// The outcome of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOutcome {
    Applied {
        at: HybridStamp,
        answers: Vec<RowAnswer>,
    },
    /// It had no effect: the service's code, the status code, and the message.
    Refused {
        code: i32,
        status: i32,
        message: String,
    },
    Unknown(String),
}

/// The outcome of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadOutcome {
    Rows { at: Option<HybridStamp>, rows: Vec<ScanRow>, count: u64 },
    Refused { code: i32, status: i32, message: String },
    Failed(String),
}

/// The calls of a run. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct TableHistory {
    events: Arc<Mutex<Vec<TableEvent>>>,
}

impl TableHistory {
    pub fn add(&self, event: TableEvent) {
        self.events().push(event);
    }

    pub fn events(&self) -> MutexGuard<'_, Vec<TableEvent>> {
        self.events.lock()
    }
}

impl std::fmt::Display for TableEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let micros = |nanos: Nanos| nanos / 1_000;
        let (from, to) = (micros(self.invoked), micros(self.returned));
        let tablet = self.tablet.get(..6).unwrap_or(&self.tablet);
        write!(f, "client {} {from} us to {to} us, tablet {tablet}, version {}: ", self.client, self.view)?;
        match &self.call {
            TableCall::Write { rows, outcome } => {
                rows.iter().try_for_each(|row| write!(f, "{row} "))?;
                match outcome {
                    WriteOutcome::Applied { at, answers } => write!(f, "-> {answers:?} at {at}"),
                    other => write!(f, "-> {other:?} (after {})", self.after),
                }
            }
            TableCall::Metadata { answer, .. } => write!(f, "{answer:?}"),
            TableCall::Read { call, outcome } => {
                write!(f, "{call}")?;
                match outcome {
                    ReadOutcome::Rows { at, count, .. } => write!(f, " -> {count} rows at {at:?}"),
                    other => write!(f, " -> {other:?}"),
                }
            }
        }
    }
}

impl std::fmt::Display for ReadCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "read {:?} of {:?}", self.columns, self.time)?;
        if let Some(since) = self.since {
            write!(f, ", changes since {since}")?;
        }
        if self.ordered {
            f.write_str(", ordered")?;
        }
        if self.partial {
            f.write_str(", perhaps a part")?;
        }
        if let Some(limit) = self.limit {
            write!(f, ", at most {limit}")?;
        }
        for (column, condition) in &self.conditions {
            let text = |values: &[sim_plan::tables::Value]| -> String {
                values.iter().map(LineField::text).collect::<Vec<_>>().join(" ")
            };
            match condition {
                Condition::Equal(value) => write!(f, ", {column} = {}", value.text())?,
                Condition::AtMost(value) => write!(f, ", {column} at most {}", value.text())?,
                Condition::Above(value) => write!(f, ", {column} above {}", value.text())?,
                Condition::In(values) => write!(f, ", {column} in [{}]", text(values))?,
                Condition::InSet(values) => write!(f, ", {column} in {} values", values.len())?,
                Condition::Range(low, high) => {
                    write!(f, ", {column} from {} to {}", low.text(), high.text())?
                }
                Condition::Bloom { filters, low, high } => {
                    let (count, low, high) = (filters.len(), low.text(), high.text());
                    write!(f, ", {column} in {count} Bloom filters from {low} to {high}")?;
                }
                other => write!(f, ", {column} {}", other.word())?,
            }
        }
        Ok(())
    }
}

impl TableEvent {
    /// Returns the time whose versions of the table may be in force for this call. A follower that lags serves scans
    /// by a version that leaders have left behind; writes are applied by leaders.
    pub fn span(&self) -> std::ops::RangeInclusive<Nanos> {
        match self.call {
            TableCall::Write { .. } => self.invoked..=self.returned,
            TableCall::Read { .. } => 0..=self.returned,
            TableCall::Metadata { since, .. } => since..=self.returned,
        }
    }

    /// Returns the rows of a scan as text, for a story.
    pub fn rows(&self) -> Vec<String> {
        match &self.call {
            TableCall::Write { rows, .. } => rows.iter().map(|row| show(&row.cells)).collect(),
            TableCall::Read { outcome: ReadOutcome::Rows { rows, .. }, .. } => {
                let text =
                    |row: &ScanRow| row.values.iter().map(LineField::text).collect::<Vec<_>>().join(" ");
                rows.iter().map(text).collect()
            }
            TableCall::Read { .. } | TableCall::Metadata { .. } => Vec::new(),
        }
    }
}
