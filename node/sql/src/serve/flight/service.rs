//! Calls of Flight SQL. The caller of each was found by its headers (`admission`).

use std::pin::Pin;
use std::sync::Arc;

use arrow_flight::error::FlightError;
use arrow_flight::sql::metadata::SqlInfoData;
use arrow_flight::sql::server::{FlightSqlService, PeekableFlightDataStream};
use arrow_flight::sql::{
    ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest,
    ActionCreatePreparedStatementResult, CommandGetCatalogs, CommandGetCrossReference, CommandGetDbSchemas,
    CommandGetExportedKeys, CommandGetImportedKeys, CommandGetPrimaryKeys, CommandGetSqlInfo,
    CommandGetTableTypes, CommandGetTables, CommandPreparedStatementQuery, CommandPreparedStatementUpdate,
    CommandStatementIngest, CommandStatementQuery, CommandStatementUpdate, DoPutPreparedStatementResult,
    SqlInfo, TicketStatementQuery,
};
use arrow_flight::{Action, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse, Ticket};
use async_trait::async_trait;
use datafusion::arrow::array::RecordBatch;
use futures_util::{Stream, stream};
use tonic::codegen::http::HeaderMap;
use tonic::metadata::MetadataValue;
use tonic::{Extensions, Request, Response, Status, Streaming};

use super::super::super::catalog::{CATALOG, SCHEMA};
use super::super::super::error::{SqlError, state};
use super::super::places::ConnectionPlace;
use super::super::shared::Shared;
use super::prepared::PreparedStatements;
use super::sessions::{Caller, Sessions};
use super::statements::{self, Results, batch_results, parse_complete};
use super::status::{flight_status, status};
use super::{info, ingest, metadata};

/// Service of one server.
pub(super) struct FlightSql {
    sessions: Sessions,
    prepared: PreparedStatements,
    facts: SqlInfoData,
}

type Described = Result<Response<FlightInfo>, Status>;
type Streamed = Result<Response<Results>, Status>;

impl FlightSql {
    pub(super) fn new(shared: &Arc<Shared>) -> Result<FlightSql, SqlError> {
        let failed = |error: FlightError| SqlError::with_state(state::INTERNAL, error.to_string());
        let facts = info::facts().map_err(failed)?;
        let (sessions, prepared) = (Sessions::new(shared), PreparedStatements::new(shared));
        Ok(FlightSql { sessions, prepared, facts })
    }

    /// Admits a call by its headers: finds its caller, and takes a client's place for its connection. Its message was
    /// not read yet.
    pub(super) fn admit(&self, headers: &HeaderMap, extensions: &mut Extensions) -> Result<(), Status> {
        let caller = self.sessions.caller(headers)?;
        prove(place_of(extensions)?)?;
        extensions.insert(caller);
        Ok(())
    }
}

/// Returns the caller of a call that was admitted.
fn caller_of<T>(request: &Request<T>) -> Result<Caller, Status> {
    let unknown = || Status::unauthenticated("the caller of the call is not known");
    request.extensions().get::<Caller>().cloned().ok_or_else(unknown)
}

/// Returns the place of the connection of a call.
fn place_of(extensions: &Extensions) -> Result<&Arc<ConnectionPlace>, Status> {
    let unknown = || Status::internal("the connection of the call is not known");
    extensions.get::<Arc<ConnectionPlace>>().ok_or_else(unknown)
}

/// Takes a client's place for a connection whose client is known.
fn prove(place: &ConnectionPlace) -> Result<(), Status> {
    if place.prove() { Ok(()) } else { Err(Status::resource_exhausted(place.refusal())) }
}

#[async_trait]
impl FlightSqlService for FlightSql {
    type FlightService = FlightSql;

    async fn do_handshake(
        &self,
        request: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Pin<Box<dyn Stream<Item = Result<HandshakeResponse, Status>> + Send>>>, Status> {
        // The name and the secret are in the headers; messages of the client are not read.
        let place = place_of(request.extensions())?.clone();
        let _alone = place.check_alone().await;
        let token = self.sessions.begin(request.metadata().as_ref()).await?;
        prove(&place)?;
        let payload = token.clone().into_bytes().into();
        let answer = HandshakeResponse { protocol_version: 0, payload };
        let answers: Pin<Box<dyn Stream<Item = _> + Send>> = Box::pin(stream::iter([Ok(answer)]));
        let mut response = Response::new(answers);
        let header = MetadataValue::try_from(format!("Bearer {token}"));
        let header = header.map_err(|_| Status::internal("the token is no header"))?;
        response.metadata_mut().insert("authorization", header);
        Ok(response)
    }

    async fn get_flight_info_statement(
        &self,
        query: CommandStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Described {
        let caller = caller_of(&request)?;
        let parsed = parse_complete(&query.query).map_err(status)?;
        let ticket = TicketStatementQuery { statement_handle: query.query.into_bytes().into() };
        statements::describe(&caller.executor, parsed, &ticket, request.into_inner()).await
    }

    async fn do_get_statement(&self, ticket: TicketStatementQuery, request: Request<Ticket>) -> Streamed {
        let caller = caller_of(&request)?;
        let sql = std::str::from_utf8(&ticket.statement_handle);
        let sql = sql.map_err(|_| Status::invalid_argument("the ticket is not one of this server"))?;
        let place = place_of(request.extensions())?.clone();
        statements::run(&caller.executor, parse_complete(sql).map_err(status)?, place).await
    }

    async fn do_put_statement_update(
        &self,
        update: CommandStatementUpdate,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        let caller = caller_of(&request)?;
        statements::update(&caller.executor, parse_complete(&update.query).map_err(status)?).await
    }

    async fn do_put_statement_ingest(
        &self,
        ingest: CommandStatementIngest,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        let caller = caller_of(&request)?;
        let batches = self.prepared.batches(request.into_inner());
        ingest::append(&caller.executor, &ingest, batches).await
    }

    async fn do_action_create_prepared_statement(
        &self,
        create: ActionCreatePreparedStatementRequest,
        request: Request<Action>,
    ) -> Result<ActionCreatePreparedStatementResult, Status> {
        let caller = caller_of(&request)?;
        self.prepared.create(&caller, &create.query).await
    }

    async fn do_action_close_prepared_statement(
        &self,
        close: ActionClosePreparedStatementRequest,
        request: Request<Action>,
    ) -> Result<(), Status> {
        let caller = caller_of(&request)?;
        self.prepared.close(&caller, &close.prepared_statement_handle);
        Ok(())
    }

    async fn get_flight_info_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Described {
        let caller = caller_of(&request)?;
        let parsed = self.prepared.bound(&caller, &query.prepared_statement_handle)?;
        statements::describe(&caller.executor, parsed, &query, request.into_inner()).await
    }

    async fn do_get_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<Ticket>,
    ) -> Streamed {
        let caller = caller_of(&request)?;
        let parsed = self.prepared.bound(&caller, &query.prepared_statement_handle)?;
        let place = place_of(request.extensions())?.clone();
        statements::run(&caller.executor, parsed, place).await
    }

    async fn do_put_prepared_statement_query(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<DoPutPreparedStatementResult, Status> {
        let caller = caller_of(&request)?;
        let handle = query.prepared_statement_handle;
        self.prepared.bind(&caller, &handle, request.into_inner()).await?;
        Ok(DoPutPreparedStatementResult { prepared_statement_handle: Some(handle) })
    }

    async fn do_put_prepared_statement_update(
        &self,
        update: CommandPreparedStatementUpdate,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        let caller = caller_of(&request)?;
        self.prepared.update(&caller, &update.prepared_statement_handle, request.into_inner()).await
    }

    async fn get_flight_info_catalogs(
        &self,
        query: CommandGetCatalogs,
        request: Request<FlightDescriptor>,
    ) -> Described {
        caller_of(&request)?;
        statements::info(&query.into_builder().schema(), &query, request.into_inner())
    }

    async fn do_get_catalogs(&self, query: CommandGetCatalogs, request: Request<Ticket>) -> Streamed {
        caller_of(&request)?;
        let mut catalogs = query.into_builder();
        catalogs.append(CATALOG);
        catalogs.build().map(batch_results).map_err(flight_status)
    }

    async fn get_flight_info_schemas(
        &self,
        query: CommandGetDbSchemas,
        request: Request<FlightDescriptor>,
    ) -> Described {
        caller_of(&request)?;
        statements::info(&query.clone().into_builder().schema(), &query, request.into_inner())
    }

    async fn do_get_schemas(&self, query: CommandGetDbSchemas, request: Request<Ticket>) -> Streamed {
        caller_of(&request)?;
        let mut schemas = query.into_builder();
        schemas.append(CATALOG, SCHEMA);
        schemas.build().map(batch_results).map_err(flight_status)
    }

    async fn get_flight_info_tables(
        &self,
        query: CommandGetTables,
        request: Request<FlightDescriptor>,
    ) -> Described {
        caller_of(&request)?;
        statements::info(&query.clone().into_builder().schema(), &query, request.into_inner())
    }

    async fn do_get_tables(&self, query: CommandGetTables, request: Request<Ticket>) -> Streamed {
        let caller = caller_of(&request)?;
        metadata::tables(&caller.executor.client, query).await.map(batch_results)
    }

    async fn get_flight_info_table_types(
        &self,
        query: CommandGetTableTypes,
        request: Request<FlightDescriptor>,
    ) -> Described {
        caller_of(&request)?;
        statements::info(&query.into_builder().schema(), &query, request.into_inner())
    }

    async fn do_get_table_types(&self, query: CommandGetTableTypes, request: Request<Ticket>) -> Streamed {
        caller_of(&request)?;
        let mut types = query.into_builder();
        types.append(metadata::TABLE);
        types.build().map(batch_results).map_err(flight_status)
    }

    async fn get_flight_info_sql_info(
        &self,
        query: CommandGetSqlInfo,
        request: Request<FlightDescriptor>,
    ) -> Described {
        caller_of(&request)?;
        statements::info(&self.facts.schema(), &query, request.into_inner())
    }

    async fn do_get_sql_info(&self, query: CommandGetSqlInfo, request: Request<Ticket>) -> Streamed {
        caller_of(&request)?;
        self.facts.record_batch(query.info).map(batch_results).map_err(flight_status)
    }

    async fn get_flight_info_primary_keys(
        &self,
        query: CommandGetPrimaryKeys,
        request: Request<FlightDescriptor>,
    ) -> Described {
        caller_of(&request)?;
        statements::info(&metadata::primary_keys_schema(), &query, request.into_inner())
    }

    async fn do_get_primary_keys(&self, query: CommandGetPrimaryKeys, request: Request<Ticket>) -> Streamed {
        let caller = caller_of(&request)?;
        let keys = metadata::primary_keys(&caller.executor.client, &query.table).await;
        keys.map(batch_results).map_err(status)
    }

    async fn get_flight_info_exported_keys(
        &self,
        query: CommandGetExportedKeys,
        request: Request<FlightDescriptor>,
    ) -> Described {
        caller_of(&request)?;
        statements::info(&metadata::foreign_keys_schema(), &query, request.into_inner())
    }

    async fn do_get_exported_keys(&self, _: CommandGetExportedKeys, request: Request<Ticket>) -> Streamed {
        caller_of(&request)?;
        Ok(batch_results(RecordBatch::new_empty(metadata::foreign_keys_schema())))
    }

    async fn get_flight_info_imported_keys(
        &self,
        query: CommandGetImportedKeys,
        request: Request<FlightDescriptor>,
    ) -> Described {
        caller_of(&request)?;
        statements::info(&metadata::foreign_keys_schema(), &query, request.into_inner())
    }

    async fn do_get_imported_keys(&self, _: CommandGetImportedKeys, request: Request<Ticket>) -> Streamed {
        caller_of(&request)?;
        Ok(batch_results(RecordBatch::new_empty(metadata::foreign_keys_schema())))
    }

    async fn get_flight_info_cross_reference(
        &self,
        query: CommandGetCrossReference,
        request: Request<FlightDescriptor>,
    ) -> Described {
        caller_of(&request)?;
        statements::info(&metadata::foreign_keys_schema(), &query, request.into_inner())
    }

    async fn do_get_cross_reference(
        &self,
        _: CommandGetCrossReference,
        request: Request<Ticket>,
    ) -> Streamed {
        caller_of(&request)?;
        Ok(batch_results(RecordBatch::new_empty(metadata::foreign_keys_schema())))
    }

    /// Does nothing: the facts are set when the server starts.
    async fn register_sql_info(&self, _: i32, _: &SqlInfo) {}
}
