//! Compression of batches, where it saves enough.
//!
//! ```text
//!   attempt: an eighth shorter? ── yes ──▶ the next batch is compressed, too
//!               └─ no ──▶ the next 1, 3, 7, 15 batches stay as they are, then the next attempt
//! ```
//!
//! Rows of a table are alike: if one batch does not become shorter, the next one hardly does. An attempt in vain takes
//! as long as the other work for a small write.
//!
//! Invariant: the result depends on the batches of the log alone, not on the thread and what that compressed before.

use std::cell::RefCell;

use lz4_flex::block::{CompressTable, compress, compress_into_with_table, get_maximum_output_size};

/// Shortest payload in bytes that is compressed.
const PACKED_BYTES_MIN: usize = 256;
/// Longest payload in bytes that is compressed with the memory of the thread. A table for longer ones would choose
/// other matches.
const REUSED_BYTES_MAX: usize = u16::MAX as usize - 1;
/// Most batches between two attempts.
const SKIPPED_MAX: u32 = 15;

/// Memory of a thread for attempts. An allocation of the table, and the zeroing of new pages for it, would cost more
/// than to compress a small batch.
struct PackBuffers {
    table: CompressTable,
    packed: Vec<u8>,
}

thread_local! {
    static BUFFERS: RefCell<PackBuffers> =
        RefCell::new(PackBuffers { table: CompressTable::small(), packed: Vec::new() });
}

/// Compressor of one log's batches.
#[derive(Debug, Default)]
pub(super) struct BatchPacker {
    /// Batches that stay as they are before the next attempt.
    left: u32,
    /// Batches that stayed so after the last attempt; 0 after one that saved enough.
    skipped: u32,
}

impl BatchPacker {
    /// Replaces the payload of a batch, from `start` on, by its length and an LZ4 block. Returns false and changes
    /// nothing unless that is tried and saves an eighth.
    pub(super) fn pack(&mut self, batch: &mut Vec<u8>, start: usize) -> bool {
        if batch.len() - start < PACKED_BYTES_MIN {
            return false;
        }
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        let is_packed = try_pack(batch, start);
        self.skipped = if is_packed { 0 } else { (2 * self.skipped + 1).min(SKIPPED_MAX) };
        self.left = self.skipped;
        is_packed
    }
}

fn try_pack(batch: &mut Vec<u8>, start: usize) -> bool {
    if batch.len() - start > REUSED_BYTES_MAX {
        let packed = compress(&batch[start..]);
        return replace_if_shorter(batch, start, &packed);
    }
    BUFFERS.with_borrow_mut(|PackBuffers { table, packed }| {
        let payload = &batch[start..];
        let most = get_maximum_output_size(payload.len());
        if packed.len() < most {
            packed.resize(most, 0);
        }
        let len = compress_into_with_table(payload, packed, table).expect("the buffer is long enough");
        replace_if_shorter(batch, start, &packed[..len])
    })
}

fn replace_if_shorter(batch: &mut Vec<u8>, start: usize, packed: &[u8]) -> bool {
    let len = batch.len() - start;
    if packed.len() + 4 > len - len / 8 {
        return false;
    }
    batch.truncate(start);
    batch.extend_from_slice(&(len as u32).to_le_bytes());
    batch.extend_from_slice(packed);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns bytes without repetitions.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn attempts_in_vain_become_rare_and_a_batch_that_shrinks_brings_them_back() {
        let mut packer = BatchPacker::default();
        let mut tried = Vec::new();
        for at in 0..40 {
            if packer.left == 0 {
                tried.push(at);
            }
            assert!(!packer.pack(&mut noise(1000), 0));
        }
        assert_eq!(tried, [0, 2, 6, 14, 30]);
        let results: Vec<bool> = (0..10).map(|_| packer.pack(&mut vec![7; 1000], 0)).collect();
        assert_eq!(results, [false, false, false, false, false, false, true, true, true, true]);
    }

    #[test]
    fn a_block_is_the_same_whatever_the_thread_compressed_before() {
        for len in [300, 5_000, REUSED_BYTES_MAX, REUSED_BYTES_MAX + 1, 200_000] {
            let text: Vec<u8> = noise(len).iter().map(|byte| byte % 3).collect();
            let mut batch = [b"head".to_vec(), text.clone()].concat();
            assert!(BatchPacker::default().pack(&mut batch, 4));
            let wanted = [&b"head"[..], &(len as u32).to_le_bytes(), &compress(&text)].concat();
            assert_eq!(batch, wanted, "{len}");
        }
    }

    #[test]
    fn short_payloads_count_as_no_attempt() {
        let mut packer = BatchPacker::default();
        assert!(!packer.pack(&mut vec![7; PACKED_BYTES_MIN - 1], 0) && packer.left == 0);
        assert!(packer.pack(&mut vec![7; PACKED_BYTES_MIN], 0));
    }
}
