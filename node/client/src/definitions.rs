//! Column definitions, conditions and range bounds as text.

use engine::error::{Error, Result};
use engine::schema::key::encode_key;
use engine::schema::partition_range::PartitionRange;
use engine::schema::predicate::{Predicate, PredicateKind};
use engine::schema::{ColumnSchema, Compression, DataType, Encoding, Schema, TypeParameters};

use super::Table;
use super::cell_text::parse_cell;
use super::predicate::{Comparison, SimplifiedPredicate};
use nyala_common::nearest::did_you_mean;

/// Parses a column such as `price decimal(15,2) null default=1.00 encoding=bitshuffle compression=lz4 comment=net`.
pub fn column(id: u32, text: &str) -> Result<ColumnSchema> {
    let bad = |what: String| Error::invalid(format!("column {text:?}: {what}"));
    let mut words = text.split_whitespace();
    let (Some(name), Some(ty)) = (words.next(), words.next()) else {
        return Err(bad("give a name and a type, for example 'price decimal(15,2) null'".to_string()));
    };
    let mut column = ColumnSchema::new(id, name, DataType::Int8);
    data_type(ty, &mut column).map_err(bad)?;
    let mut default = None;
    for word in words {
        match word.split_once('=') {
            None if word.eq_ignore_ascii_case("null") => column.nullable = true,
            None if word.eq_ignore_ascii_case("immutable") => column.immutable = true,
            Some(("default", value)) => default = Some(value),
            Some(("encoding", value)) => column.encoding = encoding(value).map_err(bad)?,
            Some(("compression", value)) => column.compression = compression(value).map_err(bad)?,
            Some(("comment", value)) => column.comment = value.to_string(),
            _ => return Err(bad(format!("{word:?} is not understood"))),
        }
    }
    if let Some(default) = default {
        let cell = parse_cell(&column, default).map_err(|error| bad(error.message))?;
        (column.read_default, column.write_default) = (Some(cell.clone()), Some(cell));
    }
    Ok(column)
}

/// Sets the column's type and its parameters from a word such as `decimal(15,2)`.
fn data_type(text: &str, column: &mut ColumnSchema) -> Result<(), String> {
    let lower = text.to_ascii_lowercase();
    let (word, parameters) = match lower.split_once('(') {
        Some((word, rest)) => (word, Some(rest.strip_suffix(')').ok_or("a ')' is missing")?)),
        None => (lower.as_str(), None),
    };
    let mut types = DataType::ALL.into_iter().filter(|ty| ty.words().contains(&word));
    let number = |text: &str| text.trim().parse::<u16>().map_err(|_| format!("{text:?} is not a number"));
    let ty = types.next().ok_or_else(|| format!("{text:?} is not a type; there are\n  {TYPES}"))?;
    column.ty = match (ty.parameters(), parameters) {
        (TypeParameters::None, None) => ty,
        (TypeParameters::None, Some(_)) => return Err(format!("{word} has no parameters")),
        (TypeParameters::Length, length) => {
            column.attributes.length = number(length.unwrap_or_default())?;
            ty
        }
        (TypeParameters::Digits(_), digits) => {
            let digits = digits.unwrap_or_default();
            let (precision, scale) = digits.split_once(',').unwrap_or((digits, "0"));
            let (precision, scale) = (number(precision)?, number(scale)?);
            let holds = |ty: &DataType| match ty.parameters() {
                TypeParameters::Digits(most) => precision <= most.into(),
                TypeParameters::Length | TypeParameters::None => false,
            };
            let fitting = std::iter::once(ty).chain(types).find(holds);
            let Some(ty) = fitting.filter(|_| precision > 0 && scale <= precision) else {
                return Err("a decimal has 1 to 38 digits, and no more of them after the point".to_string());
            };
            (column.attributes.precision, column.attributes.scale) = (precision as u8, scale as u8);
            ty
        }
    };
    Ok(())
}

/// Types that [`column()`] accepts.
pub const TYPES: &str = "int8, int16, int32, int64, bool, float, double, string, varchar(N), binary,\n  \
                         timestamp, date, decimal(P,S)";

fn encoding(text: &str) -> Result<Encoding, String> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "auto" => Encoding::Auto,
        "plain" => Encoding::Plain,
        "prefix" => Encoding::Prefix,
        "rle" => Encoding::Rle,
        "dict" => Encoding::Dict,
        "bitshuffle" | "bit_shuffle" => Encoding::BitShuffle,
        _ => return Err(format!("{text:?} is none of auto, plain, prefix, rle, dict, bitshuffle")),
    })
}

fn compression(text: &str) -> Result<Compression, String> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "default" => Compression::Default,
        "none" | "no" => Compression::None,
        "snappy" => Compression::Snappy,
        "lz4" => Compression::Lz4,
        "zlib" => Compression::Zlib,
        _ => return Err(format!("{text:?} is none of default, none, snappy, lz4, zlib")),
    })
}

/// Parses `a,b:8` as columns and a number of buckets.
pub fn hash(text: &str) -> Result<(Vec<String>, u32)> {
    let bad = || Error::invalid(format!("{text:?} is not a hash partitioning such as 'a,b:8'"));
    let (columns, buckets) = text.rsplit_once(':').ok_or_else(bad)?;
    Ok((names(columns), buckets.trim().parse().map_err(|_| bad())?))
}

/// Parses `a,b` as names.
pub fn names(text: &str) -> Vec<String> {
    text.split(',').map(|name| name.trim().to_string()).filter(|name| !name.is_empty()).collect()
}

/// Parses a range such as `0..100` of one column, or `2024-01-01,a..` of several; a missing side is unbounded.
pub fn range(text: &str, columns: &[ColumnSchema]) -> Result<PartitionRange> {
    let (lower, upper) = text
        .split_once("..")
        .ok_or_else(|| Error::invalid(format!("{text:?} is not a range such as '0..100' or '100..'")))?;
    let bound = |text: &str| {
        if text.trim().is_empty() {
            return Ok(Vec::new());
        }
        let values = names(text);
        if values.len() != columns.len() {
            let want = columns.len();
            return Err(Error::invalid(format!(
                "the bound {text:?} needs {want} values, one per range column"
            )));
        }
        let cells = columns.iter().zip(&values).map(|(column, value)| parse_cell(column, value));
        let cells = cells.collect::<Result<Vec<_>>>()?;
        let mut key = Vec::new();
        encode_key(columns, |i| &cells[i], &mut key);
        Ok(key)
    };
    PartitionRange::new(bound(lower)?, bound(upper)?)
}

/// Parses a condition such as `price >= 10`, `name in (a, b)` or `name is not null`. `None`: no row can satisfy it.
pub fn condition(text: &str, table: &Table) -> Result<Option<Predicate>> {
    let bad = || {
        Error::invalid(format!(
            "{text:?} is not a condition; write 'col = value' (or <, <=, >=, >), 'col in (a, b)', \
             'col is null' or 'col is not null'"
        ))
    };
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| c.is_whitespace() || "<>=".contains(c)).ok_or_else(bad)?;
    let (name, rest) = (&trimmed[..end], trimmed[end..].trim());
    let column = find(table.schema(), name, table.name())?;
    let of = |kind| Ok(Some(Predicate::new(column.id, kind)));
    match rest.to_ascii_lowercase().split_whitespace().collect::<Vec<_>>().as_slice() {
        ["is", "null"] => return of(PredicateKind::IsNull),
        ["is", "not", "null"] => return of(PredicateKind::IsNotNull),
        [first, ..] if first.starts_with("in") && rest.ends_with(')') => {
            let list = rest[2..].trim().strip_prefix('(').ok_or_else(bad)?;
            let values = values(&list[..list.len() - 1]);
            let values = values.ok_or_else(|| {
                Error::invalid(format!("{text:?}: a quote is not closed before a comma or ')'"))
            })?;
            let cells = values.iter().map(|value| parse_cell(column, unquote(value)));
            return of(PredicateKind::in_list(column.ty, cells.collect::<Result<_>>()?));
        }
        _ => {}
    }
    let comparisons = [
        ("<=", Comparison::LessEqual),
        (">=", Comparison::GreaterEqual),
        ("<", Comparison::Less),
        (">", Comparison::Greater),
        ("=", Comparison::Equal),
    ];
    let (sign, comparison) =
        comparisons.into_iter().find(|(sign, _)| rest.starts_with(sign)).ok_or_else(bad)?;
    match table.compare(name, comparison, unquote(rest[sign.len()..].trim()))? {
        SimplifiedPredicate::Predicate(predicate) => Ok(Some(predicate)),
        SimplifiedPredicate::Nothing => Ok(None),
    }
}

/// Splits a list at its commas, except those within quotes. Keeps the quotes, and leaves out empty values that have
/// none. `None` if a quote is not closed.
fn values(list: &str) -> Option<Vec<&str>> {
    let (mut values, mut rest) = (Vec::new(), list.trim());
    while !rest.is_empty() {
        let end = match rest.chars().next() {
            Some(quote @ ('\'' | '"')) => quoted_end(rest, quote)?,
            _ => rest.find(',').unwrap_or(rest.len()),
        };
        values.push(rest[..end].trim());
        let after = rest[end..].trim_start();
        rest = after.strip_prefix(',').unwrap_or(after).trim_start();
    }
    values.retain(|value| !value.is_empty());
    Some(values)
}

/// Returns the end of the quoted value at the start of a list. A quote closes it if a comma or the end follows, and not
/// a second quote.
fn quoted_end(list: &str, quote: char) -> Option<usize> {
    let mut from = 1;
    loop {
        let end = from + list[from..].find(quote)? + 1;
        let after = &list[end..];
        let is_doubled = after.starts_with(quote);
        if !is_doubled && matches!(after.trim_start().chars().next(), None | Some(',')) {
            return Some(end);
        }
        from = end + usize::from(is_doubled);
    }
}

fn unquote(text: &str) -> &str {
    let quoted = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    quoted('\'').or_else(|| quoted('"')).unwrap_or(text)
}

/// Returns the column of this name; if there is none, the error names the nearest.
pub fn find<'a>(schema: &'a Schema, name: &str, table: &str) -> Result<&'a ColumnSchema> {
    if let Some(index) = schema.index_of_name(name) {
        return Ok(&schema.columns()[index]);
    }
    let hint = did_you_mean(schema.columns().iter().map(|column| column.name.as_str()), name);
    Err(Error::invalid(format!("table {table} has no column {name:?}{hint}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_type_that_a_table_may_have() {
        for ty in DataType::ALL.iter().filter(|ty| !ty.words().is_empty()) {
            assert!(TYPES.contains(ty.words()[0]), "{} is missing in {TYPES:?}", ty.words()[0]);
        }
        let error = column(0, "c int32(5)").expect_err("INT32 takes nothing");
        assert!(error.message.contains("int32 has no parameters"), "{}", error.message);
    }

    fn shown(text: &str) -> String {
        column(0, text).map_or_else(|error| error.message, |column| column.to_string())
    }

    #[test]
    fn columns_are_parsed_and_errors_show_the_syntax() {
        let cases = [
            "k int64",
            "price decimal(15,2) null default=1.5 encoding=plain compression=lz4",
            "name varchar(10)",
            "k",
            "k int65",
            "d decimal(40,2)",
            "b bool default=maybe",
            "s string encoding=best",
            "s string sometimes",
        ];
        insta::assert_snapshot!(cases.map(shown).join("\n"), @r#"
        k INT64 NOT NULL
        price DECIMAL(15, 2) NULLABLE
        name VARCHAR(10) NOT NULL
        column "k": give a name and a type, for example 'price decimal(15,2) null'
        column "k int65": "int65" is not a type; there are
          int8, int16, int32, int64, bool, float, double, string, varchar(N), binary,
          timestamp, date, decimal(P,S)
        column "d decimal(40,2)": a decimal has 1 to 38 digits, and no more of them after the point
        column "b bool default=maybe": "maybe" is not a BOOL
        column "s string encoding=best": "best" is none of auto, plain, prefix, rle, dict, bitshuffle
        column "s string sometimes": "sometimes" is not understood
        "#);
    }

    #[test]
    fn a_list_is_split_at_the_commas_outside_of_quotes() {
        let cases = [
            ("a, b,,c ", Some(vec!["a", "b", "c"])),
            ("", Some(vec![])),
            ("'a,b'", Some(vec!["a,b"])),
            ("'a,b' , \"c, d\",'', e", Some(vec!["a,b", "c, d", "", "e"])),
            ("' a '", Some(vec![" a "])),
            ("it's, 'it's'", Some(vec!["it's", "it's"])),
            ("'\",', \"',\"", Some(vec!["\",", "',"])),
            ("'a'',b'", Some(vec!["a'',b"])),
            ("'a,b", None),
            ("'a'b, c", None),
            ("'", None),
        ];
        for (list, expected) in cases {
            let found = values(list).map(|values| values.into_iter().map(unquote).collect::<Vec<_>>());
            assert_eq!(found, expected, "{list}");
        }
    }

    #[test]
    fn ranges_and_hashes_are_parsed() {
        let columns = [column(0, "a int8").expect("a column"), column(1, "b string").expect("a column")];
        let one = range("-1..5", &columns[..1]).expect("a range");
        assert_eq!((one.lower, one.upper), (vec![0x7f], vec![0x85]));
        let two = range("1,x..", &columns).expect("a range");
        assert_eq!((two.lower, two.upper), (vec![0x81, b'x'], vec![]));
        assert!(range("5", &columns[..1]).is_err());
        assert!(range("1..2,3", &columns[..1]).is_err());
        assert!(range("7..1", &columns[..1]).is_err());
        assert_eq!(hash("a, b:4").expect("a hash"), (vec!["a".to_string(), "b".to_string()], 4));
        assert!(hash("a").is_err());
    }
}
