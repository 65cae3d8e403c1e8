//! Replies of a server to a client: rows of a scan.

use arbitrary::{Arbitrary, Unstructured};
use arrow_array::{Array, RecordBatch};
use bytes::Bytes;
use engine::schema::row_block::{ProjectedColumn, RowBlock};
use engine::schema::{ColumnSchema, DataType};
use nyala_client::arrow::{arrow_schema, batch_from_pb, column_to_block};
use nyala_common::wire::rows::{RowBlockPb, RowsBuilder, RowsFormat};
use nyala_proto::kudu::ColumnarRowBlockPb;
use nyala_proto::kudu::columnar_row_block_pb::Column;

use super::import::import_schema;

/// A reply with one column.
#[derive(Debug, Arbitrary)]
struct Answer {
    ty: u8,
    nullable: bool,
    rows: Rows,
    data: Option<i8>,
    varlen: Option<i8>,
    valid: Option<i8>,
    sidecars: Vec<Vec<u8>>,
}

#[derive(Debug, Arbitrary)]
enum Rows {
    Few(u8),
    Any(i64),
}

impl Answer {
    fn column(&self) -> ColumnSchema {
        let schema = import_schema();
        let mut column = match schema.columns().get(usize::from(self.ty) % DataType::ALL.len()) {
            Some(column) => column.clone(),
            None => ColumnSchema::new(99, "deleted", DataType::IsDeleted),
        };
        column.nullable = self.nullable;
        column
    }

    fn block(&self) -> ColumnarRowBlockPb {
        let rows = match self.rows {
            Rows::Few(rows) => rows.into(),
            Rows::Any(rows) => rows,
        };
        let column = Column {
            data_sidecar: self.data.map(i32::from),
            varlen_data_sidecar: self.varlen.map(i32::from),
            non_null_bitmap_sidecar: self.valid.map(i32::from),
        };
        ColumnarRowBlockPb { columns: vec![column], num_rows: Some(rows) }
    }
}

/// Checks that decoded rows are the same when a server sends them again.
pub(super) fn scan(data: &[u8]) {
    let Ok(answer) = Answer::arbitrary(&mut Unstructured::new(data)) else { return };
    let (column, sidecars) = (answer.column(), answer.sidecars.iter().cloned().map(Bytes::from));
    let sidecars: Vec<Bytes> = sidecars.collect();
    let schema = arrow_schema(std::slice::from_ref(&column));
    let Ok(batch) = batch_from_pb(&answer.block(), &sidecars, std::slice::from_ref(&column), &schema) else {
        return;
    };
    let rows = batch.num_rows();
    assert_eq!(batch.column(0).len(), rows);
    let Ok(block) = column_to_block(batch.column(0), &column) else { return };
    let mut sent = RowsBuilder::new(RowsFormat::Columnar, &[ProjectedColumn::from(&column)], 1 << 20);
    sent.add_with(|out| out.append(RowBlock { rows, columns: vec![block] }));
    let (RowBlockPb::Columnar(pb), sidecars) = sent.finish() else { unreachable!("columns were asked for") };
    let again = batch_from_pb(&pb, &sidecars.to_vec(), &[column], &schema).expect("what was just made");
    assert_eq!(shown(&again), shown(&batch));
}

/// Returns cells of the first rows as text, in which NaNs are equal.
fn shown(batch: &RecordBatch) -> String {
    format!("{:?}", batch.column(0).slice(0, batch.num_rows().min(20)))
}
