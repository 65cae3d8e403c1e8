//! Splitting a tablet's keys into ranges of about equal size, for parallel readers.

use super::Tablet;
use crate::error::Result;
use crate::ids::ColumnId;

/// A range of a tablet's rows: encoded keys from `lower` (inclusive) to `upper` (exclusive).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    pub lower: Option<Vec<u8>>,
    pub upper: Option<Vec<u8>>,
    /// Estimated bytes on disk that a scan of the range reads.
    pub bytes: u64,
}

impl Tablet {
    /// Returns ranges of about `target_bytes` each that together cover `lower..upper`. Sizes count the given columns,
    /// or all columns if none is given. Rows in memory are not counted.
    pub fn split_key_range(
        &self,
        lower: Option<&[u8]>,
        upper: Option<&[u8]>,
        columns: &[ColumnId],
        target_bytes: u64,
    ) -> Result<Vec<KeyRange>> {
        let mut samples: Vec<(Vec<u8>, u64)> = Vec::new();
        for rowset in &self.state().disk {
            let keys = rowset.key_samples()?;
            let each = rowset.bytes_of(columns) / keys.len().max(1) as u64;
            samples.extend(keys.into_iter().map(|key| (key, each)));
        }
        samples.retain(|(key, _)| {
            lower.is_none_or(|lower| key.as_slice() >= lower)
                && upper.is_none_or(|upper| key.as_slice() < upper)
        });
        samples.sort();
        let mut ranges = Vec::new();
        let mut range = KeyRange { lower: lower.map(<[u8]>::to_vec), upper: None, bytes: 0 };
        for (key, bytes) in samples {
            // An empty upper bound means no bound. The key of an empty text is in the first range.
            let may_split = !key.is_empty() && range.lower.as_ref().is_none_or(|lower| *lower < key);
            if may_split && range.bytes >= target_bytes.max(1) {
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
        Ok(ranges)
    }
}
