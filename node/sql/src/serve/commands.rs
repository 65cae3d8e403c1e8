//! Statements of the connection instead of the cluster: transactions, SET, SHOW, DISCARD, DEALLOCATE.
//!
//! There are no transactions: a write is applied at once. A block of BEGIN and COMMIT may read; a write in it is
//! refused, because ROLLBACK could not undo it.

use std::sync::Arc;

use datafusion::logical_expr::sqlparser::ast::{
    ContextModifier, DiscardObject, Expr, Set, Statement as SqlStatement, TransactionAccessMode,
    TransactionIsolationLevel, TransactionMode, Value,
};
use datafusion::sql::parser::{ResetStatement, Statement};
use futures_util::stream;
use pgwire::api::Type;
use pgwire::api::portal::Format;
use pgwire::api::results::{DataRowEncoder, FieldInfo, QueryResponse, Response, Tag};
use pgwire::error::PgWireResult;
use pgwire::messages::response::TransactionStatus;

use super::super::error::{SqlError, SqlResult, state};
use super::super::script::{Body, Parsed};
use super::settings::{ConnectionSettings, SettingScope, refused};

/// Returns the response to a statement of the connection; `None` for others, which may run.
pub(super) fn run(
    parsed: &Parsed,
    status: TransactionStatus,
    store: &dyn StatementStore,
    settings: &ConnectionSettings,
    format: &Format,
) -> SqlResult<Option<Response>> {
    let Body::Sql(statement) = &parsed.body else { return check_write(status).map(|()| None) };
    if let Statement::Reset(ResetStatement::Variable(name)) = statement {
        check_alive(status)?;
        return settings.reset(&name.to_string().to_lowercase()).map(|()| Some(done("RESET")));
    }
    let Statement::Statement(sql) = statement else { return check_alive(status).map(|()| None) };
    match &**sql {
        SqlStatement::Commit { chain: true, .. } | SqlStatement::Rollback { chain: true, .. } => {
            let what = "AND CHAIN is not supported; end the block, then BEGIN another";
            Err(SqlError::with_state(state::NOT_SUPPORTED, what))
        }
        SqlStatement::Commit { .. } if status != TransactionStatus::Error => {
            settings.commit();
            Ok(Some(Response::TransactionEnd(Tag::new("COMMIT"))))
        }
        SqlStatement::Commit { .. } | SqlStatement::Rollback { savepoint: None, .. } => {
            settings.roll_back();
            Ok(Some(Response::TransactionEnd(Tag::new("ROLLBACK"))))
        }
        other => {
            check_alive(status)?;
            run_alive(other, status, store, settings, format)
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
    settings: &ConnectionSettings,
    format: &Format,
) -> SqlResult<Option<Response>> {
    match statement {
        SqlStatement::StartTransaction { modes, modifier, statements, exception, .. } => {
            if modifier.is_some() || !statements.is_empty() || exception.is_some() {
                return Err(refused(&statement.to_string()));
            }
            check_modes(modes, Scope::Block)?;
            if status == TransactionStatus::Idle {
                settings.begin();
            }
            Ok(Some(Response::TransactionStart(Tag::new("BEGIN"))))
        }
        SqlStatement::Set(set) => apply(set, status, settings).map(|()| Some(done("SET"))),
        SqlStatement::ShowVariable { variable } => {
            let words: Vec<String> = variable.iter().map(|word| word.value.to_lowercase()).collect();
            show(&words.join("_"), settings, format).map(Some)
        }
        SqlStatement::Discard { object_type } => {
            if *object_type == DiscardObject::ALL {
                store.remove_all();
                settings.reset("all")?;
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

/// Applies SET.
fn apply(set: &Set, status: TransactionStatus, settings: &ConnectionSettings) -> SqlResult<()> {
    let in_block = status == TransactionStatus::Transaction;
    match set {
        Set::SingleAssignment { scope, variable, values, .. } => {
            let values: Vec<String> = values.iter().map(value_text).collect();
            let scope = match scope {
                Some(ContextModifier::Local) => SettingScope::Block,
                Some(ContextModifier::Session | ContextModifier::Global) | None => SettingScope::Session,
            };
            settings.set(&variable.to_string().to_lowercase(), &values.join(", "), scope)
        }
        Set::SetTimeZone { value, .. } => settings.set("timezone", &value_text(value), SettingScope::Session),
        Set::SetNames { charset_name, .. } => {
            settings.set("client_encoding", &charset_name.value, SettingScope::Session)
        }
        Set::SetTransaction { snapshot: Some(_), .. } => Err(refused("SET TRANSACTION SNAPSHOT")),
        Set::SetTransaction { modes, snapshot: None, session } => {
            let scope = match (session, in_block) {
                (true, _) => Scope::Session,
                (false, true) => Scope::Block,
                (false, false) => Scope::Nothing,
            };
            check_modes(modes, scope)
        }
        other => Err(refused(&other.to_string())),
    }
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
fn show(name: &str, settings: &ConnectionSettings, format: &Format) -> SqlResult<Response> {
    let name = match name {
        "transaction_isolation_level" => "transaction_isolation",
        "time_zone" => "timezone",
        other => other,
    };
    let Some(value) = settings.value(name) else {
        return Err(SqlError::with_state("42704", format!("SHOW {name}: unknown setting")));
    };
    let fields = Arc::new(vec![column(name, format)]);
    let mut row = DataRowEncoder::new(fields.clone());
    let encoded: PgWireResult<()> = row.encode_field(&value);
    encoded.map_err(|error| SqlError::with_state(state::INTERNAL, error.to_string()))?;
    let mut response = QueryResponse::new(fields, stream::iter([Ok(row.take_row())]));
    response.set_command_tag("SHOW");
    Ok(Response::Query(response))
}
