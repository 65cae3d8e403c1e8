//! Checks of committed configurations against the operator's orders.

use engine::raft::{RaftConfig, kind};
use engine::wal::ReplicateEntry;

use super::GroupTrial;

impl GroupTrial {
    /// Compares the members of a committed configuration with the orders.
    pub(super) fn check_membership(&mut self, entry: &ReplicateEntry) {
        if entry.kind != kind::CONFIG {
            return;
        }
        let wrong = match RaftConfig::decode(&entry.payload) {
            Ok(config) => self.membership.commit(&config),
            Err(error) => Some(error.to_string()),
        };
        self.report(wrong.map(|wrong| format!("{}: {wrong}", entry.op)));
    }
}
