//! Contents of column files: encoded pages, compression, Bloom filters.

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use engine::cfile::bitshuffle::{Signedness, pack, unpack};
use engine::cfile::compress::{compress, decompress};
use engine::cfile::decoded_page::{DecodedPage, Dictionary, PageCells};
use engine::cfile::encoding::{decode, decode_dictionary, encode, encode_dictionary, resolve};
use engine::cfile::key_bloom::BloomChunk;
use engine::codec::ByteReader;
use engine::schema::predicate_bloom::PredicateBloom;
use engine::schema::row_block::ColumnBlock;
use engine::schema::{Compression, Encoding, PhysicalType};

/// Checks a page. First byte: the column's type, and whether it is nullable; then a page or a dictionary.
pub(super) fn page(data: &[u8]) {
    let Some((&what, body)) = data.split_first() else { return };
    let physical = PhysicalType::ALL[usize::from(what) % PhysicalType::ALL.len()];
    let dictionary = Arc::new(Dictionary { offsets: vec![0, 1, 1, 4], bytes: b"aabc".to_vec() });
    if let Ok(page) = decode(body, physical, what >= 128, Some(&dictionary)) {
        check_page(&page, physical);
    }
    if let Ok(dictionary) = decode_dictionary(body) {
        let again = decode_dictionary(&encode_dictionary(&dictionary)).expect("what was just encoded");
        assert_eq!(again, dictionary);
    }
}

/// Checks that all ways to read a page return the same cells.
pub(super) fn check_page(page: &DecodedPage, physical: PhysicalType) {
    let mut copied = ColumnBlock::new(physical, true);
    page.copy_range(0, page.rows, &mut copied);
    let mut gathered = ColumnBlock::new(physical, true);
    page.gather(0..page.rows, &mut gathered);
    assert_eq!(copied, gathered, "{page:?}");
    assert_eq!(copied.len(), page.rows);
    // Pages of equal cells are checked at some rows only.
    let step = if matches!(page.cells, PageCells::Same(_)) { 1 + page.rows / 100 } else { 1 };
    for row in (0..page.rows).step_by(step) {
        assert_eq!(copied.cell(row), page.cell(row).as_deref(), "row {row}");
    }
}

/// Cells to encode: choices from a few values and NULL.
#[derive(Debug, Arbitrary)]
pub(super) struct PageColumn {
    physical: u8,
    encoding: u8,
    values: Vec<Vec<u8>>,
    /// Choice and number of repetitions.
    rows: Vec<(u8, u8)>,
    pub nulls: bool,
}

impl PageColumn {
    pub(super) fn physical(&self) -> PhysicalType {
        PhysicalType::ALL[usize::from(self.physical) % PhysicalType::ALL.len()]
    }

    /// Returns the encoding and the cells; `None` if the type has no such encoding.
    pub(super) fn block(&self) -> Option<(Encoding, ColumnBlock)> {
        let physical = self.physical();
        let encoding = Encoding::ALL[usize::from(self.encoding) % Encoding::ALL.len()];
        let encoding = resolve(physical, encoding).ok()?;
        let mut block = ColumnBlock::new(physical, self.nulls);
        for (value, times) in &self.rows {
            let value = self.values.get(usize::from(*value) % (self.values.len() + 1));
            let cell = value.map(|value| fit(value, physical));
            let cell = if self.nulls { cell } else { Some(cell.unwrap_or_else(|| fit(&[], physical))) };
            block.push_many(cell.as_deref(), usize::from(*times));
        }
        Some((encoding, block))
    }
}

/// Checks that cells read back as encoded, for every encoding; also packed words.
pub(super) fn encoding(data: &[u8]) {
    let Ok(column) = PageColumn::arbitrary(&mut Unstructured::new(data)) else { return };
    let physical = column.physical();
    let Some((encoding, block)) = column.block() else { return };
    let page = decode(&encode(&block, physical, encoding, None), physical, column.nulls, None);
    let page = page.expect("what was just encoded");
    assert_eq!(page.rows, block.len());
    for row in 0..block.len() {
        assert_eq!(page.cell(row).as_deref(), block.cell(row), "row {row}");
    }
    check_page(&page, physical);
    words(&column.values.concat(), physical);
}

/// Returns `value` at the width of the type.
fn fit(value: &[u8], physical: PhysicalType) -> Vec<u8> {
    let mut cell = value.to_vec();
    if let Some(width) = physical.width() {
        cell.resize(width, 0);
    }
    cell
}

fn words(bytes: &[u8], physical: PhysicalType) {
    let Some(width) = physical.width() else { return };
    let bytes = &bytes[..bytes.len() - bytes.len() % width];
    for sign in [Signedness::Signed, Signedness::Unsigned] {
        let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
        pack(bytes, width, sign, &mut packed);
        let mut input = ByteReader::new(&packed);
        unpack(&mut input, bytes.len() / width, width, &mut unpacked).expect("what was just packed");
        assert!(input.is_empty() && unpacked == bytes);
    }
}

/// Checks decompression. First bytes: the codec, and the claimed length; then the stream.
pub(super) fn compression(data: &[u8]) {
    let [number, low, high, stored @ ..] = data else { return };
    let size = usize::from(u16::from_le_bytes([*low, *high]));
    let number = [2, 3, 4, 100, 1][usize::from(*number) % 5];
    if let Ok(body) = decompress(number, stored, size) {
        assert_eq!(body.len(), size);
    }
    let _ = decompress(number, stored, size << 12);
    for compression in Compression::CODECS {
        if let Some((number, packed)) = compress(compression, stored) {
            assert_eq!(decompress(number, &packed, stored.len()).expect("what was just compressed"), stored);
            assert!(decompress(number, &packed, stored.len() + 1).is_err(), "a size that is not so");
        }
    }
}

/// Checks a rowset's and a client's Bloom filter: neither has false negatives.
pub(super) fn bloom(data: &[u8]) {
    if let Ok(chunk) = BloomChunk::decode(data) {
        let _ = chunk.may_contain((data.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
    let Some((&log, bytes)) = data.split_first() else { return };
    if let Ok(mut filter) = PredicateBloom::from_bytes(u32::from(log), bytes, 7, bytes.len() % 2 == 1) {
        filter.contains(Some(bytes));
        if log < 12 {
            filter.insert(Some(bytes));
            assert!(filter.contains(Some(bytes)));
        }
    }
    let mut filter = PredicateBloom::new(5 + u32::from(log % 4), 1).expect("a lawful size");
    let cells = bytes.chunks(3).map(Some).chain([None]);
    cells.clone().for_each(|cell| filter.insert(cell));
    assert!(cells.clone().all(|cell| filter.contains(cell)));
    let sent = PredicateBloom::from_bytes(filter.log_space_bytes(), &filter.to_bytes(), 1, false);
    assert_eq!(sent.expect("as clients send it"), filter);
}
