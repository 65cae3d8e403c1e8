//! Fuzz targets as plain functions: any bytes at all, and none may panic, hang, or allocate without bound.
//!
//! A target does more than call its decoder: what decodes must encode again to the same bytes, or obey the order the
//! encoding promises. The corpora under `corpus/<target>/` are replayed by `cargo test` on a stable toolchain.
//!
//! Not here: the libFuzzer harness that searches for new inputs.

use bytes::Bytes;
use engine::codec;
use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::schema::change::{Change, ChangeBuilder, encode_delete};
use engine::schema::ops::{OpLimits, RowOpsReader, WireColumn};
use engine::schema::{ColumnSchema, DataType, Schema, key};
use engine::wal::{Entry, Wal, WalConfig};
use node::rpc::frame::{FrameReader, split_body};
use node::rpc::negotiate::{ServerNegotiation, Step, check_preamble};

/// A target: its name (and its corpus's folder) and its body.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: &[Target] = &[
    ("frame", frame),
    ("negotiate", negotiate),
    ("row_ops", row_ops),
    ("key", keys),
    ("change", change),
    ("envelope", envelope),
    ("wal", wal),
];

const FRAME_BYTES_MAX: usize = 1 << 20;

/// A byte stream cut into frames, in two pieces split anywhere; the frames must not depend on the split.
pub fn frame(data: &[u8]) {
    let Some((&split, stream)) = data.split_first() else { return };
    let whole = frames(&[stream]);
    let at = split as usize % (stream.len() + 1);
    assert_eq!(whole, frames(&[&stream[..at], &stream[at..]]), "frames depend on how bytes arrive");
    for frame in whole.into_iter().flatten() {
        let offsets: Vec<u32> = frame.header.iter().map(|byte| u32::from(*byte)).collect();
        if let Ok((message, sidecars)) = split_body(frame.body.clone(), &offsets) {
            let total = message.len() + sidecars.iter().map(Bytes::len).sum::<usize>();
            assert_eq!(total, frame.body.len(), "sidecars cover the body");
        }
    }
}

/// The frames of a stream, and an `Err` at its end if it broke.
fn frames(pieces: &[&[u8]]) -> Vec<Result<node::rpc::frame::Frame, String>> {
    let mut reader = FrameReader::new(FRAME_BYTES_MAX);
    let mut frames = Vec::new();
    for piece in pieces {
        reader.space().extend_from_slice(piece);
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push(Ok(frame)),
                Ok(None) => break,
                Err(error) => {
                    frames.push(Err(error.to_string()));
                    return frames;
                }
            }
        }
    }
    frames
}

/// A client's whole handshake: the preamble and whatever frames follow.
pub fn negotiate(data: &[u8]) {
    let mut reader = FrameReader::new(FRAME_BYTES_MAX);
    reader.space().extend_from_slice(data);
    let Some(preamble) = reader.take(7) else { return };
    if check_preamble(&preamble).is_err() {
        return;
    }
    let mut server = ServerNegotiation::new(true);
    while let Ok(Some(frame)) = reader.next_frame() {
        if !matches!(server.on_frame(&frame), Step::Continue(_)) {
            return;
        }
    }
}

fn table() -> Schema {
    let columns = vec![
        ColumnSchema::new(0, "k", DataType::Int32),
        ColumnSchema::new(1, "s", DataType::String),
        ColumnSchema::new(2, "b", DataType::Bool).nullable(),
        ColumnSchema::new(3, "t", DataType::Binary).nullable(),
        ColumnSchema::new(4, "d", DataType::Decimal128).nullable(),
    ];
    Schema::new(columns, 2).expect("a lawful schema")
}

/// A client's batch: first byte, where rows end and indirect data begins; then both.
pub fn row_ops(data: &[u8]) {
    let Some((&split, bytes)) = data.split_first() else { return };
    let (rows, indirect) = bytes.split_at(split as usize % (bytes.len() + 1));
    let schema = table();
    let column = |c: &ColumnSchema| WireColumn { id: c.id, ty: c.ty, nullable: c.nullable };
    let client: Vec<WireColumn> = schema.columns().iter().map(column).collect();
    let limits = OpLimits { cell_bytes_max: 64, key_bytes_max: 32 };
    let mut reader =
        RowOpsReader::new(&client, &schema, rows, indirect, limits).expect("the table has these columns");
    let mut seen = 0;
    while let Ok(Some(op)) = reader.next() {
        assert_eq!(op.cells.len(), schema.columns().len());
        seen += 1;
        assert!(seen <= rows.len(), "each operation takes at least a byte");
    }
}

/// An encoded key: what decodes encodes to the same bytes.
pub fn keys(data: &[u8]) {
    let types = [
        &[DataType::Int64][..],
        &[DataType::String, DataType::Int8],
        &[DataType::Binary, DataType::String],
        &[DataType::Date, DataType::Decimal128, DataType::Varchar],
    ];
    for types in types {
        let column = |(i, ty): (usize, &DataType)| ColumnSchema::new(i as u32, &format!("c{i}"), *ty);
        let columns: Vec<ColumnSchema> = types.iter().enumerate().map(column).collect();
        if let Ok(cells) = key::decode_key(&columns, data) {
            let mut again = Vec::new();
            key::encode_key(&columns, |i| &cells[i], &mut again);
            assert_eq!(again, data, "a key decodes to one row only");
        }
    }
}

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

fn put_cells(mut out: ChangeBuilder<'_>, cells: engine::schema::change::ChangeCells<'_>) {
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

/// A log whose last segment is followed by arbitrary bytes, as after a torn write.
pub fn wal(data: &[u8]) {
    let config = WalConfig { segment_bytes_max: 4096, preallocate: false };
    let disk = MemDisk::new(1);
    let shared: std::sync::Arc<dyn Disk> = std::sync::Arc::new(disk.clone());
    drop(Wal::create(shared.clone(), "wal", config).expect("an empty disk takes a log"));
    let names = shared.list("wal").expect("the log's folder");
    let segment = names.iter().find(|name| shared.open(&format!("wal/{name}")).is_ok());
    let segment = shared.open(&format!("wal/{}", segment.expect("a segment"))).expect("just listed");
    segment.append(data).expect("room");
    let mut entries = 0;
    let mut count = |_: Entry| {
        entries += 1;
        Ok(())
    };
    if let Ok((log, _)) = Wal::open(shared, "wal", config, &mut count) {
        assert!(entries <= data.len(), "each entry takes bytes");
        assert!(log.failure().is_none());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn corpora_are_replayed() {
        let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        for (name, target) in TARGETS {
            let mut inputs = 0;
            for entry in fs::read_dir(corpora.join(name)).expect("each target has a corpus") {
                target(&fs::read(entry.expect("readable folder").path()).expect("readable input"));
                inputs += 1;
            }
            assert!(inputs > 0, "{name} has an empty corpus");
        }
    }

    /// Every prefix and every single-byte change of every input: most of what tearing and rot do.
    #[test]
    fn damaged_corpora_are_survived() {
        let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        for (name, target) in TARGETS {
            for entry in fs::read_dir(corpora.join(name)).expect("each target has a corpus") {
                let input = fs::read(entry.expect("readable folder").path()).expect("readable input");
                for at in 0..input.len() {
                    target(&input[..at]);
                    for byte in [0, 1, 0x7f, 0x80, 0xff] {
                        let mut damaged = input.clone();
                        damaged[at] = byte;
                        target(&damaged);
                    }
                }
            }
        }
    }
}
