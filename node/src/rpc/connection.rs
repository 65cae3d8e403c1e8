//! One client's connection, server side: negotiate, then read calls and send replies until either side ends it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use engine::time::Instant;
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use super::dispatch::{Job, Responder, Shared, count, dispatch};
use super::frame::{Frame, FrameReader, split_body};
use super::negotiate::{PREAMBLE, ServerNegotiation, Step, check_preamble};
use super::outbox::{Outbox, Put};
use crate::env::{BoxFuture, Env, Stream};
use crate::proto::kudu::rpc::RequestHeader;

/// What others may do with a connection.
pub(super) struct Connection {
    shared: Arc<Shared>,
    outbox: Outbox,
    in_flight: Mutex<BTreeSet<i32>>,
    /// When the last reply was put, in nanoseconds of the clock.
    last_reply: AtomicU64,
}

impl Connection {
    fn new(shared: Arc<Shared>) -> Connection {
        Connection {
            shared,
            outbox: Outbox::default(),
            in_flight: Mutex::default(),
            last_reply: AtomicU64::new(0),
        }
    }

    /// Puts the reply to a call, whose id may be used again from now on.
    pub(super) fn reply(&self, call_id: i32, fill: impl FnOnce(&mut Put<'_>)) {
        self.last_reply.store(self.shared.env.now().mono.0, Ordering::Relaxed);
        self.in_flight().remove(&call_id);
        self.outbox.put(fill);
        if self.shared.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.all_answered.notify_waiters();
        }
    }

    /// Takes no more replies; the connection ends when those put are sent.
    pub(super) fn finish(&self) {
        self.outbox.close();
    }

    /// Notes a call as in flight; false if its id is.
    fn begin(&self, call_id: i32) -> bool {
        let new = self.in_flight().insert(call_id);
        if new {
            self.shared.in_flight.fetch_add(1, Ordering::AcqRel);
        }
        new
    }

    fn in_flight(&self) -> MutexGuard<'_, BTreeSet<i32>> {
        self.in_flight.lock().expect("no one panics holding this lock")
    }
}

/// Why a connection ended, when it was not the peer closing it in order.
type Ended = String;

/// Serves one accepted connection to its end. `ready` is called when it can be finished in order.
pub(super) async fn serve(
    shared: Arc<Shared>,
    mut stream: Stream,
    remote: SocketAddr,
    ready: impl FnOnce(Arc<Connection>) + Send,
) {
    let env = shared.env.clone();
    let mut reader = FrameReader::new(shared.config.max_message_bytes);
    let negotiation = negotiate(&shared, &mut stream, &mut reader, remote);
    let negotiated = env.timeout(shared.config.negotiation_timeout, negotiation).await;
    let user: Arc<str> = match negotiated.unwrap_or_else(|| Err("the negotiation took too long".to_string()))
    {
        Ok(user) => user.into(),
        Err(why) => {
            count(&shared.counters.negotiations_failed);
            tracing::info!(%remote, why, "negotiation failed");
            return;
        }
    };
    let connection = Arc::new(Connection::new(shared.clone()));
    ready(connection.clone());
    let (mut from, mut to) = tokio::io::split(stream);
    let sending = connection.outbox.send_all(&env, &mut to, shared.config.keepalive);
    let reading = read_calls(&connection, &mut from, &mut reader, user, remote);
    let ended = tokio::select! {
        biased;
        sent = sending => sent.map_err(|error| error.to_string()),
        read = reading => read,
    };
    connection.finish();
    match ended {
        // Nothing waits in the outbox: let the peer read to the end before the stream goes.
        Ok(()) => drop(env.timeout(LINGER, to.shutdown()).await),
        Err(why) => tracing::info!(%remote, why, "connection dropped"),
    }
}

/// How long a connection that was told an error stays open for the peer to read it.
const LINGER: Duration = Duration::from_secs(1);

/// From the first byte to the first call; gives the user.
async fn negotiate(
    shared: &Shared,
    stream: &mut Stream,
    reader: &mut FrameReader,
    remote: SocketAddr,
) -> Result<String, Ended> {
    check_preamble(&read_preamble(stream, reader).await?)?;
    if !shared.config.negotiation_delay.is_zero() {
        shared.env.sleep(shared.config.negotiation_delay).await;
    }
    let trusted = shared.config.trusted_subnets.iter().any(|subnet| subnet.contains(remote.ip()));
    let mut negotiation = ServerNegotiation::new(trusted);
    loop {
        let frame = read_frame(stream, reader).await?.ok_or("closed by the client")?;
        match negotiation.on_frame(&frame) {
            Step::Continue(bytes) => send(stream, &bytes).await?,
            Step::Done { user, .. } => {
                if shared.config.trace_negotiation {
                    // PLAIN is the only mechanism there is; the words are those of Kudu's own trace.
                    tracing::info!(%remote, user, "Client requested to use mechanism: PLAIN");
                }
                return Ok(user);
            }
            Step::Failed { send: bytes, message, .. } => {
                send(stream, &bytes).await?;
                linger(&shared.env, stream).await;
                return Err(message);
            }
        }
    }
}

async fn read_preamble(stream: &mut Stream, reader: &mut FrameReader) -> Result<Vec<u8>, Ended> {
    loop {
        if let Some(bytes) = reader.take(PREAMBLE.len()) {
            return Ok(bytes.to_vec());
        }
        if read_some(stream, reader).await? == 0 {
            return Err("closed by the client before it said anything".to_string());
        }
    }
}

async fn send(stream: &mut Stream, bytes: &[u8]) -> Result<(), Ended> {
    stream.write_all(bytes).await.map_err(|error| error.to_string())?;
    stream.flush().await.map_err(|error| error.to_string())
}

/// Lets the peer read what was sent: a stream dropped with unread bytes is reset, and takes the error along.
async fn linger(env: &Env, stream: &mut Stream) {
    let drain = async {
        let mut scrap = [0; 4096];
        let _ = stream.shutdown().await;
        while matches!(stream.read(&mut scrap).await, Ok(count) if count > 0) {}
    };
    env.timeout(LINGER, drain).await;
}

/// The next frame, or `None` if the stream ends where a frame may end.
async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    reader: &mut FrameReader,
) -> Result<Option<Frame>, Ended> {
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

async fn read_some(stream: &mut (impl AsyncRead + Unpin), reader: &mut FrameReader) -> Result<usize, Ended> {
    stream.read_buf(reader.space()).await.map_err(|error| error.to_string())
}

/// Reads calls and dispatches them until the peer closes, breaks the protocol or falls silent.
async fn read_calls(
    connection: &Arc<Connection>,
    stream: &mut (impl AsyncRead + Unpin),
    reader: &mut FrameReader,
    user: Arc<str>,
    remote: SocketAddr,
) -> Result<(), Ended> {
    let shared = &connection.shared;
    let mut idle = IdleTimer::new(&shared.env, shared.config.keepalive);
    loop {
        let received = shared.env.now().mono;
        while let Some(frame) = reader.next_frame().map_err(|error| broken(shared, error.to_string()))? {
            let job =
                to_job(connection, frame, received, &user, remote).map_err(|why| broken(shared, why))?;
            dispatch(shared, job);
        }
        connection.outbox.at_most(shared.config.max_unsent_bytes).await;
        let read = tokio::select! {
            biased;
            read = read_some(stream, reader) => read?,
            () = idle.silence(connection, received) => return Ok(()),
        };
        if read == 0 {
            return if reader.is_mid_frame() { Err("closed inside a frame".to_string()) } else { Ok(()) };
        }
    }
}

fn broken(shared: &Shared, why: String) -> Ended {
    count(&shared.counters.protocol_errors);
    why
}

fn to_job(
    connection: &Arc<Connection>,
    frame: Frame,
    received: Instant,
    user: &Arc<str>,
    remote: SocketAddr,
) -> Result<Job, Ended> {
    let header = RequestHeader::decode(frame.header)
        .map_err(|error| format!("a request header cannot be decoded: {error}"))?;
    let call_id = header.call_id;
    if call_id < 0 {
        return Err(format!("call id {call_id} where a call was due"));
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
    Ok(Job { responder, header, body, sidecars, received, user: user.clone(), remote })
}

/// Ends when nothing was heard or said for the keep-alive time and no call is in flight.
struct IdleTimer {
    env: Env,
    keepalive: Option<Duration>,
    sleep: Option<BoxFuture<'static, ()>>,
}

impl IdleTimer {
    fn new(env: &Env, keepalive: Option<Duration>) -> IdleTimer {
        IdleTimer { env: env.clone(), keepalive, sleep: None }
    }

    /// The sleep is kept from read to read and checked when it ends, not moved with every byte.
    async fn silence(&mut self, connection: &Connection, last_read: Instant) {
        let Some(keepalive) = self.keepalive else { return std::future::pending().await };
        loop {
            let quiet_since = last_read.0.max(connection.last_reply.load(Ordering::Relaxed));
            let mut until = Instant(quiet_since).after(keepalive);
            let now = self.env.now().mono;
            if now >= until {
                if connection.in_flight().is_empty() {
                    return;
                }
                until = now.after(keepalive);
            }
            let env = &self.env;
            self.sleep.get_or_insert_with(|| env.clock.sleep_until(until)).await;
            self.sleep = None;
        }
    }
}
