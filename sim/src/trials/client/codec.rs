//! Requests and replies of the double: row operations, keys and columnar rows, encoded by the wire's facts.

use bytes::Bytes;
use nyala_proto::kudu::columnar_row_block_pb::Column;
use nyala_proto::kudu::{ColumnarRowBlockPb, RowOperationsPb};
use sim_plan::client_ops::WriteKind;

use super::rows::{Cells, Row};
use crate::wire::rows::op_number;

/// Names of the table's columns: the key, the number of the op that wrote the row, a text.
pub(super) const COLUMNS: [&str; 3] = ["k", "v", "s"];
/// Kinds of row operations.
pub(super) const KINDS: [WriteKind; 8] = [
    WriteKind::Insert,
    WriteKind::Update,
    WriteKind::Delete,
    WriteKind::Upsert,
    WriteKind::InsertIgnore,
    WriteKind::UpdateIgnore,
    WriteKind::DeleteIgnore,
    WriteKind::UpsertIgnore,
];

/// A row operation as it arrives: a cell is absent if it was not set, `None` if it is NULL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RowOp {
    pub kind: WriteKind,
    pub key: i64,
    pub number: Option<Option<i64>>,
    pub text: Option<Option<String>>,
}

/// Reads from the front of a slice.
struct Front<'a>(&'a [u8]);

impl Front<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or("a row operation ends early")?;
        self.0 = rest;
        Ok(*first)
    }

    fn long(&mut self) -> Result<i64, String> {
        self.take().map(i64::from_le_bytes)
    }
}

/// Decodes the operations of a request.
pub(super) fn row_ops(pb: &RowOperationsPb) -> Result<Vec<RowOp>, String> {
    let mut front = Front(pb.rows());
    let mut ops = Vec::new();
    while !front.0.is_empty() {
        ops.push(row_op(&mut front, pb.indirect_data())?);
    }
    Ok(ops)
}

fn row_op(front: &mut Front<'_>, indirect: &[u8]) -> Result<RowOp, String> {
    let [op, set, null] = front.take()?;
    let kind = KINDS.into_iter().find(|kind| op_number(*kind) == op);
    let kind = kind.ok_or_else(|| format!("operation {op} writes no row"))?;
    let (has, is_null) = (|at: u8| set & (1 << at) != 0, |at: u8| null & (1 << at) != 0);
    if !has(0) || is_null(0) {
        return Err(format!("a row operation without a key: {set:b}, {null:b}"));
    }
    let key = front.long()?;
    let number = match (has(1), is_null(1)) {
        (false, _) => None,
        (true, true) => Some(None),
        (true, false) => Some(Some(front.long()?)),
    };
    let text = match (has(2), is_null(2)) {
        (false, _) => None,
        (true, true) => Some(None),
        (true, false) => {
            let (from, length) = (front.long()? as usize, front.long()? as usize);
            let bytes =
                indirect.get(from..from.saturating_add(length)).ok_or("a text outside of the request")?;
            Some(Some(String::from_utf8(bytes.to_vec()).map_err(|error| error.to_string())?))
        }
    };
    Ok(RowOp { kind, key, number, text })
}

/// Returns the key of an encoded one.
pub(super) fn decoded_key(bytes: &[u8]) -> Option<i64> {
    Some(i64::from_be_bytes(bytes.try_into().ok()?) ^ i64::MIN)
}

/// Encodes rows by column, for these columns in this order.
pub(super) fn columnar(rows: &[(i64, Row)], columns: &[usize]) -> (ColumnarRowBlockPb, Vec<Bytes>) {
    let mut sidecars = Sidecars::default();
    let columns = columns.iter().map(|column| match column {
        0 => sidecars.longs(rows.iter().map(|(key, _)| Some(*key)), false),
        1 => sidecars.longs(rows.iter().map(|(_, row)| row.number), true),
        _ => sidecars.texts(rows.iter().map(|(_, row)| row.text.as_deref())),
    });
    let columns = columns.collect();
    (ColumnarRowBlockPb { columns, num_rows: Some(rows.len() as i64) }, sidecars.0)
}

#[derive(Default)]
struct Sidecars(Vec<Bytes>);

impl Sidecars {
    fn add(&mut self, bytes: Vec<u8>) -> Option<i32> {
        self.0.push(bytes.into());
        Some(self.0.len() as i32 - 1)
    }

    fn longs(&mut self, cells: impl Iterator<Item = Option<i64>>, nullable: bool) -> Column {
        let cells: Vec<Option<i64>> = cells.collect();
        let data = cells.iter().flat_map(|cell| cell.unwrap_or(-1).to_le_bytes()).collect();
        Column {
            data_sidecar: self.add(data),
            varlen_data_sidecar: None,
            non_null_bitmap_sidecar: nullable.then(|| bitmap(&cells)).and_then(|bits| self.add(bits)),
        }
    }

    fn texts<'a>(&mut self, cells: impl Iterator<Item = Option<&'a str>>) -> Column {
        let cells: Vec<Option<&str>> = cells.collect();
        let (mut ends, mut data) = (vec![0_u32], Vec::new());
        for cell in &cells {
            data.extend_from_slice(cell.unwrap_or_default().as_bytes());
            ends.push(data.len() as u32);
        }
        Column {
            data_sidecar: self.add(ends.into_iter().flat_map(u32::to_le_bytes).collect()),
            varlen_data_sidecar: self.add(data),
            non_null_bitmap_sidecar: self.add(bitmap(&cells)),
        }
    }
}

fn bitmap<T>(cells: &[Option<T>]) -> Vec<u8> {
    let byte = |cells: &[Option<T>]| {
        cells.iter().enumerate().fold(0, |byte, (at, cell)| byte | u8::from(cell.is_some()) << at)
    };
    cells.chunks(8).map(byte).collect()
}

impl RowOp {
    /// Returns the cells that the operation sets.
    pub(super) fn cells(&self) -> Cells {
        Cells { number: self.number, text: self.text.clone() }
    }
}
