//! One page of cells, encoded and decoded.

use std::hint::black_box;
use std::sync::Arc;

use engine::cfile::decoded_page::Dictionary;
use engine::cfile::encoding;
use engine::schema::row_block::ColumnBlock;
use engine::schema::{Encoding, PhysicalType};

use super::hot_path::{Run, WorkloadSize};
use crate::mix;

const COUNT: u64 = 8192;
pub(super) const ROWS: WorkloadSize = WorkloadSize::Rows(COUNT);

fn block(physical: PhysicalType, cell: impl Fn(u64) -> Vec<u8>) -> ColumnBlock {
    let mut block = ColumnBlock::new(physical, false);
    (0..COUNT).for_each(|row| block.push(Some(&cell(row))));
    block
}

/// Returns numbers below a million, unordered.
fn numbers() -> ColumnBlock {
    block(PhysicalType::Int64, |row| (mix(row) % 1_000_000).to_le_bytes().to_vec())
}

/// Returns states that repeat for a hundred rows each.
fn states() -> ColumnBlock {
    block(PhysicalType::Int32, |row| ((row / 100 % 7) as u32).to_le_bytes().to_vec())
}

/// Returns values from fifty words, with their dictionary codes.
fn words() -> (ColumnBlock, Vec<u32>, Arc<Dictionary>) {
    let code = |row: u64| (mix(row) % 50) as u32;
    let mut dictionary = Dictionary { offsets: vec![0], bytes: Vec::new() };
    for word in 0..50 {
        dictionary.bytes.extend_from_slice(format!("status-{word}").as_bytes());
        dictionary.offsets.push(dictionary.bytes.len() as u32);
    }
    let words = block(PhysicalType::Binary, |row| format!("status-{}", code(row)).into_bytes());
    (words, (0..COUNT).map(code).collect(), Arc::new(dictionary))
}

/// Returns sorted texts with common prefixes.
fn paths() -> ColumnBlock {
    block(PhysicalType::Binary, |row| format!("/var/log/host-{:04}/{:06}", row / 64, row * 17).into_bytes())
}

fn encode(block: ColumnBlock, physical: PhysicalType, how: Encoding, codes: Option<Vec<u32>>) -> Run {
    Box::new(move || {
        black_box(encoding::encode(&block, physical, how, codes.as_deref()));
    })
}

fn decode(body: Vec<u8>, physical: PhysicalType, dictionary: Option<Arc<Dictionary>>) -> Run {
    Box::new(move || {
        let page = encoding::decode(&body, physical, false, dictionary.as_ref());
        black_box(page.expect("it was just encoded"));
    })
}

pub(super) fn encode_shuffle() -> Run {
    encode(numbers(), PhysicalType::Int64, Encoding::BitShuffle, None)
}

pub(super) fn decode_shuffle() -> Run {
    let body = encoding::encode(&numbers(), PhysicalType::Int64, Encoding::BitShuffle, None);
    decode(body, PhysicalType::Int64, None)
}

pub(super) fn encode_runs() -> Run {
    encode(states(), PhysicalType::Int32, Encoding::Rle, None)
}

pub(super) fn decode_runs() -> Run {
    decode(encoding::encode(&states(), PhysicalType::Int32, Encoding::Rle, None), PhysicalType::Int32, None)
}

pub(super) fn encode_codes() -> Run {
    let (words, codes, _) = words();
    encode(words, PhysicalType::Binary, Encoding::Dict, Some(codes))
}

pub(super) fn decode_codes() -> Run {
    let (words, codes, dictionary) = words();
    let body = encoding::encode(&words, PhysicalType::Binary, Encoding::Dict, Some(&codes));
    decode(body, PhysicalType::Binary, Some(dictionary))
}

pub(super) fn encode_prefix() -> Run {
    encode(paths(), PhysicalType::Binary, Encoding::Prefix, None)
}

pub(super) fn decode_prefix() -> Run {
    decode(
        encoding::encode(&paths(), PhysicalType::Binary, Encoding::Prefix, None),
        PhysicalType::Binary,
        None,
    )
}
