//! Plans with model tables: another profile's plan whose ops are replaced.

use std::time::Duration;

use super::draw;
use crate::client_ops::{
    ClientOp, MetadataQuery, ReadMode, ReplicaChoice, RowsFormat, SCANNER_TTL, ScanPause, TableStep,
    WriteKind,
};
use crate::draws::{MS, SECOND, read_mode, replica_choice, rounded};
use crate::plan::Plan;
use crate::profile::FaultProfile;
use crate::random_stream::RandomStream;

/// Most rows of one write.
const ROWS_MAX: u64 = 6;

/// Memory of servers that also host the tablets of model tables, in bytes.
const MEMORY_MIN: u64 = 64 << 20;
/// Time that clients may wait for alterations, whose outcome they ask for several times.
const ALTERATIONS_TIME: Duration = Duration::from_secs(600);

/// Draws the profile whose faults a plan of `tables` has.
pub(crate) fn base_profile(random: &mut RandomStream) -> FaultProfile {
    use FaultProfile::*;
    random.weighted(&[(Calm, 4), (Crash, 3), (Network, 3), (Swarm, 3), (Copy, 1), (Clock, 1), (Disk, 1)])
}

/// Alters the ranges of a table again and again in some plans, between writes and scans.
pub(crate) fn replace_with_range_changes(random: &mut RandomStream, plan: &mut Plan) {
    let percent = random.pick(&[0, 0, 3, 6, 12]);
    let with_ranges =
        |table: &u8| plan.tables.iter().any(|of| of.spec.number == *table && !of.spec.range.is_empty());
    for op in plan.clients.iter_mut().flat_map(|client| &mut client.ops) {
        if let ClientOp::TableScan { table, draw, .. } | ClientOp::TableWrite { table, draw, .. } = *op
            && with_ranges(&table)
            && random.percent(percent)
        {
            let step = random.weighted(&[
                (TableStep::ReplaceRanges, 4),
                (TableStep::AddRanges, 3),
                (TableStep::DropRange, 3),
                (TableStep::Refused, 2),
            ]);
            *op = ClientOp::TableAlter { table, step, draw };
        }
    }
}

/// Weights of the ops on model tables that a plan uses.
pub(crate) struct TableOps {
    tables: u8,
    kinds: Vec<(TableOp, u32)>,
    writes: Vec<(WriteKind, u32)>,
}

/// Kind of an op on model tables.
#[derive(Debug, Clone, Copy)]
enum TableOp {
    Write,
    Scan,
    Diff,
    Alter,
    Elect,
}

/// Percentage of model tables whose rows servers number.
const NUMBERED_PERCENT: u64 = 15;

/// Adds model tables and replaces most ops by ops on them.
pub(crate) fn replace_with_table_ops(random: &mut RandomStream, plan: &mut Plan) {
    let tables = random.between(1, 2) as u8;
    plan.tables = (0..tables).map(|number| draw::table(random, number)).collect();
    let numbered = &mut RandomStream::new(plan.seed, "numbered tables");
    for table in &mut plan.tables {
        if numbered.percent(NUMBERED_PERCENT) {
            *table = draw::numbered(numbered, table.clone());
        }
    }
    // Snapshots and diff scans go back further than a short history, and rows are checked only if none may be lost.
    plan.data.history = Duration::ZERO;
    plan.cluster.log_sync = true;
    plan.cluster.memory = plan.cluster.memory.max(MEMORY_MIN);
    plan.limit += ALTERATIONS_TIME;
    let ops = TableOps::new(random, tables, plan.cluster.replicas > 1);
    let percent = random.pick(&[70, 90, 100]);
    for op in plan.clients.iter_mut().flat_map(|client| &mut client.ops) {
        if *op != (ClientOp::Flush {}) && random.percent(percent) {
            let of_table = ops.op(random);
            // A master that was wiped is lost until an operator removes it.
            if !op.changes_masters() {
                *op = of_table;
            }
        }
    }
}

/// Replaces some scans of model tables by questions for metadata.
pub(crate) fn replace_with_metadata(random: &mut RandomStream, plan: &mut Plan) {
    let percent = random.pick(&[0, 10, 30]);
    for op in plan.clients.iter_mut().flat_map(|client| &mut client.ops) {
        if let ClientOp::TableScan { table, draw, .. } = *op
            && random.percent(percent)
        {
            *op = ClientOp::TableMetadata { table, asked: random.pick(MetadataQuery::ALL), draw };
        }
    }
}

/// Replaces some scans of model tables by scans with pauses.
pub(crate) fn replace_with_paused_scans(random: &mut RandomStream, plan: &mut Plan) {
    let percent = random.pick(&[0, 0, 5, 20]);
    for op in plan.clients.iter_mut().flat_map(|client| &mut client.ops) {
        if let ClientOp::TableScan { table, ordered, format, draw, .. } = *op
            && random.percent(percent)
        {
            let pause = random.pick(ScanPause::ALL);
            let span = rounded(match pause {
                ScanPause::Short | ScanPause::Elsewhere => random.span(10 * MS, SCANNER_TTL / 4),
                ScanPause::KeepAlive | ScanPause::Expire => random.span(SCANNER_TTL * 5 / 4, SCANNER_TTL * 2),
            });
            let from = replica_choice(random);
            *op = ClientOp::TablePausedScan { table, pause, span, ordered, format, from, draw };
        }
    }
}

impl TableOps {
    pub(crate) fn new(random: &mut RandomStream, tables: u8, replicated: bool) -> TableOps {
        let mut kinds = vec![(TableOp::Write, 30), (TableOp::Scan, random.pick(&[8, 16]))];
        if random.percent(60) {
            kinds.push((TableOp::Diff, random.pick(&[2, 6])));
        }
        if random.percent(70) {
            kinds.push((TableOp::Alter, random.pick(&[1, 3])));
        }
        if replicated && random.percent(40) {
            kinds.push((TableOp::Elect, 1));
        }
        let mut writes = vec![(WriteKind::Upsert, 4)];
        for kind in WriteKind::ALL {
            if random.percent(70) {
                writes.push((*kind, random.pick(&[1, 4, 10])));
            }
        }
        TableOps { tables, kinds, writes }
    }

    pub(crate) fn op(&self, random: &mut RandomStream) -> ClientOp {
        let (table, draw) = (random.below(u64::from(self.tables)) as u8, random.below(1 << 32) as u32);
        match random.weighted(&self.kinds) {
            TableOp::Write => {
                let rows = if random.percent(50) { 1 } else { random.between(2, ROWS_MAX) } as u8;
                ClientOp::TableWrite { table, kind: random.weighted(&self.writes), rows, draw }
            }
            TableOp::Scan => scan(random, table, draw),
            TableOp::Diff => {
                let (back, to) =
                    (rounded(random.span(10 * MS, 5 * SECOND)), rounded(random.span(MS, SECOND)));
                let (tests, format) = (random.pick(&[0, 0, 1, 2]), random.pick(RowsFormat::ALL));
                ClientOp::TableDiff { table, back: back + to, to, tests, format, draw }
            }
            TableOp::Alter => ClientOp::TableAlter { table, step: random.pick(TableStep::ALL), draw },
            TableOp::Elect => ClientOp::TableElect { table, draw },
        }
    }
}

fn scan(random: &mut RandomStream, table: u8, draw: u32) -> ClientOp {
    let ordered = random.percent(40);
    // Ordered scans need a snapshot.
    let at = if ordered { ReadMode::Snapshot } else { read_mode(random) };
    let back = if at == ReadMode::Snapshot && random.percent(50) {
        rounded(random.span(MS, 3 * SECOND))
    } else {
        Duration::ZERO
    };
    ClientOp::TableScan {
        table,
        at,
        back,
        ordered,
        tests: random.pick(&[0, 1, 1, 2, 3, 4]),
        limit: if random.percent(20) { random.between(1, 8) as u32 } else { 0 },
        bounded: random.percent(25),
        count: random.percent(8),
        format: random.pick(RowsFormat::ALL),
        from: if at == ReadMode::Latest { ReplicaChoice::Leader } else { replica_choice(random) },
        draw,
    }
}
