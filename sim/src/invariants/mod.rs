//! What must hold of replication at every moment, by the names that `spec/` gives it; one file each.
//!
//! ```text
//! notes of all replicas ──► Watchdog ──► a model per tablet, before and after the event   [`model`]
//!                              └───────► each invariant looks at both, and may object
//! ```
//!
//! Nothing of the engine is reused but the types of its notes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use engine::ids::{PeerId, TabletId, Term};
use engine::note::raft::{Action, DataState, RaftNote};
use engine::time::Timestamp;

pub use model::{Event, Model};

use crate::oracle::Finding;

pub mod applied_agree;
pub mod asked_first;
pub mod change_in_own_term;
pub mod commit_by_majority;
pub mod commit_within_log;
pub mod config_in_log;
pub mod copy_is_prefix;
pub mod elected_by_votes;
pub mod election_restriction;
pub mod latest_reads;
pub mod leader_completeness;
pub mod leader_undisturbed;
pub mod living_majority;
pub mod log_matching;
pub mod model;
pub mod needed_copy;
pub mod no_amnesia;
pub mod no_committed_truncation;
pub mod no_revival;
pub mod one_leader_per_term;
pub mod one_vote_per_term;
pub mod promises_bind;
pub mod quorum_keeps;
pub mod quorums_meet;
pub mod repeatable_snapshot;
pub mod safe_time_monotone;
pub mod state_machine_safety;
#[cfg(test)]
mod tests;

/// Something that must hold of every event of one tablet.
pub trait Invariant {
    fn name(&self) -> &'static str;

    /// Looks at an event and the model before it; an error says in words what does not hold.
    fn foresee(&mut self, event: &Event, before: &Model) -> Result<(), String> {
        let _ = (event, before);
        Ok(())
    }

    /// Looks at an event and the model after it.
    fn see(&mut self, event: &Event, after: &Model) -> Result<(), String> {
        let _ = (event, after);
        Ok(())
    }
}

/// Whether the replica is another from this action on, whatever it was.
pub fn begins_anew(action: &Action) -> bool {
    use Action::{CopyAbort, CopyFinish, CopyStart, Create, Delete, Fail, FailOpen, Restart, Tombstone};
    matches!(
        action,
        Create { .. }
            | Restart { .. }
            | CopyStart { .. }
            | CopyFinish
            | CopyAbort
            | Tombstone { .. }
            | Delete
            | Fail
            | FailOpen { .. }
    )
}

/// More do not tell more.
const FINDINGS_MAX: usize = 20;
/// Events of a story before the one that broke something.
const STORY_EVENTS: usize = 30;

/// The invariants of every tablet of a run.
#[derive(Default)]
pub struct Watchdog {
    tablets: BTreeMap<TabletId, Tablet>,
    findings: Vec<Finding>,
    events: u64,
    log_sync_off: bool,
    /// How long a follower waits for its leader.
    patience: Duration,
    /// How long one may be silent until it is given up.
    given_up: Duration,
    /// By how much more than they say clocks may be wrong.
    clocks_wrong: Duration,
    excused: Vec<PeerId>,
    /// Who does nothing, since when.
    silent: BTreeMap<PeerId, u64>,
}

struct Tablet {
    model: Model,
    invariants: Vec<Box<dyn Invariant + Send>>,
    recent: VecDeque<Event>,
}

impl Tablet {
    fn new() -> Tablet {
        Tablet {
            model: Model::default(),
            invariants: vec![
                Box::new(one_vote_per_term::OneVotePerTerm::default()),
                Box::new(elected_by_votes::ElectedByVotes::default()),
                Box::new(asked_first::AskedFirst::default()),
                Box::new(election_restriction::ElectionRestriction::default()),
                Box::new(one_leader_per_term::OneLeaderPerTerm::default()),
                Box::new(log_matching::LogMatching),
                Box::new(leader_completeness::LeaderCompleteness),
                Box::new(state_machine_safety::StateMachineSafety),
                Box::new(no_committed_truncation::NoCommittedTruncation),
                Box::new(commit_within_log::CommitWithinLog),
                Box::new(applied_agree::AppliedAgree),
                Box::new(quorums_meet::QuorumsMeet),
                Box::new(needed_copy::NeededCopy::default()),
                Box::new(no_amnesia::NoAmnesia),
                Box::new(no_revival::NoRevival),
                Box::new(config_in_log::ConfigInLog),
                Box::new(copy_is_prefix::CopyIsPrefix),
                Box::new(safe_time_monotone::SafeTimeMonotone::default()),
                Box::new(promises_bind::PromisesBind::default()),
                Box::new(quorum_keeps::QuorumKeeps),
                Box::new(commit_by_majority::CommitByMajority),
                Box::new(change_in_own_term::ChangeInOwnTerm::default()),
                Box::new(leader_undisturbed::LeaderUndisturbed::default()),
                Box::new(living_majority::LivingMajority::default()),
            ],
            recent: VecDeque::new(),
        }
    }
}

impl Watchdog {
    /// `log_sync`: whether what is acknowledged is synced first; without that a power cut may take a majority's copy.
    /// `patience`: how long a follower waits for its leader; zero if that is not known.
    pub fn new(log_sync: bool, patience: Duration) -> Watchdog {
        Watchdog { log_sync_off: !log_sync, patience, ..Watchdog::default() }
    }

    /// A server that is silent for so long is given up by its leaders.
    pub fn giving_up_after(self, given_up: Duration) -> Watchdog {
        Watchdog { given_up, ..self }
    }

    /// Clocks may be wrong by so much more than they say.
    pub fn clocks_wrong_by(self, clocks_wrong: Duration) -> Watchdog {
        Watchdog { clocks_wrong, ..self }
    }

    /// These servers do nothing, each since that moment; no others.
    pub fn silent(&mut self, silent: BTreeMap<PeerId, u64>) {
        self.silent = silent;
    }

    /// This server's disks have lost what was durable, and it is not its fault.
    pub fn excuse(&mut self, server: PeerId) {
        self.excused.push(server);
        for tablet in self.tablets.values_mut() {
            tablet.model.excused.insert(server);
        }
    }

    /// Takes a note of a moment in, in the order in which notes are made across all servers.
    pub fn see(&mut self, server: PeerId, tablet: TabletId, note: &RaftNote, nanos: u64) {
        self.events += 1;
        let before = self.tablets.remove(&tablet);
        let state = match before {
            Some(state) if !state.is_made_once_more(note) => state,
            before => {
                let mut model = self.model();
                model.deleted_voters = before.map(|state| state.model.deleted_voters).unwrap_or_default();
                Tablet { model, ..Tablet::new() }
            }
        };
        let state = self.tablets.entry(tablet).or_insert(state);
        if state.model.silent != self.silent {
            state.model.silent.clone_from(&self.silent);
        }
        let event = Event { at: server, nanos, note: note.clone() };
        for (oracle, what) in state.see(&event) {
            self.object(tablet, oracle, &what);
        }
    }

    /// A replica that leads in `term` begins to serve the latest that it has, which is everything up to `applied`.
    pub fn served_latest(&mut self, server: PeerId, tablet: TabletId, term: Term, applied: Timestamp) {
        let Some(state) = self.tablets.get(&tablet) else { return };
        if let Err(what) = latest_reads::check(server, term, applied, &state.model) {
            self.object(tablet, latest_reads::NAME, &what);
        }
    }

    fn object(&mut self, tablet: TabletId, oracle: &'static str, what: &str) {
        if self.findings.len() < FINDINGS_MAX {
            let message = format!("tablet {tablet}, event {}: {what}", self.events);
            let recent = self.tablets.get(&tablet).into_iter().flat_map(|state| &state.recent);
            let story = recent.map(|event| format!("{} {}", event.at, event.note)).collect();
            self.findings.push(Finding { oracle, message, story });
        }
    }

    /// A server has opened its replica of a tablet, which goes by the configuration of this index.
    pub fn opened(&mut self, server: PeerId, tablet: TabletId, config: u64) {
        if let Some(state) = self.tablets.get_mut(&tablet) {
            state.model.opened_with.insert(server, config);
        }
    }

    /// Nothing has happened yet.
    fn model(&self) -> Model {
        let mut model = Model::default();
        model.excused = self.excused.iter().copied().collect();
        (model.log_sync_off, model.patience) = (self.log_sync_off, self.patience);
        (model.given_up, model.clocks_wrong) = (self.given_up, self.clocks_wrong);
        model
    }

    /// These tablets were not dropped: no voter of theirs may have been deleted.
    pub fn alive(&mut self, tablets: &[TabletId]) {
        for tablet in tablets {
            let Some(state) = self.tablets.get(tablet) else { continue };
            for event in &state.model.deleted_voters {
                let message = format!(
                    "tablet {tablet} lives, and {}, a voter, was deleted: {}",
                    event.at, event.note.action
                );
                let story = vec![format!("{} {}", event.at, event.note)];
                self.findings.push(Finding { oracle: "VotersStay", message, story });
            }
        }
    }

    pub fn events(&self) -> u64 {
        self.events
    }

    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

impl Tablet {
    /// Whether the only replica is created where it has been deleted: an order to create it was late, and its table is
    /// dropped. What is made then has nothing to do with what was there, and goes the same way. One of several follows
    /// who led before, if that was not the last to hear of it.
    fn is_made_once_more(&self, note: &RaftNote) -> bool {
        let gone = |replica: &model::Replica| replica.post.is_some_and(|post| post.data == DataState::Gone);
        matches!(&note.action, Action::Create { voters, .. } if voters.len() == 1)
            && !self.model.replicas.is_empty()
            && self.model.replicas.values().all(gone)
    }

    fn see(&mut self, event: &Event) -> Vec<(&'static str, String)> {
        if self.recent.len() == STORY_EVENTS {
            self.recent.pop_front();
        }
        self.recent.push_back(event.clone());
        let mut objections = Vec::new();
        for invariant in &mut self.invariants {
            let seen = invariant.foresee(event, &self.model);
            objections.extend(seen.err().map(|what| (invariant.name(), what)));
        }
        self.model.take(event);
        for invariant in &mut self.invariants {
            let seen = invariant.see(event, &self.model);
            objections.extend(seen.err().map(|what| (invariant.name(), what)));
        }
        objections
    }
}
