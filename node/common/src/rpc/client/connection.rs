//! One connection of a client, with many calls in flight.

use engine::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::time::Instant;
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, oneshot};

use super::super::call_spans::{self, OutgoingCall};
use super::super::frame::{self, Frame, FrameReader, split_body};
use super::super::negotiate::{ClientNegotiation, NegotiationStep};
use super::super::send_queue::{FrameSender, SendQueue};
use super::super::{RequestIdPb, RpcErrorCodePb};
use crate::env::{Env, Stream};
use crate::security::RpcCaller;
use crate::security::tls::TlsStream;
use crate::spans::SpanOrigin;
use nyala_proto::kudu::rpc::{ErrorStatusPb, RemoteMethodPb, RequestHeader, ResponseHeader};

/// Maximum length of a received frame in bytes.
const REPLY_BYTES_MAX: usize = 256 << 20;
/// Time without a byte from the server after which a call that times out closes the connection, so that the next
/// call opens a new one. TCP alone may need 15 minutes to detect a dead peer.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// Failure of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RpcError {
    /// The server replied with an error.
    Remote {
        code: RpcErrorCodePb,
        message: String,
        /// Required feature flags that the server does not support.
        unsupported_features: Vec<u32>,
        /// Encoded error of the tablet copy service.
        copy_error: Option<Bytes>,
    },
    /// The connection could not be opened, or broke. `sent` is true if the server may have executed the call.
    Network { message: String, sent: bool },
    /// The deadline passed. `sent` is true if the server may have executed the call.
    TimedOut { message: String, sent: bool },
    /// The response cannot be decoded.
    Malformed { message: String },
}

impl RpcError {
    /// Returns true if the call was certainly not executed and may succeed later at the same server.
    pub fn is_busy(&self) -> bool {
        let busy = [RpcErrorCodePb::ErrorServerTooBusy, RpcErrorCodePb::ErrorUnavailable];
        matches!(self, RpcError::Remote { code, .. } if busy.contains(code))
    }

    /// Returns true if the server was not reached or is shutting down: another server or a later attempt may succeed.
    pub fn is_unreachable(&self) -> bool {
        match self {
            RpcError::Remote { code, .. } => *code == RpcErrorCodePb::FatalServerShuttingDown,
            RpcError::Network { .. } => true,
            RpcError::TimedOut { .. } | RpcError::Malformed { .. } => false,
        }
    }

    pub(super) fn network(message: impl fmt::Display, sent: bool) -> RpcError {
        RpcError::Network { message: message.to_string(), sent }
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RpcError::Remote { code, message, unsupported_features, .. } => {
                write!(f, "{}: {message}", code.as_str_name())?;
                if unsupported_features.is_empty() {
                    return Ok(());
                }
                write!(f, " (unsupported feature flags {unsupported_features:?})")
            }
            RpcError::Network { message, .. } => write!(f, "network: {message}"),
            RpcError::TimedOut { message, .. } => write!(f, "timed out: {message}"),
            RpcError::Malformed { message } => write!(f, "malformed response: {message}"),
        }
    }
}

impl std::error::Error for RpcError {}

/// Options of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// Application feature flags that the server must support; otherwise it rejects the call.
    pub features: Vec<u32>,
    /// Request id of a tracked method: a retry with the same id returns the first attempt's response.
    pub request_id: Option<RequestIdPb>,
    /// Span that the call is made for.
    pub span: SpanOrigin,
}

/// A response message and its sidecars.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcResponse<M> {
    pub message: M,
    pub sidecars: Vec<Bytes>,
}

type RawResponse = Result<RpcResponse<Bytes>, RpcError>;

/// A negotiated connection to one server. Ends when it breaks or [`ClientConnection::close`] is called.
pub struct ClientConnection {
    env: Env,
    addr: SocketAddr,
    /// True if headers of calls may carry spans.
    spans_agreed: bool,
    send_queue: SendQueue,
    calls: Mutex<Calls>,
    closed: Notify,
}

#[derive(Default)]
struct Calls {
    next_id: i32,
    waiting: BTreeMap<i32, oneshot::Sender<RawResponse>>,
    /// Time of the last byte from the server, or of the first call after it.
    silent_since: Instant,
    /// True if a call has timed out since the last byte from the server.
    has_timed_out: bool,
    /// Reason why the connection accepts no more calls.
    end_reason: Option<String>,
}

impl Calls {
    /// Notes that bytes came from the server.
    fn end_silence(&mut self, now: Instant) {
        (self.silent_since, self.has_timed_out) = (now, false);
    }
}

impl ClientConnection {
    /// Connects and negotiates as `caller`; fails at `deadline`.
    pub async fn connect(
        env: &Env,
        addr: SocketAddr,
        caller: impl Into<RpcCaller>,
        deadline: Instant,
    ) -> Result<Arc<ClientConnection>, RpcError> {
        ClientConnection::connect_to_host(env, addr, &addr.ip().to_string(), caller, deadline).await
    }

    /// As [`ClientConnection::connect`], to a server that is known by the name of its host.
    pub async fn connect_to_host(
        env: &Env,
        addr: SocketAddr,
        host: &str,
        caller: impl Into<RpcCaller>,
        deadline: Instant,
    ) -> Result<Arc<ClientConnection>, RpcError> {
        let caller = caller.into();
        let stream = env.net.connect(addr, deadline).await.map_err(|error| {
            let message = format!("connecting to {addr}: {error}");
            match error.kind() {
                std::io::ErrorKind::TimedOut => RpcError::TimedOut { message, sent: false },
                _ => RpcError::Network { message, sent: false },
            }
        })?;
        let mut reader = FrameReader::new(REPLY_BYTES_MAX);
        let left = deadline.since(env.now().mono);
        let timed_out = || {
            let message = format!("negotiating with {addr}: no reply in time");
            RpcError::TimedOut { message, sent: false }
        };
        let loopback = addr.ip().to_canonical().is_loopback();
        let offer = ClientNegotiation::with(&caller, loopback).for_host(host);
        let offer = offer.offering_spans(env.spans.is_on());
        let negotiation = negotiate(env, stream, &mut reader, offer);
        let (stream, spans_agreed) = env.timeout(left, negotiation).await.ok_or_else(timed_out)??;
        let connection = Arc::new(ClientConnection {
            env: env.clone(),
            addr,
            spans_agreed,
            send_queue: SendQueue::default(),
            calls: Mutex::default(),
            closed: Notify::new(),
        });
        env.spawn("rpc client", run(connection.clone(), stream, reader, addr));
        Ok(connection)
    }

    /// Returns true if the connection accepts calls.
    pub fn is_open(&self) -> bool {
        self.calls().end_reason.is_none()
    }

    /// Fails all waiting calls and closes the stream.
    pub fn close(&self, why: &str) {
        let waiting = {
            let mut calls = self.calls();
            calls.end_reason.get_or_insert_with(|| why.to_string());
            std::mem::take(&mut calls.waiting)
        };
        for reply in waiting.into_values() {
            let _ = reply.send(Err(RpcError::network(why, true)));
        }
        self.send_queue.close();
        self.closed.notify_one();
    }

    /// Calls `service`.`method` and waits for the response until `deadline`.
    pub async fn call<Req: Message, Resp: Message + Default>(
        &self,
        service: &str,
        method: &str,
        request: &Req,
        deadline: Instant,
        options: &CallOptions,
    ) -> Result<RpcResponse<Resp>, RpcError> {
        self.call_with_sidecars(service, method, request, Vec::new(), deadline, options).await
    }

    /// As [`ClientConnection::call`], with request sidecars that are sent without a copy.
    pub async fn call_with_sidecars<Req: Message, Resp: Message + Default>(
        &self,
        service: &str,
        method: &str,
        request: &Req,
        sidecars: Vec<Bytes>,
        deadline: Instant,
        options: &CallOptions,
    ) -> Result<RpcResponse<Resp>, RpcError> {
        let left = deadline.since(self.env.now().mono);
        if left.is_zero() {
            let message = format!("{method}: the deadline passed before the call was sent");
            return Err(RpcError::TimedOut { message, sent: false });
        }
        let mut header = request_header(service, method, left, options);
        let Some(span) = self.env.spans.begin(options.span) else {
            return self.exchange(method, header, request, sidecars, left).await;
        };
        let sent = self.spans_agreed.then(|| Bytes::copy_from_slice(&span.context.to_bytes()));
        header.nyala_span = sent;
        let began = self.env.now();
        let response = self.exchange(method, header, request, sidecars, left).await;
        let error = response.as_ref().err().map(RpcError::to_string);
        let called = OutgoingCall { service, method, to: self.addr, error };
        call_spans::record_outgoing(&self.env.spans, span, (began, self.env.now()), called);
        response
    }

    /// Sends a call and waits for its response.
    async fn exchange<Req: Message, Resp: Message + Default>(
        &self,
        method: &str,
        header: RequestHeader,
        request: &Req,
        sidecars: Vec<Bytes>,
        left: Duration,
    ) -> Result<RpcResponse<Resp>, RpcError> {
        let (id, reply) = self.send(header, request, sidecars)?;
        let _pending = PendingCallGuard { connection: self, id };
        match self.env.timeout(left, reply).await {
            Some(response) => decode(method, response.unwrap_or_else(|_| Err(connection_lost(method)))?),
            None => {
                self.on_timeout();
                Err(RpcError::TimedOut { message: format!("{method}: no response in time"), sent: true })
            }
        }
    }

    fn send(
        &self,
        mut header: RequestHeader,
        request: &impl Message,
        sidecars: Vec<Bytes>,
    ) -> Result<(i32, oneshot::Receiver<RawResponse>), RpcError> {
        let (reply, response) = oneshot::channel();
        let message_bytes = request.encoded_len();
        header.sidecar_offsets = frame::sidecar_offsets(message_bytes, &sidecars.clone().into())
            .ok_or_else(|| RpcError::network("the call does not fit into a frame", false))?;
        let body_bytes = message_bytes + sidecars.iter().map(Bytes::len).sum::<usize>();
        let sender = {
            let mut calls = self.calls();
            if let Some(why) = &calls.end_reason {
                return Err(RpcError::network(why, false));
            }
            header.call_id = calls.next_id;
            calls.next_id = if calls.next_id == i32::MAX { 0 } else { calls.next_id + 1 };
            // After a timeout the silence continues: a caller of one call at a time may have short timeouts.
            if calls.waiting.is_empty() && !calls.has_timed_out {
                calls.silent_since = self.env.now().mono;
            }
            calls.waiting.insert(header.call_id, reply);
            FrameSender::of(calls.waiting.len() == 1)
        };
        self.send_queue.put(sender, |put| {
            frame::put_head(&header, body_bytes, put.small());
            request.encode(put.small()).expect("encoding into a growing buffer does not fail");
            sidecars.into_iter().for_each(|sidecar| put.part(sidecar));
        });
        Ok((header.call_id, response))
    }

    /// Closes the connection if the server has been silent for long.
    fn on_timeout(&self) {
        let now = self.env.now().mono;
        let silent = {
            let mut calls = self.calls();
            calls.has_timed_out = true;
            now.since(calls.silent_since)
        };
        if silent >= SILENCE_MAX {
            self.close(&format!("the server was silent for {} ms", silent.as_millis()));
        }
    }

    /// Notes that the server is not silent: a large response may take long on a slow link.
    fn on_partial_frame(&self) {
        self.calls().end_silence(self.env.now().mono);
    }

    fn on_frame(&self, frame: Frame) -> Result<(), String> {
        let header = ResponseHeader::decode(frame.header)
            .map_err(|error| format!("a response header cannot be decoded: {error}"))?;
        let response = if header.is_error() {
            Err(remote_error(&frame.body))
        } else {
            let parts = split_body(frame.body, &header.sidecar_offsets).map_err(|error| error.to_string())?;
            Ok(RpcResponse { message: parts.0, sidecars: parts.1 })
        };
        let shutting_down = matches!(&response, Err(RpcError::Remote { code, .. }) if *code == SHUTTING_DOWN);
        let (waiting, idle) = {
            let mut calls = self.calls();
            calls.end_silence(self.env.now().mono);
            if shutting_down {
                calls.end_reason.get_or_insert_with(|| "the server is shutting down".to_string());
            }
            let waiting = calls.waiting.remove(&header.call_id);
            (waiting, calls.waiting.is_empty())
        };
        // The entry is missing if the caller gave up.
        if let Some(reply) = waiting {
            let _ = reply.send(response);
        }
        // The server may still reply to calls that it had begun.
        if shutting_down && idle { Err("the server is shutting down".to_string()) } else { Ok(()) }
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock()
    }
}

/// Error code of a stopping server for calls that it does not begin. A server of nyala sends another code, with a mark
/// ([`code_of`]).
const SHUTTING_DOWN: RpcErrorCodePb = RpcErrorCodePb::FatalServerShuttingDown;

/// Removes a call from the waiting calls when its caller stops waiting for any reason.
struct PendingCallGuard<'a> {
    connection: &'a ClientConnection,
    id: i32,
}

impl Drop for PendingCallGuard<'_> {
    fn drop(&mut self) {
        self.connection.calls().waiting.remove(&self.id);
    }
}

fn request_header(service: &str, method: &str, left: Duration, options: &CallOptions) -> RequestHeader {
    let millis = left.as_millis().clamp(1, u128::from(u32::MAX)) as u32;
    RequestHeader {
        call_id: 0,
        remote_method: Some(RemoteMethodPb {
            service_name: service.to_string(),
            method_name: method.to_string(),
        }),
        timeout_millis: Some(millis),
        required_feature_flags: options.features.clone(),
        request_id: options.request_id.clone(),
        sidecar_offsets: Vec::new(),
        nyala_span: None,
    }
}

fn connection_lost(method: &str) -> RpcError {
    RpcError::network(format!("{method}: the connection ended before the response"), true)
}

fn remote_error(body: &Bytes) -> RpcError {
    match ErrorStatusPb::decode(body.clone()) {
        Ok(status) => RpcError::Remote {
            code: code_of(&status),
            unsupported_features: status.unsupported_feature_flags.clone(),
            copy_error: status.tablet_copy_error.clone(),
            message: status.message,
        },
        Err(error) => RpcError::Malformed { message: format!("an error status: {error}") },
    }
}

/// Returns the code of an error status. A stopping server of nyala sends ERROR_UNAVAILABLE, which Kudu's clients retry,
/// and marks it, so that this client leaves the server at once.
fn code_of(status: &ErrorStatusPb) -> RpcErrorCodePb {
    if status.nyala_shutting_down() { SHUTTING_DOWN } else { status.code() }
}

fn decode<M: Message + Default>(
    method: &str,
    response: RpcResponse<Bytes>,
) -> Result<RpcResponse<M>, RpcError> {
    let message = M::decode(response.message)
        .map_err(|error| RpcError::Malformed { message: format!("{method}: {error}") })?;
    Ok(RpcResponse { message, sidecars: response.sidecars })
}

/// Runs negotiation. Returns the stream, inside TLS if that was agreed, and whether calls may carry spans.
async fn negotiate(
    env: &Env,
    mut stream: Stream,
    reader: &mut FrameReader,
    mut negotiation: ClientNegotiation,
) -> Result<(Stream, bool), RpcError> {
    let failed = |why: String| RpcError::network(format!("negotiation: {why}"), false);
    send(&mut stream, &negotiation.hello()).await?;
    loop {
        let frame = read_frame(&mut stream, reader, || {}).await;
        let frame = frame.map_err(|why| RpcError::network(why, false))?;
        let mut step = match negotiation.may_block() {
            true => env.run(|| negotiation.on_frame(&frame)).await,
            false => negotiation.on_frame(&frame),
        };
        if let NegotiationStep::StartTls { send: bytes, then } = step {
            send(&mut stream, &bytes).await?;
            let session = negotiation.take_session().ok_or_else(|| failed("no TLS session".to_string()))?;
            stream = Box::new(TlsStream::new(stream, session, reader.take_unread()));
            step = *then;
        }
        match step {
            NegotiationStep::Continue(bytes) => send(&mut stream, &bytes).await?,
            NegotiationStep::StartTls { .. } => return Err(failed("TLS inside TLS".to_string())),
            NegotiationStep::Done { send: bytes, .. } => {
                send(&mut stream, &bytes).await?;
                return Ok((stream, negotiation.spans_agreed()));
            }
            NegotiationStep::Failed { code, message, .. } => {
                let unsupported_features = Vec::new();
                return Err(RpcError::Remote { code, message, unsupported_features, copy_error: None });
            }
        }
    }
}

async fn send(stream: &mut Stream, bytes: &[u8]) -> Result<(), RpcError> {
    if bytes.is_empty() {
        return Ok(());
    }
    let broke = |error: std::io::Error| RpcError::network(format!("negotiation: {error}"), false);
    stream.write_all(bytes).await.map_err(broke)?;
    stream.flush().await.map_err(broke)
}

/// Reads the next frame; calls `on_part` whenever some of its bytes have come and others are still to come.
async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    reader: &mut FrameReader,
    on_part: impl Fn(),
) -> Result<Frame, String> {
    loop {
        if let Some(frame) = reader.next_frame().map_err(|error| error.to_string())? {
            return Ok(frame);
        }
        if reader.is_mid_frame() {
            on_part();
        }
        let read = stream.read_buf(reader.space()).await.map_err(|error| error.to_string())?;
        if read == 0 {
            return Err("closed by the server".to_string());
        }
    }
}

/// Runs the connection's task: sends queued calls and delivers responses until the connection ends.
async fn run(connection: Arc<ClientConnection>, stream: Stream, mut reader: FrameReader, addr: SocketAddr) {
    let env = connection.env.clone();
    let (mut from, to) = tokio::io::split(stream);
    let _socket = connection.send_queue.attach(to);
    let sending = connection.send_queue.send_all(&env, None);
    let reading = async {
        loop {
            let frame = read_frame(&mut from, &mut reader, || connection.on_partial_frame()).await?;
            connection.on_frame(frame)?;
        }
    };
    let ended: Result<(), String> = tokio::select! {
        biased;
        sent = sending => sent.map_err(|error| error.to_string()),
        read = reading => read,
        // The peer may take no more bytes, and no caller waits for the replies.
        () = connection.closed.notified() => Ok(()),
    };
    let why = ended.err().unwrap_or_else(|| "closed".to_string());
    connection.close(&format!("connection to {addr}: {why}"));
    connection.send_queue.discard();
}
