//! Every kind of damage to a file is detected and named.

use std::sync::Arc;

use super::page_file::{FileKind, PageFile, PageOwner, PageRef, PageWriter};
use crate::disk::Disk;
use crate::disk::mem::MemDisk;
use crate::error::{Error, ErrorKind};
use crate::ids::Uuid;
use crate::schema::Compression;

const IDENTITY: PageOwner = PageOwner { tablet: Uuid([0xab; 16]), rowset: 5 };

/// Returns the bytes of a file of three pages, and the locations of the pages.
fn file_of(identity: PageOwner) -> (Vec<u8>, Vec<PageRef>) {
    let disk = MemDisk::new(1);
    let mut out = PageWriter::create(Arc::new(disk.clone()), "f", FileKind::RowSet, identity).unwrap();
    let bodies: [&[u8]; 3] = [b"first page", b"second page, a longer one", &[7; 300]];
    let pages =
        bodies.iter().enumerate().map(|(i, body)| out.append(3, i as u32, Compression::Lz4, body).unwrap());
    let pages: Vec<PageRef> = pages.collect();
    let len = out.finish(b"footer").unwrap();
    let mut bytes = vec![0; len as usize];
    disk.open("f").unwrap().read_at(0, &mut bytes).unwrap();
    (bytes, pages)
}

fn disk_with(bytes: &[u8]) -> MemDisk {
    let disk = MemDisk::new(1);
    disk.create("f").unwrap().append(bytes).unwrap();
    disk
}

/// Opens the file and reads all of it.
fn read_all(bytes: &[u8], pages: &[PageRef], identity: PageOwner) -> Result<Vec<Vec<u8>>, Error> {
    let (file, footer) = PageFile::open(&disk_with(bytes), "f", FileKind::RowSet, identity)?;
    assert_eq!(&footer[..], b"footer");
    pages.iter().enumerate().map(|(i, at)| Ok(file.read(3, i as u32, *at)?.to_vec())).collect()
}

#[test]
fn every_flipped_bit_is_detected() {
    let (bytes, pages) = file_of(IDENTITY);
    assert_eq!(read_all(&bytes, &pages, IDENTITY).unwrap()[2], [7; 300]);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << bit;
            let error = read_all(&bad, &pages, IDENTITY).expect_err("a flipped bit");
            let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported];
            assert!(kinds.contains(&error.kind), "byte {at} bit {bit}: {error}");
        }
    }
}

#[test]
fn every_truncation_is_detected() {
    let (bytes, pages) = file_of(IDENTITY);
    for len in 0..bytes.len() {
        assert_eq!(read_all(&bytes[..len], &pages, IDENTITY).unwrap_err().kind, ErrorKind::Corrupt);
    }
}

/// Verifies the file as a tablet copy does before it sends the bytes.
fn check(bytes: &[u8]) -> Result<(), Error> {
    let (file, _) = PageFile::open(&disk_with(bytes), "f", FileKind::RowSet, IDENTITY)?;
    file.check_whole()
}

#[test]
fn verification_detects_every_flipped_bit() {
    let (bytes, _) = file_of(IDENTITY);
    check(&bytes).expect("it is sound");
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << bit;
            let error = check(&bad).expect_err("a flipped bit");
            let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported];
            assert!(kinds.contains(&error.kind), "byte {at} bit {bit}: {error}");
        }
    }
}

/// An intact page overwrites another one of the same length.
#[test]
fn a_page_written_twice_is_detected() {
    let disk = MemDisk::new(1);
    let mut out = PageWriter::create(Arc::new(disk.clone()), "f", FileKind::RowSet, IDENTITY).unwrap();
    let first = out.append(3, 0, Compression::None, b"one").unwrap();
    let second = out.append(3, 1, Compression::None, b"two").unwrap();
    let len = out.finish(b"footer").unwrap();
    let mut bytes = vec![0; len as usize];
    disk.open("f").unwrap().read_at(0, &mut bytes).unwrap();
    check(&bytes).expect("it is sound");
    let from = first.offset as usize;
    bytes.copy_within(from..from + first.len as usize, second.offset as usize);
    let error = check(&bytes).expect_err("the first page twice").to_string();
    assert!(error.contains("misdirected write: the file has this page twice"), "{error}");
}

#[test]
fn three_kinds_of_damage_are_distinguished() {
    let (bytes, pages) = file_of(IDENTITY);
    let mut reported = String::new();
    let mut report = |damage: &str, bytes: &[u8], identity: PageOwner| {
        let error = read_all(bytes, &pages, identity).unwrap_err().to_string();
        let error = error.strip_suffix("; repair the tablet from another replica").unwrap();
        let short = error.replace(&"ab".repeat(16), "ab..").replace(&"01".repeat(16), "01..");
        reported += &format!("{damage}\n  {}\n", short.replace(": ", ":\n  "));
    };

    let mut rotten = bytes.clone();
    rotten[pages[1].offset as usize + 50] ^= 4;
    report("a flipped bit", &rotten, IDENTITY);

    // The shorter first page over the start of the second, and the longer second over the first.
    let part = |at: PageRef| at.offset as usize..at.offset as usize + at.len as usize;
    let mut short = bytes.clone();
    let (from, to) = (part(pages[0]), part(pages[1]).start);
    short.copy_within(from, to);
    report("page 0 written over page 1", &short, IDENTITY);
    let mut long = bytes.clone();
    long.copy_within(part(pages[1]), 0);
    report("page 1 written over page 0", &long, IDENTITY);

    report("another rowset's file", &bytes, PageOwner { rowset: 6, ..IDENTITY });
    report("another tablet's file", &bytes, PageOwner { tablet: Uuid([1; 16]), ..IDENTITY });
    let (foreign, _) = file_of(PageOwner { rowset: 9, ..IDENTITY });
    let mut patched = bytes.clone();
    patched[..pages[1].offset as usize].copy_from_slice(&foreign[..pages[1].offset as usize]);
    report("another rowset's page in this file", &patched, IDENTITY);
    expect_test::expect![[r#"
        a flipped bit
          f:
          page 1 of column 3 at offset 58:
          bit rot:
          its checksum does not match its bytes
        page 0 written over page 1
          f:
          page 1 of column 3 at offset 58:
          misdirected write:
          this is sound page 0 of column 3
        page 1 written over page 0
          f:
          page 0 of column 3 at offset 0:
          misdirected write:
          this is sound page 1 of column 3
        another rowset's file
          f:
          page 0 of the footer at offset 192:
          misplaced file:
          this is a sound page of rowset 5 of tablet ab.. (file kind 1), not of rowset 6 of tablet ab.. (kind 1)
        another tablet's file
          f:
          page 0 of the footer at offset 192:
          misplaced file:
          this is a sound page of rowset 5 of tablet ab.. (file kind 1), not of rowset 5 of tablet 01.. (kind 1)
        another rowset's page in this file
          f:
          page 0 of column 3 at offset 0:
          misplaced file:
          this is a sound page of rowset 9 of tablet ab.. (file kind 1), not of rowset 5 of tablet ab.. (kind 1)
    "#]].assert_eq(&reported);
}

#[test]
fn files_of_other_kinds_and_newer_formats_are_named() {
    let (bytes, _) = file_of(IDENTITY);
    let open = |bytes: &[u8], kind| PageFile::open(&disk_with(bytes), "f", kind, IDENTITY).err().unwrap();
    let mut newer = bytes.clone();
    let trailer = newer.len() - 24;
    newer[trailer + 14] = 9;
    let crc = crc32c::crc32c(&newer[trailer..trailer + 20]);
    newer[trailer + 20..].copy_from_slice(&crc.to_le_bytes());
    let messages: Vec<String> = [
        open(&bytes, FileKind::Delta),
        open(&newer, FileKind::RowSet),
        open(b"", FileKind::RowSet),
        open(&[0; 100], FileKind::RowSet),
    ]
    .iter()
    .map(ToString::to_string)
    .collect();
    expect_test::expect![[r#"
        f: a Delta file is wanted, this one has kind 1
        f: column file format 9 is newer than this build reads (1); use the build that wrote it
        f: 0 bytes are too few for a column file
        f: it does not end like a column file: cut short, or another kind of file"#]]
    .assert_eq(&messages.join("\n"));
}

#[test]
fn a_full_disk_is_an_io_error_with_its_errno() {
    let disk = MemDisk::new(1);
    disk.set_free(100);
    let mut out = PageWriter::create(Arc::new(disk), "f", FileKind::RowSet, IDENTITY).unwrap();
    out.append(3, 0, Compression::None, &[1; 4096]).unwrap();
    let error = out.finish(b"footer").unwrap_err();
    assert_eq!((error.kind, error.errno), (ErrorKind::Io, Some(28)));
}
