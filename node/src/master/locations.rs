//! Builder of tablet locations, which names each tablet server once if the caller supports that.

use std::collections::BTreeMap;

use engine::catalog::{Catalog, HostPort, PeerRecord, TabletEntry};
use engine::ids::PeerId;

use super::proto::{host_port_to_pb, id};
use nyala_common::wire::partition;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::master::tablet_locations_pb::{DeprecatedReplicaPb, InternedReplicaPb};
use nyala_proto::kudu::master::{TabletLocationsPb, TsInfoPb};

/// Locations of the tablets of one reply.
pub(super) struct Locations<'a> {
    catalog: &'a Catalog,
    voters_only: bool,
    intern: bool,
    /// Servers that the tablets refer to.
    pub(super) infos: Vec<TsInfoPb>,
    /// Positions in `infos`.
    known: BTreeMap<PeerId, u32>,
}

impl<'a> Locations<'a> {
    pub(super) fn new(catalog: &'a Catalog, voters_only: bool, intern: bool) -> Locations<'a> {
        Locations { catalog, voters_only, intern, infos: Vec::new(), known: BTreeMap::new() }
    }

    pub(super) fn tablet(&mut self, tablet: TabletEntry<'_>) -> TabletLocationsPb {
        let record = tablet.record;
        let mut pb = TabletLocationsPb {
            tablet_id: id(tablet.id),
            partition: Some(partition::to_pb(&record.partition)),
            deprecated_stale: Some(false),
            ..TabletLocationsPb::default()
        };
        let voters_only = self.voters_only;
        for peer in record.consensus.peers.iter().filter(|peer| peer.voter || !voters_only) {
            let role = role(peer, record.consensus.leader) as i32;
            let dimension_label = record.dimension_label.clone();
            if self.intern {
                let ts_info_idx = self.intern(peer);
                pb.interned_replicas.push(InternedReplicaPb { ts_info_idx, role, dimension_label });
            } else {
                let ts_info = self.info(peer);
                pb.deprecated_replicas.push(DeprecatedReplicaPb { ts_info, role, dimension_label });
            }
        }
        pb
    }

    fn intern(&mut self, peer: &PeerRecord) -> u32 {
        if let Some(at) = self.known.get(&peer.server) {
            return *at;
        }
        let at = self.infos.len() as u32;
        self.infos.push(self.info(peer));
        self.known.insert(peer.server, at);
        at
    }

    /// Returns a server as registered. An unregistered server has the address in its tablet's configuration.
    fn info(&self, peer: &PeerRecord) -> TsInfoPb {
        let addresses = |list: &[HostPort]| list.iter().map(host_port_to_pb).collect();
        let registered = self.catalog.registration(peer.server);
        let rpc_addresses = match registered {
            Some(registration) => addresses(&registration.rpc),
            None => addresses(std::slice::from_ref(&peer.address)),
        };
        TsInfoPb {
            permanent_uuid: id(peer.server),
            rpc_addresses,
            location: self.catalog.location(peer.server).map(str::to_string),
            unix_domain_socket_path: None,
        }
    }
}

fn role(peer: &PeerRecord, leader: Option<PeerId>) -> Role {
    match (leader, peer.voter) {
        (Some(leader), _) if leader == peer.server => Role::Leader,
        (_, true) => Role::Follower,
        (_, false) => Role::Learner,
    }
}
