//! Dispatch of calls: from a request frame to a reply. The checks, in order:
//!
//! ```text
//! known service → feature flags, client id → queue → deadline passed in the queue? → known method → length of the
//!     request → access lists → required and repeated fields → authorization → result tracking by request id
//!     → Service::call
//! ```

use engine::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use engine::time::Instant;

use super::call_audit::CallAudit;
use super::call_samples::{CallSample, is_slow};
use super::call_spans;
use super::call_steps::{CallStep, CallSteps, StepTimes};
use super::incoming_budget::IncomingBudget;
use super::latencies::RpcLatencies;
use super::line_limit::LineLimit;
use super::required_fields;
use super::responder::{OutgoingReply, Responder};
use super::result_tracker::{CachedReply, RequestAdmission};
use super::server_connection::CallsInFlight;
use super::service_queue::{Admission, CallQueue, NextCall};
use super::tracked_results::TrackedResults;
use super::{Call, ConcurrencySlot, MethodInfo, Reply, RequestIdPb, RpcConfig, RpcErrorCodePb, Service};
use crate::env::{BoxFuture, Env};
use crate::security::acl::{MethodRole, refusal_text};
use crate::security::{PeerIdentity, ServerSecurity};
use crate::spans::SpanContext;
use nyala_proto::kudu::rpc::{ErrorStatusPb, RequestHeader};

/// State shared by all connections of a server.
pub(super) struct RpcShared {
    pub(super) env: Env,
    pub(super) config: RpcConfig,
    pub(super) security: ServerSecurity,
    pub(super) services: BTreeMap<&'static str, Arc<QueuedService>>,
    pub(super) results: Arc<TrackedResults>,
    pub(super) counters: Arc<RpcCounters>,
    pub(super) latencies: Arc<RpcLatencies>,
    /// Log lines about calls that the access lists refuse.
    pub(super) refusal_lines: LineLimit,
    /// Time of a call in milliseconds from which it is slow.
    pub(super) slow_call_ms: Arc<AtomicU64>,
    pub(super) stopping: AtomicBool,
    pub(super) calls: Arc<CallsInFlight>,
    pub(super) incoming: IncomingBudget,
}

/// Divisor of the memory limit that gives the share for long incomplete requests.
const INCOMING_SHARE: u64 = 8;

impl RpcShared {
    /// Returns the most bytes of long incomplete requests, of all connections together.
    pub(super) fn incoming_bytes_max(&self) -> u64 {
        (self.env.memory.limit_bytes() / INCOMING_SHARE).max(self.config.incoming_bytes_min)
    }
}

/// Counters of a server since its start. All except `connections_open` only grow.
#[derive(Debug, Default)]
pub struct RpcCounters {
    pub connections_accepted: AtomicU64,
    pub connections_open: AtomicU64,
    pub negotiations_failed: AtomicU64,
    /// Connections closed because the peer violated the protocol.
    pub protocol_errors: AtomicU64,
    pub calls_received: AtomicU64,
    /// Calls rejected by a full queue.
    pub calls_rejected: AtomicU64,
    /// Calls whose deadline passed in the queue.
    pub calls_expired: AtomicU64,
    /// Calls refused by the access lists.
    pub calls_unauthorized: AtomicU64,
    /// Retries of tracked calls that got a cached reply or the reply of the call in progress.
    pub calls_repeated: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A service and its queue of calls.
pub(super) struct QueuedService {
    service: Arc<dyn Service>,
    queue: Mutex<CallQueue<QueuedCall>>,
}

/// A call that was received and has not begun.
pub(super) struct QueuedCall {
    pub(super) responder: Responder,
    pub(super) header: RequestHeader,
    pub(super) body: Bytes,
    pub(super) sidecars: Vec<Bytes>,
    pub(super) received: Instant,
    pub(super) peer: Arc<PeerIdentity>,
    pub(super) remote: SocketAddr,
    /// Span that the caller makes the call for, if it is sampled.
    pub(super) caller_span: Option<SpanContext>,
}

impl QueuedCall {
    fn deadline(&self) -> Option<Instant> {
        let millis = self.header.timeout_millis.filter(|&millis| millis > 0)?;
        Some(self.received.after(Duration::from_millis(millis.into())))
    }

    fn bytes(&self) -> usize {
        self.body.len() + self.sidecars.iter().map(Bytes::len).sum::<usize>()
    }

    fn method(&self) -> &str {
        self.header.remote_method.as_ref().map_or("", |method| &method.method_name)
    }
}

impl QueuedService {
    pub(super) fn new(service: Arc<dyn Service>, config: &RpcConfig) -> QueuedService {
        QueuedService { service, queue: Mutex::new(CallQueue::new(config.concurrency, config.queue_length)) }
    }

    fn queue(&self) -> MutexGuard<'_, CallQueue<QueuedCall>> {
        self.queue.lock()
    }

    /// Returns the number of queued calls.
    pub(super) fn waiting(&self) -> usize {
        self.queue().waiting()
    }

    /// Rejects all queued calls.
    pub(super) fn reject_queued(&self) {
        let waiting: Vec<QueuedCall> = self.queue().drain().collect();
        waiting.into_iter().for_each(|queued_call| queued_call.responder.send(shutting_down()));
    }

    /// Returns the next call for a free slot, or `None` if the slot was released.
    fn next(&self, shared: &RpcShared) -> Option<QueuedCall> {
        let now = shared.env.now().mono;
        loop {
            let next = self.queue().next(now);
            match next {
                NextCall::Run(queued_call) => return Some(queued_call),
                NextCall::Idle => return None,
                NextCall::Expired(queued_call) => {
                    count(&shared.counters.calls_expired);
                    shared.env.observer.mark("rpc: call expired in the queue");
                    let message =
                        format!("{}: the deadline passed while the call was queued", queued_call.method());
                    queued_call
                        .responder
                        .send(OutgoingReply::error(RpcErrorCodePb::ErrorServerTooBusy, message));
                }
            }
        }
    }
}

/// Returns the reply of a stopping server to a call that it does not begin.
///
/// Kudu's clients retry ERROR_UNAVAILABLE, and fail the caller's operation after FATAL_SERVER_SHUTTING_DOWN.
fn shutting_down() -> OutgoingReply {
    OutgoingReply::Err(ErrorStatusPb {
        message: "the server is shutting down".to_string(),
        code: Some(RpcErrorCodePb::ErrorUnavailable.into()),
        nyala_shutting_down: Some(true),
        ..Default::default()
    })
}

/// Number of calls that a connection still begins on its own task before its replies are sent.
///
/// A client that sends many calls at once so gets its first replies soon, and its other calls use other threads.
pub(super) struct ConnectionTurn(usize);

/// Most calls of a turn.
pub(super) const TURN_CALLS_MAX: usize = 16;
/// Largest request in bytes that begins on its connection's task.
const TURN_REQUEST_BYTES_MAX: usize = 8 << 10;

impl ConnectionTurn {
    pub(super) fn new() -> ConnectionTurn {
        ConnectionTurn(TURN_CALLS_MAX)
    }

    /// Returns true, and counts the call, if it begins on the connection's task.
    fn takes(&mut self, queued: &QueuedService, queued_call: &QueuedCall) -> bool {
        let takes = self.0 > 0
            && queued_call.bytes() <= TURN_REQUEST_BYTES_MAX
            && queued.service.begins_on_connection(queued_call.method());
        self.0 -= usize::from(takes);
        takes
    }
}

/// Checks and admits a call of a connection's turn; the reply is sent now or later.
pub(super) fn dispatch(shared: &Arc<RpcShared>, turn: &mut ConnectionTurn, queued_call: QueuedCall) {
    count(&shared.counters.calls_received);
    if shared.stopping.load(Ordering::Relaxed) {
        shared.env.observer.mark("rpc: call rejected by a stopping server");
        return queued_call.responder.send(shutting_down());
    }
    let service_name = queued_call.header.remote_method.as_ref().map_or("", |method| &method.service_name);
    let Some(queued) = shared.services.get(service_name) else {
        let message = format!("service {:?} is not on this server", shown(service_name));
        return queued_call.responder.send(OutgoingReply::error(RpcErrorCodePb::ErrorNoSuchService, message));
    };
    let rejection = check_features(&queued_call.header, queued.service.features());
    if let Some(rejection) = rejection.or_else(|| check_client_id(&queued_call.header)) {
        return queued_call.responder.send(rejection);
    }
    let admission = queued.queue().admit(queued_call.deadline(), queued_call);
    match admission {
        Admission::Run(queued_call) if turn.takes(queued, &queued_call) => begin(shared, queued, queued_call),
        Admission::Run(queued_call) => spawn(shared, queued, queued_call),
        Admission::Queued => shared.env.observer.mark("rpc: call queued"),
        Admission::QueuedInsteadOf(queued_call) | Admission::Rejected(queued_call) => {
            count(&shared.counters.calls_rejected);
            // A name that is no method of the service gets no metric: clients choose names.
            if let Some(method) = queued.service.method(queued_call.method()) {
                count(&shared.latencies.of(queued.service.name(), method.name).rejected);
            }
            shared.env.observer.mark("rpc: queue full");
            let message = format!("the queue of service {} is full", queued.service.name());
            queued_call.responder.send(OutgoingReply::error(RpcErrorCodePb::ErrorServerTooBusy, message));
        }
    }
}

fn check_features(header: &RequestHeader, supported: &[u32]) -> Option<OutgoingReply> {
    let required = header.required_feature_flags.iter().copied();
    let unsupported_feature_flags: Vec<u32> = required.filter(|flag| !supported.contains(flag)).collect();
    if unsupported_feature_flags.is_empty() {
        return None;
    }
    let message = "unsupported feature flags".to_string();
    let code = Some(RpcErrorCodePb::ErrorInvalidRequest.into());
    Some(OutgoingReply::Err(ErrorStatusPb { message, code, unsupported_feature_flags, ..Default::default() }))
}

/// Maximum length in bytes of a client's name in request ids. Kudu's clients have 32 hexadecimal digits.
const CLIENT_ID_BYTES_MAX: usize = 128;

fn check_client_id(header: &RequestHeader) -> Option<OutgoingReply> {
    let bytes = header.request_id.as_ref()?.client_id.len();
    (bytes > CLIENT_ID_BYTES_MAX).then(|| {
        let message =
            format!("the client id of the request is too long ({bytes} bytes, limit {CLIENT_ID_BYTES_MAX})");
        OutgoingReply::error(RpcErrorCodePb::ErrorInvalidRequest, message)
    })
}

/// Returns the part of an unknown name that the reply repeats: clients choose names.
fn shown(name: &str) -> &str {
    const SHOWN_BYTES_MAX: usize = 128;
    &name[..name.floor_char_boundary(SHOWN_BYTES_MAX)]
}

fn spawn(shared: &Arc<RpcShared>, queued: &Arc<QueuedService>, queued_call: QueuedCall) {
    shared.env.spawn("rpc call", work(shared.clone(), queued.clone(), queued_call));
}

/// Begins a call on the task of its connection. If it waits, or leaves the connection, it continues on its own task.
fn begin(shared: &Arc<RpcShared>, queued: &Arc<QueuedService>, queued_call: QueuedCall) {
    let slot = Arc::new(CallSlot::new(shared, queued, true));
    let mut call: BoxFuture<'static, ()> = Box::pin({
        let (shared, queued, slot) = (shared.clone(), queued.clone(), slot.clone());
        async move {
            run(&shared, &queued, queued_call, slot.clone()).await;
            slot.release();
        }
    });
    let mut is_begun = false;
    shared.env.begin(
        "rpc call",
        poll_fn(move |context| {
            if std::mem::replace(&mut is_begun, true) {
                slot.on_connection.store(false, Ordering::Relaxed);
            }
            call.as_mut().poll(context)
        }),
    );
}

/// Runs a call and then, in the same slot, queued calls.
async fn work(shared: Arc<RpcShared>, queued: Arc<QueuedService>, queued_call: QueuedCall) {
    let mut next = Some(queued_call);
    while let Some(queued_call) = next {
        let slot = Arc::new(CallSlot::new(&shared, &queued, false));
        run(&shared, &queued, queued_call, slot.clone()).await;
        next = if slot.take() { queued.next(&shared) } else { None };
    }
}

/// Concurrency slot held by one call; see [`Call::release_slot`].
struct CallSlot {
    shared: Arc<RpcShared>,
    queued: Arc<QueuedService>,
    released: AtomicBool,
    on_connection: AtomicBool,
}

impl CallSlot {
    fn new(shared: &Arc<RpcShared>, queued: &Arc<QueuedService>, on_connection: bool) -> CallSlot {
        let (released, on_connection) = (AtomicBool::new(false), AtomicBool::new(on_connection));
        CallSlot { shared: shared.clone(), queued: queued.clone(), released, on_connection }
    }

    /// Releases the slot. Returns true the first time.
    fn take(&self) -> bool {
        !self.released.swap(true, Ordering::Relaxed)
    }
}

impl ConcurrencySlot for CallSlot {
    fn release(&self) {
        if self.take()
            && let Some(queued_call) = self.queued.next(&self.shared)
        {
            spawn(&self.shared, &self.queued, queued_call);
        }
    }

    fn is_on_connection(&self) -> bool {
        self.on_connection.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for CallSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slot {{ released: {} }}", self.released.load(Ordering::Relaxed))
    }
}

async fn run(shared: &RpcShared, queued: &QueuedService, queued_call: QueuedCall, slot: Arc<CallSlot>) {
    let Some(method) = queued.service.method(queued_call.method()) else {
        let name = shown(queued_call.method());
        let message = format!("service {} has no method {name:?}", queued.service.name());
        return queued_call.responder.send(OutgoingReply::error(RpcErrorCodePb::ErrorNoSuchMethod, message));
    };
    let limits = queued.service.request_limits(method.name);
    // Order: before the audit log reads the request for its subject.
    if let Err(reason) = limits.check_bytes(queued_call.body.len()) {
        return refuse_request(queued_call, method, &reason);
    }
    let from = (&queued_call.peer, queued_call.remote);
    let audit = CallAudit::of(&shared.security, &queued.service, method, &queued_call.body, from);
    if !shared.security.access.allows(method.role, &queued_call.peer.user) {
        if let Some(audit) = audit {
            audit.denied(refusal_text(method.name));
        }
        return refuse_access(shared, queued, queued_call, method);
    }
    if let Some(refusal) = audit.as_ref().and_then(CallAudit::refusal) {
        return queued_call.responder.send(refusal.into());
    }
    let checked = required_fields::check_required(&queued_call.body, method.required);
    if let Err(reason) = checked.and_then(|()| limits.check_elements(&queued_call.body)) {
        return refuse_request(queued_call, method, &reason);
    }
    let steps = Arc::new(begin_steps(shared, &queued_call, method));
    let (responder, mut call) = to_call(queued_call, method, slot, steps.clone());
    call.note = audit.as_ref().map(|audit| audit.note.clone());
    if let Err(rejection) = queued.service.authorize(&call) {
        if let Some(audit) = audit {
            audit.replied(&rejection);
        }
        return responder.send(rejection.into());
    }
    let (service, received) = (queued.service.clone(), call.received);
    let admitted = shared.env.now().mono;
    steps.mark(CallStep::Admitted, admitted);
    let waited = admitted.since(received);
    shared.latencies.queue_time.record_micros(waited);
    let mut sample = CallSample {
        service: queued.service.name(),
        method: method.name,
        user: call.user.clone(),
        remote: call.remote,
        request_bytes: call.body.len(),
        received,
        queued: waited,
        took: Duration::ZERO,
        timeout: call.deadline.map(|deadline| deadline.since(received)),
        steps: StepTimes::default(),
        is_slow: false,
    };
    match call.request_id.clone().filter(|_| method.tracked) {
        Some(id) => run_tracked(shared, service, &id, (call, audit), responder).await,
        None => responder.send(run_once(&service, call, audit).await.into()),
    }
    let now = shared.env.now();
    steps.mark(CallStep::Answered, now.mono);
    (sample.took, sample.steps) = (now.mono.since(received), steps.times());
    sample.is_slow = is_slow(sample.took, sample.timeout, shared.slow_call_ms.load(Ordering::Relaxed));
    let calls = shared.latencies.of(queued.service.name(), method.name);
    calls.times.record_micros(sample.took);
    if sample.timeout.is_some_and(|timeout| sample.took > timeout) {
        count(&calls.late);
    }
    call_spans::record(&shared.env.spans, now, steps.span, &sample);
    shared.latencies.samples.record(sample, now.mono);
}

/// Begins the steps of a call, and its span: below the caller's, or one of its own for a client's call.
fn begin_steps(shared: &RpcShared, queued_call: &QueuedCall, method: &MethodInfo) -> CallSteps {
    let spans = &shared.env.spans;
    let span = match queued_call.caller_span {
        Some(parent) => spans.child(parent),
        // Calls between servers belong to a request, or are no request: heartbeats.
        None if matches!(method.role, MethodRole::Service | MethodRole::ServiceOnly) => None,
        None => spans.root(),
    };
    CallSteps::new(shared.env.clock.clone(), queued_call.received, span)
}

/// Runs a call, and records it if it must be.
async fn run_once(service: &Arc<dyn Service>, call: Call, audit: Option<CallAudit>) -> Reply {
    let reply = service.clone().call(call).await;
    if let Some(audit) = audit {
        audit.replied(&reply);
    }
    reply
}

/// Refuses a malformed request, or one above the limits of its method.
fn refuse_request(queued_call: QueuedCall, method: &MethodInfo, reason: &str) {
    let message = format!("{}: {reason}", method.name);
    queued_call.responder.send(OutgoingReply::error(RpcErrorCodePb::ErrorInvalidRequest, message));
}

/// Refuses a call by the access lists. The connection stays open, as in Kudu.
fn refuse_access(
    shared: &RpcShared,
    queued: &QueuedService,
    queued_call: QueuedCall,
    method: &'static MethodInfo,
) {
    count(&shared.counters.calls_unauthorized);
    if shared.refusal_lines.admits(shared.env.now().mono) {
        let PeerIdentity { user, method: authn, .. } = &*queued_call.peer;
        let (user, service, remote) = (user.escape_debug(), queued.service.name(), queued_call.remote);
        tracing::warn!(%user, ?authn, %remote, service, method = method.name, "unauthorized call");
    }
    let refusal = OutgoingReply::error(RpcErrorCodePb::ErrorApplication, refusal_text(method.name));
    queued_call.responder.send(refusal);
}

fn to_call(
    queued_call: QueuedCall,
    method: &'static MethodInfo,
    slot: Arc<CallSlot>,
    steps: Arc<CallSteps>,
) -> (Responder, Call) {
    let deadline = queued_call.deadline();
    let call = Call {
        method: method.name,
        body: queued_call.body,
        sidecars: queued_call.sidecars,
        received: queued_call.received,
        deadline,
        user: queued_call.peer.user.clone(),
        peer: queued_call.peer,
        remote: queued_call.remote,
        request_id: queued_call.header.request_id,
        required_features: queued_call.header.required_feature_flags,
        steps,
        slot: Some(slot),
        note: None,
    };
    (queued_call.responder, call)
}

async fn run_tracked(
    shared: &RpcShared,
    service: Arc<dyn Service>,
    id: &RequestIdPb,
    (call, audit): (Call, Option<CallAudit>),
    responder: Responder,
) {
    let begun = shared.results.lock().begin(id, call.received, responder);
    let responder = match begun {
        RequestAdmission::Execute(responder) => responder,
        RequestAdmission::Attached => return count(&shared.counters.calls_repeated),
        RequestAdmission::Repeat(responder, reply) => {
            count(&shared.counters.calls_repeated);
            let waited = service.before_repeat(&call, &reply.body).await;
            return responder.send(waited.map_or_else(OutgoingReply::from, |()| OutgoingReply::Ok(reply)));
        }
        RequestAdmission::Stale(responder) => {
            let message = format!("request {} of client {} is stale", id.seq_no, id.client_id);
            return responder.send(OutgoingReply::error(RpcErrorCodePb::ErrorRequestStale, message));
        }
    };
    let (outgoing, cached) = to_send(run_once(&service, call, audit).await);
    let waiters = match cached {
        Some(reply) => shared.results.lock().complete(id, reply, shared.env.now().mono),
        None => shared.results.lock().fail(id),
    };
    for waiter in [responder].into_iter().chain(waiters) {
        waiter.send(outgoing.clone());
    }
}

/// Returns what is sent for the reply of a tracked call, and what is cached for retries.
fn to_send(reply: Reply) -> (OutgoingReply, Option<CachedReply>) {
    if let Reply::Withheld { reply, error } = reply {
        return ((*error).into(), to_send(*reply).1);
    }
    let cache = matches!(reply, Reply::Ok { cache: true, .. });
    let outgoing = OutgoingReply::from(reply);
    let cached = match &outgoing {
        OutgoingReply::Ok(reply) if cache => Some(reply.clone()),
        _ => None,
    };
    (outgoing, cached)
}
