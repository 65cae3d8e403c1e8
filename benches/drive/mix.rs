//! Choice of the next operation and its row.

use benches::mix;
use std::str::FromStr;

use clap::ValueEnum;
use rand::distr::weighted::WeightedIndex;
use rand::distr::{Distribution, Uniform};
use rand_chacha::ChaCha12Rng;
use rand_distr::Zipf;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    Insert,
    /// Writes one field.
    Update,
    /// Reads a whole row.
    Read,
    /// Reads up to a hundred rows from a key on.
    Scan,
    /// Reads a row and updates it.
    ReadModifyWrite,
}

/// Operations and their weights, as `read:95,update:5`.
#[derive(Clone, Debug)]
pub(crate) struct OpMix {
    operations: Vec<Operation>,
    shares: WeightedIndex<u32>,
}

impl FromStr for OpMix {
    type Err = String;

    fn from_str(text: &str) -> Result<OpMix, String> {
        let (mut operations, mut shares) = (Vec::new(), Vec::new());
        for part in text.split(',') {
            let (name, share) = part.split_once(':').ok_or(format!("{part:?} is not as `read:95`"))?;
            operations.push(Operation::from_str(name, false)?);
            shares.push(share.parse::<u32>().map_err(|error| format!("{share:?}: {error}"))?);
        }
        let shares = WeightedIndex::new(shares).map_err(|error| error.to_string())?;
        Ok(OpMix { operations, shares })
    }
}

impl OpMix {
    pub(crate) fn pick(&self, rng: &mut ChaCha12Rng) -> Operation {
        self.operations[self.shares.sample(rng)]
    }
}

/// YCSB's exponent: the skew of the popularity of rows.
const ZIPF_EXPONENT: f64 = 0.99;

/// Distribution from which loaded rows are picked.
#[derive(Clone, Debug)]
pub(crate) enum Rows {
    /// All rows are equally popular.
    Uniform(Uniform<u64>),
    /// Few rows are popular, scattered over the table.
    Zipfian { ranks: Zipf<f64>, count: u64 },
}

impl Rows {
    /// Creates a distribution over `count` rows, of which there is at least one.
    pub(crate) fn new(count: u64, zipfian: bool) -> Rows {
        if zipfian {
            let ranks = Zipf::new(count as f64, ZIPF_EXPONENT).expect("there are rows");
            Rows::Zipfian { ranks, count }
        } else {
            Rows::Uniform(Uniform::new(0, count).expect("there are rows"))
        }
    }

    /// Returns a row's number.
    pub(crate) fn pick(&self, rng: &mut ChaCha12Rng) -> u64 {
        match self {
            Rows::Uniform(numbers) => numbers.sample(rng),
            Rows::Zipfian { ranks, count } => mix(ranks.sample(rng) as u64) % count,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    const DRAWS: u64 = 100_000;

    fn counts<T: Ord>(mut draw: impl FnMut(&mut ChaCha12Rng) -> T) -> BTreeMap<T, u64> {
        let mut rng = ChaCha12Rng::seed_from_u64(7);
        let mut counts = BTreeMap::new();
        (0..DRAWS).for_each(|_| *counts.entry(draw(&mut rng)).or_default() += 1);
        counts
    }

    #[test]
    fn popular_rows_are_picked_by_zipfs_law() {
        let rows = 1000;
        let picked = Rows::new(rows, true);
        let counts = counts(|rng| picked.pick(rng));
        assert!(counts.keys().all(|row| *row < rows));
        let harmonic: f64 = (1..=rows).map(|rank| (rank as f64).powf(-ZIPF_EXPONENT)).sum();
        // Several ranks may map to one row; its popularity is their sum.
        let mut expected: BTreeMap<u64, f64> = BTreeMap::new();
        for rank in 1..=rows {
            let share = (rank as f64).powf(-ZIPF_EXPONENT) / harmonic;
            *expected.entry(mix(rank) % rows).or_default() += share * DRAWS as f64;
        }
        for (row, expected) in expected.into_iter().filter(|(_, expected)| *expected > 400.0) {
            let picked = counts[&row] as f64;
            assert!((picked / expected - 1.0).abs() < 0.15, "row {row}: {picked}, not {expected}");
        }
    }

    #[test]
    fn uniform_rows_are_picked_equally_often() {
        let picked = Rows::new(10, false);
        let counts = counts(|rng| picked.pick(rng));
        assert_eq!(counts.len(), 10);
        assert!(counts.values().all(|count| count.abs_diff(DRAWS / 10) < DRAWS / 100), "{counts:?}");
    }

    #[test]
    fn a_parsed_mix_is_followed() {
        let mix: OpMix = "read:75,read-modify-write:25".parse().unwrap();
        let counts = counts(|rng| mix.pick(rng) == Operation::Read);
        assert!(counts[&true].abs_diff(75_000) < 1_000 && counts[&false].abs_diff(25_000) < 1_000);
        for wrong in ["read", "read:x", "fly:1", "read:0", ""] {
            assert!(wrong.parse::<OpMix>().is_err(), "{wrong:?}");
        }
    }
}
