//! A replica: a tablet and its log, driven one event at a time.

mod types;

pub use types::{Done, Effects, Event, Op, OpResult, RequestId, WriteCounts, WriteOp};
