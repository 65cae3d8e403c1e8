//! The truth about a tablet's group: committed configurations and schema versions, terms and their leaders.
//!
//! The log is a count of committed entries. What a replica knows follows from the number of entries that it has.

use std::collections::BTreeMap;

use engine::catalog::{ConsensusState, CreateTabletCall, HostPort, PeerRecord, ReportedHealth, TaskKey};
use engine::ids::{PeerId, TableId, TabletId};
use engine::schema::Schema;
use engine::schema::partition::{Partition, PartitionSchema};
use std::sync::Arc;

use super::definition::Definition;

/// A member of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) server: PeerId,
    pub(super) address: HostPort,
    pub(super) voter: bool,
    pub(super) promote: bool,
    pub(super) replace: bool,
}

/// A configuration that a leader has accepted, and that is not committed.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) members: Vec<Member>,
    /// The call that asked for it: a master's generation and its task.
    pub(super) asked: Option<(u64, TaskKey)>,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) term: i64,
    pub(super) leader: Option<PeerId>,
    /// Leaders of all terms that had one.
    pub(super) leaders: BTreeMap<i64, PeerId>,
    /// Committed entries.
    pub(super) len: usize,
    /// Configurations by the number of their entry; 0 is the first one.
    pub(super) configs: Vec<(usize, Vec<Member>)>,
    /// Schema versions by the number of their entry.
    pub(super) versions: Vec<(usize, u32)>,
    pub(super) pending: Option<Pending>,
    /// Health of the members, as the leader was last seen to report it.
    pub(super) health: BTreeMap<PeerId, ReportedHealth>,
    /// The schema with which the masters have its replicas created.
    pub(super) first_schema: Arc<Schema>,
    /// The table as its replicas know it, by version, and their part of it.
    pub(super) definitions: BTreeMap<u32, Definition>,
    pub(super) table: TableId,
    pub(super) partition_schema: Arc<PartitionSchema>,
    pub(super) partition: Partition,
}

/// Returns the catalog's index of a configuration.
fn config_index(entry: usize) -> i64 {
    if entry == 0 { -1 } else { entry as i64 }
}

impl Group {
    /// Creates the group that a first order to create replicas describes.
    pub(super) fn new(call: &CreateTabletCall) -> Group {
        let member = |peer: &PeerRecord| Member {
            server: peer.server,
            address: peer.address.clone(),
            voter: peer.voter,
            promote: peer.promote,
            replace: peer.replace,
        };
        Group {
            term: 0,
            leader: None,
            leaders: BTreeMap::new(),
            len: 0,
            configs: vec![(0, call.consensus.peers.iter().map(member).collect())],
            versions: vec![(0, 0)],
            pending: None,
            health: BTreeMap::new(),
            first_schema: call.schema.clone(),
            definitions: BTreeMap::from([(0, Definition::of(call))]),
            table: call.table,
            partition_schema: call.partition_schema.clone(),
            partition: call.partition.clone(),
        }
    }

    /// Returns true if some configuration names a server.
    pub(super) fn has_named(&self, server: PeerId) -> bool {
        self.configs.iter().any(|(_, members)| members.iter().any(|member| member.server == server))
    }

    /// Returns the newest committed configuration.
    pub(super) fn members(&self) -> &[Member] {
        &self.configs.last().expect("there is a first one").1
    }

    /// Returns the configuration in force: the accepted one, or the newest that is committed.
    pub(super) fn active(&self) -> &[Member] {
        self.pending.as_ref().map_or_else(|| self.members(), |pending| &pending.members)
    }

    pub(super) fn index(&self) -> i64 {
        config_index(self.configs.last().expect("there is a first one").0)
    }

    /// Returns the configuration that a replica with this number of entries knows, and its index.
    pub(super) fn config_at(&self, has: usize) -> (i64, &[Member]) {
        let known = self.configs.iter().rev().find(|(entry, _)| *entry <= has);
        let (entry, members) = known.expect("the first one is at 0");
        (config_index(*entry), members)
    }

    pub(super) fn version_at(&self, has: usize) -> u32 {
        self.versions.iter().rev().find(|(entry, _)| *entry <= has).map_or(0, |(_, version)| *version)
    }

    pub(super) fn version(&self) -> u32 {
        self.version_at(self.len)
    }

    pub(super) fn is_member(&self, server: PeerId) -> bool {
        self.members().iter().any(|member| member.server == server)
    }

    pub(super) fn is_voter(&self, server: PeerId) -> bool {
        self.members().iter().any(|member| member.server == server && member.voter)
    }

    /// Returns true if a report's term and leader are those of the group's past.
    pub(super) fn has_led(&self, term: i64, leader: PeerId) -> bool {
        self.leaders.get(&term) == Some(&leader)
    }

    /// Returns the members that a committed configuration has.
    pub(super) fn members_of(&self, index: i64) -> Option<&[Member]> {
        let of_index = self.configs.iter().find(|(entry, _)| config_index(*entry) == index);
        of_index.map(|(_, members)| members.as_slice())
    }

    /// Returns true if a configuration of this index was committed with these members.
    pub(super) fn has_committed(&self, index: i64, peers: &[PeerRecord]) -> bool {
        let same = |members: &[Member]| {
            members.len() == peers.len()
                && members.iter().zip(peers).all(|(member, peer)| {
                    (member.server, member.voter, member.promote, member.replace)
                        == (peer.server, peer.voter, peer.promote, peer.replace)
                })
        };
        self.configs.iter().any(|(entry, members)| config_index(*entry) == index && same(members))
    }

    /// Begins the next term under a leader.
    pub(super) fn elect(&mut self, leader: PeerId) {
        self.term += 1;
        self.leader = Some(leader);
        self.leaders.insert(self.term, leader);
        self.len += 1;
    }

    pub(super) fn commit_config(&mut self, members: Vec<Member>) {
        self.len += 1;
        self.configs.push((self.len, members));
    }

    pub(super) fn commit_version(&mut self, version: u32, definition: Definition) {
        self.len += 1;
        self.definitions.insert(version, definition);
        self.versions.push((self.len, version));
    }

    /// Returns what a replica reports of the group.
    pub(super) fn consensus(&self, has: usize, term: i64, leader: Option<PeerId>) -> ConsensusState {
        let (config_index, members) = self.config_at(has);
        let peer = |member: &Member| PeerRecord {
            server: member.server,
            voter: member.voter,
            address: member.address.clone(),
            promote: member.promote,
            replace: member.replace,
        };
        ConsensusState { term, leader, config_index, peers: members.iter().map(peer).collect() }
    }
}

/// State of a replica at a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplicaMode {
    Running,
    Failed,
    /// A copy is in progress; true if it replaces a tombstone.
    Copying(bool),
    Tombstone,
}

/// A replica of a tablet at a server.
#[derive(Debug, Clone)]
pub(super) struct Replica {
    pub(super) mode: ReplicaMode,
    /// Committed entries that it has.
    pub(super) has: usize,
    pub(super) term: i64,
    pub(super) leader: Option<PeerId>,
}

impl Replica {
    pub(super) fn new(mode: ReplicaMode) -> Replica {
        Replica { mode, has: 0, term: 0, leader: None }
    }

    pub(super) fn runs(&self) -> bool {
        self.mode == ReplicaMode::Running
    }
}

/// Returns an id as the story shows it.
pub(super) fn short(id: &TabletId) -> String {
    id.to_string().chars().take(6).collect()
}
