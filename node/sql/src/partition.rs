//! PARTITION BY: hash dimensions, and a range dimension with its ranges.
//!
//! ```text
//! HASH (a) PARTITIONS 4, RANGE (b) (PARTITION VALUES < 10, PARTITION 10 <= VALUES < 20, PARTITION VALUE = 30)
//! ```

use datafusion::logical_expr::sqlparser::ast::{Expr, Ident, UnaryOperator, Value};
use datafusion::logical_expr::sqlparser::parser::{IsOptional, Parser};
use datafusion::logical_expr::sqlparser::tokenizer::{Token, TokenWithSpan};
use engine::error::{Error, Result};
use engine::schema::key::{encode_key, increment_cell};
use engine::schema::partition_range::PartitionRange;
use engine::schema::{ColumnSchema, Schema};
use nyala_client::cell_text::parse_cell;

use super::error::{SqlError, SqlResult};
use super::tokens::{expect_end, has_words, parser_of};

/// Division of the rows of a new table into tablets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PartitionBy {
    /// Columns and buckets of each hash dimension; without columns it is the primary key.
    pub(crate) hash: Vec<(Vec<String>, u32)>,
    pub(crate) range: Option<RangeDimension>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RangeDimension {
    /// Columns; without any it is the primary key.
    pub(crate) columns: Vec<String>,
    /// Ranges; without any there is one unbounded range.
    pub(crate) ranges: Vec<RangeClause>,
}

/// One range in text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RangeClause {
    lower: Option<RangeBound>,
    upper: Option<RangeBound>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct RangeBound {
    /// One value per range column.
    values: Vec<String>,
    is_inclusive: bool,
}

/// ALTER TABLE … ADD RANGE PARTITION or DROP RANGE PARTITION.
#[derive(Debug, Clone)]
pub(crate) struct RangeChange {
    pub(crate) table: String,
    pub(crate) is_added: bool,
    pub(crate) range: RangeClause,
}

/// Returns a name as DataFusion reads it: lower case unless quoted.
pub(crate) fn normal(name: &Ident) -> String {
    match name.quote_style {
        Some(_) => name.value.clone(),
        None => name.value.to_lowercase(),
    }
}

/// Parses `(a, b)`.
pub(crate) fn column_list(parser: &mut Parser<'_>) -> SqlResult<Vec<String>> {
    let columns = parser.parse_parenthesized_column_list(IsOptional::Mandatory, false)?;
    Ok(columns.iter().map(normal).collect())
}

/// Parses what follows PARTITION BY.
pub(crate) fn parse(tokens: Vec<TokenWithSpan>) -> SqlResult<PartitionBy> {
    let mut parser = parser_of(tokens);
    let mut partition_by = PartitionBy::default();
    loop {
        let word = parser.parse_identifier()?;
        match word.value.to_uppercase().as_str() {
            "HASH" => {
                let columns = match parser.peek_token().token {
                    Token::LParen => column_list(&mut parser)?,
                    _ => Vec::new(),
                };
                expect_word(&mut parser, "PARTITIONS")?;
                let buckets = parser.parse_literal_uint()?;
                let buckets = u32::try_from(buckets)
                    .map_err(|_| SqlError::new(format!("PARTITIONS {buckets}: too many partitions")))?;
                partition_by.hash.push((columns, buckets));
            }
            "RANGE" if partition_by.range.is_none() => {
                partition_by.range = Some(range_dimension(&mut parser)?);
            }
            _ => return Err(SqlError::new(format!("PARTITION BY {word}: expected HASH, or RANGE once"))),
        }
        if !parser.consume_token(&Token::Comma) {
            expect_end(&parser)?;
            return Ok(partition_by);
        }
    }
}

fn range_dimension(parser: &mut Parser<'_>) -> SqlResult<RangeDimension> {
    let is_range = |parser: &Parser<'_>| has_words(&[parser.peek_nth_token(1)], 0, &["PARTITION"]);
    let mut dimension = RangeDimension { columns: Vec::new(), ranges: Vec::new() };
    if !is_range(parser) && parser.peek_token().token == Token::LParen {
        dimension.columns = column_list(parser)?;
    }
    if !parser.consume_token(&Token::LParen) {
        return Ok(dimension);
    }
    loop {
        expect_word(parser, "PARTITION")?;
        dimension.ranges.push(range(parser)?);
        if !parser.consume_token(&Token::Comma) {
            parser.expect_token(&Token::RParen)?;
            return Ok(dimension);
        }
    }
}

/// Parses `VALUE = 1`, `VALUES < 10`, `0 <= VALUES` or `0 <= VALUES < 10`.
fn range(parser: &mut Parser<'_>) -> SqlResult<RangeClause> {
    let mut clause = RangeClause::default();
    if take_word(parser, "VALUE") {
        parser.expect_token(&Token::Eq)?;
        let bound = RangeBound { values: values(parser)?, is_inclusive: true };
        return Ok(RangeClause { lower: Some(bound.clone()), upper: Some(bound) });
    }
    if !take_word(parser, "VALUES") {
        let values = values(parser)?;
        let is_inclusive = is_inclusive(parser)?;
        clause.lower = Some(RangeBound { values, is_inclusive });
        expect_word(parser, "VALUES")?;
    }
    if matches!(parser.peek_token().token, Token::Lt | Token::LtEq) {
        let is_inclusive = is_inclusive(parser)?;
        clause.upper = Some(RangeBound { values: values(parser)?, is_inclusive });
    }
    Ok(clause)
}

fn is_inclusive(parser: &mut Parser<'_>) -> SqlResult<bool> {
    let next = parser.next_token();
    match next.token {
        Token::Lt => Ok(false),
        Token::LtEq => Ok(true),
        _ => Err(SqlError::new(format!("syntax error: a range has < or <= beside VALUES, found {next}"))),
    }
}

/// Parses `1` or `(1, 'a')`.
fn values(parser: &mut Parser<'_>) -> SqlResult<Vec<String>> {
    let value = |parser: &mut Parser<'_>| {
        let negative = parser.consume_token(&Token::Minus);
        let next = parser.next_token();
        match next.token {
            Token::Number(digits, _) if negative => Ok(format!("-{digits}")),
            Token::Number(text, _) | Token::SingleQuotedString(text) if !negative => Ok(text),
            _ => Err(SqlError::new(format!("syntax error: expected a constant in a range, found {next}"))),
        }
    };
    if !parser.consume_token(&Token::LParen) {
        return Ok(vec![value(parser)?]);
    }
    let mut values = vec![value(parser)?];
    while parser.consume_token(&Token::Comma) {
        values.push(value(parser)?);
    }
    parser.expect_token(&Token::RParen)?;
    Ok(values)
}

fn take_word(parser: &mut Parser<'_>, word: &str) -> bool {
    let found = has_words(&[parser.peek_token()], 0, &[word]);
    if found {
        parser.next_token();
    }
    found
}

fn expect_word(parser: &mut Parser<'_>, word: &str) -> SqlResult<()> {
    let next = parser.peek_token();
    match take_word(parser, word) {
        true => Ok(()),
        false => Err(SqlError::new(format!("syntax error: expected {word}, found {next}"))),
    }
}

/// Parses `ALTER TABLE name ADD|DROP RANGE PARTITION …`; `None` if the tokens are another statement.
pub(crate) fn range_change(tokens: &[TokenWithSpan]) -> SqlResult<Option<RangeChange>> {
    let is_change = |at: usize| {
        has_words(tokens, at, &["ADD", "RANGE", "PARTITION"])
            || has_words(tokens, at, &["DROP", "RANGE", "PARTITION"])
    };
    if !has_words(tokens, 0, &["ALTER", "TABLE"]) || !(0..tokens.len()).any(is_change) {
        return Ok(None);
    }
    let mut parser = parser_of(tokens[2..].to_vec());
    let table = table_name(&parser.parse_object_name(false)?)?;
    let is_added = take_word(&mut parser, "ADD");
    if !is_added {
        expect_word(&mut parser, "DROP")?;
    }
    expect_word(&mut parser, "RANGE")?;
    expect_word(&mut parser, "PARTITION")?;
    let range = range(&mut parser)?;
    expect_end(&parser)?;
    Ok(Some(RangeChange { table, is_added, range }))
}

/// Returns the name of a table; a qualified name is not the name of a table here.
pub(crate) fn table_name(name: &datafusion::logical_expr::sqlparser::ast::ObjectName) -> SqlResult<String> {
    match &name.0[..] {
        [part] if part.as_ident().is_some() => Ok(part.as_ident().map(normal).unwrap_or_default()),
        _ => Err(SqlError::new(format!("table {name}: quote a name that has dots, as in \"db.table\""))),
    }
}

/// Returns a constant as the text of a cell; `None` for NULL.
pub(crate) fn constant(expr: &Expr) -> SqlResult<Option<String>> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(digits, _) => Ok(Some(digits.to_string())),
            Value::SingleQuotedString(text) => Ok(Some(text.clone())),
            Value::Boolean(value) => Ok(Some(value.to_string())),
            Value::Null => Ok(None),
            other => Err(SqlError::new(format!("{other} is not a constant"))),
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => {
            Ok(constant(expr)?.map(|digits| format!("-{digits}")))
        }
        other => Err(SqlError::new(format!("{other} is not a constant"))),
    }
}

impl RangeClause {
    /// Converts the bounds to encoded keys of the range columns.
    pub(crate) fn to_range(&self, columns: &[ColumnSchema]) -> Result<PartitionRange> {
        let lower = match &self.lower {
            None => Vec::new(),
            Some(bound) => key(bound, columns, !bound.is_inclusive)?
                .ok_or_else(|| Error::invalid("no value is above the lower bound of the range"))?,
        };
        let upper = match &self.upper {
            None => Vec::new(),
            Some(bound) => key(bound, columns, bound.is_inclusive)?.unwrap_or_default(),
        };
        PartitionRange::new(lower, upper)
    }
}

/// Encodes a bound, or the key after it. `None` if there is no key after it.
fn key(bound: &RangeBound, columns: &[ColumnSchema], is_next: bool) -> Result<Option<Vec<u8>>> {
    if bound.values.len() != columns.len() {
        let (want, found) = (columns.len(), bound.values.len());
        return Err(Error::invalid(format!("a bound of a range has {found} values for {want} columns")));
    }
    let cell = |(column, value): (&ColumnSchema, &String)| {
        parse_cell(column, value).map_err(|error| error.context(format_args!("column {}", column.name)))
    };
    let mut cells = columns.iter().zip(&bound.values).map(cell).collect::<Result<Vec<_>>>()?;
    if let (true, Some(column), Some(last)) = (is_next, columns.last(), cells.last_mut())
        && !increment_cell(column.ty, column.attributes, last)
    {
        return match columns.len() {
            1 => Ok(None),
            _ => Err(Error::invalid("no value is above a bound of the range; write the bound with <")),
        };
    }
    let mut key = Vec::new();
    encode_key(columns, |index| &cells[index], &mut key);
    Ok(Some(key))
}

/// Returns the range columns of a table.
pub(crate) fn range_columns(schema: &Schema, names: &[String]) -> Result<Vec<ColumnSchema>> {
    let column = |name: &String| match nyala_client::definitions::find(schema, name, "") {
        Ok(column) => Ok(column.clone()),
        // The table that is created has its name in the context of the error.
        Err(error) => Err(Error::invalid(error.message.replacen("table  has", "the table has", 1))),
    };
    names.iter().map(column).collect()
}
