//! Replication notes in the terms of `spec/`: one note for each action of the specification.
//!
//! A note has the action, its parameters, and the replica's state right after it. `cargo ci spec --traces` replays the
//! notes of all replicas of a tablet against the specification; [`RaftTrace`] is the file it reads. `spec/README.md`,
//! section Traces, defines when an action is noted and its parameters.

use std::fmt;

use crate::ids::{OpId, PeerId, TabletId, Term};
use crate::time::Timestamp;

/// One action and the state after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaftNote {
    pub action: RaftAction,
    pub post: PostState,
}

/// The actions of the specification; names and order as in `spec/README.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RaftAction {
    /// The replica was created with this first configuration.
    Create {
        voters: Vec<PeerId>,
        learners: Vec<PeerId>,
    },
    /// `term` is the term that the election would start: the replica's term plus one.
    StartPreElection {
        term: Term,
    },
    GrantPreVote {
        candidate: PeerId,
        term: Term,
    },
    /// `asked` is true if an operator or a leader that transfers leadership requested the election; then no pre-vote
    /// precedes it.
    StartElection {
        term: Term,
        asked: bool,
    },
    GrantVote {
        candidate: PeerId,
        term: Term,
    },
    SeeTerm {
        term: Term,
    },
    /// The consensus metadata with this term and vote is durable.
    MetaPersist {
        term: Term,
        vote: Option<PeerId>,
    },
    BecomeLeader,
    StepDown,
    /// Any operation except a configuration change; the leader's no-op is one.
    ClientAppend {
        op: OpId,
        timestamp: Timestamp,
        /// The kind of the log entry ([`crate::raft::kind`]).
        kind: u8,
    },
    /// `cas` is the index of the configuration that the change is based on, if the request named one.
    ConfigAppend {
        op: OpId,
        voters: Vec<PeerId>,
        learners: Vec<PeerId>,
        cas: Option<u64>,
    },
    LeaderPersist {
        upto: OpId,
    },
    /// All entries after index `after` were truncated, because `leader` of the replica's term has other entries.
    AbortPending {
        leader: PeerId,
        after: u64,
    },
    /// The log agrees with the leader's from `prev` up to `upto`; missing entries were appended.
    FollowerAppend {
        leader: PeerId,
        prev: OpId,
        upto: OpId,
    },
    FollowerPersist {
        upto: OpId,
    },
    AdvanceCommit,
    FollowerCommit,
    /// The source fixed the data that `sink` may fetch: its log up to `upto`.
    CopyOpen {
        sink: PeerId,
        upto: OpId,
    },
    /// `term` is the term of the leader that requested the copy.
    CopyStart {
        source: PeerId,
        term: Term,
    },
    CopyFinish,
    CopyAbort,
    /// `cas` is the configuration index of the master's command, if it named one.
    Tombstone {
        cas: Option<u64>,
    },
    Delete,
    /// A disk error ended the replica. It takes no further part in replication.
    Fail,
    /// The server restarted and could not open the replica. `vote` is the stored vote, if it could be read.
    FailOpen {
        vote: Option<PeerId>,
    },
    Restart {
        vote: Option<PeerId>,
    },
    SafeTimeAdvance {
        safe: Timestamp,
    },
}

/// A replica's state after an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostState {
    pub term: Term,
    /// The last entry of the log, durable or not; for a tombstone or a copy in progress, the one it remembers. 0.0 if
    /// it is not known any more.
    pub last: OpId,
    /// The highest index known to be committed; 0 without a usable log.
    pub commit: u64,
    pub role: NotedRole,
    pub data: NotedDataState,
}

/// Role of the replica. Learners and replicas outside the configuration count as followers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotedRole {
    Leader,
    Candidate,
    Follower,
}

/// State of the replica's data according to the superblock, or failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotedDataState {
    Ready,
    Copying,
    Tombstoned,
    /// The replica is unusable, whatever the superblock says.
    Failed,
    Gone,
}

impl fmt::Display for RaftNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} | {}", self.action, self.post)
    }
}

impl fmt::Display for PostState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            NotedRole::Leader => "leader",
            NotedRole::Candidate => "candidate",
            NotedRole::Follower => "follower",
        };
        let data = match self.data {
            NotedDataState::Ready => "ready",
            NotedDataState::Copying => "copying",
            NotedDataState::Tombstoned => "tombstoned",
            NotedDataState::Failed => "failed",
            NotedDataState::Gone => "gone",
        };
        let PostState { term, last, commit, .. } = self;
        write!(f, "term={term} last={last} commit={commit} role={role} data={data}")
    }
}

impl fmt::Display for RaftAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RaftAction::Create { voters, learners } => {
                write!(f, "Create voters={} learners={}", List(voters), List(learners))
            }
            RaftAction::StartPreElection { term } => write!(f, "StartPreElection term={term}"),
            RaftAction::GrantPreVote { candidate, term } => {
                write!(f, "GrantPreVote candidate={candidate} term={term}")
            }
            RaftAction::StartElection { term, asked } => write!(f, "StartElection term={term} asked={asked}"),
            RaftAction::GrantVote { candidate, term } => {
                write!(f, "GrantVote candidate={candidate} term={term}")
            }
            RaftAction::SeeTerm { term } => write!(f, "SeeTerm term={term}"),
            RaftAction::MetaPersist { term, vote } => {
                write!(f, "MetaPersist term={term} vote={}", OrNone(vote))
            }
            RaftAction::BecomeLeader => f.write_str("BecomeLeader"),
            RaftAction::StepDown => f.write_str("StepDown"),
            RaftAction::ClientAppend { op, timestamp, .. } => {
                write!(f, "ClientAppend op={op} timestamp={}", timestamp.0)
            }
            RaftAction::ConfigAppend { op, voters, learners, cas } => {
                write!(f, "ConfigAppend op={op} voters={}", List(voters))?;
                write!(f, " learners={} cas={}", List(learners), OrNone(cas))
            }
            RaftAction::LeaderPersist { upto } => write!(f, "LeaderPersist upto={upto}"),
            other => other.fmt_followers(f),
        }
    }
}

impl RaftAction {
    /// Formats the second half of the actions: those of followers, copies and restarts.
    fn fmt_followers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RaftAction::AbortPending { leader, after } => {
                write!(f, "AbortPending leader={leader} after={after}")
            }
            RaftAction::FollowerAppend { leader, prev, upto } => {
                write!(f, "FollowerAppend leader={leader} prev={prev} upto={upto}")
            }
            RaftAction::FollowerPersist { upto } => write!(f, "FollowerPersist upto={upto}"),
            RaftAction::CopyOpen { sink, upto } => write!(f, "CopyOpen sink={sink} upto={upto}"),
            RaftAction::CopyStart { source, term } => write!(f, "CopyStart source={source} term={term}"),
            RaftAction::Tombstone { cas } => write!(f, "Tombstone cas={}", OrNone(cas)),
            RaftAction::FailOpen { vote } => write!(f, "FailOpen vote={}", OrNone(vote)),
            RaftAction::Restart { vote } => write!(f, "Restart vote={}", OrNone(vote)),
            RaftAction::SafeTimeAdvance { safe } => write!(f, "SafeTimeAdvance safe={}", safe.0),
            // Actions without parameters print as their names.
            plain => fmt::Debug::fmt(plain, f),
        }
    }
}

/// Ids separated by commas; `none` if there are none.
struct List<'a>(&'a [PeerId]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (i, id) in self.0.iter().enumerate() {
            write!(f, "{}{id}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

struct OrNone<'a, T>(&'a Option<T>);

impl<T: fmt::Display> fmt::Display for OrNone<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("none"),
        }
    }
}

/// Text of a trace file: the notes of all replicas of one tablet, in the order they happened.
#[derive(Debug, Clone)]
pub struct RaftTrace {
    text: String,
    events: u64,
}

impl RaftTrace {
    /// `origin` is the trace's origin, in one line, such as a seed.
    pub fn new(tablet: TabletId, origin: &str) -> RaftTrace {
        let origin = origin.replace('\n', " ");
        RaftTrace { text: format!("nyala-trace 1\ntablet {tablet}\norigin {origin}\n"), events: 0 }
    }

    pub fn push(&mut self, at: PeerId, note: &RaftNote) {
        self.events += 1;
        self.text.push_str(&format!("{} {at} {note}\n", self.events));
    }

    pub fn events(&self) -> u64 {
        self.events
    }

    /// Returns the whole file. The last line has the number of events, so a truncated file is detected.
    pub fn finish(mut self) -> String {
        self.text.push_str(&format!("end {}\n", self.events));
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;

    fn post() -> PostState {
        let last = OpId { term: 2, index: 7 };
        PostState { term: 3, last, commit: 5, role: NotedRole::Follower, data: NotedDataState::Ready }
    }

    #[test]
    fn a_trace_has_the_format_of_the_specs_readme() {
        let peer = Uuid([0xab; 16]);
        let mut trace = RaftTrace::new(Uuid::ZERO, "seed 17");
        let prev = OpId { term: 2, index: 6 };
        let upto = OpId { term: 2, index: 7 };
        let append = RaftAction::FollowerAppend { leader: peer, prev, upto };
        trace.push(Uuid([0xcd; 16]), &RaftNote { action: append, post: post() });
        let plain = RaftAction::FollowerCommit;
        trace.push(peer, &RaftNote { action: plain, post: post() });
        let meta = RaftAction::MetaPersist { term: 3, vote: None };
        trace.push(peer, &RaftNote { action: meta, post: post() });
        let (a, c) = ("ab".repeat(16), "cd".repeat(16));
        let state = "term=3 last=2.7 commit=5 role=follower data=ready";
        let expected = [
            "nyala-trace 1".to_string(),
            format!("tablet {}", "0".repeat(32)),
            "origin seed 17".to_string(),
            format!("1 {c} FollowerAppend leader={a} prev=2.6 upto=2.7 | {state}"),
            format!("2 {a} FollowerCommit | {state}"),
            format!("3 {a} MetaPersist term=3 vote=none | {state}"),
            "end 3\n".to_string(),
        ];
        assert_eq!(trace.finish(), expected.join("\n"));
    }
}
