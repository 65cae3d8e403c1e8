//! Responses of a connection: tags of commands, rows of queries, errors.

use std::fmt::Debug;

use futures_util::{Sink, SinkExt, StreamExt};
use pgwire::api::ClientInfo;
use pgwire::api::portal::PortalExecutionState;
use pgwire::api::query::{send_execution_response, send_query_response};
use pgwire::api::results::{Response, Tag};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::extendedquery::PortalSuspended;
use pgwire::messages::response::{EmptyQueryResponse, TransactionStatus};

use super::super::error::{SqlError, state};
use super::super::executor::Command;

/// Converts an error to one of the protocol.
pub(super) fn wire_error(error: SqlError) -> PgWireError {
    let (state, message) = (error.sql_state().to_string(), error.to_string());
    PgWireError::UserError(Box::new(ErrorInfo::new("ERROR".to_string(), state, message)))
}

pub(super) fn word(command: Command) -> &'static str {
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

pub(super) fn count_tag(command: Command, count: u64) -> Tag {
    let tag = Tag::new(word(command)).with_rows(count as usize);
    // The number of an object comes first, for historical reasons; it is always 0.
    if command == Command::Insert { tag.with_oid(0) } else { tag }
}

/// Sends a response, and notes what it does to the transaction block.
pub(super) async fn send<C>(client: &mut C, response: Response, with_columns: bool) -> PgWireResult<()>
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

/// Sends the next rows of a portal, at most `rows_max` of them, or all if it is 0. Each row is sent as it comes:
/// pgwire's own code would collect them first.
pub(super) async fn send_rows<C>(
    client: &mut C,
    portal: &mut PortalExecutionState,
    rows_max: usize,
) -> PgWireResult<()>
where
    C: Sink<PgWireBackendMessage> + Unpin + Send,
    C::Error: Debug,
    PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
{
    // A portal that is finished has no more rows.
    let (mut sent, mut command) = (0, "SELECT".to_string());
    while let PortalExecutionState::Suspended(rows) = portal
        && (rows_max == 0 || sent < rows_max)
    {
        let next = rows.data_rows().next().await;
        if let Some(row) = next {
            client.feed(PgWireBackendMessage::DataRow(row?)).await?;
            sent += 1;
        } else {
            command = rows.command_tag().to_string();
            *portal = PortalExecutionState::Finished;
        }
    }
    let end = match portal {
        PortalExecutionState::Suspended(_) => PgWireBackendMessage::PortalSuspended(PortalSuspended::new()),
        _ => PgWireBackendMessage::CommandComplete(Tag::new(&command).with_rows(sent).into()),
    };
    client.feed(end).await?;
    Ok(())
}
