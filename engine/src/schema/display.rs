//! Text forms of schemas and cells, as Kudu's tools print them.

use std::fmt;

use super::key::cell_to_i128;
use super::{ColumnSchema, DataType, PhysicalType, TypeAttributes, TypeParameters, ValueKind};

impl ColumnSchema {
    /// Returns the type with its parameters and nullability, e.g. `DECIMAL(9, 2) NOT NULL`.
    pub fn type_text(&self) -> String {
        let null = if self.nullable { "NULLABLE" } else { "NOT NULL" };
        format!("{} {null}", self.type_name())
    }

    /// Returns the type with its parameters, e.g. `DECIMAL(9, 2)`.
    pub fn type_name(&self) -> String {
        type_name(self.ty, self.attributes)
    }
}

/// Formats a column, e.g. `im INT32 NULLABLE IMMUTABLE`.
impl fmt::Display for ColumnSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.type_text())?;
        if self.auto_incrementing {
            f.write_str(" AUTO_INCREMENTING")?;
        }
        if self.immutable {
            f.write_str(" IMMUTABLE")?;
        }
        Ok(())
    }
}

fn type_name(ty: DataType, attributes: TypeAttributes) -> String {
    match ty.parameters() {
        TypeParameters::Digits(_) => format!("DECIMAL({}, {})", attributes.precision, attributes.scale),
        TypeParameters::Length => format!("{}({})", ty.name(), attributes.length),
        TypeParameters::None => ty.name().to_string(),
    }
}

/// Formats a cell: numbers as they are, text in quotes, dates and times in UTC.
///
/// A cell whose width is not its type's is formatted as hex digits.
pub fn format_cell(ty: DataType, attributes: TypeAttributes, cell: &[u8]) -> String {
    let number = || cell_to_i128(ty.physical(), cell);
    let text = match ty.kind() {
        ValueKind::Text => Some(quote(cell)),
        ValueKind::Decimal => number().map(|value| decimal(value, attributes.scale)),
        ValueKind::Date => number().map(|days| date(days as i64)),
        ValueKind::Timestamp => number().map(|micros| time(micros as i64)),
        ValueKind::Plain => match ty.physical() {
            PhysicalType::Binary => Some(quote(cell)),
            PhysicalType::Bool => number().map(|value| (value != 0).to_string()),
            PhysicalType::Float => cell.try_into().ok().map(|cell| f32::from_le_bytes(cell).to_string()),
            PhysicalType::Double => cell.try_into().ok().map(|cell| f64::from_le_bytes(cell).to_string()),
            _ => number().map(|value| value.to_string()),
        },
    };
    text.unwrap_or_else(|| cell.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Quotes text; bytes that are not printable ASCII or UTF-8 become `\xNN`.
fn quote(cell: &[u8]) -> String {
    let mut out = String::from("\"");
    for chunk in cell.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                c if c.is_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
                c => out.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
    }
    out.push('"');
    out
}

fn decimal(value: i128, scale: u8) -> String {
    let sign = if value < 0 { "-" } else { "" };
    let digits = value.unsigned_abs().to_string();
    let scale = scale as usize;
    if scale == 0 {
        return format!("{sign}{digits}");
    }
    let digits = format!("{digits:0>width$}", width = scale + 1);
    let (whole, part) = digits.split_at(digits.len() - scale);
    format!("{sign}{whole}.{part}")
}

/// Returns year, month and day of a day counted from 1970-01-01 (proleptic Gregorian calendar).
fn civil(days: i64) -> (i64, u32, u32) {
    // Days are counted in eras of 400 years that begin on March 1st, so that the leap day comes last.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day = days.rem_euclid(146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = (day - (153 * month + 2) / 5 + 1) as u32;
    let month = if month < 10 { month + 3 } else { month - 9 } as u32;
    (era * 400 + year + i64::from(month <= 2), month, day)
}

fn date(days: i64) -> String {
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02}")
}

fn time(micros: i64) -> String {
    const DAY: i64 = 86_400_000_000;
    let rest = micros.rem_euclid(DAY);
    let seconds = rest / 1_000_000;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let date = date(micros.div_euclid(DAY));
    format!("{date}T{hour:02}:{minute:02}:{second:02}.{:06}Z", rest % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_read_as_in_other_tools() {
        let plain = TypeAttributes::default();
        let show = |ty, cell: &[u8]| format_cell(ty, plain, cell);
        assert_eq!(show(DataType::Int8, &[0xff]), "-1");
        assert_eq!(show(DataType::String, b"a\"b\n\xff"), r#""a\"b\n\xff""#);
        assert_eq!(show(DataType::Date, &18262i32.to_le_bytes()), "2020-01-01");
        assert_eq!(show(DataType::Date, &(-719_162i32).to_le_bytes()), "0001-01-01");
        assert_eq!(show(DataType::Date, &2_932_896i32.to_le_bytes()), "9999-12-31");
        assert_eq!(show(DataType::UnixtimeMicros, &(-1i64).to_le_bytes()), "1969-12-31T23:59:59.999999Z");
        assert_eq!(show(DataType::Bool, &[1]), "true");
        assert_eq!(show(DataType::Int32, &[1, 2]), "0102");
        let scaled = TypeAttributes { precision: 9, scale: 2, length: 0 };
        assert_eq!(format_cell(DataType::Decimal32, scaled, &(-5i32).to_le_bytes()), "-0.05");
        assert_eq!(format_cell(DataType::Decimal32, scaled, &123i32.to_le_bytes()), "1.23");
    }
}
