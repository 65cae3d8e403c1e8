//! One connection: its messages, one after the other, and the handling of errors.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use pgwire::api::store::PortalStore;
use pgwire::api::{
    ClientInfo, ClientPortalStore, DefaultClient, NoopHandler, PgWireConnectionState as ConnectionState,
};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use pgwire::messages::response::{GssEncResponse, SslResponse, TransactionStatus};
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage, SslNegotiationMetaMessage};
use pgwire::tokio::server::{PgWireMessageServerCodec, process_error, process_message};
use tokio::io::DuplexStream;
use tokio_util::codec::Framed;
use tokio_util::sync::CancellationToken;

use super::cancel::Cancellation;
use super::encryption;
use super::pipe::{self, MessageLimit};
use super::prepared::Prepared;
use super::query::QueryHandler;
use super::settings::ConnectionSettings;
use super::shared::{AcceptedConnection, Shared};
use super::startup::Startup;
use super::statement_limits::StatementLimits;

/// Longest time for encryption, the startup and the password together.
const STARTUP_TIME: Duration = Duration::from_secs(10);

/// Connection as pgwire's code sees it.
type Socket = Framed<DuplexStream, PgWireMessageServerCodec<Prepared>>;

/// Handlers of one connection.
struct Handlers {
    startup: Arc<Startup>,
    query: Arc<QueryHandler>,
}

/// Serves a client until it leaves. A client that is refused learns so after its startup message; it may cancel.
pub(super) async fn serve(shared: &Arc<Shared>, accepted: AcceptedConnection) {
    // Dropped last: the statements of the connection are dropped by then.
    let place = accepted.place.clone();
    let opening = shared.env.timeout(STARTUP_TIME, open(shared, accepted));
    let opened = tokio::select! {
        biased;
        () = place.ended() => None,
        opened = opening => opened.flatten(),
    };
    let Some((mut socket, handlers, cancellation)) = opened else { return };
    // An error of the socket means that the client is gone.
    let _ = answer(shared, &mut socket, &handlers, &cancellation).await;
    let _ = socket.flush().await;
}

/// Opens a connection: encryption, startup, proof. Returns `None` if it ends before its client is authenticated.
async fn open(
    shared: &Arc<Shared>,
    accepted: AcceptedConnection,
) -> Option<(Socket, Handlers, Arc<Cancellation>)> {
    let AcceptedConnection { stream, peer, place } = accepted;
    let config = &shared.config;
    let opening = encryption::negotiate(stream, config.encryption.as_ref(), config.allow_plaintext);
    let opened = opening.await.ok()?;
    let cancellation = shared.cancels.connection();
    let limit = MessageLimit::new(config.message_bytes_max);
    let client = DefaultClient::new(peer, opened.is_encrypted);
    let is_acceptable = opened.is_acceptable;
    let pipe = pipe::open(&shared.env, opened, limit, cancellation.clone(), place.clone());
    let mut socket = Framed::new(pipe, PgWireMessageServerCodec::new(client));
    let executor = Arc::new(shared.access.common_executor().map_or_else(OnceLock::new, OnceLock::from));
    let settings = Arc::new(ConnectionSettings::new(config.statement_timeout));
    let limits = StatementLimits::new(config.message_bytes_max);
    let query = QueryHandler::new(executor.clone(), limits, settings.clone(), cancellation.clone());
    let startup = Startup::new(shared, cancellation.clone(), settings, executor, place, is_acceptable);
    let handlers = Handlers { startup: Arc::new(startup), query: Arc::new(query) };
    if let Ok(true) = start(shared, &mut socket, &handlers).await {
        return Some((socket, handlers, cancellation));
    }
    let _ = socket.flush().await;
    None
}

/// Handles messages until the client is authenticated. Returns false if the connection ends before that.
async fn start(shared: &Arc<Shared>, socket: &mut Socket, handlers: &Handlers) -> std::io::Result<bool> {
    loop {
        let Some(message) = socket.next().await else { return Ok(false) };
        let message = match message {
            Ok(message) => message,
            Err(error) => return process_error(socket, error, false).await.map(|()| false),
        };
        match message {
            PgWireFrontendMessage::Terminate(_) => return Ok(false),
            PgWireFrontendMessage::SslNegotiation(request) => negotiate(socket, request).await?,
            message => {
                let is_cancel = matches!(message, PgWireFrontendMessage::CancelRequest(_));
                let handled = process(shared, socket, handlers, message).await;
                if is_cancel {
                    return Ok(false);
                }
                if let Err(error) = handled {
                    return process_error(socket, error, false).await.map(|()| false);
                }
                if matches!(socket.state(), ConnectionState::ReadyForQuery) {
                    return Ok(true);
                }
            }
        }
    }
}

/// Refuses encryption within the connection, which came before if at all.
async fn negotiate(socket: &mut Socket, request: SslNegotiationMetaMessage) -> std::io::Result<()> {
    match request {
        SslNegotiationMetaMessage::PostgresSsl(_) => {
            socket.send(PgWireBackendMessage::SslResponse(SslResponse::Refuse)).await
        }
        SslNegotiationMetaMessage::PostgresGss(_) => {
            socket.send(PgWireBackendMessage::GssEncResponse(GssEncResponse::Refuse)).await
        }
        SslNegotiationMetaMessage::None => {
            socket.set_state(ConnectionState::AwaitingStartup);
            Ok(())
        }
    }
}

/// Handles the messages of an authenticated client.
async fn answer(
    shared: &Arc<Shared>,
    socket: &mut Socket,
    handlers: &Handlers,
    cancellation: &Cancellation,
) -> std::io::Result<()> {
    while let Some(message) = socket.next().await {
        let message = match message {
            Ok(PgWireFrontendMessage::Terminate(_)) => return Ok(()),
            Ok(message) => message,
            Err(error) => return process_error(socket, error, false).await,
        };
        let is_extended = message.is_extended_query();
        let is_sync = matches!(message, PgWireFrontendMessage::Sync(_));
        let token = token_of(&message, cancellation);
        let handled = tokio::select! {
            biased;
            () = token.cancelled() => Err(PgWireError::QueryCanceled),
            handled = process(shared, socket, handlers, message) => handled,
        };
        cancellation.end();
        if cancellation.closed().is_cancelled() {
            return farewell(socket).await;
        }
        let is_failed = handled.is_err();
        if let Err(error) = handled {
            let is_fatal = error.is_fatal();
            process_error(socket, error, is_extended).await?;
            if is_fatal {
                return Ok(());
            }
        }
        // The rows of a portal hold scanners. Portals end with the block, as Postgres has it.
        if is_failed || (is_sync && socket.transaction_status() == TransactionStatus::Idle) {
            socket.portal_store().clear_portals();
        }
    }
    farewell(socket).await
}

/// Returns the token that cancels a message. No cancel request ends one that only sends complete replies: its error
/// would come after the reply, and the client would wait for another end of it.
fn token_of(message: &PgWireFrontendMessage, cancellation: &Cancellation) -> CancellationToken {
    match message {
        PgWireFrontendMessage::Sync(_) | PgWireFrontendMessage::Flush(_) => cancellation.closed().clone(),
        _ => cancellation.begin(),
    }
}

/// Says why the connection ends, to a client that still listens.
async fn farewell(socket: &mut Socket) -> std::io::Result<()> {
    let what =
        "the connection ends: the server stops, the client has ended its side, or a message was too long";
    let info = ErrorInfo::new("FATAL".to_string(), "57P01".to_string(), what.to_string());
    socket.send(PgWireBackendMessage::ErrorResponse(info.into())).await
}

async fn process(
    shared: &Arc<Shared>,
    socket: &mut Socket,
    handlers: &Handlers,
    message: PgWireFrontendMessage,
) -> PgWireResult<()> {
    process_message(
        message,
        socket,
        handlers.startup.clone(),
        handlers.query.clone(),
        handlers.query.clone(),
        Arc::new(NoopHandler),
        shared.cancels.clone(),
    )
    .await
}

#[cfg(test)]
mod tests {
    use pgwire::api::cancel::CancelHandler;
    use pgwire::messages::cancel::CancelRequest;
    use pgwire::messages::extendedquery::{Flush, Sync as SyncMessage};
    use pgwire::messages::simplequery::Query;
    use pgwire::messages::startup::SecretKey;

    use super::super::cancel::Cancels;
    use super::*;

    #[tokio::test]
    async fn a_message_that_only_sends_replies_ends_with_the_connection_alone() {
        let cancels = Arc::new(Cancels::default());
        let connection = cancels.connection();
        let _registration = cancels.register(7, SecretKey::I32(5), connection.clone());
        let cancel = || cancels.on_cancel_request(CancelRequest::new(7, SecretKey::I32(5)));

        let query = PgWireFrontendMessage::Query(Query::new("SELECT 1".to_string()));
        let running = token_of(&query, &connection);
        cancel().await;
        assert!(running.is_cancelled());
        connection.end();

        let sync = token_of(&PgWireFrontendMessage::Sync(SyncMessage::new()), &connection);
        let flush = token_of(&PgWireFrontendMessage::Flush(Flush::new()), &connection);
        cancel().await;
        assert!(!sync.is_cancelled() && !flush.is_cancelled());
        connection.close();
        assert!(sync.is_cancelled() && flush.is_cancelled());
    }
}
