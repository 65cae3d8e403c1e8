//! Format of a segment: header, batches, entries.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::entry::{CommitEntry, LogEntry, ReplicateEntry};
use super::packer::BatchPacker;
use crate::codec::{self, ByteReader};
use crate::error::{Error, Result};
use crate::format_level::StoredFormat;
use crate::ids::OpId;
use crate::time::Timestamp;

const SEGMENT_MAGIC: [u8; 4] = *b"NYWS";
/// 1: uncompressed batches. 2: batches may be compressed.
pub(super) const SEGMENT_VERSION: u16 = StoredFormat::LogSegment.only_version();
/// Longest segment header in bytes.
pub(super) const SEGMENT_HEADER_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SegmentHeader {
    pub sequence: u64,
    /// The last operation before this segment.
    pub last_op: OpId,
    /// Length in bytes of the previous segment, 0 for the first: reveals a missing tail there.
    pub previous_bytes: u64,
}

pub(super) fn encode_header(header: &SegmentHeader) -> Vec<u8> {
    let payload = postcard::to_stdvec(header).expect("numbers can be encoded");
    codec::seal(SEGMENT_MAGIC, SEGMENT_VERSION, &payload)
}

/// Decodes the header at the start of `bytes`, its length, and the segment's format.
pub(super) fn decode_header(bytes: &[u8]) -> Result<(SegmentHeader, usize, u16)> {
    let (version, payload, len) = codec::unseal_prefix(SEGMENT_MAGIC, SEGMENT_VERSION, bytes)?;
    let header = postcard::from_bytes(payload)
        .map_err(|error| Error::corrupt(format!("corrupt segment header: {error}")))?;
    Ok((header, len, version))
}

/// First bytes of each batch.
pub(super) const BATCH_MAGIC: [u8; 4] = *b"NYWB";
/// First bytes of a compressed batch: its payload is the uncompressed length (u32 LE), then an LZ4 block.
pub(super) const PACKED_MAGIC: [u8; 4] = *b"NYWC";
pub(super) const BATCH_HEADER: usize = 40;
const BATCH_CRC_AT: usize = BATCH_HEADER - 4;
/// Longest payload of a batch in bytes, whatever its length field says.
pub(crate) const BATCH_BYTES_MAX: usize = 1 << 30;

const TAG_REPLICATE: u8 = 1;
const TAG_COMMIT: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BatchHeader {
    pub packed: bool,
    pub payload_len: usize,
    pub payload_crc: u32,
    /// Offset up to which the segment was durable when this was written.
    pub synced: u64,
}

/// Upper bound in bytes of the batch that [`encode_batch`] writes; `Invalid` if it is too long.
pub(super) fn batch_len(entries: &[LogEntry]) -> Result<u64> {
    let mut len = codec::varint_len(entries.len() as u64);
    for entry in entries {
        len += entry_len(entry);
    }
    if len > BATCH_BYTES_MAX {
        return Err(Error::invalid(format!("batch: too large ({len} bytes, limit {BATCH_BYTES_MAX})")));
    }
    Ok((BATCH_HEADER + len) as u64)
}

/// Upper bound of the bytes of an entry.
pub(crate) fn entry_len(entry: &LogEntry) -> usize {
    let (op, fixed, payload) = match entry {
        LogEntry::Replicate(replicate) => (replicate.op, 1 + 8 + 1, &replicate.payload),
        LogEntry::Commit(commit) => (commit.op, 1, &commit.payload),
    };
    let id = codec::varint_len(op.term) + codec::varint_len(op.index);
    id + fixed + codec::varint_len(payload.len() as u64) + payload.len()
}

/// Position of a batch, and the durable offset of its segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchPosition {
    pub sequence: u64,
    pub offset: u64,
    pub synced: u64,
}

/// Encodes the batch into `out`, which is empty: one copy of each payload, one pass of the checksum.
pub(super) fn encode_batch(
    out: &mut Vec<u8>,
    entries: &[LogEntry],
    packer: Option<&mut BatchPacker>,
    place: BatchPosition,
) {
    out.resize(BATCH_HEADER, 0);
    codec::put_varint(out, entries.len() as u64);
    for entry in entries {
        encode_entry(out, entry);
    }
    let packed = packer.is_some_and(|packer| packer.pack(out, BATCH_HEADER));
    let BatchPosition { sequence, offset, synced } = place;
    let payload = &out[BATCH_HEADER..];
    let (len, crc) = (payload.len() as u32, crc32c::crc32c(payload));
    out[0..4].copy_from_slice(if packed { &PACKED_MAGIC } else { &BATCH_MAGIC });
    out[4..8].copy_from_slice(&len.to_le_bytes());
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    out[12..20].copy_from_slice(&sequence.to_le_bytes());
    out[20..28].copy_from_slice(&offset.to_le_bytes());
    out[28..36].copy_from_slice(&synced.to_le_bytes());
    let crc = crc32c::crc32c(&out[..BATCH_CRC_AT]);
    out[BATCH_CRC_AT..BATCH_HEADER].copy_from_slice(&crc.to_le_bytes());
}

/// Decompresses the output of [`BatchPacker::pack`].
pub(super) fn unpack(payload: &Bytes) -> Result<Bytes, &'static str> {
    let Some((len, packed)) = payload.split_first_chunk::<4>() else {
        return Err("a compressed batch is too short for its length");
    };
    let len = u32::from_le_bytes(*len) as usize;
    // An LZ4 block grows at most by this factor.
    if len > packed.len().saturating_mul(255) || len > BATCH_BYTES_MAX {
        return Err("a compressed batch claims to be longer than it can be");
    }
    let mut out = vec![0; len];
    match lz4_flex::block::decompress_into(packed, &mut out) {
        Ok(got) if got == len => Ok(out.into()),
        _ => Err("a compressed batch does not decompress"),
    }
}

/// Returns true if a batch may begin with these bytes.
pub(super) fn begins_batch(bytes: &[u8]) -> bool {
    bytes.starts_with(&BATCH_MAGIC) || bytes.starts_with(&PACKED_MAGIC)
}

fn encode_entry(out: &mut Vec<u8>, entry: &LogEntry) {
    match entry {
        LogEntry::Replicate(replicate) => {
            out.push(TAG_REPLICATE);
            put_op(out, replicate.op);
            out.extend_from_slice(&replicate.timestamp.0.to_le_bytes());
            out.push(replicate.kind);
            codec::put_bytes(out, &replicate.payload);
        }
        LogEntry::Commit(commit) => {
            out.push(TAG_COMMIT);
            put_op(out, commit.op);
            codec::put_bytes(out, &commit.payload);
        }
    }
}

fn put_op(out: &mut Vec<u8>, op: OpId) {
    codec::put_varint(out, op.term);
    codec::put_varint(out, op.index);
}

/// Decodes the header of the batch at `offset` of a segment; the error is the reason why there is none.
pub(super) fn decode_batch_header(
    bytes: &[u8; BATCH_HEADER],
    sequence: u64,
    offset: u64,
) -> Result<BatchHeader, &'static str> {
    if !begins_batch(bytes) {
        return Err("no batch begins here");
    }
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    if word(BATCH_CRC_AT) != crc32c::crc32c(&bytes[..BATCH_CRC_AT]) {
        return Err("the batch header fails its checksum");
    }
    if long(12) != sequence || long(20) != offset {
        return Err("the batch belongs elsewhere");
    }
    let packed = bytes.starts_with(&PACKED_MAGIC);
    Ok(BatchHeader { packed, payload_len: word(4) as usize, payload_crc: word(8), synced: long(28) })
}

/// Passes the entries of a batch to `each`; their payloads share its memory.
pub(super) fn decode_entries(payload: &Bytes, each: &mut dyn FnMut(LogEntry) -> Result<()>) -> Result<()> {
    let mut reader = ByteReader::new(payload);
    let count = reader.varint()?;
    for _ in 0..count {
        let entry = match reader.u8()? {
            TAG_REPLICATE => LogEntry::Replicate(ReplicateEntry {
                op: read_op(&mut reader)?,
                timestamp: Timestamp(reader.u64()?),
                kind: reader.u8()?,
                payload: payload.slice_ref(reader.bytes()?),
            }),
            TAG_COMMIT => LogEntry::Commit(CommitEntry {
                op: read_op(&mut reader)?,
                payload: payload.slice_ref(reader.bytes()?),
            }),
            tag => return Err(Error::corrupt(format!("{tag} is not a kind of log entry"))),
        };
        each(entry)?;
    }
    reader.finish()
}

fn read_op(reader: &mut ByteReader<'_>) -> Result<OpId> {
    Ok(OpId { term: reader.varint()?, index: reader.varint()? })
}
