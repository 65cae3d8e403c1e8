//! Invariants of replication, checked after each action, under the names that `spec/` gives them; one file each.
//!
//! ```text
//! notes of all replicas ──► InvariantChecker ──► a model per tablet, before and after the action   [`model`]
//!                                 └─────────────► each invariant looks at both and may report a violation
//! ```
//!
//! Nothing of the engine is reused but the types of its notes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use engine::ids::{OpId, PeerId, TabletId, Term};
use engine::note::raft::{NotedDataState, RaftAction, RaftNote};
use engine::time::Timestamp;

pub use invariant::{Invariant, starts_new_life};
pub use model::{Model, ReplicaEvent};

use crate::oracle::Violation;

pub mod acknowledged_stays;
pub mod applied_agree;
pub mod change_in_own_term;
pub mod commit_by_majority;
pub mod commit_within_log;
pub mod config_in_log;
pub mod copy_is_prefix;
pub mod elected_by_votes;
pub mod election_restriction;
pub mod election_timeout_kept;
mod invariant;
pub mod latest_reads;
pub mod leader_completeness;
pub mod leader_undisturbed;
pub mod live_majority;
pub mod log_matching;
pub mod majority_elects;
pub mod model;
pub mod necessary_copy;
pub mod no_amnesia;
pub mod no_blind_vote;
pub mod no_committed_truncation;
pub mod no_revival;
pub mod no_stale_delete;
pub mod one_leader_per_term;
pub mod one_vote_per_term;
pub mod only_voters_lead;
pub mod pre_vote_first;
pub mod quorum_keeps;
pub mod quorums_meet;
pub mod repeatable_snapshot;
pub mod safe_time_binds;
pub mod safe_time_monotone;
pub mod state_machine_safety;
pub mod terms_are_elected;
#[cfg(test)]
mod tests;

/// Violations per run that are retained.
const VIOLATIONS_MAX: usize = 20;
/// Actions of a story before the one that violates an invariant.
const STORY_EVENTS: usize = 30;

/// The invariants of every tablet of a run.
#[derive(Default)]
pub struct InvariantChecker {
    tablets: BTreeMap<TabletId, Tablet>,
    violations: Vec<Violation>,
    events: u64,
    log_sync_off: bool,
    /// Election timeout of a follower.
    election_timeout: Duration,
    /// Eviction timeout: silence after which a leader evicts a follower.
    evicted_after: Duration,
    /// Clock error beyond the stated one.
    excess_clock_error: Duration,
    excused: Vec<PeerId>,
    /// Sinks of copies that began when the source's configuration no longer named them.
    late_sinks: BTreeSet<(TabletId, PeerId)>,
    /// Silent servers, each with the start of its silence.
    silent: BTreeMap<PeerId, u64>,
    /// End of the last disturbance of each server that had one.
    disturbed: BTreeMap<PeerId, u64>,
}

struct Tablet {
    model: Model,
    invariants: Vec<Box<dyn Invariant + Send>>,
    recent: VecDeque<ReplicaEvent>,
}

impl Tablet {
    fn new() -> Tablet {
        Tablet {
            model: Model::default(),
            invariants: vec![
                Box::new(one_vote_per_term::OneVotePerTerm::default()),
                Box::new(elected_by_votes::ElectedByVotes::default()),
                Box::new(pre_vote_first::PreVoteFirst::default()),
                Box::new(election_restriction::ElectionRestriction::default()),
                Box::new(election_timeout_kept::ElectionTimeoutKept::default()),
                Box::new(one_leader_per_term::OneLeaderPerTerm::default()),
                Box::new(log_matching::LogMatching),
                Box::new(leader_completeness::LeaderCompleteness),
                Box::new(state_machine_safety::StateMachineSafety),
                Box::new(no_committed_truncation::NoCommittedTruncation),
                Box::new(commit_within_log::CommitWithinLog),
                Box::new(applied_agree::AppliedAgree),
                Box::new(quorums_meet::QuorumsMeet),
                Box::new(necessary_copy::NecessaryCopy::default()),
                Box::new(no_amnesia::NoAmnesia),
                Box::new(no_revival::NoRevival),
                Box::new(config_in_log::ConfigInLog),
                Box::new(copy_is_prefix::CopyIsPrefix),
                Box::new(safe_time_monotone::SafeTimeMonotone::default()),
                Box::new(safe_time_binds::SafeTimeBinds::default()),
                Box::new(quorum_keeps::QuorumKeeps),
                Box::new(commit_by_majority::CommitByMajority),
                Box::new(change_in_own_term::ChangeInOwnTerm::default()),
                Box::new(leader_undisturbed::LeaderUndisturbed::default()),
                Box::new(live_majority::LiveMajority::default()),
                Box::new(majority_elects::MajorityElects::default()),
                Box::new(only_voters_lead::OnlyVotersLead),
                Box::new(no_blind_vote::NoBlindVote),
                Box::new(no_stale_delete::NoStaleDelete),
                Box::new(acknowledged_stays::AcknowledgedStays),
                Box::new(terms_are_elected::TermsAreElected::default()),
            ],
            recent: VecDeque::new(),
        }
    }
}

impl InvariantChecker {
    /// Creates a checker. `log_sync`: true if entries are synced before they are acknowledged; without it a power cut
    /// may take a majority's copy. `election_timeout`: the election timeout of a follower; zero if unknown.
    pub fn new(log_sync: bool, election_timeout: Duration) -> InvariantChecker {
        InvariantChecker { log_sync_off: !log_sync, election_timeout, ..InvariantChecker::default() }
    }

    /// Sets the silence after which a leader evicts a follower.
    pub fn evicting_after(self, evicted_after: Duration) -> InvariantChecker {
        InvariantChecker { evicted_after, ..self }
    }

    /// Sets how far clocks may be wrong beyond their stated error.
    pub fn with_clock_error(self, excess_clock_error: Duration) -> InvariantChecker {
        InvariantChecker { excess_clock_error, ..self }
    }

    /// Replaces the set of silent servers; each comes with the start of its silence.
    pub fn set_silent(&mut self, silent: BTreeMap<PeerId, u64>) {
        self.silent = silent;
    }

    /// Replaces the ends of the last disturbances; a disturbance may end later than now.
    pub fn set_disturbed(&mut self, disturbed: BTreeMap<PeerId, u64>) {
        self.disturbed = disturbed;
    }

    /// Excuses a server whose disks have lost durable data.
    pub fn excuse(&mut self, server: PeerId) {
        self.excused.push(server);
        for tablet in self.tablets.values_mut() {
            tablet.model.excused.insert(server);
        }
    }

    /// Checks a note; notes come in the order in which they are made across all servers.
    pub fn check_note(&mut self, server: PeerId, tablet: TabletId, note: &RaftNote, nanos: u64) {
        self.events += 1;
        let before = self.tablets.remove(&tablet);
        let state = match before {
            Some(state) if !state.is_recreated(note) => state,
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
        if state.model.disturbed != self.disturbed {
            state.model.disturbed.clone_from(&self.disturbed);
        }
        if let RaftAction::CopyOpen { sink, .. } = &note.action
            && !state.model.config_of(server).is_some_and(|config| config.is_member(*sink))
        {
            self.late_sinks.insert((tablet, *sink));
        }
        let event = ReplicaEvent { at: server, nanos, note: note.clone() };
        for (oracle, message) in state.check_event(&event) {
            self.report(tablet, oracle, &message);
        }
    }

    /// Checks a replica that leads in `term` and begins to serve the latest rows, that is, everything up to `applied`.
    pub fn served_latest(&mut self, server: PeerId, tablet: TabletId, term: Term, applied: Timestamp) {
        let Some(state) = self.tablets.get(&tablet) else { return };
        if let Err(message) = latest_reads::check(server, term, applied, &state.model) {
            self.report(tablet, latest_reads::NAME, &message);
        }
    }

    fn report(&mut self, tablet: TabletId, oracle: &'static str, message: &str) {
        if self.violations.len() < VIOLATIONS_MAX {
            let message = format!("tablet {tablet}, event {}: {message}", self.events);
            let recent = self.tablets.get(&tablet).into_iter().flat_map(|state| &state.recent);
            let story = recent.map(|event| format!("{} {}", event.at, event.note)).collect();
            self.violations.push(Violation { oracle, message, story });
        }
    }

    /// Records that a server opened its replica of a tablet, with the configuration of this index.
    pub fn opened(&mut self, server: PeerId, tablet: TabletId, config: u64) {
        if let Some(state) = self.tablets.get_mut(&tablet) {
            state.model.opened_with.insert(server, config);
        }
    }

    /// Returns the model of a tablet, after its last action.
    pub fn model_of(&self, tablet: TabletId) -> Option<&Model> {
        self.tablets.get(&tablet).map(|state| &state.model)
    }

    /// Returns the model before any action.
    fn model(&self) -> Model {
        let mut model = Model::default();
        model.excused = self.excused.iter().copied().collect();
        (model.log_sync_off, model.election_timeout) = (self.log_sync_off, self.election_timeout);
        (model.evicted_after, model.excess_clock_error) = (self.evicted_after, self.excess_clock_error);
        model
    }

    /// Reports deleted voters of these tablets, which were not dropped.
    pub fn check_live_tablets(&mut self, tablets: &[TabletId]) {
        for tablet in tablets {
            let Some(state) = self.tablets.get(tablet) else { continue };
            for event in &state.model.deleted_voters {
                let message = format!(
                    "tablet {tablet} was not dropped, and its voter {} was deleted: {}",
                    event.at, event.note.action
                );
                let story = vec![format!("{} {}", event.at, event.note)];
                self.violations.push(Violation { oracle: "VotersStay", message, story });
            }
        }
    }

    /// Returns the members that only a configuration change without a majority names, and those removed before
    /// their copy began: no configuration is newer than theirs and lacks them.
    pub fn members_of_lost_changes(&self) -> BTreeSet<(TabletId, PeerId)> {
        let of_tablet = |(tablet, state): (&TabletId, &Tablet)| {
            let model = &state.model;
            let is_lost = |op: &OpId| {
                op.index > 0
                    && model.committed.get(&op.index).is_none_or(|committed| committed.term != op.term)
            };
            // A server knows that its configuration is void once one of a later term is committed.
            let is_void =
                |op: &OpId| model.configs.keys().any(|other| other.term > op.term && !is_lost(other));
            let lost = model.configs.iter().filter(|(op, _)| is_lost(op) && !is_void(op));
            let lost = lost.map(|(_, config)| config);
            let members = lost.flat_map(|config| config.voters.iter().chain(&config.learners));
            members.map(|member| (*tablet, *member)).collect::<Vec<_>>()
        };
        self.tablets.iter().flat_map(of_tablet).chain(self.late_sinks.iter().copied()).collect()
    }

    pub fn events(&self) -> u64 {
        self.events
    }

    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }
}

impl Tablet {
    /// Returns true if the only replica of a tablet is created where it was deleted: the request to create it was late,
    /// and its table is dropped. The new replica has nothing in common with the old one and will be deleted as well.
    /// With several replicas it follows the previous leader, unless that was the last to learn of the deletion.
    fn is_recreated(&self, note: &RaftNote) -> bool {
        let gone =
            |replica: &model::Replica| replica.post.is_some_and(|post| post.data == NotedDataState::Gone);
        matches!(&note.action, RaftAction::Create { voters, .. } if voters.len() == 1)
            && !self.model.replicas.is_empty()
            && self.model.replicas.values().all(gone)
    }

    fn check_event(&mut self, event: &ReplicaEvent) -> Vec<(&'static str, String)> {
        if self.recent.len() == STORY_EVENTS {
            self.recent.pop_front();
        }
        self.recent.push_back(event.clone());
        let mut violated = Vec::new();
        for invariant in &mut self.invariants {
            let result = invariant.check_before(event, &self.model);
            violated.extend(result.err().map(|message| (invariant.name(), message)));
        }
        self.model.take(event);
        for invariant in &mut self.invariants {
            let result = invariant.check_after(event, &self.model);
            violated.extend(result.err().map(|message| (invariant.name(), message)));
        }
        violated
    }
}
