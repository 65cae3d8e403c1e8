//! Limits of depth: a statement becomes trees, and the planner walks, copies and drops them by recursion.
//!
//! ```text
//!   a + b + c + …          one level per operator            ─┐
//!   SELECT … UNION …       one level per SELECT               ├─ refused above a limit, before the stack ends
//!   FROM a JOIN b JOIN c   one level per relation            ─┘
//!   VALUES (…), (…), …     IN (1, 2, …): lists, of any length
//! ```
//!
//! The parser itself limits parentheses and prefix operators. Operators are counted in tokens, because a tree that was
//! parsed is dropped by recursion, too.

use datafusion::logical_expr::sqlparser::keywords::Keyword;
use datafusion::logical_expr::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::error::{SqlError, SqlResult, state};

/// Largest depth, in levels of binary operators. Unoptimized code has stacks for 2,500.
const LEVELS_MAX: usize = 1_800;
/// Levels of a table or SELECT, with its projection, condition and aggregation.
const LEVELS_OF_RELATION: usize = 7;
/// Levels of an operator that is planned by recursion of its own: a cast, IS NULL, LIKE.
const LEVELS_OF_KEYWORD: usize = 3;
/// Largest number of UNION, EXCEPT and INTERSECT in a statement.
const SET_OPERATIONS_MAX: usize = 200;

/// Size of the stack of a thread that runs statements up to these limits. The system provides the pages that are used.
pub const STACK_BYTES: usize = 64 << 20;

/// Levels at one depth of parentheses.
#[derive(Default)]
struct Parentheses {
    /// Levels of the operators since the last comma.
    operators: usize,
    /// Levels of the deepest parentheses since the last comma.
    inner: usize,
    /// Most levels of an item before the last comma.
    before: usize,
}

impl Parentheses {
    fn levels(&self) -> usize {
        self.before.max(self.operators + self.inner)
    }

    /// Begins the next item of a list.
    fn next_item(&mut self) {
        *self = Parentheses { before: self.levels(), ..Parentheses::default() };
    }
}

/// Refuses the tokens of a statement whose tree is too deep. Returns the levels of its expressions.
pub(crate) fn check(tokens: &[TokenWithSpan]) -> SqlResult<usize> {
    let is_set_operation = |token: &&TokenWithSpan| {
        use Keyword::{EXCEPT, INTERSECT, MINUS, UNION};
        matches!(&token.token, Token::Word(word) if [EXCEPT, INTERSECT, MINUS, UNION].contains(&word.keyword))
    };
    let set_operations = tokens.iter().filter(is_set_operation).count();
    if set_operations > SET_OPERATIONS_MAX {
        return Err(too_deep(&format!(
            "{set_operations} UNION, EXCEPT and INTERSECT, at most {SET_OPERATIONS_MAX} are possible; write rows as \
             one VALUES list"
        )));
    }
    match levels(tokens) {
        levels @ 0..=LEVELS_MAX => Ok(levels),
        levels => Err(too_deep(&format!(
            "{levels} levels of operators in one expression, at most {LEVELS_MAX} are possible; use IN (…) or split \
             the statement"
        ))),
    }
}

/// Refuses a statement with too many tables and SELECTs beside its expressions.
pub(crate) fn check_relations(levels: usize, relations: usize) -> SqlResult<()> {
    match levels + relations * LEVELS_OF_RELATION {
        0..=LEVELS_MAX => Ok(()),
        _ => Err(too_deep(&format!(
            "{relations} tables and SELECTs of {LEVELS_OF_RELATION} levels, and {levels} levels of operators, at most \
             {LEVELS_MAX} levels are possible; split the statement"
        ))),
    }
}

fn too_deep(what: &str) -> SqlError {
    SqlError::with_state(state::TOO_COMPLEX, format!("the statement is too deep: {what}"))
}

/// Returns an upper bound of the levels of a statement's expressions.
fn levels(tokens: &[TokenWithSpan]) -> usize {
    let mut open = vec![Parentheses::default()];
    for token in tokens {
        match &token.token {
            Token::LParen | Token::LBracket | Token::LBrace => open.push(Parentheses::default()),
            Token::RParen | Token::RBracket | Token::RBrace => close(&mut open),
            Token::Comma => open.last_mut().map_or((), Parentheses::next_item),
            token => open.last_mut().map_or((), |innermost| innermost.operators += levels_of(token)),
        }
    }
    while open.len() > 1 {
        close(&mut open);
    }
    open.first().map_or(0, Parentheses::levels)
}

/// Ends the innermost parentheses. They have levels, too: those of a subscript, for example.
fn close(open: &mut Vec<Parentheses>) {
    if open.len() < 2 {
        return;
    }
    let inner = open.pop().map_or(0, |innermost| innermost.levels());
    if let Some(innermost) = open.last_mut() {
        innermost.operators += LEVELS_OF_KEYWORD;
        innermost.inner = innermost.inner.max(inner);
    }
}

/// Returns the levels that a token can add to a tree. Literals and names are leaves.
fn levels_of(token: &Token) -> usize {
    use Keyword::{AND, FALSE, NULL, NoKeyword, OR, TRUE};
    match token {
        Token::Word(word) if [NoKeyword, NULL, TRUE, FALSE].contains(&word.keyword) => 0,
        Token::Word(word) if [AND, OR].contains(&word.keyword) => 1,
        Token::Number(..)
        | Token::Char(_)
        | Token::Placeholder(_)
        | Token::SingleQuotedString(_)
        | Token::DoubleQuotedString(_)
        | Token::NationalStringLiteral(_)
        | Token::EscapedStringLiteral(_)
        | Token::HexStringLiteral(_) => 0,
        Token::Plus | Token::Minus | Token::Mul | Token::Div | Token::Mod | Token::StringConcat => 1,
        Token::Eq | Token::Neq | Token::Lt | Token::Gt | Token::LtEq | Token::GtEq => 1,
        _ => LEVELS_OF_KEYWORD,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::prelude::SessionContext;

    use super::super::checked_arithmetic::CheckedArithmetic;
    use super::super::script::{Body, parse};
    use super::super::snapshot::PlanOptions;
    use super::super::tokens::tokens;
    use super::super::{float_literals, session};
    use super::*;

    fn levels_of(sql: &str) -> usize {
        levels(&tokens(sql).expect("tokens"))
    }

    fn refusal(sql: &str) -> String {
        parse(sql).expect_err("too deep").to_string()
    }

    #[test]
    fn chains_count_and_lists_do_not() {
        // SELECT has 3 levels, and parentheses.
        assert_eq!(levels_of("SELECT 1 + 1 + 1"), 3 + 2);
        assert_eq!(levels_of("SELECT a + 1, b + 1 - c * d"), 3 + 1);
        assert_eq!(levels_of("SELECT (a + 1) * (b + 1 + 1) * 2"), 3 + 3 + 3 + 2 + 2);
        assert_eq!(levels_of("SELECT a[1] IS NULL"), 3 + 3 + 3);
        let values =
            |rows: usize| format!("INSERT INTO t VALUES {}", vec!["(1, -2, 'x'::date)"; rows].join(", "));
        assert_eq!(levels_of(&values(2)), levels_of(&values(1000)));
        let list = |items: usize| format!("SELECT a FROM t WHERE a IN ({})", vec!["-1"; items].join(", "));
        assert_eq!(levels_of(&list(2)), levels_of(&list(1000)));
        assert_eq!(levels_of("((((+"), 1 + 4 * 3);
        assert_eq!(levels_of(")))) + 1"), 1);
    }

    /// Plans and runs a query on a thread of the least size, and drops what was made for it.
    fn run(sql: String) {
        let work = move || {
            let parsed = parse(&sql).expect("within the limits").remove(0);
            let Body::Sql(statement) = parsed.clone().body else { panic!("a query") };
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async {
                let context = SessionContext::new_with_config(session::config(PlanOptions::default()));
                context.add_analyzer_rule(Arc::new(CheckedArithmetic));
                let plan = context.state().statement_to_plan(statement).await.expect("a plan");
                let plan = float_literals::rewrite(plan).expect("a plan");
                let frame = context.execute_logical_plan(plan).await.expect("a query");
                frame.collect().await.expect("rows");
            });
        };
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(work).expect("a thread");
        thread.join().expect("rows");
    }

    fn chain(count: usize, link: impl Fn(usize) -> String, between: &str) -> String {
        (0..count).map(link).collect::<Vec<_>>().join(between)
    }

    #[test]
    fn statements_at_the_limits_fit_the_stack() {
        // A SELECT of one relation, and its words.
        let left = LEVELS_MAX - 2 * LEVELS_OF_RELATION - 8 * LEVELS_OF_KEYWORD;
        let of_row =
            |item: &str, condition: &str| run(format!("SELECT {item} FROM (VALUES (1)) AS t(a) {condition}"));
        of_row(&chain(left, |_| "a".to_string(), " + "), "");
        of_row("a", &format!("WHERE {}", chain(left / 2, |at| format!("a = {at}"), " OR ")));
        of_row(&format!("a{}", " IS NULL".repeat(left / LEVELS_OF_KEYWORD)), "");
        of_row(&format!("a{}", "::INT::TEXT".repeat(left / (4 * LEVELS_OF_KEYWORD))), "");
        let relations = LEVELS_MAX / LEVELS_OF_RELATION - 12;
        run(chain(SET_OPERATIONS_MAX, |_| "SELECT 1, 2".to_string(), " UNION ALL "));
        run(format!("SELECT 1 FROM {}", chain(relations, |at| format!("(VALUES (1)) AS t{at}(a)"), ", ")));
        let last = relations / 2 - 1;
        let next = |at: usize| format!("t{} AS (SELECT a + 1 AS a FROM t{at} WHERE a > 0)", at + 1);
        run(format!("WITH t0 AS (SELECT 1 AS a), {} SELECT a FROM t{last}", chain(last, next, ", ")));
    }

    #[test]
    fn a_chain_is_refused_with_its_length() {
        let sum = |terms: usize| format!("SELECT {}", chain(terms, |_| "1".to_string(), " + "));
        assert_eq!(
            refusal(&sum(LEVELS_MAX)),
            "the statement is too deep: 1802 levels of operators in one expression, at most 1800 are possible; use \
             IN (…) or split the statement"
        );
        assert!(refusal(&format!("SELECT 1 {}", "IS NULL ".repeat(100_000))).contains("300003 levels"));
        let unions = chain(SET_OPERATIONS_MAX + 2, |_| "SELECT 1, 2".to_string(), " UNION ALL ");
        assert!(refusal(&unions).contains("201 UNION, EXCEPT and INTERSECT, at most 200"));
        let tables = format!("SELECT 1 FROM {}", chain(300, |_| "t".to_string(), ", "));
        assert!(refusal(&tables).contains("301 tables and SELECTs of 7 levels"));
    }
}
