//! Files on the disks of tablet servers, for the post-run checks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::config::TabletConfig;
use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::ids::TabletId;
use engine::replica::wal_dir;
use engine::tablet::flush::data_dir;
use engine::tablet::superblock::{DataState, Superblock};
use node::hosting::replica::ReplicaHandle;
use node::hosting::tablet_entry::{EntryState, TabletEntry};
use node::tserver::server::TabletServer;

use crate::cluster::{WAL_DIR, data_dirs};
use crate::oracle::disk_sizes::ReplicaSizes;
use crate::oracle::orphans::{DiskContents, TombstoneFiles};
use crate::server_usage::running_replicas;
use crate::world::World;
use sim_plan::{Host, Plan};

/// Directories of tablets' consensus metadata and logs.
pub(crate) const CONSENSUS: &str = "consensus-meta";
pub(crate) const LOGS: &str = "wals";
/// End of the name of a log segment.
const SEGMENT: &str = ".wal";

/// Returns the contents of a server's disks: of each data directory, and of the log directory with all superblocks.
pub(crate) fn contents(world: &mut dyn World, plan: &Plan, host: Host) -> Vec<DiskContents> {
    let machine = world.machine(&host.name());
    let dirs = data_dirs(plan, host);
    let mut found: Vec<DiskContents> =
        dirs.iter().map(|dir| of_data_dir(&label(host, dir, dirs), &machine.disk(dir))).collect();
    let (mut all, mut twice) = (BTreeSet::new(), BTreeSet::new());
    for tablet in found.iter().flat_map(|of| &of.superblocks) {
        if !all.insert(tablet.clone()) {
            twice.insert(tablet.clone());
        }
    }
    found.push(DiskContents {
        server: host.name(),
        superblocks: all,
        logs: whole_names(&machine.disk(WAL_DIR), LOGS),
        twice,
        ..DiskContents::default()
    });
    found
}

fn label(host: Host, dir: &str, dirs: &[&str]) -> String {
    if dirs.len() == 1 { host.name() } else { format!("{host} in {dir}") }
}

fn of_data_dir(server: &str, disk: &MemDisk) -> DiskContents {
    let superblocks = Superblock::list(disk).unwrap_or_default();
    DiskContents {
        server: server.to_string(),
        unnamed: unreferenced_files(disk),
        superblocks: superblocks.iter().map(ToString::to_string).collect(),
        data: whole_names(disk, "data"),
        consensus: whole_names(disk, CONSENSUS),
        ..DiskContents::default()
    }
}

/// Returns the names in a directory but those of interrupted replacements, which the next start removes. A directory
/// that was never created holds nothing.
fn whole_names(disk: &dyn Disk, dir: &str) -> BTreeSet<String> {
    let names = disk.list(dir).unwrap_or_default();
    names.into_iter().filter(|name| is_whole(name)).collect()
}

/// Returns true for a file that is not on its way to replace another.
pub(crate) fn is_whole(name: &str) -> bool {
    !name.contains('.')
}

/// Returns the paths of the files in a directory whose names are wanted, in order.
pub(crate) fn files_in(disk: &MemDisk, dir: &str, is_wanted: fn(&str) -> bool) -> Vec<String> {
    let mut names = disk.list(dir).unwrap_or_default();
    names.retain(|name| is_wanted(name));
    names.sort();
    names.into_iter().map(|name| format!("{dir}/{name}")).collect()
}

/// Returns the paths of the log segments in a directory, in order.
pub(crate) fn segments(disk: &MemDisk, dir: &str) -> Vec<String> {
    files_in(disk, dir, |name| name.ends_with(SEGMENT))
}

/// Returns files of tablets that their superblocks do not name. Unreadable superblocks are skipped, and files of a
/// copy in progress are named when it ends.
pub(crate) fn unreferenced_files(disk: &dyn Disk) -> BTreeSet<String> {
    let metas = superblocks(disk).into_iter().filter(|meta| meta.data_state != DataState::Copying);
    let of = |meta: Superblock| {
        let named: BTreeSet<&str> = meta.rowsets.iter().flat_map(|rowset| rowset.files()).collect();
        let dir = data_dir(meta.tablet);
        let present = disk.list(&dir).unwrap_or_default();
        let files = present.into_iter().map(|name| format!("{dir}/{name}"));
        files.filter(|file| !named.contains(file.as_str())).collect::<Vec<_>>()
    };
    metas.flat_map(of).collect()
}

/// Returns the superblocks of a disk that can be read.
pub(crate) fn superblocks(disk: &dyn Disk) -> Vec<Superblock> {
    let tablets = Superblock::list(disk).unwrap_or_default();
    tablets.into_iter().filter_map(|tablet| Superblock::load(disk, tablet).ok()).collect()
}

/// Returns the files of tablets that running servers call tombstones. Only where superblocks do so too: of a server
/// that was killed and starts again, the former process may be known for some time.
pub(crate) fn tombstones(
    world: &mut dyn World,
    servers: &[(Host, Arc<TabletServer>)],
) -> Vec<TombstoneFiles> {
    let mut found = Vec::new();
    for (host, server) in servers {
        let is_tombstone = |entry: &Arc<TabletEntry>| matches!(entry.state(), EntryState::Tombstoned(_));
        let entries: Vec<_> = server.tablets.all().into_iter().filter(is_tombstone).collect();
        if entries.is_empty() {
            continue;
        }
        let machine = world.machine(&host.name());
        // Of copies of the disks: reading counts as an operation.
        let (wal, mut copies) = (machine.disk(WAL_DIR).image(), BTreeMap::new());
        for entry in entries {
            let path = entry.data_dir.path.as_str();
            let data = copies.entry(path.to_string()).or_insert_with(|| machine.disk(path).image());
            let meta = Superblock::load(data, entry.id);
            if meta.is_ok_and(|meta| meta.data_state == DataState::Tombstoned) {
                let (server, tablet) = (host.name(), entry.id.to_string());
                let (has_log, has_rows) =
                    (wal.list(&wal_dir(entry.id)).is_ok(), data.list(&data_dir(entry.id)).is_ok());
                found.push(TombstoneFiles { server, tablet, has_log, has_rows });
            }
        }
    }
    found
}

/// Returns the sizes of the replicas that run on a server.
pub(crate) fn replica_sizes(
    world: &mut dyn World,
    plan: &Plan,
    (host, server): (Host, &TabletServer),
) -> Vec<ReplicaSizes> {
    let machine = world.machine(&host.name());
    // Of copies of the disks: reading counts as an operation.
    let wal = machine.disk(WAL_DIR).image();
    let dirs = data_dirs(plan, host).iter();
    let data: BTreeMap<&str, MemDisk> = dirs.map(|dir| (*dir, machine.disk(dir).image())).collect();
    let of = |(entry, replica): (Arc<TabletEntry>, ReplicaHandle)| {
        let data = data.get(entry.data_dir.path.as_str())?;
        sizes_of(&host.name(), (&entry, &replica), (&wal, data), &server.config.tablet)
    };
    running_replicas(server).into_iter().filter_map(of).collect()
}

/// Returns the sizes of a replica that runs; `None` if its superblock cannot be read.
fn sizes_of(
    server: &str,
    (entry, replica): (&TabletEntry, &ReplicaHandle),
    (wal, data): (&MemDisk, &MemDisk),
    config: &TabletConfig,
) -> Option<ReplicaSizes> {
    let (told, meta) = (entry.sizes()?, Superblock::load(data, entry.id).ok()?);
    let files = meta.rowsets.iter().flat_map(|rowset| rowset.files());
    Some(ReplicaSizes {
        server: server.to_string(),
        tablet: entry.id.to_string(),
        told: told.disk_bytes,
        rowsets: files.map(|file| len(data, file)).sum(),
        superblock: len(data, &Superblock::path(entry.id)),
        consensus: len(data, &format!("{CONSENSUS}/{}", entry.id)),
        log: log_bytes(wal, entry.id, config),
        memory: replica.tablet().stats().memory_bytes,
    })
}

/// Returns the bytes that a log takes on its device.
fn log_bytes(wal: &MemDisk, tablet: TabletId, config: &TabletConfig) -> u64 {
    let bytes: Vec<u64> = segments(wal, &wal_dir(tablet)).iter().map(|path| len(wal, path)).collect();
    let last = bytes.last().copied().unwrap_or_default();
    let reserved = if config.wal_preallocate { config.wal_segment_bytes_max.saturating_sub(last) } else { 0 };
    bytes.iter().sum::<u64>() + reserved
}

/// Returns the length of a file; 0 if there is none.
fn len(disk: &MemDisk, path: &str) -> u64 {
    disk.open(path).and_then(|file| file.len()).unwrap_or_default()
}
