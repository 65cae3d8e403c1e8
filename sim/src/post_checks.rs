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
use crate::world::World;
use sim_plan::{Host, Plan};

/// Duration without requests.
pub const IDLE: Duration = Duration::from_secs(2);
/// Most times that the idle cluster is looked at.
pub const IDLE_TIMES: u32 = 10;
/// Time after which a server drops the scanners and the copy sessions that no client uses.
pub const EXPIRY: Duration = Duration::from_secs(200);

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
    DiskContents {
        server: host.name(),
        unnamed: unreferenced_files(&data),
        superblocks: names(&data, "tablet-meta"),
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
