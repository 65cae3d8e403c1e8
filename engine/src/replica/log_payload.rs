//! Log payloads: the encoding of an operation, and of its outcome.
//!
//! ```text
//! write      request | zig-zag: last auto-increment value before | varint n | n × (varint id, u8 type, u8 nullable)
//!            | bytes rows | bytes indirect
//! alter      request | postcard(AlterPayload)
//! no-op      request
//! config     see `raft::RaftConfig::encode`; it is the core's
//! request    u8 0, or u8 1 | bytes client | zig-zag seq, first incomplete, attempt
//!
//! outcome    u8 kind
//!   0 done             (no-op)
//!   1 failed           u8 kind | bytes message
//!   2 altered          varint version
//!   3 written          counts, all of them non-zero ones: u8 mask | varint each
//!   4 written, not all counts | varint n | n × (varint step, u8 code, bytes message) | varint n | n × varint step
//!                      first the rows that failed, then those that were ignored; a step is from the row before
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::interface::{APPEND_BYTES_MAX, Op, OpResult, RequestId, WriteOp};
use crate::codec::{ByteReader, put_bytes, put_varint, put_zigzag};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::ColumnId;
use crate::raft::interface::kind;
use crate::schema::row_ops::{ClientColumn, RowError, RowErrorCode};
use crate::schema::{DataType, Schema};
use crate::tablet::apply::{WriteCounts, WriteResult};
use crate::tablet::prepared_batch::ROWS_MAX;
use crate::tablet::row_errors::{FIXED_TEXT_BYTES_MAX, TEXT_BYTES_MAX};
use crate::wal::BATCH_BYTES_MAX;

/// Most bytes of an operation that a leader takes.
pub(super) const OP_BYTES_MAX: usize = 512 << 20;
/// Most bytes of a row in an outcome: its step, its code, the length of its text, and a fixed text.
const ROW_BYTES_MAX: usize = 5 + 1 + 3 + FIXED_TEXT_BYTES_MAX;
/// Most bytes of the outcome of a write: its rows, the other texts, and the counts.
const OUTCOME_BYTES_MAX: usize = ROWS_MAX * ROW_BYTES_MAX + TEXT_BYTES_MAX + 128;
/// More bytes than the log adds to the payload of an entry and of a batch.
const ENTRY_BYTES_MAX: usize = 64;

// A committed operation and its outcome must be written, so they fit a batch that has other entries already.
const _: () = assert!(APPEND_BYTES_MAX + ENTRY_BYTES_MAX + OP_BYTES_MAX <= BATCH_BYTES_MAX);
const _: () = assert!(APPEND_BYTES_MAX + ENTRY_BYTES_MAX + OUTCOME_BYTES_MAX <= BATCH_BYTES_MAX);

/// A logged operation.
#[derive(Debug, Clone)]
pub struct LoggedOp {
    pub op: Op,
    pub request: Option<RequestId>,
    /// Writes: the last auto-increment value assigned before the write.
    pub auto_increment: i64,
}

/// Outcome of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitPayload {
    Nothing,
    Failed(Error),
    Altered(u32),
    Written(WriteResult),
}

#[derive(Serialize, Deserialize)]
struct AlterPayload {
    schema: Schema,
    version: u32,
    table_name: String,
    extra: BTreeMap<String, String>,
}

impl LoggedOp {
    /// Encodes the record's kind and payload.
    pub fn encode(&self) -> (u8, Bytes) {
        match &self.op {
            Op::Write(write) => (kind::WRITE, self.encode_write(write)),
            Op::AlterSchema { schema, version, table_name, extra } => {
                let mut out = Vec::new();
                put_request(&mut out, self.request.as_ref());
                let alter = AlterPayload {
                    schema: (**schema).clone(),
                    version: *version,
                    table_name: table_name.clone(),
                    extra: extra.clone(),
                };
                let encoded = postcard::to_extend(&alter, out).expect("every field can be written");
                (kind::ALTER, encoded.into())
            }
            Op::NoOp => {
                let mut out = Vec::new();
                put_request(&mut out, self.request.as_ref());
                (kind::NO_OP, out.into())
            }
        }
    }

    fn encode_write(&self, write: &WriteOp) -> Bytes {
        let fixed = 96 + 8 * write.columns.len();
        let mut out = Vec::with_capacity(write.rows.len() + write.indirect.len() + fixed);
        put_request(&mut out, self.request.as_ref());
        put_zigzag(&mut out, self.auto_increment);
        put_varint(&mut out, write.columns.len() as u64);
        for column in write.columns.iter() {
            put_varint(&mut out, column.id.0.into());
            out.extend([column.ty as u8, column.nullable.into()]);
        }
        put_bytes(&mut out, &write.rows);
        put_bytes(&mut out, &write.indirect);
        out.into()
    }

    /// Decodes a record; rows share the memory of `payload`.
    pub fn decode(kind: u8, payload: &Bytes) -> Result<LoggedOp> {
        let mut reader = ByteReader::new(payload);
        let request = request(&mut reader)?;
        let (op, auto_increment) = match kind {
            kind::WRITE => {
                let auto_increment = reader.zigzag()?;
                (Op::Write(write(&mut reader, payload)?), auto_increment)
            }
            kind::ALTER => {
                let alter: AlterPayload = postcard::from_bytes(reader.rest())
                    .map_err(|e| Error::corrupt(format!("corrupt schema change: {e}")))?;
                let AlterPayload { schema, version, table_name, extra } = alter;
                (Op::AlterSchema { schema: Box::new(schema), version, table_name, extra }, 0)
            }
            kind::NO_OP => (Op::NoOp, 0),
            other => {
                return Err(Error::unsupported(format!(
                    "the log holds an operation of kind {other}, which this build does not know; \
                     use the build that wrote it or a later one"
                )));
            }
        };
        Ok(LoggedOp { op, request, auto_increment })
    }
}

/// Returns the writes among logged operations. Unreadable records are skipped: applying them reports the error.
pub fn writes_of<'a>(entries: impl IntoIterator<Item = (u8, &'a Bytes)>) -> Vec<WriteOp> {
    let decoded = entries.into_iter().filter(|(what, _)| *what == kind::WRITE);
    let decoded = decoded.filter_map(|(what, payload)| LoggedOp::decode(what, payload).ok());
    let write = |logged: LoggedOp| match logged.op {
        Op::Write(write) => Some(write),
        _ => None,
    };
    decoded.filter_map(write).collect()
}

/// The request of a record, if it names one; an unreadable record names none.
pub fn request_of(what: u8, payload: &[u8]) -> Option<RequestId> {
    match what {
        kind::WRITE | kind::ALTER | kind::NO_OP => request(&mut ByteReader::new(payload)).ok().flatten(),
        _ => None,
    }
}

fn put_request(out: &mut Vec<u8>, request: Option<&RequestId>) {
    out.push(request.is_some().into());
    if let Some(request) = request {
        put_bytes(out, &request.client);
        put_zigzag(out, request.seq);
        put_zigzag(out, request.first_incomplete);
        put_zigzag(out, request.attempt);
    }
}

fn request(reader: &mut ByteReader<'_>) -> Result<Option<RequestId>> {
    if reader.u8()? == 0 {
        return Ok(None);
    }
    Ok(Some(RequestId {
        client: reader.bytes()?.to_vec(),
        seq: reader.zigzag()?,
        first_incomplete: reader.zigzag()?,
        attempt: reader.zigzag()?,
    }))
}

fn write(reader: &mut ByteReader<'_>, payload: &Bytes) -> Result<WriteOp> {
    let count = reader.varint()? as usize;
    if count > reader.remaining() {
        return Err(Error::corrupt(format!("a write of {count} columns in {} bytes", reader.remaining())));
    }
    let columns = (0..count).map(|_| wire_column(reader)).collect::<Result<Vec<ClientColumn>>>()?;
    let (rows, indirect) = (reader.bytes()?, reader.bytes()?);
    reader.finish()?;
    Ok(WriteOp {
        columns: Arc::from(columns),
        rows: payload.slice_ref(rows),
        indirect: payload.slice_ref(indirect),
    })
}

fn wire_column(reader: &mut ByteReader<'_>) -> Result<ClientColumn> {
    let id = ColumnId(reader.varint_u32()?);
    let number = reader.u8()?;
    let ty = DataType::from_number(number.into())
        .ok_or_else(|| Error::corrupt(format!("a column of unknown type {number}")))?;
    Ok(ClientColumn { id, ty, nullable: reader.u8()? != 0 })
}

impl CommitPayload {
    /// Converts the outcome into the result for the client.
    pub fn into_result(self) -> Result<OpResult> {
        match self {
            CommitPayload::Nothing => Ok(OpResult::NoOp),
            CommitPayload::Failed(error) => Err(error),
            CommitPayload::Altered(version) => Ok(OpResult::Altered { version }),
            CommitPayload::Written(WriteResult { counts, errors, .. }) => {
                Ok(OpResult::Write { errors, counts })
            }
        }
    }

    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        match self {
            CommitPayload::Nothing => out.push(0),
            CommitPayload::Failed(error) => {
                out.extend([1, error.kind as u8]);
                put_bytes(&mut out, error.message.as_bytes());
            }
            CommitPayload::Altered(version) => {
                out.push(2);
                put_varint(&mut out, (*version).into());
            }
            CommitPayload::Written(outcome) => put_outcome(&mut out, outcome),
        }
        out.into()
    }

    pub fn decode(payload: &[u8]) -> Result<CommitPayload> {
        let mut reader = ByteReader::new(payload);
        let applied = match reader.u8()? {
            0 => CommitPayload::Nothing,
            1 => {
                let kind = error_kind(reader.u8()?)?;
                CommitPayload::Failed(Error { kind, message: reader.text()?.to_string(), errno: None })
            }
            2 => CommitPayload::Altered(reader.varint_u32()?),
            3 => {
                CommitPayload::Written(WriteResult { counts: counts(&mut reader)?, ..WriteResult::default() })
            }
            4 => CommitPayload::Written(WriteResult {
                counts: counts(&mut reader)?,
                errors: errors(&mut reader)?,
                ignored: steps(&mut reader, |_| Ok(()))?.into_iter().map(|(index, ())| index).collect(),
            }),
            other => return Err(Error::corrupt(format!("an outcome of unknown kind {other}"))),
        };
        reader.finish()?;
        Ok(applied)
    }
}

fn put_outcome(out: &mut Vec<u8>, outcome: &WriteResult) {
    let all = outcome.errors.is_empty() && outcome.ignored.is_empty();
    out.push(if all { 3 } else { 4 });
    let count_values = outcome.counts.to_array();
    let mask = count_values.iter().enumerate().fold(0, |mask, (i, n)| mask | u8::from(*n > 0) << i);
    out.push(mask);
    count_values.iter().filter(|n| **n > 0).for_each(|n| put_varint(out, *n));
    if all {
        return;
    }
    let mut last = 0;
    put_varint(out, outcome.errors.len() as u64);
    for (index, error) in &outcome.errors {
        put_varint(out, (index - std::mem::replace(&mut last, *index)).into());
        out.push(error.code as u8);
        put_bytes(out, error.message.as_bytes());
    }
    last = 0;
    put_varint(out, outcome.ignored.len() as u64);
    for index in &outcome.ignored {
        put_varint(out, (index - std::mem::replace(&mut last, *index)).into());
    }
}

fn counts(reader: &mut ByteReader<'_>) -> Result<WriteCounts> {
    let mask = reader.u8()?;
    let mut count_values = [0; 8];
    for (i, number) in count_values.iter_mut().enumerate() {
        if mask >> i & 1 == 1 {
            *number = reader.varint()?;
        }
    }
    Ok(WriteCounts::from_array(count_values))
}

fn errors(reader: &mut ByteReader<'_>) -> Result<Vec<(u32, RowError)>> {
    steps(reader, |reader| {
        let code = match reader.u8()? {
            0 => RowErrorCode::AlreadyPresent,
            1 => RowErrorCode::NotFound,
            2 => RowErrorCode::InvalidArgument,
            3 => RowErrorCode::Immutable,
            other => return Err(Error::corrupt(format!("a row error of unknown code {other}"))),
        };
        Ok(RowError::new(code, reader.text()?))
    })
}

/// Reads a count, then for each row the step from the previous row and the result of `each`.
fn steps<T>(
    reader: &mut ByteReader<'_>,
    mut each: impl FnMut(&mut ByteReader<'_>) -> Result<T>,
) -> Result<Vec<(u32, T)>> {
    let (count, mut index, mut out) = (reader.varint()?, 0u32, Vec::new());
    for _ in 0..count {
        let step = reader.varint_u32()?;
        index =
            index.checked_add(step).ok_or_else(|| Error::corrupt("row numbers of an outcome overflow"))?;
        out.push((index, each(reader)?));
    }
    Ok(out)
}

const ERROR_KINDS: [ErrorKind; 12] = [
    ErrorKind::Invalid,
    ErrorKind::NotFound,
    ErrorKind::AlreadyPresent,
    ErrorKind::NotReady,
    ErrorKind::NotLeader,
    ErrorKind::Throttled,
    ErrorKind::Unsupported,
    ErrorKind::Aborted,
    ErrorKind::Corrupt,
    ErrorKind::Io,
    ErrorKind::TimedOut,
    ErrorKind::NotAuthorized,
];

fn error_kind(number: u8) -> Result<ErrorKind> {
    let kind = ERROR_KINDS.get(usize::from(number)).copied();
    kind.ok_or_else(|| Error::corrupt(format!("an error of unknown kind {number}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_survive_the_log() {
        let columns: Arc<[ClientColumn]> =
            [ClientColumn { id: ColumnId(300), ty: DataType::Int32, nullable: true }].into();
        let write =
            WriteOp { columns, rows: Bytes::from_static(b"rows"), indirect: Bytes::from_static(b"x") };
        let request = RequestId { client: b"me".to_vec(), seq: -1, first_incomplete: 3, attempt: 9 };
        let logged = LoggedOp { op: Op::Write(write), request: Some(request.clone()), auto_increment: -4 };
        let (kind, payload) = logged.encode();
        let back = LoggedOp::decode(kind, &payload).expect("encoded above");
        assert_eq!((back.request, back.auto_increment), (Some(request), -4));
        let Op::Write(back) = back.op else { panic!("not a write") };
        assert_eq!(
            (&back.rows[..], &back.indirect[..], back.columns[0].id.0),
            (&b"rows"[..], &b"x"[..], 300)
        );
        for len in 0..payload.len() {
            assert!(LoggedOp::decode(kind, &payload.slice(..len)).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn outcomes_survive_the_log() {
        let counts = WriteCounts { inserts: 3, delete_ignore_errors: 1_000, ..WriteCounts::default() };
        let failed = |index, code| (index, RowError::new(code, "why"));
        let some = WriteResult {
            counts,
            errors: vec![failed(0, RowErrorCode::NotFound), failed(700, RowErrorCode::Immutable)],
            ignored: vec![2, 3],
        };
        let all = WriteResult { counts, ..WriteResult::default() };
        assert_eq!(CommitPayload::Written(all.clone()).encode().len(), 5);
        let failed = CommitPayload::Failed(Error::throttled("slow down"));
        for applied in [
            CommitPayload::Nothing,
            CommitPayload::Altered(500),
            CommitPayload::Written(all),
            CommitPayload::Written(some),
            failed,
        ] {
            assert_eq!(CommitPayload::decode(&applied.encode()), Ok(applied));
        }
    }

    #[test]
    fn error_kinds_are_in_order() {
        for (number, kind) in ERROR_KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_are_rejected_without_panic(
            kind in 0u8..5,
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64),
        ) {
            let _ = CommitPayload::decode(&bytes);
            let _ = LoggedOp::decode(kind, &bytes.into());
        }
    }
}
