//! Replicas opened from copies of the disks of running servers: the state that a restart would find.

use std::sync::Arc;

use engine::cfile::cache::PageCache;
use engine::config::TabletConfig;
use engine::disk::Disk;
use engine::error::Result;
use engine::ids::{TabletId, Uuid};
use engine::memory::MemoryHandle;
use engine::observer::ObserverHandle;
use engine::raft::interface::UpdateRequest;
use engine::raft::{Peer, RaftConfig, RaftEvent, RaftOptions};
use engine::replica::{Replica, ReplicaEffects, ReplicaSetup, wal_dir};
use engine::schema::row_block::ProjectedColumn;
use engine::tablet::Tablet;
use engine::tablet::scan::ScanSpec;
use engine::time::{ClockReading, Timestamp};
use engine::wal::{LogEntry, Wal, WalConfig};
use node::hosting::tablet_entry::EntryState;
use node::tserver::server::TabletServer;

use crate::cluster::{DATA_DIR, WAL_DIR};
use crate::oracle::recovered_state::{OpenedState, RecoveredReplica, ReplicaState};
use crate::world::World;
use sim_plan::Host;

/// Bytes of the page cache of opened copies.
const CACHE_BYTES: usize = 1 << 20;

/// Server that opens the copies, and the leader of which it is told. Neither is a member of any group.
const OPENER: Uuid = Uuid([0xfe; 16]);
const LEADER: Uuid = Uuid([0xff; 16]);

/// Copies of the disks of a server.
struct Files {
    wal: Arc<dyn Disk>,
    data: Arc<dyn Disk>,
    cache: Arc<PageCache>,
}

/// Opens copies of all replicas that run. Servers whose disks had faults are left out: their files may be damaged.
pub fn read(world: &mut dyn World, servers: &[(Host, Arc<TabletServer>)]) -> Vec<RecoveredReplica> {
    let mut replicas = Vec::new();
    for (host, server) in servers {
        let machine = world.machine(&host.name());
        if machine.disks_are_fault_free() {
            let (wal, data) = (machine.disk(WAL_DIR).image(), machine.disk(DATA_DIR).image());
            let cache = PageCache::new(CACHE_BYTES);
            let files = Files { wal: Arc::new(wal), data: Arc::new(data), cache };
            replicas.extend(read_server(*host, server, &files));
        }
    }
    replicas
}

fn read_server(host: Host, server: &TabletServer, files: &Files) -> Vec<RecoveredReplica> {
    let mut replicas = Vec::new();
    for entry in server.tablets.all() {
        let EntryState::Running(replica) = entry.state() else { continue };
        if replica.is_stopped() {
            continue;
        }
        let (status, tablet) = (replica.status(), replica.tablet());
        let running = state(tablet, status.term, &status.committed_config);
        let opened = open(files, server, entry.id, Timestamp(running.last_applied));
        replicas.push(RecoveredReplica {
            server: host.name(),
            tablet: entry.id.to_string(),
            running,
            opened: opened.map_err(|error| error.to_string()),
        });
    }
    replicas
}

/// Opens the replica as a follower, and lets its leader report operations up to the timestamp `applied` as committed:
/// the log of an idle replica may end before the commit entries of its last operations.
fn open(files: &Files, server: &TabletServer, tablet: TabletId, applied: Timestamp) -> Result<OpenedState> {
    let (observer, memory) = (ObserverHandle::default(), MemoryHandle::default());
    let config = TabletConfig { observer, memory, ..server.config.tablet.clone() };
    let me = Peer::voter(OPENER, "", 0);
    let committed = last_index(files, &config, tablet, applied)?;
    let setup = ReplicaSetup { me, options: RaftOptions::default(), seed: 0 };
    let (wal, data, cache) = (files.wal.clone(), files.data.clone(), files.cache.clone());
    let (mut replica, _, report) = Replica::open(wal, data, tablet, setup, config, cache)?;
    commit(&mut replica, tablet, committed, report.last_timestamp);
    replica.failure().map_or(Ok(()), |error| Err(error.clone()))?;
    let consensus = replica.consensus_meta();
    let state = state(replica.tablet(), consensus.term, &consensus.committed);
    Ok(OpenedState { state, scanned_rows: scanned_rows(replica.tablet())? })
}

/// Returns the index of the last operation in the log up to a timestamp; 0 if there is none.
fn last_index(files: &Files, config: &TabletConfig, tablet: TabletId, until: Timestamp) -> Result<u64> {
    let config = WalConfig {
        segment_bytes_max: config.wal_segment_bytes_max,
        preallocate: config.wal_preallocate,
        compress: config.wal_compress,
    };
    let mut index = 0;
    let mut feed = |entry| {
        if let LogEntry::Replicate(entry) = entry
            && entry.timestamp <= until
        {
            index = entry.op.index;
        }
        Ok(())
    };
    Wal::open(files.wal.clone(), &wal_dir(tablet), config, &mut feed)?;
    Ok(index)
}

/// Applies the operations of the log up to an index, as at the request of a leader.
fn commit(replica: &mut Replica, tablet: TabletId, committed: u64, newest: Timestamp) {
    let request = UpdateRequest {
        tablet,
        caller: LEADER,
        dest: OPENER,
        term: replica.consensus_meta().term,
        sent: 0,
        preceding: replica.last_op(),
        entries: Vec::new(),
        committed,
        all_replicated: 0,
        safe_time: None,
    };
    let event = RaftEvent::Update { ticket: 0, request };
    let mut out = ReplicaEffects::default();
    replica.step(ClockReading::default(), event, &mut || newest.next(), &mut out);
}

fn state(tablet: &Tablet, term: u64, members: &RaftConfig) -> ReplicaState {
    let schema = tablet.table_schema();
    let (columns, version) = (&schema.schema, schema.version);
    ReplicaState {
        term,
        members: format!("{members:?}"),
        schema: format!("{} version {version}: {columns:?} {:?}", schema.table_name, schema.extra),
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
