//! Column predicates: protobuf → the engine's, with values checked against the column's type.

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::schema::predicate::{Predicate, PredicateKind};
use engine::schema::predicate_bloom::PredicateBloom;
use engine::schema::{ColumnSchema, DataType, Schema};

use super::schema;
use nyala_proto::kudu::column_predicate_pb::{self, InBloomFilter, InList};
use nyala_proto::kudu::{BlockBloomFilterPb, ColumnPredicatePb, HashAlgorithm};

/// Converts a predicate. Fails with `Invalid` for an unknown column, a value of the wrong width, or a missing kind.
pub fn from_pb(pb: &ColumnPredicatePb, schema: &Schema) -> Result<Predicate> {
    let name = pb.column();
    let Some(i) = schema.index_of_name(name) else {
        return Err(Error::invalid(format!("unknown column in predicate: {name:?}")));
    };
    let column = &schema.columns()[i];
    let kind = kind(pb, column).map_err(|error| error.context(format!("predicate on column {name:?}")))?;
    Ok(Predicate { column: column.id, kind })
}

fn kind(pb: &ColumnPredicatePb, column: &ColumnSchema) -> Result<PredicateKind> {
    use column_predicate_pb::Predicate as Pb;
    let ty = column.ty;
    match &pb.predicate {
        None => Err(Error::invalid("it has no kind")),
        Some(Pb::IsNull(_)) => Ok(PredicateKind::IsNull),
        Some(Pb::IsNotNull(_)) => Ok(PredicateKind::IsNotNull),
        Some(Pb::Equality(equality)) => match value(ty, &equality.value)? {
            Some(value) => Ok(PredicateKind::Equal(value)),
            None => Err(Error::invalid("an equality needs a value")),
        },
        Some(Pb::Range(range)) => {
            let (lower, upper) = (value(ty, &range.lower)?, value(ty, &range.upper)?);
            if lower.is_none() && upper.is_none() {
                return Err(Error::invalid("a range needs a bound"));
            }
            Ok(PredicateKind::Range { lower, upper })
        }
        Some(Pb::InList(list)) => in_list(list, ty),
        Some(Pb::InBloomFilter(filter)) => in_bloom(filter, ty),
    }
}

fn value(ty: DataType, bytes: &Option<Bytes>) -> Result<Option<Vec<u8>>> {
    bytes.as_ref().map(|bytes| schema::cell(ty, bytes).map(<[u8]>::to_vec)).transpose()
}

/// Converts an IN list and sorts it. Clients send sorted lists, but evaluation depends on the order.
fn in_list(list: &InList, ty: DataType) -> Result<PredicateKind> {
    let values = list.values.iter().map(|bytes| schema::cell(ty, bytes).map(<[u8]>::to_vec));
    Ok(PredicateKind::in_list(ty, values.collect::<Result<_>>()?))
}

fn in_bloom(pb: &InBloomFilter, ty: DataType) -> Result<PredicateKind> {
    if pb.bloom_filters.is_empty() {
        return Err(Error::invalid("a Bloom filter predicate needs a filter"));
    }
    let filters = pb.bloom_filters.iter().map(bloom_filter).collect::<Result<_>>()?;
    Ok(PredicateKind::InBloom { filters, lower: value(ty, &pb.lower)?, upper: value(ty, &pb.upper)? })
}

fn bloom_filter(pb: &BlockBloomFilterPb) -> Result<PredicateBloom> {
    if pb.hash_algorithm.is_some_and(|algorithm| algorithm != HashAlgorithm::FastHash as i32) {
        return Err(Error::unsupported("only Bloom filters made with FAST_HASH are supported"));
    }
    let log_space = u32::try_from(pb.log_space_bytes())
        .map_err(|_| Error::invalid("a Bloom filter may not have a negative size"))?;
    PredicateBloom::from_bytes(log_space, pb.bloom_data(), pb.hash_seed(), pb.always_false())
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn schema() -> Schema {
        let columns = vec![
            ColumnSchema::new(0, "i", DataType::Int32),
            ColumnSchema::new(4, "s", DataType::String).nullable(),
        ];
        Schema::new(columns, 1).expect("a valid schema")
    }

    fn read(hex: &str) -> Result<Predicate> {
        let digits: Vec<u8> = hex.bytes().filter(|byte| *byte != b' ').collect();
        let byte = |pair: &[u8]| {
            u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("two hex digits")
        };
        let bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
        let pb = ColumnPredicatePb::decode(&*bytes).expect("a message captured from a client");
        from_pb(&pb, &schema())
    }

    /// Messages captured from the Java client, see `rows.md`.
    #[test]
    fn predicates_of_the_java_client_are_decoded() {
        let int = |value: i32| value.to_le_bytes().to_vec();
        let range = |lower, upper| PredicateKind::Range { lower, upper };
        let cases = [
            ("0a0169 1206 0a04 0a000000", range(Some(int(10)), None)),
            ("0a0169 1206 1204 0b000000", range(None, Some(int(11)))),
            ("0a0169 120c 0a040a000000 120414000000", range(Some(int(10)), Some(int(20)))),
            ("0a0169 1a06 0a04 0a000000", PredicateKind::Equal(int(10))),
            ("0a0173 1205 1203 616200", range(None, Some(b"ab\0".to_vec()))),
            ("0a0173 3200", PredicateKind::IsNull),
            ("0a0173 2200", PredicateKind::IsNotNull),
            (
                "0a0169 2a12 0a0403000000 0a0402000000 0a0401000000",
                PredicateKind::InList(vec![int(1), int(2), int(3)]),
            ),
        ];
        for (hex, kind) in cases {
            assert_eq!(read(hex).expect(hex).kind, kind, "{hex}");
        }
    }

    #[test]
    fn errors_of_bad_predicates_name_the_fault() {
        let error = |hex| read(hex).expect_err(hex).message;
        assert_eq!(error("0a0178 3200"), "unknown column in predicate: \"x\"");
        assert_eq!(error("0a0169"), "predicate on column \"i\": it has no kind");
        assert_eq!(error("0a0169 1200"), "predicate on column \"i\": a range needs a bound");
        let width = "predicate on column \"i\": a value of type INT32 has 4 bytes, not 1";
        assert_eq!(error("0a0169 1a03 0a01 01"), width);
    }
}
