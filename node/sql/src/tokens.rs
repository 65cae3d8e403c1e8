//! Tokens of SQL: texts without white space, words, parentheses.

use datafusion::logical_expr::sqlparser::dialect::GenericDialect;
use datafusion::logical_expr::sqlparser::keywords::Keyword;
use datafusion::logical_expr::sqlparser::parser::Parser;
use datafusion::logical_expr::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

use super::error::{SqlError, SqlResult};

pub(crate) static DIALECT: GenericDialect = GenericDialect {};

/// Returns true if the text ends with a whole statement or is blank.
pub(crate) fn is_complete(text: &str) -> bool {
    let Ok(tokens) = Tokenizer::new(&DIALECT, text).tokenize() else { return false };
    let last = tokens.iter().rev().find(|token| !matches!(token, Token::Whitespace(_)));
    last.is_none_or(|token| *token == Token::SemiColon)
}

/// Returns the tokens of a text without white space.
pub(crate) fn tokens(text: &str) -> SqlResult<Vec<TokenWithSpan>> {
    let tokens = Tokenizer::new(&DIALECT, text).tokenize_with_location()?.into_iter();
    Ok(tokens.filter(|token| !matches!(token.token, Token::Whitespace(_) | Token::EOF)).collect())
}

/// Returns true if a name needs no quotes in any statement.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let Ok(tokens) = tokens(name) else { return false };
    match &tokens[..] {
        [TokenWithSpan { token: Token::Word(word), .. }] => {
            let is_lower = word.value == name && name.to_lowercase() == name;
            is_lower && word.quote_style.is_none() && word.keyword == Keyword::NoKeyword
        }
        _ => false,
    }
}

/// Returns a parser of tokens.
pub(crate) fn parser_of(tokens: Vec<TokenWithSpan>) -> Parser<'static> {
    Parser::new(&DIALECT).with_tokens_with_locations(tokens)
}

pub(crate) fn expect_end(parser: &Parser<'_>) -> SqlResult<()> {
    let next = parser.peek_token();
    match next.token {
        Token::EOF => Ok(()),
        _ => {
            let at = next.span.start;
            Err(SqlError::new(format!("syntax error: expected ';' or the end, found {next}{at}")))
        }
    }
}

/// Returns true if the tokens from `at` on are these words, not quoted, in any case.
pub(crate) fn has_words(tokens: &[TokenWithSpan], at: usize, words: &[&str]) -> bool {
    let is_word = |(token, word): (&TokenWithSpan, &&str)| match &token.token {
        Token::Word(found) => found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word),
        _ => false,
    };
    tokens.len() >= at + words.len() && tokens[at..].iter().zip(words).all(is_word)
}

/// Returns the positions outside parentheses.
pub(crate) fn top_level(tokens: &[TokenWithSpan]) -> Vec<usize> {
    let mut depth = 0usize;
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            _ if depth == 0 => found.push(at),
            _ => {}
        }
    }
    found
}
