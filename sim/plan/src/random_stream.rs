//! Random draws from a seed, the only randomness of the simulator itself.

use std::time::Duration;

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

/// A stream of random draws. Streams of one seed with different names are independent.
#[derive(Debug, Clone)]
pub struct RandomStream(ChaCha12Rng);

impl RandomStream {
    /// Returns the stream `name` of a seed.
    pub fn new(seed: u64, name: &str) -> RandomStream {
        let salt = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |salt, byte| {
            (salt ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&salt.to_le_bytes());
        RandomStream(ChaCha12Rng::from_seed(key))
    }

    /// Returns the one stream of a seed that names no others.
    pub fn unnamed(seed: u64) -> RandomStream {
        RandomStream(ChaCha12Rng::seed_from_u64(seed))
    }

    /// Returns a stream of its own that follows from the next number of this one, which stays to be drawn.
    pub fn fork(&self, name: &str) -> RandomStream {
        RandomStream::new(self.clone().next_u64(), name)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next_u64() % end }
    }

    /// Returns a number from `first` to `last`, both included.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last.saturating_sub(first) + 1)
    }

    /// Returns a number from `-most` to `most`, both included.
    pub fn within(&mut self, most: u64) -> i64 {
        self.below(2 * most + 1) as i64 - most as i64
    }

    /// Returns true with a probability of `percent`.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Returns one of the values. Panics if there is none.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Returns one of the values, each as often as its weight says. Panics if no weight is above 0.
    pub fn weighted<T: Copy>(&mut self, of: &[(T, u32)]) -> T {
        let sum: u64 = of.iter().map(|(_, weight)| u64::from(*weight)).sum();
        let mut left = self.below(sum);
        for (value, weight) in of {
            match left.checked_sub(u64::from(*weight)) {
                Some(rest) => left = rest,
                None => return *value,
            }
        }
        of[0].0
    }

    /// Returns a duration from `first` to `last` in whole microseconds. Every order of magnitude is equally likely.
    pub fn span(&mut self, first: Duration, last: Duration) -> Duration {
        let (first, last) = (first.as_micros().max(1) as u64, last.as_micros().max(1) as u64);
        let doublings = (last / first).max(1).ilog2();
        let low = first << self.between(0, u64::from(doublings));
        Duration::from_micros(self.between(low, (low * 2).min(last).max(low)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_leaves_the_next_number_to_be_drawn() {
        let (mut one, mut other) = (RandomStream::new(1, "test"), RandomStream::new(1, "test"));
        let first = |stream: &RandomStream, name: &str| stream.fork(name).next_u64();
        let before = first(&one, "a");
        assert_eq!(first(&one, "a"), before);
        assert_ne!(first(&one, "b"), before);
        assert_eq!(one.next_u64(), other.next_u64());
        assert_ne!(first(&one, "a"), before);
    }
}
