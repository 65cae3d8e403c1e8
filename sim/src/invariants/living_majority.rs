//! LivingMajority: a leader takes no voter out of its group while those that would stay could not agree to it, because
//! too many of them have been silent for longer than it waits for anyone.
//!
//! Who is silent is said by those who made it so: the faults of the run. Time counts from when the leader began to
//! lead, as it has waited for nobody before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::ids::PeerId;
use engine::note::raft::Action;

use super::{Event, Invariant, Model};

/// What was under way may be heard after its sender fell silent.
const ECHO: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub struct LivingMajority {
    /// When each leader began to lead.
    leads: BTreeMap<PeerId, u64>,
}

impl Invariant for LivingMajority {
    fn name(&self) -> &'static str {
        "LivingMajority"
    }

    fn foresee(&mut self, event: &Event, before: &Model) -> Result<(), String> {
        let (at, now) = (event.at, event.nanos);
        match &event.note.action {
            Action::BecomeLeader => drop(self.leads.insert(at, now)),
            Action::ConfigAppend { voters, .. } if !before.given_up.is_zero() => {
                let Some(config) = before.config_of(at) else { return Ok(()) };
                let stay: BTreeSet<PeerId> = voters.iter().copied().collect();
                if config.voters.is_subset(&stay) {
                    return Ok(());
                }
                let patience = (before.given_up + ECHO).as_nanos() as u64;
                let led = self.leads.get(&at).copied().unwrap_or(now);
                let gone = |voter: &&PeerId| {
                    before
                        .silent
                        .get(*voter)
                        .is_some_and(|since| now.saturating_sub(led.max(*since)) > patience)
                };
                let (gone, voters) = (stay.iter().filter(gone).count(), stay.len());
                if gone + voters / 2 + 1 > voters {
                    return Err(format!(
                        "{at} takes a voter away though {gone} of the {voters} that stay are silent"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
