//! Distribution of values: counts in buckets whose width is at most 1/32 of their values.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets per power of two.
const STEPS: u64 = 32;
const STEP_BITS: u32 = STEPS.trailing_zeros();
/// Largest value with a bucket of its own: an hour in microseconds. Greater ones are counted there.
const VALUE_MAX: u64 = (1 << 32) - 1;
const BUCKETS: usize = ((32 - STEP_BITS + 1) as u64 * STEPS) as usize;

/// Distribution of values since its creation. It takes memory from the first value on (7 KB).
#[derive(Debug, Default)]
pub struct Histogram {
    cells: OnceLock<Box<Cells>>,
}

#[derive(Debug)]
struct Cells {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
    least: AtomicU64,
    most: AtomicU64,
    last: AtomicU64,
}

impl Cells {
    fn new() -> Box<Cells> {
        Box::new(Cells {
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            sum: AtomicU64::new(0),
            least: AtomicU64::new(u64::MAX),
            most: AtomicU64::new(0),
            last: AtomicU64::new(0),
        })
    }
}

impl Histogram {
    /// Counts a value.
    pub fn record(&self, value: u64) {
        let cells = self.cells.get_or_init(Cells::new);
        cells.buckets[bucket(value)].fetch_add(1, Ordering::Relaxed);
        cells.sum.fetch_add(value, Ordering::Relaxed);
        cells.last.store(value, Ordering::Relaxed);
        if value < cells.least.load(Ordering::Relaxed) {
            cells.least.fetch_min(value, Ordering::Relaxed);
        }
        if value > cells.most.load(Ordering::Relaxed) {
            cells.most.fetch_max(value, Ordering::Relaxed);
        }
    }

    /// Counts a duration in microseconds.
    pub fn record_micros(&self, time: Duration) {
        self.record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// Counts a duration in milliseconds.
    pub fn record_millis(&self, time: Duration) {
        self.record(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    }

    pub fn snapshot(&self) -> HistogramSnapshot {
        let Some(cells) = self.cells.get() else { return HistogramSnapshot::default() };
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let buckets = cells.buckets.iter().enumerate().map(|(at, count)| (value_of(at), load(count)));
        let buckets: Vec<(u64, u64)> = buckets.filter(|(_, count)| *count > 0).collect();
        let (sum, least, most, last) =
            (load(&cells.sum), load(&cells.least), load(&cells.most), load(&cells.last));
        HistogramSnapshot { buckets, sum, least, most, last }
    }
}

fn bucket(value: u64) -> usize {
    let value = value.min(VALUE_MAX);
    if value < STEPS {
        return value as usize;
    }
    let shift = value.ilog2() - STEP_BITS;
    (u64::from(shift + 1) * STEPS + (value >> shift) - STEPS) as usize
}

/// Returns the least value of a bucket.
fn value_of(bucket: usize) -> u64 {
    let (step, shift) = (bucket as u64 % STEPS, bucket as u64 / STEPS);
    if shift == 0 { step } else { (STEPS + step) << (shift - 1) }
}

/// Values of a [`Histogram`] at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Least value and count of each bucket that has a value, ascending.
    pub buckets: Vec<(u64, u64)>,
    pub sum: u64,
    pub least: u64,
    pub most: u64,
    /// The last value.
    pub last: u64,
}

impl HistogramSnapshot {
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    pub fn mean(&self) -> f64 {
        match self.count() {
            0 => 0.0,
            count => self.sum as f64 / count as f64,
        }
    }

    /// Returns the value that `share` of the values do not exceed, as the least value of its bucket.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (share * self.count() as f64).ceil().max(1.0) as u64;
        let mut count = 0;
        for (value, more) in &self.buckets {
            count += more;
            if count >= wanted {
                return (*value).clamp(self.least, self.most);
            }
        }
        self.most
    }

    /// Adds the values of another distribution.
    pub fn merge(&mut self, other: &HistogramSnapshot) {
        if other.buckets.is_empty() {
            return;
        }
        if self.buckets.is_empty() {
            self.clone_from(other);
            return;
        }
        for (value, count) in &other.buckets {
            match self.buckets.binary_search_by_key(value, |(value, _)| *value) {
                Ok(at) => self.buckets[at].1 += count,
                Err(at) => self.buckets.insert(at, (*value, *count)),
            }
        }
        self.sum += other.sum;
        self.least = self.least.min(other.least);
        self.most = self.most.max(other.most);
        self.last = other.last;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_bucket_is_at_most_a_thirty_second_wide() {
        assert_eq!(bucket(VALUE_MAX), BUCKETS - 1);
        for at in 0..BUCKETS - 1 {
            let (low, next) = (value_of(at), value_of(at + 1));
            assert_eq!((bucket(low), bucket(next - 1)), (at, at));
            assert!((next - low - 1) * STEPS <= low);
        }
    }

    #[test]
    fn an_unused_histogram_takes_no_memory() {
        let histogram = Histogram::default();
        assert_eq!(histogram.snapshot(), HistogramSnapshot::default());
        assert!(histogram.cells.get().is_none());
        assert_eq!(histogram.snapshot().quantile(0.99), 0);
    }

    proptest! {
        #[test]
        fn quantiles_are_those_of_the_values(
            mut values in proptest::collection::vec(0..1u64 << 31, 1..200),
            split in 0..200usize,
        ) {
            let (one, two) = (Histogram::default(), Histogram::default());
            for (at, value) in values.iter().enumerate() {
                if at < split { one.record(*value) } else { two.record(*value) }
            }
            let mut merged = one.snapshot();
            merged.merge(&two.snapshot());
            values.sort_unstable();
            prop_assert_eq!(merged.count(), values.len() as u64);
            prop_assert_eq!(merged.sum, values.iter().sum::<u64>());
            prop_assert_eq!((merged.least, merged.most), (values[0], values[values.len() - 1]));
            for share in [0.0, 0.5, 0.75, 0.99, 1.0] {
                let rank = ((share * values.len() as f64).ceil() as usize).max(1);
                let (exact, told) = (values[rank - 1], merged.quantile(share));
                prop_assert!(told <= exact && exact - told <= exact / STEPS, "{told} for {exact}");
            }
        }
    }
}
