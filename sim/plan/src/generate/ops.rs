//! Programs of clients: the ops of each client, and the ops that replace some of them.
//!
//! Each replacement draws from a stream of its own. So a plan with it has the same other ops as a plan without.

use std::time::Duration;

use crate::client_ops::{
    ChangeTarget, ClientOp, ClientProgram, ClientSetup, FlushMode, ReadMode, WriteKind, WriteWait,
};
use crate::draws::{MS, SECOND, read_mode, replica_choice, rounded};
use crate::profile::{FaultProfile, PlanSize, SMALL_PLAN_OPS_MAX};
use crate::random_stream::RandomStream;
use crate::spec::ClusterSpec;

const KEYS_MAX: u64 = 2_000;
/// Number of clients that may have ranges of their own.
const RANGE_OWNERS: u8 = 2;

/// Kind of an op that programs are drawn from at first.
#[derive(Debug, Clone, Copy)]
enum BasicOp {
    Write,
    Get,
    Scan,
    Transfer,
    Wait,
    Diff,
    AddColumn,
    DropColumn,
    AddRange,
    DropRange,
    ShortTable,
    StepDown,
    Move,
}

/// Weights of the ops that a seed uses, and the rows that they use.
struct OpGenerator {
    weights: Vec<(BasicOp, u32)>,
    writes: Vec<(WriteKind, u32)>,
    tables: u8,
    tablets: u8,
    keys: u64,
    /// Percentage of keys that are drawn from the first tenth.
    hot_percent: u64,
}

impl OpGenerator {
    fn new(random: &mut RandomStream, cluster: &ClusterSpec, profile: FaultProfile) -> OpGenerator {
        use BasicOp::*;
        let mut weights = vec![(Write, 40)];
        let usual = [(Get, 15), (Scan, 6), (Transfer, 6), (Wait, 2), (Diff, 2)];
        let rare = [(AddColumn, 1), (DropColumn, 1), (AddRange, 1), (DropRange, 1), (ShortTable, 1)];
        let moves = [(StepDown, 1), (Move, 1)];
        let mut draw_weights = |random: &mut RandomStream, kinds: &[(BasicOp, u32)], percent| {
            for (kind, weight) in kinds {
                if random.percent(percent) {
                    weights.push((*kind, weight * random.pick(&[1, 2, 4])));
                }
            }
        };
        draw_weights(random, &usual, 70);
        draw_weights(random, &rare, 25);
        if cluster.replicas > 1 {
            draw_weights(random, &moves, if profile == FaultProfile::Copy { 100 } else { 40 });
        }
        let mut writes = vec![(WriteKind::Upsert, 4)];
        for kind in WriteKind::ALL {
            if random.percent(70) {
                writes.push((*kind, random.pick(&[1, 4, 10])));
            }
        }
        let keys = random.pick(&[16, 100, KEYS_MAX]);
        let (tables, tablets) = (cluster.tables, cluster.tablets);
        OpGenerator { weights, writes, tables, tablets, keys, hot_percent: random.pick(&[0, 50, 90]) }
    }

    fn key(&self, random: &mut RandomStream) -> u32 {
        let hot = random.percent(self.hot_percent);
        random.below(if hot { self.keys.div_ceil(10) } else { self.keys }) as u32
    }

    fn op(&self, random: &mut RandomStream) -> ClientOp {
        let table = random.below(u64::from(self.tables)) as u8;
        let tablet = random.below(u64::from(self.tablets)) as u8;
        let small = random.between(0, 3) as u8;
        match random.weighted(&self.weights) {
            BasicOp::Get => ClientOp::Get {
                table,
                key: self.key(random),
                at: read_mode(random),
                from: replica_choice(random),
            },
            BasicOp::Scan => self.scan(random, table),
            BasicOp::Transfer => ClientOp::Transfer {
                table,
                debit: self.key(random),
                credit: self.key(random),
                amount: random.between(1, 100) as u32,
            },
            BasicOp::Wait => ClientOp::Wait { span: random.span(MS, SECOND) },
            BasicOp::Diff => ClientOp::Diff { table, back: random.span(10 * MS, 5 * SECOND) },
            BasicOp::AddColumn => ClientOp::AddColumn { table, column: small },
            BasicOp::DropColumn => ClientOp::DropColumn { table, column: small },
            BasicOp::AddRange => ClientOp::AddRange { table, range: small },
            BasicOp::DropRange => ClientOp::DropRange { table, range: small },
            BasicOp::ShortTable => ClientOp::ShortTable { number: small, rows: random.between(1, 20) as u32 },
            BasicOp::StepDown => ClientOp::StepDown { table, tablet },
            BasicOp::Move => ClientOp::Move { table, tablet, asked: ChangeTarget::Leader },
            BasicOp::Write => {
                let (kind, key) = (random.weighted(&self.writes), self.key(random));
                ClientOp::Write { kind, table, key, value: random.below(1_000_000) as u32 }
            }
        }
    }

    fn scan(&self, random: &mut RandomStream, table: u8) -> ClientOp {
        let whole_table = random.percent(30);
        let low = if whole_table { 0 } else { self.key(random) };
        let high = if whole_table { u32::MAX } else { low + random.between(1, 50) as u32 };
        let at = read_mode(random);
        let back = if at == ReadMode::Snapshot && random.percent(50) {
            random.span(MS, 3 * SECOND)
        } else {
            Duration::ZERO
        };
        ClientOp::Scan {
            table,
            low,
            high,
            at,
            back,
            ordered: random.percent(50),
            from: replica_choice(random),
        }
    }
}

pub(super) fn clients(
    random: &mut RandomStream,
    cluster: &ClusterSpec,
    profile: FaultProfile,
    size: PlanSize,
) -> Vec<ClientProgram> {
    let (count, ops) = match size {
        PlanSize::Smoke => (random.between(1, 3), random.between(40, 200)),
        PlanSize::Full => (random.between(1, 8), random.between(200, 2_000)),
        PlanSize::Bench => (8, 2_000),
    };
    let generator = OpGenerator::new(random, cluster, profile);
    // A short pace puts many ops between two events. A long one leaves time for elections between two ops.
    let pace = if random.percent(40) { random.span(MS, 40 * MS) } else { random.span(20 * MS, 200 * MS) };
    (0..count).map(|number| client(random, &generator, number as u8, ops / count, pace)).collect()
}

fn client(
    random: &mut RandomStream,
    generator: &OpGenerator,
    number: u8,
    ops: u64,
    pace: Duration,
) -> ClientProgram {
    let flush = random.weighted(&[(FlushMode::Sync, 3), (FlushMode::Manual, 2), (FlushMode::Background, 1)]);
    let setup =
        ClientSetup { number, flush, waits: WriteWait::No, pace, propagate_every: random.pick(&[0, 1, 10]) };
    let batch = random.between(2, 30);
    let mut ops: Vec<ClientOp> = (0..ops).map(|_| generator.op(random)).collect();
    if flush != FlushMode::Sync {
        let flush_at = |(number, op): (usize, &mut ClientOp)| {
            if (number as u64).is_multiple_of(batch) {
                *op = ClientOp::Flush {};
            }
        };
        ops.iter_mut().enumerate().skip(1).for_each(flush_at);
        ops.push(ClientOp::Flush {});
    }
    ClientProgram { setup, ops }
}

/// Returns all ops that may be replaced. Flushes stay, because a session needs them.
fn replaceable(clients: &mut [ClientProgram]) -> impl Iterator<Item = &mut ClientOp> {
    clients.iter_mut().flat_map(|client| &mut client.ops).filter(|op| **op != ClientOp::Flush {})
}

/// Kind of an op that replaces others, or the decision to keep an op.
#[derive(Debug, Clone, Copy)]
enum RareOp {
    Link,
    Walk,
    Quiesce,
    Evict,
    Inspect,
    Keep,
}

/// Replaces ops with linked lists, quiescing, evictions and reads of memory trackers, each in some plans. Servers whose
/// memory trackers are read may have little memory.
pub(super) fn replace_with_rare_ops(
    random: &mut RandomStream,
    cluster: &mut ClusterSpec,
    clients: &mut [ClientProgram],
) {
    let mut kinds = Vec::new();
    if random.percent(25) {
        kinds.extend([(RareOp::Link, 16), (RareOp::Walk, 4)]);
    }
    if cluster.replicas > 1 && random.percent(15) {
        kinds.push((RareOp::Quiesce, 1));
    }
    if cluster.replicas > 1 && random.percent(15) {
        kinds.push((RareOp::Evict, 1));
    }
    if random.percent(25) {
        kinds.push((RareOp::Inspect, 2));
        // The limit must cover the tracked memory of all open files; large plans have more of them.
        let ops: usize = clients.iter().map(|client| client.ops.len()).sum();
        let least = if ops > SMALL_PLAN_OPS_MAX { 4 << 20 } else { 1 << 20 };
        cluster.memory = random.pick(&[least, 4 << 20, cluster.memory]);
    }
    if kinds.is_empty() {
        return;
    }
    kinds.push((RareOp::Keep, random.pick(&[50, 100, 200])));
    for op in replaceable(clients) {
        if let Some(rare) = rare_op(random, cluster, &kinds) {
            *op = rare;
        }
    }
}

fn rare_op(random: &mut RandomStream, cluster: &ClusterSpec, kinds: &[(RareOp, u32)]) -> Option<ClientOp> {
    let server = random.below(u64::from(cluster.tservers)) as u8;
    Some(match random.weighted(kinds) {
        RareOp::Link => ClientOp::Link {},
        RareOp::Walk => {
            let back = if random.percent(50) { rounded(random.span(MS, 3 * SECOND)) } else { Duration::ZERO };
            ClientOp::Walk { back, from: replica_choice(random) }
        }
        RareOp::Quiesce => ClientOp::Quiesce { server, span: rounded(random.span(10 * MS, 3 * SECOND)) },
        RareOp::Inspect => ClientOp::Inspect { server },
        RareOp::Evict => {
            let table = random.below(u64::from(cluster.tables)) as u8;
            let tablet = random.below(u64::from(cluster.tablets)) as u8;
            ClientOp::Evict { table, tablet, asked: ChangeTarget::Leader }
        }
        RareOp::Keep => return None,
    })
}

/// Replaces ops with inserts into the table with an auto-increment column, in some plans.
pub(super) fn replace_with_auto_increment(random: &mut RandomStream, clients: &mut [ClientProgram]) {
    if !random.percent(20) {
        return;
    }
    let percent = random.pick(&[5, 15, 30]);
    for op in replaceable(clients) {
        if random.percent(percent) {
            *op = ClientOp::Numbered { step: random.below(16) as u8 };
        }
    }
}

/// Replaces ops with those on columns and ranges that only one client uses, in some plans.
pub(super) fn replace_with_owned(
    random: &mut RandomStream,
    cluster: &ClusterSpec,
    clients: &mut [ClientProgram],
    size: PlanSize,
) {
    // Measurements need a fixed number of tablets.
    let (columns, ranges) = (random.percent(30), random.percent(20) && size != PlanSize::Bench);
    let one_in = random.pick(&[6, 12, 30]);
    if !columns && !ranges {
        return;
    }
    for client in clients {
        // Each range adds tablets, so only the first clients have ranges.
        let ranges = ranges && client.setup.number < RANGE_OWNERS;
        for op in client.ops.iter_mut().filter(|op| **op != ClientOp::Flush {}) {
            let (table, step) = (random.below(u64::from(cluster.tables)) as u8, random.below(200) as u8);
            let of_columns = columns && (!ranges || random.percent(60));
            if random.below(one_in) > 0 || !of_columns && !ranges {
                continue;
            }
            *op = if of_columns {
                ClientOp::OwnColumn { table, step }
            } else {
                ClientOp::OwnRange { table, step }
            };
        }
    }
}
