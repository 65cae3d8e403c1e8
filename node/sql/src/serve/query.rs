//! Queries of a connection: simple ones with several statements, and prepared ones.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{Sink, SinkExt, StreamExt, stream};
use pgwire::api::portal::{Format, Portal, PortalExecutionState};
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler, send_ready_for_query};
use pgwire::api::results::{FieldInfo, QueryResponse, Response, Tag};
use pgwire::api::stmt::{QueryParser, StoredStatement};
use pgwire::api::store::{Entry, PortalStore};
use pgwire::api::{
    ClientInfo, ClientPortalStore, DEFAULT_NAME, PgWireConnectionState as ConnectionState, Type,
};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::{NoData, ParameterDescription, RowDescription};
use pgwire::messages::extendedquery::{
    Bind, BindComplete, Describe, Execute, Parse, ParseComplete, TARGET_TYPE_BYTE_STATEMENT,
};
use pgwire::messages::response::EmptyQueryResponse;
use pgwire::messages::simplequery::Query;

use super::super::error::{SqlError, SqlResult, state};
use super::super::executor::{Answer, Executor};
use super::super::script::{self, Parsed};
use super::cancel::Cancellation;
use super::prepared::{ConnectionStatements, NamedStatements, Prepared};
use super::response::{count_tag, send, send_rows, wire_error, word};
use super::settings::ConnectionSettings;
use super::statement_limits::StatementLimits;
use super::statement_timer::StatementTimer;
use super::{commands, encode, parameters};

/// Handler of the queries of a connection, and parser of its statements.
#[derive(Clone)]
pub(super) struct QueryHandler {
    executor: Arc<OnceLock<Executor>>,
    statements: Arc<ConnectionStatements>,
    settings: Arc<ConnectionSettings>,
    cancellation: Arc<Cancellation>,
}

impl QueryHandler {
    /// Creates the handler of a client whose rights are known when it sends statements.
    pub(super) fn new(
        executor: Arc<OnceLock<Executor>>,
        limits: StatementLimits,
        settings: Arc<ConnectionSettings>,
        cancellation: Arc<Cancellation>,
    ) -> QueryHandler {
        let statements = Arc::new(ConnectionStatements::new(limits));
        QueryHandler { executor, statements, settings, cancellation }
    }

    /// Runs a message's part that is about one statement, as long as the connection's `statement_timeout` permits.
    async fn within_limit<T>(&self, part: impl Future<Output = PgWireResult<T>>) -> PgWireResult<T> {
        let Some(limit) = self.settings.statement_timeout() else { return part.await };
        let executor = self.executor().map_err(wire_error)?;
        StatementTimer::start(executor.client.env(), Some(limit)).run(part).await.map_err(wire_error)?
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
        if let Some(response) =
            commands::run(&parsed, client.transaction_status(), &store, &self.settings, format)?
        {
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

    /// Runs the statement of a portal, unless it runs already, and sends the next of its rows.
    async fn run_portal<C>(
        &self,
        client: &mut C,
        portal: &Portal<Prepared>,
        max_rows: i32,
    ) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let state = portal.state();
        let mut execution = state.lock().await;
        let mut other = None;
        if matches!(*execution, PortalExecutionState::Initial) {
            match ExtendedQueryHandler::do_query(self, client, portal, 0).await? {
                Response::Query(rows) => *execution = PortalExecutionState::Suspended(rows),
                response => other = Some(response),
            }
        }
        match other {
            // As in Postgres, a limit that is not positive is none.
            None => send_rows(client, &mut execution, usize::try_from(max_rows).unwrap_or(0)).await,
            // No result that ends, as in pgwire's own code.
            Some(Response::EmptyQuery) => send(client, Response::EmptyQuery, false).await,
            Some(response) => {
                *execution = PortalExecutionState::Finished;
                send(client, response, false).await
            }
        }
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

/// Returns a statement for its description, with NULL for its parameters; `None` if its text is empty.
fn described(prepared: &Prepared) -> SqlResult<Option<Parsed>> {
    let mut parsed = prepared.parsed()?;
    if let Some(parsed) = &mut parsed {
        parameters::substitute(parsed, &parameters::typed_nulls(prepared.types()));
    }
    Ok(parsed)
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
            let statement = async {
                let response = self.run(client, parsed, &Format::UnifiedText).await.map_err(wire_error)?;
                send(client, response, true).await
            };
            self.within_limit(statement).await?;
        }
        client.set_state(ConnectionState::ReadyForQuery);
        let status = client.transaction_status();
        // The reply ends here: the client would take an error after it for that of its next query.
        if !self.cancellation.end() {
            return Err(PgWireError::QueryCanceled);
        }
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
        let prepared = async { self.prepare(name, &message.query, &types).await.map_err(wire_error) };
        let prepared = self.within_limit(prepared).await?;
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
            (described(prepared), Format::UnifiedText)
        } else {
            let Some(Entry::Value(portal)) = client.portal_store().get_portal(name) else {
                return Err(PgWireError::PortalNotFound(name.to_owned()));
            };
            (self.bound(&portal), portal.result_column_format.clone())
        };
        let parsed = parsed.map_err(wire_error)?;
        let fields = async { self.result_fields(parsed.as_ref(), &format).await.map_err(wire_error) };
        let fields = self.within_limit(fields).await?;
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

    /// Runs the statement of a portal once, and sends its rows in the parts that the client asks for.
    async fn on_execute<C>(&self, client: &mut C, message: Execute) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        let Some(Entry::Value(portal)) = client.portal_store().get_portal(name) else {
            return Err(PgWireError::PortalNotFound(name.to_owned()));
        };
        client.set_state(ConnectionState::QueryInProgress);
        self.within_limit(self.run_portal(client, &portal, message.max_rows)).await?;
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

#[cfg(test)]
mod tests {
    use pgwire::api::DefaultClient;
    use pgwire::api::cancel::CancelHandler;
    use pgwire::messages::cancel::CancelRequest;
    use pgwire::messages::startup::SecretKey;
    use pgwire::tokio::server::PgWireMessageServerCodec;
    use tokio::io::{AsyncReadExt, DuplexStream};
    use tokio_util::codec::Framed;

    use super::super::cancel::Cancels;
    use super::*;

    /// Returns a connection that takes `bytes` before its client reads, and the client's end.
    fn connection(bytes: usize) -> (Framed<DuplexStream, PgWireMessageServerCodec<Prepared>>, DuplexStream) {
        let (server, client) = tokio::io::duplex(bytes);
        let info = DefaultClient::new(([127, 0, 0, 1], 5432).into(), false);
        (Framed::new(server, PgWireMessageServerCodec::new(info)), client)
    }

    #[tokio::test]
    async fn a_cancel_request_ends_a_query_before_its_reply_is_complete_and_not_after_it() {
        let cancels = Arc::new(Cancels::default());
        let cancellation = cancels.connection();
        let _registration = cancels.register(7, SecretKey::I32(5), cancellation.clone());
        let settings = Arc::new(ConnectionSettings::new(None));
        let limits = StatementLimits::new(1 << 20);
        let handler = QueryHandler::new(Arc::default(), limits, settings, cancellation.clone());
        let cancel = || cancels.on_cancel_request(CancelRequest::new(7, SecretKey::I32(5)));
        let begin = || Query::new("BEGIN".to_string());

        let (mut connected, _client) = connection(1);
        let _token = cancellation.begin();
        cancel().await;
        let replied = handler.on_query(&mut connected, begin()).await;
        assert!(matches!(replied, Err(PgWireError::QueryCanceled)), "{replied:?}");

        let (mut connected, mut client) = connection(1);
        let token = cancellation.begin();
        let mut reply = handler.on_query(&mut connected, begin());
        tokio::select! {
            biased;
            _ = &mut reply => panic!("the client has not read its reply"),
            () = std::future::ready(()) => {}
        }
        cancel().await;
        assert!(!token.is_cancelled(), "the end of the reply waits for the client");
        let mut received = [0; 17];
        let (replied, read) = tokio::join!(reply, client.read_exact(&mut received));
        replied.expect("a reply");
        read.expect("an open connection");
        assert_eq!(received, *b"C\0\0\0\x0aBEGIN\0Z\0\0\0\x05T");
    }
}
