//! Postgres's own functions, operators and casts in statements about `pg_catalog`, in DataFusion's terms.
//!
//! A query that reads a relation without rows is replaced by one without rows: such queries use what DataFusion cannot
//! plan. A scalar subquery becomes an aggregate, which is the same for at most one row.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use datafusion::logical_expr::sqlparser::ast::{
    BinaryOperator, CastKind, DataType, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments,
    Ident, ObjectName, ObjectNamePart, Query, Select, SelectItem, SetExpr, Statement as SqlStatement,
    TableFactor, Value, VisitMut, VisitorMut,
};
use datafusion::logical_expr::sqlparser::tokenizer::{Token, TokenWithSpan};
use datafusion::sql::parser::Statement;

use super::super::error::SqlResult;
use super::super::tokens::{parser_of, tokens};
use super::columns::PG_CATALOG;
use super::relations::{EMPTY, FILLED, type_names};

/// Functions and what they become. `$1` is the first argument.
const FUNCTIONS: [(&str, &str); 24] = [
    ("array_to_string", "CAST(NULL AS VARCHAR)"),
    ("col_description", "CAST(NULL AS VARCHAR)"),
    ("current_catalog", "'nyala'"),
    ("current_database", "'nyala'"),
    ("current_schema", "'public'"),
    ("has_any_column_privilege", "TRUE"),
    ("has_database_privilege", "TRUE"),
    ("has_schema_privilege", "TRUE"),
    ("has_table_privilege", "TRUE"),
    ("obj_description", "CAST(NULL AS VARCHAR)"),
    ("pg_encoding_to_char", "'UTF8'"),
    ("pg_function_is_visible", "TRUE"),
    ("pg_get_constraintdef", "$1"),
    ("pg_get_expr", "$1"),
    ("pg_get_indexdef", "$1"),
    ("pg_get_partkeydef", "CAST(NULL AS VARCHAR)"),
    ("pg_get_userbyid", "$1"),
    ("pg_get_viewdef", "CAST(NULL AS VARCHAR)"),
    ("pg_is_in_recovery", "FALSE"),
    ("pg_relation_size", "CAST(0 AS BIGINT)"),
    ("pg_table_is_visible", "TRUE"),
    ("pg_table_size", "CAST(0 AS BIGINT)"),
    ("pg_total_relation_size", "CAST(0 AS BIGINT)"),
    ("pg_type_is_visible", "TRUE"),
];

/// Columns that hold what a function computes from an id, by the function and the id's column.
const DEFINITIONS: [(&str, &str); 2] = [("pg_get_indexdef", "indexdef"), ("pg_get_constraintdef", "condef")];

/// Returns the relations of `pg_catalog` that a statement names; empty if it is not about them.
pub(crate) fn named_relations(tokens: &[TokenWithSpan]) -> BTreeSet<String> {
    let word = |token: &TokenWithSpan| match &token.token {
        Token::Word(word) => Some(word.value.to_lowercase()),
        _ => None,
    };
    let is_known = |name: &String| EMPTY.contains(&name.as_str()) || FILLED.contains(&name.as_str());
    tokens.iter().filter_map(word).filter(is_known).collect()
}

/// Rewrites a statement about `pg_catalog`.
pub(crate) fn rewrite(mut statement: Statement) -> SqlResult<Statement> {
    let Statement::Statement(sql) = &mut statement else { return Ok(statement) };
    if let SqlStatement::Query(query) = &**sql
        && let Some(names) = columns_of_empty(query)
    {
        let column = |(at, name): (usize, &String)| {
            let is_first = names.iter().position(|other| other == name) == Some(at);
            let name = if is_first { name.replace('"', "\"\"") } else { format!("{name}{at}") };
            format!("CAST(NULL AS VARCHAR) AS \"{name}\"")
        };
        let columns: Vec<String> = names.iter().enumerate().map(column).collect();
        let query = parser_of(tokens(&format!("SELECT {} LIMIT 0", columns.join(", ")))?).parse_query()?;
        **sql = SqlStatement::Query(query);
        return Ok(statement);
    }
    let mut rewriter = Rewriter { failed: None };
    let _ = VisitMut::visit(&mut **sql, &mut rewriter);
    match rewriter.failed {
        None => Ok(statement),
        Some(error) => Err(error),
    }
}

/// Returns the names of the columns of a query that reads a relation without rows; `None` for other queries.
fn columns_of_empty(query: &Query) -> Option<Vec<String>> {
    names_of_empty(&query.body)
}

fn names_of_empty(body: &SetExpr) -> Option<Vec<String>> {
    match body {
        SetExpr::Select(select) if reads_empty(select) => select.projection.iter().map(column_name).collect(),
        SetExpr::SetOperation { left, right, .. } => {
            names_of_empty(right)?;
            names_of_empty(left)
        }
        SetExpr::Query(query) => names_of_empty(&query.body),
        _ => None,
    }
}

/// Returns true if rows of the query need a row of a relation that has none. Left joins do not.
fn reads_empty(select: &Select) -> bool {
    let is_empty = |factor: &TableFactor| match factor {
        TableFactor::Table { name, .. } => {
            let name = name.0.last().and_then(ObjectNamePart::as_ident);
            name.is_some_and(|name| EMPTY.contains(&name.value.to_lowercase().as_str()))
        }
        _ => false,
    };
    select.from.iter().any(|from| is_empty(&from.relation))
}

/// Returns the name of a column as Postgres chooses it; `None` for `*`.
fn column_name(item: &SelectItem) -> Option<String> {
    match item {
        SelectItem::ExprWithAlias { alias, .. } => Some(alias.value.clone()),
        SelectItem::UnnamedExpr(Expr::Identifier(name)) => Some(name.value.clone()),
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => {
            parts.last().map(|name| name.value.clone())
        }
        SelectItem::UnnamedExpr(_) => Some("?column?".to_string()),
        _ => None,
    }
}

/// Visitor that rewrites a statement.
struct Rewriter {
    failed: Option<super::super::error::SqlError>,
}

impl VisitorMut for Rewriter {
    type Break = ();

    /// Qualifies the relations, which need no schema in Postgres.
    fn pre_visit_relation(&mut self, relation: &mut ObjectName) -> ControlFlow<()> {
        if let [ObjectNamePart::Identifier(name)] = &relation.0[..]
            && FILLED.contains(&name.value.to_lowercase().as_str())
        {
            let name = Ident::new(name.value.to_lowercase());
            relation.0 =
                vec![ObjectNamePart::Identifier(Ident::new(PG_CATALOG)), ObjectNamePart::Identifier(name)];
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match rewritten(expr) {
            Ok(None) => ControlFlow::Continue(()),
            Ok(Some(new)) => {
                *expr = new;
                ControlFlow::Continue(())
            }
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}

/// Returns what an expression becomes; `None` if it stays.
fn rewritten(expr: &mut Expr) -> SqlResult<Option<Expr>> {
    match expr {
        Expr::Collate { expr, .. } => Ok(Some((**expr).clone())),
        Expr::BinaryOp { op, .. } => {
            if let BinaryOperator::PGCustomBinaryOperator(parts) = op
                && let Some(known) = parts.last().and_then(|name| operator(name))
            {
                *op = known;
            }
            Ok(None)
        }
        Expr::Cast { kind: CastKind::DoubleColon | CastKind::Cast, data_type, .. } => {
            if is_name_type(data_type) {
                *data_type = DataType::Varchar(None);
            }
            Ok(None)
        }
        Expr::Subquery(query) => scalar(query),
        Expr::Function(function) => call(function),
        _ => Ok(None),
    }
}

fn operator(name: &str) -> Option<BinaryOperator> {
    Some(match name {
        "~" => BinaryOperator::PGRegexMatch,
        "~*" => BinaryOperator::PGRegexIMatch,
        "!~" => BinaryOperator::PGRegexNotMatch,
        "!~*" => BinaryOperator::PGRegexNotIMatch,
        "=" => BinaryOperator::Eq,
        "<>" => BinaryOperator::NotEq,
        "~~" => BinaryOperator::PGLikeMatch,
        _ => return None,
    })
}

/// Returns true for types whose values are texts here.
fn is_name_type(ty: &DataType) -> bool {
    const NAMES: [&str; 7] = ["text", "name", "char", "regtype", "regproc", "regnamespace", "regrole"];
    match ty {
        DataType::Regclass => true,
        DataType::Custom(name, _) => {
            let last = name.0.last().and_then(ObjectNamePart::as_ident);
            last.is_some_and(|last| {
                let last = last.value.to_lowercase();
                last == "regclass" || NAMES.contains(&last.as_str())
            })
        }
        _ => false,
    }
}

/// Makes a scalar subquery an aggregate.
fn scalar(query: &mut Query) -> SqlResult<Option<Expr>> {
    if names_of_empty(&query.body).is_some() {
        return parsed("CAST(NULL AS VARCHAR)").map(Some);
    }
    if let SetExpr::Select(select) = &mut *query.body
        && let [SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }] =
            &mut select.projection[..]
    {
        let mut aggregate = parsed("max($1)")?;
        let _ = VisitMut::visit(&mut aggregate, &mut Argument(expr.clone()));
        *expr = aggregate;
        // A column of the outer query alone would keep the subquery from becoming a join. A default implies it.
        if let Some(condition) = &mut select.selection {
            let _ = VisitMut::visit(condition, &mut HasDefault);
        }
    }
    Ok(None)
}

/// Visitor that replaces `atthasdef` by TRUE.
struct HasDefault;

impl VisitorMut for HasDefault {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::CompoundIdentifier(parts) = expr
            && parts.last().is_some_and(|name| name.value == "atthasdef")
        {
            *expr = Expr::Value(Value::Boolean(true).with_empty_span());
        }
        ControlFlow::Continue(())
    }
}

/// Returns what a call of a function becomes.
fn call(function: &mut Function) -> SqlResult<Option<Expr>> {
    let Some(name) = function.name.0.last().and_then(ObjectNamePart::as_ident) else { return Ok(None) };
    let name = name.value.to_lowercase();
    let mut arguments = arguments(&function.args);
    if name == "format_type" {
        return type_text(&arguments).map(Some);
    }
    let Some((_, template)) = FUNCTIONS.iter().find(|(known, _)| *known == name) else {
        if function.name.0.len() == 2 {
            // Postgres's own schema of functions; DataFusion has none.
            function.name.0.remove(0);
        }
        return Ok(None);
    };
    if let Some((_, column)) = DEFINITIONS.iter().find(|(known, _)| *known == name)
        && let Some(Expr::CompoundIdentifier(parts)) = arguments.first_mut()
        && let Some(last) = parts.last_mut()
    {
        *last = Ident::new(*column);
    }
    let mut expr = parsed(template)?;
    if let Some(argument) = arguments.into_iter().next() {
        let _ = VisitMut::visit(&mut expr, &mut Argument(argument));
    }
    Ok(Some(expr))
}

fn arguments(arguments: &FunctionArguments) -> Vec<Expr> {
    let FunctionArguments::List(list) = arguments else { return Vec::new() };
    let expr = |argument: &FunctionArg| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr.clone()),
        _ => None,
    };
    list.args.iter().filter_map(expr).collect()
}

/// Returns the SQL name of a type, from its id and modifier.
fn type_text(arguments: &[Expr]) -> SqlResult<Expr> {
    let (Some(id), Some(modifier)) = (arguments.first(), arguments.get(1)) else {
        return parsed("CAST(NULL AS VARCHAR)");
    };
    let cases = type_names().map(|(id, name)| format!("WHEN {id} THEN '{name}'"));
    let cases = cases.collect::<Vec<_>>().join(" ");
    parsed(&format!(
        "CASE {id} {cases} ELSE '???' END || CASE WHEN {modifier} < 4 THEN ''
         WHEN {id} = 1700 THEN '(' || CAST(({modifier} - 4) / 65536 AS VARCHAR) || ',' ||
           CAST(({modifier} - 4) % 65536 AS VARCHAR) || ')'
         ELSE '(' || CAST({modifier} - 4 AS VARCHAR) || ')' END"
    ))
}

fn parsed(text: &str) -> SqlResult<Expr> {
    Ok(parser_of(tokens(text)?).parse_expr()?)
}

/// Visitor that replaces `$1` by an expression.
struct Argument(Expr);

impl VisitorMut for Argument {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let is_placeholder =
            matches!(expr, Expr::Value(value) if value.value == Value::Placeholder("$1".to_string()));
        if is_placeholder {
            *expr = self.0.clone();
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::parser::DFParser;

    fn shown(sql: &str) -> String {
        let mut statements = DFParser::parse_sql(sql).expect("good SQL");
        rewrite(statements.pop_front().expect("a statement")).expect("a statement").to_string()
    }

    #[test]
    fn statements_of_psql_are_rewritten() {
        let sql = "SELECT pg_catalog.pg_get_userbyid(c.relowner) FROM pg_class c
                   WHERE c.relname OPERATOR(pg_catalog.~) '^(t)$' COLLATE pg_catalog.default
                   AND pg_catalog.pg_table_is_visible(c.oid)";
        assert_eq!(
            shown(sql),
            "SELECT c.relowner FROM pg_catalog.pg_class c WHERE c.relname ~ '^(t)$' AND true"
        );
        let sql =
            "SELECT (SELECT pg_catalog.pg_get_expr(d.adbin, d.adrelid, true) FROM pg_catalog.pg_attrdef d
                   WHERE d.adrelid = a.attrelid AND a.atthasdef) FROM pg_catalog.pg_attribute a";
        assert_eq!(
            shown(sql),
            "SELECT (SELECT max(d.adbin) FROM pg_catalog.pg_attrdef d WHERE d.adrelid = a.attrelid AND true) FROM \
             pg_catalog.pg_attribute a"
        );
        let sql = "SELECT pg_catalog.pg_get_indexdef(i.indexrelid, 0, true) FROM pg_catalog.pg_index i";
        assert_eq!(shown(sql), "SELECT i.indexdef FROM pg_catalog.pg_index i");
    }

    #[test]
    fn a_query_of_a_relation_without_rows_has_none() {
        let sql = "SELECT p.polname, 'd' = any(p.polroles) AS d, NULL, NULL FROM pg_catalog.pg_policy p";
        assert_eq!(
            shown(sql),
            "SELECT CAST(NULL AS VARCHAR) AS \"polname\", CAST(NULL AS VARCHAR) AS \"d\", CAST(NULL AS VARCHAR) AS \
             \"?column?\", CAST(NULL AS VARCHAR) AS \"?column?3\" LIMIT 0"
        );
    }
}
