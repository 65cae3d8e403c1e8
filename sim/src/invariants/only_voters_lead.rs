//! OnlyVotersLead: only voters stand for election and lead, and a leader whose removal is committed has stepped down.
//!
//! A learner or a removed member that leads serves reads and writes without a vote of its own. A candidate must be a
//! voter of the configuration in force: the newest in its log, or a committed one in its metadata, which is stored
//! without waiting for the replica's own log. A leader may be missing there while its own removal is
//! pending: then it is a voter of its committed configuration.

use engine::note::raft::{NotedRole, RaftAction};

use super::{Invariant, Model, ReplicaEvent};

/// The invariant of this module.
#[derive(Debug, Default)]
pub struct OnlyVotersLead;

impl Invariant for OnlyVotersLead {
    fn name(&self) -> &'static str {
        "OnlyVotersLead"
    }

    fn check_before(&mut self, event: &ReplicaEvent, before: &Model) -> Result<(), String> {
        let at = event.at;
        match &event.note.action {
            RaftAction::StartPreElection { term } | RaftAction::StartElection { term, .. } => {
                let Some((op, config)) = before.config_at(at, u64::MAX) else { return Ok(()) };
                let mut known = before.committed_configs_after(at).chain([config]);
                if known.any(|config| config.voters.contains(&at)) {
                    return Ok(());
                }
                Err(format!("{at} stands in term {term} and is no voter of its configuration of {op}"))
            }
            RaftAction::ClientAppend { .. } | RaftAction::ConfigAppend { .. } | RaftAction::AdvanceCommit => {
                let Some(leader) = before.replicas.get(&at) else { return Ok(()) };
                let Some(post) = leader.post.filter(|post| post.role == NotedRole::Leader) else {
                    return Ok(());
                };
                let known = [u64::MAX, post.commit].map(|index| before.config_at(at, index));
                // The first configuration is unknown where a crash interrupted the creation.
                let unknown = known.iter().all(Option::is_none);
                if unknown || known.iter().flatten().any(|(_, config)| config.voters.contains(&at)) {
                    return Ok(());
                }
                Err(format!("{at} leads term {} and no configuration has it as a voter", post.term))
            }
            _ => Ok(()),
        }
    }
}
