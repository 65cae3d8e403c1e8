//! Index of rowsets by their key bounds: finds the rowsets that may contain a key.
//!
//! ```text
//!   entries by lowest key     [a─────c] [b──d] [e──f]
//!   reach: highest so far        c         d      f      a search going left stops where reach is too low
//! ```

/// Key ranges, both ends inclusive, each with a number.
#[derive(Debug, Clone, Default)]
pub struct RowSetTree {
    entries: Vec<Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    min: Vec<u8>,
    max: Vec<u8>,
    /// Entry with the greatest `max` among the entries up to this one.
    reach: usize,
    number: usize,
}

impl RowSetTree {
    pub fn new(ranges: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> RowSetTree {
        let numbered = ranges.into_iter().enumerate();
        let mut entries: Vec<Entry> =
            numbered.map(|(number, (min, max))| Entry { min, max, reach: 0, number }).collect();
        entries.sort_by(|a, b| a.min.cmp(&b.min));
        let mut reach = 0;
        for at in 0..entries.len() {
            if entries[at].max > entries[reach].max {
                reach = at;
            }
            entries[at].reach = reach;
        }
        RowSetTree { entries }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the ranges that contain `key`, by their index in the list given to [`RowSetTree::new`].
    pub fn containing<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
        let end = self.entries.partition_point(|entry| entry.min.as_slice() <= key);
        self.entries[..end]
            .iter()
            .rev()
            .take_while(move |entry| self.entries[entry.reach].max.as_slice() >= key)
            .filter(move |entry| entry.max.as_slice() >= key)
            .map(|entry| entry.number)
    }

    /// Returns the ranges that contain a key covered by the most ranges.
    pub fn deepest(&self) -> Vec<usize> {
        let at = |entry: &Entry| self.containing(&entry.min).collect::<Vec<usize>>();
        self.entries.iter().map(at).max_by_key(Vec::len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn containing_agrees_with_a_linear_search(
            ranges in prop::collection::vec((0u8..40, 0u8..12), 0..20),
            key in 0u8..60,
        ) {
            let ranges: Vec<(u8, u8)> = ranges.into_iter().map(|(low, len)| (low, low + len)).collect();
            let tree = RowSetTree::new(ranges.iter().map(|(low, high)| (vec![*low], vec![*high])));
            let mut found: Vec<usize> = tree.containing(&[key]).collect();
            found.sort();
            let contains_key = |(low, high): &(u8, u8)| (*low..=*high).contains(&key);
            let expected: Vec<usize> = (0..ranges.len()).filter(|i| contains_key(&ranges[*i])).collect();
            prop_assert!(tree.deepest().len() >= expected.len());
            prop_assert_eq!(found, expected);
        }
    }
}
