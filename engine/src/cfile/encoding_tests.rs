//! Every encoding gives back what it took, and no bytes make a decoder panic or swell.

use std::sync::Arc;

use proptest::prelude::*;

use super::cache::{PageCache, Worth};
use super::encoding::{decode, decode_dictionary, encode, encode_dictionary, resolve};
use super::frame::{FileKind, Identity, PageFile, PageWriter};
use super::page::{Dictionary, Page};
use super::reader::{CachedFile, StreamReader};
use super::writer::{StreamSpec, StreamWriter};
use crate::disk::mem::MemDisk;
use crate::ids::Uuid;
use crate::schema::block::ColumnBlock;
use crate::schema::{Compression, Encoding, Physical};

#[test]
fn each_type_has_its_encodings_and_default() {
    let mut table = String::new();
    for physical in Physical::ALL {
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

/// A column of cells that repeat, run, share prefixes, or do not.
fn block(physical: Physical, nullable: bool, seeds: &[u64], spread: u64) -> ColumnBlock {
    let mut block = ColumnBlock::new(physical, nullable);
    for (i, seed) in seeds.iter().enumerate() {
        let value = (seed % spread.max(1)).wrapping_add(if spread > 1000 { i as u64 } else { 0 });
        if nullable && seed % 7 == 0 {
            block.push(None);
            continue;
        }
        match physical.width() {
            Some(width) if physical == Physical::Bool => block.push(Some(&vec![(value & 1) as u8; width])),
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

fn copy(page: &Page, physical: Physical, nullable: bool, cuts: &[usize]) -> ColumnBlock {
    let mut out = ColumnBlock::new(physical, nullable);
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (page.rows + 1)).chain([0, page.rows]).collect();
    cuts.sort();
    cuts.windows(2).for_each(|cut| page.copy_range(cut[0], cut[1], &mut out));
    out
}

fn columns() -> impl Strategy<Value = (Physical, Encoding, bool, Vec<u64>, u64)> {
    let pairs: Vec<(Physical, Encoding)> = Physical::ALL
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
    fn a_stream_comes_back_through_its_file(
        (physical, encoding, nullable, seeds, spread) in columns(),
        page_bytes in 64usize..1500,
        compression in prop::sample::select(vec![
            Compression::None, Compression::Snappy, Compression::Lz4, Compression::Zlib, Compression::Zstd,
        ]),
        cuts in prop::collection::vec(any::<usize>(), 0..6),
    ) {
        let block = block(physical, nullable, &seeds, spread);
        let identity = Identity { tablet: Uuid([1; 16]), rowset: 2 };
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
            let page = reader.page(&index, i, Worth::Scan).unwrap();
            prop_assert_eq!(page.rows, entry.rows as usize);
            copied.extend(&copy(&page, physical, nullable, &cuts), 0, page.rows);
            let some: Vec<usize> = (0..page.rows).filter(|row| row % 3 != 1).collect();
            let mut gathered = ColumnBlock::new(physical, nullable);
            page.gather(some.iter().copied(), &mut gathered);
            let cells: Vec<_> = some.iter().map(|row| page.cell(*row)).collect();
            prop_assert_eq!((0..some.len()).map(|at| gathered.cell(at)).collect::<Vec<_>>(), cells);
        }
        prop_assert_eq!(copied.len(), block.len());
        for row in 0..block.len() {
            prop_assert_eq!(copied.cell(row), block.cell(row), "row {}", row);
        }
    }

    #[test]
    fn damaged_pages_are_read_or_refused_but_never_panic(
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
        physical in prop::sample::select(Physical::ALL.to_vec()),
    ) {
        let _ = decode_dictionary(&body);
        if body.len() > 6 {
            (body[0], body[1], body[4], body[5]) = (tag, body[1] & 1, 0, 0);
        }
        let dictionary = Arc::new(Dictionary { offsets: vec![0, 1, 3], bytes: b"abc".to_vec() });
        let _ = decode(&body, physical, true, Some(&dictionary));
        let _ = decode(&body, physical, false, None);
        let _ = super::index::PageIndex::decode(&body, 1, physical.width());
        let _ = super::bloom::Chunk::decode(&body);
    }
}

#[test]
fn a_dictionary_comes_back() {
    let dictionary = Dictionary { offsets: vec![0, 0, 3, 10], bytes: b"onelongest".to_vec() };
    let body = encode_dictionary(&dictionary);
    assert_eq!(decode_dictionary(&body).unwrap(), dictionary);
}
