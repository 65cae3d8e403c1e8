//! What the leading master knows against what servers have.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::ids::PeerId;
use engine::raft::RaftStatus;
use node::hosting::replica::ReplicaHandle;
use node::hosting::tablet_entry::{EntryState, TabletEntry};
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::consensus::ConsensusStatePb;
use nyala_proto::kudu::master::ReportedTabletPb;

use super::known_server::KnownServer;
use super::{SERVERS, ServingTrial};

/// State of a tablet in a report, in comparable form.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReportedState {
    state: String,
    schema_version: u32,
    /// Term, leader, and index of the committed configuration.
    consensus: Option<(i64, Option<String>, i64)>,
    /// Bytes and live rows.
    sizes: Option<(i64, i64)>,
}

/// Time between two looks, several heartbeats.
const AGAIN: Duration = Duration::from_secs(2);

impl ServingTrial {
    /// Reports what the leading master does not know of a server, though nothing has changed for some time. Lost
    /// segments may cost a member its leader for a fraction of a second, so only what is wrong at two looks counts.
    pub(super) fn check_reports(&mut self) {
        let before: Vec<bool> = (0..SERVERS).map(|server| self.unknown(server).is_some()).collect();
        if before.contains(&true) {
            self.pass(AGAIN);
        }
        for (server, _) in before.into_iter().enumerate().filter(|(_, wrong)| *wrong) {
            if let Some(wrong) = self.unknown(server) {
                self.fleet.report(format!("reports of server {server}: {wrong}"));
            }
        }
    }

    /// Returns what the leading master does not know of a server.
    fn unknown(&self, server: usize) -> Option<String> {
        let id = id_bytes(&self.fleet.ids[server]);
        let known = self.masters.lock().known.get(&id[..]).cloned();
        known.map_or(Some("nothing is known".to_string()), |known| self.difference(server, &known))
    }

    fn difference(&self, server: usize, known: &KnownServer) -> Option<String> {
        let running = self.fleet.running(server)?;
        let entries = running.tablets.all();
        let own: BTreeMap<String, ReportedState> =
            entries.iter().map(|entry| (entry.id.to_string(), own_state(entry))).collect();
        let told = known.tablets.iter().flatten();
        let told: BTreeMap<String, ReportedState> =
            told.map(|(id, tablet)| (String::from_utf8_lossy(id).into_owned(), told_state(tablet))).collect();
        let open = entries.iter().filter(|entry| entry.tablet().is_some()).count();
        let ids = own.keys().chain(told.keys());
        let differs = |id: &&String| own.get(*id) != told.get(*id);
        if let Some(id) = ids.into_iter().find(differs) {
            return Some(format!("of {id} it has {:?}, the master was told {:?}", own.get(id), told.get(id)));
        }
        let counts = (known.live, known.short_of_space);
        (counts != (open as i32, false)).then(|| format!("{open} tablets are open, told were {counts:?}"))
    }
}

fn own_state(entry: &TabletEntry) -> ReportedState {
    let replica = match entry.state() {
        EntryState::Running(replica) => Some(replica),
        _ => None,
    };
    ReportedState {
        state: format!("{:?} {:?}", entry.state_pb(), entry.data_state_pb()),
        schema_version: entry.schema_version(),
        consensus: replica.map(|replica| own_consensus(&replica)),
        sizes: entry.sizes().map(|sizes| (sizes.disk_bytes as i64, sizes.live_rows as i64)),
    }
}

fn own_consensus(replica: &ReplicaHandle) -> (i64, Option<String>, i64) {
    let status: &RaftStatus = &replica.status();
    let leader = status.leader.map(|leader: PeerId| leader.to_string());
    (status.term as i64, leader, status.committed_config.kudu_index())
}

fn told_state(tablet: &ReportedTabletPb) -> ReportedState {
    let consensus = |state: &ConsensusStatePb| {
        let leader = state.leader_uuid.clone();
        let leader = leader.filter(|leader| !leader.is_empty());
        (state.current_term, leader, state.committed_config.opid_index())
    };
    let sizes =
        tablet.stats.as_ref().map(|stats| (stats.on_disk_size() as i64, stats.live_row_count() as i64));
    ReportedState {
        state: format!("{:?} {:?}", tablet.state(), tablet.tablet_data_state()),
        schema_version: tablet.schema_version(),
        consensus: tablet.consensus_state.as_ref().map(consensus),
        sizes,
    }
}
