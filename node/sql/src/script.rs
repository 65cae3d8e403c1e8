//! Scripts split into statements, with the clauses that DataFusion's grammar lacks.
//!
//! ```text
//! script ── tokens ── one list per statement (depth) ─┬─ cut out: AS OF, PARTITION BY, PRIMARY KEY, COMMENT, ENCODING
//!                                                     └─ the rest: DataFusion's parser ── guard
//! ```

use std::collections::BTreeSet;

use datafusion::logical_expr::sqlparser::keywords::Keyword;
use datafusion::logical_expr::sqlparser::tokenizer::{Token, TokenWithSpan, Word};
use datafusion::sql::parser::{DFParserBuilder, Statement};

use super::error::{SqlError, SqlResult, state};
use super::partition::{self, PartitionBy, RangeChange};
use super::tokens::{DIALECT, expect_end, has_words, parser_of, tokens, top_level};
use super::{depth, guard, pg_catalog};

/// A statement with its additional clauses.
#[derive(Debug, Clone)]
pub(crate) struct Parsed {
    pub(crate) body: Body,
    pub(crate) clauses: Clauses,
}

/// A statement of DataFusion's grammar, or one of Kudu's own.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    Sql(Statement),
    RangeChange(RangeChange),
}

/// Clauses that DataFusion's grammar lacks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clauses {
    pub(crate) as_of: Option<AsOf>,
    pub(crate) partition_by: PartitionBy,
    /// Columns of a PRIMARY KEY clause outside the list of columns.
    pub(crate) primary_key: Vec<String>,
    pub(crate) attributes: Vec<ColumnAttribute>,
    /// Comment on a new table.
    pub(crate) comment: Option<String>,
    /// Relations of `pg_catalog` that the statement names.
    pub(crate) pg_relations: BTreeSet<String>,
    /// True if the statement names the information schema.
    pub(crate) needs_table_names: bool,
}

/// Snapshot that a statement asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AsOf {
    /// Time in UTC.
    Time(String),
    /// Hybrid timestamp.
    Timestamp(u64),
}

/// Attribute of a column in CREATE TABLE, such as `ENCODING dict`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ColumnAttribute {
    /// Position of the definition in the list of columns.
    pub(crate) index: usize,
    /// `encoding=dict`, `compression=lz4` or `immutable`, as definitions on the command line have it.
    pub(crate) text: String,
}

/// Parses all statements. Nothing of a script with a syntax error runs.
pub(crate) fn parse(script: &str) -> SqlResult<Vec<Parsed>> {
    split(script)?.into_iter().map(parse_statement).collect()
}

fn split(script: &str) -> SqlResult<Vec<Vec<TokenWithSpan>>> {
    let tokens = tokens(script)?;
    let statements = tokens.split(|token| token.token == Token::SemiColon);
    Ok(statements.filter(|tokens| !tokens.is_empty()).map(<[_]>::to_vec).collect())
}

fn parse_statement(mut tokens: Vec<TokenWithSpan>) -> SqlResult<Parsed> {
    let levels = depth::check(&tokens)?;
    upsert_as_replace(&mut tokens);
    number_parameters(&mut tokens);
    let mut clauses = Clauses { as_of: take_as_of(&mut tokens)?, ..Clauses::default() };
    if let Some(change) = partition::range_change(&tokens)? {
        return Ok(Parsed { body: Body::RangeChange(change), clauses });
    }
    if has_words(&tokens, 0, &["CREATE", "TABLE"]) {
        take_attributes(&mut tokens, &mut clauses.attributes);
        take_table_clauses(&mut tokens, &mut clauses)?;
    }
    if has_words(&tokens, 0, &["COPY"]) {
        return parse_copy(tokens, clauses, levels);
    }
    clauses.needs_table_names = (0..tokens.len()).any(|at| has_words(&tokens, at, &["information_schema"]));
    clauses.pg_relations = pg_catalog::named_relations(&tokens);
    let mut parser = DFParserBuilder::new("").with_dialect(&DIALECT).build()?;
    parser.parser = parser_of(tokens);
    let statement = parser.parse_statement()?;
    expect_end(&parser.parser)?;
    guard::check(&statement, levels)?;
    let statement = match clauses.pg_relations.is_empty() {
        true => statement,
        false => pg_catalog::rewrite(statement)?,
    };
    Ok(Parsed { body: Body::Sql(statement), clauses })
}

/// Numbers the parameters `?` of a statement, as JDBC writes them.
fn number_parameters(tokens: &mut [TokenWithSpan]) {
    let mut number = 0;
    for token in tokens {
        if let Token::Placeholder(name) = &mut token.token
            && name == "?"
        {
            number += 1;
            *name = format!("${number}");
        }
    }
}

/// Parses COPY as Postgres has it; DataFusion's has another grammar.
fn parse_copy(tokens: Vec<TokenWithSpan>, clauses: Clauses, levels: usize) -> SqlResult<Parsed> {
    let is_stream = |at: usize| ["STDIN", "STDOUT"].iter().any(|word| has_words(&tokens, at, &[word]));
    if top_level(&tokens).into_iter().any(is_stream) {
        let what = "COPY with STDIN or STDOUT is not supported; name a file, as in COPY t TO 'rows.parquet'";
        return Err(SqlError::with_state(state::NOT_SUPPORTED, what));
    }
    let mut parser = parser_of(tokens);
    let statement = parser.parse_statement()?;
    expect_end(&parser)?;
    let statement = Statement::Statement(Box::new(statement));
    guard::check(&statement, levels)?;
    Ok(Parsed { body: Body::Sql(statement), clauses })
}

/// Replaces the word UPSERT by REPLACE, which DataFusion's grammar has.
fn upsert_as_replace(tokens: &mut [TokenWithSpan]) {
    let is_prefix =
        |at: &usize| ["EXPLAIN", "ANALYZE", "VERBOSE"].iter().any(|word| has_words(tokens, *at, &[word]));
    let first = (0..tokens.len()).find(|at| !is_prefix(at));
    if let Some(at) = first.filter(|at| has_words(tokens, *at, &["UPSERT"])) {
        let word = Word { value: "REPLACE".to_string(), quote_style: None, keyword: Keyword::REPLACE };
        tokens[at].token = Token::Word(word);
    }
}

/// Cuts out `[FOR SYSTEM_TIME] AS OF [SYSTEM TIME | TIMESTAMP] 'time' | number`.
fn take_as_of(tokens: &mut Vec<TokenWithSpan>) -> SqlResult<Option<AsOf>> {
    let outside = query_level(tokens);
    let mut found = None;
    for at in (0..tokens.len()).rev() {
        let Some((as_of, end)) = as_of_at(tokens, at) else { continue };
        if found.is_some() || !outside.contains(&at) {
            return Err(SqlError::new(
                "AS OF applies to all tables of a statement; write it once, after the whole query",
            ));
        }
        let start = match at >= 2 && has_words(tokens, at - 2, &["FOR", "SYSTEM_TIME"]) {
            true => at - 2,
            false => at,
        };
        tokens.drain(start..end);
        found = Some(as_of);
    }
    Ok(found)
}

/// Returns the positions that belong to the whole query, which is in parentheses in `COPY (query) TO`.
fn query_level(tokens: &[TokenWithSpan]) -> Vec<usize> {
    match tokens.get(1).map(|token| &token.token) {
        Some(Token::LParen) if has_words(tokens, 0, &["COPY"]) => {
            top_level(&tokens[2..]).into_iter().map(|at| at + 2).collect()
        }
        _ => top_level(tokens),
    }
}

/// Returns the value of an AS OF clause at this position, and its end.
fn as_of_at(tokens: &[TokenWithSpan], at: usize) -> Option<(AsOf, usize)> {
    if !has_words(tokens, at, &["AS", "OF"]) {
        return None;
    }
    let mut value = at + 2;
    for words in [&["SYSTEM", "TIME"][..], &["TIMESTAMP"][..]] {
        if has_words(tokens, value, words) {
            value += words.len();
        }
    }
    let as_of = match &tokens.get(value)?.token {
        Token::SingleQuotedString(text) => AsOf::Time(text.clone()),
        Token::Number(digits, _) => AsOf::Timestamp(digits.parse().ok()?),
        _ => return None,
    };
    Some((as_of, value + 1))
}

/// Cuts `ENCODING word`, `COMPRESSION word` and `IMMUTABLE` out of the list of columns.
fn take_attributes(tokens: &mut Vec<TokenWithSpan>, attributes: &mut Vec<ColumnAttribute>) {
    let (mut depth, mut index, mut at) = (0usize, 0, 0);
    while at < tokens.len() {
        let begins = matches!(tokens[at].token, Token::LParen | Token::Comma);
        match tokens[at].token {
            Token::LParen => depth += 1,
            Token::RParen if depth == 1 => return,
            Token::RParen => depth = depth.saturating_sub(1),
            Token::Comma if depth == 1 => index += 1,
            _ => {}
        }
        at += 1;
        if depth != 1 || begins {
            continue;
        }
        // The token before is not the beginning of a definition, so this is no name of a column.
        while let Some((text, words)) = attribute_at(tokens, at) {
            attributes.push(ColumnAttribute { index, text });
            tokens.drain(at..at + words);
        }
    }
}

fn attribute_at(tokens: &[TokenWithSpan], at: usize) -> Option<(String, usize)> {
    if has_words(tokens, at, &["IMMUTABLE"]) {
        return Some(("immutable".to_string(), 1));
    }
    let name = ["ENCODING", "COMPRESSION"].into_iter().find(|name| has_words(tokens, at, &[name]))?;
    let Token::Word(word) = &tokens.get(at + 1)?.token else { return None };
    let value = word.value.to_lowercase();
    let value = value.strip_suffix("_encoding").unwrap_or(&value);
    Some((format!("{}={value}", name.to_lowercase()), 2))
}

/// Cuts out what follows the list of columns: `PRIMARY KEY (…)`, `PARTITION BY …`, `COMMENT '…'`, `STORED AS KUDU`.
fn take_table_clauses(tokens: &mut Vec<TokenWithSpan>, clauses: &mut Clauses) -> SqlResult<()> {
    let find = |tokens: &[TokenWithSpan], words: &[&str]| {
        let outside = top_level(tokens);
        let query = outside.iter().position(|at| is_query(tokens, *at)).unwrap_or(outside.len());
        outside[..query].iter().copied().find(|at| has_words(tokens, *at, words))
    };
    if let Some(at) = find(tokens, &["STORED", "AS", "KUDU"]) {
        tokens.drain(at..at + 3);
    }
    if let Some(at) = find(tokens, &["COMMENT"])
        && let Some(Token::SingleQuotedString(text)) = tokens.get(at + 1).map(|next| &next.token)
    {
        clauses.comment = Some(text.clone());
        tokens.drain(at..at + 2);
    }
    if let Some(at) = find(tokens, &["PRIMARY", "KEY"]) {
        let end = tokens[at..].iter().position(|token| token.token == Token::RParen);
        let end = end.map_or(tokens.len(), |length| at + length + 1);
        let clause = tokens.drain(at..end).skip(2).collect();
        clauses.primary_key = partition::column_list(&mut parser_of(clause))?;
    }
    if let Some(at) = find(tokens, &["PARTITION", "BY"]) {
        let ends = |at: &usize| {
            let words = ["TBLPROPERTIES", "WITH"];
            is_query(tokens, *at) || words.iter().any(|word| has_words(tokens, *at, &[word]))
        };
        let end = top_level(tokens).into_iter().filter(|found| *found > at).find(ends);
        let end = end.unwrap_or(tokens.len());
        let clause = tokens.drain(at..end).skip(2).collect();
        clauses.partition_by = partition::parse(clause)?;
    }
    Ok(())
}

/// Returns true if a query of CREATE TABLE AS begins here.
fn is_query(tokens: &[TokenWithSpan], at: usize) -> bool {
    let starts = ["SELECT", "WITH", "VALUES", "TABLE", "FROM"];
    let is_paren = tokens.get(at + 1).is_some_and(|token| token.token == Token::LParen);
    has_words(tokens, at, &["AS"])
        && (is_paren || starts.iter().any(|word| has_words(tokens, at + 1, &[word])))
}
