//! The end of a fault of a masters trial.

use crate::world::LinkRuleId;

pub(super) enum FaultEnd {
    StartMaster(usize),
    /// The rules that cut a master off are removed.
    Reconnect(usize, Vec<LinkRuleId>),
    FastDisks,
    StartServer(usize),
}
