//! One page of cells, encoded and decoded.

use std::hint::black_box;
use std::sync::Arc;

use engine::cfile::encoding;
use engine::cfile::page::Dictionary;
use engine::schema::block::ColumnBlock;
use engine::schema::{Encoding, Physical};

use super::{Amount, Run};
use crate::mix;

const COUNT: u64 = 8192;
pub const ROWS: Amount = Amount::Rows(COUNT);

fn block(physical: Physical, cell: impl Fn(u64) -> Vec<u8>) -> ColumnBlock {
    let mut block = ColumnBlock::new(physical, false);
    (0..COUNT).for_each(|row| block.push(Some(&cell(row))));
    block
}

/// Numbers below a million, in no order.
fn numbers() -> ColumnBlock {
    block(Physical::Int64, |row| (mix(row) % 1_000_000).to_le_bytes().to_vec())
}

/// A state that stays for a hundred rows.
fn states() -> ColumnBlock {
    block(Physical::Int32, |row| ((row / 100 % 7) as u32).to_le_bytes().to_vec())
}

/// Words of fifty, and where each is in the dictionary.
fn words() -> (ColumnBlock, Vec<u32>, Arc<Dictionary>) {
    let code = |row: u64| (mix(row) % 50) as u32;
    let mut dictionary = Dictionary { offsets: vec![0], bytes: Vec::new() };
    for word in 0..50 {
        dictionary.bytes.extend_from_slice(format!("status-{word}").as_bytes());
        dictionary.offsets.push(dictionary.bytes.len() as u32);
    }
    let words = block(Physical::Binary, |row| format!("status-{}", code(row)).into_bytes());
    (words, (0..COUNT).map(code).collect(), Arc::new(dictionary))
}

/// Sorted texts that begin like their neighbours.
fn paths() -> ColumnBlock {
    block(Physical::Binary, |row| format!("/var/log/host-{:04}/{:06}", row / 64, row * 17).into_bytes())
}

fn encode(block: ColumnBlock, physical: Physical, how: Encoding, codes: Option<Vec<u32>>) -> Run {
    Box::new(move || {
        black_box(encoding::encode(&block, physical, how, codes.as_deref()));
    })
}

fn decode(body: Vec<u8>, physical: Physical, dictionary: Option<Arc<Dictionary>>) -> Run {
    Box::new(move || {
        let page = encoding::decode(&body, physical, false, dictionary.as_ref());
        black_box(page.expect("it was just encoded"));
    })
}

pub fn encode_shuffle() -> Run {
    encode(numbers(), Physical::Int64, Encoding::BitShuffle, None)
}

pub fn decode_shuffle() -> Run {
    let body = encoding::encode(&numbers(), Physical::Int64, Encoding::BitShuffle, None);
    decode(body, Physical::Int64, None)
}

pub fn encode_runs() -> Run {
    encode(states(), Physical::Int32, Encoding::Rle, None)
}

pub fn decode_runs() -> Run {
    decode(encoding::encode(&states(), Physical::Int32, Encoding::Rle, None), Physical::Int32, None)
}

pub fn encode_codes() -> Run {
    let (words, codes, _) = words();
    encode(words, Physical::Binary, Encoding::Dict, Some(codes))
}

pub fn decode_codes() -> Run {
    let (words, codes, dictionary) = words();
    let body = encoding::encode(&words, Physical::Binary, Encoding::Dict, Some(&codes));
    decode(body, Physical::Binary, Some(dictionary))
}

pub fn encode_prefix() -> Run {
    encode(paths(), Physical::Binary, Encoding::Prefix, None)
}

pub fn decode_prefix() -> Run {
    decode(encoding::encode(&paths(), Physical::Binary, Encoding::Prefix, None), Physical::Binary, None)
}
