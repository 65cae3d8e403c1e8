//! Kudu's RPC: many calls over one connection, with sidecars, deadlines, bounded queues and exactly-once replies.
//!
//! ```text
//!   client                      one TCP connection                          server
//!   Proxy ── Connection ──▶ [len][header][body + sidecars] ──▶ reader ──▶ queue of the service ──▶ Service::call
//!                       ◀── [len][header][body + sidecars] ◀── writer ◀──────────────────────────── Reply
//! ```
//!
//! | file | what | pure |
//! |---|---|---|
//! | [`frame`] | bytes ↔ header, body, sidecars | yes |
//! | [`negotiate`] | the handshake before the first call, both sides | yes |
//! | [`queue`] | which waiting call runs next, and which is turned away | yes |
//! | [`results`] | replies remembered for retries of the same request | yes |
//! | [`server`] | accepts connections and runs services | |
//! | [`client`] | calls services: one connection, or a server by its name | |
//!
//! This module moves bytes: it knows its own headers, and no service's messages.

pub mod client;
mod connection;
mod dispatch;
mod fields;
pub mod frame;
pub mod negotiate;
mod outbox;
mod proxy;
pub mod queue;
pub mod results;
pub mod server;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::time::Instant;
use prost::Message;

use crate::env::BoxFuture;
pub use crate::proto::kudu::rpc::RequestIdPb;
pub use crate::proto::kudu::rpc::error_status_pb::RpcErrorCodePb;

/// A named set of methods, called by remote clients.
pub trait Service: Send + Sync + 'static {
    /// The full dotted name, for example `kudu.master.MasterService`.
    fn name(&self) -> &'static str;

    /// The application feature flags this service understands. A call that requires another is refused, unexecuted.
    fn features(&self) -> &'static [u32];

    /// What the server must know of a method before it runs; `None` if there is no such method.
    fn method(&self, name: &str) -> Option<&'static MethodInfo>;

    /// Whether `call` may run at all. Asked before a remembered reply is given out, and before [`Service::call`].
    fn authorize(&self, call: &Call) -> Result<(), Reply> {
        let _ = call;
        Ok(())
    }

    /// Runs one call to its reply. The future holds one of the service's [`RpcConfig::concurrency`] slots until it
    /// is done or calls [`Call::release_slot`].
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply>;
}

/// A method, as far as the RPC layer cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodInfo {
    pub name: &'static str,
    /// Executed at most once per request id, if the caller gives one.
    pub tracked: bool,
    /// Top-level field numbers the request must carry (proto2 `required`, which the decoder does not check).
    pub required: &'static [u32],
}

/// One call as a service sees it.
#[derive(Debug)]
pub struct Call {
    pub method: &'static str,
    /// The request message, encoded.
    pub body: Bytes,
    pub sidecars: Vec<Bytes>,
    /// When the last byte of the call had arrived.
    pub received: Instant,
    /// When the caller stops waiting; `None` if it never does.
    pub deadline: Option<Instant>,
    /// Whom the connection was negotiated for.
    pub user: Arc<str>,
    pub remote: SocketAddr,
    pub request_id: Option<RequestIdPb>,
    pub required_features: Vec<u32>,
    pub(crate) slot: Option<Arc<dispatch::Slot>>,
}

impl Call {
    /// The request message; the error is the reply to give when the bytes are not one.
    pub fn decode<M: Message + Default>(&self) -> Result<M, Reply> {
        M::decode(self.body.clone()).map_err(|error| {
            let message = format!("{}: the request cannot be decoded: {error}", self.method);
            Reply::error(RpcErrorCodePb::ErrorInvalidRequest, message)
        })
    }

    /// Lets another waiting call of the service begin, although this one has not replied yet.
    ///
    /// For calls that only wait (for a quorum, for safe time): they burn nothing, and a slot held by them would
    /// turn others away.
    pub fn release_slot(&self) {
        if let Some(slot) = &self.slot {
            slot.release();
        }
    }
}

/// What a service answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Ok {
        /// The response message, encoded.
        body: Vec<u8>,
        sidecars: Vec<Bytes>,
        /// Remember it for retries of a tracked call. Only for outcomes that must not happen twice.
        cache: bool,
    },
    Err {
        code: RpcErrorCodePb,
        message: String,
        /// What failed, in the words of the tablet copy service; an encoded message.
        copy_error: Option<Bytes>,
    },
}

impl Reply {
    pub fn message(message: &impl Message) -> Reply {
        Reply::with_sidecars(message, Vec::new())
    }

    pub fn with_sidecars(message: &impl Message, sidecars: Vec<Bytes>) -> Reply {
        Reply::Ok { body: message.encode_to_vec(), sidecars, cache: false }
    }

    pub fn error(code: RpcErrorCodePb, message: impl Into<String>) -> Reply {
        Reply::Err { code, message: message.into(), copy_error: None }
    }

    /// The caller should try the same server again, later.
    pub fn too_busy(message: impl Into<String>) -> Reply {
        Reply::error(RpcErrorCodePb::ErrorServerTooBusy, message)
    }

    /// The same reply, to be remembered for retries of the same request id. Errors never are.
    pub fn cached(mut self) -> Reply {
        if let Reply::Ok { cache, .. } = &mut self {
            *cache = true;
        }
        self
    }
}

/// Limits and times of a server's RPC layer. Defaults are Kudu's, named here by their flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcConfig {
    /// Calls of one service that may wait; one more turns the least urgent away (`rpc_service_queue_length`).
    pub queue_length: usize,
    /// Calls of one service that may run at once (`rpc_num_service_threads`).
    pub concurrency: usize,
    /// The longest frame accepted, in bytes (`rpc_max_message_size`).
    pub max_message_bytes: usize,
    /// A connection with no call in flight is closed after this long without a byte; `None`: never
    /// (`rpc_default_keepalive_time_ms`). A peer that takes no byte of a reply for as long is dropped too.
    pub keepalive: Option<Duration>,
    /// From accepting a connection to its first call (`rpc_negotiation_timeout_ms`).
    pub negotiation_timeout: Duration,
    /// For tests: how long to wait before answering a negotiation (`rpc_negotiation_inject_delay_ms`).
    pub negotiation_delay: Duration,
    /// Whether to log how each client introduced itself (`rpc_trace_negotiation`).
    pub trace_negotiation: bool,
    /// Reply bytes waiting for one slow connection above which no further call is read from it.
    pub max_unsent_bytes: usize,
    /// Networks whose clients may connect without encryption (`trusted_subnets`).
    pub trusted_subnets: Vec<negotiate::Subnet>,
    /// How long a finished tracked call's reply is remembered (`remember_responses_ttl_ms`).
    pub remember_responses: Duration,
    /// How long a silent client is remembered (`remember_clients_ttl_ms`).
    pub remember_clients: Duration,
}

impl Default for RpcConfig {
    fn default() -> RpcConfig {
        RpcConfig {
            queue_length: 50,
            concurrency: 20,
            max_message_bytes: 50 << 20,
            keepalive: Some(Duration::from_millis(65_000)),
            negotiation_timeout: Duration::from_millis(3_000),
            negotiation_delay: Duration::ZERO,
            trace_negotiation: false,
            max_unsent_bytes: 64 << 20,
            trusted_subnets: negotiate::Subnet::private(),
            remember_responses: Duration::from_secs(10 * 60),
            remember_clients: Duration::from_secs(60 * 60),
        }
    }
}

#[cfg(test)]
mod tests;
