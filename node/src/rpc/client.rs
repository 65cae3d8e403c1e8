//! Calling a server: one connection with many calls in flight.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use engine::time::Instant;
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

use super::frame::{self, Frame, FrameReader, split_body};
use super::negotiate::{ClientNegotiation, Step};
use super::outbox::Outbox;
pub use super::proxy::{Proxy, Target};
use super::{RequestIdPb, RpcErrorCodePb};
use crate::env::{Env, Stream};
use crate::proto::kudu::rpc::{ErrorStatusPb, RemoteMethodPb, RequestHeader, ResponseHeader};

/// The longest reply accepted, in bytes.
const REPLY_BYTES_MAX: usize = 256 << 20;
/// A call that times out on a connection that was silent for this long ends the connection: the next call makes a
/// new one. TCP alone may take a quarter of an hour to find out.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// Why a call got no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RpcError {
    /// The server answered with an error.
    Remote {
        code: RpcErrorCodePb,
        message: String,
        /// The required feature flags the server does not know.
        unsupported_features: Vec<u32>,
        /// Of the tablet copy service: its own error, encoded.
        copy_error: Option<Bytes>,
    },
    /// There was no connection, or it broke. `sent`: the server may have the call, and may even have executed it.
    Network { message: String, sent: bool },
    /// The deadline passed. `sent` as above.
    TimedOut { message: String, sent: bool },
    /// The response cannot be decoded.
    Malformed { message: String },
}

impl RpcError {
    /// Whether the same call to the same server may succeed later, and surely was not executed.
    pub fn is_busy(&self) -> bool {
        let busy = [RpcErrorCodePb::ErrorServerTooBusy, RpcErrorCodePb::ErrorUnavailable];
        matches!(self, RpcError::Remote { code, .. } if busy.contains(code))
    }

    /// Whether the server was not reached or is going away: another one, or a later attempt, may do.
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

/// What may be asked for with a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// Application feature flags the server must know, or refuse the call.
    pub features: Vec<u32>,
    /// For tracked methods: makes retries of the call give the first one's response.
    pub request_id: Option<RequestIdPb>,
}

/// A response message and what came beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response<M> {
    pub message: M,
    pub sidecars: Vec<Bytes>,
}

type RawResponse = Result<Response<Bytes>, RpcError>;

/// A negotiated connection to one server. Ends when it breaks or [`Connection::close`] is called.
pub struct Connection {
    env: Env,
    outbox: Outbox,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    next_id: i32,
    waiting: BTreeMap<i32, oneshot::Sender<RawResponse>>,
    /// Since when calls wait without a byte from the server.
    silent_since: Instant,
    /// Why the connection takes no more calls.
    ended: Option<String>,
}

impl Connection {
    /// Connects and negotiates as `user`, until `deadline`.
    pub async fn connect(
        env: &Env,
        addr: SocketAddr,
        user: &str,
        deadline: Instant,
    ) -> Result<Arc<Connection>, RpcError> {
        let mut stream = env.net.connect(addr, deadline).await.map_err(|error| {
            let message = format!("connecting to {addr}: {error}");
            match error.kind() {
                std::io::ErrorKind::TimedOut => RpcError::TimedOut { message, sent: false },
                _ => RpcError::Network { message, sent: false },
            }
        })?;
        let mut reader = FrameReader::new(REPLY_BYTES_MAX);
        let left = deadline.since(env.now().mono);
        let timed_out = || {
            let message = format!("negotiating with {addr}: no answer in time");
            RpcError::TimedOut { message, sent: false }
        };
        let negotiation = negotiate(&mut stream, &mut reader, user);
        env.timeout(left, negotiation).await.ok_or_else(timed_out)??;
        let (outbox, calls) = (Outbox::default(), Mutex::default());
        let connection = Arc::new(Connection { env: env.clone(), outbox, calls });
        env.spawn("rpc client", run(connection.clone(), stream, reader, addr));
        Ok(connection)
    }

    /// Whether the connection takes calls.
    pub fn is_open(&self) -> bool {
        self.calls().ended.is_none()
    }

    /// Fails the calls that wait and closes the stream.
    pub fn close(&self, why: &str) {
        let waiting = {
            let mut calls = self.calls();
            calls.ended.get_or_insert_with(|| why.to_string());
            std::mem::take(&mut calls.waiting)
        };
        for reply in waiting.into_values() {
            let _ = reply.send(Err(RpcError::network(why, true)));
        }
        self.outbox.close();
    }

    /// Calls `service`.`method` and waits for its response, at most until `deadline`.
    pub async fn call<Req: Message, Resp: Message + Default>(
        &self,
        service: &str,
        method: &str,
        request: &Req,
        deadline: Instant,
        options: &CallOptions,
    ) -> Result<Response<Resp>, RpcError> {
        self.call_with_sidecars(service, method, request, Vec::new(), deadline, options).await
    }

    /// As [`Connection::call`], with bytes beside the request that are sent from where they are.
    pub async fn call_with_sidecars<Req: Message, Resp: Message + Default>(
        &self,
        service: &str,
        method: &str,
        request: &Req,
        sidecars: Vec<Bytes>,
        deadline: Instant,
        options: &CallOptions,
    ) -> Result<Response<Resp>, RpcError> {
        let left = deadline.since(self.env.now().mono);
        if left.is_zero() {
            let message = format!("{method}: the deadline passed before the call was sent");
            return Err(RpcError::TimedOut { message, sent: false });
        }
        let header = request_header(service, method, left, options);
        let (id, reply) = self.send(header, request, sidecars)?;
        let _forget = Forget { connection: self, id };
        match self.env.timeout(left, reply).await {
            Some(response) => decode(method, response.unwrap_or_else(|_| Err(ended_before(method)))?),
            None => {
                self.end_if_silent();
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
        header.sidecar_offsets = frame::sidecar_offsets(message_bytes, &sidecars)
            .ok_or_else(|| RpcError::network("the call does not fit into a frame", false))?;
        let body_bytes = message_bytes + sidecars.iter().map(Bytes::len).sum::<usize>();
        {
            let mut calls = self.calls();
            if let Some(why) = &calls.ended {
                return Err(RpcError::network(why, false));
            }
            header.call_id = calls.next_id;
            calls.next_id = if calls.next_id == i32::MAX { 0 } else { calls.next_id + 1 };
            if calls.waiting.is_empty() {
                calls.silent_since = self.env.now().mono;
            }
            calls.waiting.insert(header.call_id, reply);
        }
        self.outbox.put(|put| {
            frame::put_head(&header, body_bytes, put.small());
            request.encode(put.small()).expect("a buffer grows as it is written");
            sidecars.into_iter().for_each(|sidecar| put.part(sidecar));
        });
        Ok((header.call_id, response))
    }

    fn end_if_silent(&self) {
        let now = self.env.now().mono;
        let silent = now.since(self.calls().silent_since);
        if silent >= SILENCE_MAX {
            self.close(&format!("the server was silent for {} ms", silent.as_millis()));
        }
    }

    fn on_frame(&self, frame: Frame) -> Result<(), String> {
        let header = ResponseHeader::decode(frame.header)
            .map_err(|error| format!("a response header cannot be decoded: {error}"))?;
        let response = if header.is_error() {
            Err(remote_error(&frame.body))
        } else {
            let parts = split_body(frame.body, &header.sidecar_offsets).map_err(|error| error.to_string())?;
            Ok(Response { message: parts.0, sidecars: parts.1 })
        };
        let going = matches!(&response, Err(RpcError::Remote { code, .. }) if *code == GOING);
        let (waiting, idle) = {
            let mut calls = self.calls();
            calls.silent_since = self.env.now().mono;
            if going {
                calls.ended.get_or_insert_with(|| "the server is shutting down".to_string());
            }
            let waiting = calls.waiting.remove(&header.call_id);
            (waiting, calls.waiting.is_empty())
        };
        // A caller that gave up does not wait any more.
        if let Some(reply) = waiting {
            let _ = reply.send(response);
        }
        // Calls that the server had begun may still be answered.
        if going && idle { Err("the server is shutting down".to_string()) } else { Ok(()) }
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().expect("no one panics holding this lock")
    }
}

/// What a server that stops answers to calls it does not begin any more.
const GOING: RpcErrorCodePb = RpcErrorCodePb::FatalServerShuttingDown;

/// Takes a call from those that wait, however its caller stops waiting.
struct Forget<'a> {
    connection: &'a Connection,
    id: i32,
}

impl Drop for Forget<'_> {
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
    }
}

fn ended_before(method: &str) -> RpcError {
    RpcError::network(format!("{method}: the connection ended before the response"), true)
}

fn remote_error(body: &Bytes) -> RpcError {
    match ErrorStatusPb::decode(body.clone()) {
        Ok(status) => RpcError::Remote {
            code: status.code(),
            unsupported_features: status.unsupported_feature_flags.clone(),
            copy_error: status.tablet_copy_error.clone(),
            message: status.message,
        },
        Err(error) => RpcError::Malformed { message: format!("an error status: {error}") },
    }
}

fn decode<M: Message + Default>(method: &str, response: Response<Bytes>) -> Result<Response<M>, RpcError> {
    let message = M::decode(response.message)
        .map_err(|error| RpcError::Malformed { message: format!("{method}: {error}") })?;
    Ok(Response { message, sidecars: response.sidecars })
}

async fn negotiate(stream: &mut Stream, reader: &mut FrameReader, user: &str) -> Result<(), RpcError> {
    let broke = |error: std::io::Error| RpcError::network(format!("negotiation: {error}"), false);
    let mut negotiation = ClientNegotiation::new(user);
    let mut send = negotiation.hello();
    loop {
        stream.write_all(&send).await.map_err(broke)?;
        stream.flush().await.map_err(broke)?;
        let frame = read_frame(stream, reader).await.map_err(|why| RpcError::network(why, false))?;
        match negotiation.on_frame(&frame) {
            Step::Continue(bytes) => send = bytes,
            Step::Done { send, .. } => {
                stream.write_all(&send).await.map_err(broke)?;
                return stream.flush().await.map_err(broke);
            }
            Step::Failed { code, message, .. } => {
                let unsupported_features = Vec::new();
                return Err(RpcError::Remote { code, message, unsupported_features, copy_error: None });
            }
        }
    }
}

async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    reader: &mut FrameReader,
) -> Result<Frame, String> {
    loop {
        if let Some(frame) = reader.next_frame().map_err(|error| error.to_string())? {
            return Ok(frame);
        }
        let read = stream.read_buf(reader.space()).await.map_err(|error| error.to_string())?;
        if read == 0 {
            return Err("closed by the server".to_string());
        }
    }
}

/// The connection's task: sends what is put and hands out responses, until it ends.
async fn run(connection: Arc<Connection>, stream: Stream, mut reader: FrameReader, addr: SocketAddr) {
    let env = connection.env.clone();
    let (mut from, mut to) = tokio::io::split(stream);
    let sending = connection.outbox.send_all(&env, &mut to, None);
    let reading = async {
        loop {
            let frame = read_frame(&mut from, &mut reader).await?;
            connection.on_frame(frame)?;
        }
    };
    let ended: Result<(), String> = tokio::select! {
        biased;
        sent = sending => sent.map_err(|error| error.to_string()),
        read = reading => read,
    };
    let why = ended.err().unwrap_or_else(|| "closed".to_string());
    connection.close(&format!("connection to {addr}: {why}"));
}
