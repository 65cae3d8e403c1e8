//! Splitting a tablet's keys into ranges of about equal size, for parallel readers.
//!
//! ```text
//!   first keys of pages    a ── d ── g ── k ── n ── s      each with the bytes up to the next
//!   ranges                 [ ..  g )[ g .. n )[ n .. ]     end at the first key after enough bytes
//! ```
//!
//! Invariant: the ranges cover the requested keys once, in order. However many pages a tablet has and however small the
//! requested size is, the memory of the keys, the number of ranges and the bytes of their bounds are limited.

use super::Tablet;
use crate::error::Result;
use crate::ids::ColumnId;

/// Most ranges of a split.
const RANGES_MAX: u64 = 4096;
/// Most bytes of the keys among which a split chooses. The bounds of its ranges have at most twice as many.
const SAMPLE_BYTES_MAX: usize = 4 << 20;

/// A range of a tablet's rows: encoded keys from `lower` (inclusive) to `upper` (exclusive).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    pub lower: Option<Vec<u8>>,
    pub upper: Option<Vec<u8>>,
    /// Estimated bytes on disk that a scan of the range reads.
    pub bytes: u64,
}

impl Tablet {
    /// Returns ranges of about `target_bytes` each that together cover `lower..upper`, larger ones if they would be
    /// more than 4,096. Sizes count the given columns, or all columns if none is given. Rows in memory are not counted.
    pub fn split_key_range(
        &self,
        lower: Option<&[u8]>,
        upper: Option<&[u8]>,
        columns: &[ColumnId],
        target_bytes: u64,
    ) -> Result<Vec<KeyRange>> {
        let is_within =
            |key: &[u8]| lower.is_none_or(|lower| key >= lower) && upper.is_none_or(|upper| key < upper);
        let mut samples = KeySamples::default();
        for rowset in &self.state().disk {
            rowset.visit_key_samples(columns, |key, bytes| {
                if is_within(&key) {
                    samples.add(key, bytes);
                }
            })?;
        }
        Ok(samples.split(lower, upper, target_bytes))
    }
}

/// Keys at which a tablet may be split, each with the bytes of the rows from it on.
#[derive(Default)]
struct KeySamples {
    samples: Vec<(Vec<u8>, u64)>,
    /// Bytes of memory of the samples.
    allocated: usize,
}

impl KeySamples {
    /// Adds a key, and drops others while all have too many bytes.
    fn add(&mut self, key: Vec<u8>, bytes: u64) {
        self.allocated += sample_bytes(&key);
        self.samples.push((key, bytes));
        while self.allocated > SAMPLE_BYTES_MAX && self.samples.len() > 1 {
            self.drop_every_other();
        }
    }

    /// Drops every other sample in the order of keys, and adds its bytes to those of the one before.
    fn drop_every_other(&mut self) {
        let mut samples = std::mem::take(&mut self.samples);
        samples.sort();
        let mut samples = samples.into_iter();
        while let Some((key, bytes)) = samples.next() {
            let dropped = samples.next().map_or(0, |(_, bytes)| bytes);
            self.samples.push((key, bytes + dropped));
        }
        self.allocated = self.samples.iter().map(|(key, _)| sample_bytes(key)).sum();
    }

    /// Returns ranges of about `target_bytes` each that together cover `lower..upper`.
    fn split(mut self, lower: Option<&[u8]>, upper: Option<&[u8]>, target_bytes: u64) -> Vec<KeyRange> {
        self.samples.sort();
        let total: u64 = self.samples.iter().map(|(_, bytes)| bytes).sum();
        // Each range but the last has the target or more.
        let target_bytes = target_bytes.max(total.div_ceil(RANGES_MAX - 1)).max(1);
        let mut ranges = Vec::new();
        let mut range = KeyRange { lower: lower.map(<[u8]>::to_vec), upper: None, bytes: 0 };
        for (key, bytes) in self.samples {
            // An empty upper bound means no bound. The key of an empty text is in the first range.
            let may_split = !key.is_empty() && range.lower.as_ref().is_none_or(|lower| *lower < key);
            if may_split && range.bytes >= target_bytes {
                range.upper = Some(key.clone());
                ranges.push(std::mem::replace(
                    &mut range,
                    KeyRange { lower: Some(key), upper: None, bytes: 0 },
                ));
            }
            range.bytes += bytes;
        }
        range.upper = upper.map(<[u8]>::to_vec);
        ranges.push(range);
        ranges
    }
}

/// Returns the bytes of memory of a sample.
fn sample_bytes(key: &Vec<u8>) -> usize {
    size_of::<(Vec<u8>, u64)>() + key.capacity()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the key of a number: 100 bytes in the order of the numbers.
    fn key(number: u32) -> Vec<u8> {
        let mut key = Vec::with_capacity(100);
        key.extend_from_slice(&[b'k'; 96]);
        key.extend_from_slice(&number.to_be_bytes());
        key
    }

    /// Checks that ranges cover `lower..upper` in order and without gaps, and have these bytes in total.
    fn check(ranges: &[KeyRange], lower: Option<&[u8]>, upper: Option<&[u8]>, bytes: u64) {
        assert_eq!(ranges[0].lower.as_deref(), lower);
        assert_eq!(ranges[ranges.len() - 1].upper.as_deref(), upper);
        for (range, next) in ranges.iter().zip(&ranges[1..]) {
            assert!(range.upper.is_some() && range.upper == next.lower);
        }
        for range in ranges {
            assert!(range.upper.is_none() || range.lower < range.upper, "{range:?}");
        }
        assert_eq!(ranges.iter().map(|range| range.bytes).sum::<u64>(), bytes);
    }

    #[test]
    fn ranges_end_after_the_requested_bytes() {
        let samples = || {
            let mut samples = KeySamples::default();
            [5, 1, 4, 2, 3, 0].into_iter().for_each(|number| samples.add(key(number), 10));
            samples
        };
        let whole = samples().split(None, None, u64::MAX);
        check(&whole, None, None, 60);
        assert_eq!(whole.len(), 1);
        let thirds = samples().split(None, Some(&key(9)), 20);
        check(&thirds, None, Some(&key(9)), 60);
        let lower: Vec<_> = thirds.iter().map(|range| range.lower.clone()).collect();
        assert_eq!(lower, [None, Some(key(2)), Some(key(4))]);
        let each = samples().split(Some(&key(0)), None, 0);
        check(&each, Some(&key(0)), None, 60);
        assert_eq!(each.len(), 6);
        check(&KeySamples::default().split(Some(&key(1)), Some(&key(2)), 0), Some(&key(1)), Some(&key(2)), 0);
    }

    #[test]
    fn the_number_of_ranges_is_limited() {
        for (keys, bytes) in [(RANGES_MAX, 1), (RANGES_MAX + 1, 1), (20_000, 7)] {
            let mut samples = KeySamples::default();
            (0..keys).for_each(|number| samples.add(key(number as u32), bytes));
            let ranges = samples.split(None, None, 1);
            check(&ranges, None, None, keys * bytes);
            assert!((RANGES_MAX / 2..=RANGES_MAX).contains(&(ranges.len() as u64)), "{}", ranges.len());
        }
    }

    #[test]
    fn the_bytes_of_samples_are_limited() {
        const ROWSETS: u32 = 10;
        const PAGES: u32 = 20_000;
        let mut samples = KeySamples::default();
        // 20 MB of keys, of rowsets that overlap.
        for rowset in 0..ROWSETS {
            for page in 0..PAGES {
                samples.add(key(page * ROWSETS + rowset), 100);
                assert!(samples.allocated <= SAMPLE_BYTES_MAX);
            }
        }
        assert!(samples.allocated > SAMPLE_BYTES_MAX / 4, "{} bytes", samples.allocated);
        let total = u64::from(ROWSETS * PAGES) * 100;
        let ranges = samples.split(None, None, total / 100);
        check(&ranges, None, None, total);
        assert!((90..=101).contains(&ranges.len()), "{}", ranges.len());
        for range in &ranges[..ranges.len() - 1] {
            assert!(range.bytes < total / 80, "{} bytes", range.bytes);
        }
    }

    #[test]
    fn a_key_longer_than_all_samples_may_be_stays_alone() {
        let mut samples = KeySamples::default();
        for first in [b'a', b'c', b'b'] {
            samples.add(vec![first; SAMPLE_BYTES_MAX], 10);
            assert_eq!(samples.samples.len(), 1);
        }
        check(&samples.split(None, None, 1), None, None, 30);
    }
}
