//! Searches, and reads of dropped history, in the place of other ops.

use std::time::Duration;

use crate::client_ops::{ClientOp, ClientProgram, PredicateKind, ReadMode, SearchOutput};
use crate::draws::{MS, SECOND, read_mode, replica_choice, rounded};
use crate::random_stream::RandomStream;
use crate::spec::{ClusterSpec, DataSpec};

/// Replaces ops with searches in most plans.
pub(super) fn replace_with_searches(
    random: &mut RandomStream,
    cluster: &ClusterSpec,
    clients: &mut [ClientProgram],
) {
    if random.percent(30) {
        return;
    }
    let one_in = random.pick(&[8, 20, 60]);
    let keys = u64::from(keys_end(clients));
    let ops = clients.iter_mut().flat_map(|client| &mut client.ops).filter(|op| **op != ClientOp::Flush {});
    for op in ops {
        if random.below(one_in) == 0 {
            *op = search(random, cluster, keys);
        }
    }
}

/// Replaces the snapshots of some reads with older ones, where history is short: their history is dropped by then.
pub(super) fn read_before_history(random: &mut RandomStream, data: &DataSpec, clients: &mut [ClientProgram]) {
    if data.history.is_zero() {
        return;
    }
    for op in clients.iter_mut().flat_map(|client| &mut client.ops) {
        let (ClientOp::Scan { at, back, .. } | ClientOp::Find { at, back, .. }) = op else { continue };
        if *at == ReadMode::Snapshot && !back.is_zero() && random.percent(40) {
            *back = data.history + rounded(random.span(MS, 4 * SECOND));
        }
    }
}

/// Returns the first key above all written ones.
fn keys_end(clients: &[ClientProgram]) -> u32 {
    let key = |op: &ClientOp| if let ClientOp::Write { key, .. } = op { Some(*key + 1) } else { None };
    clients.iter().flat_map(|client| &client.ops).filter_map(key).max().unwrap_or(1)
}

fn search(random: &mut RandomStream, cluster: &ClusterSpec, keys: u64) -> ClientOp {
    let at = read_mode(random);
    let back = if at == ReadMode::Snapshot && random.percent(50) {
        rounded(random.span(MS, 8 * SECOND))
    } else {
        Duration::ZERO
    };
    let column = random.weighted(&[(0, 1), (1, 2), (2, 2), (3, 2)]);
    let predicates: &[PredicateKind] = match column {
        // The key is never NULL, and a wide range of it is a scan.
        0 => &[PredicateKind::Equal, PredicateKind::Between, PredicateKind::OneOf],
        _ => PredicateKind::ALL,
    };
    ClientOp::Find {
        table: random.below(u64::from(cluster.tables)) as u8,
        column,
        test: random.pick(predicates),
        value: random.below(keys) as u32,
        at,
        back,
        columns: random.pick(&[0b111, 0b111, 0b001, 0b010, 0b100, 0b110]),
        wanted: random.weighted(&[(SearchOutput::Rows, 3), (SearchOutput::Count, 2), (SearchOutput::Few, 1)]),
        from: replica_choice(random),
    }
}
