use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

type Cells = BTreeMap<u32, Option<Vec<u8>>>;

fn cells() -> impl Strategy<Value = Cells> {
    let id = prop_oneof![0u32..4, 120u32..140, Just(u32::MAX)];
    prop::collection::btree_map(id, prop::option::of(prop::collection::vec(any::<u8>(), 0..5)), 0..5)
}

fn update(cells: &Cells) -> Vec<u8> {
    let mut out = Vec::new();
    let mut builder = RowChangeBuilder::update(&mut out);
    for (id, cell) in cells {
        builder.set(ColumnId(*id), cell.as_deref());
    }
    out
}

fn read(change: &RowChange<'_>) -> Cells {
    change.cells().map(|(id, cell)| (id.0, cell.map(<[u8]>::to_vec))).collect()
}

proptest! {
    #[test]
    fn cells_that_are_set_are_read(cells in cells()) {
        let bytes = update(&cells);
        let change = RowChange::parse(&bytes).expect("as built");
        prop_assert!(matches!(change, RowChange::Update(_)));
        prop_assert_eq!(read(&change), cells);
        for cut in 0..bytes.len() {
            let _ = RowChange::parse(&bytes[..cut]);
        }
    }

    #[test]
    fn an_inverse_leads_back(row in cells(), new in cells()) {
        let before = |id: ColumnId| row.get(&id.0).and_then(|cell| cell.as_deref());
        let bytes = update(&new);
        let mut undo = Vec::new();
        RowChange::parse(&bytes).expect("as built").encode_inverse(&[], before, &mut undo);
        let undo = RowChange::parse(&undo).expect("as built");
        let want: Cells = new.keys().map(|id| (*id, row.get(id).cloned().flatten())).collect();
        prop_assert_eq!(read(&undo), want);
        let mut delete = Vec::new();
        encode_delete(&mut delete);
        let columns: Vec<ColumnId> = row.keys().map(|id| ColumnId(*id)).collect();
        let mut undo = Vec::new();
        RowChange::parse(&delete).expect("as built").encode_inverse(&columns, before, &mut undo);
        let undo = RowChange::parse(&undo).expect("as built");
        prop_assert!(matches!(undo, RowChange::Reinsert(_)));
        prop_assert_eq!(&read(&undo), &row);
        let mut again = Vec::new();
        undo.encode_inverse(&columns, before, &mut again);
        prop_assert_eq!(again, delete);
    }

    #[test]
    fn arbitrary_bytes_are_parsed_or_rejected(bytes: Vec<u8>) {
        let _ = RowChange::parse(&bytes);
    }
}
