//! Replicas opened from copies of the disks of running servers: the state that a restart would find, and maintenance
//! of such copies.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::error::Result;
use engine::raft::RaftConfig;
use engine::schema::row_block::ProjectedColumn;
use engine::tablet::Tablet;
use engine::tablet::scan::ScanSpec;
use engine::time::Timestamp;
use node::hosting::replica::ReplicaHandle;
use node::tserver::server::TabletServer;

use self::replica_copy::{DiskCopies, ReplicaCopy, schema_text};
use crate::cluster::WAL_DIR;
use crate::oracle::maintenance::MaintainedReplica;
use crate::oracle::recovered_state::{OpenedState, RecoveredReplica, ReplicaState};
use crate::server_usage::running_replicas;
use crate::world::World;
use sim_plan::{Host, RandomStream};

mod maintenance;
mod replica_copy;

/// Percentage of replicas of which a copy is maintained.
const MAINTAINED_PERCENT: u64 = 70;

/// Opens copies of all replicas that run. Servers whose disks had faults are left out: their files may be damaged.
pub fn read(world: &mut dyn World, servers: &[(Host, Arc<TabletServer>)]) -> Vec<RecoveredReplica> {
    let mut replicas = Vec::new();
    for (host, server, disks) in copies(world, servers) {
        for (entry, replica) in running_replicas(&server) {
            let (disks, running) = (disks.get(&entry.data_dir.path), state_of(&replica));
            let Some(disks) = disks else { continue };
            let opened = ReplicaCopy::open(disks, entry.id, Timestamp(running.last_applied));
            let opened = opened.and_then(|copy| opened_state(&copy));
            replicas.push(RecoveredReplica {
                server: host.name(),
                tablet: entry.id.to_string(),
                running,
                opened: opened.map_err(|error| error.to_string()),
            });
        }
    }
    replicas
}

/// Maintains copies of some of the replicas that run, which the seed decides.
pub fn maintain(
    world: &mut dyn World,
    servers: &[(Host, Arc<TabletServer>)],
    seed: u64,
) -> Vec<MaintainedReplica> {
    let random = &mut RandomStream::new(seed, "maintenance of copies");
    let mut replicas = Vec::new();
    for (host, server, disks) in copies(world, servers) {
        for (entry, replica) in running_replicas(&server) {
            let disks = disks.get(&entry.data_dir.path).filter(|_| random.percent(MAINTAINED_PERCENT));
            let Some(disks) = disks else { continue };
            let applied = replica.tablet().mvcc().last_applied();
            // A copy that cannot be opened is reported by the other check.
            let Ok(copy) = ReplicaCopy::open(disks, entry.id, applied) else { continue };
            replicas.extend(maintenance::maintain(random, &host.name(), copy));
        }
    }
    replicas
}

/// A server with copies of its disks, by data directory.
type CopiedServer = (Host, Arc<TabletServer>, BTreeMap<String, DiskCopies>);

/// Copies the disks of servers whose disks had no faults. A device that was full has lost nothing.
fn copies(world: &mut dyn World, servers: &[(Host, Arc<TabletServer>)]) -> Vec<CopiedServer> {
    let mut copies = Vec::new();
    for (host, server) in servers {
        let machine = world.machine(&host.name());
        if machine.disks_were_at_most_full() {
            let (wal, config) = (machine.disk(WAL_DIR), &server.config);
            let of_dir = |dir: &String| DiskCopies::of(&wal, &machine.disk(dir), &config.tablet);
            let by_dir = config.data_dirs.iter().map(|dir| (dir.clone(), of_dir(dir))).collect();
            copies.push((*host, server.clone(), by_dir));
        }
    }
    copies
}

fn state_of(replica: &ReplicaHandle) -> ReplicaState {
    let status = replica.status();
    state(replica.tablet(), status.term, &status.committed_config)
}

fn opened_state(copy: &ReplicaCopy<'_>) -> Result<OpenedState> {
    let (term, members) = copy.consensus();
    let state = state(copy.tablet(), term, members);
    Ok(OpenedState { state, scanned_rows: scanned_rows(copy.tablet())? })
}

fn state(tablet: &Tablet, term: u64, members: &RaftConfig) -> ReplicaState {
    ReplicaState {
        term,
        members: format!("{members:?}"),
        schema: schema_text(tablet),
        last_applied: tablet.mvcc().last_applied().0,
        live_rows: tablet.stats().live_rows,
    }
}

/// Returns the number of rows that a scan of the first key column returns.
fn scanned_rows(tablet: &Tablet) -> Result<u64> {
    let schema = tablet.schema();
    let mut scan = tablet.scan(&ScanSpec::latest(vec![ProjectedColumn::from(&schema.columns()[0])]))?;
    let mut rows = 0;
    while let Some(block) = scan.next_block()? {
        rows += block.rows as u64;
    }
    Ok(rows)
}
