//! Lookups of tablets agree in a quiet cluster: masters locate a tablet by its id as in the list of its table, and a
//! list in parts has the tablets of the whole list.
//!
//! A part begins with the last tablet that starts at or before its first key, even if that ends before it: clients take
//! keys before the first tablet of a reply for keys without a tablet.

use std::collections::BTreeMap;

use super::Violation;

/// Name of this oracle.
pub const NAME: &str = "table lookups";
/// Id that no tablet has.
pub const NO_TABLET: &str = "ffffffffffffffffffffffffffffffff";

/// A tablet as masters locate it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SoughtTablet {
    pub id: String,
    /// Partition keys: the first one, and the one after the last; empty: unbounded.
    pub start: Vec<u8>,
    pub end: Vec<u8>,
    /// The whole partition, as text.
    pub partition: String,
    /// Roles and addresses of its replicas, as text, by the ids of their servers.
    pub replicas: BTreeMap<String, String>,
    /// True if masters say that the location is old, which they never do.
    pub is_stale: bool,
}

/// A part of a table's list that was asked for, and the tablets that were told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LookupPage {
    /// Partition keys of the request; empty: unbounded.
    pub start: Vec<u8>,
    pub end: Vec<u8>,
    /// Most tablets of the reply.
    pub max: Option<u32>,
    pub told: Vec<String>,
}

/// Lookups of one table's tablets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableLookups {
    pub table: String,
    pub whole: Vec<SoughtTablet>,
    /// Tablets that masters tell for the ids of the whole list, some of them twice or in upper case, and for
    /// [`NO_TABLET`], and the ids that they do not know.
    pub by_id: Vec<SoughtTablet>,
    pub unknown: Vec<String>,
    pub pages: Vec<LookupPage>,
}

/// Reports lookups of a table that do not agree.
pub fn check(lookups: &TableLookups) -> Vec<Violation> {
    let TableLookups { table, whole, .. } = lookups;
    let mut wrong = Vec::new();
    if whole.windows(2).any(|pair| pair[0].start >= pair[1].start) {
        wrong.push(format!("its tablets are not in order: {whole:?}"));
    }
    let stale = whole.iter().find(|tablet| tablet.is_stale);
    wrong.extend(stale.map(|tablet| format!("masters call a location old: {tablet:?}")));
    wrong.extend(id_faults(lookups));
    wrong.extend(lookups.pages.iter().filter_map(|page| page_fault(whole, page)));
    wrong.into_iter().map(|what| Violation::new(NAME, format!("table {table}: {what}"))).collect()
}

/// Returns the differences between lookups by id and the whole list.
fn id_faults(lookups: &TableLookups) -> Vec<String> {
    let TableLookups { whole, by_id, unknown, .. } = lookups;
    let mut wrong = Vec::new();
    for tablet in whole {
        let told: Vec<&SoughtTablet> = by_id.iter().filter(|told| told.id == tablet.id).collect();
        if told != [tablet] {
            wrong.push(format!("it has {tablet:?}, and by its id masters locate {told:?}"));
        }
    }
    if by_id.len() > whole.len() {
        wrong.push(format!("it has {} tablets, and by their ids masters locate {by_id:?}", whole.len()));
    }
    if *unknown != [NO_TABLET] {
        wrong.push(format!("masters do not know the ids {unknown:?}, and {NO_TABLET} alone has no tablet"));
    }
    wrong
}

fn page_fault(whole: &[SoughtTablet], page: &LookupPage) -> Option<String> {
    let wanted = tablets_of(whole, page);
    (page.told != wanted).then(|| format!("a part of its list has not the tablets {wanted:?}: {page:02x?}"))
}

/// Returns the tablets of a part of the whole list.
fn tablets_of<'a>(whole: &'a [SoughtTablet], page: &LookupPage) -> Vec<&'a str> {
    let first = whole.iter().rposition(|tablet| tablet.start <= page.start).unwrap_or(0);
    let is_before_end = |tablet: &&SoughtTablet| page.end.is_empty() || tablet.start <= page.end;
    let most = page.max.map_or(usize::MAX, |max| max as usize);
    whole[first..].iter().take_while(is_before_end).take(most).map(|tablet| tablet.id.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tablet(id: &str, start: u8, end: u8) -> SoughtTablet {
        let replicas = BTreeMap::from([("s".to_string(), "leader at t0:1".to_string())]);
        let (id, partition) = (id.to_string(), format!("{start} to {end}"));
        SoughtTablet { id, start: vec![start], end: vec![end], partition, replicas, is_stale: false }
    }

    fn page(start: &[u8], end: &[u8], max: Option<u32>, told: &[&str]) -> LookupPage {
        let told = told.iter().map(|id| id.to_string()).collect();
        LookupPage { start: start.to_vec(), end: end.to_vec(), max, told }
    }

    /// A table with a gap between its second and its third tablet.
    fn found(change: impl FnOnce(&mut TableLookups)) -> usize {
        let whole = vec![tablet("a", 2, 4), tablet("b", 4, 6), tablet("c", 8, 9)];
        let mut lookups = TableLookups {
            table: "t".to_string(),
            by_id: whole.iter().rev().cloned().collect(),
            whole,
            unknown: vec![NO_TABLET.to_string()],
            pages: Vec::new(),
        };
        change(&mut lookups);
        check(&lookups).len()
    }

    #[test]
    fn lookups_by_id_agree_with_the_list() {
        assert_eq!(found(|_| {}), 0);
        assert_eq!(found(|lookups| drop(lookups.by_id.pop())), 1);
        assert_eq!(found(|lookups| lookups.by_id.push(tablet("d", 9, 10))), 1);
        assert_eq!(found(|lookups| lookups.by_id[0].replicas.clear()), 1);
        assert_eq!(found(|lookups| lookups.by_id[0].partition.clear()), 1);
        assert_eq!(found(|lookups| lookups.unknown.clear()), 1);
        assert_eq!(found(|lookups| lookups.unknown.push("a".to_string())), 1);
        assert_eq!(found(|lookups| lookups.by_id.push(lookups.by_id[0].clone())), 2, "an id was told twice");
        assert_eq!(found(|lookups| lookups.by_id[0].is_stale = true), 1);
        assert_eq!(found(|lookups| lookups.whole.swap(0, 1)), 1);
        let stale =
            |tablets: &mut Vec<SoughtTablet>| tablets.iter_mut().for_each(|told| told.is_stale = true);
        assert_eq!(found(|lookups| [&mut lookups.whole, &mut lookups.by_id].into_iter().for_each(stale)), 1);
    }

    #[test]
    fn parts_of_the_list_have_its_tablets() {
        let with = |page: LookupPage| found(|lookups| lookups.pages.push(page));
        let right = [
            page(&[], &[], Some(2), &["a", "b"]),
            page(&[6], &[], Some(2), &["b", "c"]),
            page(&[9], &[], Some(2), &["c"]),
            page(&[4], &[4], None, &["b"]),
            page(&[], &[], None, &["a", "b", "c"]),
        ];
        assert_eq!(right.map(with), [0; 5]);
        let wrong = [
            page(&[], &[], Some(2), &["a", "b", "c"]),
            page(&[4], &[], Some(2), &["a", "b"]),
            page(&[6], &[], Some(2), &["c"]),
            page(&[4], &[4], None, &["b", "c"]),
            page(&[], &[], Some(2), &["b", "a"]),
        ];
        assert_eq!(wrong.map(with), [1; 5]);
    }
}
