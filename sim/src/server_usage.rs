//! Handles to the running servers of a run, and readings of the resources that they hold.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use engine::memory::MemUsage;
use engine::raft::interface::Role;
use engine::sync::Mutex;
use engine::tablet::Tablet;
use node::hosting::replica::ReplicaHandle;
use node::hosting::tablet_entry::TabletEntry;
use node::tserver::server::TabletServer;
use nyala_common::metrics::{MetricValue, table};

use crate::health_boards::HealthBoards;
use crate::oracle::control_calls::CallCount;
use crate::oracle::resources::{DueMaintenance, ServerUsage};
use crate::oracle::server_lists::RunningHost;
use crate::oracle::settled_tablets::RunningReplica;
use crate::oracle::table_settings::ReplicaSettings;
use crate::oracle::told_sizes::LeaderSizes;
use crate::world::World;
use sim_plan::Host;

/// The servers that run. Clones share them.
#[derive(Clone, Default)]
pub struct RunningServers {
    servers: Arc<Mutex<BTreeMap<Host, Weak<TabletServer>>>>,
    /// Checks of masters and tablet servers.
    pub health: HealthBoards,
}

impl RunningServers {
    /// Adds a tablet server that has started; it replaces the former process of its host.
    pub fn add(&self, host: Host, server: &Arc<TabletServer>) {
        let mut servers = self.servers.lock();
        servers.insert(host, Arc::downgrade(server));
        self.health.add(host, &server.common);
    }

    /// Returns the calls of each method that each server has got since its start.
    pub fn calls(&self) -> Vec<CallCount> {
        self.all().iter().flat_map(|(host, server)| calls(*host, server)).collect()
    }

    /// Returns the tablet servers that run, with their hosts.
    pub fn all(&self) -> Vec<(Host, Arc<TabletServer>)> {
        let servers = self.servers.lock();
        servers.iter().filter_map(|(host, server)| Some((*host, server.upgrade()?))).collect()
    }

    /// Returns the tablet servers that run, with the roles of their replicas.
    pub fn hosts(&self) -> Vec<RunningHost> {
        self.all().iter().map(|(host, server)| running_host(*host, server)).collect()
    }

    /// Returns the sizes of the leaders of tablets, each of the highest term.
    pub fn leader_sizes(&self) -> BTreeMap<String, LeaderSizes> {
        let mut leaders: BTreeMap<String, LeaderSizes> = BTreeMap::new();
        for (_, server) in self.all() {
            for (entry, replica) in running_replicas(&server) {
                let (status, sizes) = (replica.status(), entry.sizes());
                let Some(sizes) = sizes.filter(|_| status.role == Role::Leader) else { continue };
                let own = LeaderSizes { term: status.term, bytes: sizes.disk_bytes, rows: sizes.live_rows };
                let known = leaders.entry(entry.id.to_string()).or_default();
                *known = if known.term > own.term { *known } else { own };
            }
        }
        leaders
    }

    /// Returns the replicas of all servers that run.
    pub fn replicas(&self) -> Vec<RunningReplica> {
        let live = self.live().into_iter();
        live.map(|(tablet, id, replica)| running_replica(tablet, id, &replica)).collect()
    }

    /// Returns the settings that the replicas of all servers have.
    pub fn settings(&self) -> Vec<ReplicaSettings> {
        let live = self.live().into_iter();
        let of_replica = |(tablet, server, replica): (String, String, ReplicaHandle)| {
            let settings = replica.tablet().table_schema().extra.clone();
            ReplicaSettings { tablet, server, settings }
        };
        live.map(of_replica).collect()
    }

    /// Returns the replicas that run, with the ids of their tablets and servers.
    fn live(&self) -> Vec<(String, String, ReplicaHandle)> {
        let of_server = |(_, server): (Host, Arc<TabletServer>)| {
            let id = server.common.status.uuid().to_string();
            let named = |(entry, replica): (Arc<TabletEntry>, ReplicaHandle)| {
                (entry.id.to_string(), id.clone(), replica)
            };
            running_replicas(&server).into_iter().map(named).collect::<Vec<_>>()
        };
        self.all().into_iter().flat_map(of_server).collect()
    }

    /// Returns what each server holds now: tasks of masters, and all that tablet servers hold.
    pub fn usages(&self, world: &mut dyn World) -> Vec<ServerUsage> {
        let tasks = |world: &mut dyn World, host: Host| world.machine(&host.name()).live_tasks().counts();
        let of_master = |world: &mut dyn World, host: Host| ServerUsage {
            server: host.name(),
            tasks: tasks(world, host),
            ..ServerUsage::default()
        };
        let masters = self.health.hosts().into_iter().filter(|host| matches!(host, Host::Master(_)));
        let mut usages: Vec<ServerUsage> = masters.map(|host| of_master(world, host)).collect();
        usages.extend(self.all().iter().map(|(host, server)| {
            let is_damaged = world.machine(&host.name()).disks_are_damaged();
            ServerUsage { due: due(server, is_damaged), ..usage(*host, server, tasks(world, *host)) }
        }));
        usages
    }
}

fn running_host(host: Host, server: &TabletServer) -> RunningHost {
    let replicas = running_replicas(server).into_iter();
    let leads = |replica: &ReplicaHandle| replica.status().role == Role::Leader;
    let roles = replicas.map(|(entry, replica)| (entry.id.to_string(), leads(&replica)));
    let (host, id) = (host.name(), server.common.status.uuid().to_string());
    RunningHost { host, id, replicas: roles.collect() }
}

fn running_replica(tablet: String, server: String, replica: &ReplicaHandle) -> RunningReplica {
    let status = replica.status();
    let config = &status.committed_config;
    let ids = |voter: bool| {
        let peers = config.peers.iter().filter(move |peer| peer.is_voter() == voter);
        peers.map(|peer| peer.id.to_string()).collect()
    };
    RunningReplica {
        tablet,
        server,
        term: status.term,
        leads: status.role == Role::Leader,
        voters: ids(true),
        learners: ids(false),
        config_index: config.kudu_index(),
        is_change_pending: status.pending_config.is_some(),
        applied: replica.tablet().mvcc().last_applied().0,
        hibernates: replica.is_hibernating(),
    }
}

fn calls(host: Host, server: &TabletServer) -> Vec<CallCount> {
    let samples = server.common.metrics.snapshot().server.samples;
    let of_methods = samples.into_iter().filter(|sample| sample.def.name == table::HANDLER_LATENCY.name);
    let count = of_methods.filter_map(|sample| match sample.value {
        MetricValue::Distribution(times) => Some((sample.method, times.count())),
        _ => None,
    });
    count.map(|(method, calls)| CallCount { server: host.name(), method, calls }).collect()
}

fn usage(host: Host, server: &TabletServer, tasks: BTreeMap<&'static str, u64>) -> ServerUsage {
    let memory = server.common.memory.usage();
    let bytes = |id: &str| bytes_of(&memory, id);
    let tablets: Vec<Arc<Tablet>> = server.tablets.all().iter().filter_map(|entry| entry.tablet()).collect();
    let sum = |part: fn(&Tablet) -> u64| tablets.iter().map(|tablet| part(tablet)).sum::<u64>();
    let replicas = running_replicas(server).into_iter();
    let live: Vec<ReplicaHandle> = replicas.map(|(_, replica)| replica).collect();
    let sum_live = |part: fn(&Tablet) -> u64| live.iter().map(|replica| part(replica.tablet())).sum::<u64>();
    // A member that no leader knows any more learns of no commit: what it has received stays pending.
    let is_forgotten = live.iter().any(|replica| replica.status().leader.is_none());
    let leading = live.iter().filter(|replica| replica.status().role == Role::Leader);
    let leading: Vec<&ReplicaHandle> = leading.collect();
    ServerUsage {
        server: host.name(),
        tasks,
        tablets: tablets.len() as u64,
        in_flight: leading.iter().map(|replica| replica.tablet().mvcc().in_flight() as u64).sum(),
        anchors: sum_live(empty_anchors),
        rows: bytes("recent-rows").saturating_sub(sum(|tablet| tablet.stats().mrs_bytes)),
        deltas: bytes("recent-deltas").saturating_sub(sum(|tablet| tablet.stats().dms_bytes)),
        pages: bytes("page-cache").abs_diff(server.tablets.cache_stats().bytes),
        scanners: server.scanners().len() as u64,
        copies_served: server.copy_service().map_or(0, |service| service.session_count() as u64),
        copies_made: server.copies.count() as u64,
        messages: bytes("calls") + bytes("answers"),
        operations: if is_forgotten { 0 } else { bytes("operations") },
        maintenance: bytes("maintenance"),
        ..ServerUsage::default()
    }
}

/// Returns the maintenance that is due in a server's tablets. `is_damaged`: a compaction that cannot read its rowsets
/// fails again and again.
fn due(server: &TabletServer, is_damaged: bool) -> DueMaintenance {
    let (limits, is_short) = (&server.config.tablet, server.memory.excess_bytes() > 0);
    let (rows_max, deltas_max) = (limits.mrs_flush_bytes, limits.dms_flush_bytes);
    let mut due = DueMaintenance::default();
    for (_, replica) in running_replicas(server) {
        let (tablet, state) = (replica.tablet(), replica.tablet().state());
        let rows = state.frozen.iter().chain([&state.active]).filter(|rows| rows.rows() > 0);
        let rows: Vec<usize> = rows.map(|rows| rows.bytes()).collect();
        let with_deltas = state.disk.iter().filter(|rowset| rowset.dms_len() > 0);
        let deltas: Vec<usize> = with_deltas.map(|rowset| rowset.dms_bytes()).collect();
        due.frozen += state.frozen.len() as u64;
        due.large_stores += u64::from(rows.iter().sum::<usize>() >= rows_max && !rows.is_empty());
        due.large_stores += deltas.iter().filter(|bytes| **bytes >= deltas_max).count() as u64;
        due.compactions += u64::from(!is_damaged && tablet.choose_compaction().is_some());
        due.stores_in_short_memory += if is_short { (rows.len() + deltas.len()) as u64 } else { 0 };
    }
    due
}

/// Returns the replicas of a server that run, with their entries. A failed one keeps its operations and anchors until a
/// copy replaces it.
pub(crate) fn running_replicas(server: &TabletServer) -> Vec<(Arc<TabletEntry>, ReplicaHandle)> {
    let entries = server.tablets.all().into_iter();
    let replicas = entries.filter_map(|entry| entry.running().ok().map(|replica| (entry, replica)));
    replicas.filter(|(_, replica)| !replica.is_stopped()).collect()
}

/// Returns the number of log anchors of stores that have nothing to flush.
fn empty_anchors(tablet: &Tablet) -> u64 {
    let (state, anchors) = (tablet.state(), tablet.log_anchors());
    let rows = state.frozen.iter().chain([&state.active]).map(|rows| rows.rows()).sum::<u64>();
    let has_deltas = |id| state.disk.iter().any(|rowset| rowset.meta().id == id && rowset.dms_len() > 0);
    let empty = anchors.deltas.keys().filter(|id| !has_deltas(**id)).count() as u64;
    empty + u64::from(anchors.rows.is_some() && rows == 0)
}

/// Returns the sum of all trackers of this id.
fn bytes_of(usage: &MemUsage, id: &str) -> u64 {
    if usage.id == id {
        return usage.bytes;
    }
    usage.children.iter().map(|child| bytes_of(child, id)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trackers_of_one_id_are_added_up() {
        let leaf = |id: &str, bytes| MemUsage {
            id: id.to_string(),
            parent_id: None,
            limit: None,
            bytes,
            peak_bytes: bytes,
            children: Vec::new(),
        };
        let tablet =
            |bytes| MemUsage { children: vec![leaf("operations", bytes), leaf("log", 7)], ..leaf("t", 0) };
        let root = MemUsage { children: vec![tablet(3), tablet(4)], ..leaf("server", 0) };
        assert_eq!(bytes_of(&root, "operations"), 7);
    }
}
