//! A master of a trial of holds.

use node::master::HistoryHolds;

pub(super) struct Master {
    pub holds: HistoryHolds,
    /// Difference of its clock to the true time, in seconds.
    pub error: i64,
    /// True if it has not noticed that it leads no more.
    pub believes: bool,
}
