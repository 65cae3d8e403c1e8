//! Post-run checks, after the clients' last reads: the cluster without requests must fall silent, and deleted tablets
//! must leave no orphans.

use std::collections::BTreeSet;
use std::time::Duration;

use engine::disk::Disk;
use engine::tablet::superblock::DataState;

use crate::audit_checks::{self, loses_writes};
use crate::cluster::{self, WAL_DIR, data_dirs};
use crate::oracle::Violation;
use crate::oracle::disk_sizes::{self, ReplicaSizes};
use crate::oracle::log_retention::{self, LogExtent};
use crate::oracle::orphans::{self, DiskContents};
use crate::oracle::readiness::{self, LastingCauses, ServerCheck};
use crate::oracle::table_settings::{self, ReplicaSettings};
use crate::oracle::{server_lists, settled_tablets, told_sizes, unlisted_replicas, whole_tables};
use crate::server_files::{contents, replica_sizes, superblocks, tombstones};
use crate::server_usage::RunningServers;
use crate::workload::catalog_audit::CatalogAudit;
use crate::world::World;
use sim_plan::faults::Trigger;
use sim_plan::{Fault, FaultKind, Host, Plan, TimedFault};

/// Duration without requests.
pub const IDLE: Duration = Duration::from_secs(2);
/// Most times that the idle cluster is looked at.
pub const IDLE_TIMES: u32 = 10;
/// Time after which a server drops the scanners and the copy sessions that no client uses.
pub const EXPIRY: Duration = Duration::from_secs(200);

/// Most times that the catalog is read.
pub const AUDITS: u32 = 8;

/// Reports tables that are not whole, replicas that the catalog does not list, and tablets that are not settled or have
/// other settings or sizes than masters and servers tell.
/// `excused`: servers and tablets of replicas that no master can tell from members to be: they were copied for a
/// configuration change that was lost.
pub fn audit(
    world: &mut dyn World,
    plan: &Plan,
    catalog: &Result<CatalogAudit, String>,
    excused: &BTreeSet<(String, String)>,
    servers: &RunningServers,
) -> Vec<Violation> {
    let catalog = match catalog {
        Ok(catalog) => catalog,
        Err(error) => return vec![Violation::new("liveness", format!("in a quiet cluster: {error}"))],
    };
    let mut with_data = Vec::new();
    for host in (0..plan.cluster.tservers).map(Host::Tserver).filter(|host| !loses_writes(plan, *host)) {
        let machine = world.machine(&host.name());
        let metas = data_dirs(plan, host).iter().flat_map(|dir| superblocks(&machine.disk(dir)));
        let metas = metas.filter(|meta| matches!(meta.data_state, DataState::Ready | DataState::Copying));
        with_data.extend(metas.map(|meta| (host.name(), meta.tablet.to_string())));
    }
    let is_dropped = |tablet: &String| !catalog.replicas.contains_key(tablet);
    with_data.retain(|replica| is_dropped(&replica.1) || !excused.contains(replica));
    let mut found = unlisted_replicas::check(&catalog.replicas, &with_data);
    found.extend(catalog.layouts.iter().flat_map(whole_tables::check));
    found.extend(settled_tablets::check(&catalog.tablets, &servers.replicas()));
    found.extend(table_settings::check(&catalog.settings, &settings_of_voters(catalog, servers)));
    let listed = server_lists::sizes(&catalog.lists);
    found.extend(disk_sizes::check_listed(&listed, sizes(world, plan, servers)));
    found.extend(check_lists(plan, catalog, servers));
    found.extend(told_sizes::check(&catalog.sizes, &servers.leader_sizes()));
    found.extend(audit_checks::check(world, plan, catalog, servers));
    found
}

/// Reports replicas and tablet servers that run and are not listed as they are.
fn check_lists(plan: &Plan, catalog: &CatalogAudit, servers: &RunningServers) -> Vec<Violation> {
    let (running, must_reply) = (servers.hosts(), cluster::replies_promptly(plan));
    let mut found = server_lists::check_replicas(&catalog.lists, &running, must_reply);
    found.extend(server_lists::check_servers(&catalog.servers, &running, cluster::registration_time(plan)));
    found
}

/// Returns the settings of replicas that masters list. Others may have been copied for a change that was lost.
fn settings_of_voters(catalog: &CatalogAudit, servers: &RunningServers) -> Vec<ReplicaSettings> {
    let is_listed = |replica: &ReplicaSettings| {
        let listed = catalog.tablets.get(&replica.tablet);
        listed.is_some_and(|listed| listed.voters.contains(&replica.server))
    };
    servers.settings().into_iter().filter(is_listed).collect()
}

/// Returns the sizes of the replicas that run. Where writes were lost, files are shorter than their servers know.
fn sizes(world: &mut dyn World, plan: &Plan, servers: &RunningServers) -> Vec<ReplicaSizes> {
    let whole = servers.all().into_iter().filter(|(host, _)| !loses_writes(plan, *host));
    let mut found = Vec::new();
    for (host, server) in whole {
        found.extend(replica_sizes(world, plan, (host, &*server)));
    }
    found
}

/// Reports replicas whose size is not that of their files. A file may be on its way: callers look again.
pub fn find_wrong_sizes(world: &mut dyn World, plan: &Plan, servers: &RunningServers) -> Vec<Violation> {
    disk_sizes::check(&sizes(world, plan, servers))
}

/// Reports tombstones with data. A start removes it, so this is asked before the last one, too.
pub fn find_kept_data(world: &mut dyn World, servers: &RunningServers) -> Vec<Violation> {
    orphans::check_tombstones(&tombstones(world, &servers.all()))
}

/// Reports orphans of tablets on the servers' disks.
pub fn find_orphans(world: &mut dyn World, plan: &Plan) -> Vec<Violation> {
    let tservers = (0..plan.cluster.tservers).map(Host::Tserver);
    let servers: Vec<DiskContents> = tservers.flat_map(|host| contents(world, plan, host)).collect();
    orphans::check(&servers)
}

/// Reports logs that retain more than needed.
pub fn find_long_logs(world: &mut dyn World, plan: &Plan) -> Vec<Violation> {
    let mut kept = Vec::new();
    for host in (0..plan.cluster.tservers).map(Host::Tserver) {
        let disk = world.machine(&host.name()).disk(WAL_DIR);
        for tablet in disk.list("wals").unwrap_or_default() {
            let files = disk.list(&format!("wals/{tablet}")).unwrap_or_default();
            kept.push(LogExtent { server: host.name(), tablet, files });
        }
    }
    log_retention::check(plan.cluster.limits, &kept)
}

/// Reports checks of `/readyz` that are not right about a quiet cluster.
pub fn find_unready(world: &mut dyn World, plan: &Plan, checks: &[ServerCheck]) -> Vec<Violation> {
    let servers = plan.servers().into_iter().map(|host| host.name());
    let damaged = servers.filter(|name| world.machine(name).disks_are_damaged()).collect();
    let has = |kind| plan.faults.iter().any(|fault| fault.kind.kind() == kind);
    let loses_refused = has(FaultKind::ClockStep) && has(FaultKind::Wipe);
    let keeps_copy =
        |fault: &&TimedFault| matches!(fault.kind, Fault::DiskErrorAfter { moment: Trigger::GiveUp, .. });
    let keep_copies = plan.faults.iter().filter(keeps_copy).map(|fault| fault.target.name()).collect();
    readiness::check(checks, &LastingCauses { damaged, keep_copies, loses_refused })
}
