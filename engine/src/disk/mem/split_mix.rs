//! SplitMix64, the random number generator of the disk (public domain, Steele and others 2014).

pub(super) struct SplitMix64 {
    state: u64,
    /// Seed of draws by key; `None` for a stream.
    key: Option<u64>,
}

impl SplitMix64 {
    pub(super) fn new(seed: u64) -> SplitMix64 {
        SplitMix64 { state: seed, key: None }
    }

    /// Creates a generator whose draws depend on the occasion alone: see [`SplitMix64::begin`].
    pub(super) fn keyed(seed: u64) -> SplitMix64 {
        SplitMix64 { state: seed, key: Some(seed) }
    }

    /// Begins the draws for an occasion: the `nth` of its kind. A stream continues as if nothing had begun.
    pub(super) fn begin(&mut self, occasion: &str, nth: u64) {
        let Some(seed) = self.key else { return };
        self.state = seed ^ nth;
        for byte in occasion.bytes() {
            self.state = self.next() ^ u64::from(byte);
        }
        self.state = self.next();
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to `most`, both possible.
    pub(super) fn up_to(&mut self, most: usize) -> usize {
        ((u128::from(self.next()) * (most as u128 + 1)) >> 64) as usize
    }

    pub(super) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_by_key_depend_on_the_occasion_alone() {
        let (mut one, mut other) = (SplitMix64::keyed(5), SplitMix64::keyed(5));
        other.begin("crash", 1);
        other.next();
        one.begin("wal/a", 2);
        other.begin("wal/a", 2);
        let drawn = one.next();
        assert_eq!(drawn, other.next());
        for (occasion, nth) in [("wal/a", 1), ("wal/b", 2), ("wal", 2)] {
            one.begin(occasion, nth);
            assert_ne!(one.next(), drawn, "{occasion} {nth}");
        }
    }

    #[test]
    fn a_stream_has_no_occasions() {
        let (mut one, mut other) = (SplitMix64::new(5), SplitMix64::new(5));
        one.begin("crash", 1);
        assert_eq!(one.next(), other.next());
    }
}
