//! Kudu's RPC: many calls over one connection, with sidecars, deadlines, bounded queues and exactly-once replies.
//!
//! ```text
//!   client                      one TCP connection                          server
//!   Proxy ── Connection ──▶ [len][header][body + sidecars] ──▶ reader ──▶ queue of the service ──▶ Service::call
//!                       ◀── [len][header][body + sidecars] ◀── writer ◀──────────────────────────── Reply
//! ```
//!
//! | file | purpose | pure |
//! |---|---|---|
//! | [`frame`] | bytes ↔ header, body, sidecars | yes |
//! | [`negotiate`] | negotiation before the first call, both sides | yes |
//! | [`service_queue`] | order of queued calls, rejection when the queue is full | yes |
//! | [`result_tracker`] | cached replies for retries of the same request | yes |
//! | `call_audit` | calls that the audit log records | |
//! | [`call_steps`], `call_spans` | times within a call, and the spans made of them | yes |
//! | `required_fields` | proto2 required fields of a request | yes |
//! | [`request_limits`] | limits of a request, checked before it is decoded | yes |
//! | `line_limit` | log lines that peers cause, limited by second | yes |
//! | `service_methods` | the table of a service's methods and handlers | yes |
//! | [`server`] | accepts connections and runs services | |
//! | `connection`, `server_connection`, `dispatch`, `responder`, `send_queue` | a connection, its calls, its bytes | |
//! | `incoming_budget`, `tracked_results` | memory of incomplete requests, and of cached replies | |
//! | [`client`] | calls services: over one connection, or over a reconnecting proxy | |
//!
//! *Not here:* the messages of services. This module knows its own headers only.

mod call_audit;
pub mod call_samples;
mod call_spans;
pub mod call_steps;
pub mod client;
mod connection;
mod dispatch;
pub mod frame;
mod incoming_budget;
mod latencies;
mod line_limit;
pub mod negotiate;
pub mod request_limits;
mod required_fields;
mod responder;
pub mod result_tracker;
mod send_queue;
pub mod server;
mod server_connection;
mod service_methods;
pub mod service_queue;
mod tracked_results;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use engine::time::Instant;
use prost::Message;

use crate::env::BoxFuture;
use crate::error_text;
use crate::security::acl::MethodRole;
use crate::security::audit::{AuditOutcome, CallNote};
use crate::security::{PeerIdentity, SecurityLevel};
use crate::sidecars::Sidecars;
use call_steps::{CallStep, CallSteps};
pub use nyala_proto::kudu::rpc::RequestIdPb;
pub use nyala_proto::kudu::rpc::error_status_pb::RpcErrorCodePb;
use request_limits::RequestLimits;

/// A named set of methods, called by remote clients.
pub trait Service: Send + Sync + 'static {
    /// Returns the full dotted name, for example `kudu.master.MasterService`.
    fn name(&self) -> &'static str;

    /// Returns the application feature flags that this service supports. A call that requires another flag is
    /// rejected and not executed.
    fn features(&self) -> &'static [u32];

    /// Returns the methods; see [`service_methods`](crate::service_methods).
    fn methods(&self) -> &'static [MethodInfo];

    /// Returns the properties of a method, or `None` if the method does not exist.
    fn method(&self, name: &str) -> Option<&'static MethodInfo> {
        self.methods().iter().find(|method| method.name == name)
    }

    /// Returns the limits of a method's request. Order: its length is checked before the audit log reads the request
    /// for its subject, and its fields before [`Call::decode`].
    fn request_limits(&self, method: &str) -> RequestLimits {
        let _ = method;
        RequestLimits::FRAME
    }

    /// Returns an error reply if the caller may not run `call`. Order: checked before a cached reply is sent, and
    /// before [`Service::call`].
    fn authorize(&self, call: &Call) -> Result<(), Reply> {
        let _ = call;
        Ok(())
    }

    /// Returns the table, tablet, server or flag that a request is about, for the audit log.
    fn subject(&self, method: &str, body: &Bytes) -> Option<String> {
        let _ = (method, body);
        None
    }

    /// Returns true if calls of a method may begin on the task of their connection, which then reads and sends nothing.
    ///
    /// Such a call ends in microseconds, waits for something, or calls [`Call::leave_connection`] before its work.
    fn begins_on_connection(&self, method: &str) -> bool {
        let _ = method;
        false
    }

    /// Waits until the cached reply to a repeated call may leave: for what the first execution waited after its effect.
    /// Returns an error reply if the deadline of the call is before that.
    fn before_repeat<'a>(&'a self, call: &'a Call, reply: &'a Bytes) -> BoxFuture<'a, Result<(), Reply>> {
        let _ = (call, reply);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Runs one call and returns its reply. The future holds one of the service's [`RpcConfig::concurrency`] slots
    /// until it ends or calls [`Call::release_slot`].
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply>;
}

/// Properties of a method that the RPC layer uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodInfo {
    pub name: &'static str,
    /// Callers who may call it, by the server's access lists.
    pub role: MethodRole,
    /// True if a call is recorded by the audit log also when it is allowed, unless a server makes it for the cluster.
    pub audited: bool,
    /// True if a call is executed at most once per request id, if the caller sends one.
    pub tracked: bool,
    /// Numbers of the top-level fields that a request must carry (proto2 `required`; the decoder does not check them).
    pub required: &'static [u32],
}

/// The place of a running call among those that its service runs at once.
pub(crate) trait ConcurrencySlot: fmt::Debug + Send + Sync {
    /// Lets another queued call start. Only the first release has an effect.
    fn release(&self);
    /// Returns true if the call runs on the task of its connection.
    fn is_on_connection(&self) -> bool;
}

/// One call, as passed to a service.
#[derive(Debug)]
pub struct Call {
    pub method: &'static str,
    /// The request message, encoded.
    pub body: Bytes,
    pub sidecars: Vec<Bytes>,
    /// Time at which the last byte of the call arrived.
    pub received: Instant,
    /// Time at which the caller stops waiting; `None` for no limit.
    pub deadline: Option<Instant>,
    /// User of the connection; the same as in [`Call::peer`].
    pub user: Arc<str>,
    /// Peer of the connection, from its negotiation: its user, and how far that name can be trusted.
    pub peer: Arc<PeerIdentity>,
    pub remote: SocketAddr,
    pub request_id: Option<RequestIdPb>,
    pub required_features: Vec<u32>,
    /// Steps that the call has taken, and its span.
    pub steps: Arc<CallSteps>,
    pub(crate) slot: Option<Arc<dyn ConcurrencySlot>>,
    /// Note for the audit log, if the server has one.
    pub(crate) note: Option<Arc<CallNote>>,
}

impl Call {
    /// Decodes the request message. The error is the reply to send if the bytes are malformed.
    pub fn decode<M: Message + Default>(&self) -> Result<M, Reply> {
        let message = M::decode(self.body.clone()).map_err(|error| {
            let message = format!("{}: the request cannot be decoded: {error}", self.method);
            Reply::error(RpcErrorCodePb::ErrorInvalidRequest, message)
        })?;
        self.steps.mark_now(CallStep::Decoded);
        Ok(message)
    }

    /// Notes for the audit log that the call is denied, where the reply is not an RPC error.
    pub fn note_denied(&self, reason: &str) {
        if let Some(note) = &self.note {
            note.set(AuditOutcome::Denied(reason.to_string()));
        }
    }

    /// Notes for the audit log that the caller has the right that the call needs. A call of a method of clients that
    /// fails before that is recorded with the denials.
    pub fn note_right(&self) {
        if let Some(note) = &self.note {
            note.set_right();
        }
    }

    /// Notes for the audit log that the call fails although it is not denied, where the reply is not an RPC error.
    pub fn note_failed(&self, reason: &str) {
        if let Some(note) = &self.note {
            note.set(AuditOutcome::Failed(reason.to_string()));
        }
    }

    /// Lets another queued call of the service start before this one replies.
    ///
    /// For calls that only wait (for a majority, for safe time): they use no CPU, and slots held by them would cause
    /// other calls to be rejected.
    pub fn release_slot(&self) {
        if let Some(slot) = &self.slot {
            slot.release();
        }
    }

    /// Returns true if the call runs on the task of its connection; see [`Service::begins_on_connection`].
    pub fn is_on_connection(&self) -> bool {
        self.slot.as_ref().is_some_and(|slot| slot.is_on_connection())
    }

    /// Continues on a task of the call's own, if the call still runs on that of its connection: before work of more
    /// than microseconds, and before a wait for a disk.
    pub async fn leave_connection(&self) {
        // The connection polls a call once. The task that takes it over polls it again.
        let left = |context: &mut Context<'_>| {
            if self.is_on_connection() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(())
        };
        std::future::poll_fn(left).await;
    }
}

/// Reply of a service to one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Ok {
        /// The response message, encoded.
        body: Vec<u8>,
        sidecars: Sidecars,
        /// True if the reply is cached for retries of a tracked call. Only for effects that must not happen twice.
        cache: bool,
    },
    Err {
        code: RpcErrorCodePb,
        message: String,
        /// Encoded error of the tablet copy service.
        copy_error: Option<Bytes>,
    },
    /// Error for the caller of a call that took effect, whose reply may not leave in time. If that reply is cached,
    /// retries of a tracked call get it.
    Withheld { reply: Box<Reply>, error: Box<Reply> },
}

impl Reply {
    pub fn message(message: &impl Message) -> Reply {
        Reply::with_sidecars(message, Sidecars::default())
    }

    pub fn with_sidecars(message: &impl Message, sidecars: impl Into<Sidecars>) -> Reply {
        Reply::Ok { body: message.encode_to_vec(), sidecars: sidecars.into(), cache: false }
    }

    pub fn error(code: RpcErrorCodePb, message: impl Into<String>) -> Reply {
        Reply::Err { code, message: error_text::cut(message.into()), copy_error: None }
    }

    /// Returns the error for a method that the service does not have.
    pub fn no_such_method(name: &str) -> Reply {
        Reply::error(RpcErrorCodePb::ErrorNoSuchMethod, format!("there is no method {name}"))
    }

    /// Returns an error that makes the caller retry later at the same server.
    pub fn too_busy(message: impl Into<String>) -> Reply {
        Reply::error(RpcErrorCodePb::ErrorServerTooBusy, message)
    }

    /// Returns `error` for the caller of a call that took effect, and `reply` for retries.
    pub fn withheld(reply: Reply, error: Reply) -> Reply {
        Reply::Withheld { reply: Box::new(reply), error: Box::new(error) }
    }

    /// Marks the reply as cached for retries of the same request id. Error replies are never cached.
    pub fn cached(mut self) -> Reply {
        if let Reply::Ok { cache, .. } = &mut self {
            *cache = true;
        }
        self
    }
}

/// Limits and timeouts of a server's RPC layer. Defaults are Kudu's; the docs name Kudu's flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcConfig {
    /// Maximum number of queued calls per service. With one more, the least urgent call is rejected
    /// (`rpc_service_queue_length`).
    pub queue_length: usize,
    /// Maximum number of running calls per service (`rpc_num_service_threads`).
    pub concurrency: usize,
    /// Maximum length of a received frame in bytes (`rpc_max_message_size`).
    pub max_message_bytes: usize,
    /// Idle time after which a connection without calls in flight is closed; `None`: never
    /// (`rpc_default_keepalive_time_ms`). A peer that accepts no byte of a reply for this time is disconnected too.
    pub keepalive: Option<Duration>,
    /// Deadline of connection negotiation, from accept to the first call (`rpc_negotiation_timeout_ms`).
    pub negotiation_timeout: Duration,
    /// Delay before the first negotiation reply, for tests (`rpc_negotiation_inject_delay_ms`).
    pub negotiation_delay: Duration,
    /// True if the server logs each client's authentication mechanism (`rpc_trace_negotiation`).
    pub trace_negotiation: bool,
    /// Bytes of long incomplete requests, of all connections together, that are accepted whatever the memory limit is.
    pub incoming_bytes_min: u64,
    /// Bytes in the send queue of one connection above which no further call is read from it.
    pub max_unsent_bytes: usize,
    /// Number of connections in negotiation above which the oldest of them is closed.
    pub negotiations_max: usize,
    /// Number of connections above which further ones are refused (`rpc_connections_max`).
    pub connections_max: usize,
    /// Use of proofs of identity (`rpc_authentication`).
    pub authentication: SecurityLevel,
    /// Use of TLS (`rpc_encryption`).
    pub encryption: SecurityLevel,
    /// True if connections within one host are encrypted, too (`rpc_encrypt_loopback_connections`).
    pub encrypt_loopback: bool,
    /// Networks whose clients may connect without encryption (`trusted_subnets`).
    pub trusted_subnets: Vec<negotiate::Subnet>,
    /// Time for which the reply of a tracked call is cached (`remember_responses_ttl_ms`).
    pub remember_responses: Duration,
    /// Time after the last request for which a client is tracked (`remember_clients_ttl_ms`).
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
            incoming_bytes_min: 256 << 20,
            max_unsent_bytes: 64 << 20,
            negotiations_max: 1_000,
            connections_max: 65_536,
            authentication: SecurityLevel::Optional,
            encryption: SecurityLevel::Optional,
            encrypt_loopback: false,
            trusted_subnets: negotiate::Subnet::private(),
            remember_responses: Duration::from_secs(10 * 60),
            remember_clients: Duration::from_secs(60 * 60),
        }
    }
}

#[cfg(test)]
mod tests;
