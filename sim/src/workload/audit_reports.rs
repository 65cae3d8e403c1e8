//! Reports of servers for an audit: their tablets with all traits, as a rebuild of the catalog asks for them, and what
//! replicas know of their groups.

use std::collections::BTreeMap;

use engine::error::Error;
use engine::tablet::superblock::Superblock;
use nyala_common::env::Env;
use nyala_common::wire::{partition, schema};
use nyala_proto::kudu::consensus::health_report_pb::HealthStatus;
use nyala_proto::kudu::consensus::raft_peer_pb::{MemberType, Role};
use nyala_proto::kudu::consensus::{
    ConsensusStatePb, GetConsensusStateRequestPb, GetConsensusStateResponsePb, IncludeHealthReport,
    RaftPeerPb,
};
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::list_tablets_response_pb::StatusAndSchemaPb;
use nyala_proto::kudu::tserver::{ListTabletsRequestPb, ListTabletsResponsePb};

use super::admin::call;
use super::{TSERVER_PORT, Workload, audit_lookups};
use crate::oracle::group_reports::{GroupReport, GroupReports, MemberState};
use crate::oracle::rebuild_sources::RebuildSource;
use crate::oracle::table_settings::Settings;
use crate::oracle::tablet_traits::{ListedTraits, ReplicaPair, TraitTexts};
use crate::wire::client::{CONSENSUS, TSERVER};
use sim_plan::Host;

impl Workload {
    /// Returns the tablets that servers list, by host, as a rebuild of the catalog asks for them. A server that does
    /// not reply is left out.
    pub(super) async fn tablets_of_servers(&self, env: &Env) -> BTreeMap<String, ListTabletsResponsePb> {
        let within = self.plan().cluster.rpc_timeout;
        let mut lists = BTreeMap::new();
        for host in (0..self.plan().cluster.tservers).map(Host::Tserver) {
            let address = format!("{host}:{TSERVER_PORT}");
            let request =
                ListTabletsRequestPb { need_schema_info: Some(true), nyala_need_superblocks: Some(true) };
            let listed: Result<ListTabletsResponsePb, Error> =
                call(env, &address, TSERVER, "ListTablets", &request, within).await;
            let Ok(listed) = listed else { continue };
            lists.insert(host.name(), listed);
        }
        lists
    }

    /// Returns the reports of replicas about their groups, with the health of members. In a secured cluster there are
    /// none: the service is for servers only.
    pub(super) async fn group_reports(&self, env: &Env) -> GroupReports {
        let mut reports = GroupReports::new();
        if self.plan().security.is_some() {
            return reports;
        }
        let (within, with_health) =
            (self.plan().cluster.rpc_timeout, IncludeHealthReport::IncludeHealthReport as i32);
        for host in (0..self.plan().cluster.tservers).map(Host::Tserver) {
            let address = format!("{host}:{TSERVER_PORT}");
            let request =
                GetConsensusStateRequestPb { report_health: Some(with_health), ..Default::default() };
            let told: Result<GetConsensusStateResponsePb, Error> =
                call(env, &address, CONSENSUS, "GetConsensusState", &request, within).await;
            let Some(told) = told.ok().filter(|told| told.error.is_none()) else { continue };
            let of_tablet = told
                .tablets
                .iter()
                .filter_map(|tablet| Some((text(&tablet.tablet_id), group_report(tablet.cstate.as_ref()?))));
            reports.insert(host.name(), of_tablet.collect());
        }
        reports
    }
}

fn text(id: &[u8]) -> String {
    String::from_utf8_lossy(id).into_owned()
}

fn group_report(state: &ConsensusStatePb) -> GroupReport {
    let config = &state.committed_config;
    GroupReport {
        term: state.current_term,
        leader: state.leader_uuid().to_string(),
        config_index: config.opid_index,
        is_change_pending: state.pending_config.is_some(),
        members: config.peers.iter().map(|peer| (text(peer.permanent_uuid()), member(peer))).collect(),
    }
}

fn member(peer: &RaftPeerPb) -> MemberState {
    let address = peer.last_known_addr.as_ref();
    MemberState {
        is_voter: peer.member_type() == MemberType::Voter,
        address: address.map(|of| format!("{}:{}", of.host, of.port)).unwrap_or_default(),
        leaves: peer.attrs.as_ref().is_some_and(|attrs| attrs.replace()),
        is_healthy: peer
            .health_report
            .as_ref()
            .is_some_and(|report| report.overall_health() == HealthStatus::Healthy),
    }
}

/// Returns a replica that a server lists, with its traits.
pub(super) fn listed_traits(host: &str, listed: &StatusAndSchemaPb) -> (ReplicaPair, ListedTraits) {
    let status = &listed.tablet_status;
    let (schema, partitions) = (listed.schema.as_ref(), listed.partition_schema.as_ref());
    let mut traits = audit_lookups::traits(&status.table_name, schema, partitions);
    traits.extend([audit_lookups::partition(status.partition.as_ref())]);
    traits.extend(listed.schema_version.map(audit_lookups::version));
    let voting = [Role::Leader as i32, Role::Follower as i32];
    let traits = ListedTraits {
        traits,
        dirs: status.data_dirs.iter().map(|dir| text(dir)).collect(),
        is_ready: status.tablet_data_state() == TabletDataState::TabletDataReady,
        votes: listed.role.is_some_and(|role| voting.contains(&role)),
        error: status.last_status.clone(),
    };
    ((host.to_string(), status.tablet_id.clone()), traits)
}

/// Returns a replica as its server describes it for a rebuild of the catalog.
pub(super) fn rebuild_source(listed: &StatusAndSchemaPb) -> RebuildSource {
    let group = listed.nyala_consensus.as_ref().map(group_report);
    let bytes = listed.nyala_superblock.as_ref().ok_or_else(|| "none".to_string());
    let decoded = bytes.and_then(|bytes| Superblock::decode(bytes).map_err(|error| error.to_string()));
    match decoded {
        Ok(meta) => RebuildSource { traits: Ok(superblock_traits(&meta)), settings: meta.extra, group },
        Err(why) => RebuildSource { traits: Err(why), settings: Settings::new(), group },
    }
}

/// Returns the traits in a superblock, as [`listed_traits`] has those of a list.
fn superblock_traits(meta: &Superblock) -> TraitTexts {
    let columns = schema::schema_to_pb(&meta.schema);
    let partitions = partition::schema_to_pb(&meta.partition_schema, &meta.schema);
    let mut traits = audit_lookups::traits(&meta.table_name, Some(&columns), Some(&partitions));
    traits.extend([audit_lookups::partition(Some(&partition::to_pb(&meta.partition)))]);
    traits.extend([audit_lookups::version(meta.schema_version)]);
    traits
}
