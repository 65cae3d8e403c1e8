//! Admission of calls by their headers, before a byte of a message is read.
//!
//! ```text
//!   headers ─┬─ Handshake ─────────────────────► name and secret ── token
//!            ├─ token of a session ────────────► message ── service
//!            └─ none, unknown or expired token ► refused
//! ```
//!
//! gRPC reads and decodes a whole message before the code of its call runs, and a decoded message may be many times as
//! large as its bytes.
//!
//! - Invariant: messages of clients that have not proved who they are take no memory beyond the windows of HTTP/2.
//! - A call keeps the place of its connection until it is dropped, which may be after the connection.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_flight::flight_service_server::FlightServiceServer;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;

use super::super::places::ConnectionPlace;
use super::service::FlightSql;

/// Path of the only call without a token.
const HANDSHAKE: &str = "/arrow.flight.protocol.FlightService/Handshake";

/// Service that admits calls.
#[derive(Clone)]
pub(super) struct Admission {
    flight: Arc<FlightSql>,
    calls: FlightServiceServer<FlightSql>,
}

impl Admission {
    pub(super) fn new(flight: FlightSql, message_bytes_max: usize) -> Admission {
        let flight = Arc::new(flight);
        let calls = FlightServiceServer::from_arc(flight.clone());
        Admission { flight, calls: calls.max_decoding_message_size(message_bytes_max) }
    }

    fn admit(&self, request: Request<Body>) -> Result<Request<Body>, Status> {
        let (mut parts, body) = request.into_parts();
        if parts.uri.path() != HANDSHAKE {
            self.flight.admit(&parts.headers, &mut parts.extensions)?;
        }
        Ok(Request::from_parts(parts, body))
    }
}

impl Service<Request<Body>> for Admission {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    /// Is always ready, as the service behind it.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match self.admit(request) {
            Ok(request) => {
                let place = request.extensions().get::<Arc<ConnectionPlace>>().cloned();
                let call = self.calls.call(request);
                Box::pin(async move {
                    let answered = call.await;
                    drop(place);
                    answered
                })
            }
            Err(refused) => Box::pin(ready(Ok(refused.into_http::<Body>()))),
        }
    }
}

impl NamedService for Admission {
    const NAME: &'static str = <FlightServiceServer<FlightSql> as NamedService>::NAME;
}
