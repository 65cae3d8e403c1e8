//! Tables are whole: each range of a table has one tablet for every combination of its hash buckets, ranges do not
//! overlap, and a range with its own hash exists. A catalog change that was stored in part shows up here; clients
//! would meet it only in the buckets that are missing.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;

/// Name of this oracle.
pub const NAME: &str = "whole tables";

/// Encoded range key, inclusive, and the one after the range; empty: unbounded.
pub type RangeKeys = (Vec<u8>, Vec<u8>);

/// The partitions of a table as masters list them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableLayout {
    pub table: String,
    /// True if the table may have no range at all.
    pub may_be_empty: bool,
    /// Buckets of each hash dimension.
    pub hash: Vec<u32>,
    /// Ranges with hash dimensions of their own.
    pub custom: Vec<(RangeKeys, Vec<u32>)>,
    /// Range and hash buckets of each tablet.
    pub tablets: Vec<(RangeKeys, Vec<u32>)>,
}

/// Reports what is missing from a table or is there twice.
pub fn check(layout: &TableLayout) -> Vec<Violation> {
    let mut by_range: BTreeMap<&RangeKeys, Vec<&[u32]>> = BTreeMap::new();
    for (range, buckets) in &layout.tablets {
        by_range.entry(range).or_default().push(buckets);
    }
    let mut wrong = Vec::new();
    if by_range.is_empty() && !layout.may_be_empty {
        wrong.push("it has no tablet".to_string());
    }
    for (range, tablets) in &by_range {
        wrong.extend(missing(layout, range, tablets));
    }
    for (one, next) in by_range.keys().zip(by_range.keys().skip(1)) {
        if one.1.is_empty() || one.1 > next.0 {
            wrong.push(format!("ranges {one:?} and {next:?} overlap"));
        }
    }
    let lost = layout.custom.iter().filter(|(range, _)| !by_range.contains_key(range));
    wrong.extend(lost.map(|(range, _)| format!("range {range:?} has its own hash and no tablet")));
    let table = &layout.table;
    wrong.into_iter().map(|what| Violation::new(NAME, format!("table {table}: {what}"))).collect()
}

/// Returns the fault of a range whose tablets are not one for each combination of buckets.
fn missing(layout: &TableLayout, range: &RangeKeys, tablets: &[&[u32]]) -> Option<String> {
    let custom = layout.custom.iter().find(|(of, _)| of == range);
    let hash = custom.map_or(&layout.hash, |(_, hash)| hash);
    let wanted: u64 = hash.iter().map(|buckets| u64::from(*buckets)).product();
    let is_of_hash = |tablet: &&&[u32]| {
        tablet.len() == hash.len() && tablet.iter().zip(hash).all(|(bucket, buckets)| bucket < buckets)
    };
    let distinct: BTreeSet<&[u32]> = tablets.iter().filter(is_of_hash).copied().collect();
    let is_whole = distinct.len() as u64 == wanted && tablets.len() as u64 == wanted;
    (!is_whole).then(|| {
        format!(
            "range {range:?} has {} tablets, {} of them right, of {wanted}",
            tablets.len(),
            distinct.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: u8, to: u8) -> RangeKeys {
        (vec![from], vec![to])
    }

    /// A table of two by one buckets, and a range with three.
    fn layout() -> TableLayout {
        let (first, own) = (range(0, 10), range(10, 20));
        TableLayout {
            table: "t".to_string(),
            may_be_empty: false,
            hash: vec![2, 1],
            custom: vec![(own.clone(), vec![3, 1])],
            tablets: vec![
                (first.clone(), vec![0, 0]),
                (first, vec![1, 0]),
                (own.clone(), vec![0, 0]),
                (own.clone(), vec![1, 0]),
                (own, vec![2, 0]),
            ],
        }
    }

    fn found(change: impl FnOnce(&mut TableLayout)) -> usize {
        let mut layout = layout();
        change(&mut layout);
        check(&layout).len()
    }

    #[test]
    fn every_range_has_all_its_buckets_once() {
        assert_eq!(found(|_| {}), 0);
        assert_eq!(found(|layout| drop(layout.tablets.pop())), 1);
        assert_eq!(found(|layout| drop(layout.tablets.remove(0))), 1);
        assert_eq!(found(|layout| layout.tablets.push(layout.tablets[0].clone())), 1);
        assert_eq!(found(|layout| layout.tablets[4].1 = vec![3, 0]), 1, "no such bucket");
        assert_eq!(found(|layout| layout.tablets[4].1 = vec![2]), 1, "a dimension is missing");
    }

    #[test]
    fn ranges_exist_and_do_not_overlap() {
        assert_eq!(found(|layout| layout.tablets.truncate(2)), 1, "the range with its own hash is lost");
        let widen = |layout: &mut TableLayout| {
            layout.tablets.iter_mut().take(2).for_each(|(range, _)| range.1 = vec![11]);
        };
        assert_eq!(found(widen), 1);
        let none = |layout: &mut TableLayout| (layout.tablets, layout.custom) = (Vec::new(), Vec::new());
        assert_eq!(found(none), 1);
        let allowed = |layout: &mut TableLayout| {
            none(layout);
            layout.may_be_empty = true;
        };
        assert_eq!(found(allowed), 0);
    }
}
