//! Row operations, and the rows of scan replies.

use bytes::Bytes;
use nyala_proto::kudu::{ColumnarRowBlockPb, RowOperationsPb, RowwiseRowBlockPb};
use sim_plan::client_ops::WriteKind;
use sim_plan::tables::value::CellForm;
use sim_plan::tables::{ColumnKind, TypeWord, Value};

/// A column of a request or a reply: its type, and whether it may be NULL.
pub type Slot = (ColumnKind, bool);

/// Numbers of operations that are bounds of ranges.
pub const LOWER_BOUND: u8 = 6;
/// See [`LOWER_BOUND`].
pub const UPPER_BOUND: u8 = 7;
/// As [`LOWER_BOUND`], of the key before the first one.
pub const EXCLUSIVE_LOWER_BOUND: u8 = 8;
/// As [`UPPER_BOUND`], of the last key.
pub const INCLUSIVE_UPPER_BOUND: u8 = 9;

/// Returns the number of an operation.
pub fn op_number(kind: WriteKind) -> u8 {
    match kind {
        WriteKind::Insert => 1,
        WriteKind::Update => 2,
        WriteKind::Delete => 3,
        WriteKind::Upsert => 5,
        WriteKind::InsertIgnore => 10,
        WriteKind::UpdateIgnore => 11,
        WriteKind::DeleteIgnore => 12,
        WriteKind::UpsertIgnore => 13,
    }
}

/// Encoder of row operations.
#[derive(Debug, Clone, Default)]
pub struct RowEncoder {
    rows: Vec<u8>,
    indirect: Vec<u8>,
}

impl RowEncoder {
    /// Appends an operation; `cells` has a value for each column that is set.
    pub fn push(&mut self, op: u8, columns: &[Slot], cells: &[Option<Value>]) {
        let bytes = columns.len().div_ceil(8);
        let (mut set, mut null) = (vec![0_u8; bytes], vec![0_u8; bytes]);
        for (at, cell) in cells.iter().enumerate() {
            set[at / 8] |= u8::from(cell.is_some()) << (at % 8);
            null[at / 8] |= u8::from(cell.as_ref().is_some_and(Value::is_null)) << (at % 8);
        }
        self.rows.push(op);
        self.rows.extend(set);
        if columns.iter().any(|(_, nullable)| *nullable) {
            self.rows.extend(null);
        }
        for ((kind, _), cell) in columns.iter().zip(cells) {
            let Some(cell) = cell.as_ref().and_then(|cell| kind.cell(cell)) else { continue };
            if kind.form() == CellForm::Bytes {
                self.rows.extend((self.indirect.len() as u64).to_le_bytes());
                self.rows.extend((cell.len() as u64).to_le_bytes());
                self.indirect.extend(cell);
            } else {
                self.rows.extend(cell);
            }
        }
    }

    pub fn finish(self) -> RowOperationsPb {
        let indirect = (!self.indirect.is_empty()).then(|| Bytes::from(self.indirect));
        RowOperationsPb { rows: Some(self.rows.into()), indirect_data: indirect }
    }
}

/// Returns the bytes of a cell in a row-wise row.
fn width(kind: ColumnKind, padded: bool) -> usize {
    match kind.form() {
        CellForm::Bytes => 16,
        CellForm::Int(..) if padded && kind.word == TypeWord::Time => 16,
        CellForm::Int(bytes, _) | CellForm::Float(bytes) => bytes,
    }
}

/// Decodes the rows of a row-wise reply; `padded`: UNIXTIME_MICROS cells have 16 bytes.
pub fn row_wise(
    block: &RowwiseRowBlockPb,
    sidecars: &[Bytes],
    columns: &[Slot],
    padded: bool,
) -> Result<Vec<Vec<Value>>, String> {
    let empty = Bytes::new();
    let sidecar = |number: Option<i32>| match number {
        None => Ok(&empty),
        Some(number) => sidecars.get(number as usize).ok_or_else(|| format!("no sidecar {number}")),
    };
    let (rows, indirect) = (sidecar(block.rows_sidecar)?, sidecar(block.indirect_data_sidecar)?);
    let cells: usize = columns.iter().map(|(kind, _)| width(*kind, padded)).sum();
    let nullable = columns.iter().any(|(_, nullable)| *nullable);
    let stride = cells + if nullable { columns.len().div_ceil(8) } else { 0 };
    let count = block.num_rows() as usize;
    if rows.len() != stride * count {
        return Err(format!("{} bytes of rows for {count} rows of {stride} bytes", rows.len()));
    }
    (0..count).map(|at| row_of(&rows[at * stride..(at + 1) * stride], indirect, columns, padded)).collect()
}

fn row_of(row: &[u8], indirect: &[u8], columns: &[Slot], padded: bool) -> Result<Vec<Value>, String> {
    let cells: usize = columns.iter().map(|(kind, _)| width(*kind, padded)).sum();
    let (mut values, mut at) = (Vec::new(), 0);
    for (number, (kind, nullable)) in columns.iter().enumerate() {
        let cell = &row[at..at + width(*kind, padded)];
        at += cell.len();
        if *nullable && row[cells + number / 8] & (1 << (number % 8)) != 0 {
            values.push(Value::Null);
            continue;
        }
        let value = match kind.form() {
            CellForm::Bytes => {
                let place = |from: usize| super::keys::little_endian(&cell[from..from + 8]) as usize;
                let (offset, length) = (place(0), place(8));
                indirect.get(offset..offset.saturating_add(length)).and_then(|bytes| kind.value(bytes))
            }
            CellForm::Int(bytes, _) if cell.len() > bytes => {
                cell[bytes..].iter().all(|byte| *byte == 0).then(|| kind.value(&cell[..bytes])).flatten()
            }
            _ => kind.value(cell),
        };
        values.push(value.ok_or_else(|| format!("column {number}: its cell is invalid"))?);
    }
    Ok(values)
}

/// Decodes the rows of a columnar reply.
pub fn columnar(
    block: &ColumnarRowBlockPb,
    sidecars: &[Bytes],
    columns: &[Slot],
) -> Result<Vec<Vec<Value>>, String> {
    let count = block.num_rows() as usize;
    if block.columns.len() != columns.len() {
        return Err(format!("{} columns instead of {}", block.columns.len(), columns.len()));
    }
    let sidecar = |number: Option<i32>| number.and_then(|number| sidecars.get(number as usize));
    let mut rows = vec![Vec::new(); count];
    for (number, ((kind, nullable), pb)) in columns.iter().zip(&block.columns).enumerate() {
        let bad = || format!("column {number}: its sidecars are invalid");
        let data = sidecar(pb.data_sidecar).ok_or_else(bad)?;
        let present = sidecar(pb.non_null_bitmap_sidecar);
        if present.is_some() != *nullable {
            return Err(bad());
        }
        let text = sidecar(pb.varlen_data_sidecar);
        for (at, row) in rows.iter_mut().enumerate() {
            if let Some(bits) = present
                && bits.get(at / 8).ok_or_else(bad)? & (1 << (at % 8)) == 0
            {
                row.push(Value::Null);
                continue;
            }
            let cell = match kind.form() {
                CellForm::Bytes => {
                    let offset = |at: usize| {
                        data.get(at * 4..at * 4 + 4).map(|bytes| super::keys::little_endian(bytes) as usize)
                    };
                    let (from, to) = (offset(at).ok_or_else(bad)?, offset(at + 1).ok_or_else(bad)?);
                    text.map_or(&[][..], |text| text).get(from..to)
                }
                CellForm::Int(bytes, _) | CellForm::Float(bytes) => data.get(at * bytes..(at + 1) * bytes),
            };
            row.push(cell.and_then(|cell| kind.value(cell)).ok_or_else(bad)?);
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use sim_plan::line_format::LineField;

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let text: String = text.split_whitespace().collect();
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
    }

    fn slot(text: &str, nullable: bool) -> Slot {
        (ColumnKind::parse(text).expect("a kind"), nullable)
    }

    #[test]
    fn row_operations_are_those_of_kudu() {
        let columns = [slot("int32", false), slot("int32", false), slot("string", true)];
        let (int, text) =
            (|number| Some(Value::Int(number)), |text: &str| Some(Value::bytes(text.as_bytes())));
        let mut encoder = RowEncoder::default();
        encoder.push(1, &columns, &[int(1), int(2), text("abc")]);
        encoder.push(1, &columns, &[int(-1), int(2), Some(Value::Null)]);
        encoder.push(2, &columns, &[int(1), int(258), None]);
        encoder.push(12, &columns, &[int(1), None, None]);
        let encoded = encoder.finish();
        let want = "01 07 00 01000000 02000000 0000000000000000 0300000000000000
                    01 07 04 ffffffff 02000000
                    02 03 00 01000000 02010000
                    0c 01 00 01000000";
        assert_eq!(encoded.rows.as_deref(), Some(hex(want).as_slice()));
        assert_eq!(encoded.indirect_data.as_deref(), Some(&b"abc"[..]));
        let mut without_null = RowEncoder::default();
        without_null.push(1, &[slot("int64", false), slot("string", false)], &[int(5), text("hi")]);
        let want = "01 03 0500000000000000 0000000000000000 0200000000000000";
        assert_eq!(without_null.finish().rows.as_deref(), Some(hex(want).as_slice()));
    }

    /// Three rows that a server of Kudu sent.
    fn columns() -> [Slot; 6] {
        [
            slot("int32", false),
            slot("int8", false),
            slot("string", true),
            slot("bool", true),
            slot("unixtime", true),
            slot("decimal128:38:2", true),
        ]
    }

    fn rows() -> Vec<Vec<Value>> {
        let (int, text) = (Value::Int, |text: &str| Value::bytes(text.as_bytes()));
        let null = || Value::Null;
        vec![
            vec![int(1), int(10), text("str1"), int(1), int(1000), int(-150)],
            vec![int(2), int(20), null(), null(), null(), null()],
            vec![int(3), int(30), text("str3"), int(1), int(3000), int(-150)],
        ]
    }

    #[test]
    fn row_wise_replies_of_kudu_are_decoded() {
        let zeros = |bytes: usize| "00".repeat(bytes);
        let data = format!(
            "01000000 0a 0000000000000000 0400000000000000 01 e803000000000000 6affffffffffffffffffffffffffffff 00
             02000000 14 {} 00 {} {} 3c
             03000000 1e 0400000000000000 0400000000000000 01 b80b000000000000 6affffffffffffffffffffffffffffff 00",
            zeros(16),
            zeros(8),
            zeros(16)
        );
        let sidecars = [Bytes::from(hex(&data)), Bytes::from_static(b"str1str3")];
        let block =
            RowwiseRowBlockPb { num_rows: Some(3), rows_sidecar: Some(0), indirect_data_sidecar: Some(1) };
        assert_eq!(row_wise(&block, &sidecars, &columns(), false), Ok(rows()));
        assert!(row_wise(&block, &sidecars, &columns(), true).is_err());
        let padded = hex("01000000 e803000000000000 0000000000000000 0000000000000000 0200000000000000 00");
        let columns = [slot("int32", false), slot("unixtime", true), slot("string", false)];
        let block =
            RowwiseRowBlockPb { num_rows: Some(1), rows_sidecar: Some(0), indirect_data_sidecar: Some(1) };
        let row = vec![Value::Int(1), Value::Int(1000), Value::bytes(b"v1")];
        let sidecars = [Bytes::from(padded), Bytes::from_static(b"v1")];
        assert_eq!(row_wise(&block, &sidecars, &columns, true), Ok(vec![row]));
    }

    #[test]
    fn columnar_replies_of_kudu_are_decoded() {
        use nyala_proto::kudu::columnar_row_block_pb::Column;
        let sidecars: Vec<Bytes> = [
            "010000000200000003000000",
            "0a141e",
            "00000000040000000400000008000000",
            "7374723173747233",
            "05",
            "010001",
            "05",
            "e8030000000000000000000000000000b80b000000000000",
            "05",
            "6affffffffffffffffffffffffffffff 00000000000000000000000000000000 6affffffffffffffffffffffffffffff",
            "05",
        ]
        .map(|text| Bytes::from(hex(text)))
        .to_vec();
        let column = |data, text, present| Column {
            data_sidecar: Some(data),
            varlen_data_sidecar: text,
            non_null_bitmap_sidecar: present,
        };
        let block = ColumnarRowBlockPb {
            columns: vec![
                column(0, None, None),
                column(1, None, None),
                column(2, Some(3), Some(4)),
                column(5, None, Some(6)),
                column(7, None, Some(8)),
                column(9, None, Some(10)),
            ],
            num_rows: Some(3),
        };
        assert_eq!(columnar(&block, &sidecars, &columns()), Ok(rows()));
    }
}
