//! A replica over a disk in memory, driven the way a node drives it.
#![allow(dead_code)] // each test binary uses a part

use std::sync::Arc;

use bytes::Bytes;
use engine::cfile::cache::PageCache;
use engine::config::TabletConfig;
use engine::disk::mem::MemDisk;
use engine::error::Result;
use engine::ids::{TableId, TabletId, Uuid};
use engine::note::Note;
use engine::replica::{
    BootstrapReport, Done, Effects, Event, JobKind, JobStep, Op, OpResult, Replica, RequestId, WriteOp,
};
use engine::schema::ops::{RowOpKind, WireColumn};
use engine::schema::partition::{Partition, PartitionSchema};
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::meta::TabletMeta;
use engine::time::Timestamp;
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
    pub fn add(&mut self, columns: &[WireColumn], kind: RowOpKind, cells: &[Value]) {
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

    pub fn op(self, columns: &[WireColumn]) -> Op {
        let (rows, indirect) = (Bytes::from(self.rows), Bytes::from(self.indirect));
        Op::Write(WriteOp { columns: columns.into(), rows, indirect })
    }
}

/// The columns of a schema as a client that knows all of them names them.
pub fn wire_columns(schema: &Schema) -> Vec<WireColumn> {
    let wire = |c: &ColumnSchema| WireColumn { id: c.id, ty: c.ty, nullable: c.nullable };
    schema.columns().iter().filter(|c| !c.auto_incrementing).map(wire).collect()
}

/// `k INT32 KEY, v STRING NULLABLE, n INT32 NULLABLE`.
pub fn plain_schema() -> Schema {
    let columns = vec![
        ColumnSchema::new(0, "k", DataType::Int32),
        ColumnSchema::new(1, "v", DataType::String).nullable(),
        ColumnSchema::new(2, "n", DataType::Int32).nullable(),
    ];
    Schema::new(columns, 1).expect("it is a good schema")
}

/// One replica, what it lives on, and the clock it reads.
pub struct World {
    pub disk: MemDisk,
    pub config: TabletConfig,
    pub open: Option<(Replica, Wal)>,
    pub clock: u64,
    pub notes: Vec<Note>,
    pub report: BootstrapReport,
    tickets: u64,
}

impl World {
    pub fn new(seed: u64, config: TabletConfig) -> World {
        let report = BootstrapReport::default();
        let (disk, notes) = (MemDisk::new(seed), Vec::new());
        World { disk, config, open: None, clock: 0, notes, report, tickets: 0 }
    }

    pub fn create(&mut self, schema: Schema) -> Result<()> {
        let range_columns = schema.key_columns().iter().map(|c| c.id).collect();
        let partition = PartitionSchema { range_columns, ..PartitionSchema::default() };
        self.create_in(schema, partition, Partition::default())
    }

    pub fn create_in(&mut self, schema: Schema, how: PartitionSchema, part: Partition) -> Result<()> {
        let meta = TabletMeta::new(TABLET, TABLE, "t", schema, 0, how, part);
        let disk = Arc::new(self.disk.clone());
        let cache = PageCache::new(1 << 20);
        self.open = Some(Replica::create(disk.clone(), disk, meta, self.config.clone(), cache)?);
        Ok(())
    }

    /// Closes the replica if it is open, and opens it from what is on the disk.
    pub fn reopen(&mut self) -> Result<()> {
        self.open = None;
        let disk = Arc::new(self.disk.clone());
        let cache = PageCache::new(1 << 20);
        let (replica, wal, report) = Replica::open(disk.clone(), disk, TABLET, self.config.clone(), cache)?;
        self.clock = self.clock.max(report.last_timestamp.0);
        self.notes.extend(report.notes.iter().cloned());
        self.report = report;
        self.open = Some((replica, wal));
        Ok(())
    }

    pub fn replica(&self) -> &Replica {
        &self.open.as_ref().expect("the replica is open").0
    }

    /// Proposes an operation; nothing is durable or applied yet.
    pub fn propose(&mut self, op: Op, request: Option<RequestId>, out: &mut Effects) -> u64 {
        let (replica, _) = self.open.as_mut().expect("the replica is open");
        self.tickets += 1;
        let clock = &mut self.clock;
        let mut assign = || {
            *clock += 1;
            Timestamp(*clock)
        };
        replica.step(Event::Propose { ticket: self.tickets, op, request }, &mut assign, out);
        self.tickets
    }

    /// Appends what a step wants appended, syncs, and tells the replica, until nothing is left to append.
    pub fn persist(&mut self, out: &mut Effects) {
        let (replica, wal) = self.open.as_mut().expect("the replica is open");
        let appended = wal.append(&out.append).and_then(|()| wal.sync());
        out.append.clear();
        let event = match appended {
            Ok(()) => Event::Persisted(wal.last_op()),
            Err(error) => Event::LogFailed(error),
        };
        replica.step(event, &mut || unreachable!("nothing is proposed"), out);
        // Commits need not be durable before the answer.
        if let Err(error) = wal.append(&out.append) {
            replica.step(Event::LogFailed(error), &mut || unreachable!("nothing is proposed"), out);
        }
        out.append.clear();
    }

    /// One operation from proposal to answer.
    pub fn run(&mut self, op: Op) -> Done {
        let mut out = Effects::default();
        self.propose(op, None, &mut out);
        if out.done.is_empty() {
            self.persist(&mut out);
        }
        self.notes.append(&mut out.notes);
        assert_eq!(out.done.len(), 1);
        out.done.pop().expect("every proposal is answered")
    }

    pub fn write(&mut self, ops: &[(RowOpKind, Vec<Value>)]) -> Result<OpResult> {
        let columns = wire_columns(&self.replica().tablet().schema());
        let mut rows = Rows::default();
        ops.iter().for_each(|(kind, cells)| rows.add(&columns, *kind, cells));
        self.run(rows.op(&columns)).result
    }

    /// Runs a job to its end; false if there was nothing to do. `between` runs after each step.
    pub fn job(&mut self, kind: JobKind, between: &mut dyn FnMut(&mut World)) -> Result<bool> {
        let (replica, _) = self.open.as_mut().expect("the replica is open");
        let Some(mut job) = replica.start_job(kind)? else { return Ok(false) };
        let mut out = Effects::default();
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
