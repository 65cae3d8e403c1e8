//! Every encoding round-trips, and no bytes make a decoder panic or allocate without bound.

use std::sync::Arc;

use proptest::prelude::*;

use super::bitshuffle;
use super::cache::{CachePriority, PageCache};
use super::decoded_page::{DecodedPage, Dictionary};
use super::encoding::{decode, decode_dictionary, encode, encode_dictionary, resolve};
use super::page_file::{FileKind, PageFile, PageOwner, PageWriter};
use super::reader::{CachedFile, StreamReader};
use super::writer::{INDEX_BYTES_MAX, StreamSpec, StreamWriter};
use crate::disk::mem::MemDisk;
use crate::ids::Uuid;
use crate::schema::row_block::ColumnBlock;
use crate::schema::{Compression, Encoding, PhysicalType};

#[test]
fn each_type_has_its_encodings_and_default() {
    let mut table = String::new();
    for physical in PhysicalType::ALL {
        let legal = Encoding::ALL.iter().filter(|e| resolve(physical, **e).is_ok()).map(|e| format!("{e:?}"));
        let default = resolve(physical, Encoding::Auto).unwrap();
        table += &format!("{physical:?}: {} = {default:?}\n", legal.collect::<Vec<_>>().join(" "));
    }
    expect_test::expect![[r#"
        Bool: Auto Plain Rle = Rle
        Int8: Auto Plain Rle BitShuffle = BitShuffle
        Int16: Auto Plain Rle BitShuffle = BitShuffle
        Int32: Auto Plain Rle BitShuffle = BitShuffle
        Int64: Auto Plain Rle BitShuffle = BitShuffle
        Int128: Auto Plain BitShuffle = BitShuffle
        Uint8: Auto Plain Rle BitShuffle = BitShuffle
        Uint16: Auto Plain Rle BitShuffle = BitShuffle
        Uint32: Auto Plain Rle BitShuffle = BitShuffle
        Uint64: Auto Plain Rle BitShuffle = BitShuffle
        Float: Auto Plain BitShuffle = BitShuffle
        Double: Auto Plain BitShuffle = BitShuffle
        Binary: Auto Plain Prefix Dict = Dict
    "#]]
    .assert_eq(&table);
}

/// Builds a column of cells that repeat, run, share prefixes, or do not.
fn block(physical: PhysicalType, nullable: bool, seeds: &[u64], spread: u64) -> ColumnBlock {
    let mut block = ColumnBlock::new(physical, nullable);
    for (i, seed) in seeds.iter().enumerate() {
        let value = (seed % spread.max(1)).wrapping_add(if spread > 1000 { i as u64 } else { 0 });
        if nullable && seed % 7 == 0 {
            block.push(None);
            continue;
        }
        match physical.width() {
            Some(width) if physical == PhysicalType::Bool => {
                block.push(Some(&vec![(value & 1) as u8; width]))
            }
            Some(width) => {
                let wide = (value as i64 as i128 - 40).to_le_bytes();
                block.push(Some(&wide[..width]));
            }
            None => {
                let text = format!("{}{}", "prefix/".repeat((value % 4) as usize), value);
                block.push(Some(&text.as_bytes()[..text.len() * (seed % 5 != 0) as usize]));
            }
        }
    }
    block
}

fn copy(page: &DecodedPage, physical: PhysicalType, nullable: bool, cuts: &[usize]) -> ColumnBlock {
    let mut out = ColumnBlock::new(physical, nullable);
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (page.rows + 1)).chain([0, page.rows]).collect();
    cuts.sort();
    cuts.windows(2).for_each(|cut| page.copy_range(cut[0], cut[1], &mut out));
    out
}

fn columns() -> impl Strategy<Value = (PhysicalType, Encoding, bool, Vec<u64>, u64)> {
    let pairs: Vec<(PhysicalType, Encoding)> = PhysicalType::ALL
        .iter()
        .flat_map(|physical| Encoding::ALL.map(|encoding| (*physical, encoding)))
        .filter(|(physical, encoding)| resolve(*physical, *encoding).is_ok())
        .collect();
    let spread = prop::sample::select(vec![1u64, 2, 20, 3000, u64::MAX]);
    let runs = (prop::collection::vec(any::<u64>(), 0..80), 1usize..12)
        .prop_map(|(seeds, run)| seeds.iter().flat_map(|seed| vec![*seed; run]).collect());
    (prop::sample::select(pairs), any::<bool>(), runs, spread).prop_map(
        |((physical, encoding), nullable, seeds, spread)| (physical, encoding, nullable, seeds, spread),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_stream_round_trips_through_its_file(
        (physical, encoding, nullable, seeds, spread) in columns(),
        page_bytes in 64usize..1500,
        compression in prop::sample::select(vec![
            Compression::None, Compression::Snappy, Compression::Lz4, Compression::Zlib, Compression::Zstd,
        ]),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let block = block(physical, nullable, &seeds, spread);
        let identity = PageOwner { tablet: Uuid([1; 16]), rowset: 2 };
        let disk = MemDisk::new(1);
        let mut out = PageWriter::create(Arc::new(disk.clone()), "f", FileKind::RowSet, identity).unwrap();
        let encoding = resolve(physical, encoding).unwrap();
        let mut writer = StreamWriter::new(StreamSpec {
            stream: 3, physical, nullable, encoding, compression, page_bytes, exact_bounds: false,
        });
        let half = block.len() / 2;
        let mut first = ColumnBlock::new(physical, nullable);
        first.extend(&block, 0, half);
        writer.append(&first, &mut out).unwrap();
        (half..block.len()).for_each(|row| writer.push(block.cell(row), &mut out).unwrap());
        let meta = writer.finish(&mut out).unwrap();
        out.finish(&[]).unwrap();

        let (file, _) = PageFile::open(&disk, "f", FileKind::RowSet, identity).unwrap();
        let reader = StreamReader::new(CachedFile::new(file, PageCache::new(1 << 20)), meta);
        let index = reader.index().unwrap();
        let mut copied = ColumnBlock::new(physical, nullable);
        for (i, entry) in index.pages.iter().enumerate() {
            let page = reader.page(&index, i, CachePriority::Scan).unwrap();
            prop_assert_eq!(page.rows, entry.rows as usize);
            copied.extend(&copy(&page, physical, nullable, &cuts), 0, page.rows);
            let some: Vec<usize> = (0..page.rows).filter(|row| row % 3 != 1).collect();
            let mut gathered = ColumnBlock::new(physical, nullable);
            page.gather(some.iter().copied(), &mut gathered);
            for (at, row) in some.iter().enumerate() {
                let cell = page.cell(*row);
                prop_assert_eq!(gathered.cell(at), cell.as_deref(), "row {}", row);
            }
        }
        prop_assert_eq!(copied.len(), block.len());
        for row in 0..block.len() {
            prop_assert_eq!(copied.cell(row), block.cell(row), "row {}", row);
        }
    }

    #[test]
    fn damaged_pages_are_read_or_rejected_but_never_panic(
        (physical, encoding, nullable, seeds, spread) in columns(),
        hits in prop::collection::vec((any::<usize>(), any::<u8>()), 1..4),
        cut in any::<usize>(),
    ) {
        let dictionary = Arc::new(Dictionary { offsets: vec![0, 1, 3], bytes: b"abc".to_vec() });
        let block = block(physical, nullable, &seeds, spread);
        let codes: Vec<u32> = (0..block.len() as u32).map(|row| row % 2).collect();
        let encoding = resolve(physical, encoding).unwrap();
        let mut body = encode(&block, physical, encoding, Some(&codes));
        for (at, value) in hits {
            let at = at % body.len();
            body[at] = value;
        }
        if cut % 4 == 0 {
            body.truncate(cut / 4 % body.len());
        }
        if let Ok(page) = decode(&body, physical, nullable, Some(&dictionary)) {
            copy(&page, physical, nullable, &[]);
            page.gather(0..page.rows, &mut ColumnBlock::new(physical, nullable));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        mut body in prop::collection::vec(any::<u8>(), 0..200),
        tag in 0u8..8,
        physical in prop::sample::select(PhysicalType::ALL.to_vec()),
    ) {
        let _ = decode_dictionary(&body);
        if body.len() > 6 {
            (body[0], body[1], body[4], body[5]) = (tag, body[1] & 1, 0, 0);
        }
        let dictionary = Arc::new(Dictionary { offsets: vec![0, 1, 3], bytes: b"abc".to_vec() });
        let _ = decode(&body, physical, true, Some(&dictionary));
        let _ = decode(&body, physical, false, None);
        let _ = super::page_index::PageIndex::decode(&body, 1, physical.width());
        let _ = super::key_bloom::BloomChunk::decode(&body);
    }
}

/// Cells that have become longer than a page should be have a page each, and all index entries must fit one page.
#[test]
fn pages_become_larger_where_their_index_is_long() {
    const ROWS: u32 = 36_000;
    let identity = PageOwner { tablet: Uuid([1; 16]), rowset: 2 };
    let disk = Arc::new(MemDisk::new(1));
    let mut out = PageWriter::create(disk, "f", FileKind::Columns, identity).unwrap();
    let mut writer = StreamWriter::new(StreamSpec {
        stream: 3,
        physical: PhysicalType::Binary,
        nullable: false,
        encoding: Encoding::Plain,
        compression: Compression::None,
        page_bytes: 64,
        exact_bounds: true,
    });
    // With two cells as its bounds, each page has 2 KB of index: 72 MB if every cell had a page.
    let cell = |row: u32| [&row.to_be_bytes()[..], &[7; 1000]].concat();
    (0..ROWS).for_each(|row| writer.push(Some(&cell(row)), &mut out).unwrap());
    let bytes = writer.index_bytes();
    assert!((INDEX_BYTES_MAX..2 * INDEX_BYTES_MAX).contains(&bytes), "{bytes} bytes");
    assert_eq!(writer.finish(&mut out).unwrap().rows, ROWS);
}

#[test]
fn a_dictionary_round_trips() {
    let dictionary = Dictionary { offsets: vec![0, 0, 3, 10], bytes: b"onelongest".to_vec() };
    let body = encode_dictionary(&dictionary);
    assert_eq!(decode_dictionary(&body).unwrap(), dictionary);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn cells(physical: PhysicalType, nullable: bool, cells: &[Option<&[u8]>]) -> ColumnBlock {
    let mut block = ColumnBlock::new(physical, nullable);
    cells.iter().for_each(|cell| block.push(*cell));
    block
}

/// Formats an encoded page: tag and flags, rows, and what follows.
fn written(block: &ColumnBlock, physical: PhysicalType, encoding: Encoding, codes: Option<&[u32]>) -> String {
    let body = hex(&encode(block, physical, encoding, codes));
    format!("{} {} {}", &body[..4], &body[4..12], &body[12..])
}

/// Stored files remain readable only as long as these bytes do not change.
#[test]
fn pages_have_their_stored_form() {
    let numbers = |values: &[u8]| {
        let values: Vec<[u8; 1]> = values.iter().map(|value| [*value]).collect();
        let each: Vec<Option<&[u8]>> = values.iter().map(|value| Some(&value[..])).collect();
        cells(PhysicalType::Uint8, false, &each)
    };
    let rle = |values: &[u8]| written(&numbers(values), PhysicalType::Uint8, Encoding::Rle, None);
    let strings: [Option<&[u8]>; 4] =
        [Some(b"abcdefghij"), Some(b"abcdefghik"), Some(b"abcdefghik"), Some(b"b")];
    let strings = cells(PhysicalType::Binary, false, &strings);
    let text = |encoding, codes| written(&strings, PhysicalType::Binary, encoding, codes);
    let same = |each: &[&[u8]]| {
        let each: Vec<Option<&[u8]>> = each.iter().map(|cell| Some(*cell)).collect();
        written(&cells(PhysicalType::Binary, false, &each), PhysicalType::Binary, Encoding::Plain, None)
    };
    let nulls = cells(PhysicalType::Uint8, true, &[Some(&[7]), None, Some(&[9])]);
    let pages = [
        format!("two runs of eight   {}", rle(&[1, 1, 1, 1, 1, 5, 5, 5])),
        format!("three do not pay    {}", rle(&[1, 1, 1, 1, 1, 5, 5, 1])),
        format!("equal               {}", rle(&[3, 3])),
        format!("one                 {}", rle(&[3])),
        format!("none                {}", rle(&[])),
        format!(
            "plain               {}",
            written(&numbers(&[1, 2]), PhysicalType::Uint8, Encoding::Plain, None)
        ),
        format!("NULL                {}", written(&nulls, PhysicalType::Uint8, Encoding::BitShuffle, None)),
        format!("strings             {}", text(Encoding::Plain, None)),
        format!("prefixes            {}", text(Encoding::Prefix, None)),
        format!("codes               {}", text(Encoding::Dict, Some(&[0, 1, 1, 2]))),
        format!("no codes            {}", text(Encoding::Dict, None)),
        format!("equal strings       {}", same(&[b"ab", b"ab", b"ab"])),
        format!("empty strings       {}", same(&[b"", b""])),
        format!("of other lengths    {}", same(&[b"aa", b"a", b"aaa"])),
    ];
    expect_test::expect![[r#"
        two runs of eight   0400 08000000 020000000002030000000001000301000002
        three do not pay    0600 08000000 000301000060
        equal               0000 02000000 0103
        one                 0000 01000000 0103
        none                0400 00000000 00000000000000000000000000
        plain               0100 02000000 0102
        NULL                0601 03000000 0500040005010104
        strings             0100 04000000 000401000000070000076162636465666768696a6162636465666768696b6162636465666768696b62
        prefixes            0200 04000000 000400000000020400060004000000000a0100016162636465666768696a6b62
        codes               0500 04000000 0002000000000608
        no codes            0100 04000000 000401000000070000076162636465666768696a6162636465666768696b6162636465666768696b62
        equal strings       0000 03000000 026162
        empty strings       0000 02000000 00
        of other lengths    0100 03000000 0002010000000104616161616161
    "#]].assert_eq(&(pages.join("\n") + "\n"));
}

/// Each body claims more than is there, or something no encoder writes.
#[test]
fn pages_that_contradict_themselves_are_rejected() {
    let dictionary = Arc::new(Dictionary { offsets: vec![0, 1, 3], bytes: b"abc".to_vec() });
    let head = |tag: u8, flags: u8, rows: u32| [&[tag, flags][..], &rows.to_le_bytes()].concat();
    let packed = |values: &[u32]| {
        let mut out = Vec::new();
        bitshuffle::pack_u32(values, &mut out);
        out
    };
    let number = |body: Vec<u8>| decode(&body, PhysicalType::Uint8, false, None).map(|page| page.rows);
    let text =
        |body: Vec<u8>| decode(&body, PhysicalType::Binary, false, Some(&dictionary)).map(|page| page.rows);
    let run = |count: u32, lengths: &[u32], rows| {
        let mut body = [head(4, 0, rows), count.to_le_bytes().to_vec(), packed(lengths)].concat();
        bitshuffle::pack(&vec![7; lengths.len()], 1, bitshuffle::Signedness::Unsigned, &mut body);
        number(body)
    };
    let shared = |shared: &[u32], rest: &[u32], bytes: &[u8]| {
        text([head(2, 0, shared.len() as u32), packed(shared), packed(rest), bytes.to_vec()].concat())
    };
    let code = |codes: &[u32]| text([head(5, 0, codes.len() as u32), packed(codes)].concat());
    assert_eq!(run(2, &[3, 2], 5).expect("two runs"), 5);
    assert_eq!(shared(&[0, 2], &[2, 0], b"ab").expect("twice the same"), 2);
    assert_eq!(code(&[0, 1, 1]).expect("both are there"), 3);
    assert_eq!(number([head(1, 0, 65536), vec![1; 65536]].concat()).expect("the most rows of a page"), 65536);
    let rejected = [
        number([head(1, 0, 65537), vec![1; 65537]].concat()),
        number([head(1, 1, 1), vec![1, 7]].concat()),
        number([head(1, 2, 1), vec![7]].concat()),
        number([head(0, 0, 1), vec![2, 7, 7]].concat()),
        number([head(1, 0, 1), vec![7, 7]].concat()),
        number([head(1, 0, 2), vec![7]].concat()),
        number(head(3, 0, 0)),
        number([head(5, 0, 0), packed(&[])].concat()),
        run(6, &[1, 1, 1, 1, 1, 1], 5),
        run(2, &[3, 1], 5),
        run(2, &[5, 0], 5),
        shared(&[1], &[1], b"a"),
        shared(&[0, 3], &[2, 0], b"ab"),
        shared(&[0, u32::MAX], &[2, 0], b"ab"),
        code(&[2]),
        text([head(1, 0, 1), packed(&[u32::MAX])].concat()),
        decode(&[head(5, 0, 1), packed(&[0])].concat(), PhysicalType::Binary, false, None)
            .map(|page| page.rows),
        decode_dictionary(&[65537u32.to_le_bytes().to_vec(), packed(&vec![0; 65537])].concat())
            .map(|dictionary| dictionary.len()),
    ];
    let messages = rejected.map(|result| result.expect_err("it contradicts itself").to_string() + "\n");
    expect_test::expect![[r#"
        a page claims 65537 rows and flags 0
        a page claims 1 rows and flags 1
        a page claims 1 rows and flags 2
        a cell of 2 bytes in a Uint8 page
        1 bytes are left over at offset 7
        2 bytes are needed at offset 6 but only 1 are left
        a Uint8 page has the unknown encoding 3
        a Uint8 page has the unknown encoding 5
        6 runs in a page of 5 rows
        runs of 4 rows in a page of 5
        a page has a run without rows
        a cell shares more bytes with the one before it than that has
        a cell shares more bytes with the one before it than that has
        a page's cells are said to have 4294967297 bytes
        code 2 is not in the dictionary of 2 values
        a page's cells are said to have 4294967295 bytes
        a dictionary page in a column that has none
        a dictionary claims 65537 values
    "#]]
    .assert_eq(&messages.concat());
}
