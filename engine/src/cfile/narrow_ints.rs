//! Unsigned integers in memory, each in as few bytes as the largest of them needs.
//!
//! Most pages have few distinct values or a narrow range. In this form they take an eighth to a half of the page cache
//! that cells would, and of the time in which the kernel provides that memory.

use std::ops::Range;

/// Integers of equal width.
#[derive(Debug, PartialEq, Eq)]
pub struct NarrowInts {
    /// 1, 2, 4 or 8 bytes.
    width: usize,
    /// Little-endian.
    bytes: Vec<u8>,
}

/// Evaluates an expression with a width of integers as the constant `$constant`.
macro_rules! with_width {
    ($width:expr, $constant:ident => $body:expr) => {
        match $width {
            1 => with_width!(@ 1, $constant => $body),
            2 => with_width!(@ 2, $constant => $body),
            4 => with_width!(@ 4, $constant => $body),
            _ => with_width!(@ 8, $constant => $body),
        }
    };
    (@ $width:literal, $constant:ident => $body:expr) => {{
        const $constant: usize = $width;
        $body
    }};
}
pub(super) use with_width;

/// Returns the integer of up to eight little-endian bytes.
#[inline(always)]
pub(super) fn word<const N: usize>(bytes: &[u8; N]) -> u64 {
    let mut word = [0; 8];
    word[..N].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

impl NarrowInts {
    /// Creates integers of `width` bytes, which divides the length.
    pub fn new(width: usize, bytes: Vec<u8>) -> NarrowInts {
        debug_assert!([1, 2, 4, 8].contains(&width) && bytes.len().is_multiple_of(width));
        NarrowInts { width, bytes }
    }

    /// Returns the width in bytes of integers up to `highest`.
    pub fn width_for(highest: u64) -> usize {
        match highest {
            0..=0xff => 1,
            0x100..=0xffff => 2,
            0x1_0000..=0xffff_ffff => 4,
            _ => 8,
        }
    }

    pub fn len(&self) -> usize {
        self.bytes.len() / self.width
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Width of each integer in bytes.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The integers, little-endian.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn get(&self, at: usize) -> u64 {
        with_width!(self.width, N => word(&self.cells::<N>()[at]))
    }

    /// Returns the largest integer; 0 if there is none.
    pub fn max(&self) -> u64 {
        with_width!(self.width, N => self.cells::<N>().iter().map(word).max().unwrap_or(0))
    }

    /// Passes the integers at `range` to `take`.
    #[inline(always)]
    pub fn for_each(&self, range: Range<usize>, mut take: impl FnMut(u64)) {
        with_width!(self.width, N => self.cells::<N>()[range].iter().for_each(|cell| take(word(cell))));
    }

    /// Appends cells of `width` bytes: the integers at `range`, each added to `base`.
    pub fn copy_cells(&self, range: Range<usize>, base: u64, width: usize, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + range.len() * width, 0);
        let out = &mut out[start..];
        with_width!(self.width, N => {
            let values = self.cells::<N>()[range].iter().map(|cell| base.wrapping_add(word(cell)));
            with_width!(width, W => {
                for (cell, value) in out.as_chunks_mut::<W>().0.iter_mut().zip(values) {
                    cell.copy_from_slice(&value.to_le_bytes()[..W]);
                }
            })
        });
    }

    /// Appends cells of `width` bytes: the integers at `rows`, each added to `base`.
    pub fn gather_cells(
        &self,
        rows: impl Iterator<Item = usize>,
        base: u64,
        width: usize,
        out: &mut Vec<u8>,
    ) {
        with_width!(self.width, N => {
            let cells = self.cells::<N>();
            let values = rows.map(|row| base.wrapping_add(word(&cells[row])));
            with_width!(width, W => values.for_each(|value| out.extend_from_slice(&value.to_le_bytes()[..W])))
        });
    }

    fn cells<const N: usize>(&self) -> &[[u8; N]] {
        self.bytes.as_chunks::<N>().0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn integers_become_cells_of_any_width(
            values in prop::collection::vec(any::<u64>(), 1..40),
            shift in 0u32..64,
            base: u64,
            width in prop::sample::select(vec![1usize, 2, 4, 8]),
        ) {
            let values: Vec<u64> = values.iter().map(|value| value >> shift).collect();
            let highest = values.iter().copied().max().unwrap_or(0);
            let narrow = NarrowInts::width_for(highest);
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()[..narrow].to_vec()).collect();
            let ints = NarrowInts::new(narrow, bytes);
            prop_assert_eq!((ints.len(), ints.max()), (values.len(), highest));
            let mut passed = Vec::new();
            ints.for_each(1..values.len(), |value| passed.push(value));
            prop_assert_eq!(&passed, &values[1..]);
            prop_assert_eq!(ints.get(values.len() - 1), values[values.len() - 1]);
            let (mut copied, mut gathered) = (vec![7], vec![7]);
            ints.copy_cells(1..values.len(), base, width, &mut copied);
            ints.gather_cells(1..values.len(), base, width, &mut gathered);
            let wanted = values[1..].iter().flat_map(|value| base.wrapping_add(*value).to_le_bytes()[..width].to_vec());
            prop_assert_eq!(&copied[1..], &wanted.collect::<Vec<u8>>()[..]);
            prop_assert_eq!(copied, gathered);
        }
    }
}
