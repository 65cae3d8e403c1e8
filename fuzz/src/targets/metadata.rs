//! What is stored as a whole: envelopes, superblocks, consensus metadata, log records, rows of the catalog.
//!
//! Bytes reach the decoder behind the checksum, inside an envelope of their own: changed bytes alone would never get
//! past it. What decodes must be the same after it was written and read again.

use std::fmt::Debug;

use bytes::Bytes;
use engine::catalog::{ClusterRecord, Record, RowKey, ServerRecord, TableRecord, TabletRecord};
use engine::cfile::index::PageIndex;
use engine::codec;
use engine::raft::{Config, ConsensusMeta};
use engine::replica::copy::Manifest;
use engine::replica::payload::{Applied, Logged, request_of};
use engine::schema::change::{Change, ChangeBuilder, ChangeCells, encode_delete};
use engine::tablet::meta::TabletMeta;

/// A stored row change: what parses encodes to a change that says the same.
pub fn change(data: &[u8]) {
    let Ok(change) = Change::parse(data) else { return };
    let mut again = Vec::new();
    match change {
        Change::Delete => encode_delete(&mut again),
        Change::Update(cells) => put_cells(ChangeBuilder::update(&mut again), cells),
        Change::Reinsert(cells) => put_cells(ChangeBuilder::reinsert(&mut again), cells),
    }
    let read = Change::parse(&again).expect("what was just encoded");
    assert!(read.cells().eq(change.cells()), "a change says the same when written again");
    assert_eq!(read.deletes(), change.deletes());
}

fn put_cells(mut out: ChangeBuilder<'_>, cells: ChangeCells<'_>) {
    for (column, cell) in cells {
        out.set(column, cell);
    }
}

/// A sealed record; one changed bit is always noticed.
pub fn envelope(data: &[u8]) {
    const MAGIC: [u8; 4] = *b"fuzz";
    let _ = codec::unseal(MAGIC, 3, data);
    let mut sealed = codec::seal(MAGIC, 3, data);
    assert_eq!(codec::unseal(MAGIC, 3, &sealed).expect("what was just sealed").1, data);
    let bit =
        data.iter().fold(7usize, |sum, byte| sum.wrapping_mul(31) + *byte as usize) % (sealed.len() * 8);
    sealed[bit / 8] ^= 1 << (bit % 8);
    assert!(codec::unseal(MAGIC, 3, &sealed).is_err(), "bit {bit} changed unseen");
}

/// Reads the bytes, writes what they say and reads it again.
fn survives<T: PartialEq + Debug, E: Debug>(
    data: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, E>,
    encode: impl Fn(&T) -> Vec<u8>,
) -> Option<T> {
    let value = decode(data).ok()?;
    let again = encode(&value);
    assert_eq!(decode(&again).expect("what was just encoded"), value);
    Some(value)
}

/// First byte: the format's version; then what a superblock holds.
pub fn superblock(data: &[u8]) {
    let Some((&version, payload)) = data.split_first() else { return };
    let _ = TabletMeta::decode(data);
    let sealed = codec::seal(*b"NYTM", u16::from(version) % 5, payload);
    survives(&sealed, TabletMeta::decode, TabletMeta::encode);
}

/// Of a replica, and configurations as the log has them.
pub fn consensus_meta(data: &[u8]) {
    let sealed = codec::seal(*b"NYCM", 1, data);
    survives(&sealed, ConsensusMeta::decode, ConsensusMeta::encode);
    let config = survives(data, Config::decode, |config| config.encode().to_vec());
    if let Some(config) = config {
        let voters = config.voter_count();
        assert!(config.check().is_err() || config.majority() * 2 > voters, "{config}");
    }
}

/// What a tablet copy consists of, by its source's word.
pub fn manifest(data: &[u8]) {
    let sealed = codec::seal(*b"NYCP", 2, data);
    let Some(manifest) = survives(&sealed, Manifest::decode, Manifest::encode) else { return };
    assert_eq!(manifest.files().count(), manifest.file_bytes.len());
    let segments = manifest.segments.iter().map(|segment| segment.bytes);
    let most = manifest.file_bytes.iter().copied().chain(segments).max();
    assert!(Some(manifest.total_bytes()) >= most, "all parts are more than one of them");
}

/// First byte: the record's kind; then its payload, as an operation and as an outcome.
pub fn log_record(data: &[u8]) {
    let Some((&kind, payload)) = data.split_first() else { return };
    let payload = Bytes::copy_from_slice(payload);
    if let Ok(logged) = Logged::decode(kind % 6, &payload) {
        let (again, bytes) = logged.encode();
        assert_eq!(again, kind % 6, "an operation stays of its kind");
        assert_eq!(request_of(again, &bytes), logged.request);
        let read = Logged::decode(again, &bytes).expect("what was just encoded");
        assert_eq!(format!("{read:?}"), format!("{logged:?}"));
    }
    survives(&payload, Applied::decode, |applied| applied.encode().to_vec());
}

/// First bytes: how many rows the stream has, and how wide its cells are; then the index.
pub fn page_index(data: &[u8]) {
    let [rows, width, body @ ..] = data else { return };
    let width = [None, Some(1), Some(4), Some(16)][usize::from(*width) % 4];
    let decode = |body: &[u8]| PageIndex::decode(body, u32::from(*rows), width);
    let Some(index) = survives(body, decode, PageIndex::encode) else { return };
    for row in 0..u32::from(*rows) {
        let page = &index.pages[index.page_of(row)];
        assert!((page.first_row..page.first_row + page.rows).contains(&row), "row {row} is in its page");
    }
}

/// First byte: which record; then a value of the system tablet. Keys are read from the same bytes.
pub fn catalog_row(data: &[u8]) {
    let Some((&kind, value)) = data.split_first() else { return };
    fn of<R: Record + PartialEq + Debug>(value: &[u8]) {
        let sealed = codec::seal(R::MAGIC, R::VERSION, value);
        survives(&sealed, R::unseal, R::seal);
    }
    match kind % 4 {
        0 => of::<TableRecord>(value),
        1 => of::<TabletRecord>(value),
        2 => of::<ServerRecord>(value),
        _ => of::<ClusterRecord>(value),
    }
    let Ok(text) = std::str::from_utf8(value) else { return };
    if let Ok(key) = RowKey::from_columns(kind as i8, text) {
        let (kind, id) = key.columns();
        assert_eq!(RowKey::from_columns(kind, &id).expect("what was just written"), key);
    }
}
