//! Files of pages: columns and deltas.
//!
//! Bytes reach the decoders of indexes and pages under correct page headers; as bytes of a file they would fail their
//! checksums.

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use engine::cfile::cache::{CachePriority, PageCache};
use engine::cfile::encoding::resolve;
use engine::cfile::page_file::{FileKind, PageFile, PageOwner, PageRef, PageWriter, index_of, stream};
use engine::cfile::reader::{CachedFile, StreamReader};
use engine::cfile::writer::{StreamMeta, StreamSpec, StreamWriter};
use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::ids::Uuid;
use engine::schema::row_change::{RowChangeBuilder, encode_delete};
use engine::schema::{Compression, Encoding, PhysicalType};
use engine::tablet::deltafile::{DeltaBatch, DeltaDirection, DeltaMeta, DeltaReader, DeltaWriter, TimeRange};
use engine::time::Timestamp;

use super::pages::{PageColumn, check_page};

const PATH: &str = "f";
const IDENTITY: PageOwner = PageOwner { tablet: Uuid([7; 16]), rowset: 3 };
const COLUMN: u32 = 5;

/// Returns a writer of a new file on a separate disk.
fn writer(disk: &MemDisk, kind: FileKind) -> PageWriter {
    PageWriter::create(Arc::new(disk.clone()), PATH, kind, IDENTITY).expect("an empty disk takes a file")
}

fn opened(disk: &MemDisk, kind: FileKind) -> Arc<CachedFile> {
    let (file, _) = PageFile::open(disk, PATH, kind, IDENTITY).expect("it was just finished");
    CachedFile::new(file, PageCache::new(1 << 20))
}

/// Splits the input into pieces, each with two bytes of length before it; the rest is the last piece.
fn pieces(mut data: &[u8]) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    while let [low, high, rest @ ..] = data {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
        let (piece, after) = rest.split_at(len);
        pieces.push(piece);
        data = after;
    }
    pieces
}

/// Checks a column's file with arbitrary index, dictionary and pages under correct page headers.
///
/// Input: type, number of rows; then pieces: the index, the dictionary, the pages.
pub(super) fn column_file(data: &[u8]) {
    let [what, rows, rest @ ..] = data else { return };
    let physical = PhysicalType::ALL[usize::from(*what) % PhysicalType::ALL.len()];
    let pieces = pieces(rest);
    let (Some(index), Some(dictionary)) = (pieces.first(), pieces.get(1)) else { return };
    let disk = MemDisk::new(1);
    let mut out = writer(&disk, FileKind::RowSet);
    let mut put = |stream, ordinal, body: &[u8]| {
        out.append(stream, ordinal, Compression::None, body).expect("a small page")
    };
    for (ordinal, page) in (0..).zip(&pieces[2..]) {
        put(COLUMN, ordinal, page);
    }
    let meta = StreamMeta {
        stream: COLUMN,
        physical,
        nullable: *what >= 128,
        rows: (*rows).into(),
        index: put(index_of(COLUMN), 0, index),
        dictionary: (what & 64 != 0).then(|| put(COLUMN | stream::DICTIONARY_OF, 0, dictionary)),
        raw_bytes: 0,
        stored_bytes: 0,
    };
    out.finish(b"").expect("room");
    read_column(&StreamReader::new(opened(&disk, FileKind::RowSet), meta));
}

/// Reads all that can be read; the rest must return an error.
fn read_column(reader: &StreamReader) {
    let Ok(index) = reader.index() else { return };
    for ordinal in 0..index.pages.len() {
        if let Ok(page) = reader.page(&index, ordinal, CachePriority::Scan) {
            check_page(&page, reader.meta().physical);
        }
    }
}

/// Writes a file with a column of these cells.
pub fn put_columns(disk: &MemDisk, cells: &[Option<Vec<u8>>], physical: PhysicalType) -> StreamMeta {
    let spec = StreamSpec {
        stream: COLUMN,
        physical,
        nullable: true,
        encoding: resolve(physical, Encoding::Auto).expect("every type has one"),
        // Pages are at the same offsets as in the file of `column_file`.
        compression: Compression::None,
        page_bytes: 64,
        exact_bounds: true,
    };
    put_stream(disk, cells.iter().map(Option::as_deref), spec)
}

fn put_stream<'a>(
    disk: &MemDisk,
    cells: impl Iterator<Item = Option<&'a [u8]>>,
    spec: StreamSpec,
) -> StreamMeta {
    let mut out = writer(disk, FileKind::RowSet);
    let mut column = StreamWriter::new(spec);
    for cell in cells {
        column.push(cell, &mut out).expect("room");
    }
    let meta = column.finish(&mut out).expect("room");
    out.finish(b"footer").expect("room");
    meta
}

/// Checks that cells read back as written, for every encoding, compression and page size.
///
/// First bytes: the compression, the size of pages, whether zone maps hold whole values; then the cells.
pub(super) fn column(data: &[u8]) {
    let [compression, page_bytes, exact, rest @ ..] = data else { return };
    let Ok(column) = PageColumn::arbitrary(&mut Unstructured::new(rest)) else { return };
    let Some((encoding, block)) = column.block() else { return };
    let (physical, nullable) = (column.physical(), column.nulls);
    let codecs = Compression::CODECS.get(usize::from(*compression) % 5);
    let spec = StreamSpec {
        stream: COLUMN,
        physical,
        nullable,
        encoding,
        compression: codecs.copied().unwrap_or(Compression::None),
        page_bytes: 1 + usize::from(*page_bytes) * 8,
        exact_bounds: *exact % 2 == 1,
    };
    let disk = MemDisk::new(1);
    let meta = put_stream(&disk, (0..block.len()).map(|row| block.cell(row)), spec);
    let file = opened(&disk, FileKind::RowSet);
    file.file.check_whole().expect("it was just written");
    let reader = StreamReader::new(file, meta);
    let index = reader.index().expect("it was just written");
    let mut rows = 0;
    for (ordinal, entry) in index.pages.iter().enumerate() {
        let page = reader.page(&index, ordinal, CachePriority::Scan).expect("it was just written");
        assert_eq!((entry.first_row as usize, entry.rows as usize), (rows, page.rows));
        check_page(&page, physical);
        for row in 0..page.rows {
            assert_eq!(page.cell(row).as_deref(), block.cell(rows + row), "row {row} of page {ordinal}");
        }
        rows += page.rows;
    }
    assert_eq!(rows, block.len());
}

/// Checks a correct file with some bytes changed: every page reads as written or reports damage, and a page reported
/// as sound is.
///
/// Input: places (two bytes), each with the byte to xor there.
pub(super) fn page_file(data: &[u8]) {
    let disk = MemDisk::new(1);
    let cells: Vec<_> = (0..40u32).map(|i| (i % 7 != 0).then(|| vec![i as u8 / 3; i as usize % 5])).collect();
    let meta = put_columns(&disk, &cells, PhysicalType::Binary);
    let file = disk.open(PATH).expect("it was just written");
    let mut bytes = vec![0; file.len().expect("its length") as usize];
    file.read_at(0, &mut bytes).expect("all of it");
    for change in data.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        bytes[at] ^= change[2];
    }
    let damaged = MemDisk::new(2);
    damaged.create(PATH).expect("an empty disk").append(&bytes).expect("room");
    let Ok((file, footer)) = PageFile::open(&damaged, PATH, FileKind::RowSet, IDENTITY) else { return };
    assert_eq!(&footer[..], b"footer");
    let whole = file.check_whole().is_ok();
    let reader = StreamReader::new(CachedFile::new(file, PageCache::new(1 << 20)), meta);
    let Ok(index) = reader.index() else { return assert!(!whole, "a whole file's index") };
    for (ordinal, entry) in index.pages.iter().enumerate() {
        let Ok(page) = reader.page(&index, ordinal, CachePriority::Scan) else {
            assert!(!whole, "page {ordinal} of a whole file");
            continue;
        };
        for row in 0..page.rows {
            assert_eq!(page.cell(row).as_deref(), cells[entry.first_row as usize + row].as_deref());
        }
    }
}

fn direction(what: u8) -> DeltaDirection {
    if what.is_multiple_of(2) { DeltaDirection::Redo } else { DeltaDirection::Undo }
}

/// Checks a delta file with arbitrary index and pages under correct page headers.
pub(super) fn delta_file(data: &[u8]) {
    let Some((&what, rest)) = data.split_first() else { return };
    let pieces = pieces(rest);
    let Some(index) = pieces.first() else { return };
    let direction = direction(what);
    let of = match direction {
        DeltaDirection::Redo => stream::REDO,
        DeltaDirection::Undo => stream::UNDO,
    };
    let disk = MemDisk::new(1);
    let mut out = writer(&disk, FileKind::Delta);
    let mut put = |stream, ordinal, body: &[u8]| -> PageRef {
        out.append(stream, ordinal, Compression::Lz4, body).expect("a small page")
    };
    for (ordinal, page) in (0..).zip(&pieces[1..]) {
        put(of, ordinal, page);
    }
    let at = put(index_of(of), 0, index);
    out.finish(b"").expect("room");
    let (oldest, newest) = (Timestamp::MIN, Timestamp::MAX);
    let meta = DeltaMeta { direction, count: 1, deletes: 0, reinserts: 0, oldest, newest, index: at };
    let reader = DeltaReader::new(opened(&disk, FileKind::Delta), meta);
    for rows in [0..u32::MAX, 3..4, u32::MAX - 1..u32::MAX] {
        let _ = reader.collect(rows, TimeRange::from(Timestamp::MIN), &mut DeltaBatch::default());
    }
    for row in [0, 1, u32::MAX - 1] {
        let _ = reader.last_change(row);
    }
}

/// Writes deltas in order of application: row, timestamp, and the row change's bytes.
pub fn put_changes(
    disk: &MemDisk,
    direction: DeltaDirection,
    changes: &[(u32, Timestamp, Vec<u8>)],
) -> Option<DeltaMeta> {
    let mut out = writer(disk, FileKind::Delta);
    let mut writer = DeltaWriter::new(direction, 64);
    for (row, ts, change) in changes {
        writer.push(*row, *ts, change, &mut out).expect("they are in order");
    }
    let meta = writer.finish(&mut out).expect("room");
    out.finish(b"").expect("room");
    meta
}

/// Row, timestamp, column and value; without a value the row is deleted.
type DrawnChange = (u8, u8, Option<(u32, Vec<u8>)>);

#[derive(Debug, Arbitrary)]
struct Changes {
    undo: bool,
    changes: Vec<DrawnChange>,
    rows: (u8, u8),
    times: (u8, Option<u8>),
}

/// Compares deltas that were written and collected again, by rows and times, with a list of them.
pub(super) fn delta_order(data: &[u8]) {
    let Ok(input) = Changes::arbitrary(&mut Unstructured::new(data)) else { return };
    let direction = if input.undo { DeltaDirection::Undo } else { DeltaDirection::Redo };
    let bytes = |change: &Option<(u32, Vec<u8>)>| {
        let mut out = Vec::new();
        match change {
            None => encode_delete(&mut out),
            Some((column, cell)) => {
                RowChangeBuilder::update(&mut out).set(engine::ids::ColumnId(*column), Some(cell));
            }
        }
        out
    };
    let change = |(row, ts, change): &(u8, u8, _)| (u32::from(*row), Timestamp((*ts).into()), bytes(change));
    let mut changes: Vec<_> = input.changes.iter().map(change).collect();
    changes.sort_by_key(|(row, ts, _)| (*row, if input.undo { u64::MAX - ts.0 } else { ts.0 }));
    let disk = MemDisk::new(1);
    let meta = put_changes(&disk, direction, &changes);
    let Some(meta) = meta else { return assert!(changes.is_empty()) };
    assert_eq!(meta.count, changes.len() as u64);
    let reader = DeltaReader::new(opened(&disk, FileKind::Delta), meta);
    let rows = u32::from(input.rows.0)..u32::from(input.rows.1);
    let before = input.times.1.map(|before| Timestamp(before.into()));
    let times = TimeRange { from: Timestamp(input.times.0.into()), before };
    let mut found = DeltaBatch::default();
    reader.collect(rows.clone(), times, &mut found).expect("sound pages");
    let wanted = changes.iter().filter(|(row, ts, _)| rows.contains(row) && times.contains(*ts));
    assert!(found.iter().eq(wanted.map(|(row, ts, change)| (*row, *ts, &change[..]))), "{input:?}");
}

/// Returns the body of a page of any stream.
fn body(disk: &MemDisk, kind: FileKind, stream: u32, ordinal: u32, at: PageRef) -> Vec<u8> {
    let file = opened(disk, kind);
    file.file.read(stream, ordinal, at).expect("a sound page").to_vec()
}

/// Returns the pieces from which `column_file` makes the file of [`put_columns`].
pub fn page_bodies(disk: &MemDisk, meta: &StreamMeta) -> Vec<Vec<u8>> {
    let read = |stream, ordinal, at| body(disk, FileKind::RowSet, stream, ordinal, at);
    let reader = StreamReader::new(opened(disk, FileKind::RowSet), meta.clone());
    let index = reader.index().expect("a sound index");
    let dictionary = meta.dictionary.map(|at| read(COLUMN | stream::DICTIONARY_OF, 0, at));
    let mut bodies = vec![read(index_of(COLUMN), 0, meta.index), dictionary.unwrap_or_default()];
    bodies.extend(index.pages.iter().zip(0..).map(|(page, ordinal)| read(COLUMN, ordinal, page.at)));
    bodies
}

/// Returns the pieces from which `delta_file` makes the file of [`put_changes`].
pub fn delta_bodies(disk: &MemDisk, meta: &DeltaMeta) -> Vec<Vec<u8>> {
    let mut bodies = vec![body(disk, FileKind::Delta, index_of(stream::REDO), 0, meta.index)];
    let (file, mut offset) = (disk.open(PATH).expect("it was just written"), 0);
    while offset < meta.index.offset {
        let mut head = [0; 48];
        file.read_at(offset, &mut head).expect("a page's header");
        let stored = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let at = PageRef { offset, len: 48 + stored };
        bodies.push(body(disk, FileKind::Delta, stream::REDO, bodies.len() as u32 - 1, at));
        offset += u64::from(at.len);
    }
    bodies
}
