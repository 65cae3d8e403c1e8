use super::*;
use engine::schema::ColumnSchema;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn projection() -> Vec<ProjectedColumn> {
    [
        ColumnSchema::new(0, "key", DataType::Int32),
        ColumnSchema::new(1, "i8", DataType::Int8),
        ColumnSchema::new(2, "s", DataType::String).nullable(),
        ColumnSchema::new(3, "b", DataType::Bool).nullable(),
        ColumnSchema::new(4, "ts", DataType::UnixtimeMicros).nullable(),
        ColumnSchema::new(5, "d", DataType::Decimal128).nullable(),
    ]
    .iter()
    .map(ProjectedColumn::from)
    .collect()
}

/// One of the three rows read from a real Kudu server.
fn row(projection: &[ProjectedColumn], key: i32) -> RowBlock {
    let mut block = RowBlock::new(projection);
    let full = key != 2;
    let text = format!("str{key}");
    let (ts, d) = ((i64::from(key) * 1000).to_le_bytes(), (-150i128).to_le_bytes());
    let cells: [Option<&[u8]>; 6] = [
        Some(&key.to_le_bytes()),
        Some(&[key as u8 * 10]),
        full.then_some(text.as_bytes()),
        full.then_some(&[1]),
        full.then_some(&ts),
        full.then_some(&d),
    ];
    for (column, cell) in block.columns.iter_mut().zip(cells) {
        column.push(cell);
    }
    block.rows = 1;
    block
}

fn built(
    layout: RowsFormat,
    projection: &[ProjectedColumn],
    blocks: Vec<RowBlock>,
) -> (RowBlockPb, Vec<String>) {
    let mut builder = RowsBuilder::new(layout, projection, 100);
    blocks.into_iter().for_each(|block| builder.add_with(|out| out.append(block)));
    let (pb, sidecars) = builder.finish();
    (pb, sidecars.to_vec().iter().map(|bytes| hex(bytes)).collect())
}

fn three(projection: &[ProjectedColumn]) -> Vec<RowBlock> {
    (1..=3).map(|key| row(projection, key)).collect()
}

#[test]
fn row_wise_bytes_are_kudus() {
    let projection = projection();
    let layout = RowsFormat::RowWise { pad_timestamps: false };
    let (pb, sidecars) = built(layout, &projection, three(&projection));
    let rows = "010000000a00000000000000000400000000000000\
                01e8030000000000006affffffffffffffffffffffffffffff00\
                020000001400000000000000000000000000000000\
                000000000000000000000000000000000000000000000000003c\
                030000001e04000000000000000400000000000000\
                01b80b0000000000006affffffffffffffffffffffffffffff00";
    assert_eq!(sidecars, [rows, "7374723173747233"]);
    let expected =
        RowwiseRowBlockPb { num_rows: Some(3), rows_sidecar: Some(0), indirect_data_sidecar: Some(1) };
    assert_eq!(pb, RowBlockPb::RowWise(expected));
}

#[test]
fn padded_timestamps_take_sixteen_bytes() {
    let columns = [
        ColumnSchema::new(0, "key", DataType::Int32),
        ColumnSchema::new(1, "ts", DataType::UnixtimeMicros).nullable(),
        ColumnSchema::new(2, "s", DataType::String),
    ];
    let projection: Vec<ProjectedColumn> = columns.iter().map(ProjectedColumn::from).collect();
    let mut block = RowBlock::new(&projection);
    block.columns[0].push(Some(&1i32.to_le_bytes()));
    block.columns[1].push(Some(&1000i64.to_le_bytes()));
    block.columns[2].push(Some(b"v1"));
    block.rows = 1;
    let (_, sidecars) = built(RowsFormat::RowWise { pad_timestamps: true }, &projection, vec![block]);
    let row = "01000000e8030000000000000000000000000000000000000000000002000000000000\
               0000";
    assert_eq!(sidecars, [row, "7631"]);
}

#[test]
fn columnar_bytes_are_kudus() {
    let projection = projection();
    let (pb, sidecars) = built(RowsFormat::Columnar, &projection, three(&projection));
    let negative = "6affffffffffffffffffffffffffffff";
    let decimals = format!("{negative}{}{negative}", "0".repeat(32));
    assert_eq!(
        sidecars,
        [
            "010000000200000003000000",
            "0a141e",
            "00000000040000000400000008000000",
            "7374723173747233",
            "05",
            "010001",
            "05",
            "e8030000000000000000000000000000b80b000000000000",
            "05",
            decimals.as_str(),
            "05",
        ]
    );
    let RowBlockPb::Columnar(pb) = pb else { panic!("columnar was asked for") };
    let numbers: Vec<_> = pb
        .columns
        .iter()
        .map(|column| (column.data_sidecar, column.varlen_data_sidecar, column.non_null_bitmap_sidecar))
        .collect();
    assert_eq!(numbers[0], (Some(0), None, None));
    assert_eq!(numbers[2], (Some(2), Some(3), Some(4)));
    assert_eq!(numbers[5], (Some(9), None, Some(10)));
    assert_eq!(pb.num_rows, Some(3));
}

/// A real Kudu server sends `[0, 0, 0, 0]` bytes, whatever the buffers of the reply.
#[test]
fn columnar_sidecars_of_no_rows_are_empty() {
    let columns = [
        ColumnSchema::new(0, "key", DataType::Int32),
        ColumnSchema::new(1, "s", DataType::String).nullable(),
    ];
    let projection: Vec<ProjectedColumn> = columns.iter().map(ProjectedColumn::from).collect();
    let (pb, sidecars) = built(RowsFormat::Columnar, &projection, Vec::new());
    let RowBlockPb::Columnar(pb) = pb else { panic!("columnar was asked for") };
    assert_eq!((pb.num_rows, sidecars.len()), (Some(0), 4));
    let none = RowBlock::new(&projection);
    for (described, sidecars) in [shared_sidecars(&none), separate_sidecars(none)] {
        assert_eq!(described, pb.columns);
        let sizes: Vec<usize> = sidecars.to_vec().iter().map(Bytes::len).collect();
        assert_eq!(sizes, [0; 4]);
    }
}

#[test]
fn rows_without_columns_are_counted() {
    let count = || RowBlock { rows: 5, columns: Vec::new() };
    for layout in [RowsFormat::RowWise { pad_timestamps: false }, RowsFormat::Columnar] {
        let mut builder = RowsBuilder::new(layout, &[], 100);
        builder.add_with(|out| out.append(count()));
        builder.add_with(|out| out.append(count()));
        assert_eq!(builder.rows(), 10);
        let rows = match builder.finish().0 {
            RowBlockPb::RowWise(pb) => i64::from(pb.num_rows()),
            RowBlockPb::Columnar(pb) => pb.num_rows(),
        };
        assert_eq!(rows, 10);
    }
}

/// Returns the capacity of a response's buffers in bytes, after this many rows and one more block.
fn capacity_after(rows: i32, limit: usize) -> usize {
    let projection = projection();
    let mut builder = RowsBuilder::new(RowsFormat::Columnar, &projection, limit);
    builder.add_with(|out| (0..rows).for_each(|key| out.append(row(&projection, key % 20))));
    builder.add_with(|_| ());
    let Inner::Columnar(columns) = builder.rows else { panic!("the layout is columnar") };
    let capacities = columns.block.columns.iter().map(|column| match &column.values {
        ColumnValues::Fixed { bytes, .. } => bytes.capacity(),
        ColumnValues::Var { offsets, bytes } => offsets.capacity() * 4 + bytes.capacity(),
    });
    capacities.sum()
}

#[test]
fn buffers_of_a_read_by_key_stay_small() {
    let limit = 1 << 20;
    assert!(capacity_after(1, limit) < 1_000, "a row has no block after it");
    assert!(capacity_after(1_024, limit) > limit / 2, "a second block means many");
}

#[test]
fn a_response_of_rows_without_columns_is_full_before_their_count_overflows() {
    for layout in [RowsFormat::RowWise { pad_timestamps: false }, RowsFormat::Columnar] {
        let mut builder = RowsBuilder::new(layout, &[], 100);
        while !builder.is_full() {
            builder.add_with(|block| block.rows += 1 << 20);
        }
        let num_rows = match builder.finish().0 {
            RowBlockPb::RowWise(pb) => i64::from(pb.num_rows()),
            RowBlockPb::Columnar(pb) => pb.num_rows(),
        };
        assert_eq!(num_rows, 1 << 30);
    }
}
