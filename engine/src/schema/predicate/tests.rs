//! Evaluation of blocks compared with evaluation of single cells, and of those with comparison of numbers.

use proptest::prelude::*;

use super::*;

fn bytes_of(physical: PhysicalType) -> BoxedStrategy<Vec<u8>> {
    let small = || prop_oneof![4 => -2i64..3, 1 => any::<i64>()];
    match physical {
        PhysicalType::Float => {
            prop_oneof![prop::sample::select(vec![0.0f32, -0.0, 1.5, f32::NAN, f32::INFINITY]), any::<f32>()]
                .prop_map(|n| n.to_le_bytes().to_vec())
                .boxed()
        }
        PhysicalType::Double => prop::sample::select(vec![0.0f64, -0.0, 1.5, f64::NAN, -1.0])
            .prop_map(|n| n.to_le_bytes().to_vec())
            .boxed(),
        PhysicalType::Binary => prop::collection::vec(0u8..3, 0..3).boxed(),
        PhysicalType::Int128 => small().prop_map(|n| (n as i128).to_le_bytes().to_vec()).boxed(),
        fixed => {
            let width = fixed.width().expect("a fixed width");
            small().prop_map(move |n| n.to_le_bytes()[..width].to_vec()).boxed()
        }
    }
}

fn kind(ty: DataType) -> BoxedStrategy<PredicateKind> {
    let cell = || bytes_of(ty.physical());
    let bound = || prop::option::of(cell());
    let bloom = prop::collection::vec(cell(), 0..3).prop_map(|cells| {
        let mut filter = PredicateBloom::new(5, 0).expect("a legal size");
        cells.iter().for_each(|cell| filter.insert(Some(cell)));
        filter
    });
    prop_oneof![
        (bound(), bound()).prop_map(|(lower, upper)| PredicateKind::Range { lower, upper }),
        cell().prop_map(PredicateKind::Equal),
        prop::collection::vec(cell(), 0..5).prop_map(move |values| PredicateKind::in_list(ty, values)),
        Just(PredicateKind::IsNotNull),
        Just(PredicateKind::IsNull),
        (bloom, bound(), bound()).prop_map(|(filter, lower, upper)| PredicateKind::InBloom {
            filters: vec![filter],
            lower,
            upper
        }),
    ]
    .boxed()
}

#[derive(Debug)]
struct Case {
    ty: DataType,
    kind: PredicateKind,
    cells: Vec<Option<Vec<u8>>>,
    nullable: bool,
    selected: Vec<bool>,
}

fn case() -> impl Strategy<Value = Case> {
    (prop::sample::select(DataType::ALL.to_vec()), any::<bool>()).prop_flat_map(|(ty, nullable)| {
        let cell = (bytes_of(ty.physical()), 0..5)
            .prop_map(move |(cell, null)| (!nullable || null > 0).then_some(cell));
        let rows = prop::collection::vec((cell, any::<bool>()), 0..40);
        (kind(ty), rows).prop_map(move |(kind, rows)| {
            let (cells, selected) = rows.into_iter().unzip();
            Case { ty, kind, cells, nullable, selected }
        })
    })
}

proptest! {
    #[test]
    fn blocks_evaluate_as_their_cells(case in case()) {
        let predicate = Predicate::new(ColumnId(0), case.kind);
        predicate.check(case.ty).expect("values have the type's width");
        let mut block = ColumnBlock::new(case.ty.physical(), case.nullable);
        let mut selection = Bitmap::default();
        for (cell, selected) in case.cells.iter().zip(&case.selected) {
            block.push(cell.as_deref());
            selection.push(*selected);
        }
        predicate.evaluate(case.ty, &block, &mut selection);
        for (i, (cell, selected)) in case.cells.iter().zip(&case.selected).enumerate() {
            let want = *selected && predicate.matches_cell(case.ty, cell.as_deref());
            prop_assert_eq!(selection.get(i), want, "row {}: {:?}", i, cell);
        }
        let filtered = block.filter(&selection);
        prop_assert_eq!(filtered.len(), selection.count());
        for (at, row) in selection.ones().enumerate() {
            prop_assert_eq!(filtered.cell(at), block.cell(row));
        }
    }

    #[test]
    fn cells_compare_as_numbers(a: i64, b: i64, c in any::<[f64; 2]>()) {
        let le = |n: i64| n.to_le_bytes();
        prop_assert_eq!(compare_cells(PhysicalType::Int64, &le(a), &le(b)), a.cmp(&b));
        prop_assert_eq!(compare_cells(PhysicalType::Uint64, &le(a), &le(b)), (a as u64).cmp(&(b as u64)));
        let want = c[0].partial_cmp(&c[1]).unwrap_or(Ordering::Equal);
        prop_assert_eq!(compare_cells(PhysicalType::Double, &c[0].to_le_bytes(), &c[1].to_le_bytes()), want);
    }
}

#[test]
fn values_of_a_wrong_width_are_rejected() {
    let check = |kind| Predicate::new(ColumnId(0), kind).check(DataType::Int32);
    assert!(check(PredicateKind::Equal(vec![1])).is_err());
    assert!(check(PredicateKind::Range { lower: None, upper: Some(vec![0; 8]) }).is_err());
    assert!(check(PredicateKind::InList(vec![vec![0; 4], vec![]])).is_err());
    assert!(check(PredicateKind::IsNull).is_ok());
}

/// A NaN sorted among other values would make the order invalid, and sorting panics on such an order.
#[test]
fn a_list_with_nan_holds_every_cell_but_null() {
    let number = |i: i32| if i % 3 == 0 { f64::NAN } else { f64::from(i * 37 % 41) };
    let values = (0..60).map(|i| number(i).to_le_bytes().to_vec()).collect();
    let list = PredicateKind::in_list(DataType::Double, values);
    for cell in [-0.0, 7.5, f64::INFINITY, f64::NAN] {
        assert!(list.matches_cell(PhysicalType::Double, Some(&cell.to_le_bytes())), "{cell}");
    }
    assert!(!list.matches_cell(PhysicalType::Double, None));
    let without = PredicateKind::in_list(DataType::Double, vec![1f64.to_le_bytes().to_vec()]);
    assert!(!without.matches_cell(PhysicalType::Double, Some(&2f64.to_le_bytes())));
}
