//! Refusal of clauses that sqlparser reads and the planner ignores, and of plans that are too deep.
//!
//! A clause that narrows or changes a result must not be dropped: `DELETE FROM t PARTITION (p)` would delete all rows.
//! Structs of sqlparser are taken apart field by field, so that a clause of a new version does not compile here.

use std::ops::ControlFlow;

use datafusion::logical_expr::sqlparser::ast::{
    GroupByExpr, GroupByWithModifier, OrderByKind, Query, Select, SetExpr, Statement as SqlStatement,
    TableFactor, Visit, Visitor,
};
use datafusion::sql::parser::Statement;

use super::depth;
use super::error::{SqlError, SqlResult, state};

/// Refuses a statement that has clauses which would be ignored, or too many relations. `levels` are those of its
/// expressions.
pub(crate) fn check(statement: &Statement, levels: usize) -> SqlResult<()> {
    match statement {
        Statement::Statement(statement) => check_sql(statement, levels),
        Statement::Explain(explain) => check(&explain.statement, levels),
        // The executor refuses the others.
        _ => Ok(()),
    }
}

fn check_sql(statement: &SqlStatement, levels: usize) -> SqlResult<()> {
    let mut finder = Finder::default();
    match statement.visit(&mut finder) {
        ControlFlow::Continue(()) => depth::check_relations(levels, finder.relations),
        ControlFlow::Break(error) => Err(error),
    }
}

/// Returns the first clause that is used.
pub(crate) fn used_clause<'a>(clauses: &[(bool, &'a str)]) -> Option<&'a str> {
    clauses.iter().find(|(is_used, _)| *is_used).map(|(_, clause)| *clause)
}

/// Returns the clause of a table's name that would be ignored; `None` for other relations.
pub(crate) fn ignored_of_table(factor: &TableFactor) -> Option<&'static str> {
    match factor {
        TableFactor::Table {
            name: _,
            alias,
            args,
            with_hints,
            version,
            with_ordinality,
            partitions,
            json_path,
            sample,
            index_hints,
        } => used_clause(&[
            (sample.is_some(), "TABLESAMPLE"),
            (!partitions.is_empty(), "PARTITION after the name of a table"),
            (!with_hints.is_empty(), "WITH (…) after the name of a table"),
            (!index_hints.is_empty(), "an index hint"),
            (version.is_some(), "a version of a table"),
            (*with_ordinality, "WITH ORDINALITY"),
            (json_path.is_some(), "a path after the name of a table"),
            (args.as_ref().is_some_and(|args| args.settings.is_some()), "SETTINGS"),
            (alias.as_ref().is_some_and(|alias| alias.at.is_some()), "AT after the alias of a table"),
        ]),
        _ => None,
    }
}

fn ignored_of_relation(factor: &TableFactor) -> Option<&'static str> {
    match factor {
        TableFactor::Derived { lateral: _, subquery: _, alias: _, sample: Some(_) } => Some("TABLESAMPLE"),
        TableFactor::Function { with_ordinality: true, .. } => Some("WITH ORDINALITY"),
        other => ignored_of_table(other),
    }
}

fn ignored_of_select(select: &Select) -> Option<&'static str> {
    let Select {
        select_token: _,
        // Hints are comments.
        optimizer_hints: _,
        distinct: _,
        select_modifiers,
        top: _,
        top_before_distinct: _,
        projection: _,
        exclude,
        into: _,
        from: _,
        lateral_views: _,
        prewhere,
        selection: _,
        connect_by,
        group_by,
        cluster_by: _,
        distribute_by: _,
        sort_by: _,
        having: _,
        named_window: _,
        qualify: _,
        window_before_qualify: _,
        value_table_mode,
        flavor: _,
    } = select;
    let (GroupByExpr::All(modifiers) | GroupByExpr::Expressions(_, modifiers)) = group_by;
    let modifier = modifiers.first().map(|modifier| match modifier {
        GroupByWithModifier::Rollup => "GROUP BY … WITH ROLLUP",
        GroupByWithModifier::Cube => "GROUP BY … WITH CUBE",
        GroupByWithModifier::Totals => "GROUP BY … WITH TOTALS",
        GroupByWithModifier::GroupingSets(_) => "GROUPING SETS after a list",
    });
    modifier.or_else(|| {
        used_clause(&[
            (
                select_modifiers.as_ref().is_some_and(|modifiers| modifiers.is_any_set()),
                "a modifier of SELECT",
            ),
            (exclude.is_some(), "EXCLUDE after the columns"),
            (prewhere.is_some(), "PREWHERE"),
            (!connect_by.is_empty(), "CONNECT BY or START WITH"),
            (value_table_mode.is_some(), "SELECT AS"),
        ])
    })
}

fn ignored_of_query(query: &Query) -> Option<&'static str> {
    let Query {
        with: _,
        body,
        order_by,
        limit_clause: _,
        fetch: _,
        locks,
        for_clause,
        settings,
        format_clause,
        pipe_operators: _,
    } = query;
    let orders_by_all = order_by.as_ref().is_some_and(|order| matches!(order.kind, OrderByKind::All(_)));
    used_clause(&[
        (!locks.is_empty(), "FOR UPDATE or FOR SHARE"),
        (for_clause.is_some(), "FOR XML, FOR JSON or FOR BROWSE"),
        (settings.is_some(), "SETTINGS"),
        (format_clause.is_some(), "FORMAT"),
        (orders_by_all && !matches!(**body, SetExpr::Select(_)), "ORDER BY ALL after UNION"),
    ])
}

/// Visitor that ends at a clause that would be ignored, and counts what makes plans deep.
#[derive(Default)]
struct Finder {
    relations: usize,
}

fn refuse(clause: Option<&'static str>) -> ControlFlow<SqlError> {
    let Some(clause) = clause else { return ControlFlow::Continue(()) };
    let advice = match clause {
        "TABLESAMPLE" => "a condition on a hash of the key selects a part of the rows",
        "GROUP BY … WITH ROLLUP" => "write GROUP BY ROLLUP (…)",
        "GROUP BY … WITH CUBE" => "write GROUP BY CUBE (…)",
        "GROUPING SETS after a list" => "write GROUP BY GROUPING SETS (…)",
        _ => "leave it out",
    };
    let what = format!("{clause} is not supported; {advice}");
    ControlFlow::Break(SqlError::with_state(state::NOT_SUPPORTED, what))
}

impl Visitor for Finder {
    type Break = SqlError;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<SqlError> {
        self.relations += query.pipe_operators.len();
        refuse(ignored_of_query(query))
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<SqlError> {
        self.relations += 1;
        refuse(ignored_of_select(select))
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<SqlError> {
        self.relations += 1;
        refuse(ignored_of_relation(factor))
    }
}

#[cfg(test)]
mod tests {
    use super::super::script::parse;

    fn refusal(sql: &str) -> String {
        parse(sql).err().map_or_else(|| "accepted".to_string(), |error| error.to_string())
    }

    #[test]
    fn clauses_that_would_be_ignored_are_refused() {
        let refused = [
            ("DELETE FROM t PARTITION (p1)", "PARTITION after the name of a table"),
            ("DELETE FROM t WITH (NOLOCK) WHERE k = 1", "WITH (…) after the name of a table"),
            ("UPDATE t PARTITION (p1) SET a = 1", "PARTITION after the name of a table"),
            ("SELECT * FROM (SELECT * FROM t PARTITION (p1)) AS s", "PARTITION after the name of a table"),
            ("EXPLAIN SELECT * FROM t TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"),
            ("SELECT * FROM t PREWHERE a = 1", "PREWHERE"),
            ("SELECT * FROM t START WITH a = 1 CONNECT BY PRIOR a = b", "CONNECT BY or START WITH"),
            ("SELECT a FROM t GROUP BY a WITH ROLLUP", "GROUP BY … WITH ROLLUP"),
            ("SELECT a FROM t GROUP BY a WITH TOTALS", "GROUP BY … WITH TOTALS"),
            ("SELECT a FROM t FOR UPDATE", "FOR UPDATE or FOR SHARE"),
            ("INSERT INTO u SELECT a FROM t PREWHERE a = 1", "PREWHERE"),
            ("SELECT a FROM t SETTINGS x = 1", "SETTINGS"),
        ];
        for (sql, clause) in refused {
            let refusal = refusal(sql);
            assert!(refusal.starts_with(clause) && refusal.contains("is not supported"), "{sql}: {refusal}");
        }
        for sql in
            ["SELECT a FROM t GROUP BY ROLLUP (a)", "SELECT DISTINCT a FROM t AS x ORDER BY ALL LIMIT 1"]
        {
            assert_eq!(refusal(sql), "accepted", "{sql}");
        }
    }
}
