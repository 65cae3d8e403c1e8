//! A leadership transfer at the end of a group trial, to a voter that is gone at once. The group has a majority without
//! it, so requests are answered all the same.

use engine::raft::RaftEvent;

use super::ids::id_of;
use super::{GroupTrial, MEMBERS};

/// Percentage of trials with a transfer.
const TRANSFER_PERCENT: u64 = 40;
/// Requests that must be answered, and rounds until each of them is: many election timeouts.
const REQUESTS: u32 = 3;
const ROUNDS: u32 = 300;

impl GroupTrial {
    /// Orders the transfer in some trials, in a group that has settled. Returns true if it has.
    pub(super) fn transfer_leadership(&mut self) -> bool {
        let is_damaged = self.servers.iter().any(|server| server.rotten || server.failed);
        let Some((leader, config)) = self.leader().zip(self.ledger.newest_config().cloned()) else {
            return false;
        };
        let others: Vec<usize> = (0..self.servers.len())
            .filter(|server| *server != leader && config.is_voter(id_of(*server)))
            .collect();
        if is_damaged || others.len() != MEMBERS - 1 || !self.random.percent(TRANSFER_PERCENT) {
            return false;
        }
        let target = self.random.pick(&others);
        self.note(format!("{leader} transfers leadership to {target}, which is gone"));
        self.step(leader, RaftEvent::StepDown { ticket: 0, to: Some(id_of(target)), abrupt: false });
        self.crash(target, false);
        for _ in 0..REQUESTS {
            self.begin_request();
            self.await_replies();
        }
        self.act(target, |trial| trial.restart(target));
        self.found.is_none()
    }

    /// Waits until all requests are answered.
    pub(super) fn await_replies(&mut self) {
        for _ in 0..ROUNDS {
            if self.open.is_empty() || self.found.is_some() {
                return;
            }
            self.round();
        }
        let group = self.show_group();
        self.report(Some(format!("a majority of the voters runs, and a request is not answered: {group}")));
    }
}
