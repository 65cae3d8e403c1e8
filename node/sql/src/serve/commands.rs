//! Statements of the connection instead of the cluster: transactions, SET, SHOW, DISCARD, DEALLOCATE.
//!
//! There are no transactions: a write is applied at once. A block of BEGIN and COMMIT may read; a write in it is
//! refused, because ROLLBACK could not undo it.

use std::sync::Arc;

use datafusion::logical_expr::sqlparser::ast::{
    DiscardObject, Expr, Set, Statement as SqlStatement, TransactionAccessMode, TransactionIsolationLevel,
    TransactionMode, Value,
};
use datafusion::sql::parser::Statement;
use futures_util::stream;
use pgwire::api::Type;
use pgwire::api::portal::Format;
use pgwire::api::results::{DataRowEncoder, FieldInfo, QueryResponse, Response, Tag};
use pgwire::error::PgWireResult;
use pgwire::messages::response::TransactionStatus;

use super::super::error::{SqlError, SqlResult, state};
use super::super::script::{Body, Parsed};

/// Settings with the values that they have or may be set to; `*` is any value.
const SETTINGS: [(&str, &[&str]); 14] = [
    ("application_name", &["*"]),
    ("bytea_output", &["hex"]),
    ("client_encoding", &["UTF8", "utf-8", "unicode"]),
    ("client_min_messages", &["*"]),
    ("datestyle", &["ISO", "ISO, MDY", "ISO, YMD"]),
    ("default_transaction_isolation", &["read committed"]),
    ("extra_float_digits", &["*"]),
    ("intervalstyle", &["postgres"]),
    ("max_identifier_length", &["63"]),
    ("search_path", &["public"]),
    ("server_version", &["16.0"]),
    ("standard_conforming_strings", &["on"]),
    ("timezone", &["UTC", "Etc/UTC", "GMT"]),
    ("transaction_isolation", &["read committed"]),
];

/// Returns the response to a statement of the connection; `None` for others, which may run.
pub(super) fn run(
    parsed: &Parsed,
    status: TransactionStatus,
    store: &dyn StatementStore,
    format: &Format,
) -> SqlResult<Option<Response>> {
    let Body::Sql(statement) = &parsed.body else { return check_write(status).map(|()| None) };
    if let Statement::Reset(_) = statement {
        return Ok(Some(done("RESET")));
    }
    let Statement::Statement(sql) = statement else { return check_alive(status).map(|()| None) };
    match &**sql {
        SqlStatement::Commit { chain: true, .. } | SqlStatement::Rollback { chain: true, .. } => {
            let what = "AND CHAIN is not supported; end the block, then BEGIN another";
            Err(SqlError::with_state(state::NOT_SUPPORTED, what))
        }
        SqlStatement::Commit { .. } if status == TransactionStatus::Error => {
            Ok(Some(Response::TransactionEnd(Tag::new("ROLLBACK"))))
        }
        SqlStatement::Commit { .. } => Ok(Some(Response::TransactionEnd(Tag::new("COMMIT")))),
        SqlStatement::Rollback { savepoint: None, .. } => {
            Ok(Some(Response::TransactionEnd(Tag::new("ROLLBACK"))))
        }
        other => {
            check_alive(status)?;
            run_alive(other, status, store, format)
        }
    }
}

/// Prepared statements and portals of a connection.
pub(super) trait StatementStore {
    /// Removes a statement.
    fn remove(&self, name: &str);
    /// Removes all portals, and all statements that have a name.
    fn remove_all(&self);
}

fn run_alive(
    statement: &SqlStatement,
    status: TransactionStatus,
    store: &dyn StatementStore,
    format: &Format,
) -> SqlResult<Option<Response>> {
    match statement {
        SqlStatement::StartTransaction { modes, modifier, statements, exception, .. } => {
            if modifier.is_some() || !statements.is_empty() || exception.is_some() {
                return Err(refused(&statement.to_string()));
            }
            check_modes(modes, Scope::Block)?;
            Ok(Some(Response::TransactionStart(Tag::new("BEGIN"))))
        }
        SqlStatement::Set(set) => check_setting(set, status).map(|()| Some(done("SET"))),
        SqlStatement::ShowVariable { variable } => {
            let words: Vec<String> = variable.iter().map(|word| word.value.to_lowercase()).collect();
            show(&words.join("_"), format).map(Some)
        }
        SqlStatement::Discard { object_type } => {
            if *object_type == DiscardObject::ALL {
                store.remove_all();
            }
            Ok(Some(done(&format!("DISCARD {object_type}"))))
        }
        SqlStatement::Deallocate { name, .. } => {
            match name.quote_style.is_none() && name.value.eq_ignore_ascii_case("all") {
                true => store.remove_all(),
                false => store.remove(&name.value),
            }
            Ok(Some(done("DEALLOCATE")))
        }
        SqlStatement::Query(_)
        | SqlStatement::ShowTables { .. }
        | SqlStatement::ShowCreate { .. }
        | SqlStatement::ExplainTable { .. } => Ok(None),
        _ => check_write(status).map(|()| None),
    }
}

fn done(tag: &str) -> Response {
    Response::Execution(Tag::new(tag))
}

fn check_alive(status: TransactionStatus) -> SqlResult<()> {
    match status {
        TransactionStatus::Error => {
            let what = "the transaction block has failed; end it by ROLLBACK";
            Err(SqlError::with_state("25P02", what))
        }
        _ => Ok(()),
    }
}

fn check_write(status: TransactionStatus) -> SqlResult<()> {
    check_alive(status)?;
    match status {
        TransactionStatus::Transaction => Err(SqlError::with_state(
            "25006",
            "writes and changes of tables are applied at once, so that a block of BEGIN and COMMIT may only read; run \
             them outside, or switch the client's autocommit on",
        )),
        _ => Ok(()),
    }
}

/// Statements that the modes of a transaction are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Block,
    /// All later blocks and statements of the connection.
    Session,
    /// SET TRANSACTION outside a block.
    Nothing,
}

/// Accepts the modes that statements have anyway: each reads the latest rows, and a block does not write.
fn check_modes(modes: &[TransactionMode], scope: Scope) -> SqlResult<()> {
    use TransactionIsolationLevel::{ReadCommitted, ReadUncommitted};
    for mode in modes {
        match mode {
            TransactionMode::IsolationLevel(ReadCommitted | ReadUncommitted) => {}
            TransactionMode::IsolationLevel(level) => {
                let what = format!(
                    "ISOLATION LEVEL {level} is not supported; each statement reads a snapshot of its own, which is \
                     READ COMMITTED"
                );
                return Err(SqlError::with_state(state::NOT_SUPPORTED, what));
            }
            TransactionMode::AccessMode(TransactionAccessMode::ReadWrite) => {}
            TransactionMode::AccessMode(TransactionAccessMode::ReadOnly) if scope == Scope::Block => {}
            TransactionMode::AccessMode(TransactionAccessMode::ReadOnly) => {
                let what =
                    "READ ONLY is not supported outside a block of BEGIN and COMMIT, where statements write";
                return Err(SqlError::with_state(state::NOT_SUPPORTED, what));
            }
        }
    }
    Ok(())
}

/// Accepts a setting whose value changes nothing here, and refuses others.
fn check_setting(set: &Set, status: TransactionStatus) -> SqlResult<()> {
    let (name, value) = match set {
        Set::SingleAssignment { variable, values, .. } => {
            let values: Vec<String> = values.iter().map(value_text).collect();
            (variable.to_string().to_lowercase(), values.join(", "))
        }
        Set::SetTimeZone { value, .. } => ("timezone".to_string(), value_text(value)),
        Set::SetNames { charset_name, .. } => ("client_encoding".to_string(), charset_name.value.clone()),
        Set::SetTransaction { snapshot: Some(_), .. } => {
            return Err(refused("SET TRANSACTION SNAPSHOT"));
        }
        Set::SetTransaction { modes, snapshot: None, session } => {
            let scope = match (session, status) {
                (true, _) => Scope::Session,
                (false, TransactionStatus::Transaction) => Scope::Block,
                (false, _) => Scope::Nothing,
            };
            return check_modes(modes, scope);
        }
        other => return Err(refused(&other.to_string())),
    };
    let accepted = SETTINGS.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, values)| values);
    let is_accepted = |known: &&str| *known == "*" || known.eq_ignore_ascii_case(&value);
    match value.eq_ignore_ascii_case("default") || accepted.iter().any(is_accepted) {
        true => Ok(()),
        false => Err(refused(&format!("SET {name} = {value}"))),
    }
}

fn refused(what: &str) -> SqlError {
    SqlError::with_state(state::NOT_SUPPORTED, format!("{what} is not supported; leave it out"))
}

fn value_text(value: &Expr) -> String {
    match value {
        Expr::Value(inner) => match &inner.value {
            Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => text.clone(),
            other => other.to_string(),
        },
        other => other.to_string().trim_matches('"').to_string(),
    }
}

fn column(name: &str, format: &Format) -> FieldInfo {
    FieldInfo::new(name.to_string(), None, None, Type::TEXT, format.format_for(0))
}

/// Returns the columns of SHOW; `None` for other statements.
pub(super) fn columns(parsed: &Parsed, format: &Format) -> Option<Vec<FieldInfo>> {
    let Body::Sql(Statement::Statement(sql)) = &parsed.body else { return None };
    match &**sql {
        SqlStatement::ShowVariable { variable } => {
            let words: Vec<String> = variable.iter().map(|word| word.value.to_lowercase()).collect();
            Some(vec![column(&words.join("_"), format)])
        }
        _ => None,
    }
}

/// Returns the one row of SHOW.
fn show(name: &str, format: &Format) -> SqlResult<Response> {
    let name = match name {
        "transaction_isolation_level" => "transaction_isolation",
        "time_zone" => "timezone",
        other => other,
    };
    let Some((_, values)) = SETTINGS.iter().find(|(known, _)| *known == name) else {
        return Err(SqlError::with_state("42704", format!("SHOW {name}: unknown setting")));
    };
    let value = values.first().map_or("", |value| value.trim_matches('*'));
    let fields = Arc::new(vec![column(name, format)]);
    let mut row = DataRowEncoder::new(fields.clone());
    let encoded: PgWireResult<()> = row.encode_field(&value);
    encoded.map_err(|error| SqlError::with_state(state::INTERNAL, error.to_string()))?;
    let mut response = QueryResponse::new(fields, stream::iter([Ok(row.take_row())]));
    response.set_command_tag("SHOW");
    Ok(Response::Query(response))
}
