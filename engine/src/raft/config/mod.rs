//! Raft configuration: the members of one tablet's Raft group, and the changes that are allowed.
//!
//! A configuration is in force as soon as its entry is appended (Raft dissertation §4.1). Two successive configurations
//! differ by at most one voter, so any majority of the one meets any majority of the other.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ids::{PeerId, Term};

/// Membership of a replica: its vote and acknowledgements count or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MemberKind {
    Voter,
    /// Receives all entries, does not vote (a learner).
    NonVoter,
}

/// One replica of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    pub id: PeerId,
    pub member: MemberKind,
    pub host: String,
    pub port: u16,
    /// True for a learner that the leader promotes to voter once it has caught up.
    pub promote: bool,
    /// True if the replica is to be evicted as soon as there are enough replicas without it.
    pub replace: bool,
}

impl Peer {
    /// Creates a voter without marks.
    pub fn voter(id: PeerId, host: impl Into<String>, port: u16) -> Peer {
        Peer { id, member: MemberKind::Voter, host: host.into(), port, promote: false, replace: false }
    }

    pub fn is_voter(&self) -> bool {
        self.member == MemberKind::Voter
    }
}

/// The members of a group, as one log entry set them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RaftConfig {
    /// Index of the entry that set it; `None` for the initial configuration of a tablet.
    pub opid_index: Option<u64>,
    pub peers: Vec<Peer>,
}

const FORMAT: u8 = 1;
/// Largest number of voters: more make a group neither faster nor safer.
pub const VOTERS_MAX: usize = 15;

/// Position of a configuration in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfigPosition {
    /// Index of its operation as Kudu writes it: -1 for the initial configuration.
    pub index: i64,
    /// Term of its operation; `None` if the log does not know it any more.
    pub term: Option<Term>,
}

impl ConfigPosition {
    /// Returns the position of a configuration whose term is not known.
    pub fn at(index: i64) -> ConfigPosition {
        ConfigPosition { index, term: None }
    }
}

impl RaftConfig {
    /// Creates the configuration of a new tablet.
    pub fn initial(peers: Vec<Peer>) -> RaftConfig {
        RaftConfig { opid_index: None, peers }
    }

    pub fn peer(&self, id: PeerId) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.id == id)
    }

    pub fn is_voter(&self, id: PeerId) -> bool {
        self.peer(id).is_some_and(Peer::is_voter)
    }

    pub fn voters(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().filter(|peer| peer.is_voter())
    }

    pub fn voter_count(&self) -> usize {
        self.voters().count()
    }

    /// Number of voters that make a majority.
    pub fn majority(&self) -> usize {
        self.voter_count() / 2 + 1
    }

    /// Returns true if `id` is the only voter.
    pub fn is_only_voter(&self, id: PeerId) -> bool {
        self.is_voter(id) && self.voter_count() == 1
    }

    /// Gives the only voter, if that is `id`, its present address. It may have moved: it elects itself without a call.
    /// The members of larger groups find each other by the addresses that the configuration has.
    pub(super) fn readdress_only_voter(&mut self, id: PeerId, address: Option<&(String, u16)>) {
        let is_only_voter = self.is_only_voter(id);
        let own = self.peers.iter_mut().find(|peer| peer.id == id && is_only_voter);
        if let (Some(own), Some((host, port))) = (own, address) {
            (own.host, own.port) = (host.clone(), *port);
        }
    }

    /// Its index as Kudu writes it: -1 for the initial one.
    pub fn kudu_index(&self) -> i64 {
        self.opid_index.map_or(-1, |index| index as i64)
    }

    /// Encodes the payload of its log entry.
    pub fn encode(&self) -> Bytes {
        postcard::to_extend(self, vec![FORMAT]).expect("every field can be written").into()
    }

    /// Decodes the payload of a CONFIG entry; `Corrupt` if it is none, `Unsupported` if a newer build wrote it.
    pub fn decode(payload: &[u8]) -> Result<RaftConfig> {
        match payload.split_first() {
            Some((&FORMAT, rest)) => postcard::from_bytes(rest)
                .map_err(|error| Error::corrupt(format!("not a Raft configuration: {error}"))),
            Some((format, _)) => Err(Error::unsupported(format!(
                "a Raft configuration of format {format}, newer than this build reads ({FORMAT}); \
                 use the build that wrote it or a later one"
            ))),
            None => Err(Error::corrupt("a Raft configuration of no bytes")),
        }
    }

    /// Rejects a configuration that could never be in force: no voter, a member twice, a member without address.
    pub fn check(&self) -> Result<()> {
        if self.voter_count() == 0 {
            return Err(Error::invalid("a Raft configuration needs at least one voter"));
        }
        if self.voter_count() > VOTERS_MAX {
            let count = self.voter_count();
            return Err(Error::invalid(format!(
                "{count} voters are more than a group may have ({VOTERS_MAX})"
            )));
        }
        for (at, peer) in self.peers.iter().enumerate() {
            if self.peers[..at].iter().any(|other| other.id == peer.id) {
                return Err(Error::invalid(format!("peer {} is named twice in the configuration", peer.id)));
            }
            if peer.host.is_empty() || peer.port == 0 {
                return Err(Error::invalid(format!("peer {} has no address in the configuration", peer.id)));
            }
        }
        Ok(())
    }

    /// Number of voters that are in one of the two configurations only.
    pub fn voters_changed(&self, other: &RaftConfig) -> usize {
        let missing = |a: &RaftConfig, b: &RaftConfig| a.voters().filter(|peer| !b.is_voter(peer.id)).count();
        missing(self, other) + missing(other, self)
    }

    /// Applies `change`, requested of the leader `leader`; `Invalid` gives the reason of a rejection.
    ///
    /// Not checked here: that no other change is pending and that the leader may change anything yet.
    pub fn changed(&self, change: &ConfigChange, leader: PeerId) -> Result<RaftConfig> {
        if let Some(cas) = change.cas_opid_index
            && cas != self.kudu_index()
        {
            return Err(Error::invalid(format!(
                "the change was asked for configuration {cas}, but the committed one is {}; look again",
                self.kudu_index()
            )));
        }
        let mut next = RaftConfig { opid_index: None, peers: self.peers.clone() };
        for part in &change.parts {
            next.apply(part, leader)?;
        }
        next.check()?;
        if next.peers == self.peers {
            return Err(Error::invalid("the change would leave the configuration as it is"));
        }
        match self.voters_changed(&next) {
            0 | 1 => Ok(next),
            many => Err(Error::invalid(format!(
                "the change touches {many} voters, but at most one may join, leave or change at a time"
            ))),
        }
    }

    fn apply(&mut self, part: &ConfigChangePart, leader: PeerId) -> Result<()> {
        let id = part.peer();
        let at = self.peers.iter().position(|peer| peer.id == id);
        match (part, at) {
            (ConfigChangePart::Add(peer), None) => self.peers.push(peer.clone()),
            (ConfigChangePart::Add(_), Some(_)) => {
                return Err(Error::invalid(format!("peer {id} is already in the configuration")));
            }
            (_, None) => return Err(Error::invalid(format!("peer {id} is not in the configuration"))),
            (ConfigChangePart::Remove(_), Some(_)) if id == leader => {
                return Err(Error::invalid(format!(
                    "peer {id} is the leader and cannot be removed; transfer the leadership first"
                )));
            }
            (ConfigChangePart::Remove(_), Some(at)) => drop(self.peers.remove(at)),
            (ConfigChangePart::Modify { member: Some(MemberKind::NonVoter), .. }, Some(_))
                if id == leader =>
            {
                return Err(Error::invalid(format!(
                    "peer {id} is the leader and must stay a voter; transfer the leadership first"
                )));
            }
            (ConfigChangePart::Modify { member, promote, replace, .. }, Some(at)) => {
                let peer = &mut self.peers[at];
                peer.member = member.unwrap_or(peer.member);
                peer.promote = promote.unwrap_or(peer.promote) && !peer.is_voter();
                peer.replace = replace.unwrap_or(peer.replace);
            }
        }
        Ok(())
    }
}

impl fmt::Display for RaftConfig {
    /// Writes `[<id> voter, <id> non-voter promote] made by 17`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (at, peer) in self.peers.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            let member = if peer.is_voter() { "voter" } else { "non-voter" };
            write!(f, "{comma}{} {member}", peer.id)?;
            for (mark, set) in [(" promote", peer.promote), (" replace", peer.replace)] {
                f.write_str(if set { mark } else { "" })?;
            }
        }
        match self.opid_index {
            Some(index) => write!(f, "] made by {index}"),
            None => f.write_str("] initial"),
        }
    }
}

/// One part of a configuration change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigChangePart {
    Add(Peer),
    Remove(PeerId),
    /// A change of the fields that are not `None`.
    Modify {
        id: PeerId,
        member: Option<MemberKind>,
        promote: Option<bool>,
        replace: Option<bool>,
    },
}

impl ConfigChangePart {
    /// The peer that the part changes.
    pub fn peer(&self) -> PeerId {
        match self {
            ConfigChangePart::Add(peer) => peer.id,
            ConfigChangePart::Remove(id) | ConfigChangePart::Modify { id, .. } => *id,
        }
    }
}

/// A configuration change: all its parts or none, changing at most one voter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigChange {
    pub parts: Vec<ConfigChangePart>,
    /// Required index of the committed configuration (-1: the initial one).
    pub cas_opid_index: Option<i64>,
}

#[cfg(test)]
mod tests;
