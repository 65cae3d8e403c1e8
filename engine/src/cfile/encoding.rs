//! The inside of a page: cells of one column, encoded.
//!
//! ```text
//! body        tag u8 | flags u8 (1 = has NULLs) | rows u32 | [validity: ceil(rows / 8) bytes] | cells
//!
//! tag         cells
//! 0 same      one cell: varint length, bytes             every cell of the page is equal
//! 1 plain     fixed: the cells                           any length: packed lengths, then the bytes
//! 2 prefix    packed lengths shared with the cell before, packed lengths of the rest, the rests
//! 4 rle       runs u32, packed run lengths, then the runs' cells, packed
//! 5 dict      packed codes                               positions in the column's dictionary page
//! 6 shuffle   packed cells
//! ```
//!
//! *Packed* is [`super::bitshuffle`]. NULL cells are stored as zeros or as nothing. A page's tag need not be
//! the column's encoding: equal cells become `same`, a dictionary that grows too large gives way to `plain`,
//! and run lengths that do not pay give way to `shuffle`. [`resolve`] says what AUTO means.
//!
//! *Not here:* page headers, checksums, compression ([`super::frame`]); choosing where a page ends
//! ([`super::writer`]).

use std::sync::Arc;

use super::bitshuffle::{Sign, pack, pack_u32, unpack, unpack_u32};
use super::compress::PAGE_BYTES_MAX;
use super::keys::common_prefix;
use super::page::{Cells, Dictionary, Page};
use crate::codec::{Reader, put_bytes};
use crate::error::{Error, Result};
use crate::schema::block::{Bitmap, ColumnBlock, Values};
use crate::schema::{Encoding, Physical};

/// No page has more rows.
pub const PAGE_ROWS_MAX: usize = 1 << 16;

const TAG_SAME: u8 = 0;
const TAG_PLAIN: u8 = 1;
const TAG_PREFIX: u8 = 2;
const TAG_RLE: u8 = 4;
const TAG_DICT: u8 = 5;
const TAG_SHUFFLE: u8 = 6;
const FLAG_NULLS: u8 = 1;

/// The encoding that a column gets: what was asked for, or the type's default; `Unsupported` if the type
/// cannot have it.
pub fn resolve(physical: Physical, asked: Encoding) -> Result<Encoding> {
    use Encoding::{Auto, BitShuffle, Dict, Plain, Prefix, Rle};
    let legal: &[Encoding] = match physical {
        Physical::Bool => &[Rle, Plain],
        Physical::Float | Physical::Double | Physical::Int128 => &[BitShuffle, Plain],
        Physical::Binary => &[Dict, Plain, Prefix],
        _ => &[BitShuffle, Plain, Rle],
    };
    match asked {
        Auto => Ok(legal[0]),
        asked if legal.contains(&asked) => Ok(asked),
        asked => Err(Error::unsupported(format!("encoding {asked:?} not supported for type {physical:?}"))),
    }
}

fn sign(physical: Physical) -> Sign {
    match physical {
        Physical::Int8 | Physical::Int16 | Physical::Int32 | Physical::Int64 | Physical::Int128 => {
            Sign::Signed
        }
        _ => Sign::Unsigned,
    }
}

/// Encodes a page; `codes` are its cells' places in the dictionary when the encoding is `Dict`.
///
/// `encoding` is one that [`resolve`] gave; without codes, `Dict` means plain.
pub fn encode(block: &ColumnBlock, physical: Physical, encoding: Encoding, codes: Option<&[u32]>) -> Vec<u8> {
    let rows = block.len();
    let mut out = Vec::with_capacity(64 + block.byte_size() / 2);
    let validity = block.validity.as_ref().filter(|valid| !valid.all());
    out.extend_from_slice(&[TAG_PLAIN, if validity.is_some() { FLAG_NULLS } else { 0 }]);
    out.extend_from_slice(&(rows as u32).to_le_bytes());
    if let Some(valid) = validity {
        out.extend_from_slice(valid.as_bytes());
    }
    out[0] = match &block.values {
        _ if rows > 0 && all_equal(&block.values, rows) => {
            put_bytes(&mut out, block.raw(0));
            TAG_SAME
        }
        Values::Fixed { width, bytes } => encode_fixed(bytes, *width, physical, encoding, &mut out),
        Values::Var { offsets, bytes } => encode_var(offsets, bytes, encoding, codes, &mut out),
    };
    out
}

fn all_equal(values: &Values, rows: usize) -> bool {
    match values {
        Values::Fixed { width, bytes } => bytes[*width..] == bytes[..bytes.len() - width],
        Values::Var { offsets, bytes } => {
            let len = offsets[1] as usize;
            bytes.len() == len * rows
                && offsets.windows(2).all(|pair| (pair[1] - pair[0]) as usize == len)
                && bytes[len.min(bytes.len())..] == bytes[..bytes.len().saturating_sub(len)]
        }
    }
}

fn encode_fixed(bytes: &[u8], width: usize, physical: Physical, encoding: Encoding, out: &mut Vec<u8>) -> u8 {
    match encoding {
        Encoding::BitShuffle => pack(bytes, width, sign(physical), out),
        Encoding::Rle => {
            let (lengths, cells) = runs(bytes, width);
            // A bit a row is what shuffling booleans takes; runs must be fewer than that to pay.
            if lengths.len() * 4 <= bytes.len() / width {
                out.extend_from_slice(&(lengths.len() as u32).to_le_bytes());
                pack_u32(&lengths, out);
                pack(&cells, width, sign(physical), out);
                return TAG_RLE;
            }
            pack(bytes, width, sign(physical), out);
        }
        _ => {
            out.extend_from_slice(bytes);
            return TAG_PLAIN;
        }
    }
    TAG_SHUFFLE
}

/// Lengths of runs of equal cells, and the cell of each.
fn runs(bytes: &[u8], width: usize) -> (Vec<u32>, Vec<u8>) {
    let (mut lengths, mut cells) = (Vec::new(), Vec::<u8>::new());
    for cell in bytes.chunks_exact(width) {
        match lengths.last_mut() {
            Some(length) if &cells[cells.len() - width..] == cell => *length += 1,
            _ => {
                lengths.push(1);
                cells.extend_from_slice(cell);
            }
        }
    }
    (lengths, cells)
}

fn encode_var(
    offsets: &[u32],
    bytes: &[u8],
    encoding: Encoding,
    codes: Option<&[u32]>,
    out: &mut Vec<u8>,
) -> u8 {
    match (encoding, codes) {
        (Encoding::Dict, Some(codes)) => {
            pack_u32(codes, out);
            TAG_DICT
        }
        (Encoding::Prefix, _) => {
            encode_prefix(offsets, bytes, out);
            TAG_PREFIX
        }
        _ => {
            put_strings(offsets, bytes, out);
            TAG_PLAIN
        }
    }
}

/// Appends packed lengths, then the bytes.
pub fn put_strings(offsets: &[u32], bytes: &[u8], out: &mut Vec<u8>) {
    let lengths: Vec<u32> = offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
    pack_u32(&lengths, out);
    out.extend_from_slice(bytes);
}

fn encode_prefix(offsets: &[u32], bytes: &[u8], out: &mut Vec<u8>) {
    let rows = offsets.len() - 1;
    let (mut shared, mut rest) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    let mut tails = Vec::with_capacity(bytes.len() / 2);
    let mut before: &[u8] = &[];
    for pair in offsets.windows(2) {
        let cell = &bytes[pair[0] as usize..pair[1] as usize];
        let common = common_prefix(before, cell);
        shared.push(common as u32);
        rest.push((cell.len() - common) as u32);
        tails.extend_from_slice(&cell[common..]);
        before = cell;
    }
    pack_u32(&shared, out);
    pack_u32(&rest, out);
    out.extend_from_slice(&tails);
}

/// Decodes a page. `dictionary` is the column's, if it has one.
///
/// `Corrupt` for anything that is not the encoding of a page of this type.
pub fn decode(
    body: &[u8],
    physical: Physical,
    nullable: bool,
    dictionary: Option<&Arc<Dictionary>>,
) -> Result<Page> {
    let mut input = Reader::new(body);
    let (tag, flags) = (input.u8()?, input.u8()?);
    let rows = input.u32()? as usize;
    if rows > PAGE_ROWS_MAX || flags & !FLAG_NULLS != 0 || (flags == FLAG_NULLS && !nullable) {
        return Err(Error::corrupt(format!("a page claims {rows} rows and flags {flags}")));
    }
    let validity = match flags & FLAG_NULLS {
        0 => None,
        _ => Bitmap::from_bytes(input.take(rows.div_ceil(8))?.to_vec(), rows),
    };
    let cells = match (tag, physical.width()) {
        (TAG_SAME, width) => {
            let cell = input.bytes()?.to_vec();
            if width.is_some_and(|width| width != cell.len()) {
                return Err(Error::corrupt(format!("a cell of {} bytes in a {physical:?} page", cell.len())));
            }
            Cells::Same(cell)
        }
        (TAG_PLAIN | TAG_RLE | TAG_SHUFFLE, Some(width)) => decode_fixed(&mut input, tag, rows, width)?,
        (TAG_PLAIN, None) => {
            let (offsets, bytes) = take_strings(&mut input, rows)?;
            Cells::Var { offsets, bytes }
        }
        (TAG_PREFIX, None) => decode_prefix(&mut input, rows)?,
        (TAG_DICT, None) => decode_codes(&mut input, rows, dictionary)?,
        _ => return Err(Error::corrupt(format!("a {physical:?} page has the unknown encoding {tag}"))),
    };
    input.finish()?;
    Ok(Page { rows, validity, cells })
}

fn decode_fixed(input: &mut Reader<'_>, tag: u8, rows: usize, width: usize) -> Result<Cells> {
    let mut bytes = Vec::new();
    match tag {
        TAG_PLAIN => bytes.extend_from_slice(input.take(rows * width)?),
        TAG_SHUFFLE => unpack(input, rows, width, &mut bytes)?,
        _ => return decode_runs(input, rows, width),
    }
    Ok(Cells::Fixed { width, bytes })
}

fn decode_runs(input: &mut Reader<'_>, rows: usize, width: usize) -> Result<Cells> {
    let count = input.u32()? as usize;
    if count > rows {
        return Err(Error::corrupt(format!("{count} runs in a page of {rows} rows")));
    }
    let mut ends = unpack_u32(input, count)?;
    check_total(&ends, rows)?;
    if ends.contains(&0) {
        return Err(Error::corrupt("a page has a run without rows"));
    }
    let mut end = 0;
    for length in &mut ends {
        end += *length;
        *length = end;
    }
    let mut cells = Vec::new();
    unpack(input, count, width, &mut cells)?;
    Ok(Cells::Runs { width, ends, cells })
}

fn check_total(lengths: &[u32], rows: usize) -> Result<()> {
    let total: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
    if total != rows as u64 {
        return Err(Error::corrupt(format!("runs of {total} rows in a page of {rows}")));
    }
    Ok(())
}

/// Offsets from lengths; `Corrupt` if the bytes would be more than a page may hold.
fn offsets_of(lengths: &[u32]) -> Result<Vec<u32>> {
    let total: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
    if total > PAGE_BYTES_MAX as u64 {
        return Err(Error::corrupt(format!("a page's cells are said to have {total} bytes")));
    }
    let mut offsets = Vec::with_capacity(lengths.len() + 1);
    let mut end = 0;
    offsets.push(end);
    offsets.extend(lengths.iter().map(|length| {
        end += length;
        end
    }));
    Ok(offsets)
}

/// Reads what [`put_strings`] wrote: offsets and bytes of `count` strings, to the end of the input.
pub fn take_strings(input: &mut Reader<'_>, count: usize) -> Result<(Vec<u32>, Vec<u8>)> {
    let offsets = offsets_of(&unpack_u32(input, count)?)?;
    let end = offsets.last().copied().unwrap_or(0);
    let bytes = input.take(end as usize)?.to_vec();
    Ok((offsets, bytes))
}

fn decode_prefix(input: &mut Reader<'_>, rows: usize) -> Result<Cells> {
    let shared = unpack_u32(input, rows)?;
    let rest = unpack_u32(input, rows)?;
    let total: u64 = shared.iter().chain(&rest).map(|length| u64::from(*length)).sum();
    if total > PAGE_BYTES_MAX as u64 {
        return Err(Error::corrupt(format!("a page's cells are said to have {total} bytes")));
    }
    let mut offsets = Vec::with_capacity(rows + 1);
    offsets.push(0);
    // Only what is really there is believed before it is read: shared lengths may lie.
    let mut bytes = Vec::with_capacity((total as usize).min(4 * input.remaining()));
    let mut before = 0..0;
    for (shared, rest) in shared.into_iter().zip(rest) {
        let (shared, rest) = (shared as usize, rest as usize);
        if shared > before.len() {
            return Err(Error::corrupt("a cell shares more bytes with the one before it than that has"));
        }
        let start = bytes.len();
        bytes.extend_from_within(before.start..before.start + shared);
        bytes.extend_from_slice(input.take(rest)?);
        before = start..bytes.len();
        offsets.push(bytes.len() as u32);
    }
    Ok(Cells::Var { offsets, bytes })
}

fn decode_codes(input: &mut Reader<'_>, rows: usize, dictionary: Option<&Arc<Dictionary>>) -> Result<Cells> {
    let dictionary =
        dictionary.ok_or_else(|| Error::corrupt("a dictionary page in a column that has none"))?;
    let codes = unpack_u32(input, rows)?;
    let highest = codes.iter().copied().max().unwrap_or(0) as usize;
    if rows > 0 && highest >= dictionary.len() {
        let size = dictionary.len();
        return Err(Error::corrupt(format!("code {highest} is not in the dictionary of {size} values")));
    }
    Ok(Cells::Codes { codes, dictionary: dictionary.clone() })
}

/// Encodes a dictionary page: the count, then the strings.
pub fn encode_dictionary(dictionary: &Dictionary) -> Vec<u8> {
    let mut out = (dictionary.len() as u32).to_le_bytes().to_vec();
    put_strings(&dictionary.offsets, &dictionary.bytes, &mut out);
    out
}

/// Reads what [`encode_dictionary`] wrote.
pub fn decode_dictionary(body: &[u8]) -> Result<Dictionary> {
    let mut input = Reader::new(body);
    let count = input.u32()? as usize;
    if count > PAGE_ROWS_MAX {
        return Err(Error::corrupt(format!("a dictionary claims {count} values")));
    }
    let (offsets, bytes) = take_strings(&mut input, count)?;
    input.finish()?;
    Ok(Dictionary { offsets, bytes })
}
