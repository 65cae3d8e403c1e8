//! What replication did, in the words of `spec/`: one note for each action of the specification.
//!
//! A note holds the action, its parameters, and the replica's state right after it. `cargo ci spec --traces` replays
//! the notes of all replicas of a tablet against the specification; [`Trace`] is the file it reads. When each action
//! is to be noted, and what its parameters mean, is told in `spec/README.md`, section Traces.

use std::fmt;

use crate::ids::{OpId, PeerId, TabletId, Term};
use crate::time::Timestamp;

/// One action and the state it led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaftNote {
    pub action: Action,
    pub post: Post,
}

/// The actions of the specification; names and order as in `spec/README.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// The replica was made with this first configuration.
    Create {
        voters: Vec<PeerId>,
        learners: Vec<PeerId>,
    },
    /// `term` is the one an election would begin, so one above the replica's.
    StartPreElection {
        term: Term,
    },
    GrantPreVote {
        candidate: PeerId,
        term: Term,
    },
    /// `asked`: by an operator or a leader that hands over; then no pre-election goes before it.
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
    /// Any operation but a change of configuration, the leader's no-op among them.
    ClientAppend {
        op: OpId,
        timestamp: Timestamp,
    },
    /// `cas`: the index of the configuration that the change was decided on, if the request named one.
    ConfigAppend {
        op: OpId,
        voters: Vec<PeerId>,
        learners: Vec<PeerId>,
        cas: Option<u64>,
    },
    LeaderPersist {
        upto: OpId,
    },
    /// Everything after the index `after` left the log, because `leader` of the replica's term has other entries.
    AbortPending {
        leader: PeerId,
        after: u64,
    },
    /// The log agrees with the leader's from `prev` up to `upto`; what was missing has been appended.
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
    /// The source fixed what `sink` may fetch: its log up to `upto`.
    CopyOpen {
        sink: PeerId,
        upto: OpId,
    },
    /// `term`: that of the leader that asked for the copy.
    CopyStart {
        source: PeerId,
        term: Term,
    },
    CopyFinish,
    CopyAbort,
    /// `cas`: the configuration index of the master's order, if it named one.
    Tombstone {
        cas: Option<u64>,
    },
    Delete,
    /// An error of the disk ended the replica: it takes part in nothing from here on.
    Fail,
    /// The server came back and could not open the replica. `vote`: as stored, if that could be read.
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
pub struct Post {
    pub term: Term,
    /// The last entry of the log, durable or not; of a tombstone or a copy under way, the one it remembers. 0.0 if that
    /// is not known any more.
    pub last: OpId,
    /// The highest index known to be committed; 0 without a log that can be used.
    pub commit: u64,
    pub role: Role,
    pub data: DataState,
}

/// What the replica takes part as; learners and replicas outside the configuration count as followers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Leader,
    Candidate,
    Follower,
}

/// What the superblock says about the replica's data, or that it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataState {
    Ready,
    Copying,
    Tombstoned,
    /// Whatever the superblock says: nothing can be done with it.
    Failed,
    Gone,
}

impl fmt::Display for RaftNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} | {}", self.action, self.post)
    }
}

impl fmt::Display for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Leader => "leader",
            Role::Candidate => "candidate",
            Role::Follower => "follower",
        };
        let data = match self.data {
            DataState::Ready => "ready",
            DataState::Copying => "copying",
            DataState::Tombstoned => "tombstoned",
            DataState::Failed => "failed",
            DataState::Gone => "gone",
        };
        let Post { term, last, commit, .. } = self;
        write!(f, "term={term} last={last} commit={commit} role={role} data={data}")
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Create { voters, learners } => {
                write!(f, "Create voters={} learners={}", List(voters), List(learners))
            }
            Action::StartPreElection { term } => write!(f, "StartPreElection term={term}"),
            Action::GrantPreVote { candidate, term } => {
                write!(f, "GrantPreVote candidate={candidate} term={term}")
            }
            Action::StartElection { term, asked } => write!(f, "StartElection term={term} asked={asked}"),
            Action::GrantVote { candidate, term } => write!(f, "GrantVote candidate={candidate} term={term}"),
            Action::SeeTerm { term } => write!(f, "SeeTerm term={term}"),
            Action::MetaPersist { term, vote } => write!(f, "MetaPersist term={term} vote={}", OrNone(vote)),
            Action::BecomeLeader => f.write_str("BecomeLeader"),
            Action::StepDown => f.write_str("StepDown"),
            Action::ClientAppend { op, timestamp } => {
                write!(f, "ClientAppend op={op} timestamp={}", timestamp.0)
            }
            Action::ConfigAppend { op, voters, learners, cas } => {
                write!(f, "ConfigAppend op={op} voters={}", List(voters))?;
                write!(f, " learners={} cas={}", List(learners), OrNone(cas))
            }
            Action::LeaderPersist { upto } => write!(f, "LeaderPersist upto={upto}"),
            other => other.fmt_followers(f),
        }
    }
}

impl Action {
    /// The second half of `fmt`: what followers, copies and restarts do.
    fn fmt_followers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::AbortPending { leader, after } => write!(f, "AbortPending leader={leader} after={after}"),
            Action::FollowerAppend { leader, prev, upto } => {
                write!(f, "FollowerAppend leader={leader} prev={prev} upto={upto}")
            }
            Action::FollowerPersist { upto } => write!(f, "FollowerPersist upto={upto}"),
            Action::CopyOpen { sink, upto } => write!(f, "CopyOpen sink={sink} upto={upto}"),
            Action::CopyStart { source, term } => write!(f, "CopyStart source={source} term={term}"),
            Action::Tombstone { cas } => write!(f, "Tombstone cas={}", OrNone(cas)),
            Action::FailOpen { vote } => write!(f, "FailOpen vote={}", OrNone(vote)),
            Action::Restart { vote } => write!(f, "Restart vote={}", OrNone(vote)),
            Action::SafeTimeAdvance { safe } => write!(f, "SafeTimeAdvance safe={}", safe.0),
            // Those without parameters print as they are named.
            plain => fmt::Debug::fmt(plain, f),
        }
    }
}

/// Ids with commas between them; `none` if there are none.
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

/// The notes of all replicas of one tablet in the order they happened, as the text of a trace file.
#[derive(Debug, Clone)]
pub struct Trace {
    text: String,
    events: u64,
}

impl Trace {
    /// `origin`: where the trace comes from, on one line, such as a seed.
    pub fn new(tablet: TabletId, origin: &str) -> Trace {
        let origin = origin.replace('\n', " ");
        Trace { text: format!("nyala-trace 1\ntablet {tablet}\norigin {origin}\n"), events: 0 }
    }

    pub fn push(&mut self, at: PeerId, note: &RaftNote) {
        self.events += 1;
        self.text.push_str(&format!("{} {at} {note}\n", self.events));
    }

    pub fn events(&self) -> u64 {
        self.events
    }

    /// The whole file. The last line says how many events there are, so that a truncated file shows.
    pub fn finish(mut self) -> String {
        self.text.push_str(&format!("end {}\n", self.events));
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;

    fn post() -> Post {
        let last = OpId { term: 2, index: 7 };
        Post { term: 3, last, commit: 5, role: Role::Follower, data: DataState::Ready }
    }

    #[test]
    fn a_trace_reads_as_the_specs_readme_says() {
        let peer = Uuid([0xab; 16]);
        let mut trace = Trace::new(Uuid::ZERO, "seed 17");
        let prev = OpId { term: 2, index: 6 };
        let upto = OpId { term: 2, index: 7 };
        let append = Action::FollowerAppend { leader: peer, prev, upto };
        trace.push(Uuid([0xcd; 16]), &RaftNote { action: append, post: post() });
        let plain = Action::FollowerCommit;
        trace.push(peer, &RaftNote { action: plain, post: post() });
        let meta = Action::MetaPersist { term: 3, vote: None };
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
