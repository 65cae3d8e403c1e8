//! Masters' answers to ConnectToMaster, as far as their completeness is checked after the run.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::sync::Mutex;

use crate::history::Nanos;

/// An answer of a master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterAnswer {
    /// Times of the call and of its reply.
    pub asked: Nanos,
    pub told: Nanos,
    /// True if the master calls itself the leader.
    pub leads: bool,
    pub cluster: Option<String>,
    pub has_token: bool,
    pub has_authority: bool,
}

impl MasterAnswer {
    /// Returns true if nothing is missing that clients of any cluster may need.
    pub fn is_complete(&self) -> bool {
        self.cluster.is_some() && self.has_token && self.has_authority
    }
}

/// Answers of masters that call themselves the leader.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaderAnswers {
    /// Ids of clusters, each with the master that told it first.
    pub clusters: BTreeMap<String, String>,
    /// Incomplete answers, each with its master and the answer to a call right after it, if there was one.
    pub incomplete: Vec<(String, MasterAnswer, Option<MasterAnswer>)>,
}

/// Most incomplete answers that are retained: a leader may lack a token for as long as a plan lasts.
const INCOMPLETE_MAX: usize = 4_096;

/// The answers that clients got. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ConnectionLog {
    answers: Arc<Mutex<LeaderAnswers>>,
}

impl ConnectionLog {
    /// Adds an answer of a master that calls itself the leader, and the one to a call right after it, if it was asked
    /// again. `is_secure`: false if answers have no token and no authority.
    pub fn add(&self, address: &str, is_secure: bool, answer: &MasterAnswer, again: Option<MasterAnswer>) {
        let mut answers = self.answers.lock();
        if let Some(cluster) = &answer.cluster {
            answers.clusters.entry(cluster.clone()).or_insert_with(|| address.to_string());
        }
        let is_complete = answer.is_complete() || (!is_secure && answer.cluster.is_some());
        if !is_complete && answers.incomplete.len() < INCOMPLETE_MAX {
            answers.incomplete.push((address.to_string(), answer.clone(), again));
        }
    }

    /// Returns all answers so far.
    pub fn all(&self) -> LeaderAnswers {
        self.answers.lock().clone()
    }
}
