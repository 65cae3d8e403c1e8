//! Bloom filters sent by clients as predicates: block-split, eight bits in one 32-byte block per value.

use serde::{Deserialize, Serialize};

use super::wire_hash::fast_hash32;
use crate::error::{Error, Result};

const BLOCK_BYTES: usize = 32;
const WORDS: usize = 8;
const MULTIPLIERS: [u32; WORDS] =
    [0x47b6_137b, 0x4497_4d91, 0x8824_ad5b, 0xa2b7_289d, 0x7054_95c7, 0x2df1_424b, 0x9efc_4947, 0x5c6b_fb31];
/// Hash of NULL, which no bytes have.
const HASH_OF_NULL: u32 = 0x5808_1667;
const HASH_OF_EMPTY: u32 = 0x7dca_7eee;

/// A set of cells of one column with false positives, never false negatives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PredicateBloom {
    words: Vec<u32>,
    log_space_bytes: u32,
    hash_seed: u32,
    always_false: bool,
}

impl PredicateBloom {
    /// Creates an empty filter of `2^log_space_bytes` bytes, from 32 bytes to 512 MiB.
    pub fn new(log_space_bytes: u32, hash_seed: u32) -> Result<PredicateBloom> {
        check_size(log_space_bytes)?;
        let words = vec![0; (1 << log_space_bytes) / 4];
        Ok(PredicateBloom { words, log_space_bytes, hash_seed, always_false: true })
    }

    /// Decodes a filter as clients send it. Returns `Invalid` unless `data` has the claimed size.
    pub fn from_bytes(
        log_space_bytes: u32,
        data: &[u8],
        seed: u32,
        always_false: bool,
    ) -> Result<PredicateBloom> {
        check_size(log_space_bytes)?;
        let empty = always_false && data.is_empty();
        if !empty && data.len() != 1usize << log_space_bytes {
            return Err(Error::invalid(format!(
                "a Bloom filter of {} bytes claims to have 2^{log_space_bytes}",
                data.len()
            )));
        }
        let word = |word: &[u8]| u32::from_le_bytes(word.try_into().expect("chunks of four"));
        let words = data.chunks_exact(4).map(word).collect();
        Ok(PredicateBloom { words, log_space_bytes, hash_seed: seed, always_false })
    }

    pub fn insert(&mut self, cell: Option<&[u8]>) {
        if self.words.is_empty() {
            self.words = vec![0; (1 << self.log_space_bytes) / 4];
        }
        self.always_false = false;
        let hash = self.hash(cell);
        let block = self.block(hash);
        for (i, word) in self.words[block..block + WORDS].iter_mut().enumerate() {
            *word |= bit(i, hash);
        }
    }

    /// Returns false only if the cell was never inserted.
    pub fn contains(&self, cell: Option<&[u8]>) -> bool {
        if self.always_false {
            return false;
        }
        let hash = self.hash(cell);
        let block = self.block(hash);
        self.words[block..block + WORDS].iter().enumerate().all(|(i, word)| word & bit(i, hash) != 0)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Returns the memory of its bits.
    pub fn byte_size(&self) -> usize {
        self.words.len() * size_of::<u32>()
    }

    pub fn log_space_bytes(&self) -> u32 {
        self.log_space_bytes
    }

    pub fn hash_seed(&self) -> u32 {
        self.hash_seed
    }

    pub fn always_false(&self) -> bool {
        self.always_false
    }

    fn hash(&self, cell: Option<&[u8]>) -> u32 {
        match cell {
            None => HASH_OF_NULL,
            Some([]) => HASH_OF_EMPTY,
            Some(cell) => fast_hash32(cell, self.hash_seed),
        }
    }

    /// Returns the first word of the hash's block.
    fn block(&self, hash: u32) -> usize {
        let mixed = (hash as u64).wrapping_mul(0x7850_f11e_c6d1_4889).wrapping_add(0x6773_6105_97ca_4c63);
        let blocks = self.words.len() * 4 / BLOCK_BYTES;
        ((mixed >> 32) as usize & (blocks - 1)) * WORDS
    }
}

fn bit(word: usize, hash: u32) -> u32 {
    1 << (MULTIPLIERS[word].wrapping_mul(hash) >> 27)
}

fn check_size(log_space_bytes: u32) -> Result<()> {
    if !(5..=29).contains(&log_space_bytes) {
        let message = format!("a Bloom filter has 2^5 to 2^29 bytes, not 2^{log_space_bytes}");
        return Err(Error::invalid(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn bytes_are_those_of_other_clients() {
        let mut ints = PredicateBloom::new(6, 0).expect("a legal size");
        for value in [1i32, 3] {
            ints.insert(Some(&value.to_le_bytes()));
        }
        let want = [
            "4000000000000001000001000040000000020000000000012000000000000020",
            "0000000800000080000400000000020000000800000002000000000800008000",
        ]
        .concat();
        assert_eq!(hex(&ints.to_bytes()), want);
        let mut strings = PredicateBloom::new(6, 0).expect("a legal size");
        strings.insert(Some(b"v1"));
        let block = "0100000008000000000000020008000000400000000040000040000000000010";
        assert_eq!(hex(&strings.to_bytes()), format!("{}{block}", "0".repeat(64)));
        assert!(strings.contains(Some(b"v1")) && !strings.contains(Some(b"v2")) && !strings.contains(None));
    }

    #[test]
    fn false_sizes_are_rejected() {
        assert!(PredicateBloom::from_bytes(6, &[0; 32], 0, false).is_err());
        assert!(PredicateBloom::from_bytes(3, &[0; 8], 0, false).is_err());
        assert!(PredicateBloom::from_bytes(60, &[], 0, true).is_err());
        let nothing = PredicateBloom::from_bytes(6, &[], 0, true).expect("always false needs no data");
        assert!(!nothing.contains(Some(b"x")));
    }
}
