//! O6: what was acknowledged is there in the end.
//!
//! After all faults every row is read once more. The row must be what its last acknowledged write made it, or what
//! a write of unknown outcome, or one not ordered with it, made it later.
//!
//! [`super::versions`] would notice too. This judge is far simpler, looks at the last read alone, and says plainly
//! what was lost.

use std::collections::BTreeMap;

use super::row::{self, State};
use super::touch::{RowKey, Touch, What};
use super::{Finding, Report};
use crate::history::{Mode, RowOutcome, Stamp};

const NAME: &str = "durability";

/// Checks every row that was read last by a snapshot or fresh read.
pub fn check(rows: &BTreeMap<RowKey, Vec<Touch>>, report: &mut Report) {
    for (key, touches) in rows {
        let Some((read, at, seen)) = last_read(touches) else { continue };
        let acknowledged = last_acknowledged(touches, at);
        let Some((write, written)) = acknowledged else { continue };
        report.checked += 1;
        let later = |touch: &&Touch| touch.what.is_unknown_write();
        if written == *seen || touches.iter().any(|touch| later(&touch) && may_explain(touch, seen)) {
            continue;
        }
        let what = format!(
            "read {} at the end, but the last acknowledged write (op {}) left {}",
            row::show(seen),
            write.operation,
            row::show(&written)
        );
        report.add(Finding::of_row(NAME, *key, &what, touches, read.operation));
    }
}

/// The last read that had to see everything acknowledged before it was called.
fn last_read<'a>(touches: &'a [Touch<'a>]) -> Option<(&'a Touch<'a>, Stamp, &'a State)> {
    let mut reads = touches.iter().rev().filter_map(|touch| match &touch.what {
        What::Read { mode: Mode::Snapshot, at: Some(at), state, view } if view.is_whole() => {
            Some((touch, *at, *state))
        }
        _ => None,
    });
    reads.next()
}

/// The acknowledged write with the greatest timestamp below `at`, and what it left; nothing where that depends on
/// what was there before.
fn last_acknowledged<'a>(touches: &'a [Touch<'a>], at: Stamp) -> Option<(&'a Touch<'a>, State)> {
    let answered = touches.iter().filter_map(|touch| match &touch.what {
        What::Write { row, answer: Some((when, RowOutcome::Done)) } if *when < at => {
            Some(((*when, touch.operation, touch.order), touch, row))
        }
        _ => None,
    });
    let (_, touch, op) = answered.max_by_key(|(order, ..)| *order)?;
    let given = op.cells.iter().all(Option::is_some);
    use crate::history::RowOpKind::*;
    match op.kind {
        Insert => Some((touch, row::apply(&None, op).change?)),
        Upsert | Update if given => {
            let before = Some(vec![None; op.cells.len()]);
            Some((touch, row::apply(&before, op).change?))
        }
        Delete | DeleteIgnore => Some((touch, None)),
        _ => None,
    }
}

/// Whether a write of unknown outcome can be why this was read.
fn may_explain(touch: &Touch, seen: &State) -> bool {
    let What::Write { row, .. } = &touch.what else { return false };
    use crate::history::RowOpKind::*;
    match (row.kind, seen) {
        (Delete | DeleteIgnore, seen) => seen.is_none(),
        (_, None) => false,
        (_, Some(seen)) => {
            row.cells.iter().zip(seen).all(|(cell, seen)| cell.is_none_or(|cell| cell == *seen))
        }
    }
}
