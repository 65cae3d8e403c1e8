//! Bloom filters over the keys of a rowset, which prove that a key is absent.
//!
//! ```text
//! chunk    the keys of consecutive rows: blocks of 32 bytes, one per 21 keys or so (12 bits a key)
//! block    eight words of 32 bits; a key sets one bit in each, chosen by multiplying its hash
//! index    the page index of the Bloom stream: the first key of each chunk and its rows
//! ```
//!
//! A lookup reads one chunk and touches one cache line of it; about one absent key in 200 passes. Keys come in
//! order when a rowset is written, so a chunk covers a range of keys and absent keys often fall outside all.

use super::encoding::PAGE_ROWS_MAX;
use super::page_file::{PageRef, PageWriter, index_of, stream};
use super::page_index::{PageEntry, PageIndex};
use super::stable_hash::hash64;
use super::writer::StreamMeta;
use crate::error::{Error, Result};
use crate::schema::{Compression, PhysicalType};

const KEYS_PER_CHUNK: usize = 1 << 14;
const BITS_PER_KEY: usize = 12;
const BLOCK_WORDS: usize = 8;
/// Odd multipliers; each picks a bit of one word from the low half of the hash. Stored filters depend on them, so they
/// never change.
const SALTS: [u32; BLOCK_WORDS] =
    [0x47b6_137b, 0x4497_4d91, 0x8824_ad5b, 0xa2b7_289d, 0x7054_95c7, 0x2df1_424b, 0x9efc_4947, 0x5c6b_fb31];

type Block = [u32; BLOCK_WORDS];

/// A decoded chunk.
#[derive(Debug, PartialEq, Eq)]
pub struct BloomChunk {
    blocks: Vec<Block>,
}

impl BloomChunk {
    fn of(hashes: &[u64]) -> BloomChunk {
        let count = (hashes.len() * BITS_PER_KEY).div_ceil(32 * BLOCK_WORDS).max(1);
        let mut blocks = vec![[0; BLOCK_WORDS]; count];
        for hash in hashes {
            let block = &mut blocks[block_of(*hash, count)];
            for (word, bit) in block.iter_mut().zip(bits_of(*hash)) {
                *word |= bit;
            }
        }
        BloomChunk { blocks }
    }

    /// Returns false if no key with this hash is in the chunk.
    pub fn may_contain(&self, hash: u64) -> bool {
        let block = &self.blocks[block_of(hash, self.blocks.len())];
        block.iter().zip(bits_of(hash)).all(|(word, bit)| word & bit != 0)
    }

    fn encode(&self) -> Vec<u8> {
        self.blocks.iter().flatten().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Decodes the body of a chunk's page.
    pub fn decode(body: &[u8]) -> Result<BloomChunk> {
        let (words, rest) = body.as_chunks::<4>();
        let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let (blocks, odd) = words.as_chunks::<BLOCK_WORDS>();
        if blocks.is_empty() || !odd.is_empty() || !rest.is_empty() {
            return Err(Error::corrupt(format!(
                "a Bloom filter of {} bytes is not whole blocks",
                body.len()
            )));
        }
        Ok(BloomChunk { blocks: blocks.to_vec() })
    }

    pub fn byte_size(&self) -> usize {
        self.blocks.len() * size_of::<Block>()
    }
}

fn block_of(hash: u64, count: usize) -> usize {
    (((hash >> 32) * count as u64) >> 32) as usize
}

fn bits_of(hash: u64) -> Block {
    SALTS.map(|salt| 1 << ((hash as u32).wrapping_mul(salt) >> 27))
}

/// Collects keys in order and writes their chunks.
#[derive(Default)]
pub struct KeyBloomWriter {
    hashes: Vec<u64>,
    first_key: Vec<u8>,
    last_key: Vec<u8>,
    index: PageIndex,
    rows: u32,
    bytes: u64,
}

impl KeyBloomWriter {
    /// Bytes of memory allocated.
    pub fn allocated(&self) -> usize {
        let keys = self.first_key.capacity() + self.last_key.capacity();
        self.hashes.capacity() * size_of::<u64>() + keys + self.index.allocated()
    }

    /// Bytes of the index of the chunks written so far.
    pub fn index_bytes(&self) -> usize {
        self.index.encoded_bytes()
    }

    /// Adds the next key.
    pub fn push(&mut self, key: &[u8], out: &mut PageWriter) -> Result<()> {
        if self.hashes.is_empty() {
            self.first_key = key.to_vec();
        }
        self.hashes.push(hash64(key));
        self.rows += 1;
        if self.hashes.len() == KEYS_PER_CHUNK {
            self.last_key = key.to_vec();
            self.flush(out)?;
        }
        Ok(())
    }

    fn flush(&mut self, out: &mut PageWriter) -> Result<()> {
        let chunk = BloomChunk::of(&self.hashes);
        let ordinal = self.index.pages.len() as u32;
        let at = out.append(stream::BLOOM, ordinal, Compression::None, &chunk.encode())?;
        let rows = self.hashes.len() as u32;
        self.bytes += u64::from(at.len);
        let bounds = Some((std::mem::take(&mut self.first_key), std::mem::take(&mut self.last_key)));
        self.index.pages.push(PageEntry { at, first_row: self.rows - rows, rows, nulls: 0, bounds });
        self.hashes.clear();
        Ok(())
    }

    /// Writes the last chunk, whose last key is `last_key`, and the index.
    pub fn finish(mut self, last_key: &[u8], out: &mut PageWriter) -> Result<StreamMeta> {
        if !self.hashes.is_empty() {
            self.last_key = last_key.to_vec();
            self.flush(out)?;
        }
        let index: PageRef =
            out.append(index_of(stream::BLOOM), 0, Compression::None, &self.index.encode())?;
        Ok(StreamMeta {
            stream: stream::BLOOM,
            physical: PhysicalType::Binary,
            nullable: false,
            rows: self.rows,
            index,
            dictionary: None,
            raw_bytes: self.bytes,
            stored_bytes: self.bytes + u64::from(index.len),
        })
    }
}

const _: () = assert!(KEYS_PER_CHUNK <= PAGE_ROWS_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn present_keys_pass_and_few_absent_ones_do() {
        let hash = |i: u32| hash64(&i.to_be_bytes());
        let hashes: Vec<u64> = (0..KEYS_PER_CHUNK as u32).map(hash).collect();
        let chunk = BloomChunk::decode(&BloomChunk::of(&hashes).encode()).unwrap();
        assert!(hashes.iter().all(|hash| chunk.may_contain(*hash)));
        let absent = 1_000_000..1_100_000u32;
        let passed = absent.filter(|i| chunk.may_contain(hash(*i))).count();
        assert!(passed < 1000, "{passed} of 100000 absent keys passed");
    }

    #[test]
    fn a_chunk_that_is_not_whole_blocks_is_rejected() {
        assert!(BloomChunk::decode(&[]).is_err());
        assert!(BloomChunk::decode(&[0; 33]).is_err());
    }
}
