//! Prefixes of keys: the first bytes as an integer, and the bytes that two keys share.

/// Returns the first eight bytes as an integer of the same order. Shorter keys are padded with zeros.
#[inline]
pub fn key_prefix(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(bytes)
        }
    }
}

/// Returns the number of leading bytes that two keys share.
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0).take_while(|(a, b)| a == b).count();
    let rest = a[8 * words..].iter().zip(&b[8 * words..]).take_while(|(a, b)| a == b).count();
    8 * words + rest
}
