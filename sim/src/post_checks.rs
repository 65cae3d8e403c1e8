//! Post-run checks, after the clients' last reads: the cluster without requests must fall silent, and deleted tablets
//! must leave no orphans.

use std::collections::BTreeSet;
use std::time::Duration;

use engine::disk::Disk;
use engine::tablet::flush::data_dir;
use engine::tablet::superblock::{DataState, Superblock};

use crate::cluster::{DATA_DIR, WAL_DIR};
use crate::oracle::Violation;
use crate::oracle::log_retention::{self, LogExtent};
use crate::oracle::orphans::{self, DiskContents};
use crate::oracle::settled_tablets::{self, RunningReplica};
use crate::oracle::{unlisted_replicas, whole_tables};
use crate::workload::catalog_audit::CatalogAudit;
use crate::world::World;
use sim_plan::{Fault, Host, Plan};

/// Duration without requests.
pub const IDLE: Duration = Duration::from_secs(2);
/// Most times that the idle cluster is looked at.
pub const IDLE_TIMES: u32 = 10;
/// Time after which a server drops the scanners and the copy sessions that no client uses.
pub const EXPIRY: Duration = Duration::from_secs(200);

/// Most times that the catalog is read.
pub const AUDITS: u32 = 8;

/// Reports tables that are not whole, replicas that the catalog does not list, and tablets that are not settled.
/// `excused`: servers and tablets of replicas that no master can tell from members to be: they were copied for a
/// configuration change that was lost.
pub fn audit(
    world: &mut dyn World,
    plan: &Plan,
    catalog: &Result<CatalogAudit, String>,
    excused: &BTreeSet<(String, String)>,
    running: &[RunningReplica],
) -> Vec<Violation> {
    let catalog = match catalog {
        Ok(catalog) => catalog,
        Err(error) => return vec![Violation::new("liveness", format!("in a quiet cluster: {error}"))],
    };
    let mut with_data = Vec::new();
    for host in (0..plan.cluster.tservers).map(Host::Tserver).filter(|host| !loses_writes(plan, *host)) {
        let disk = world.machine(&host.name()).disk(DATA_DIR);
        let tablets = Superblock::list(&disk).unwrap_or_default();
        let metas = tablets.into_iter().filter_map(|tablet| Superblock::load(&disk, tablet).ok());
        let metas = metas.filter(|meta| matches!(meta.data_state, DataState::Ready | DataState::Copying));
        with_data.extend(metas.map(|meta| (host.name(), meta.tablet.to_string())));
    }
    let is_dropped = |tablet: &String| !catalog.replicas.contains_key(tablet);
    with_data.retain(|replica| is_dropped(&replica.1) || !excused.contains(replica));
    let mut found = unlisted_replicas::check(&catalog.replicas, &with_data);
    found.extend(catalog.layouts.iter().flat_map(whole_tables::check));
    found.extend(settled_tablets::check(&catalog.tablets, running));
    found
}

/// Returns true if superblocks of a server may be older than the server knows.
fn loses_writes(plan: &Plan, host: Host) -> bool {
    let lost = |kind: &Fault| matches!(kind, Fault::LostWrite { .. } | Fault::MisdirectedWrite { .. });
    plan.faults.iter().any(|fault| fault.target == host && lost(&fault.kind))
}

/// Reports orphans of tablets on the servers' disks.
pub fn find_orphans(world: &mut dyn World, plan: &Plan) -> Vec<Violation> {
    let tservers = (0..plan.cluster.tservers).map(Host::Tserver);
    let servers: Vec<DiskContents> = tservers.map(|host| disk_contents(world, host)).collect();
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

fn disk_contents(world: &mut dyn World, host: Host) -> DiskContents {
    let machine = world.machine(&host.name());
    let (data, logs) = (machine.disk(DATA_DIR), machine.disk(WAL_DIR));
    let names = |disk: &dyn Disk, dir: &str| -> BTreeSet<String> {
        // A directory that was never created holds nothing.
        let names = disk.list(dir).unwrap_or_default();
        names.into_iter().filter(|name| !name.contains('.')).collect()
    };
    let superblocks = Superblock::list(&data).unwrap_or_default();
    DiskContents {
        server: host.name(),
        unnamed: unreferenced_files(&data),
        superblocks: superblocks.iter().map(ToString::to_string).collect(),
        data: names(&data, "data"),
        logs: names(&logs, "wals"),
    }
}

/// Returns files of tablets that their superblocks do not name. Unreadable superblocks are skipped, and files of a copy
/// in progress are named when it ends.
fn unreferenced_files(disk: &dyn Disk) -> BTreeSet<String> {
    let tablets = Superblock::list(disk).unwrap_or_default();
    let metas = tablets.into_iter().filter_map(|tablet| Superblock::load(disk, tablet).ok());
    let metas = metas.filter(|meta| meta.data_state != DataState::Copying);
    let of = |meta: Superblock| {
        let named: BTreeSet<&str> = meta.rowsets.iter().flat_map(|rowset| rowset.files()).collect();
        let dir = data_dir(meta.tablet);
        let lying = disk.list(&dir).unwrap_or_default();
        let files = lying.into_iter().map(|name| format!("{dir}/{name}"));
        files.filter(|file| !named.contains(file.as_str())).collect::<Vec<_>>()
    };
    metas.flat_map(of).collect()
}
