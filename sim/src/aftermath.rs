//! After the judges have read everything: nobody asks the cluster for anything any more. It must fall silent, and what
//! is gone must leave nothing behind.

use std::collections::BTreeSet;
use std::time::Duration;

use engine::disk::Disk;
use engine::tablet::flush::data_dir;
use engine::tablet::meta::{DataState, TabletMeta};

use crate::cluster::{DATA_DIR, WAL_DIR};
use crate::oracle::Finding;
use crate::oracle::leftovers::{self, Lying};
use crate::oracle::logs::{self, Kept};
use crate::plan::{Host, Plan};
use crate::world::World;

/// How long nobody asks for anything.
pub const IDLE: Duration = Duration::from_secs(2);

/// What of tablets lies on a server's disks without being its own.
pub fn leftovers(world: &mut dyn World, plan: &Plan) -> Vec<Finding> {
    let tservers = (0..plan.cluster.tservers).map(Host::Tserver);
    let servers: Vec<Lying> = tservers.map(|host| lying(world, host)).collect();
    leftovers::check(&servers)
}

/// Logs that keep what nobody needs.
pub fn long_logs(world: &mut dyn World, plan: &Plan) -> Vec<Finding> {
    let mut kept = Vec::new();
    for host in (0..plan.cluster.tservers).map(Host::Tserver) {
        let disk = world.machine(&host.name()).disk(WAL_DIR);
        for tablet in disk.list("wals").unwrap_or_default() {
            let files = disk.list(&format!("wals/{tablet}")).unwrap_or_default();
            kept.push(Kept { server: host.name(), tablet, files });
        }
    }
    logs::check(plan.cluster.limits, &kept)
}

fn lying(world: &mut dyn World, host: Host) -> Lying {
    let machine = world.machine(&host.name());
    let (data, logs) = (machine.disk(DATA_DIR), machine.disk(WAL_DIR));
    let names = |disk: &dyn Disk, dir: &str| -> BTreeSet<String> {
        // A directory that was never made holds nothing.
        let names = disk.list(dir).unwrap_or_default();
        names.into_iter().filter(|name| !name.contains('.')).collect()
    };
    Lying {
        server: host.name(),
        unnamed: unnamed(&data),
        superblocks: names(&data, "tablet-meta"),
        data: names(&data, "data"),
        logs: names(&logs, "wals"),
    }
}

/// Files of tablets that their superblocks do not name. What cannot be read says nothing, and what is being copied is
/// named when it is whole.
fn unnamed(disk: &dyn Disk) -> BTreeSet<String> {
    let tablets = TabletMeta::list(disk).unwrap_or_default();
    let metas = tablets.into_iter().filter_map(|tablet| TabletMeta::load(disk, tablet).ok());
    let metas = metas.filter(|meta| meta.data_state != DataState::Copying);
    let of = |meta: TabletMeta| {
        let named: BTreeSet<&str> = meta.rowsets.iter().flat_map(|rowset| rowset.files()).collect();
        let dir = data_dir(meta.tablet);
        let lying = disk.list(&dir).unwrap_or_default();
        let files = lying.into_iter().map(|name| format!("{dir}/{name}"));
        files.filter(|file| !named.contains(file.as_str())).collect::<Vec<_>>()
    };
    metas.flat_map(of).collect()
}
