//! The replication group of a tablet, as made-up servers have it: one state for all replicas.

use std::collections::BTreeMap;

use engine::ids::Uuid;
use engine::time::Instant;
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::HostPortPb;
use nyala_proto::kudu::consensus::health_report_pb::HealthStatus;
use nyala_proto::kudu::consensus::raft_peer_pb::MemberType;
use nyala_proto::kudu::consensus::{
    ConsensusStatePb, HealthReportPb, RaftConfigPb, RaftPeerAttrsPb, RaftPeerPb,
};
use nyala_proto::kudu::tablet::ReportedTabletStatsPb;

/// Distance of the indexes of two configurations: other operations are between them.
const INDEXES: i64 = 10;
/// Rows that each term adds to a tablet, more than there are by its id, and bytes of a row.
const ROWS: u64 = 1_000;
const ROW_BYTES: u64 = 9;
/// Index of a first configuration.
pub(super) const FIRST: i64 = -1;

#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) id: Uuid,
    pub(super) address: HostPortPb,
    pub(super) voter: bool,
    pub(super) promote: bool,
    pub(super) replace: bool,
    pub(super) added: Instant,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) table: String,
    /// Replicas that its table has.
    pub(super) wanted: usize,
    pub(super) term: i64,
    pub(super) leader: Option<Uuid>,
    pub(super) config_index: i64,
    pub(super) members: Vec<Member>,
    /// Health of members by the leader's last look.
    pub(super) health: BTreeMap<Uuid, HealthStatus>,
    /// Time at which its table was requested.
    pub(super) requested: Instant,
    /// Version of the schema.
    pub(super) version: u32,
    /// Leadership of masters to which a leader was reported, and since when, once one was.
    pub(super) known_in: Option<(u64, Instant)>,
}

impl Group {
    pub(super) fn new(table: String, requested: Instant, members: Vec<Member>) -> Group {
        Group {
            table,
            wanted: members.iter().filter(|member| member.voter).count(),
            term: 0,
            leader: None,
            config_index: FIRST,
            members,
            health: BTreeMap::new(),
            requested,
            version: 0,
            known_in: None,
        }
    }

    pub(super) fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.voter)
    }

    pub(super) fn has(&self, server: Uuid) -> bool {
        self.members.iter().any(|member| member.id == server)
    }

    /// Returns true if it is a voter.
    pub(super) fn has_voter(&self, server: Uuid) -> bool {
        self.voters().any(|member| member.id == server)
    }

    /// Begins a configuration.
    pub(super) fn change(&mut self) {
        self.config_index = self.config_index.max(0) + INDEXES;
    }

    /// Returns the bytes and rows that the leader reports: no two terms of a tablet have the same.
    pub(super) fn statistics(&self, tablet: &Uuid) -> ReportedTabletStatsPb {
        let rows = ROWS * self.term.unsigned_abs() + u64::from(tablet.0[0]);
        ReportedTabletStatsPb { on_disk_size: Some(rows * ROW_BYTES), live_row_count: Some(rows) }
    }

    /// Returns the state as the replica on a server reports it; the leader also reports health.
    pub(super) fn state(&self, server: Uuid) -> ConsensusStatePb {
        let leads = self.leader == Some(server);
        let peers = self.members.iter().map(|member| RaftPeerPb {
            permanent_uuid: Some(id_bytes(&member.id)),
            member_type: Some(if member.voter { MemberType::Voter } else { MemberType::NonVoter } as i32),
            last_known_addr: Some(member.address.clone()),
            attrs: (member.promote || member.replace)
                .then_some(RaftPeerAttrsPb { promote: Some(member.promote), replace: Some(member.replace) }),
            health_report: self
                .health
                .get(&member.id)
                .filter(|_| leads)
                .map(|health| HealthReportPb { overall_health: Some(*health as i32) }),
        });
        ConsensusStatePb {
            current_term: self.term,
            leader_uuid: self.leader.map(|leader| leader.to_string()),
            committed_config: RaftConfigPb {
                opid_index: Some(self.config_index),
                peers: peers.collect(),
                ..Default::default()
            },
            pending_config: None,
        }
    }
}
