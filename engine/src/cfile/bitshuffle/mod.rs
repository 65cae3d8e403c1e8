//! Bit-plane transposition of integers, which turns the bits they share into runs of zeros.
//!
//! ```text
//! packed    flags u8 (1 = LZ4) | bits u8 | base (width) | [LZ4 length u32] | planes
//! planes    for each chunk of up to 2048 values: plane 0 .. plane bits-1, each ceil(values / 8) bytes
//! plane p   bit p of value - base, eight values to a byte, the first in the least significant bit
//! ```
//!
//! `base` is the smallest value, `bits` the width of the largest difference. Planes above it are not stored,
//! so equal values take no planes at all. Sixteen-byte values are two packed sequences, low halves
//! then high halves. The planes are compressed with LZ4 when that saves an eighth or more.
//!
//! *Not here:* grouping of values into pages, NULLs, checksums.

use std::borrow::Cow;

use super::narrow_ints::NarrowInts;
use crate::codec::ByteReader;
use crate::error::{Error, Result};

const CHUNK: usize = 2048;
const FLAG_LZ4: u8 = 1;

/// Transposes 8×8 bits: bit `c` of byte `r` becomes bit `r` of byte `c`.
#[inline(always)]
fn transpose_bits(mut x: u64) -> u64 {
    let t = (x ^ (x >> 7)) & 0x00aa_00aa_00aa_00aa;
    x ^= t ^ (t << 7);
    let t = (x ^ (x >> 14)) & 0x0000_cccc_0000_cccc;
    x ^= t ^ (t << 14);
    let t = (x ^ (x >> 28)) & 0x0000_0000_f0f0_f0f0;
    x ^ t ^ (t << 28)
}

/// Transposes 8×8 bytes: byte `c` of word `r` becomes byte `r` of word `c`.
#[inline(always)]
fn transpose_bytes(words: &mut [u64; 8]) {
    const STAGES: [(usize, u32, u64); 3] =
        [(4, 32, 0x0000_0000_ffff_ffff), (2, 16, 0x0000_ffff_0000_ffff), (1, 8, 0x00ff_00ff_00ff_00ff)];
    for (distance, shift, low) in STAGES {
        for i in (0..8).filter(|i| i & distance == 0) {
            let (a, b) = (words[i], words[i + distance]);
            words[i] = (a & low) | ((b & low) << shift);
            words[i + distance] = ((a >> shift) & low) | (b & !low);
        }
    }
}

/// Returns the bytes that `bits` planes of `count` values take.
fn planes_len(count: usize, bits: usize) -> usize {
    let full = count / CHUNK * (CHUNK / 8);
    (full + (count % CHUNK).div_ceil(8)) * bits
}

/// An unsigned integer that planes are made of.
trait Word: Copy + Ord {
    const BYTES: usize;
    fn load(bytes: &[u8]) -> Self;
    fn store(self, out: &mut [u8]);
    fn to_u64(self) -> u64;
    fn from_u64(value: u64) -> Self;
    fn minus(self, base: Self) -> Self;
    fn plus(self, base: Self) -> Self;
}

macro_rules! words {
    ($($ty:ty),*) => {$(
        impl Word for $ty {
            const BYTES: usize = size_of::<$ty>();
            #[inline(always)]
            fn load(bytes: &[u8]) -> Self {
                <$ty>::from_le_bytes(bytes.try_into().expect("the caller cuts cells of this width"))
            }
            #[inline(always)]
            fn store(self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_le_bytes());
            }
            #[inline(always)]
            fn to_u64(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn from_u64(value: u64) -> Self {
                value as $ty
            }
            #[inline(always)]
            fn minus(self, base: Self) -> Self {
                self.wrapping_sub(base)
            }
            #[inline(always)]
            fn plus(self, base: Self) -> Self {
                self.wrapping_add(base)
            }
        }
    )*};
}

words!(u8, u16, u32, u64);

/// Order by which the smallest value is found. Signed integers are two's complement.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Signedness {
    Signed,
    Unsigned,
}

/// Appends the packed form of `bytes`, little-endian cells of `width` bytes.
///
/// Panics unless `width` is 1, 2, 4, 8 or 16 and divides the length.
pub fn pack(bytes: &[u8], width: usize, sign: Signedness, out: &mut Vec<u8>) {
    assert!(bytes.len().is_multiple_of(width), "whole cells");
    match width {
        1 => pack_words::<u8>(bytes, sign, out),
        2 => pack_words::<u16>(bytes, sign, out),
        4 => pack_words::<u32>(bytes, sign, out),
        8 => pack_words::<u64>(bytes, sign, out),
        16 => {
            let half = |from: usize| -> Vec<u8> {
                bytes.chunks_exact(16).flat_map(|cell| cell[from..from + 8].iter().copied()).collect()
            };
            pack_words::<u64>(&half(0), Signedness::Unsigned, out);
            pack_words::<u64>(&half(8), sign, out);
        }
        _ => panic!("cells of {width} bytes are not packed"),
    }
}

/// Packs integers that are not cells: lengths, codes.
pub fn pack_u32(values: &[u32], out: &mut Vec<u8>) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    pack(&bytes, 4, Signedness::Unsigned, out);
}

/// Returns the smallest value and the number of bits that the largest difference needs.
fn frame<W: Word>(bytes: &[u8], sign: Signedness) -> (W, usize) {
    // Adding half the range turns the order of two's complement into the order of unsigned numbers.
    let top = if sign == Signedness::Signed { 1u64 << (W::BYTES * 8 - 1) } else { 0 };
    let top = W::from_u64(top);
    let mut cells = bytes.chunks_exact(W::BYTES).map(|cell| W::load(cell).plus(top));
    let Some(first) = cells.next() else { return (W::from_u64(0), 0) };
    let (low, high) = cells.fold((first, first), |(low, high), cell| (low.min(cell), high.max(cell)));
    let bits = 64 - high.minus(low).to_u64().leading_zeros() as usize;
    (low.minus(top), bits)
}

fn pack_words<W: Word>(bytes: &[u8], sign: Signedness, out: &mut Vec<u8>) {
    let (base, bits) = frame::<W>(bytes, sign);
    let header = out.len();
    out.extend_from_slice(&[0, bits as u8]);
    out.extend_from_slice(&base.to_u64().to_le_bytes()[..W::BYTES]);
    if bits == 0 {
        return;
    }
    let mut planes = vec![0; planes_len(bytes.len() / W::BYTES, bits)];
    let mut rest = &mut planes[..];
    for chunk in bytes.chunks(CHUNK * W::BYTES) {
        let size = planes_len(chunk.len() / W::BYTES, bits);
        let (mine, after) = rest.split_at_mut(size);
        shuffle_chunk::<W>(chunk, base, bits, mine);
        rest = after;
    }
    let limit = planes.len() - planes.len() / 8;
    let start = out.len();
    out.resize(start + 4 + lz4_flex::block::get_maximum_output_size(planes.len()), 0);
    match lz4_flex::block::compress_into(&planes, &mut out[start + 4..]) {
        Ok(size) if size + 4 < limit => {
            out[header] = FLAG_LZ4;
            out[start..start + 4].copy_from_slice(&(size as u32).to_le_bytes());
            out.truncate(start + 4 + size);
        }
        _ => {
            out.truncate(start);
            out.extend_from_slice(&planes);
        }
    }
}

/// A chunk's values split into bytes: byte `b` of each value, for every `b`.
type Lanes = [[u8; CHUNK]; 8];

/// Splits values into their bytes, then transposes 64 of those at a time into planes.
fn shuffle_chunk<W: Word>(cells: &[u8], base: W, bits: usize, planes: &mut [u8]) {
    let count = cells.len() / W::BYTES;
    let stride = planes.len() / bits;
    let mut lane = [0u8; CHUNK];
    for byte in 0..bits.div_ceil(8) {
        for (out, cell) in lane.iter_mut().zip(cells.chunks_exact(W::BYTES)) {
            *out = (W::load(cell).minus(base).to_u64() >> (8 * byte)) as u8;
        }
        lane[count..].fill(0);
        let here = (bits - 8 * byte).min(8);
        let planes = &mut planes[8 * byte * stride..(8 * byte + here) * stride];
        let (blocks, _) = lane[..count.next_multiple_of(64)].as_chunks::<64>();
        for (j, block) in blocks.iter().enumerate() {
            let mut words = split(block).map(transpose_bits);
            transpose_bytes(&mut words);
            let len = (stride - 8 * j).min(8);
            for (plane, word) in planes.chunks_exact_mut(stride).zip(words) {
                plane[8 * j..8 * j + len].copy_from_slice(&word.to_le_bytes()[..len]);
            }
        }
    }
}

#[inline(always)]
fn split(block: &[u8; 64]) -> [u64; 8] {
    let (words, _) = block.as_chunks::<8>();
    std::array::from_fn(|i| u64::from_le_bytes(words[i]))
}

/// Appends `count` cells of `width` bytes, unpacked from the front of `input`.
///
/// Returns `Corrupt` if the packed form is damaged. The caller has bounded `count`.
pub fn unpack(input: &mut ByteReader<'_>, count: usize, width: usize, out: &mut Vec<u8>) -> Result<()> {
    match width {
        1 => unpack_words::<u8>(input, count, out),
        2 => unpack_words::<u16>(input, count, out),
        4 => unpack_words::<u32>(input, count, out),
        8 => unpack_words::<u64>(input, count, out),
        16 => {
            let (mut low, mut high) = (Vec::new(), Vec::new());
            unpack_words::<u64>(input, count, &mut low)?;
            unpack_words::<u64>(input, count, &mut high)?;
            out.reserve(count * 16);
            for (low, high) in low.chunks_exact(8).zip(high.chunks_exact(8)) {
                out.extend_from_slice(low);
                out.extend_from_slice(high);
            }
            Ok(())
        }
        _ => Err(Error::corrupt(format!("cells of {width} bytes are never packed"))),
    }
}

/// Unpacks `count` cells of 1, 2, 4 or 8 bytes as their smallest value and what each is more than that.
pub fn unpack_narrow(input: &mut ByteReader<'_>, count: usize, width: usize) -> Result<(u64, NarrowInts)> {
    let planes = Planes::read(input, count, width)?;
    let narrow = NarrowInts::width_for(planes.highest());
    Ok((planes.base, planes.to_ints(narrow, 0, count)))
}

/// Decodes what [`pack_u32`] wrote.
pub fn unpack_u32(input: &mut ByteReader<'_>, count: usize) -> Result<Vec<u32>> {
    let mut bytes = Vec::new();
    unpack_words::<u32>(input, count, &mut bytes)?;
    Ok(bytes.chunks_exact(4).map(u32::load).collect())
}

/// Decodes what [`pack_u32`] wrote, to integers that are as narrow as the largest may need.
pub fn unpack_narrow_u32(input: &mut ByteReader<'_>, count: usize) -> Result<NarrowInts> {
    let planes = Planes::read(input, count, 4)?;
    // Damaged values are above four bytes. They wrap, as cells do.
    let narrow = NarrowInts::width_for(planes.base.saturating_add(planes.highest())).min(4);
    Ok(planes.to_ints(narrow, planes.base, count))
}

fn unpack_words<W: Word>(input: &mut ByteReader<'_>, count: usize, out: &mut Vec<u8>) -> Result<()> {
    let planes = Planes::read(input, count, W::BYTES)?;
    let start = out.len();
    out.resize(start + count * W::BYTES, 0);
    planes.join(W::from_u64(planes.base), &mut out[start..]);
    Ok(())
}

/// Packed integers, decompressed and not yet joined.
struct Planes<'a> {
    base: u64,
    bits: usize,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Planes<'a> {
    /// Takes `count` integers of `width` bytes from the front of `input`.
    fn read(input: &mut ByteReader<'a>, count: usize, width: usize) -> Result<Planes<'a>> {
        let (flags, bits) = (input.u8()?, input.u8()? as usize);
        if flags & !FLAG_LZ4 != 0 || bits > 8 * width {
            return Err(Error::corrupt(format!("packed values have flags {flags} and {bits} bits")));
        }
        let base = load_up_to_8(input.take(width)?);
        let size = planes_len(count, bits);
        let bytes = match flags & FLAG_LZ4 {
            _ if bits == 0 => Cow::Borrowed(&[][..]),
            0 => Cow::Borrowed(input.take(size)?),
            _ => {
                let stored = input.u32()? as usize;
                Cow::Owned(super::compress::lz4_exact(input.take(stored)?, size)?)
            }
        };
        Ok(Planes { base, bits, bytes })
    }

    /// Returns the largest value that the bits can have, without the base.
    fn highest(&self) -> u64 {
        if self.bits == 0 { 0 } else { u64::MAX >> (64 - self.bits) }
    }

    /// Joins planes to `count` integers of `width` bytes.
    fn to_ints(&self, width: usize, base: u64, count: usize) -> NarrowInts {
        let mut bytes = vec![0; count * width];
        match width {
            1 => self.join(u8::from_u64(base), &mut bytes),
            2 => self.join(u16::from_u64(base), &mut bytes),
            4 => self.join(u32::from_u64(base), &mut bytes),
            _ => self.join(base, &mut bytes),
        }
        NarrowInts::new(width, bytes)
    }

    /// Joins planes to cells, which are as wide as all bits.
    fn join<W: Word>(&self, base: W, cells: &mut [u8]) {
        if self.bits == 0 {
            cells.chunks_exact_mut(W::BYTES).for_each(|cell| base.store(cell));
            return;
        }
        let mut lanes = [[0; CHUNK]; 8];
        let mut planes = &self.bytes[..];
        for cells in cells.chunks_mut(CHUNK * W::BYTES) {
            let (mine, after) = planes.split_at(planes_len(cells.len() / W::BYTES, self.bits));
            unshuffle_chunk::<W>(mine, base, self.bits, &mut lanes, cells);
            planes = after;
        }
    }
}

/// Joins planes to bytes, 64 at a time, then those to values.
fn unshuffle_chunk<W: Word>(planes: &[u8], base: W, bits: usize, lanes: &mut Lanes, cells: &mut [u8]) {
    let stride = planes.len() / bits;
    for (group, lane) in planes.chunks(8 * stride).zip(lanes.iter_mut()) {
        let (blocks, _) = lane.as_chunks_mut::<64>();
        for (j, block) in blocks.iter_mut().take(stride.div_ceil(8)).enumerate() {
            let mut words = [0u64; 8];
            for (word, plane) in words.iter_mut().zip(group.chunks_exact(stride)) {
                *word = load_up_to_8(&plane[8 * j..]);
            }
            transpose_bytes(&mut words);
            for (out, word) in block.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                *out = transpose_bits(word).to_le_bytes();
            }
        }
    }
    match bits.div_ceil(8) {
        1 => join::<W, 1>(lanes, base, cells),
        2 => join::<W, 2>(lanes, base, cells),
        3 => join::<W, 3>(lanes, base, cells),
        4 => join::<W, 4>(lanes, base, cells),
        5 => join::<W, 5>(lanes, base, cells),
        6 => join::<W, 6>(lanes, base, cells),
        7 => join::<W, 7>(lanes, base, cells),
        _ => join::<W, 8>(lanes, base, cells),
    }
}

#[inline(always)]
fn load_up_to_8(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(word) => u64::from_le_bytes(*word),
        None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// Joins `N` bytes to each value and adds the base. Most columns need few bytes: their loops have no index, and the
/// compiler vectorizes them.
fn join<W: Word, const N: usize>(lanes: &Lanes, base: W, cells: &mut [u8]) {
    let cells = cells.chunks_exact_mut(W::BYTES);
    let put = |cell: &mut [u8], value: u64| W::from_u64(value).plus(base).store(cell);
    let [a, b, c, ..] = lanes;
    match N {
        1 => cells.zip(a).for_each(|(cell, a)| put(cell, u64::from(*a))),
        2 => {
            let values = a.iter().zip(b).map(|(a, b)| u64::from(*a) | u64::from(*b) << 8);
            cells.zip(values).for_each(|(cell, value)| put(cell, value));
        }
        3 => {
            let low = a.iter().zip(b).map(|(a, b)| u64::from(*a) | u64::from(*b) << 8);
            let values = low.zip(c).map(|(low, c)| low | u64::from(*c) << 16);
            cells.zip(values).for_each(|(cell, value)| put(cell, value));
        }
        _ => {
            for (i, cell) in cells.enumerate().take(CHUNK) {
                let bytes = lanes.iter().take(N).zip((0..).step_by(8));
                put(cell, bytes.fold(0, |value, (lane, shift)| value | u64::from(lane[i]) << shift));
            }
        }
    }
}

#[cfg(test)]
mod tests;
