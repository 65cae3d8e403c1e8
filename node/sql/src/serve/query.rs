//! Queries of a connection: simple ones with several statements, and prepared ones.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{Sink, SinkExt, StreamExt, stream};
use pgwire::api::portal::{Format, Portal, PortalExecutionState};
use pgwire::api::query::{
    ExtendedQueryHandler, SimpleQueryHandler, send_execution_response, send_query_response,
    send_ready_for_query,
};
use pgwire::api::results::{FieldInfo, QueryResponse, Response, Tag};
use pgwire::api::stmt::{QueryParser, StoredStatement};
use pgwire::api::store::{Entry, PortalStore};
use pgwire::api::{
    ClientInfo, ClientPortalStore, DEFAULT_NAME, PgWireConnectionState as ConnectionState, Type,
};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::{NoData, ParameterDescription, RowDescription};
use pgwire::messages::extendedquery::{
    Bind, BindComplete, Describe, Execute, Parse, ParseComplete, TARGET_TYPE_BYTE_STATEMENT,
};
use pgwire::messages::response::{EmptyQueryResponse, TransactionStatus};
use pgwire::messages::simplequery::Query;

use super::super::error::{SqlError, SqlResult, state};
use super::super::executor::{Answer, Command, Executor};
use super::super::script::{self, Parsed};
use super::prepared::{ConnectionStatements, NamedStatements, Prepared};
use super::statement_limits::StatementLimits;
use super::{commands, encode, parameters};

/// Handler of the queries of a connection, and parser of its statements.
#[derive(Clone)]
pub(super) struct QueryHandler {
    executor: Arc<OnceLock<Executor>>,
    statements: Arc<ConnectionStatements>,
}

impl QueryHandler {
    /// Creates the handler of a client whose rights are known when it sends statements.
    pub(super) fn new(executor: Arc<OnceLock<Executor>>, limits: StatementLimits) -> QueryHandler {
        QueryHandler { executor, statements: Arc::new(ConnectionStatements::new(limits)) }
    }

    fn executor(&self) -> SqlResult<&Executor> {
        let unknown = || SqlError::with_state(state::INTERNAL, "the client is not authenticated");
        self.executor.get().ok_or_else(unknown)
    }

    /// Runs one statement.
    async fn run<C>(&self, client: &C, parsed: Parsed, format: &Format) -> SqlResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Send + Sync,
        C::PortalStore: PortalStore,
    {
        let store = NamedStatements { store: client.portal_store(), statements: &self.statements };
        if let Some(response) = commands::run(&parsed, client.transaction_status(), &store, format)? {
            return Ok(response);
        }
        match self.executor()?.execute(parsed).await? {
            Answer::Rows(batches) => {
                let fields = Arc::new(encode::fields(&batches.schema(), format)?);
                let columns = fields.clone();
                let rows = batches.flat_map(move |batch| {
                    let rows = batch.map_err(SqlError::from).and_then(|batch| encode::rows(&batch, &columns));
                    let rows: Vec<_> = match rows {
                        Ok(rows) => rows.into_iter().map(Ok).collect(),
                        Err(error) => vec![Err(wire_error(error))],
                    };
                    stream::iter(rows)
                });
                Ok(Response::Query(QueryResponse::new(fields, rows)))
            }
            Answer::Count(command, count) => Ok(Response::Execution(count_tag(command, count))),
            Answer::Done(command) => Ok(Response::Execution(Tag::new(word(command)))),
        }
    }

    /// Prepares a statement, whose text may be empty. Counts it under the name that its client gave it, if any.
    async fn prepare(&self, name: Option<&str>, sql: &str, types: &[Option<Type>]) -> SqlResult<Prepared> {
        let mut statements = script::parse(sql)?;
        if statements.len() > 1 {
            let what = "a prepared statement is one statement; prepare the others on their own";
            return Err(SqlError::with_state(state::SYNTAX, what));
        }
        let executor = self.executor()?;
        let types = match statements.pop() {
            None => Vec::new(),
            Some(parsed) => parameters::types(executor, &parsed, parameters::count(&parsed)?, types).await?,
        };
        self.statements.prepare(&executor.runtime.memory_pool, name, sql, types)
    }

    /// Returns the statement of a portal with its parameters as constants; `None` if its text is empty.
    fn bound(&self, portal: &Portal<Prepared>) -> SqlResult<Option<Parsed>> {
        let prepared = &portal.statement.statement;
        let types = prepared.types();
        let given = portal.parameters.len();
        let formats_fit = match &portal.parameter_format {
            Format::Individual(formats) => formats.len() == given,
            _ => true,
        };
        if given != types.len() || !formats_fit {
            let message = format!("{given} values for {} parameters", types.len());
            return Err(SqlError::with_state("08P01", message));
        }
        let mut values = BTreeMap::new();
        for (at, (value, ty)) in portal.parameters.iter().zip(types).enumerate() {
            let format = portal.parameter_format.format_for(at);
            values.insert(at + 1, parameters::constant(at + 1, ty, format, value.as_deref())?);
        }
        let Some(mut parsed) = prepared.parsed()? else { return Ok(None) };
        parameters::substitute(&mut parsed, &values);
        Ok(Some(parsed))
    }

    /// Returns the columns of a statement's result; empty if it has none, or if there is no statement.
    async fn result_fields(&self, parsed: Option<&Parsed>, format: &Format) -> SqlResult<Vec<FieldInfo>> {
        let Some(parsed) = parsed else { return Ok(Vec::new()) };
        if let Some(columns) = commands::columns(parsed, format) {
            return Ok(columns);
        }
        match self.executor()?.result_schema(parsed).await? {
            Some(schema) => encode::fields(&schema, format),
            None => Ok(Vec::new()),
        }
    }
}

/// Converts an error to one of the protocol.
fn wire_error(error: SqlError) -> PgWireError {
    let (state, message) = (error.sql_state().to_string(), error.to_string());
    PgWireError::UserError(Box::new(ErrorInfo::new("ERROR".to_string(), state, message)))
}

fn word(command: Command) -> &'static str {
    match command {
        Command::Insert => "INSERT",
        Command::Update => "UPDATE",
        Command::Delete => "DELETE",
        Command::Copy => "COPY",
        Command::CreateTable => "CREATE TABLE",
        Command::CreateTableAs => "SELECT",
        Command::AlterTable => "ALTER TABLE",
        Command::DropTable => "DROP TABLE",
    }
}

fn count_tag(command: Command, count: u64) -> Tag {
    let tag = Tag::new(word(command)).with_rows(count as usize);
    // The number of an object comes first, for historical reasons; it is always 0.
    if command == Command::Insert { tag.with_oid(0) } else { tag }
}

/// Sends a response, and notes what it does to the transaction block.
async fn send<C>(client: &mut C, response: Response, with_columns: bool) -> PgWireResult<()>
where
    C: ClientInfo + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
    C::Error: Debug,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    match response {
        Response::EmptyQuery => {
            client.feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new())).await?;
            Ok(())
        }
        Response::Query(rows) => send_query_response(client, rows, with_columns).await,
        Response::Execution(tag) => send_execution_response(client, tag).await,
        Response::TransactionStart(tag) => {
            client.set_transaction_status(TransactionStatus::Transaction);
            send_execution_response(client, tag).await
        }
        Response::TransactionEnd(tag) => {
            client.set_transaction_status(TransactionStatus::Idle);
            send_execution_response(client, tag).await
        }
        _ => Err(wire_error(SqlError::with_state(state::INTERNAL, "a response of an unknown kind"))),
    }
}

#[async_trait]
impl SimpleQueryHandler for QueryHandler {
    /// Runs the statements of a query, each after the result of the one before was sent.
    async fn on_query<C>(&self, client: &mut C, query: Query) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        client.set_state(ConnectionState::QueryInProgress);
        let statements = script::parse(&query.query).map_err(wire_error)?;
        if statements.is_empty() {
            client.feed(PgWireBackendMessage::EmptyQueryResponse(EmptyQueryResponse::new())).await?;
        }
        for parsed in statements {
            let response = self.run(client, parsed, &Format::UnifiedText).await.map_err(wire_error)?;
            send(client, response, true).await?;
        }
        client.set_state(ConnectionState::ReadyForQuery);
        let status = client.transaction_status();
        send_ready_for_query(client, status).await
    }

    async fn do_query<C>(&self, _: &mut C, _: &str) -> PgWireResult<Vec<Response>>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        Err(PgWireError::NotReadyForQuery)
    }
}

#[async_trait]
impl QueryParser for QueryHandler {
    type Statement = Prepared;

    async fn parse_sql<C>(&self, _: &C, sql: &str, types: &[Option<Type>]) -> PgWireResult<Option<Prepared>>
    where
        C: ClientInfo + Unpin + Send + Sync,
    {
        self.prepare(None, sql, types).await.map(Some).map_err(wire_error)
    }

    fn get_parameter_types(&self, prepared: &Prepared) -> PgWireResult<Vec<Type>> {
        Ok(prepared.types().to_vec())
    }

    fn get_result_schema(&self, _: &Prepared, _: Option<&Format>) -> PgWireResult<Vec<FieldInfo>> {
        // Planning needs the cluster: see on_describe.
        Ok(Vec::new())
    }
}

#[async_trait]
impl ExtendedQueryHandler for QueryHandler {
    type Statement = Prepared;
    type QueryParser = QueryHandler;

    fn query_parser(&self) -> Arc<QueryHandler> {
        Arc::new(self.clone())
    }

    /// Keeps a statement, also one with an empty text: pgwire's own code would keep that one without its memory.
    async fn on_parse<C>(&self, client: &mut C, message: Parse) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let types: Vec<_> = message.type_oids.iter().map(|oid| Type::from_oid(*oid)).collect();
        let name = message.name.as_deref();
        let prepared = self.prepare(name, &message.query, &types).await.map_err(wire_error)?;
        let name = message.name.unwrap_or_else(|| DEFAULT_NAME.to_owned());
        client.portal_store().put_statement(Arc::new(StoredStatement::new(name, prepared, Vec::new())));
        client.send(PgWireBackendMessage::ParseComplete(ParseComplete::new())).await?;
        Ok(())
    }

    /// Keeps a portal. Its values are copied: as parts of the buffer of the socket they would keep all of that.
    async fn on_bind<C>(&self, client: &mut C, mut message: Bind) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.statement_name.as_deref().unwrap_or(DEFAULT_NAME);
        let Some(Entry::Value(statement)) = client.portal_store().get_statement(name) else {
            return Err(PgWireError::StatementNotFound(name.to_owned()));
        };
        let pool = &self.executor().map_err(wire_error)?.runtime.memory_pool;
        let bound = self.statements.bind(pool, &statement.statement, &message).map_err(wire_error)?;
        for value in message.parameters.iter_mut().flatten() {
            *value = Bytes::copy_from_slice(value);
        }
        let bound = StoredStatement::new(DEFAULT_NAME.to_owned(), bound, Vec::new());
        let portal = Portal::try_new(&message, Arc::new(bound))?;
        client.portal_store().put_portal(Arc::new(portal));
        client.send(PgWireBackendMessage::BindComplete(BindComplete::new())).await?;
        Ok(())
    }

    async fn on_describe<C>(&self, client: &mut C, message: Describe) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        let mut parameter_types: Option<Vec<u32>> = None;
        let (parsed, format) = if message.target_type == TARGET_TYPE_BYTE_STATEMENT {
            let Some(Entry::Value(statement)) = client.portal_store().get_statement(name) else {
                return Err(PgWireError::StatementNotFound(name.to_owned()));
            };
            let prepared = &statement.statement;
            parameter_types = Some(prepared.types().iter().map(Type::oid).collect());
            (prepared.parsed(), Format::UnifiedText)
        } else {
            let Some(Entry::Value(portal)) = client.portal_store().get_portal(name) else {
                return Err(PgWireError::PortalNotFound(name.to_owned()));
            };
            (self.bound(&portal), portal.result_column_format.clone())
        };
        let parsed = parsed.map_err(wire_error)?;
        let fields = self.result_fields(parsed.as_ref(), &format).await.map_err(wire_error)?;
        if let Some(oids) = parameter_types {
            client.feed(PgWireBackendMessage::ParameterDescription(ParameterDescription::new(oids))).await?;
        }
        let columns = match fields.is_empty() {
            true => PgWireBackendMessage::NoData(NoData::new()),
            false => {
                let fields = fields.iter().map(Into::into).collect();
                PgWireBackendMessage::RowDescription(RowDescription::new(fields))
            }
        };
        client.send(columns).await?;
        Ok(())
    }

    /// Streams all rows if the client asks for all of them; pgwire's own code would collect them first.
    async fn on_execute<C>(&self, client: &mut C, message: Execute) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        let portal = match client.portal_store().get_portal(name) {
            Some(Entry::Value(portal)) if message.max_rows == 0 => portal,
            _ => return self._on_execute(client, message).await,
        };
        let state = portal.state();
        let is_fresh = matches!(*state.lock().await, PortalExecutionState::Initial);
        if !is_fresh {
            return self._on_execute(client, message).await;
        }
        client.set_state(ConnectionState::QueryInProgress);
        let response = ExtendedQueryHandler::do_query(self, client, &portal, 0).await?;
        // An empty query has no result that ends, as in pgwire's own code.
        if !matches!(response, Response::EmptyQuery) {
            *state.lock().await = PortalExecutionState::Finished;
        }
        send(client, response, false).await?;
        client.set_state(ConnectionState::ReadyForQuery);
        Ok(())
    }

    async fn do_query<C>(&self, client: &mut C, portal: &Portal<Prepared>, _: usize) -> PgWireResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let Some(parsed) = self.bound(portal).map_err(wire_error)? else { return Ok(Response::EmptyQuery) };
        self.run(client, parsed, &portal.result_column_format).await.map_err(wire_error)
    }
}
