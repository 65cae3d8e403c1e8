//! Server side of one connection: negotiates, then reads calls and sends replies until either side closes it.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use engine::time::Instant;
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use super::dispatch::{ConnectionTurn, QueuedCall, RpcShared, count, dispatch};
use super::frame::{Frame, FrameReader, split_body};
use super::negotiate::{
    NEGOTIATION_FRAME_BYTES_MAX, NegotiationStep, PREAMBLE, ServerNegotiation, ServerNegotiationConfig,
    check_preamble,
};
use super::responder::Responder;
use super::server_connection::ServerConnection;
use crate::env::{BoxFuture, Env, Stream};
use crate::security::PeerIdentity;
use crate::security::audit::{AuditEvent, AuditOutcome};
use crate::security::tls::TlsStream;
use crate::spans::SpanContext;
use nyala_proto::kudu::rpc::RequestHeader;

/// Reason for the end of a connection that the peer did not close in order.
type EndReason = String;

/// Serves one accepted connection until it ends. Calls `ready` after negotiation, when `finish` becomes possible.
pub(super) async fn serve(
    shared: Arc<RpcShared>,
    stream: Stream,
    remote: SocketAddr,
    ready: impl FnOnce(Arc<ServerConnection>) + Send,
) {
    let env = shared.env.clone();
    let limit = shared.config.max_message_bytes;
    let mut reader = FrameReader::new(limit.min(NEGOTIATION_FRAME_BYTES_MAX));
    let negotiation = negotiate(&shared, stream, &mut reader, remote);
    let negotiated = env.timeout(shared.config.negotiation_timeout, negotiation).await;
    let (stream, client) =
        match negotiated.unwrap_or_else(|| Err("the negotiation took too long".to_string())) {
            Ok(negotiated) => negotiated,
            Err(why) => {
                count(&shared.counters.negotiations_failed);
                tracing::info!(%remote, why, "negotiation failed");
                return;
            }
        };
    reader.set_limit(limit);
    let connection = Arc::new(ServerConnection::new(env.clone(), shared.calls.clone()));
    ready(connection.clone());
    let (mut from, to) = tokio::io::split(stream);
    let _socket = connection.send_queue.attach(to);
    let sending = connection.send_queue.send_all(&env, shared.config.keepalive);
    let reading = read_calls(&shared, &connection, &mut from, &mut reader, client);
    let ended = send_and_read(sending, reading).await;
    connection.finish();
    match ended {
        // The send queue is empty. Let the peer read to the end before the stream is dropped.
        Ok(()) => drop(env.timeout(LINGER, connection.send_queue.shutdown()).await),
        Err(why) => tracing::info!(%remote, why, "connection dropped"),
    }
}

/// Sends queued replies and reads calls until either ends.
///
/// Order: the sender is polled again after the reader, so that replies of the calls of this turn leave in one write,
/// without another wake-up ([`SendQueue::in_turn`](super::send_queue::SendQueue::in_turn)).
async fn send_and_read(
    sending: impl Future<Output = io::Result<()>>,
    reading: impl Future<Output = Result<(), EndReason>>,
) -> Result<(), EndReason> {
    let (mut sending, mut reading) = (pin!(sending), pin!(reading));
    poll_fn(|cx| {
        let mut send = |cx: &mut Context<'_>| sending.as_mut().poll(cx).map_err(|error| error.to_string());
        if let Poll::Ready(sent) = send(cx) {
            return Poll::Ready(sent);
        }
        match reading.as_mut().poll(cx) {
            Poll::Ready(read) => Poll::Ready(read),
            Poll::Pending => send(cx),
        }
    })
    .await
}

/// Time for which a closing connection stays open so that the peer can read the last bytes.
const LINGER: Duration = Duration::from_secs(1);

/// The other side of a negotiated connection.
struct ConnectedClient {
    peer: Arc<PeerIdentity>,
    remote: SocketAddr,
    /// True if headers of calls may carry spans.
    spans_agreed: bool,
}

/// Runs negotiation. Returns the stream, inside TLS if that was agreed, and the client.
async fn negotiate(
    shared: &RpcShared,
    mut stream: Stream,
    reader: &mut FrameReader,
    remote: SocketAddr,
) -> Result<(Stream, ConnectedClient), EndReason> {
    check_preamble(&read_preamble(&mut stream, reader).await?)?;
    if !shared.config.negotiation_delay.is_zero() {
        shared.env.sleep(shared.config.negotiation_delay).await;
    }
    let mut negotiation = ServerNegotiation::with(negotiation_config(shared, remote));
    loop {
        let frame = read_frame(&mut stream, reader).await?.ok_or("closed by the client")?;
        let mut step = match negotiation.may_block() {
            true => shared.env.run(|| negotiation.on_frame(&frame)).await,
            false => negotiation.on_frame(&frame),
        };
        if let NegotiationStep::StartTls { send: bytes, then } = step {
            send(&mut stream, &bytes).await?;
            let session = negotiation.take_session().ok_or("the negotiation has no TLS session")?;
            stream = Box::new(TlsStream::new(stream, session, reader.take_unread()));
            step = *then;
        }
        match step {
            NegotiationStep::Continue(bytes) => send(&mut stream, &bytes).await?,
            NegotiationStep::StartTls { .. } => return Err("TLS inside TLS".to_string()),
            NegotiationStep::Done { .. } => {
                trace(shared, remote, &negotiation, None);
                let spans_agreed = negotiation.spans_agreed();
                let peer = negotiation.into_peer().ok_or("the negotiation has no identity")?;
                return Ok((stream, ConnectedClient { peer: Arc::new(peer), remote, spans_agreed }));
            }
            NegotiationStep::Failed { send: bytes, code, message } => {
                trace(shared, remote, &negotiation, Some(&format!("{}: {message}", code.as_str_name())));
                audit_failure(shared, remote, &message);
                send(&mut stream, &bytes).await?;
                drain_before_close(&shared.env, &mut stream).await;
                return Err(message);
            }
        }
    }
}

fn negotiation_config(shared: &RpcShared, remote: SocketAddr) -> ServerNegotiationConfig {
    let config = &shared.config;
    let mut nonce = [0; _];
    if shared.security.kerberos.is_some() {
        shared.env.rng.fill_secret(&mut nonce);
    }
    ServerNegotiationConfig {
        trusted: config.trusted_subnets.iter().any(|subnet| subnet.contains(remote.ip())),
        loopback: remote.ip().to_canonical().is_loopback(),
        encrypt_loopback: config.encrypt_loopback,
        authentication: config.authentication,
        encryption: config.encryption,
        spans: shared.env.spans.is_on(),
        now: shared.env.now().wall,
        nonce,
        security: shared.security.clone(),
    }
}

/// Records that a client could not prove who it is.
fn audit_failure(shared: &RpcShared, remote: SocketAddr, message: &str) {
    let Some(sink) = &shared.security.audit else { return };
    sink.record(AuditEvent {
        user: None,
        authn: None,
        remote,
        action: "authentication".to_string(),
        subject: None,
        outcome: AuditOutcome::Denied(message.to_string()),
    });
}

/// Logs a negotiation, if that is switched on. The texts are those of Kudu's own trace, which its tests read.
fn trace(shared: &RpcShared, remote: SocketAddr, negotiation: &ServerNegotiation, failure: Option<&str>) {
    if !shared.config.trace_negotiation {
        return;
    }
    if let Some(authn) = negotiation.authn_name() {
        tracing::info!(%remote, "Negotiated authn={authn}");
        if let Some(mechanism) = negotiation.sasl_mechanism() {
            tracing::info!(%remote, "Client requested to use mechanism: {mechanism}");
        }
    }
    match failure {
        None => tracing::info!(%remote, "Negotiation complete: OK"),
        Some(why) => {
            tracing::info!(%remote, "{}", refusal_line(why));
            let why = "Not authorized: Server connection negotiation failed";
            tracing::info!(%remote, "Negotiation complete: {why}");
        }
    }
}

/// Returns the log's line for a refusal, whose text may repeat what the peer sent.
fn refusal_line(why: &str) -> String {
    format!("Sending RPC error: {}", why.escape_debug())
}

async fn read_preamble(stream: &mut Stream, reader: &mut FrameReader) -> Result<Vec<u8>, EndReason> {
    loop {
        if let Some(bytes) = reader.take(PREAMBLE.len()) {
            return Ok(bytes.to_vec());
        }
        if read_some(stream, reader).await? == 0 {
            return Err("closed by the client before it sent the preamble".to_string());
        }
    }
}

async fn send(stream: &mut Stream, bytes: &[u8]) -> Result<(), EndReason> {
    if bytes.is_empty() {
        return Ok(());
    }
    stream.write_all(bytes).await.map_err(|error| error.to_string())?;
    stream.flush().await.map_err(|error| error.to_string())
}

/// Lets the peer read the error sent before. A stream dropped with unread bytes is reset, and the error is lost.
async fn drain_before_close(env: &Env, stream: &mut Stream) {
    let drain = async {
        let mut scrap = [0; 4096];
        let _ = stream.shutdown().await;
        while matches!(stream.read(&mut scrap).await, Ok(count) if count > 0) {}
    };
    env.timeout(LINGER, drain).await;
}

/// Reads the next frame. Returns `None` if the stream ends between two frames.
async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    reader: &mut FrameReader,
) -> Result<Option<Frame>, EndReason> {
    loop {
        if let Some(frame) = reader.next_frame().map_err(|error| error.to_string())? {
            return Ok(Some(frame));
        }
        if read_some(stream, reader).await? == 0 {
            let torn = reader.is_mid_frame();
            return if torn { Err("closed by the client inside a frame".to_string()) } else { Ok(None) };
        }
    }
}

async fn read_some(
    stream: &mut (impl AsyncRead + Unpin),
    reader: &mut FrameReader,
) -> Result<usize, EndReason> {
    stream.read_buf(reader.space()).await.map_err(|error| error.to_string())
}

/// Reads and dispatches calls until the peer closes the stream, violates the protocol or is idle for too long.
async fn read_calls(
    shared: &Arc<RpcShared>,
    connection: &Arc<ServerConnection>,
    stream: &mut (impl AsyncRead + Unpin),
    reader: &mut FrameReader,
    client: ConnectedClient,
) -> Result<(), EndReason> {
    let mut idle = IdleTimer::new(&shared.env, shared.config.keepalive);
    let mut turn = ConnectionTurn::new();
    let mut incoming = shared.incoming.share();
    loop {
        let received = shared.env.now().mono;
        if !connection.send_queue.is_above(0) {
            turn = ConnectionTurn::new();
        }
        connection
            .send_queue
            .in_turn(|| {
                while let Some(frame) = reader.next_frame().map_err(|error| error.to_string())? {
                    dispatch(shared, &mut turn, to_queued_call(connection, frame, received, &client)?);
                }
                Ok(())
            })
            .map_err(|why| protocol_error(shared, why))?;
        incoming.set(reader.long_frame_bytes(), shared.incoming_bytes_max())?;
        connection.send_queue.at_most(shared.config.max_unsent_bytes).await;
        let read = tokio::select! {
            biased;
            read = read_some(stream, reader) => read?,
            () = idle.idle_timeout(connection, received) => return Ok(()),
        };
        if read == 0 {
            return if reader.is_mid_frame() { Err("closed inside a frame".to_string()) } else { Ok(()) };
        }
    }
}

fn protocol_error(shared: &RpcShared, why: String) -> EndReason {
    count(&shared.counters.protocol_errors);
    why
}

fn to_queued_call(
    connection: &Arc<ServerConnection>,
    frame: Frame,
    received: Instant,
    client: &ConnectedClient,
) -> Result<QueuedCall, EndReason> {
    let mut header = RequestHeader::decode(frame.header)
        .map_err(|error| format!("a request header cannot be decoded: {error}"))?;
    let call_id = header.call_id;
    if call_id < 0 {
        return Err(format!("negative call id {call_id}"));
    }
    if header.remote_method.is_none() {
        return Err(format!("call {call_id} names no method"));
    }
    let (body, sidecars) =
        split_body(frame.body, &header.sidecar_offsets).map_err(|error| error.to_string())?;
    if !connection.begin(call_id) {
        return Err(format!("call id {call_id} is in flight already"));
    }
    let responder = Responder::new(connection.clone(), call_id);
    let sent = header.nyala_span.take().filter(|_| client.spans_agreed);
    let caller_span = sent.and_then(|sent| SpanContext::from_bytes(&sent));
    let (peer, remote) = (client.peer.clone(), client.remote);
    Ok(QueuedCall { responder, header, body, sidecars, received, peer, remote, caller_span })
}

/// Timer for connections that neither read nor write for the keep-alive time and have no call in flight. A reply that
/// the peer takes slowly is no silence; the sender gives up on a peer that takes nothing.
struct IdleTimer {
    env: Env,
    keepalive: Option<Duration>,
    sleep: Option<BoxFuture<'static, ()>>,
}

impl IdleTimer {
    fn new(env: &Env, keepalive: Option<Duration>) -> IdleTimer {
        IdleTimer { env: env.clone(), keepalive, sleep: None }
    }

    /// Returns when the connection is idle. The sleep is reused by later reads and checked when it ends, so that a
    /// received byte costs no timer operation.
    async fn idle_timeout(&mut self, connection: &ServerConnection, last_read: Instant) {
        let Some(keepalive) = self.keepalive else { return std::future::pending().await };
        loop {
            if let Some(sleep) = &mut self.sleep {
                sleep.await;
                self.sleep = None;
            }
            let last_reply = Instant(connection.last_reply.load(Ordering::Relaxed));
            let quiet_since = last_read.max(last_reply).max(connection.send_queue.last_wait());
            let mut until = quiet_since.after(keepalive);
            let now = self.env.now().mono;
            if now >= until {
                if connection.in_flight().is_empty() && !connection.send_queue.is_waiting() {
                    return;
                }
                until = now.after(keepalive);
            }
            self.sleep = Some(self.env.clock.sleep_until(until));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_one_line_of_the_log() {
        let why = "FATAL_INVALID_JWT: unknown variant `x\nNegotiation complete: OK\u{1b}[2J`";
        let line =
            "Sending RPC error: FATAL_INVALID_JWT: unknown variant `x\\nNegotiation complete: OK\\u{1b}[2J`";
        assert_eq!(refusal_line(why), line);
    }
}
