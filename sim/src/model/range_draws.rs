//! Draws of ranges of a table that other ranges come in place of.
//!
//! ```text
//! ranges   ├── a ──┤├── b ──┤          ├── c ────►
//! free                        ├────────┤
//! replaced           ├── d ──────────┤             b dropped, d added: what clients remember of b overlaps with d
//! ```

use sim_plan::RandomStream;
use sim_plan::tables::{ModelTable, RangeSpec, Value, draw};

use crate::wire::keys::range_key;

/// Most ranges of a table.
const RANGES_MAX: usize = 5;
/// Percentage of bounds that a range of the table once had.
const OLD_PERCENT: u64 = 40;
/// Percentage of bounds on two columns, if there are.
const TWO_COLUMNS_PERCENT: u64 = 30;
/// Percentage of ranges with hash levels of their own.
const OWN_HASH_PERCENT: u64 = 20;
/// Times that a bound is drawn until one is within a span.
const TRIES: usize = 6;

/// A bound of the values of range columns; empty: none.
type Bound = Vec<Value>;

/// Two ranges have the same bounds if their keys are equal, however many columns they name.
pub(super) fn same_bounds(table: &ModelTable, one: &RangeSpec, other: &RangeSpec) -> bool {
    let key = |bound: &Bound| (!bound.is_empty()).then(|| range_key(table, bound));
    (key(&one.low), key(&one.high)) == (key(&other.low), key(&other.high))
}

/// Returns the table's ranges in their order.
pub(super) fn in_order(table: &ModelTable) -> Vec<RangeSpec> {
    let mut ranges = table.ranges.clone();
    let key = |range: &RangeSpec| (!range.low.is_empty()).then(|| range_key(table, &range.low));
    ranges.sort_by_key(key);
    ranges
}

/// Returns true if a bound is above the first one and below the second one.
fn is_between(table: &ModelTable, bound: &Bound, (low, high): (&Bound, &Bound)) -> bool {
    let key = range_key(table, bound);
    (low.is_empty() || range_key(table, low) < key) && (high.is_empty() || key < range_key(table, high))
}

/// Returns the spans of keys that no range has.
fn free_spans(table: &ModelTable) -> Vec<(Bound, Bound)> {
    let ranges = in_order(table);
    let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
        return vec![(Vec::new(), Vec::new())];
    };
    let mut spans = Vec::new();
    spans.extend((!first.low.is_empty()).then(|| (Vec::new(), first.low.clone())));
    for pair in ranges.windows(2) {
        let is_gap = range_key(table, &pair[0].high) < range_key(table, &pair[1].low);
        spans.extend(is_gap.then(|| (pair[0].high.clone(), pair[1].low.clone())));
    }
    spans.extend((!last.high.is_empty()).then(|| (last.high.clone(), Vec::new())));
    spans
}

/// Draws a bound; `ever`: ranges that the table had.
fn bound(random: &mut RandomStream, table: &ModelTable, ever: &[RangeSpec]) -> Option<Bound> {
    let old = random.percent(OLD_PERCENT);
    let bounds: Vec<&Bound> = ever.iter().flat_map(|range| [&range.low, &range.high]).collect();
    if old && !bounds.is_empty() {
        let bound = bounds[random.below(bounds.len() as u64) as usize].clone();
        return Some(bound).filter(|bound| !bound.is_empty());
    }
    let two = random.percent(TWO_COLUMNS_PERCENT);
    let columns = table.spec.range.iter().take(if two { 2 } else { 1 });
    let kinds = columns.map(|number| table.column(*number).map(|column| column.kind));
    let drawn: Bound = kinds.map(|kind| Some(draw::value(random, kind?))).collect::<Option<_>>()?;
    // The encoded key of the empty text is that of no bound.
    (drawn.first()? != &Value::bytes(b"")).then_some(drawn)
}

/// Draws bounds within a span, in order, its own ends among them.
fn points(
    random: &mut RandomStream,
    table: &ModelTable,
    (low, high): (&Bound, &Bound),
    ever: &[RangeSpec],
) -> Vec<Bound> {
    let wanted = random.pick(&[0, 1, 1, 2, 3]);
    let drawn = (0..TRIES).filter_map(|_| bound(random, table, ever));
    let mut within: Vec<Bound> = drawn.filter(|bound| is_between(table, bound, (low, high))).collect();
    within.truncate(wanted);
    within.sort_by_key(|bound| range_key(table, bound));
    within.dedup_by_key(|bound| range_key(table, bound));
    [low.clone()].into_iter().chain(within).chain([high.clone()]).collect()
}

/// Draws one or two ranges next to each other within a span.
fn ranges_within(
    random: &mut RandomStream,
    table: &ModelTable,
    span: (&Bound, &Bound),
    ever: &[RangeSpec],
) -> Vec<RangeSpec> {
    let points = points(random, table, span, ever);
    let count = (random.between(1, 2) as usize).min(points.len() - 1);
    let first = random.below((points.len() - count) as u64) as usize;
    let range = |random: &mut RandomStream, low: &Bound, high: &Bound| {
        let own = random.percent(OWN_HASH_PERCENT);
        RangeSpec {
            table: table.spec.number,
            low: low.clone(),
            high: high.clone(),
            hash: if own { draw::own_levels(table) } else { Vec::new() },
        }
    };
    points[first..=first + count].windows(2).map(|pair| range(random, &pair[0], &pair[1])).collect()
}

/// Draws ranges to add where there are none. `None` if there is no place.
pub(super) fn added(
    random: &mut RandomStream,
    table: &ModelTable,
    ever: &[RangeSpec],
) -> Option<Vec<RangeSpec>> {
    if table.spec.range.is_empty() || table.ranges.len() >= RANGES_MAX {
        return None;
    }
    let spans = free_spans(table);
    let (low, high) = spans.get(random.below(spans.len() as u64) as usize)?;
    Some(ranges_within(random, table, (low, high), ever))
}

/// Draws one or two ranges to drop, and others in their place, which overlap them and are not the same.
pub(super) fn replaced(
    random: &mut RandomStream,
    table: &ModelTable,
    ever: &[RangeSpec],
) -> Option<(Vec<RangeSpec>, Vec<RangeSpec>)> {
    let ranges = in_order(table);
    let count = (random.between(1, 2) as usize).min(ranges.len());
    let first = random.below((ranges.len() - count + 1) as u64) as usize;
    let dropped = ranges.get(first..first + count).filter(|dropped| !dropped.is_empty())?.to_vec();
    let mut left = table.clone();
    left.ranges.retain(|range| !dropped.contains(range));
    let (low, high) = free_spans(&left).into_iter().find(|(low, high)| {
        low.is_empty()
            || !dropped[0].low.is_empty() && {
                let key = range_key(table, &dropped[0].low);
                range_key(table, low) <= key && (high.is_empty() || key < range_key(table, high))
            }
    })?;
    let added = ranges_within(random, &left, (&low, &high), ever);
    let is_back = |range: &RangeSpec| dropped.iter().any(|old| same_bounds(table, range, old));
    (!added.iter().any(is_back)).then_some((dropped, added))
}

/// Draws bounds that no range of the table has and that are like those of its ranges: one of them with another bound
/// on one side, or the ends of several.
pub(super) fn missing(
    random: &mut RandomStream,
    table: &ModelTable,
    ever: &[RangeSpec],
) -> Option<RangeSpec> {
    let ranges = in_order(table);
    let at = random.below(ranges.len().max(1) as u64) as usize;
    let mut range = RangeSpec { hash: Vec::new(), ..ranges.get(at)?.clone() };
    match random.below(5) {
        0 => range.low = Vec::new(),
        1 => range.high = Vec::new(),
        2 => range.high.clone_from(&ranges.last()?.high),
        3 => range.low.clone_from(&ranges.first()?.low),
        _ => {
            let span = (&range.low, &range.high);
            let drawn = (0..TRIES).filter_map(|_| bound(random, table, ever));
            let within = drawn.collect::<Vec<_>>().into_iter().find(|at| is_between(table, at, span))?;
            let side = if random.percent(50) { &mut range.low } else { &mut range.high };
            *side = within;
        }
    }
    (!ranges.iter().any(|other| same_bounds(table, &range, other))).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables() -> impl Iterator<Item = (ModelTable, RandomStream)> {
        (0..600).map(|seed| {
            let mut random = RandomStream::new(seed, "test");
            let table = draw::table(&mut random, 0);
            (table, random)
        })
    }

    fn assert_disjoint(table: &ModelTable) {
        for pair in in_order(table).windows(2) {
            let (high, low) = (&pair[0].high, &pair[1].low);
            assert!(!high.is_empty() && !low.is_empty(), "{table:?}");
            assert!(range_key(table, high) <= range_key(table, low), "{table:?}");
        }
    }

    #[test]
    fn added_ranges_are_where_there_were_none() {
        let (mut one, mut two) = (0, 0);
        for (mut table, mut random) in tables() {
            let ever = table.ranges.clone();
            if table.ranges.len() > 1 {
                table.ranges.remove(random.below(table.ranges.len() as u64) as usize);
            }
            let Some(added) = added(&mut random, &table, &ever) else { continue };
            (one, two) = (one + usize::from(added.len() == 1), two + usize::from(added.len() == 2));
            table.ranges.extend(added);
            assert_disjoint(&table);
        }
        assert!(one > 50 && two > 10, "{one} {two}");
    }

    #[test]
    fn ranges_come_in_place_of_others_that_they_overlap() {
        let mut kinds = std::collections::BTreeSet::new();
        for (mut table, mut random) in tables() {
            let ever = table.ranges.clone();
            let Some((dropped, added)) = replaced(&mut random, &table, &ever) else { continue };
            kinds.insert((dropped.len(), added.len()));
            table.ranges.retain(|range| !dropped.contains(range));
            table.ranges.extend(added);
            assert_disjoint(&table);
        }
        assert_eq!(kinds.len(), 4, "one or two in place of one or two: {kinds:?}");
    }

    #[test]
    fn missing_ranges_share_a_bound_with_one_that_there_is() {
        let mut found = 0;
        for (table, mut random) in tables() {
            let Some(missing) = missing(&mut random, &table, &table.ranges) else { continue };
            assert!(!table.ranges.iter().any(|range| same_bounds(&table, range, &missing)));
            let shares = |range: &RangeSpec| range.low == missing.low || range.high == missing.high;
            found += usize::from(table.ranges.iter().any(shares));
        }
        assert!(found > 100, "{found}");
    }
}
