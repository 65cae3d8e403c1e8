//! Predicates: comparisons converted to the few kinds of Kudu's protocol.

use bytes::Bytes;
use engine::schema::key::{increment_cell, integer_range};
use engine::schema::predicate::{Predicate, PredicateKind};
use engine::schema::{ColumnSchema, DataType, PhysicalType, Schema, ValueKind};

use nyala_proto::kudu::column_predicate_pb::{
    Equality, InBloomFilter, InList, IsNotNull, IsNull, Predicate as Pb, Range,
};
use nyala_proto::kudu::{BlockBloomFilterPb, ColumnPredicatePb, HashAlgorithm};

/// Comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    Less,
    LessEqual,
    Equal,
    GreaterEqual,
    Greater,
}

/// Result of simplifying a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SimplifiedPredicate {
    Predicate(Predicate),
    /// No value of the type satisfies the comparison.
    Nothing,
}

/// Returns a type that has every cell of the column. Servers take any DATE and DECIMAL that fits its bytes, so that
/// cells may be beyond the greatest or the least value of the type.
fn type_of_cells(column: &ColumnSchema) -> DataType {
    match (column.ty.kind(), column.ty.physical()) {
        (ValueKind::Date | ValueKind::Decimal, PhysicalType::Int32) => DataType::Int32,
        (ValueKind::Decimal, PhysicalType::Int64) => DataType::Int64,
        (ValueKind::Decimal, PhysicalType::Int128) => DataType::Int128,
        _ => column.ty,
    }
}

/// Builds the predicate that compares `column` with `cell`. Lower bounds are inclusive, upper bounds exclusive.
pub fn compare(column: &ColumnSchema, comparison: Comparison, cell: Vec<u8>) -> SimplifiedPredicate {
    let of = |kind| SimplifiedPredicate::Predicate(Predicate::new(column.id, kind));
    let range = |lower, upper| of(PredicateKind::Range { lower, upper });
    let ty = type_of_cells(column);
    let next = |mut cell: Vec<u8>| increment_cell(ty, column.attributes, &mut cell).then_some(cell);
    let is_least = || {
        let value = engine::schema::key::cell_to_i128(column.ty.physical(), &cell);
        match integer_range(ty, column.attributes) {
            Some((least, _)) => value == Some(least),
            None => cell.is_empty(),
        }
    };
    match comparison {
        Comparison::Equal => of(PredicateKind::Equal(cell)),
        Comparison::Less if is_least() => SimplifiedPredicate::Nothing,
        Comparison::Less => range(None, Some(cell)),
        Comparison::LessEqual => {
            next(cell).map_or_else(|| of(PredicateKind::IsNotNull), |cell| range(None, Some(cell)))
        }
        Comparison::GreaterEqual if is_least() => of(PredicateKind::IsNotNull),
        Comparison::GreaterEqual => range(Some(cell), None),
        Comparison::Greater => {
            next(cell).map_or(SimplifiedPredicate::Nothing, |cell| range(Some(cell), None))
        }
    }
}

/// Converts a predicate for requests; returns `None` if the schema lacks its column.
pub fn to_pb(predicate: &Predicate, schema: &Schema) -> Option<ColumnPredicatePb> {
    let bytes = |cell: &Vec<u8>| Bytes::copy_from_slice(cell);
    let bound = |cell: &Option<Vec<u8>>| cell.as_ref().map(bytes);
    let kind = match &predicate.kind {
        PredicateKind::Range { lower, upper } => {
            Pb::Range(Range { lower: bound(lower), upper: bound(upper) })
        }
        PredicateKind::Equal(value) => Pb::Equality(Equality { value: Some(bytes(value)) }),
        PredicateKind::InList(values) => Pb::InList(InList { values: values.iter().map(bytes).collect() }),
        PredicateKind::IsNotNull => Pb::IsNotNull(IsNotNull {}),
        PredicateKind::IsNull => Pb::IsNull(IsNull {}),
        PredicateKind::InBloom { filters, lower, upper } => Pb::InBloomFilter(InBloomFilter {
            bloom_filters: filters
                .iter()
                .map(|filter| BlockBloomFilterPb {
                    log_space_bytes: Some(filter.log_space_bytes() as i32),
                    bloom_data: Some(Bytes::from(filter.to_bytes())),
                    always_false: Some(filter.always_false()),
                    hash_algorithm: Some(HashAlgorithm::FastHash as i32),
                    hash_seed: Some(filter.hash_seed()),
                })
                .collect(),
            lower: bound(lower),
            upper: bound(upper),
        }),
    };
    let column = schema.by_id(predicate.column)?.name.clone();
    Some(ColumnPredicatePb { column: Some(column), predicate: Some(kind) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::schema::key::{DATE_MAX, DATE_MIN};
    use prost::Message;

    fn hex(column: ColumnSchema, comparison: Comparison, cell: &[u8]) -> String {
        let schema = Schema::new(vec![ColumnSchema::new(9, "k", DataType::Int8), column.clone()], 1)
            .expect("a legal schema");
        match compare(&column, comparison, cell.to_vec()) {
            SimplifiedPredicate::Nothing => "nothing".to_string(),
            SimplifiedPredicate::Predicate(predicate) => {
                let bytes = to_pb(&predicate, &schema).expect("its column exists").encode_to_vec();
                bytes.iter().map(|byte| format!("{byte:02x}")).collect()
            }
        }
    }

    /// Messages captured from the Java client.
    #[test]
    fn predicates_equal_those_of_the_java_client() {
        use Comparison::*;
        let int = |comparison, value: i32| {
            hex(ColumnSchema::new(1, "i", DataType::Int32), comparison, &value.to_le_bytes())
        };
        assert_eq!(int(GreaterEqual, 10), "0a016912060a040a000000");
        assert_eq!(int(Greater, 10), "0a016912060a040b000000");
        assert_eq!(int(Less, 10), "0a0169120612040a000000");
        assert_eq!(int(LessEqual, 10), "0a0169120612040b000000");
        assert_eq!(int(Equal, 10), "0a01691a060a040a000000");
        assert_eq!(int(LessEqual, i32::MAX), "0a01692200");
        assert_eq!(int(Less, i32::MIN), "nothing");
        assert_eq!(int(Greater, i32::MAX), "nothing");
        let text = ColumnSchema::new(1, "s", DataType::String);
        assert_eq!(hex(text.clone(), LessEqual, b"ab"), "0a017312051203616200");
        assert_eq!(hex(text, Greater, b"ab"), "0a017312050a03616200");
        let float = ColumnSchema::new(1, "f", DataType::Float);
        assert_eq!(hex(float, Greater, &1.5f32.to_le_bytes()), "0a016612060a040100c03f");
    }

    #[test]
    fn comparisons_with_the_last_date_or_decimal_tell_greater_cells_from_others() {
        use Comparison::*;
        let date = ColumnSchema::new(1, "d", DataType::Date);
        let mut decimal = ColumnSchema::new(2, "n", DataType::Decimal32);
        decimal.attributes.precision = 2;
        let cell = |number: i32| number.to_le_bytes().to_vec();
        let kind = |of: &ColumnSchema, comparison, number| match compare(of, comparison, cell(number)) {
            SimplifiedPredicate::Predicate(predicate) => predicate.kind,
            SimplifiedPredicate::Nothing => panic!("a cell of {} may be there", of.name),
        };
        let from = |number| PredicateKind::Range { lower: Some(cell(number)), upper: None };
        let below = |number| PredicateKind::Range { lower: None, upper: Some(cell(number)) };
        for (column, least, most) in [(&date, DATE_MIN, DATE_MAX), (&decimal, -99, 99)] {
            assert_eq!(kind(column, LessEqual, most), below(most + 1));
            assert_eq!(kind(column, Greater, most), from(most + 1));
            assert_eq!(kind(column, Less, least), below(least));
            assert_eq!(kind(column, GreaterEqual, least), from(least));
        }
    }
}
