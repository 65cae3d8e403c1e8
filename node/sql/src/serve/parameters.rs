//! Parameters of prepared statements: their types, and their values as constants of the statement.
//!
//! ```text
//! Parse ── infer: column that a `$1` is written to, else its place in the plan ──► types for the client
//! Bind  ── value, text or binary ── constant() ──► substitute(): `$1` becomes a constant, then the statement runs
//! ```

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Buf;
use datafusion::arrow::datatypes::DataType as ArrowType;
use datafusion::logical_expr::sqlparser::ast::{
    Expr, LimitClause, NamedWindowExpr, Query, Select, SelectItem, SetExpr, Statement as SqlStatement,
    UnaryOperator, Value, VisitMut, VisitorMut, WindowFrameBound, WindowSpec, WindowType,
};
use datafusion::sql::parser::Statement;
use pgwire::api::Type;
use pgwire::api::results::FieldFormat;

use super::super::error::{SqlError, SqlResult, state};
use super::super::executor::Executor;
use super::super::script::{Body, Parsed};
use super::super::tokens::{parser_of, tokens};
use super::encode::pg_type;
use super::numeric;

/// Largest number of parameters, as Postgres has it.
const PARAMETERS_MAX: usize = 65_535;

/// Microseconds from 1970 to 2000, the epoch of binary times.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// Returns the number of the parameters of a statement: the greatest `$n`.
pub(super) fn count(parsed: &Parsed) -> SqlResult<usize> {
    let mut found = Found::default();
    visit(&mut parsed.clone(), &mut found);
    match found.bad {
        Some(name) => {
            Err(SqlError::with_state(state::SYNTAX, format!("parameter {name}: write $1, $2, ...")))
        }
        None => Ok(found.max),
    }
}

/// Returns the number of a placeholder's name.
fn number_of(name: &str) -> Option<usize> {
    let number = name.strip_prefix('$')?.parse().ok()?;
    (1..=PARAMETERS_MAX).contains(&number).then_some(number)
}

/// Returns the number of the parameter that an expression is.
fn parameter(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Placeholder(name) => number_of(name),
            _ => None,
        },
        Expr::Nested(inner) => parameter(inner),
        _ => None,
    }
}

/// Visitor that finds the greatest parameter.
#[derive(Default)]
struct Found {
    max: usize,
    bad: Option<String>,
}

impl VisitorMut for Found {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Value(value) = expr
            && let Value::Placeholder(name) = &value.value
        {
            match number_of(name) {
                Some(number) => self.max = self.max.max(number),
                None => self.bad = Some(name.clone()),
            }
        }
        ControlFlow::Continue(())
    }
}

/// Visitor that replaces parameters. In window frames the planner takes no casts, and in LIMIT and OFFSET no DECIMAL:
/// there an integer is a bare number.
struct Substitution<'a>(&'a BTreeMap<usize, Expr>);

impl Substitution<'_> {
    fn value(&self, expr: &Expr) -> Option<&Expr> {
        parameter(expr).and_then(|number| self.0.get(&number))
    }

    fn put_offsets(&self, window: &mut WindowSpec) {
        let Some(frame) = &mut window.window_frame else { return };
        for bound in std::iter::once(&mut frame.start_bound).chain(&mut frame.end_bound) {
            if let WindowFrameBound::Preceding(Some(offset)) | WindowFrameBound::Following(Some(offset)) =
                bound
                && let Some(value) = self.value(offset)
            {
                **offset = without_type(value);
            }
        }
    }

    fn put_limits(&self, query: &mut Query) {
        for limit in limits(query).into_iter().flatten() {
            if let Some(value) = self.value(limit) {
                *limit = without_type(value);
            }
        }
    }
}

impl VisitorMut for Substitution<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        self.put_limits(query);
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        for named in &mut select.named_window {
            if let NamedWindowExpr::WindowSpec(window) = &mut named.1 {
                self.put_offsets(window);
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr
            && let Some(WindowType::WindowSpec(window)) = &mut function.over
        {
            self.put_offsets(window);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Some(value) = self.value(expr) {
            *expr = value.clone();
        }
        ControlFlow::Continue(())
    }
}

/// Returns a number or NULL without its cast, and without a point at its end; another constant as it is.
fn without_type(constant: &Expr) -> Expr {
    let inner = match constant {
        Expr::Cast { expr, .. } => &**expr,
        other => other,
    };
    let Expr::Value(value) = inner else { return constant.clone() };
    match &value.value {
        Value::Number(digits, _) => number(digits.trim_end_matches('.')),
        Value::Null => null(),
        _ => constant.clone(),
    }
}

/// Returns the expressions of LIMIT and OFFSET, in this order.
fn limits(query: &mut Query) -> [Option<&mut Expr>; 2] {
    match &mut query.limit_clause {
        Some(LimitClause::LimitOffset { limit, offset, .. }) => {
            [limit.as_mut(), offset.as_mut().map(|offset| &mut offset.value)]
        }
        Some(LimitClause::OffsetCommaLimit { offset, limit }) => [Some(limit), Some(offset)],
        None => [None, None],
    }
}

fn visit(parsed: &mut Parsed, visitor: &mut impl VisitorMut<Break = ()>) {
    if let Body::Sql(statement) = &mut parsed.body {
        visit_statement(statement, visitor);
    }
}

fn visit_statement(statement: &mut Statement, visitor: &mut impl VisitorMut<Break = ()>) {
    match statement {
        Statement::Statement(sql) => {
            // A visitor here never breaks.
            let _ = VisitMut::visit(&mut **sql, visitor);
        }
        Statement::Explain(explain) => visit_statement(&mut explain.statement, visitor),
        _ => {}
    }
}

/// Replaces parameters by constants.
pub(super) fn substitute(parsed: &mut Parsed, values: &BTreeMap<usize, Expr>) {
    visit(parsed, &mut Substitution(values));
}

/// Returns the types of the parameters 1 to `count`: the client's, else those of their places, else TEXT.
pub(super) async fn types(
    executor: &Executor,
    parsed: &Parsed,
    count: usize,
    given: &[Option<Type>],
) -> SqlResult<Vec<Type>> {
    let known = |number: usize| given.get(number - 1).cloned().flatten().filter(|ty| *ty != Type::UNKNOWN);
    if (1..=count).all(|number| known(number).is_some()) {
        return Ok((1..=count).filter_map(known).collect());
    }
    let inferred = infer(executor, parsed).await?;
    let ty =
        |number: usize| known(number).or_else(|| inferred.get(&number).map(pg_type)).unwrap_or(Type::TEXT);
    Ok((1..=count).map(ty).collect())
}

/// Returns the types that the places of parameters ask for.
pub(super) async fn infer(executor: &Executor, parsed: &Parsed) -> SqlResult<BTreeMap<usize, ArrowType>> {
    let mut types = BTreeMap::new();
    let mut parsed = parsed.clone();
    visit(&mut parsed, &mut Limits(&mut types));
    if let Some((query, columns)) = executor.written(&parsed).await? {
        let mut query = query;
        if let Statement::Statement(sql) = &query
            && let SqlStatement::Query(query) = &**sql
        {
            positions(&query.body, &columns, &mut types);
        }
        visit_statement(&mut query, &mut Substitution(&nulls(&types)));
        parsed.body = Body::Sql(query);
    } else {
        substitute(&mut parsed, &nulls(&types));
    }
    for (name, ty) in executor.placeholders(&parsed).await? {
        if let (Some(number), Some(ty)) = (number_of(&name), ty) {
            types.entry(number).or_insert(ty);
        }
    }
    Ok(types)
}

/// Returns NULL of its type for each parameter. The result of a statement with them has the columns that it has with
/// values, also if the client has chosen other types than those of their places.
pub(super) fn typed_nulls(types: &[Type]) -> BTreeMap<usize, Expr> {
    (1..).zip(types).filter_map(|(number, ty)| Some((number, typed_null(ty)?))).collect()
}

/// Returns NULL of the type that constants of a numeric parameter have; `None` for another type.
fn typed_null(ty: &Type) -> Option<Expr> {
    let ty = match *ty {
        Type::INT2 => "SMALLINT",
        Type::INT4 => "INT",
        Type::INT8 => "BIGINT",
        Type::FLOAT4 => "REAL",
        Type::FLOAT8 => "DOUBLE",
        // A value has its own digits; the fewest leave those of the other operands as they are.
        Type::NUMERIC => "DECIMAL(1, 0)",
        _ => return None,
    };
    cast(ty, null())
}

fn null() -> Expr {
    Expr::Value(Value::Null.with_empty_span())
}

/// Returns NULL for each parameter whose type is known, so that planning does not depend on it.
fn nulls(types: &BTreeMap<usize, ArrowType>) -> BTreeMap<usize, Expr> {
    types.keys().map(|number| (*number, null())).collect()
}

/// Collects the parameters that are written to columns.
fn positions(body: &SetExpr, columns: &[ArrowType], types: &mut BTreeMap<usize, ArrowType>) {
    let mut add = |expr: &Expr, column: Option<&ArrowType>| {
        if let (Some(number), Some(column)) = (parameter(expr), column) {
            types.entry(number).or_insert_with(|| column.clone());
        }
    };
    match body {
        SetExpr::Values(values) => {
            for row in &values.rows {
                row.iter().enumerate().for_each(|(at, expr)| add(expr, columns.get(at)));
            }
        }
        SetExpr::Select(select) => {
            for (at, item) in select.projection.iter().enumerate() {
                if let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } = item {
                    add(expr, columns.get(at));
                }
            }
        }
        _ => {}
    }
}

/// Visitor that collects the parameters of LIMIT and OFFSET.
struct Limits<'a>(&'a mut BTreeMap<usize, ArrowType>);

impl VisitorMut for Limits<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        for number in limits(query).into_iter().flatten().filter_map(|limit| parameter(limit)) {
            self.0.insert(number, ArrowType::Int64);
        }
        ControlFlow::Continue(())
    }
}

/// Returns a value as a constant of SQL. The error names the parameter.
pub(super) fn constant(
    number: usize,
    ty: &Type,
    format: FieldFormat,
    value: Option<&[u8]>,
) -> SqlResult<Expr> {
    let Some(bytes) = value else { return Ok(typed_null(ty).unwrap_or_else(null)) };
    let text = match format {
        FieldFormat::Text => std::str::from_utf8(bytes).ok().map(str::to_string),
        FieldFormat::Binary => binary_text(ty, bytes),
    };
    let constant = text.and_then(|text| text_constant(ty, &text));
    constant.ok_or_else(|| {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        SqlError::with_state("22P02", format!("parameter ${number}: {shown:?} is not a {ty}"))
    })
}

fn string(text: &str) -> Expr {
    Expr::Value(Value::SingleQuotedString(text.to_string()).with_empty_span())
}

/// Returns a constant from Postgres's text of a value; `None` if it is not of the type.
pub(super) fn text_constant(ty: &Type, text: &str) -> Option<Expr> {
    let trimmed = text.trim();
    match *ty {
        Type::BOOL => {
            let truth = match trimmed.to_lowercase().as_str() {
                "t" | "true" | "on" | "yes" | "1" => true,
                "f" | "false" | "off" | "no" | "0" => false,
                _ => return None,
            };
            Some(Expr::Value(Value::Boolean(truth).with_empty_span()))
        }
        Type::INT2 => typed_number("SMALLINT", trimmed.parse::<i16>().ok()?),
        Type::INT4 => typed_number("INT", trimmed.parse::<i32>().ok()?),
        Type::INT8 | Type::OID => {
            trimmed.parse::<i64>().ok()?;
            Some(number(trimmed))
        }
        Type::NUMERIC => {
            let digits = trimmed.trim_start_matches(['+', '-']);
            let is_number = digits.starts_with(|first: char| first.is_ascii_digit() || first == '.')
                && digits.chars().all(|letter| letter.is_ascii_digit() || letter == '.')
                && digits.parse::<f64>().is_ok();
            is_number.then(|| decimal(trimmed))
        }
        Type::FLOAT4 | Type::FLOAT8 => {
            trimmed.parse::<f64>().ok()?;
            let ty = if *ty == Type::FLOAT4 { "REAL" } else { "DOUBLE" };
            cast(ty, string(trimmed))
        }
        Type::DATE => cast("DATE", string(trimmed)),
        Type::TIMESTAMP => typed(trimmed, "Timestamp(Microsecond, None)"),
        Type::TIMESTAMPTZ => typed(trimmed, "Timestamp(Microsecond, Some(\"+00:00\"))"),
        Type::BYTEA => {
            let hex = match text.strip_prefix("\\x") {
                Some(hex) => hex.to_string(),
                None if !text.contains('\\') => text.bytes().map(|byte| format!("{byte:02x}")).collect(),
                None => return None,
            };
            let is_hex = hex.len() % 2 == 0 && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
            is_hex.then(|| Expr::Value(Value::HexStringLiteral(hex).with_empty_span()))
        }
        _ => Some(string(text)),
    }
}

fn number(text: &str) -> Expr {
    let digits = text.trim_start_matches(['+', '-']).to_string();
    let number = Expr::Value(Value::Number(digits, false).with_empty_span());
    match text.starts_with('-') {
        true => Expr::UnaryOp { op: UnaryOperator::Minus, expr: Box::new(number) },
        false => number,
    }
}

/// Returns a number with a point, which the planner reads as a DECIMAL with all its digits. It would read a BIGINT
/// otherwise.
fn decimal(text: &str) -> Expr {
    match text.contains('.') {
        true => number(text),
        false => number(&format!("{text}.")),
    }
}

/// Returns a number in a cast. Without it the planner would read a BIGINT, and the result have wider columns than those
/// that the client knows.
fn typed_number(ty: &str, value: impl ToString) -> Option<Expr> {
    cast(ty, number(&value.to_string()))
}

/// Returns the cast of an expression to a type of SQL.
fn cast(ty: &str, inner: Expr) -> Option<Expr> {
    let mut parsed = parser_of(tokens(&format!("CAST('' AS {ty})")).ok()?).parse_expr().ok()?;
    let Expr::Cast { expr, .. } = &mut parsed else { return None };
    **expr = inner;
    Some(parsed)
}

/// Returns a call that converts a text to a type of Arrow; it is evaluated when the statement is planned.
fn typed(text: &str, ty: &str) -> Option<Expr> {
    let mut call = parser_of(tokens("arrow_cast($1, $2)").ok()?).parse_expr().ok()?;
    let values = BTreeMap::from([(1, string(text)), (2, string(ty))]);
    let _ = VisitMut::visit(&mut call, &mut Substitution(&values));
    Some(call)
}

/// Returns the text of a binary value; `None` if its length is not that of the type.
fn binary_text(ty: &Type, mut bytes: &[u8]) -> Option<String> {
    let expected = match *ty {
        Type::BOOL => 1,
        Type::INT2 => 2,
        Type::INT4 | Type::FLOAT4 | Type::DATE | Type::OID => 4,
        Type::INT8 | Type::FLOAT8 | Type::TIMESTAMP | Type::TIMESTAMPTZ => 8,
        _ => bytes.len(),
    };
    if bytes.len() != expected {
        return None;
    }
    Some(match *ty {
        Type::BOOL => if bytes.get_u8() == 0 { "f" } else { "t" }.to_string(),
        Type::INT2 => bytes.get_i16().to_string(),
        Type::INT4 => bytes.get_i32().to_string(),
        Type::INT8 => bytes.get_i64().to_string(),
        Type::OID => bytes.get_u32().to_string(),
        Type::FLOAT4 => bytes.get_f32().to_string(),
        Type::FLOAT8 => bytes.get_f64().to_string(),
        Type::NUMERIC => numeric::decode(bytes)?,
        Type::DATE => {
            time_text(i64::from(bytes.get_i32()).checked_mul(86_400_000_000)?)?.get(..10)?.to_string()
        }
        Type::TIMESTAMP => time_text(bytes.get_i64())?,
        Type::TIMESTAMPTZ => format!("{}Z", time_text(bytes.get_i64())?),
        Type::BYTEA => {
            let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
            format!("\\x{}", digits.collect::<String>())
        }
        _ => std::str::from_utf8(bytes).ok()?.to_string(),
    })
}

/// Returns the time `micros` µs after 2000; `None` outside the years 1 to 9999.
fn time_text(micros: i64) -> Option<String> {
    use datafusion::arrow::temporal_conversions::timestamp_us_to_datetime;
    let time = timestamp_us_to_datetime(micros.checked_add(EPOCH_MICROS)?)?;
    let text = time.to_string().replace(' ', "T");
    // Years outside have a sign.
    text.starts_with(|first: char| first.is_ascii_digit()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::super::super::script::parse;
    use super::*;

    fn shown(ty: Type, format: FieldFormat, value: &[u8]) -> String {
        match constant(1, &ty, format, Some(value)) {
            Ok(expr) => expr.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn values_become_constants_of_their_types() {
        let text = |ty, value: &str| shown(ty, FieldFormat::Text, value.as_bytes());
        assert_eq!(text(Type::INT8, "-9223372036854775808"), "-9223372036854775808");
        assert_eq!(text(Type::TEXT, "it's"), "'it''s'");
        assert_eq!(text(Type::NUMERIC, "1.50"), "1.50");
        assert_eq!(text(Type::NUMERIC, " +7"), "7.");
        assert_eq!(text(Type::NUMERIC, "-9223372036854775809"), "-9223372036854775809.");
        assert_eq!(text(Type::FLOAT8, "NaN"), "CAST('NaN' AS DOUBLE)");
        assert_eq!(text(Type::BYTEA, "\\x00ff"), "X'00ff'");
        assert_eq!(text(Type::INT4, "1 OR 1"), "parameter $1: \"1 OR 1\" is not a int4");
        let binary = |ty, value: &[u8]| shown(ty, FieldFormat::Binary, value);
        assert_eq!(binary(Type::INT2, &[0xff, 0xfe]), "CAST(-2 AS SMALLINT)");
        assert_eq!(text(Type::INT4, " +7"), "CAST(7 AS INT)");
        assert_eq!(text(Type::INT4, "2147483648"), "parameter $1: \"2147483648\" is not a int4");
        assert_eq!(binary(Type::DATE, &[0xff, 0xff, 0xff, 0xff]), "CAST('1999-12-31' AS DATE)");
        assert_eq!(
            binary(Type::TIMESTAMPTZ, &[0, 0, 0, 0, 0, 0, 0, 1]),
            "arrow_cast('2000-01-01T00:00:00.000001Z', 'Timestamp(Microsecond, Some(\"+00:00\"))')"
        );
        assert_eq!(binary(Type::INT4, &[1]), "parameter $1: \"\\u{1}\" is not a int4");
    }

    #[test]
    fn parameters_are_counted_and_replaced_everywhere() {
        let sql = "SELECT $2 FROM t WHERE a = $1 AND b IN (SELECT c FROM u WHERE d < $3) LIMIT $1";
        let mut parsed = parse(sql).expect("good SQL").remove(0);
        assert_eq!(count(&parsed).expect("numbers"), 3);
        let values = (1..=3).map(|number| (number, string(&format!("v{number}")))).collect();
        substitute(&mut parsed, &values);
        let Body::Sql(statement) = parsed.body else { panic!("a query") };
        assert_eq!(
            statement.to_string(),
            "SELECT 'v2' FROM t WHERE a = 'v1' AND b IN (SELECT c FROM u WHERE d < 'v3') LIMIT 'v1'"
        );
        let named = parse("SELECT $name").expect("good SQL").remove(0);
        assert_eq!(count(&named).expect_err("a name").to_string(), "parameter $name: write $1, $2, ...");
    }

    #[test]
    fn integers_are_bare_numbers_in_limits_and_window_frames() {
        let typed = |ty: Type, sql: &str, value: Option<&[u8]>| {
            let mut parsed = parse(sql).expect("good SQL").remove(0);
            let constant = constant(1, &ty, FieldFormat::Text, value).expect("a value");
            substitute(&mut parsed, &BTreeMap::from([(1, constant)]));
            let Body::Sql(statement) = parsed.body else { panic!("a query") };
            statement.to_string()
        };
        let replaced = |sql: &str, value: Option<&[u8]>| typed(Type::INT4, sql, value);
        let sql = "SELECT sum(a) OVER (ORDER BY b ROWS BETWEEN $1 PRECEDING AND CURRENT ROW) + $1 FROM t";
        assert_eq!(
            replaced(sql, Some(b"2")),
            "SELECT sum(a) OVER (ORDER BY b ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) + CAST(2 AS INT) FROM t"
        );
        let sql = "SELECT sum(a) OVER w FROM t WINDOW w AS (ORDER BY b ROWS $1 PRECEDING)";
        assert_eq!(replaced(sql, Some(b"2")), sql.replace("$1", "2"));
        assert_eq!(replaced("SELECT $1 + a FROM t", None), "SELECT CAST(NULL AS INT) + a FROM t");
        let sql = "SELECT sum(a) OVER (ORDER BY b ROWS $1 PRECEDING) FROM t WHERE a > $1 LIMIT $1 OFFSET $1";
        assert_eq!(
            typed(Type::NUMERIC, sql, Some(b"2")),
            "SELECT sum(a) OVER (ORDER BY b ROWS 2 PRECEDING) FROM t WHERE a > 2. LIMIT 2 OFFSET 2"
        );
        assert_eq!(
            typed(Type::NUMERIC, "SELECT a FROM t LIMIT $1", None),
            "SELECT a FROM t LIMIT NULL",
            "the planner takes no NULL of a DECIMAL"
        );
    }
}
