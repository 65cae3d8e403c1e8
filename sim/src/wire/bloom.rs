//! Bloom filters of predicates: block-split, eight bits in one block of 32 bytes per value.

use super::keys::little_endian;

const MULTIPLIERS: [u32; 8] =
    [0x47b6_137b, 0x4497_4d91, 0x8824_ad5b, 0xa2b7_289d, 0x7054_95c7, 0x2df1_424b, 0x9efc_4947, 0x5c6b_fb31];
/// Hash of a cell without bytes.
const HASH_OF_EMPTY: u32 = 0x7dca_7eee;

/// A Bloom filter over cell bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BloomFilter {
    blocks: Vec<[u32; 8]>,
    seed: u32,
}

impl BloomFilter {
    /// Creates a filter of `2^log_space` bytes, at least 32, with these cells.
    pub fn of(cells: &[Vec<u8>], log_space: u32, seed: u32) -> BloomFilter {
        let mut filter = BloomFilter { blocks: vec![[0; 8]; 1 << (log_space.max(5) - 5)], seed };
        for cell in cells {
            let (block, bits) = filter.place(cell);
            filter.blocks[block].iter_mut().zip(bits).for_each(|(word, bit)| *word |= bit);
        }
        filter
    }

    pub fn may_hold(&self, cell: &[u8]) -> bool {
        let (block, bits) = self.place(cell);
        self.blocks[block].iter().zip(bits).all(|(word, bit)| word & bit != 0)
    }

    /// Returns the filter's bytes as they are sent.
    pub fn bytes(&self) -> Vec<u8> {
        self.blocks.iter().flatten().flat_map(|word| word.to_le_bytes()).collect()
    }

    pub fn log_space(&self) -> i32 {
        5 + self.blocks.len().ilog2() as i32
    }

    pub fn seed(&self) -> u32 {
        self.seed
    }

    fn place(&self, cell: &[u8]) -> (usize, [u32; 8]) {
        let hash = hash32(cell, self.seed);
        let mixed = u64::from(hash).wrapping_mul(0x7850_f11e_c6d1_4889).wrapping_add(0x6773_6105_97ca_4c63);
        let block = (mixed >> 32) as usize & (self.blocks.len() - 1);
        (block, MULTIPLIERS.map(|multiplier| 1 << (multiplier.wrapping_mul(hash) >> 27)))
    }
}

fn hash32(cell: &[u8], seed: u32) -> u32 {
    if cell.is_empty() {
        return HASH_OF_EMPTY;
    }
    const M: u64 = 0x8803_55f2_1e6d_1965;
    let mut hash = u64::from(seed) ^ (cell.len() as u64).wrapping_mul(M);
    for word in cell.chunks(8) {
        hash = (hash ^ mix(little_endian(word))).wrapping_mul(M);
    }
    let hash = mix(hash);
    (hash.wrapping_sub(hash >> 32)) as u32
}

fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 23)).wrapping_mul(0x2127_599b_f432_5c37);
    word ^ (word >> 47)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_and_filters_are_those_of_kudu() {
        for (text, of_0, of_42) in [
            ("a", 0x439b_3c1c, 0x6f2b_2a86),
            ("abc", 0x7af6_13ff, 0xdf0f_b2f9),
            ("abcdefgh", 0x0835_6872, 0x5b85_a166),
            ("hello world", 0x0b51_bfa5, 0xda80_713d),
        ] {
            assert_eq!((hash32(text.as_bytes(), 0), hash32(text.as_bytes(), 42)), (of_0, of_42), "{text}");
        }
        let cells = [1_i32.to_le_bytes().to_vec(), 3_i32.to_le_bytes().to_vec()];
        let filter = BloomFilter::of(&cells, 6, 0);
        let hex: String = filter.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "40000000000000010000010000400000000200000000000120000000000000200000000800000080000400000000020000000800\
             000002000000000800008000"
        );
        assert!(cells.iter().all(|cell| filter.may_hold(cell)));
        assert!(!filter.may_hold(&2_i32.to_le_bytes()));
    }
}
