//! Values of the model in the client's Arrow arrays.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{ArrayRef, ArrowPrimitiveType};
use sim_plan::tables::{ColumnKind, TypeWord, Value};

/// Returns the values of an array; `None` if it has another type than the column.
pub(super) fn values(array: &ArrayRef, kind: ColumnKind) -> Option<Vec<Value>> {
    let bits32 = |cell: f32| Value::Bits(u64::from(cell.to_bits()));
    let bits64 = |cell: f64| Value::Bits(cell.to_bits());
    match kind.word {
        TypeWord::Int8 => ints::<Int8Type>(array),
        TypeWord::Int16 => ints::<Int16Type>(array),
        TypeWord::Int32 => ints::<Int32Type>(array),
        TypeWord::Int64 => ints::<Int64Type>(array),
        TypeWord::Uint8 => ints::<UInt8Type>(array),
        TypeWord::Uint16 => ints::<UInt16Type>(array),
        TypeWord::Uint32 => ints::<UInt32Type>(array),
        TypeWord::Uint64 => ints::<UInt64Type>(array),
        TypeWord::Time => ints::<TimestampMicrosecondType>(array),
        TypeWord::Date => ints::<Date32Type>(array),
        TypeWord::Decimal32 | TypeWord::Decimal64 | TypeWord::Decimal128 => ints::<Decimal128Type>(array),
        TypeWord::Int128 => {
            let number = |bytes: &[u8]| Some(Value::Int(i128::from_le_bytes(bytes.try_into().ok()?)));
            let cells = array.as_fixed_size_binary_opt()?.iter();
            cells.map(|cell| cell.map_or(Some(Value::Null), number)).collect()
        }
        TypeWord::Bool => Some(all(array.as_boolean_opt()?.iter(), |cell| Value::Int(i128::from(cell)))),
        TypeWord::Float => Some(all(array.as_primitive_opt::<Float32Type>()?.iter(), bits32)),
        TypeWord::Double => Some(all(array.as_primitive_opt::<Float64Type>()?.iter(), bits64)),
        TypeWord::String | TypeWord::Varchar => {
            Some(all(array.as_string_opt::<i32>()?.iter(), |text| Value::bytes(text.as_bytes())))
        }
        TypeWord::Binary => Some(all(array.as_binary_opt::<i32>()?.iter(), Value::bytes)),
    }
}

/// Returns the cells of an array of booleans.
pub(super) fn is_set(array: &ArrayRef) -> Option<Vec<bool>> {
    Some(array.as_boolean_opt()?.iter().map(|cell| cell == Some(true)).collect())
}

fn ints<T: ArrowPrimitiveType<Native: Into<i128>>>(array: &ArrayRef) -> Option<Vec<Value>> {
    Some(all(array.as_primitive_opt::<T>()?.iter(), |cell| Value::Int(cell.into())))
}

fn all<T>(cells: impl Iterator<Item = Option<T>>, value: impl Fn(T) -> Value) -> Vec<Value> {
    cells.map(|cell| cell.map_or(Value::Null, &value)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{BooleanArray, Int16Array, StringArray};

    use super::*;

    #[test]
    fn arrays_have_the_values_of_their_type_or_none() {
        let numbers: ArrayRef = Arc::new(Int16Array::from(vec![Some(-2), None]));
        let kind = ColumnKind::plain;
        assert_eq!(values(&numbers, kind(TypeWord::Int16)), Some(vec![Value::Int(-2), Value::Null]));
        assert_eq!(values(&numbers, kind(TypeWord::Int32)), None);
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["", "a\0"]));
        assert_eq!(
            values(&texts, kind(TypeWord::String)),
            Some(vec![Value::bytes(b""), Value::bytes(b"a\0")])
        );
        let flags: ArrayRef = Arc::new(BooleanArray::from(vec![true, false]));
        assert_eq!(values(&flags, kind(TypeWord::Bool)), Some(vec![Value::Int(1), Value::Int(0)]));
        assert_eq!(is_set(&flags), Some(vec![true, false]));
        assert_eq!(is_set(&numbers), None);
    }
}
