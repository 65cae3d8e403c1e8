//! What clients know of the model tables.

use std::collections::BTreeMap;

use crate::history::HybridStamp;
use crate::model::Incarnation;
use crate::wire::client::ToldErrors;

/// Knowledge of the clients about the model tables.
#[derive(Debug, Default)]
pub(super) struct ModelTables {
    /// All incarnations, in order of their creation.
    pub incarnations: Vec<Incarnation>,
    /// The state of each of the plan's tables.
    pub tables: Vec<TableState>,
    /// The newest timestamp that any plain client has seen.
    pub newest: HybridStamp,
    /// Number of rows that clients have asked to insert, by incarnation.
    pub inserted: BTreeMap<usize, u64>,
    /// Errors that services told the clients.
    pub errors: ToldErrors,
    /// Number of alterations by step that are known to be done.
    pub steps: BTreeMap<String, u64>,
}

/// The state of one of the plan's tables.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TableState {
    /// Index of its incarnation.
    pub current: usize,
    /// True while an alteration is in flight.
    pub busy: bool,
    /// True if the outcome of an alteration is unknown.
    pub frozen: bool,
    /// True while it is dropped.
    pub dropped: bool,
    pub recreated: u8,
}
