use proptest::prelude::*;

use super::super::{ColumnSchema, DataType};
use super::*;

fn layout(nullable: bool) -> RowLayout {
    let maybe = |column: ColumnSchema| if nullable { column.nullable() } else { column };
    let columns = vec![
        ColumnSchema::new(0, "k", DataType::Int32),
        maybe(ColumnSchema::new(1, "s", DataType::String)),
        maybe(ColumnSchema::new(2, "i", DataType::Int16)),
        maybe(ColumnSchema::new(3, "b", DataType::Binary)),
    ];
    RowLayout::new(&Schema::new(columns, 1).expect("a legal schema"))
}

type Row = (i32, Option<Vec<u8>>, Option<i16>, Option<Vec<u8>>);

proptest! {
    #[test]
    fn encoded_cells_are_read(rows in prop::collection::vec(any::<Row>(), 0..8), nullable: bool) {
        let layout = layout(nullable);
        let mut out = Vec::new();
        for (k, s, i, b) in rows {
            let (k, i) = (k.to_le_bytes(), i.map(i16::to_le_bytes));
            let or_zero = |cell: Option<Vec<u8>>| {
                if nullable { cell } else { Some(cell.unwrap_or_default()) }
            };
            let (s, b) = (or_zero(s), or_zero(b));
            let i = if nullable { i } else { Some(i.unwrap_or_default()) };
            let cells = [Some(&k[..]), s.as_deref(), i.as_ref().map(|i| &i[..]), b.as_deref()];
            let start = out.len();
            let values = cells.map(ClientCell::from);
            layout.encode(&values, &mut out);
            prop_assert_eq!(out.len() - start, layout.encoded_len(&values));
            let found: Vec<_> = layout.cells(&out[start..]).collect();
            prop_assert_eq!(found, cells);
        }
    }
}
