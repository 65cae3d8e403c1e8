//! The hash function of this engine's own Bloom filters and dictionaries. Filters are stored, so it never changes.
//!
//! Eight bytes at a time are folded in by a 64×64→128 bit multiplication whose halves are xored.

const K: [u64; 4] =
    [0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db, 0x8ebc_6af0_9c88_c6e3, 0x5899_65cc_7537_4cc3];

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Returns a 64-bit hash that depends on every byte and on the length.
pub fn hash64(bytes: &[u8]) -> u64 {
    let (words, tail) = bytes.as_chunks::<8>();
    let mut hash = fold(bytes.len() as u64 ^ K[0], K[1]);
    for word in words {
        hash = fold(hash ^ u64::from_le_bytes(*word), K[2]);
    }
    if !tail.is_empty() {
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        hash = fold(hash ^ u64::from_le_bytes(last), K[3]);
    }
    fold(hash ^ K[3], K[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_hashes_keep_their_values() {
        let hashes: Vec<String> = ["", "a", "abcdefgh", "abcdefghi"]
            .iter()
            .map(|text| format!("{:016x}", hash64(text.as_bytes())))
            .collect();
        expect_test::expect![[r#"
            e42d79d50d031e29
            7e63545f5a1980a5
            824eba0bb2311612
            91d66a10dd50fcca"#]]
        .assert_eq(&hashes.join("\n"));
    }
}
