//! Draws of a world: from streams, or by key.
//!
//! ```text
//!   stream   seed ─► d1 d2 d3 …             the n-th draw of all: one more or less shifts the later ones
//!   keyed    (seed, purpose, key) ─► d      a hash without state: no draw depends on another
//! ```
//!
//! A key names what is drawn for: the n-th segment of a connection, the n-th wake of a task. A world that draws by key
//! draws the same for it whatever else happens, so that a fault which is left out changes only what it caused.

use sim_plan::RandomStream;

use crate::event_log::digest;

/// Use of a draw by key. Draws of different purposes are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Jitter of a segment.
    Jitter = 1,
    /// True if a segment is cut.
    IsCut,
    /// Length of a segment that is cut.
    CutLength,
    /// Wait for a retransmission after a link is free.
    Retransmit,
    /// Seed of a disk.
    Disk,
    /// Randomness of a node.
    Node,
    /// Order of the ready tasks: its kind.
    Order,
    /// Name of a task.
    Task,
    /// Priority of a task.
    Priority,
    /// Time until a thread of the pool takes work.
    Pool,
    /// Loss of a segment at its first try; each further try is a purpose of its own.
    Loss = 1 << 32,
}

/// Returns the draw of a key.
pub fn keyed(seed: u64, purpose: Purpose, key: [u64; 3]) -> u64 {
    keyed_nth(seed, purpose, 0, key)
}

/// Returns the `nth` of several draws of a key.
fn keyed_nth(seed: u64, purpose: Purpose, nth: u64, key: [u64; 3]) -> u64 {
    key.into_iter().fold(mix(mix(seed) ^ (purpose as u64 + nth)), |drawn, word| mix(drawn ^ word))
}

/// Returns a bijection of a word: each bit depends on all bits (the finalizer of SplitMix64).
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Returns the word that stands for a name in keys.
pub fn name_word(name: &str) -> u64 {
    digest(name.as_bytes())
}

/// Source of a world's draws.
#[derive(Debug, Clone)]
pub enum DrawSource {
    /// The next of a stream; keys are ignored.
    Stream(Box<RandomStream>),
    /// The draw of the key under this seed.
    Keyed(u64),
}

impl DrawSource {
    /// Returns a draw.
    pub fn draw(&mut self, purpose: Purpose, key: [u64; 3]) -> u64 {
        self.draw_nth(purpose, 0, key)
    }

    /// Returns the `nth` of several draws of one key.
    pub fn draw_nth(&mut self, purpose: Purpose, nth: u64, key: [u64; 3]) -> u64 {
        match self {
            DrawSource::Stream(stream) => stream.next_u64(),
            DrawSource::Keyed(seed) => keyed_nth(*seed, purpose, nth, key),
        }
    }

    /// Returns a number below `end`, or 0 without a draw if `end` is 0.
    pub fn below(&mut self, end: u64, purpose: Purpose, key: [u64; 3]) -> u64 {
        if end == 0 { 0 } else { self.draw(purpose, key) % end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draw_depends_on_its_seed_purpose_and_key_alone() {
        let mut source = DrawSource::Keyed(7);
        let draw = source.draw(Purpose::Jitter, [1, 2, 3]);
        source.draw(Purpose::IsCut, [1, 2, 3]);
        assert_eq!(source.draw(Purpose::Jitter, [1, 2, 3]), draw);
        let others = [
            keyed(8, Purpose::Jitter, [1, 2, 3]),
            keyed(7, Purpose::IsCut, [1, 2, 3]),
            keyed(7, Purpose::Jitter, [2, 1, 3]),
            keyed(7, Purpose::Jitter, [1, 2, 4]),
            source.draw_nth(Purpose::Jitter, 1, [1, 2, 3]),
        ];
        assert!(!others.contains(&draw), "{others:?}");
    }

    #[test]
    fn a_stream_ignores_keys() {
        let mut stream = RandomStream::new(3, "net");
        let mut source = DrawSource::Stream(Box::new(stream.clone()));
        assert_eq!(source.draw(Purpose::Jitter, [1, 2, 3]), stream.next_u64());
        assert_eq!(source.below(0, Purpose::Jitter, [1, 2, 3]), 0);
        assert_eq!(source.below(100, Purpose::Retransmit, [1, 2, 3]), stream.below(100));
    }

    #[test]
    fn draws_of_consecutive_keys_are_uniform() {
        let mut counts = [0_u32; 64];
        let draws = (0..64_000).map(|nth| keyed(1, Purpose::Priority, [5, nth, 0]));
        draws.for_each(|draw| counts[(draw >> 58) as usize] += 1);
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
