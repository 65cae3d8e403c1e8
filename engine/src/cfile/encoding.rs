//! Encodings of a page's body: the cells of one column.
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
//! the column's encoding: equal cells become `same`, a dictionary that grows too large is replaced by `plain`,
//! and run lengths that save no bytes by `shuffle`. [`resolve`] defines AUTO.
//!
//! *Not here:* page headers, checksums, compression ([`super::page_file`]); choosing where a page ends
//! ([`super::writer`]).

use std::sync::Arc;

use super::bitshuffle::{Signedness, pack, pack_u32, unpack, unpack_narrow, unpack_narrow_u32, unpack_u32};
use super::compress::PAGE_BYTES_MAX;
use super::decoded_page::{DecodedPage, Dictionary, PageCells};
use super::key_prefix::common_prefix;
use super::narrow_ints::NarrowInts;
use crate::codec::{ByteReader, put_bytes};
use crate::error::{Error, Result};
use crate::schema::row_block::{Bitmap, ColumnBlock, ColumnValues};
use crate::schema::{Encoding, PhysicalType};

/// Most rows of a page.
pub const PAGE_ROWS_MAX: usize = 1 << 16;

const TAG_SAME: u8 = 0;
const TAG_PLAIN: u8 = 1;
const TAG_PREFIX: u8 = 2;
const TAG_RLE: u8 = 4;
const TAG_DICT: u8 = 5;
const TAG_SHUFFLE: u8 = 6;
const FLAG_NULLS: u8 = 1;

/// Resolves a column's encoding: the requested one, or the type's default for AUTO. Returns `Unsupported` if the type
/// cannot have it.
pub fn resolve(physical: PhysicalType, requested: Encoding) -> Result<Encoding> {
    use Encoding::{Auto, BitShuffle, Dict, Plain, Prefix, Rle};
    let legal: &[Encoding] = match physical {
        PhysicalType::Bool => &[Rle, Plain],
        PhysicalType::Float | PhysicalType::Double | PhysicalType::Int128 => &[BitShuffle, Plain],
        PhysicalType::Binary => &[Dict, Plain, Prefix],
        _ => &[BitShuffle, Plain, Rle],
    };
    match requested {
        Auto => Ok(legal[0]),
        requested if legal.contains(&requested) => Ok(requested),
        requested => {
            Err(Error::unsupported(format!("encoding {requested:?} not supported for type {physical:?}")))
        }
    }
}

fn sign(physical: PhysicalType) -> Signedness {
    match physical {
        PhysicalType::Int8
        | PhysicalType::Int16
        | PhysicalType::Int32
        | PhysicalType::Int64
        | PhysicalType::Int128 => Signedness::Signed,
        _ => Signedness::Unsigned,
    }
}

/// Encodes a page. `codes` are its cells' positions in the dictionary when the encoding is `Dict`.
///
/// `encoding` comes from [`resolve`]; without codes, `Dict` means plain.
pub fn encode(
    block: &ColumnBlock,
    physical: PhysicalType,
    encoding: Encoding,
    codes: Option<&[u32]>,
) -> Vec<u8> {
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
        ColumnValues::Fixed { width, bytes } => encode_fixed(bytes, *width, physical, encoding, &mut out),
        ColumnValues::Var { offsets, bytes } => encode_var(offsets, bytes, encoding, codes, &mut out),
    };
    out
}

fn all_equal(values: &ColumnValues, rows: usize) -> bool {
    match values {
        ColumnValues::Fixed { width, bytes } => bytes[*width..] == bytes[..bytes.len() - width],
        ColumnValues::Var { offsets, bytes } => {
            let len = offsets[1] as usize;
            bytes.len() == len * rows
                && offsets.windows(2).all(|pair| (pair[1] - pair[0]) as usize == len)
                && bytes[len.min(bytes.len())..] == bytes[..bytes.len().saturating_sub(len)]
        }
    }
}

fn encode_fixed(
    bytes: &[u8],
    width: usize,
    physical: PhysicalType,
    encoding: Encoding,
    out: &mut Vec<u8>,
) -> u8 {
    match encoding {
        Encoding::BitShuffle => pack(bytes, width, sign(physical), out),
        Encoding::Rle => {
            let (lengths, cells) = runs(bytes, width);
            // Shuffled booleans take one bit per row. Runs save bytes only if they are fewer than that.
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

/// Returns the lengths of runs of equal cells, and the cell of each.
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
/// Returns `Corrupt` for anything that is not the encoding of a page of this type.
pub fn decode(
    body: &[u8],
    physical: PhysicalType,
    nullable: bool,
    dictionary: Option<&Arc<Dictionary>>,
) -> Result<DecodedPage> {
    let mut input = ByteReader::new(body);
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
            PageCells::Same(cell)
        }
        (TAG_PLAIN | TAG_RLE | TAG_SHUFFLE, Some(width)) => decode_fixed(&mut input, tag, rows, width)?,
        (TAG_PLAIN, None) => {
            let (offsets, bytes) = take_strings(&mut input, rows)?;
            PageCells::Var { offsets, bytes }
        }
        (TAG_PREFIX, None) => decode_prefix(&mut input, rows)?,
        (TAG_DICT, None) => decode_codes(&mut input, rows, dictionary)?,
        _ => return Err(Error::corrupt(format!("a {physical:?} page has the unknown encoding {tag}"))),
    };
    input.finish()?;
    Ok(DecodedPage { rows, validity, cells })
}

fn decode_fixed(input: &mut ByteReader<'_>, tag: u8, rows: usize, width: usize) -> Result<PageCells> {
    match tag {
        TAG_PLAIN => Ok(PageCells::Fixed { width, bytes: input.take(rows * width)?.to_vec() }),
        TAG_SHUFFLE => decode_shuffled(input, rows, width),
        _ => decode_runs(input, rows, width),
    }
}

fn decode_shuffled(input: &mut ByteReader<'_>, rows: usize, width: usize) -> Result<PageCells> {
    if width > 8 {
        let mut bytes = Vec::new();
        unpack(input, rows, width, &mut bytes)?;
        return Ok(PageCells::Fixed { width, bytes });
    }
    let (base, above) = unpack_narrow(input, rows, width)?;
    Ok(PageCells::Narrow { width, base, above })
}

fn decode_runs(input: &mut ByteReader<'_>, rows: usize, width: usize) -> Result<PageCells> {
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
    Ok(PageCells::Runs { width, ends, cells })
}

fn check_total(lengths: &[u32], rows: usize) -> Result<()> {
    let total: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
    if total != rows as u64 {
        return Err(Error::corrupt(format!("runs of {total} rows in a page of {rows}")));
    }
    Ok(())
}

/// Returns offsets computed from lengths; `Corrupt` if the bytes would exceed what a page may hold.
fn offsets_of(lengths: &NarrowInts) -> Result<Vec<u32>> {
    let mut total = 0;
    lengths.for_each(0..lengths.len(), |length| total += length);
    if total > PAGE_BYTES_MAX as u64 {
        return Err(Error::corrupt(format!("a page's cells are said to have {total} bytes")));
    }
    let mut offsets = Vec::with_capacity(lengths.len() + 1);
    let mut end = 0;
    offsets.push(end);
    lengths.for_each(0..lengths.len(), |length| {
        end += length as u32;
        offsets.push(end);
    });
    Ok(offsets)
}

/// Decodes what [`put_strings`] wrote: offsets and bytes of `count` strings, to the end of the input.
pub fn take_strings(input: &mut ByteReader<'_>, count: usize) -> Result<(Vec<u32>, Vec<u8>)> {
    let offsets = offsets_of(&unpack_narrow_u32(input, count)?)?;
    let end = offsets.last().copied().unwrap_or(0);
    let bytes = input.take(end as usize)?.to_vec();
    Ok((offsets, bytes))
}

fn decode_prefix(input: &mut ByteReader<'_>, rows: usize) -> Result<PageCells> {
    let shared = unpack_u32(input, rows)?;
    let rest = unpack_u32(input, rows)?;
    let total: u64 = shared.iter().chain(&rest).map(|length| u64::from(*length)).sum();
    if total > PAGE_BYTES_MAX as u64 {
        return Err(Error::corrupt(format!("a page's cells are said to have {total} bytes")));
    }
    let mut offsets = Vec::with_capacity(rows + 1);
    offsets.push(0);
    // Capacity is bounded by the bytes that are present, because shared lengths may be corrupt.
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
    Ok(PageCells::Var { offsets, bytes })
}

fn decode_codes(
    input: &mut ByteReader<'_>,
    rows: usize,
    dictionary: Option<&Arc<Dictionary>>,
) -> Result<PageCells> {
    let dictionary =
        dictionary.ok_or_else(|| Error::corrupt("a dictionary page in a column that has none"))?;
    let codes = unpack_narrow_u32(input, rows)?;
    let highest = codes.max() as usize;
    if rows > 0 && highest >= dictionary.len() {
        let size = dictionary.len();
        return Err(Error::corrupt(format!("code {highest} is not in the dictionary of {size} values")));
    }
    Ok(PageCells::Codes { codes, dictionary: dictionary.clone() })
}

/// Encodes a dictionary page: the count, then the strings.
pub fn encode_dictionary(dictionary: &Dictionary) -> Vec<u8> {
    let mut out = (dictionary.len() as u32).to_le_bytes().to_vec();
    put_strings(&dictionary.offsets, &dictionary.bytes, &mut out);
    out
}

/// Decodes what [`encode_dictionary`] wrote.
pub fn decode_dictionary(body: &[u8]) -> Result<Dictionary> {
    let mut input = ByteReader::new(body);
    let count = input.u32()? as usize;
    if count > PAGE_ROWS_MAX {
        return Err(Error::corrupt(format!("a dictionary claims {count} values")));
    }
    let (offsets, bytes) = take_strings(&mut input, count)?;
    input.finish()?;
    Ok(Dictionary { offsets, bytes })
}
