//! What was added to plans later: each draws from a stream of its own, so that what else a seed draws stays as it was.

use std::time::Duration;

use super::generate::{Size, read_at, replicas, rounded};
use super::ops::{ClientProgram, Op, ReadAt, TestKind, Wanted};
use super::{Cluster, Data};
use crate::draw::Draw;

const SECOND: Duration = Duration::from_secs(1);
/// Clients below this number have ranges for themselves, if any has.
const RANGE_OWNERS: u8 = 2;

/// How tables are laid out, and how long they remember.
pub fn data(draw: &mut Draw) -> Data {
    let encodings = if draw.percent(60) { draw.between(1, 1_000_000) as u32 } else { 0 };
    let few = draw.percent(50);
    let history = if draw.percent(25) { draw.pick(&[3, 5, 10]) * SECOND } else { Duration::ZERO };
    Data { encodings, few, history }
}

/// Columns and ranges that clients have for themselves in some plans, in the place of other ops.
pub fn owned(draw: &mut Draw, cluster: &Cluster, clients: &mut [ClientProgram], size: Size) {
    // What figures are measured with has so many tablets and no more.
    let (columns, ranges) = (draw.percent(30), draw.percent(20) && size != Size::Bench);
    let one_in = draw.pick(&[6, 12, 30]);
    if !columns && !ranges {
        return;
    }
    for client in clients {
        // Each range is some tablets more: two clients make enough of them.
        let ranges = ranges && client.setup.number < RANGE_OWNERS;
        for op in client.ops.iter_mut().filter(|op| **op != Op::Flush {}) {
            let (table, step) = (draw.below(u64::from(cluster.tables)) as u8, draw.below(200) as u8);
            let of_columns = columns && (!ranges || draw.percent(60));
            if draw.below(one_in) > 0 || !of_columns && !ranges {
                continue;
            }
            *op = if of_columns { Op::OwnColumn { table, step } } else { Op::OwnRange { table, step } };
        }
    }
}

/// Searches in most plans, in the place of other ops.
pub fn searches(draw: &mut Draw, cluster: &Cluster, clients: &mut [ClientProgram]) {
    if draw.percent(30) {
        return;
    }
    let one_in = draw.pick(&[8, 20, 60]);
    let keys = draw.pick(&[16, 100, 2_000]);
    let ops = clients.iter_mut().flat_map(|client| &mut client.ops).filter(|op| **op != Op::Flush {});
    for op in ops {
        if draw.below(one_in) == 0 {
            *op = search(draw, cluster, keys);
        }
    }
}

fn search(draw: &mut Draw, cluster: &Cluster, keys: u64) -> Op {
    let at = read_at(draw);
    let back = if at == ReadAt::Snapshot && draw.percent(50) {
        rounded(draw.span(Duration::from_millis(1), 8 * SECOND))
    } else {
        Duration::ZERO
    };
    let column = draw.weighted(&[(0, 1), (1, 2), (2, 2), (3, 2)]);
    let tests: &[TestKind] = match column {
        // The key is never NULL, and a wide range of it is a scan.
        0 => &[TestKind::Equal, TestKind::Between, TestKind::OneOf],
        _ => TestKind::ALL,
    };
    Op::Find {
        table: draw.below(u64::from(cluster.tables)) as u8,
        column,
        test: draw.pick(tests),
        value: draw.below(keys) as u32,
        at,
        back,
        columns: draw.pick(&[0b111, 0b111, 0b001, 0b010, 0b100, 0b110]),
        wanted: draw.weighted(&[(Wanted::Rows, 3), (Wanted::Count, 2), (Wanted::Few, 1)]),
        from: replicas(draw),
    }
}
