//! Parsing of cells from text, for command lines and CSV files.

use engine::error::{Error, Result};
use engine::schema::key::{DATE_MAX, DATE_MIN, decimal_max, integer_range};
use engine::schema::{ColumnSchema, PhysicalType, TypeParameters, ValueKind};

/// Parses a cell of a column.
///
/// Accepts numbers and decimals in digits, `true`/`false`, dates as `2020-01-31`, times as `2020-01-31T12:00:00.5Z`
/// or as microseconds since 1970, and binary as `0x…` or as the bytes of the text. A VARCHAR longer than its length is
/// an error; [`truncate_varchar`] shortens it. So is a number in digits that is too large for FLOAT or DOUBLE; infinity
/// is `inf`.
pub fn parse_cell(column: &ColumnSchema, text: &str) -> Result<Vec<u8>> {
    let bad = || Error::invalid(format!("{:?} is not a {}", shorten(text), column.type_name()));
    let trimmed = text.trim();
    let number = match column.ty.kind() {
        ValueKind::Text => return text_cell(column, text),
        ValueKind::Decimal => parse_decimal(trimmed, column.attributes.precision, column.attributes.scale),
        ValueKind::Date => parse_date(trimmed).map(i128::from),
        ValueKind::Timestamp => trimmed.parse().ok().or_else(|| parse_time(trimmed)).map(i128::from),
        ValueKind::Plain => match column.ty.physical() {
            PhysicalType::Binary => return parse_binary(text).ok_or_else(bad),
            PhysicalType::Bool => parse_bool(trimmed),
            PhysicalType::Float | PhysicalType::Double => return float_cell(column, text),
            _ => trimmed.parse::<i128>().ok(),
        },
    };
    let number = number.ok_or_else(bad)?;
    let width = column.ty.width().ok_or_else(bad)?;
    match integer_range(column.ty, column.attributes) {
        Some((least, most)) if (least..=most).contains(&number) => Ok(number.to_le_bytes()[..width].to_vec()),
        _ => Err(bad()),
    }
}

/// Parses a FLOAT or a DOUBLE. Only a word is infinite; digits that would become infinite are too large.
fn float_cell(column: &ColumnSchema, text: &str) -> Result<Vec<u8>> {
    let bad = |what: &str| Error::invalid(format!("{:?} is {what} {}", shorten(text), column.type_name()));
    let (cell, is_infinite) = if column.ty.physical() == PhysicalType::Float {
        let number: f32 = text.trim().parse().map_err(|_| bad("not a"))?;
        (number.to_le_bytes().to_vec(), number.is_infinite())
    } else {
        let number: f64 = text.trim().parse().map_err(|_| bad("not a"))?;
        (number.to_le_bytes().to_vec(), number.is_infinite())
    };
    if is_infinite && text.bytes().any(|byte| byte.is_ascii_digit()) {
        return Err(bad("too large for"));
    }
    Ok(cell)
}

/// Returns the bytes of a text unless it is longer than the column's type allows.
fn text_cell(column: &ColumnSchema, text: &str) -> Result<Vec<u8>> {
    match too_long(column, text) {
        Some(reason) => Err(Error::invalid(reason)),
        None => Ok(text.as_bytes().to_vec()),
    }
}

/// Returns the reason that a text does not fit the length of a VARCHAR column; `None` if it fits.
pub(crate) fn too_long(column: &ColumnSchema, text: &str) -> Option<String> {
    // A text has no more characters than bytes.
    let may_fit = column.ty.parameters() != TypeParameters::Length
        || text.len() <= usize::from(column.attributes.length)
        || truncate_varchar(column, text) == text;
    (!may_fit).then(|| {
        let (found, ty) = (text.chars().count(), column.type_name());
        format!("{:?} is too long ({found} characters, {ty})", shorten(text))
    })
}

fn parse_bool(text: &str) -> Option<i128> {
    match text {
        "true" | "t" | "1" => Some(1),
        "false" | "f" | "0" => Some(0),
        _ => None,
    }
}

/// Returns the characters of the text that a VARCHAR column can hold.
pub fn truncate_varchar<'a>(column: &ColumnSchema, text: &'a str) -> &'a str {
    let end = text.char_indices().nth(column.attributes.length.into());
    end.map_or(text, |(end, _)| &text[..end])
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_string(),
    }
}

fn parse_binary(text: &str) -> Option<Vec<u8>> {
    let Some(digits) = text.strip_prefix("0x") else { return Some(text.as_bytes().to_vec()) };
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) || !digits.len().is_multiple_of(2) {
        return None;
    }
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok()).collect()
}

/// Parses a decimal. Digits beyond the scale must be zero.
fn parse_decimal(text: &str, precision: u8, scale: u8) -> Option<i128> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    if !part.is_ascii() || (whole.is_empty() && part.is_empty()) {
        return None;
    }
    let (part, rest) = part.split_at_checked(scale.into()).unwrap_or((part, ""));
    if rest.bytes().any(|byte| byte != b'0') {
        return None;
    }
    let mut value: i128 = 0;
    let zeros = std::iter::repeat_n(b'0', usize::from(scale) - part.len());
    for digit in whole.bytes().chain(part.bytes()).chain(zeros) {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(i128::from(digit - b'0'))?;
    }
    (value <= decimal_max(precision)).then_some(if negative { -value } else { value })
}

/// Returns the days since 1970-01-01 of a date in the proleptic Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Months are counted from March, so that the leap day comes last.
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468
}

fn parse_date(text: &str) -> Option<i32> {
    let mut parts = text.splitn(3, '-');
    let mut number = |len: usize| {
        let part = parts.next()?;
        let digits = part.len() == len && part.bytes().all(|byte| byte.is_ascii_digit());
        if digits { part.parse::<i64>().ok() } else { None }
    };
    let (year, month, day) = (number(4)?, number(2)?, number(2)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    let days = i32::try_from(days(year, month, day)).ok()?;
    ((1..=last).contains(&day) && (DATE_MIN..=DATE_MAX).contains(&days)).then_some(days)
}

/// Parses a UTC time to microseconds since 1970.
fn parse_time(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut parts = time.splitn(3, ':');
    let mut number = |below: i64| {
        let part = parts.next()?;
        let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
        let value = if digits { part.parse::<i64>().ok() } else { None };
        value.filter(|value| *value < below)
    };
    let (hour, minute, second) = (number(24)?, number(60)?, number(60)?);
    if fraction.len() > 6 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let micros: i64 = format!("{fraction:0<6}").parse().ok()?;
    let seconds = i64::from(parse_date(date)?) * 86_400 + hour * 3600 + minute * 60 + second;
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::schema::{DataType, TypeAttributes, format_cell};
    use proptest::prelude::*;

    fn column(ty: DataType) -> ColumnSchema {
        let mut column = ColumnSchema::new(0, "c", ty);
        column.attributes = match ty {
            DataType::Varchar => TypeAttributes { precision: 0, scale: 0, length: 3 },
            DataType::Decimal32 => TypeAttributes { precision: 9, scale: 2, length: 0 },
            _ => TypeAttributes::default(),
        };
        column
    }

    fn round_trip(ty: DataType, text: &str) -> String {
        let column = column(ty);
        match parse_cell(&column, text) {
            Ok(cell) => format_cell(ty, column.attributes, &cell),
            Err(error) => error.message,
        }
    }

    #[test]
    fn text_is_parsed_to_cells() {
        let cases = [
            round_trip(DataType::Int8, " -128"),
            round_trip(DataType::Int8, "128"),
            round_trip(DataType::Uint64, "18446744073709551615"),
            round_trip(DataType::Bool, "true"),
            round_trip(DataType::Bool, "yes"),
            round_trip(DataType::Decimal32, "-1.5"),
            round_trip(DataType::Decimal32, ".25"),
            round_trip(DataType::Decimal32, "1.250"),
            round_trip(DataType::Decimal32, "1.255"),
            round_trip(DataType::Decimal32, "10000000"),
            round_trip(DataType::Varchar, "éab"),
            round_trip(DataType::Varchar, "éabc"),
            round_trip(DataType::Binary, "0x00ff"),
            round_trip(DataType::Binary, "0x+1"),
            round_trip(DataType::Date, "2020-02-29"),
            round_trip(DataType::Date, "2021-02-29"),
            round_trip(DataType::UnixtimeMicros, "1969-12-31T23:59:59.5Z"),
            round_trip(DataType::UnixtimeMicros, "2020-01-01"),
            round_trip(DataType::UnixtimeMicros, "12"),
            round_trip(DataType::UnixtimeMicros, "2020-01-01 25:00:00"),
            round_trip(DataType::Double, "1e3"),
            round_trip(DataType::Double, "-1e400"),
            round_trip(DataType::Double, "-Infinity"),
            round_trip(DataType::Float, "1e39"),
            round_trip(DataType::Float, " inf"),
            round_trip(DataType::Float, "x"),
        ];
        insta::assert_snapshot!(cases.join("\n"), @r#"
        -128
        "128" is not a INT8
        18446744073709551615
        true
        "yes" is not a BOOL
        -1.50
        0.25
        1.25
        "1.255" is not a DECIMAL(9, 2)
        "10000000" is not a DECIMAL(9, 2)
        "éab"
        "éabc" is too long (4 characters, VARCHAR(3))
        "\x00\xff"
        "0x+1" is not a BINARY
        2020-02-29
        "2021-02-29" is not a DATE
        1969-12-31T23:59:59.500000Z
        2020-01-01T00:00:00.000000Z
        1970-01-01T00:00:00.000012Z
        "2020-01-01 25:00:00" is not a UNIXTIME_MICROS
        1000
        "-1e400" is too large for DOUBLE
        -inf
        "1e39" is too large for FLOAT
        inf
        "x" is not a FLOAT
        "#);
    }

    proptest! {
        #[test]
        fn dates_and_times_survive_formatting_and_parsing(
            day in DATE_MIN..=DATE_MAX,
            micros in 0i64..86_400_000_000,
        ) {
            let shown = format_cell(DataType::Date, TypeAttributes::default(), &day.to_le_bytes());
            prop_assert_eq!(parse_date(&shown), Some(day));
            let time = i64::from(day) * 86_400_000_000 + micros;
            let shown = format_cell(DataType::UnixtimeMicros, TypeAttributes::default(), &time.to_le_bytes());
            prop_assert_eq!(parse_time(&shown), Some(time));
        }

        #[test]
        fn arbitrary_text_does_not_panic(text: String) {
            for ty in DataType::ALL {
                let _ = parse_cell(&column(ty), &text);
            }
        }
    }
}
