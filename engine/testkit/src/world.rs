//! A replica over a disk in memory, driven as a node drives it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use engine::cfile::cache::PageCache;
use engine::config::TabletConfig;
use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::error::Result;
use engine::ids::{TableId, TabletId, Uuid};
use engine::note::Note;
use engine::raft::{self, Peer, RaftConfig, RaftOptions};
use engine::replica::{
    BootstrapReport, JobKind, JobStep, Op, OpReply, OpResult, Replica, ReplicaEffects, ReplicaEvent,
    ReplicaSetup, RequestId, WriteOp, consensus_meta_store, write_log,
};
use engine::schema::partition::{Partition, PartitionSchema};
use engine::schema::row_ops::{ClientColumn, RowOpKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::superblock::Superblock;
use engine::time::{ClockReading, Timestamp};
use engine::wal::Wal;

pub const TABLET: TabletId = Uuid([7; 16]);
const TABLE: TableId = Uuid([9; 16]);

/// A cell of a row operation; columns beyond the list are not set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Unset,
    Null,
    Bytes(Vec<u8>),
}

impl Value {
    pub fn int(number: i32) -> Value {
        Value::Bytes(number.to_le_bytes().to_vec())
    }

    pub fn text(text: &str) -> Value {
        Value::Bytes(text.as_bytes().to_vec())
    }
}

/// Rows as a client encodes them.
#[derive(Default, Clone)]
pub struct Rows {
    pub rows: Vec<u8>,
    pub indirect: Vec<u8>,
}

impl Rows {
    pub fn add(&mut self, columns: &[ClientColumn], kind: RowOpKind, cells: &[Value]) {
        self.rows.push(kind as u8);
        let bytes = columns.len().div_ceil(8);
        let (mut set, mut null) = (vec![0u8; bytes], vec![0u8; bytes]);
        let mut data = Vec::new();
        for (i, (column, cell)) in columns.iter().zip(cells).enumerate() {
            let bit = 1 << (i % 8);
            match cell {
                Value::Unset => continue,
                Value::Null => null[i / 8] |= bit,
                Value::Bytes(cell) if column.ty.width().is_some() => data.extend_from_slice(cell),
                Value::Bytes(cell) => {
                    data.extend_from_slice(&(self.indirect.len() as u64).to_le_bytes());
                    data.extend_from_slice(&(cell.len() as u64).to_le_bytes());
                    self.indirect.extend_from_slice(cell);
                }
            }
            set[i / 8] |= bit;
        }
        self.rows.extend_from_slice(&set);
        if columns.iter().any(|column| column.nullable) {
            self.rows.extend_from_slice(&null);
        }
        self.rows.extend_from_slice(&data);
    }

    pub fn op(self, columns: &[ClientColumn]) -> Op {
        let (rows, indirect) = (Bytes::from(self.rows), Bytes::from(self.indirect));
        Op::Write(WriteOp { columns: columns.into(), rows, indirect })
    }
}

/// Returns the columns of a schema as sent by a client that knows all of them.
pub fn wire_columns(schema: &Schema) -> Vec<ClientColumn> {
    let wire = |c: &ColumnSchema| ClientColumn { id: c.id, ty: c.ty, nullable: c.nullable };
    schema.columns().iter().filter(|c| !c.auto_incrementing).map(wire).collect()
}

/// Returns the schema `k INT32 KEY, v STRING NULLABLE, n INT32 NULLABLE`.
pub fn plain_schema() -> Schema {
    let columns = vec![
        ColumnSchema::new(0, "k", DataType::Int32),
        ColumnSchema::new(1, "v", DataType::String).nullable(),
        ColumnSchema::new(2, "n", DataType::Int32).nullable(),
    ];
    Schema::new(columns, 1).expect("it is a good schema")
}

/// Returns the setup of a replica that is the only one of its group.
pub fn setup() -> ReplicaSetup {
    ReplicaSetup { me: Peer::voter(Uuid([1; 16]), "here", 7050), options: RaftOptions::tiny(), seed: 1 }
}

/// One replica, its disk, and its clock.
pub struct World {
    pub disk: MemDisk,
    pub config: TabletConfig,
    pub open: Option<(Replica, Wal)>,
    pub clock: u64,
    pub notes: Vec<Note>,
    pub report: BootstrapReport,
    /// Size in bytes of the page cache for the next creation or opening.
    pub cache_bytes: usize,
    /// Timestamps of the clients' operations, in order.
    times: Vec<Timestamp>,
    tickets: u64,
}

impl World {
    pub fn new(seed: u64, config: TabletConfig) -> World {
        let report = BootstrapReport::default();
        let (disk, notes) = (MemDisk::new(seed), Vec::new());
        let cache_bytes = 1 << 20;
        World {
            disk,
            config,
            open: None,
            clock: 0,
            notes,
            report,
            cache_bytes,
            times: Vec::new(),
            tickets: 0,
        }
    }

    pub fn create(&mut self, schema: Schema) -> Result<()> {
        let range_columns = schema.key_columns().iter().map(|c| c.id).collect();
        let partition = PartitionSchema { range_columns, ..PartitionSchema::default() };
        self.create_in(schema, partition, Partition::default())
    }

    pub fn create_in(&mut self, schema: Schema, how: PartitionSchema, part: Partition) -> Result<()> {
        let meta = Superblock::new(TABLET, TABLE, "t", schema, 0, how, part);
        let disk = Arc::new(self.disk.clone());
        let cache = PageCache::new(self.cache_bytes);
        let members = RaftConfig::initial(vec![setup().me]);
        let config = self.config.clone();
        self.open = Some(Replica::create(disk.clone(), disk, meta, members, setup(), config, cache)?);
        self.settle()
    }

    /// Closes the replica if it is open, and opens it from the disk.
    pub fn reopen(&mut self) -> Result<()> {
        self.open = None;
        let disk = Arc::new(self.disk.clone());
        let cache = PageCache::new(self.cache_bytes);
        let config = self.config.clone();
        let (replica, wal, report) = Replica::open(disk.clone(), disk, TABLET, setup(), config, cache)?;
        self.clock = self.clock.max(report.last_timestamp.0);
        self.notes.extend(report.notes.iter().cloned());
        self.report = report;
        self.open = Some((replica, wal));
        self.settle()
    }

    pub fn replica(&self) -> &Replica {
        &self.open.as_ref().expect("the replica is open").0
    }

    /// Steps the replica; timestamps increase.
    fn step(&mut self, event: impl Into<ReplicaEvent>, out: &mut ReplicaEffects) {
        let (replica, _) = self.open.as_mut().expect("the replica is open");
        let clock = &mut self.clock;
        let mut assign = || {
            *clock += 1;
            Timestamp(*clock)
        };
        replica.step(ClockReading::default(), event, &mut assign, out);
    }

    /// Lets the replica begin its term. It is the only voter and leads at once.
    fn settle(&mut self) -> Result<()> {
        let mut out = ReplicaEffects::default();
        let (replica, _) = self.open.as_mut().expect("the replica is open");
        let clock = &mut self.clock;
        let mut assign = || {
            *clock += 1;
            Timestamp(*clock)
        };
        replica.start(ClockReading::default(), &mut assign, &mut out);
        self.persist(&mut out);
        self.replica().failure().cloned().map_or(Ok(()), Err)
    }

    /// Proposes an operation; nothing is durable or applied yet.
    pub fn propose(&mut self, op: Op, request: Option<RequestId>, out: &mut ReplicaEffects) -> u64 {
        self.tickets += 1;
        self.step(ReplicaEvent::Propose { ticket: self.tickets, op, request }, out);
        self.tickets
    }

    /// Applies the log effects of steps to the disk and reports them to the replica, until nothing is left to do.
    pub fn persist(&mut self, out: &mut ReplicaEffects) {
        while !out.log.is_empty() || out.meta.is_some() {
            if let Some((number, meta)) = out.meta.take() {
                match consensus_meta_store::store(&self.disk, &meta) {
                    Ok(()) => self.step(raft::RaftEvent::MetaPersisted(number), out),
                    Err(error) => self.step(ReplicaEvent::MetaFailed(error), out),
                }
            }
            let (_, wal) = self.open.as_mut().expect("the replica is open");
            let before = wal.last_op();
            let written = write_log(wal, out.log.drain(..)).and_then(|()| {
                // The outcomes of operations need not be durable before the reply.
                if wal.last_op() == before { Ok(()) } else { wal.sync() }
            });
            match written {
                Ok(()) if wal.last_op() == before => {}
                Ok(()) => {
                    let last = wal.last_op();
                    self.step(raft::RaftEvent::Persisted(last), out);
                }
                Err(error) => self.step(ReplicaEvent::LogFailed(error), out),
            }
        }
    }

    /// Returns the timestamp of a client's n-th operation, from 1; no-ops of new terms do not count. For the operation
    /// after the last one it is in the future.
    pub fn timestamp_of(&self, n: u64) -> Timestamp {
        let known = (n as usize).checked_sub(1).and_then(|at| self.times.get(at));
        known.copied().unwrap_or(Timestamp(self.clock + n.saturating_sub(self.times.len() as u64)))
    }

    /// Adds a STRING column with a read default.
    pub fn add_text_column(&mut self, default: Vec<u8>) {
        let tablet = self.replica().tablet();
        let mut columns = tablet.schema().columns().to_vec();
        let added = ColumnSchema::new(columns.len() as u32, "added", DataType::String);
        columns.push(ColumnSchema { read_default: Some(default), ..added });
        let schema = Box::new(Schema::new(columns, 1).expect("a new name"));
        let version = tablet.schema_version() + 1;
        let alter = Op::AlterSchema { schema, version, table_name: "t".into(), extra: BTreeMap::new() };
        self.run(alter).result.expect("the alteration is applied");
    }

    /// Runs one operation from proposal to reply.
    pub fn run(&mut self, op: Op) -> OpReply {
        let mut out = ReplicaEffects::default();
        self.propose(op, None, &mut out);
        if out.done.is_empty() {
            self.persist(&mut out);
        }
        self.notes.append(&mut out.notes);
        assert_eq!(out.done.len(), 1);
        let done = out.done.pop().expect("every proposal gets a reply");
        if done.timestamp > Timestamp::MIN {
            self.times.push(done.timestamp);
        }
        done
    }

    pub fn write(&mut self, ops: &[(RowOpKind, Vec<Value>)]) -> Result<OpResult> {
        let columns = wire_columns(&self.replica().tablet().schema());
        let mut rows = Rows::default();
        ops.iter().for_each(|(kind, cells)| rows.add(&columns, *kind, cells));
        self.run(rows.op(&columns)).result
    }

    /// Runs a job to its end. Returns false if there was nothing to do. `between` runs after each step.
    pub fn job(&mut self, kind: JobKind, between: &mut dyn FnMut(&mut World)) -> Result<bool> {
        let (replica, _) = self.open.as_mut().expect("the replica is open");
        let Some(mut job) = replica.start_job(kind)? else { return Ok(false) };
        let mut out = ReplicaEffects::default();
        let ended = loop {
            let step = job.step();
            between(self);
            let (replica, wal) = self.open.as_mut().expect("the replica is open");
            let next = match step {
                Ok(JobStep::More) => Ok(()),
                Ok(JobStep::SyncLog) => wal.sync(),
                Ok(JobStep::Turn) => replica.job_turn(&mut job, &mut out),
                Ok(JobStep::Done) => break Ok(true),
                Err(error) => Err(error),
            };
            if let Err(error) = next {
                break Err(error);
            }
        };
        let (replica, _) = self.open.as_mut().expect("the replica is open");
        replica.end_job(job, ended.clone().err(), &mut out);
        self.notes.append(&mut out.notes);
        ended
    }
}

/// Returns orphan files of rows, and files that a superblock refers to but that are missing. No job, copy or deletion
/// that has ended may leave either.
pub fn misplaced_files(disk: &dyn Disk) -> Vec<String> {
    let mut wanted = Vec::new();
    for tablet in Superblock::list(disk).expect("listed") {
        let meta = Superblock::load(disk, tablet).expect("readable");
        wanted.extend(meta.rowsets.iter().flat_map(|rowset| rowset.files()).map(str::to_string));
    }
    let mut found = Vec::new();
    for dir in disk.list("data").unwrap_or_default() {
        let names = disk.list(&format!("data/{dir}")).expect("a directory");
        found.extend(names.iter().map(|name| format!("data/{dir}/{name}")));
    }
    let leaked = found.iter().filter(|file| !wanted.contains(file)).map(|file| format!("leaked {file}"));
    let missing = wanted.iter().filter(|file| !found.contains(file)).map(|file| format!("missing {file}"));
    leaked.chain(missing).collect()
}
