//! Checks of an audit in which several parts of the cluster are compared with each other: lookups, traits of tablets,
//! reports of groups, scans, and gauges.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::tablet::superblock::DataState;

use crate::cluster::{data_dirs, replies_promptly};
use crate::oracle::catalog_gauges::{self, GaugeBounds};
use crate::oracle::group_reports::{self, is_complete, leader_report, running_voters};
use crate::oracle::registrations::{self, Registration};
use crate::oracle::server_lists::RunningHost;
use crate::oracle::table_settings::{self, ReplicaSettings};
use crate::oracle::tablet_traits::{self, ReplicaPair};
use crate::oracle::{Violation, quiet_scans, rebuild_sources, table_lookups, tablet_gauges};
use crate::server_files::superblocks;
use crate::server_usage::RunningServers;
use crate::tserver_gauges;
use crate::workload::catalog_audit::CatalogAudit;
use crate::world::World;
use sim_plan::{Fault, Host, Plan};

/// Silence with which a server is alive for masters, and with which it may be: they wait for a minute.
const ALIVE: Duration = Duration::from_secs(50);
const PERHAPS_ALIVE: Duration = Duration::from_secs(70);

/// Name of the setting with the replication factor of a table.
const REPLICAS: &str = "nyala.table.replicas";

/// Reports what does not agree in an audit.
pub(crate) fn check(
    world: &mut dyn World,
    plan: &Plan,
    catalog: &CatalogAudit,
    servers: &RunningServers,
) -> Vec<Violation> {
    let running = servers.hosts();
    let voters = listed_voters(catalog, &running);
    let refused = catalog.refused.iter().map(|what| Violation::new(table_lookups::NAME, what.as_str()));
    let mut found: Vec<Violation> = refused.collect();
    found.extend(catalog.lookups.iter().flat_map(table_lookups::check));
    found.extend(tablet_traits::check(&catalog.wanted, &catalog.traits, &voters));
    found.extend(tablet_traits::check_dirs(&catalog.traits, &voters, &stored_dirs(world, plan)));
    found.extend(check_sources(world, catalog, &voters));
    found.extend(check_groups(world, catalog, &running));
    found.extend(check_registrations(world, plan, catalog, servers));
    found.extend(catalog.scans.iter().flat_map(quiet_scans::check));
    let has_requests = may_have_requests(world, plan, catalog, &running);
    let (gauges, bounds) = (servers.health.gauges(), gauge_bounds(catalog, &running, has_requests));
    found.extend(catalog_gauges::check(&gauges, &bounds, &catalog.sizes, &catalog.schemas));
    found.extend(tablet_gauges::check(&tserver_gauges::read(servers, &idle_voters(world, &voters))));
    found
}

/// Reports replicas and clusters that servers do not describe as they are to a rebuild of the catalog. A server whose
/// disks failed may not have stored which cluster it joined.
fn check_sources(world: &mut dyn World, catalog: &CatalogAudit, voters: &[ReplicaPair]) -> Vec<Violation> {
    let mut found = rebuild_sources::check(&catalog.sources, &catalog.traits, &catalog.groups, voters);
    let settings = voters.iter().filter_map(|pair| {
        let (source, (host, tablet)) = (catalog.sources.get(pair)?, pair.clone());
        let settings = source.traits.is_ok().then(|| source.settings.clone())?;
        Some(ReplicaSettings { tablet, server: format!("{host}, in the superblock"), settings })
    });
    found.extend(table_settings::check(&catalog.settings, &settings.collect::<Vec<_>>()));
    let of_masters = catalog.masters.as_ref().and_then(|list| list.cluster.as_ref());
    let mut told = catalog.clusters.clone();
    told.retain(|host, _| world.machine(host).disks_are_fault_free());
    found.extend(of_masters.into_iter().flat_map(|masters| rebuild_sources::check_clusters(&told, masters)));
    found
}

/// Reports servers that masters do not list as they are. Servers whose disks failed are left out: they may have started
/// again since the lists were read. So are masters where a call to them may be without a reply.
fn check_registrations(
    world: &mut dyn World,
    plan: &Plan,
    catalog: &CatalogAudit,
    servers: &RunningServers,
) -> Vec<Violation> {
    let mut running = servers.health.registrations();
    running.retain(|(host, _)| world.machine(&host.name()).disks_are_fault_free());
    let is_master = |(host, _): &(Host, Registration)| matches!(host, Host::Master(_));
    let (mut masters, tservers): (Vec<_>, Vec<_>) = running.into_iter().partition(is_master);
    masters.retain(|_| replies_promptly(plan));
    let own = |servers: Vec<(Host, Registration)>| -> Vec<Registration> {
        servers.into_iter().map(|(_, own)| own).collect()
    };
    let (masters, tservers) = (own(masters), own(tservers));
    let mut found = Vec::new();
    found.extend(catalog.registered.iter().flat_map(|list| registrations::check_tservers(list, &tservers)));
    found.extend(catalog.masters.iter().flat_map(|list| registrations::check_masters(list, &masters)));
    found
}

/// Returns true if masters may ask servers in vain, again and again: one of those that they know does not run, or has
/// a disk that failed.
fn may_have_requests(
    world: &mut dyn World,
    plan: &Plan,
    catalog: &CatalogAudit,
    running: &[RunningHost],
) -> bool {
    let runs = |id: &String| running.iter().any(|server| server.id == *id);
    let mut hosts = (0..plan.cluster.tservers).map(Host::Tserver);
    !catalog.servers.keys().all(runs) || !hosts.all(|host| world.machine(&host.name()).disks_are_fault_free())
}

/// Returns the voters that have no operation in flight and no job that fails again and again: those of servers whose
/// disks never failed.
fn idle_voters(world: &mut dyn World, voters: &[ReplicaPair]) -> BTreeSet<ReplicaPair> {
    let is_sound = |(host, _): &&ReplicaPair| world.machine(host).disks_are_fault_free();
    voters.iter().filter(is_sound).cloned().collect()
}

/// Returns the replicas that masters list as voters and that run.
fn listed_voters(catalog: &CatalogAudit, running: &[RunningHost]) -> Vec<ReplicaPair> {
    let each = catalog.tablets.iter().flat_map(|(tablet, listed)| {
        let voters = running_voters(tablet, &listed.voters, running).into_iter();
        voters.map(move |voter| (voter.host.to_string(), tablet.clone()))
    });
    each.collect()
}

/// Returns the directories with the superblock of each replica. Those of servers with damaged disks are left out.
fn stored_dirs(world: &mut dyn World, plan: &Plan) -> BTreeMap<ReplicaPair, Vec<String>> {
    let mut stored: BTreeMap<ReplicaPair, Vec<String>> = BTreeMap::new();
    for host in (0..plan.cluster.tservers).map(Host::Tserver) {
        let machine = world.machine(&host.name());
        if loses_writes(plan, host) || machine.disks_are_damaged() {
            continue;
        }
        for dir in data_dirs(plan, host) {
            let metas = superblocks(&machine.disk(dir)).into_iter();
            for meta in metas.filter(|meta| meta.data_state == DataState::Ready) {
                let replica = (host.name(), meta.tablet.to_string());
                stored.entry(replica).or_default().push((*dir).to_string());
            }
        }
    }
    stored
}

/// Returns true if superblocks of a server may be older than the server knows.
pub(crate) fn loses_writes(plan: &Plan, host: Host) -> bool {
    let lost = |kind: &Fault| matches!(kind, Fault::LostWrite { .. } | Fault::MisdirectedWrite { .. });
    plan.faults.iter().any(|fault| fault.target == host && lost(&fault.kind))
}

fn check_groups(world: &mut dyn World, catalog: &CatalogAudit, running: &[RunningHost]) -> Vec<Violation> {
    let hosts = running.iter().map(|server| server.host.clone());
    let had_faults = |host: &String| !world.machine(host).disks_are_fault_free();
    let may_hide: BTreeSet<String> = hosts.filter(had_faults).collect();
    let each = catalog.tablets.iter().flat_map(|(tablet, listed)| {
        let voters = running_voters(tablet, &listed.voters, running);
        group_reports::check(&catalog.groups, tablet, &voters, &may_hide)
    });
    each.collect()
}

/// `has_requests`: true if a request of masters may fail again and again.
fn gauge_bounds(catalog: &CatalogAudit, running: &[RunningHost], has_requests: bool) -> GaugeBounds {
    let exactly = |count: usize| (count as i64, count as i64);
    let registered = catalog.servers.values().filter(|server| !server.host.is_empty());
    let silent =
        |most: Duration| registered.clone().filter(|server| server.silent_for <= most).count() as i64;
    let mut bounds = GaugeBounds::from([
        ("catalog_tables", exactly(catalog.tables + catalog.kept_tables)),
        ("catalog_tablet_servers", exactly(registered.clone().count())),
        ("catalog_tablet_servers_alive", (silent(ALIVE), silent(PERHAPS_ALIVE))),
    ]);
    // Tablets of tables that are kept for recall count, too, and may lack replicas.
    if catalog.kept_tables == 0 {
        bounds.insert("catalog_tablets", exactly(catalog.tablets.len()));
        bounds.insert("catalog_tablets_not_running", exactly(0));
        if is_replicated(catalog, running) {
            bounds.insert("catalog_tablets_under_replicated", exactly(0));
            bounds.extend((!has_requests).then(|| ("catalog_requests_pending", exactly(0))));
        }
    }
    bounds
}

/// Returns true if the leader of each tablet reports as many healthy voters as its table is to have.
fn is_replicated(catalog: &CatalogAudit, running: &[RunningHost]) -> bool {
    catalog.tablets.iter().all(|(tablet, listed)| {
        let voters = running_voters(tablet, &listed.voters, running);
        let report = leader_report(&catalog.groups, tablet, &voters);
        let settings = catalog.settings.get(tablet);
        let wanted = settings.and_then(|settings| settings.get(REPLICAS)?.parse::<usize>().ok());
        report.zip(wanted).is_some_and(|((_, report), wanted)| is_complete(report, wanted))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::server_lists::ToldServer;

    fn server(host: &str, silent: u64) -> ToldServer {
        ToldServer { host: host.to_string(), silent_for: Duration::from_secs(silent) }
    }

    #[test]
    fn gauges_have_bounds_by_the_lists_of_masters() {
        let servers = [server("t0", 1), server("t1", 60), server("t2", 90), server("", 0)];
        let servers = servers.into_iter().enumerate().map(|(id, server)| (id.to_string(), server));
        let mut catalog = CatalogAudit { tables: 2, servers: servers.collect(), ..CatalogAudit::default() };
        let bounds = gauge_bounds(&catalog, &[], true);
        let of = |name: &str| bounds.get(name).copied();
        assert_eq!(of("catalog_tables"), Some((2, 2)));
        assert_eq!(of("catalog_tablet_servers"), Some((3, 3)), "one has not registered");
        assert_eq!(of("catalog_tablet_servers_alive"), Some((1, 2)));
        assert_eq!(of("catalog_tablets"), Some((0, 0)));
        assert_eq!(of("catalog_requests_pending"), None);
        let bounds = gauge_bounds(&catalog, &[], false);
        assert_eq!(bounds.get("catalog_requests_pending"), Some(&(0, 0)));
        catalog.kept_tables = 1;
        let bounds = gauge_bounds(&catalog, &[], false);
        assert_eq!(bounds.get("catalog_requests_pending"), None);
        assert_eq!(bounds.get("catalog_tables"), Some(&(3, 3)));
        assert_eq!(bounds.get("catalog_tablets"), None);
    }

    #[test]
    fn a_tablet_without_a_report_of_its_leader_may_lack_replicas() {
        let mut catalog = CatalogAudit::default();
        assert!(is_replicated(&catalog, &[]));
        catalog.tablets.insert("a".to_string(), Default::default());
        assert!(!is_replicated(&catalog, &[]));
    }
}
