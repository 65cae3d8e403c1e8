//! Aggregation against a model that keeps the rows of each group.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{ColumnSchema, DataType};
use super::*;

/// Types of a table's columns.
fn types() -> Vec<DataType> {
    DataType::ALL.into_iter().filter(|ty| !ty.words().is_empty()).collect()
}

/// Cells of a type from a small number, so that groups and ties are frequent. Extremes are among them.
fn cell(ty: DataType, seed: i8) -> Vec<u8> {
    let number = match seed {
        i8::MAX => i128::MAX,
        i8::MIN => i128::MIN,
        other => i128::from(other % 8),
    };
    let text = |seed: i8| vec![b'a' + seed.rem_euclid(3) as u8; seed.rem_euclid(4) as usize];
    match (ty, ty.width()) {
        (DataType::Float, _) => f32::from(seed).to_le_bytes().to_vec(),
        (DataType::Double, _) => f64::from(seed).to_le_bytes().to_vec(),
        (DataType::Bool, _) => vec![u8::from(seed % 2 != 0)],
        (_, None) => text(seed),
        // The highest bytes, so that the extremes are those of the width.
        (_, Some(width)) if seed == i8::MAX || seed == i8::MIN => number.to_le_bytes()[16 - width..].to_vec(),
        (_, Some(width)) => number.to_le_bytes()[..width].to_vec(),
    }
}

fn integer(cell: &[u8]) -> i128 {
    let sign = if cell.last().is_some_and(|last| last & 0x80 != 0) { 0xff } else { 0 };
    let mut wide = [sign; 16];
    wide[..cell.len()].copy_from_slice(cell);
    i128::from_le_bytes(wide)
}

fn double(ty: DataType, cell: &[u8]) -> f64 {
    match ty {
        DataType::Float => f32::from_le_bytes(cell.try_into().expect("4 bytes")).into(),
        DataType::Double => f64::from_le_bytes(cell.try_into().expect("8 bytes")),
        _ => integer(cell) as f64,
    }
}

/// Returns the value of a function over the cells of a group.
fn expected(function: AggregateFunction, ty: DataType, cells: &[Option<Vec<u8>>]) -> Option<Vec<u8>> {
    let some: Vec<&Vec<u8>> = cells.iter().flatten().collect();
    let is_float = matches!(ty, DataType::Float | DataType::Double);
    let by_value = |cell: &&&Vec<u8>| match ty.width() {
        Some(_) => (integer(cell), Vec::new()),
        None => (0, cell.to_vec()),
    };
    if function == AggregateFunction::Count {
        return Some((some.len() as i64).to_le_bytes().to_vec());
    }
    if some.is_empty() {
        return None;
    }
    Some(match function {
        AggregateFunction::Min => some.iter().min_by_key(by_value)?.to_vec(),
        AggregateFunction::Max => some.iter().max_by_key(by_value)?.to_vec(),
        AggregateFunction::Sum if !is_float => {
            some.iter().fold(0i128, |sum, cell| sum.wrapping_add(integer(cell))).to_le_bytes().to_vec()
        }
        _ => some.iter().map(|cell| double(ty, cell)).sum::<f64>().to_le_bytes().to_vec(),
    })
}

type Row = Vec<Option<Vec<u8>>>;

/// A projection of all types, every second one nullable, and rows of it.
fn projection() -> Vec<ProjectedColumn> {
    let column = |(at, ty): (usize, DataType)| {
        let column = ColumnSchema::new(at as u32, &format!("c{at}"), ty);
        ProjectedColumn::from(&if at % 2 == 0 { column } else { column.nullable() })
    };
    types().into_iter().enumerate().map(column).collect()
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let projection = projection();
    let seed = prop_oneof![8 => -4..4i8, 1 => Just(i8::MAX), 1 => Just(i8::MIN)];
    let seeds = prop::collection::vec((seed, prop::bool::weighted(0.2)), projection.len());
    let row = seeds.prop_map(move |seeds| {
        let cells = seeds.into_iter().zip(&projection);
        cells
            .map(|((seed, null), column)| (!null || !column.nullable).then(|| cell(column.ty, seed)))
            .collect()
    });
    prop::collection::vec(row, 0..120)
}

/// Returns the groups of a result with the values of their aggregates. The parts of a sum are added, as 128 bits.
fn groups_of(
    block: &RowBlock,
    aggregation: &Aggregation,
    projection: &[ProjectedColumn],
) -> BTreeMap<Row, Row> {
    let cells = |row: usize, columns: &[crate::schema::row_block::ColumnBlock]| -> Row {
        columns.iter().map(|column| column.cell(row).map(<[u8]>::to_vec)).collect()
    };
    let (groups, values) = block.columns.split_at(aggregation.group_by.len());
    let is_sum = |aggregate: &Aggregate| {
        let ty = aggregate.column.map(|at| projection[at].ty);
        let is_float = matches!(ty, Some(DataType::Float | DataType::Double));
        aggregate.function == AggregateFunction::Sum && !is_float
    };
    let mut found: BTreeMap<Row, Row> = BTreeMap::new();
    let mut has_parts = false;
    for row in 0..block.rows {
        let (mut of_row, group) = (cells(row, values), cells(row, groups));
        let sums: Vec<usize> = (0..of_row.len()).filter(|at| is_sum(&aggregation.aggregates[*at])).collect();
        for at in &sums {
            of_row[*at] = of_row[*at].as_ref().map(|sum| integer(sum).to_le_bytes().to_vec());
        }
        let Some(merged) = found.get_mut(&group) else {
            assert!(!has_parts, "parts of sums come after the groups");
            found.insert(group, of_row);
            continue;
        };
        has_parts = true;
        assert!(sums.iter().any(|at| of_row[*at].is_some()), "a row of parts has a part");
        for (at, cell) in of_row.into_iter().enumerate() {
            let (Some(cell), Some(sum)) = (cell, &mut merged[at]) else { continue };
            match sums.contains(&at) {
                true => *sum = integer(sum).wrapping_add(integer(&cell)).to_le_bytes().to_vec(),
                false => assert_eq!(cell, [0; 8], "a part of a sum counts no cell"),
            }
        }
    }
    found
}

fn model(rows: &[Row], aggregation: &Aggregation, projection: &[ProjectedColumn]) -> BTreeMap<Row, Row> {
    let mut groups: BTreeMap<Row, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        let key = aggregation.group_by.iter().map(|at| row[*at].clone()).collect();
        groups.entry(key).or_default().push(row);
    }
    let value = |aggregate: &Aggregate, rows: &[&Row]| match aggregate.column {
        None => Some((rows.len() as i64).to_le_bytes().to_vec()),
        Some(at) => {
            let cells: Vec<_> = rows.iter().map(|row| row[at].clone()).collect();
            expected(aggregate.function, projection[at].ty, &cells)
        }
    };
    let of_group = |(key, rows): (Row, Vec<&Row>)| {
        (key, aggregation.aggregates.iter().map(|aggregate| value(aggregate, &rows)).collect())
    };
    groups.into_iter().map(of_group).collect()
}

/// Returns the parts without repeats.
fn once<T: PartialEq>(parts: impl Iterator<Item = T>) -> Vec<T> {
    parts.fold(Vec::new(), |mut kept, part| {
        if !kept.contains(&part) {
            kept.push(part);
        }
        kept
    })
}

proptest! {
    #[test]
    fn results_equal_those_of_the_model(
        rows in rows(),
        keys in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        aggregates in prop::collection::vec((0..5usize, any::<prop::sample::Index>()), 0..6),
        block_rows in 1..40usize,
    ) {
        let projection = projection();
        let at = |index: &prop::sample::Index| index.index(projection.len());
        let group_by = keys.iter().map(at).filter(|at| is_ordered(projection[*at].ty));
        let group_by = once(group_by);
        let chosen = aggregates.iter().map(|(function, index)| {
            Aggregate { function: AggregateFunction::ALL[*function], column: Some(at(index)) }
        });
        let has_result = |aggregate: &Aggregate| {
            aggregate.function.result(aggregate.column.map(|at| projection[at].ty)).is_some()
        };
        let all_rows = Aggregate { function: AggregateFunction::Count, column: None };
        let aggregates = once(chosen.filter(has_result).chain([all_rows]));
        let aggregation = Arc::new(Aggregation { group_by, aggregates });
        let output = aggregation.output(&projection).expect("only what has a result");
        let mut aggregator = Aggregator::new(&aggregation, &projection);
        for part in rows.chunks(block_rows) {
            let mut block = RowBlock::new(&projection);
            part.iter().for_each(|row| block.push_row(row.iter().map(Option::as_deref)));
            aggregator.add(&block);
        }
        prop_assert_eq!(aggregator.rows(), rows.len() as u64);
        let block = aggregator.finish();
        prop_assert!(block.rows <= rows.len(), "{} rows of {}", block.rows, rows.len());
        for (column, wanted) in block.columns.iter().zip(&output) {
            let empty = crate::schema::row_block::ColumnBlock::new(wanted.ty.physical(), wanted.nullable);
            prop_assert_eq!(column.empty_like(), empty, "{}", wanted.name);
        }
        let found = groups_of(&block, &aggregation, &projection);
        prop_assert_eq!(found, model(&rows, &aggregation, &projection));
    }
}

#[test]
fn a_sum_that_its_type_cannot_hold_comes_in_parts() {
    let column = |at, ty| ProjectedColumn::from(&ColumnSchema::new(at, &format!("c{at}"), ty));
    let projection = [column(0, DataType::String), column(1, DataType::Int64)];
    let of = |function, column| Aggregate { function, column };
    let aggregates = vec![
        of(AggregateFunction::Count, None),
        of(AggregateFunction::Sum, Some(1)),
        of(AggregateFunction::Max, Some(1)),
    ];
    let aggregation = Arc::new(Aggregation { group_by: vec![0], aggregates });
    let mut aggregator = Aggregator::new(&aggregation, &projection);
    let mut block = RowBlock::new(&projection);
    for (group, number) in [("a", i64::MAX), ("b", 5), ("a", 1), ("a", i64::MIN), ("a", i64::MIN), ("a", -1)]
    {
        block.push_row([Some(group.as_bytes()), Some(&number.to_le_bytes()[..])]);
    }
    let before = aggregator.byte_size();
    aggregator.add(&block);
    let counted = aggregator.byte_size() - before;
    let result = aggregator.finish();
    assert!(counted >= result.byte_size(), "{counted} bytes of {}", result.byte_size());
    let number = |cell: &[u8]| integer(cell).to_string();
    let cell = |column: usize, row: usize| match (column, result.columns[column].cell(row)) {
        (0, Some(text)) => String::from_utf8_lossy(text).into_owned(),
        (_, cell) => cell.map_or("NULL".to_string(), number),
    };
    let lines: Vec<String> =
        (0..result.rows).map(|row| [0, 1, 2, 3].map(|column| cell(column, row)).join(" ")).collect();
    expect_test::expect![[r#"
        a 5 -1 9223372036854775807
        b 1 5 5
        a 0 9223372036854775807 NULL
        a 0 -9223372036854775807 NULL
        a 0 -9223372036854775808 NULL
    "#]]
    .assert_eq(&(lines.join("\n") + "\n"));
}

#[test]
fn parts_of_several_sums_share_their_rows() {
    let column = |at| ProjectedColumn::from(&ColumnSchema::new(at, &format!("c{at}"), DataType::Int64));
    let projection = [column(0), column(1), column(2)];
    let sum = |at| Aggregate { function: AggregateFunction::Sum, column: Some(at) };
    let aggregation =
        Arc::new(Aggregation { group_by: Vec::new(), aggregates: vec![sum(0), sum(1), sum(2)] });
    let mut aggregator = Aggregator::new(&aggregation, &projection);
    let mut block = RowBlock::new(&projection);
    for row in [[i64::MAX, i64::MAX, 1], [i64::MAX, 1, 2], [i64::MAX, 1, 3]] {
        block.push_row(
            row.each_ref().map(|number| number.to_le_bytes()).each_ref().map(|cell| Some(&cell[..])),
        );
    }
    aggregator.add(&block);
    let result = aggregator.finish();
    let cells = |row: usize| {
        let cell = |column: &crate::schema::row_block::ColumnBlock| column.cell(row).map(integer);
        result.columns.iter().map(cell).collect::<Vec<_>>()
    };
    let (largest, last) = (i128::from(i64::MAX), Some(2));
    assert_eq!(cells(0), [Some(largest), last, Some(6)]);
    assert_eq!(cells(1), [Some(largest), Some(largest), None]);
    assert_eq!(cells(2), [Some(largest), None, None]);
    assert_eq!(result.rows, 3);
}

/// Many groups make the table grow, and its memory with it.
#[test]
fn every_group_is_found_again_after_the_table_has_grown() {
    let projection = [ProjectedColumn::from(&ColumnSchema::new(0, "k", DataType::Int32))];
    let count = Aggregate { function: AggregateFunction::Count, column: None };
    let aggregation = Arc::new(Aggregation { group_by: vec![0], aggregates: vec![count] });
    let mut aggregator = Aggregator::new(&aggregation, &projection);
    let before = aggregator.byte_size();
    let mut block = RowBlock::new(&projection);
    (0..10_000i32).for_each(|key| block.push_row([Some(&key.to_le_bytes()[..])]));
    aggregator.add(&block);
    aggregator.add(&block);
    assert!(aggregator.byte_size() > before + 10_000 * 20, "{}", aggregator.byte_size());
    let result = aggregator.finish();
    assert_eq!(result.rows, 10_000);
    assert_eq!(result.columns[0], block.columns[0], "in the order of their first rows");
    assert!((0..10_000).all(|row| result.columns[1].cell(row) == Some(&2i64.to_le_bytes()[..])));
}

#[test]
fn what_has_no_exact_result_is_refused() {
    let column = |at, ty| ProjectedColumn::from(&ColumnSchema::new(at, &format!("c{at}"), ty));
    let projection = [column(0, DataType::Double), column(1, DataType::String), column(2, DataType::Date)];
    let refused = |group_by: &[usize], function, column| {
        let aggregates = vec![Aggregate { function, column }];
        let aggregation = Aggregation { group_by: group_by.to_vec(), aggregates };
        aggregation.output(&projection).expect_err("it has no result").message
    };
    let texts = [
        refused(&[0], AggregateFunction::Count, None),
        refused(&[7], AggregateFunction::Count, None),
        refused(&[], AggregateFunction::Min, Some(0)),
        refused(&[], AggregateFunction::Sum, Some(1)),
        refused(&[], AggregateFunction::SumAsDouble, Some(2)),
        refused(&[], AggregateFunction::Max, None),
    ];
    expect_test::expect![[r#"
        aggregation: groups of column "c0" of type DOUBLE are not supported
        aggregation: there is no projected column 7
        aggregation: min(c0) of type DOUBLE is not supported
        aggregation: sum(c1) of type STRING is not supported
        aggregation: sum(c2) of type DATE is not supported
        aggregation: max(*) of type no column is not supported
    "#]]
    .assert_eq(&(texts.join("\n") + "\n"));
}

/// Cells are copied for every group column and aggregate: a request that repeats one has no limit of its memory.
#[test]
fn a_repeated_group_column_or_aggregate_is_refused() {
    let projection = [ProjectedColumn::from(&ColumnSchema::new(0, "k", DataType::Int32))];
    let of = |function, column| Aggregate { function, column };
    let (count, min) = (of(AggregateFunction::Count, None), of(AggregateFunction::Min, Some(0)));
    let (sum, mean) = (of(AggregateFunction::Sum, Some(0)), of(AggregateFunction::SumAsDouble, Some(0)));
    let output = |group_by: &[usize], aggregates: &[Aggregate]| {
        Aggregation { group_by: group_by.to_vec(), aggregates: aggregates.to_vec() }.output(&projection)
    };
    let refused = [output(&[0, 0], &[]), output(&[], &[min, sum, min]), output(&[0], &[count, count])];
    let texts = refused.map(|result| {
        let error = result.expect_err("a part is repeated");
        assert_eq!(error.kind, crate::error::ErrorKind::Unsupported, "a reader then reads the rows");
        error.message
    });
    expect_test::expect![[r#"
        aggregation: k is named twice; name it once
        aggregation: min(k) is named twice; name it once
        aggregation: count(*) is named twice; name it once
    "#]]
    .assert_eq(&(texts.join("\n") + "\n"));
    assert_eq!(output(&[0], &[sum, mean, min]).expect("one column, several functions").len(), 4);
}
