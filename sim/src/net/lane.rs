//! Names of connections and segments in keys of draws: see [`crate::draws`].

/// One end of a connection: 0 connected, 1 accepted.
pub type Side = usize;

/// A connection in keys of draws: the pair that it joins, and its number among the connections of that pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lane {
    /// Names of the host that opened it and of the other, as one word.
    pair: u64,
    nth: u64,
    /// Segments sent so far by each side, those of connecting and of resets included.
    segments: [u64; 2],
}

impl Lane {
    pub(super) fn new(pair: u64, nth: u64) -> Lane {
        Lane { pair, nth, segments: [0; 2] }
    }

    /// Returns the key of the next segment of a side.
    pub(super) fn next_segment(&mut self, side: Side) -> [u64; 3] {
        self.segments[side] += 1;
        self.key(side)
    }

    /// Returns the key of the last segment of a side.
    pub(super) fn key(&self, side: Side) -> [u64; 3] {
        [self.pair, self.nth, self.segments[side] << 1 | side as u64]
    }
}
