//! The hash functions on which clients and servers must agree to the bit.

const MURMUR_MUL: u64 = 0xc6a4_a793_5bd1_e995;
const MURMUR_SHIFT: u32 = 47;

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// MurmurHash2, the 64-bit variant "64A": the hash that assigns rows to hash buckets.
pub fn murmur2_64a(bytes: &[u8], seed: u64) -> u64 {
    let mut hash = seed ^ (bytes.len() as u64).wrapping_mul(MURMUR_MUL);
    let blocks = bytes.chunks_exact(8);
    let tail = blocks.remainder();
    for block in blocks {
        let mut k = word(block).wrapping_mul(MURMUR_MUL);
        k ^= k >> MURMUR_SHIFT;
        hash = (hash ^ k.wrapping_mul(MURMUR_MUL)).wrapping_mul(MURMUR_MUL);
    }
    if !tail.is_empty() {
        hash = (hash ^ word(tail)).wrapping_mul(MURMUR_MUL);
    }
    hash ^= hash >> MURMUR_SHIFT;
    hash = hash.wrapping_mul(MURMUR_MUL);
    hash ^ hash >> MURMUR_SHIFT
}

const FAST_MUL: u64 = 0x8803_55f2_1e6d_1965;

fn fast_mix(mut x: u64) -> u64 {
    x ^= x >> 23;
    x = x.wrapping_mul(0x2127_599b_f432_5c37);
    x ^ x >> 47
}

/// "Fast hash", 64 bits: the hash of Bloom filter predicates before it is folded.
pub fn fast_hash64(bytes: &[u8], seed: u64) -> u64 {
    let mut hash = seed ^ (bytes.len() as u64).wrapping_mul(FAST_MUL);
    let blocks = bytes.chunks_exact(8);
    let tail = blocks.remainder();
    for block in blocks {
        hash = (hash ^ fast_mix(word(block))).wrapping_mul(FAST_MUL);
    }
    if !tail.is_empty() {
        hash = (hash ^ fast_mix(word(tail))).wrapping_mul(FAST_MUL);
    }
    fast_mix(hash)
}

/// [`fast_hash64`] folded to 32 bits: the hash of Bloom filter predicates.
pub fn fast_hash32(bytes: &[u8], seed: u32) -> u32 {
    let hash = fast_hash64(bytes, seed as u64);
    hash.wrapping_sub(hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values computed by another client implementation.
    #[test]
    fn murmur_agrees_with_other_clients() {
        let cases: [(&str, u64, u64); 6] = [
            ("", 0, 0x9703_7e2d_1071_7c74),
            ("a", 0x0717_17d2_d36b_6b11, 0xf9da_c41c_2dc2_0c49),
            ("abc", 0x9cc9_c334_98a9_5efb, 0xbab4_971c_a0c4_5292),
            ("abcdefgh", 0xafdb_0257_ff41_aa98, 0x5383_a9b6_1814_2929),
            ("abcdefghi", 0xc9b9_d843_5614_6ac2, 0x8e88_39d3_e52c_9415),
            ("hello world", 0xd3ba_2368_a832_afce, 0x58ec_5901_27de_6711),
        ];
        for (text, seed0, seed42) in cases {
            assert_eq!(murmur2_64a(text.as_bytes(), 0), seed0, "{text:?} seed 0");
            assert_eq!(murmur2_64a(text.as_bytes(), 42), seed42, "{text:?} seed 42");
        }
    }

    #[test]
    fn fast_hash_agrees_with_other_clients() {
        let cases: [(&str, [u8; 4], [u8; 4]); 4] = [
            ("a", [0x43, 0x9b, 0x3c, 0x1c], [0x6f, 0x2b, 0x2a, 0x86]),
            ("abc", [0x7a, 0xf6, 0x13, 0xff], [0xdf, 0x0f, 0xb2, 0xf9]),
            ("abcdefgh", [0x08, 0x35, 0x68, 0x72], [0x5b, 0x85, 0xa1, 0x66]),
            ("hello world", [0x0b, 0x51, 0xbf, 0xa5], [0xda, 0x80, 0x71, 0x3d]),
        ];
        for (text, seed0, seed42) in cases {
            assert_eq!(fast_hash32(text.as_bytes(), 0), u32::from_be_bytes(seed0), "{text:?} seed 0");
            assert_eq!(fast_hash32(text.as_bytes(), 42), u32::from_be_bytes(seed42), "{text:?} seed 42");
        }
    }
}
