//! Types and values of columns.
//!
//! Values have the model's own order and text; nothing here is taken from the engine.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::line_format::{LineField, words};

words! {
    /// Type of a column.
    pub enum TypeWord {
        Int8 = "int8",
        Int16 = "int16",
        Int32 = "int32",
        Int64 = "int64",
        Uint8 = "uint8",
        Uint16 = "uint16",
        Uint32 = "uint32",
        Uint64 = "uint64",
        Int128 = "int128",
        Bool = "bool",
        Float = "float",
        Double = "double",
        String = "string",
        Binary = "binary",
        Varchar = "varchar",
        Time = "unixtime",
        Date = "date",
        Decimal32 = "decimal32",
        Decimal64 = "decimal64",
        Decimal128 = "decimal128",
    }
}

/// Days of a DATE column: 0001-01-01 to 9999-12-31.
const DATE_DAYS: (i128, i128) = (-719_162, 2_932_896);

/// Type of a column with its attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ColumnKind {
    pub word: TypeWord,
    /// Digits of a decimal, and those after the point. 0 for other types.
    pub precision: u8,
    pub scale: u8,
    /// Characters of a varchar. 0 for other types.
    pub length: u16,
}

/// Storage form of the cells of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellForm {
    /// An integer of this many bytes; `true` if it is signed.
    Int(usize, bool),
    /// A floating point number of this many bytes.
    Float(usize),
    /// Bytes of any length.
    Bytes,
}

impl ColumnKind {
    /// Returns a type without attributes.
    pub fn plain(word: TypeWord) -> ColumnKind {
        ColumnKind { word, precision: 0, scale: 0, length: 0 }
    }

    pub fn form(self) -> CellForm {
        use TypeWord::*;
        match self.word {
            Int8 => CellForm::Int(1, true),
            Int16 => CellForm::Int(2, true),
            Int32 | Date | Decimal32 => CellForm::Int(4, true),
            Int64 | Time | Decimal64 => CellForm::Int(8, true),
            Int128 | Decimal128 => CellForm::Int(16, true),
            Bool | Uint8 => CellForm::Int(1, false),
            Uint16 => CellForm::Int(2, false),
            Uint32 => CellForm::Int(4, false),
            Uint64 => CellForm::Int(8, false),
            Float => CellForm::Float(4),
            Double => CellForm::Float(8),
            String | Binary | Varchar => CellForm::Bytes,
        }
    }

    /// Returns true if key columns may have this type.
    pub fn may_be_key(self) -> bool {
        use TypeWord::*;
        !matches!(self.word, Bool | Float | Double | Int128)
    }

    /// Returns the least and the greatest value of an integer type, as clients may write them.
    pub fn int_range(self) -> (i128, i128) {
        match (self.word, self.form()) {
            (TypeWord::Bool, _) => (0, 1),
            (TypeWord::Date, _) => DATE_DAYS,
            (TypeWord::Decimal32 | TypeWord::Decimal64 | TypeWord::Decimal128, _) => {
                let most = 10_i128.pow(u32::from(self.precision)) - 1;
                (-most, most)
            }
            (_, form) => form.int_range(),
        }
    }

    /// Returns the cell bytes of a value; `None` for NULL or a value of another form.
    pub fn cell(self, value: &Value) -> Option<Vec<u8>> {
        match (self.form(), value) {
            (CellForm::Int(bytes, _), Value::Int(number)) => Some(number.to_le_bytes()[..bytes].to_vec()),
            (CellForm::Float(bytes), Value::Bits(bits)) => Some(bits.to_le_bytes()[..bytes].to_vec()),
            (CellForm::Bytes, Value::Bytes(bytes)) => Some(bytes.to_vec()),
            _ => None,
        }
    }

    /// Returns the value of cell bytes; `None` if their length is wrong.
    pub fn value(self, cell: &[u8]) -> Option<Value> {
        match self.form() {
            CellForm::Bytes => Some(Value::Bytes(cell.into())),
            CellForm::Float(bytes) if cell.len() == bytes => {
                let mut bits = [0; 8];
                bits[..bytes].copy_from_slice(cell);
                Some(Value::Bits(u64::from_le_bytes(bits)))
            }
            CellForm::Int(bytes, signed) if cell.len() == bytes => {
                let negative = signed && cell[bytes - 1] >= 0x80;
                let mut all = [if negative { 0xff } else { 0 }; 16];
                all[..bytes].copy_from_slice(cell);
                Some(Value::Int(i128::from_le_bytes(all)))
            }
            _ => None,
        }
    }

    /// Returns the order of two values that are not NULL; `None` where the documentation leaves it open: NaN,
    /// and the two zeros of a floating point type.
    pub fn compare(self, left: &Value, right: &Value) -> Option<Ordering> {
        match (left, right) {
            (Value::Int(left), Value::Int(right)) => Some(left.cmp(right)),
            (Value::Bytes(left), Value::Bytes(right)) => Some(left.cmp(right)),
            (Value::Bits(left), Value::Bits(right)) if left == right && !self.float(*left).is_nan() => {
                Some(Ordering::Equal)
            }
            (Value::Bits(left), Value::Bits(right)) => {
                let order = self.float(*left).partial_cmp(&self.float(*right));
                order.filter(|order| order.is_ne())
            }
            _ => None,
        }
    }

    fn float(self, bits: u64) -> f64 {
        match self.form() {
            CellForm::Float(4) => f64::from(f32::from_bits(bits as u32)),
            _ => f64::from_bits(bits),
        }
    }
}

impl CellForm {
    /// Returns the least and the greatest number of an integer's bytes.
    pub fn int_range(self) -> (i128, i128) {
        match self {
            CellForm::Int(16, _) => (i128::MIN, i128::MAX),
            CellForm::Int(bytes, true) => (-(1 << (bytes * 8 - 1)), (1 << (bytes * 8 - 1)) - 1),
            CellForm::Int(bytes, false) => (0, (1 << (bytes * 8)) - 1),
            CellForm::Float(_) | CellForm::Bytes => (0, 0),
        }
    }
}

impl LineField for ColumnKind {
    fn text(&self) -> String {
        match self.word {
            TypeWord::Varchar => format!("varchar:{}", self.length),
            word if self.precision > 0 => format!("{}:{}:{}", word.word(), self.precision, self.scale),
            word => word.word().to_string(),
        }
    }

    fn parse(text: &str) -> Option<ColumnKind> {
        let mut parts = text.split(':');
        let mut kind = ColumnKind::plain(TypeWord::parse(parts.next()?)?);
        let numbers: Vec<u16> = parts.map(|part| part.parse().ok()).collect::<Option<_>>()?;
        match (kind.word, numbers.as_slice()) {
            (TypeWord::Varchar, [length]) => kind.length = *length,
            (TypeWord::Decimal32 | TypeWord::Decimal64 | TypeWord::Decimal128, [precision, scale]) => {
                kind.precision = u8::try_from(*precision).ok()?;
                kind.scale = u8::try_from(*scale).ok()?;
            }
            (TypeWord::Varchar | TypeWord::Decimal32 | TypeWord::Decimal64 | TypeWord::Decimal128, _) => {
                return None;
            }
            (_, []) => {}
            _ => return None,
        }
        Some(kind)
    }
}

/// A value of a cell.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    Null,
    Int(i128),
    /// A floating point number, as bits, so that equal cells are equal values.
    Bits(u64),
    Bytes(Arc<[u8]>),
}

impl Value {
    pub fn is_null(&self) -> bool {
        *self == Value::Null
    }

    /// Returns the number of an integer.
    pub fn number(&self) -> Option<i128> {
        match self {
            Value::Int(number) => Some(*number),
            _ => None,
        }
    }

    pub fn bytes(bytes: &[u8]) -> Value {
        Value::Bytes(bytes.into())
    }
}

impl LineField for Value {
    fn text(&self) -> String {
        match self {
            Value::Null => "null".to_string(),
            Value::Int(number) => format!("i{number}"),
            Value::Bits(bits) => format!("f{bits:x}"),
            Value::Bytes(bytes) => {
                bytes.iter().fold("b".to_string(), |text, byte| format!("{text}{byte:02x}"))
            }
        }
    }

    fn parse(text: &str) -> Option<Value> {
        if text == "null" {
            return Some(Value::Null);
        }
        let rest = text.get(1..)?;
        match text.as_bytes()[0] {
            b'i' => rest.parse().ok().map(Value::Int),
            b'f' => u64::from_str_radix(rest, 16).ok().map(Value::Bits),
            b'b' if rest.is_ascii() && rest.len().is_multiple_of(2) => {
                let byte = |at| u8::from_str_radix(&rest[at..at + 2], 16).ok();
                (0..rest.len())
                    .step_by(2)
                    .map(byte)
                    .collect::<Option<Vec<u8>>>()
                    .map(|bytes| Value::bytes(&bytes))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_and_a_kind_are_parsed_from_their_own_text() {
        let values =
            [Value::Null, Value::Int(-5), Value::Bits(0x7fc0_0000), Value::bytes(b""), Value::bytes(b"a\0")];
        for value in values {
            assert_eq!(Value::parse(&value.text()), Some(value));
        }
        for text in ["int8", "decimal64:18:4", "varchar:10"] {
            assert_eq!(ColumnKind::parse(text).expect("a kind").text(), text);
        }
        for text in ["varchar", "int8:3", "decimal32:9", "text"] {
            assert_eq!(ColumnKind::parse(text), None, "{text}");
        }
    }

    #[test]
    fn cells_are_little_endian_and_come_back() {
        let cell = |word, value: Value| ColumnKind::plain(word).cell(&value).expect("a cell");
        assert_eq!(cell(TypeWord::Int16, Value::Int(-2)), [0xfe, 0xff]);
        assert_eq!(cell(TypeWord::Uint32, Value::Int(0xffff_fffe)), [0xfe, 0xff, 0xff, 0xff]);
        assert_eq!(cell(TypeWord::Float, Value::Bits(u64::from(1.5_f32.to_bits()))), [0, 0, 0xc0, 0x3f]);
        for (word, number) in [(TypeWord::Int16, -2), (TypeWord::Uint8, 255), (TypeWord::Decimal128, -1)] {
            let kind = ColumnKind::plain(word);
            let cell = kind.cell(&Value::Int(number)).expect("a cell");
            assert_eq!(kind.value(&cell), Some(Value::Int(number)), "{word:?}");
        }
        assert_eq!(ColumnKind::plain(TypeWord::Int16).value(&[1]), None);
    }

    #[test]
    fn the_order_of_nan_and_of_two_zeros_is_open() {
        let kind = ColumnKind::plain(TypeWord::Double);
        let bits = |number: f64| Value::Bits(number.to_bits());
        assert_eq!(kind.compare(&bits(-1.0), &bits(2.0)), Some(Ordering::Less));
        assert_eq!(kind.compare(&bits(2.0), &bits(2.0)), Some(Ordering::Equal));
        assert_eq!(kind.compare(&bits(0.0), &bits(-0.0)), None);
        assert_eq!(kind.compare(&bits(f64::NAN), &bits(1.0)), None);
    }
}
