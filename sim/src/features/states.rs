//! States of a tablet according to the invariants' model, made canonical, and edges between them.
//!
//! Canonical: servers have no names, terms and ends of logs count by rank and by their distance from the greatest. So
//! two runs that reach the same situation by other indices and on other servers have the same feature.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;

use engine::ids::{PeerId, TabletId};
use engine::note::raft::{PostState, RaftAction, RaftNote};

use super::feature_set::{STATES, feature};
use crate::invariants::Model;
use crate::invariants::model::Replica;

/// Greatest rank and distance that count; all beyond are alike.
const FAR: u64 = 3;

/// A replica's part of a canonical state.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ReplicaState {
    role: u8,
    data: u8,
    /// Terms between its own and the greatest.
    term_rank: u64,
    /// Terms between that of its last entry and the greatest of those.
    last_rank: u64,
    last_lag: u64,
    commit_lag: u64,
    member: Membership,
    /// True if the newest configuration in its log is not committed as far as it knows.
    is_changing: bool,
    is_blind: bool,
    vote: Vote,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Membership {
    None,
    Voter,
    Learner,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Vote {
    None,
    Own,
    Other,
}

/// The states and edges of a run.
#[derive(Default)]
pub(super) struct States {
    /// The last state of each tablet.
    last: BTreeMap<TabletId, u64>,
    /// The last stored vote of each replica.
    votes: BTreeMap<(TabletId, PeerId), Option<PeerId>>,
    found: BTreeSet<u64>,
}

impl States {
    pub(super) fn note(&mut self, server: PeerId, tablet: TabletId, note: &RaftNote, model: &Model) {
        if let RaftAction::MetaPersist { vote, .. }
        | RaftAction::FailOpen { vote }
        | RaftAction::Restart { vote } = &note.action
        {
            self.votes.insert((tablet, server), *vote);
        }
        let state = feature(STATES, self.canonical(tablet, model));
        self.found.insert(state);
        let before = self.last.insert(tablet, state);
        let action = discriminant(&note.action);
        self.found.insert(feature(STATES, (before, action, state)));
    }

    pub(super) fn found(&self) -> &BTreeSet<u64> {
        &self.found
    }

    fn canonical(&self, tablet: TabletId, model: &Model) -> Vec<ReplicaState> {
        let posts = || model.replicas.values().filter_map(|replica| replica.post);
        let ranks = Ranks {
            terms: posts().map(|post| post.term).collect(),
            last_terms: posts().map(|post| post.last.term).collect(),
            last: posts().map(|post| post.last.index).max().unwrap_or_default(),
            commit: posts().map(|post| post.commit).max().unwrap_or_default(),
        };
        let known = model.replicas.iter().filter_map(|(peer, replica)| Some((*peer, replica, replica.post?)));
        let mut states: Vec<ReplicaState> = known
            .map(|(peer, replica, post)| {
                let vote = self.votes.get(&(tablet, peer)).copied().flatten();
                replica_state(peer, replica, post, vote, &ranks, model)
            })
            .collect();
        states.sort();
        states
    }
}

/// The values that ranks and distances are counted from.
struct Ranks {
    terms: BTreeSet<u64>,
    last_terms: BTreeSet<u64>,
    last: u64,
    commit: u64,
}

/// Returns the number of greater values, [`FAR`] at most.
fn rank(values: &BTreeSet<u64>, value: u64) -> u64 {
    values.range(value + 1..).take(FAR as usize).count() as u64
}

fn replica_state(
    peer: PeerId,
    replica: &Replica,
    post: PostState,
    vote: Option<PeerId>,
    ranks: &Ranks,
    model: &Model,
) -> ReplicaState {
    let config = model.config_at(peer, u64::MAX);
    let member = match config {
        Some((_, config)) if config.voters.contains(&peer) => Membership::Voter,
        Some((_, config)) if config.learners.contains(&peer) => Membership::Learner,
        _ => Membership::None,
    };
    let vote = match vote {
        None => Vote::None,
        Some(voted) if voted == peer => Vote::Own,
        Some(_) => Vote::Other,
    };
    ReplicaState {
        role: post.role as u8,
        data: post.data as u8,
        term_rank: rank(&ranks.terms, post.term),
        last_rank: rank(&ranks.last_terms, post.last.term),
        last_lag: (ranks.last - post.last.index).min(FAR),
        commit_lag: (ranks.commit - post.commit).min(FAR),
        member,
        is_changing: config.is_some_and(|(op, _)| op.index > post.commit),
        is_blind: replica.is_blind,
        vote,
    }
}
