//! Records stored as a whole: envelopes, superblocks, consensus metadata, log records, rows of the catalog.
//!
//! Bytes reach the decoder inside a correct envelope: changed bytes alone would fail the checksum. A decoded record
//! must be the same after writing and reading it.

use std::fmt::Debug;

use bytes::Bytes;
use engine::catalog::{ClusterRecord, ServerRecord, SystemRecord, SystemRowKey, TableRecord, TabletRecord};
use engine::cfile::page_index::PageIndex;
use engine::codec;
use engine::raft::{ConsensusMeta, RaftConfig};
use engine::replica::copy::CopyManifest;
use engine::replica::log_payload::{CommitPayload, LoggedOp, request_of};
use engine::schema::row_change::{RowChange, RowChangeBuilder, RowChangeCells, encode_delete};
use engine::tablet::superblock::Superblock;

/// Checks that a parsed row change encodes to an equal one.
pub(super) fn change(data: &[u8]) {
    let Ok(change) = RowChange::parse(data) else { return };
    let mut again = Vec::new();
    match change {
        RowChange::Delete => encode_delete(&mut again),
        RowChange::Update(cells) => put_cells(RowChangeBuilder::update(&mut again), cells),
        RowChange::Reinsert(cells) => put_cells(RowChangeBuilder::reinsert(&mut again), cells),
    }
    let read = RowChange::parse(&again).expect("what was just encoded");
    assert!(read.cells().eq(change.cells()), "a change says the same when written again");
    assert_eq!(read.deletes(), change.deletes());
}

fn put_cells(mut out: RowChangeBuilder<'_>, cells: RowChangeCells<'_>) {
    for (column, cell) in cells {
        out.set(column, cell);
    }
}

/// Checks a sealed record; every changed bit is noticed.
pub(super) fn envelope(data: &[u8]) {
    const MAGIC: [u8; 4] = *b"fuzz";
    let _ = codec::unseal(MAGIC, 3, data);
    let mut sealed = codec::seal(MAGIC, 3, data);
    assert_eq!(codec::unseal(MAGIC, 3, &sealed).expect("what was just sealed").1, data);
    let bit =
        data.iter().fold(7usize, |sum, byte| sum.wrapping_mul(31) + *byte as usize) % (sealed.len() * 8);
    sealed[bit / 8] ^= 1 << (bit % 8);
    assert!(codec::unseal(MAGIC, 3, &sealed).is_err(), "bit {bit} changed unseen");
}

/// Decodes the bytes, encodes the value and decodes it again.
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

/// Checks a superblock. First byte: the format's version; then the content.
pub(super) fn superblock(data: &[u8]) {
    let Some((&version, payload)) = data.split_first() else { return };
    let _ = Superblock::decode(data);
    let sealed = codec::seal(*b"NYTM", u16::from(version) % 5, payload);
    survives(&sealed, Superblock::decode, Superblock::encode);
}

/// Checks consensus metadata, and configurations as the log stores them.
pub(super) fn consensus_meta(data: &[u8]) {
    let sealed = codec::seal(*b"NYCM", 1, data);
    survives(&sealed, ConsensusMeta::decode, ConsensusMeta::encode);
    let config = survives(data, RaftConfig::decode, |config| config.encode().to_vec());
    if let Some(config) = config {
        let voters = config.voter_count();
        assert!(config.check().is_err() || config.majority() * 2 > voters, "{config}");
    }
}

/// Checks a tablet copy's manifest, as its source sends it.
pub(super) fn manifest(data: &[u8]) {
    let sealed = codec::seal(*b"NYCP", 2, data);
    let Some(manifest) = survives(&sealed, CopyManifest::decode, CopyManifest::encode) else { return };
    assert_eq!(manifest.files().count(), manifest.file_bytes.len());
    let segments = manifest.segments.iter().map(|segment| segment.bytes);
    let most = manifest.file_bytes.iter().copied().chain(segments).max();
    assert!(Some(manifest.total_bytes()) >= most, "all parts are more than one of them");
}

/// Checks a log record. First byte: its kind; then its payload, as an operation and as an outcome.
pub(super) fn log_record(data: &[u8]) {
    let Some((&kind, payload)) = data.split_first() else { return };
    let payload = Bytes::copy_from_slice(payload);
    if let Ok(logged) = LoggedOp::decode(kind % 6, &payload) {
        let (again, bytes) = logged.encode();
        assert_eq!(again, kind % 6, "an operation stays of its kind");
        assert_eq!(request_of(again, &bytes), logged.request);
        let read = LoggedOp::decode(again, &bytes).expect("what was just encoded");
        assert_eq!(format!("{read:?}"), format!("{logged:?}"));
    }
    survives(&payload, CommitPayload::decode, |applied| applied.encode().to_vec());
}

/// Checks a page index. First bytes: number of rows of the stream, width of its cells; then the index.
pub(super) fn page_index(data: &[u8]) {
    let [rows, width, body @ ..] = data else { return };
    let width = [None, Some(1), Some(4), Some(16)][usize::from(*width) % 4];
    let decode = |body: &[u8]| PageIndex::decode(body, u32::from(*rows), width);
    let Some(index) = survives(body, decode, PageIndex::encode) else { return };
    for row in 0..u32::from(*rows) {
        let page = &index.pages[index.page_of(row)];
        assert!((page.first_row..page.first_row + page.rows).contains(&row), "row {row} is in its page");
    }
}

/// Checks a value of the system tablet. First byte: its record; then the value. Keys are read from the same bytes.
pub(super) fn catalog_row(data: &[u8]) {
    let Some((&kind, value)) = data.split_first() else { return };
    fn of<R: SystemRecord + PartialEq + Debug>(value: &[u8]) {
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
    if let Ok(key) = SystemRowKey::from_columns(kind as i8, text) {
        let (kind, id) = key.columns();
        assert_eq!(SystemRowKey::from_columns(kind, &id).expect("what was just written"), key);
    }
}
