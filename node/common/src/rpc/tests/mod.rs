//! Server and client over an in-memory network with paused time: it advances only while all tasks wait.

mod calls;
mod hostile;
mod spans;
mod tls;
mod turns;

use engine::sync::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use engine::time::Instant;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;

use super::client::{CallOptions, ClientConnection, Proxy, RpcError, RpcResponse};
use super::frame::{self, FrameReader, split_body};
use super::negotiate::PREAMBLE;
use super::request_limits::{RepeatedLimit, RequestLimits};
use super::server::{RpcHandle, RpcServer};
use super::{Call, MethodInfo, Reply, RequestIdPb, RpcConfig, RpcErrorCodePb, Service};
use crate::env::{BoxFuture, Env, Stream, mem_net};
use crate::security::ServerSecurity;
use crate::security::acl::{AccessLists, MethodRole};
use nyala_proto::kudu::rpc::{ErrorStatusPb, RemoteMethodPb, RequestHeader, ResponseHeader};

const ECHO: &str = "test.Echo";

/// Test service that echoes the request; the method name selects variations.
#[derive(Default)]
struct Echo {
    /// Gate at which each call of `Hold`, `HoldFree` and `Track` waits for one permit.
    gate: Arc<Gate>,
    executed: AtomicU64,
    order: Mutex<Vec<String>>,
}

struct Gate(Semaphore);

impl Default for Gate {
    fn default() -> Gate {
        Gate(Semaphore::new(0))
    }
}

impl Gate {
    fn open(&self, calls: usize) {
        self.0.add_permits(calls);
    }

    async fn pass(&self) {
        self.0.acquire().await.expect("the gate is never closed").forget();
    }
}

const METHODS: [MethodInfo; 9] = [
    MethodInfo { name: "Echo", role: MethodRole::Client, audited: false, tracked: false, required: &[] },
    MethodInfo { name: "Hold", role: MethodRole::Client, audited: false, tracked: false, required: &[] },
    MethodInfo { name: "HoldFree", role: MethodRole::Client, audited: false, tracked: false, required: &[] },
    MethodInfo { name: "Track", role: MethodRole::Client, audited: false, tracked: true, required: &[] },
    MethodInfo { name: "Sidecars", role: MethodRole::Client, audited: false, tracked: false, required: &[] },
    MethodInfo {
        name: "Strict",
        role: MethodRole::Client,
        audited: false,
        tracked: false,
        required: &[1, 2],
    },
    MethodInfo { name: "Forbidden", role: MethodRole::Client, audited: false, tracked: false, required: &[] },
    MethodInfo { name: "Admin", role: MethodRole::Superuser, audited: true, tracked: false, required: &[1] },
    MethodInfo { name: "WhoAmI", role: MethodRole::Client, audited: false, tracked: false, required: &[] },
];

impl Service for Echo {
    fn name(&self) -> &'static str {
        ECHO
    }

    fn features(&self) -> &'static [u32] {
        &[1, 2]
    }

    fn methods(&self) -> &'static [MethodInfo] {
        &METHODS
    }

    fn request_limits(&self, method: &str) -> RequestLimits {
        match method {
            "WhoAmI" => RequestLimits::SMALL,
            "Strict" => {
                RequestLimits::repeated(&[RepeatedLimit { path: &[2], name: "things", elements_max: 2 }])
            }
            _ => RequestLimits::FRAME,
        }
    }

    fn authorize(&self, call: &Call) -> Result<(), Reply> {
        match call.method {
            "Forbidden" => {
                Err(Reply::error(RpcErrorCodePb::FatalUnauthorized, format!("not for {}", call.user)))
            }
            _ => Ok(()),
        }
    }

    fn begins_on_connection(&self, method: &str) -> bool {
        matches!(method, "Echo" | "Hold" | "Sidecars" | "Forbidden")
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        Box::pin(async move {
            if call.method == "Sidecars" {
                call.leave_connection().await;
            }
            let text: String = match call.decode() {
                Ok(text) => text,
                Err(reply) => return reply,
            };
            self.order.lock().push(text.clone());
            match call.method {
                "Hold" => self.gate.pass().await,
                "HoldFree" => {
                    call.release_slot();
                    self.gate.pass().await;
                }
                "Track" => {
                    let count = (self.executed.fetch_add(1, Ordering::Relaxed) + 1).to_string();
                    self.gate.pass().await;
                    return match text.as_str() {
                        "fail" => Reply::error(RpcErrorCodePb::ErrorApplication, "failed"),
                        "uncached" => Reply::message(&count),
                        "withheld" => Reply::withheld(
                            Reply::message(&count).cached(),
                            Reply::error(RpcErrorCodePb::ErrorApplication, "not yet"),
                        ),
                        _ => Reply::message(&count).cached(),
                    };
                }
                "WhoAmI" => {
                    let peer = &call.peer;
                    let privacy = if peer.confidential { "confidential" } else { "readable" };
                    return Reply::message(&format!("{} {:?} {privacy}", peer.user, peer.method));
                }
                "Sidecars" => {
                    let large = Bytes::from(vec![7; 3 << 20]);
                    return Reply::with_sidecars(
                        &text,
                        vec![Bytes::new(), large, Bytes::from_static(b"end")],
                    );
                }
                _ => {}
            }
            Reply::with_sidecars(&text, call.sidecars)
        })
    }
}

/// A server with the echo service, and helpers to call it.
struct World {
    env: Env,
    echo: Arc<Echo>,
    server: RpcHandle,
    addr: SocketAddr,
    slow_call_ms: Arc<AtomicU64>,
}

impl World {
    async fn new(config: RpcConfig) -> World {
        World::over(mem_net::env(), config).await
    }

    async fn over(env: Env, config: RpcConfig) -> World {
        World::secure(env, config, ServerSecurity::default()).await
    }

    async fn secure(env: Env, config: RpcConfig, security: ServerSecurity) -> World {
        let echo = Arc::new(Echo::default());
        let listener = env.net.listen("127.0.0.1:0".parse().expect("an address")).await.expect("it listens");
        let slow_call_ms = Arc::new(AtomicU64::new(1_000));
        let server = RpcServer::new(env.clone(), config).with_security(security);
        let server = server.with_slow_call_ms(slow_call_ms.clone()).add(echo.clone()).serve(listener);
        let addr = server.local_addr();
        World { env, echo, server, addr, slow_call_ms }
    }

    fn after(&self, millis: u64) -> Instant {
        self.env.now().mono.after(Duration::from_millis(millis))
    }

    async fn connect(&self) -> Arc<ClientConnection> {
        ClientConnection::connect(&self.env, self.addr, "root", self.after(5_000)).await.expect("it connects")
    }

    /// Starts a call on a separate task. The receiver gets the result.
    fn begin(
        &self,
        connection: &Arc<ClientConnection>,
        method: &'static str,
        text: &str,
        millis: u64,
        options: CallOptions,
    ) -> tokio::sync::oneshot::Receiver<Result<Bytes, RpcError>> {
        let (send, receive) = tokio::sync::oneshot::channel();
        let (connection, text, deadline) = (connection.clone(), text.to_string(), self.after(millis));
        self.env.spawn("call", async move {
            let response = connection.call::<String, Vec<u8>>(ECHO, method, &text, deadline, &options);
            let response = response.await.map(|response| Bytes::from(response.message));
            let _ = send.send(response);
        });
        receive
    }

    /// Lets all runnable tasks run.
    async fn settle(&self) {
        self.env.sleep(Duration::from_millis(1)).await;
    }

    /// Opens a raw connection and completes its negotiation.
    async fn raw(&self) -> Raw {
        let mut raw = self.raw_unnegotiated().await;
        raw.write(&negotiation_bytes()).await;
        raw.read_frame().await.expect("NEGOTIATE");
        raw.read_frame().await.expect("SASL_SUCCESS");
        raw
    }

    async fn raw_unnegotiated(&self) -> Raw {
        let stream = self.env.net.connect(self.addr, self.after(1_000)).await.expect("it connects");
        Raw { stream, reader: FrameReader::new(64 << 20) }
    }
}

/// Returns all bytes that a client sends before its first call.
fn negotiation_bytes() -> Vec<u8> {
    let frames: [&[u8]; 3] = [
        b"\0\0\0\x19\x0b\x18\xdf\xff\xff\xff\xff\xff\xff\xff\xff\x01\x0c\x08\x01\x08\x02\x08\x03\x10\x01\x3a\x02\x0a\0",
        b"\0\0\0\x20\x0b\x18\xdf\xff\xff\xff\xff\xff\xff\xff\xff\x01\x13\x10\x02\x1a\x06\0root\0\x22\x07\x12\x05PLAIN",
        b"\0\0\0\x15\x0b\x18\xfd\xff\xff\xff\xff\xff\xff\xff\xff\x01\x08\x12\x06\x12\x04root",
    ];
    [&PREAMBLE[..], &frames.concat()].concat()
}

struct Raw {
    stream: Stream,
    reader: FrameReader,
}

impl Raw {
    async fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the server reads");
    }

    async fn call(&mut self, call_id: i32, method: &str, text: &str) {
        self.write(&call_bytes(call_id, method, text)).await;
    }

    /// Reads the next frame's header and body; `None` at the end of the stream.
    async fn read_frame(&mut self) -> Option<(Bytes, Bytes)> {
        loop {
            if let Some(frame) = self.reader.next_frame().expect("the server sends frames") {
                return Some((frame.header, frame.body));
            }
            if self.stream.read_buf(self.reader.space()).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// Reads the next reply as text; `None` at the end of the stream.
    async fn reply(&mut self) -> Option<String> {
        let (header, body) = self.read_frame().await?;
        let header = ResponseHeader::decode(header).expect("a response header");
        let call_id = header.call_id;
        if header.is_error() {
            let status = ErrorStatusPb::decode(body).expect("an error status");
            return Some(format!("{call_id}: {} {}", status.code().as_str_name(), status.message));
        }
        let (message, _) = split_body(body, &header.sidecar_offsets).expect("a body");
        Some(format!("{call_id}: ok {}", String::decode(message).expect("a text")))
    }
}

fn call_bytes(call_id: i32, method: &str, text: &str) -> Bytes {
    let remote_method =
        Some(RemoteMethodPb { service_name: ECHO.to_string(), method_name: method.to_string() });
    let header = RequestHeader { call_id, remote_method, ..Default::default() };
    let mut out = BytesMut::new();
    frame::put_frame(&header, &text.to_string(), &mut out);
    out.freeze()
}

fn text(response: Result<Bytes, RpcError>) -> Result<String, String> {
    response.map(|body| String::from_utf8_lossy(&body).into_owned()).map_err(|error| error.to_string())
}

fn request_id(seq_no: i64) -> RequestIdPb {
    RequestIdPb { client_id: "c0ffee".to_string(), seq_no, first_incomplete_seq_no: seq_no, attempt_no: 0 }
}
