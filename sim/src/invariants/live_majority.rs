//! LiveMajority: a leader evicts no voter while the remaining voters could not commit the change, because too many of
//! them have been silent for longer than the eviction timeout.
//!
//! The fault injector reports the silent servers. Time counts from the start of the leadership, as the leader has
//! not waited before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::ids::PeerId;
use engine::note::raft::RaftAction;

use super::{Invariant, Model, ReplicaEvent};

/// Time within which messages in flight may still arrive after their sender fell silent.
const ECHO: Duration = Duration::from_secs(1);

/// The invariant of this module.
#[derive(Debug, Default)]
pub struct LiveMajority {
    /// Start of each leadership.
    leads: BTreeMap<PeerId, u64>,
}

impl Invariant for LiveMajority {
    fn name(&self) -> &'static str {
        "LiveMajority"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let (at, now) = (event.at, event.nanos);
        match &event.note.action {
            RaftAction::BecomeLeader => drop(self.leads.insert(at, now)),
            RaftAction::ConfigAppend { voters, .. } if !before.evicted_after.is_zero() => {
                let Some(config) = before.config_of(at) else { return Ok(()) };
                let stay: BTreeSet<PeerId> = voters.iter().copied().collect();
                if config.voters.is_subset(&stay) {
                    return Ok(());
                }
                let election_timeout = (before.evicted_after + ECHO).as_nanos() as u64;
                let led = self.leads.get(&at).copied().unwrap_or(now);
                let gone = |voter: &&PeerId| {
                    before
                        .silent
                        .get(*voter)
                        .is_some_and(|since| now.saturating_sub(led.max(*since)) > election_timeout)
                };
                let (gone, voters) = (stay.iter().filter(gone).count(), stay.len());
                if gone + voters / 2 + 1 > voters {
                    return Err(format!(
                        "{at} evicts a voter though {gone} of the {voters} remaining ones are silent"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
