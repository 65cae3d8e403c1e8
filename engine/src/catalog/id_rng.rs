//! Generator of ids and random choices.

use crate::ids::Uuid;

/// A small generator (SplitMix64 on two lanes) of ids and random choices, determined by its seed.
#[derive(Debug, Clone)]
pub(super) struct IdRng {
    lanes: [u64; 2],
}

impl IdRng {
    pub(super) fn new(seed: [u64; 2]) -> IdRng {
        IdRng { lanes: seed }
    }

    fn next(&mut self, lane: usize) -> u64 {
        self.lanes[lane] = self.lanes[lane].wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.lanes[lane];
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn uuid(&mut self) -> Uuid {
        let halves = (u128::from(self.next(0)) << 64) | u128::from(self.next(1));
        Uuid(halves.to_be_bytes())
    }

    /// A number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next(0) % bound as u64) as usize
    }
}
