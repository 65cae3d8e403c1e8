use super::*;
use crate::schema::partition::PartitionSchema;

fn schema() -> Schema {
    let columns =
        vec![ColumnSchema::new(0, "a", DataType::Int32), ColumnSchema::new(1, "b", DataType::String)];
    Schema::new(columns, 2).expect("a legal schema")
}

fn op(kind: RangeOpKind, a: Option<i32>, b: Option<&str>) -> RangeOp {
    let a = a.map(|a| (ColumnId(0), a.to_le_bytes().to_vec()));
    let b = b.map(|b| (ColumnId(1), b.as_bytes().to_vec()));
    RangeOp { kind, cells: a.into_iter().chain(b).collect() }
}

fn range(lower: RangeOp, upper: RangeOp) -> Result<String> {
    let partition = PartitionSchema { range_columns: vec![ColumnId(0), ColumnId(1)], ..Default::default() };
    let (_, ranges) = ranges_of_ops(&schema(), &partition.range_columns, &[lower, upper])?;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let shown = partition.show_range(&schema(), &ranges[0]);
    Ok(format!("{}..{} {shown}", hex(&ranges[0].lower), hex(&ranges[0].upper)))
}

#[test]
fn exclusive_and_inclusive_bounds_are_converted() {
    use RangeOpKind::*;
    let text = |lower, upper| range(lower, upper).unwrap_or_else(|error| format!("error: {error}"));
    let cases = [
        text(op(ExclusiveLower, Some(5), None), op(InclusiveUpper, Some(7), None)),
        text(op(Lower, Some(5), Some("x")), op(Upper, Some(7), None)),
        text(op(Lower, None, None), op(InclusiveUpper, Some(i32::MAX), Some("z"))),
        text(op(Lower, Some(1), Some("x")), op(InclusiveUpper, Some(1), Some("x"))),
        text(op(Lower, None, None), op(InclusiveUpper, None, None)),
        text(op(Lower, Some(3), None), op(Upper, Some(3), None)),
        text(op(Upper, Some(3), None), op(Upper, Some(3), None)),
    ];
    insta::assert_snapshot!(cases.join("\n"), @r#"
    8000000500..8000000700 PARTITION (5, "\x00") <= VALUES < (7, "\x00")
    8000000578..80000007 PARTITION (5, "x") <= VALUES < (7, "")
    ..ffffffff7a00 PARTITION VALUES < (2147483647, "z\x00")
    8000000178..800000017800 PARTITION VALUE = (1, "x")
    .. PARTITION UNBOUNDED
    error: range partition lower bound must be less than the upper bound
    error: missing lower range bound in request
    "#);
}

#[test]
fn the_greatest_integer_has_no_successor() {
    let columns = vec![ColumnSchema::new(0, "a", DataType::Int32)];
    let schema = Schema::new(columns, 1).expect("a legal schema");
    let bounds = |lower, upper| ranges_of_ops(&schema, &[ColumnId(0)], &[lower, upper]);
    let max = Some(i32::MAX);
    let none = || op(RangeOpKind::Upper, None, None);
    assert!(bounds(op(RangeOpKind::ExclusiveLower, max, None), none()).is_err());
    let (_, ranges) =
        bounds(op(RangeOpKind::Lower, Some(0), None), op(RangeOpKind::InclusiveUpper, max, None))
            .expect("legal");
    assert_eq!(ranges[0].upper, Vec::<u8>::new());
}

#[test]
fn an_intersection_has_the_keys_of_both_ranges() {
    let range =
        |lower: &str, upper: &str| PartitionRange { lower: lower.as_bytes().to_vec(), upper: upper.into() };
    let both = |a: [&str; 2], b: [&str; 2]| range(a[0], a[1]).intersection(&range(b[0], b[1]));
    assert_eq!(both(["", ""], ["", ""]), Some(range("", "")));
    assert_eq!(both(["b", ""], ["", "d"]), Some(range("b", "d")));
    assert_eq!(both(["a", "c"], ["b", "d"]), Some(range("b", "c")));
    assert_eq!(both(["b", "c"], ["a", ""]), Some(range("b", "c")));
    for (a, b) in [(["a", "b"], ["b", "c"]), (["c", ""], ["a", "b"])] {
        assert_eq!((both(a, b), both(b, a)), (None, None), "{a:?}, {b:?}");
    }
}
