//! From a frame to a reply: which service, in what order the checks are made, and which call runs when.
//!
//! ```text
//! known service → feature flags → queue → deadline passed while queued? → known method → required fields
//!               → authorized → request id seen before? → Service::call
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use engine::time::Instant;
use tokio::sync::Notify;

use super::connection::Connection;
use super::fields;
use super::frame;
use super::queue::{Admission, CallQueue, Next};
use super::results::{Begin, Remembered, ResultTracker};
use super::{Call, MethodInfo, Reply, RequestIdPb, RpcConfig, RpcErrorCodePb, Service};
use crate::env::Env;
use crate::proto::kudu::rpc::{ErrorStatusPb, RequestHeader, ResponseHeader};

/// What all connections of a server share.
pub(super) struct Shared {
    pub(super) env: Env,
    pub(super) config: RpcConfig,
    pub(super) services: BTreeMap<&'static str, Arc<Queued>>,
    pub(super) results: Arc<Results>,
    pub(super) counters: Arc<Counters>,
    pub(super) stopping: AtomicBool,
    /// Calls read and not answered yet, on all connections.
    pub(super) in_flight: AtomicU64,
    pub(super) all_answered: Notify,
}

/// What a server has done since it began. Each counter only grows, but for `connections_open`.
#[derive(Debug, Default)]
pub struct Counters {
    pub connections_accepted: AtomicU64,
    pub connections_open: AtomicU64,
    pub negotiations_failed: AtomicU64,
    /// Connections ended because the peer broke the protocol.
    pub protocol_errors: AtomicU64,
    pub calls_received: AtomicU64,
    /// Calls turned away by a full queue.
    pub calls_rejected: AtomicU64,
    /// Calls whose deadline passed in the queue.
    pub calls_expired: AtomicU64,
    /// Tracked calls answered from memory, or with the reply of a call in progress.
    pub calls_repeated: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The replies of one server's tracked calls.
pub struct Results {
    tracker: Mutex<ResultTracker<Responder>>,
}

impl Results {
    pub(super) fn new(config: &RpcConfig) -> Results {
        let tracker = ResultTracker::new(config.remember_responses, config.remember_clients);
        Results { tracker: Mutex::new(tracker) }
    }

    /// Takes in the reply of a request that took effect before this server ran (found in a log), so that a retry
    /// is answered with it.
    pub fn restore(&self, id: &RequestIdPb, body: Vec<u8>, now: Instant) {
        let reply = Remembered { body: body.into(), sidecars: Vec::new() };
        let waiters = self.lock().restore(id, reply.clone(), now);
        for waiter in waiters {
            waiter.send(Answer::Ok(reply.clone()));
        }
    }

    /// Bytes held, roughly.
    pub fn bytes(&self) -> usize {
        self.lock().bytes()
    }

    fn lock(&self) -> MutexGuard<'_, ResultTracker<Responder>> {
        self.tracker.lock().expect("no one panics holding this lock")
    }
}

/// A reply on its way out.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Ok(Remembered),
    Err(ErrorStatusPb),
}

impl Answer {
    pub(super) fn error(code: RpcErrorCodePb, message: impl Into<String>) -> Answer {
        let unsupported_feature_flags = Vec::new();
        Answer::Err(ErrorStatusPb {
            message: message.into(),
            code: Some(code.into()),
            unsupported_feature_flags,
            tablet_copy_error: None,
        })
    }
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Answer {
        match reply {
            Reply::Ok { body, sidecars, .. } => Answer::Ok(Remembered { body: body.into(), sidecars }),
            Reply::Err { code, message, copy_error } => Answer::Err(ErrorStatusPb {
                message,
                code: Some(code.into()),
                tablet_copy_error: copy_error,
                ..Default::default()
            }),
        }
    }
}

/// Where the reply to one call goes.
pub(super) struct Responder {
    connection: Arc<Connection>,
    call_id: i32,
}

impl Responder {
    pub(super) fn new(connection: Arc<Connection>, call_id: i32) -> Responder {
        Responder { connection, call_id }
    }

    pub(super) fn send(self, answer: Answer) {
        match answer {
            Answer::Ok(reply) => self.send_ok(reply),
            Answer::Err(status) => self.send_error(&status),
        }
    }

    fn send_ok(self, reply: Remembered) {
        let total = reply.bytes();
        let Some(sidecar_offsets) = frame::sidecar_offsets(reply.body.len(), &reply.sidecars) else {
            let message = format!("the reply of {total} bytes does not fit a frame; ask for less at a time");
            return self.send(Answer::error(RpcErrorCodePb::ErrorApplication, message));
        };
        let header = ResponseHeader { call_id: self.call_id, is_error: Some(false), sidecar_offsets };
        self.connection.reply(self.call_id, |put| {
            frame::put_head(&header, total, put.small());
            put.part(reply.body);
            reply.sidecars.into_iter().for_each(|sidecar| put.part(sidecar));
        });
    }

    fn send_error(self, status: &ErrorStatusPb) {
        let header = ResponseHeader { call_id: self.call_id, is_error: Some(true), ..Default::default() };
        self.connection.reply(self.call_id, |put| frame::put_frame(&header, status, put.small()));
    }
}

/// A service and the calls it has not answered.
pub(super) struct Queued {
    service: Arc<dyn Service>,
    queue: Mutex<CallQueue<Job>>,
}

/// A call that was read and not begun.
pub(super) struct Job {
    pub(super) responder: Responder,
    pub(super) header: RequestHeader,
    pub(super) body: Bytes,
    pub(super) sidecars: Vec<Bytes>,
    pub(super) received: Instant,
    pub(super) user: Arc<str>,
    pub(super) remote: SocketAddr,
}

impl Job {
    fn deadline(&self) -> Option<Instant> {
        let millis = self.header.timeout_millis.filter(|&millis| millis > 0)?;
        Some(self.received.after(Duration::from_millis(millis.into())))
    }

    fn method(&self) -> &str {
        self.header.remote_method.as_ref().map_or("", |method| &method.method_name)
    }
}

impl Queued {
    pub(super) fn new(service: Arc<dyn Service>, config: &RpcConfig) -> Queued {
        Queued { service, queue: Mutex::new(CallQueue::new(config.concurrency, config.queue_length)) }
    }

    fn queue(&self) -> MutexGuard<'_, CallQueue<Job>> {
        self.queue.lock().expect("no one panics holding this lock")
    }

    /// Turns away everything that waits.
    pub(super) fn refuse_waiting(&self) {
        let waiting: Vec<Job> = self.queue().drain().collect();
        waiting.into_iter().for_each(|job| job.responder.send(shutting_down()));
    }

    /// The next call for a slot that became free, or `None` if the slot was given back.
    fn next(&self, shared: &Shared) -> Option<Job> {
        let now = shared.env.now().mono;
        loop {
            let next = self.queue().next(now);
            match next {
                Next::Run(job) => return Some(job),
                Next::Idle => return None,
                Next::Expired(job) => {
                    count(&shared.counters.calls_expired);
                    shared.env.watch.mark("rpc: a deadline passed in the queue");
                    let message = format!("{}: the deadline passed while the call was queued", job.method());
                    job.responder.send(Answer::error(RpcErrorCodePb::ErrorServerTooBusy, message));
                }
            }
        }
    }
}

fn shutting_down() -> Answer {
    Answer::error(RpcErrorCodePb::FatalServerShuttingDown, "the server is shutting down")
}

/// Answers `job`, now or later.
pub(super) fn dispatch(shared: &Arc<Shared>, job: Job) {
    count(&shared.counters.calls_received);
    if shared.stopping.load(Ordering::Relaxed) {
        shared.env.watch.mark("rpc: a call met a stopping server");
        return job.responder.send(shutting_down());
    }
    let service_name = job.header.remote_method.as_ref().map_or("", |method| &method.service_name);
    let Some(queued) = shared.services.get(service_name) else {
        let message = format!("service {service_name:?} is not on this server");
        return job.responder.send(Answer::error(RpcErrorCodePb::ErrorNoSuchService, message));
    };
    if let Some(refusal) = check_features(&job.header, queued.service.features()) {
        return job.responder.send(refusal);
    }
    let admission = queued.queue().admit(job.deadline(), job);
    match admission {
        Admission::Run(job) => spawn(shared, queued, job),
        Admission::Queued => shared.env.watch.mark("rpc: a call had to wait"),
        Admission::QueuedInsteadOf(job) | Admission::Rejected(job) => {
            count(&shared.counters.calls_rejected);
            shared.env.watch.mark("rpc: a queue was full");
            let message = format!("the queue of service {} is full", queued.service.name());
            job.responder.send(Answer::error(RpcErrorCodePb::ErrorServerTooBusy, message));
        }
    }
}

fn check_features(header: &RequestHeader, supported: &[u32]) -> Option<Answer> {
    let required = header.required_feature_flags.iter().copied();
    let unsupported_feature_flags: Vec<u32> = required.filter(|flag| !supported.contains(flag)).collect();
    if unsupported_feature_flags.is_empty() {
        return None;
    }
    let message = "unsupported feature flags".to_string();
    let code = Some(RpcErrorCodePb::ErrorInvalidRequest.into());
    Some(Answer::Err(ErrorStatusPb { message, code, unsupported_feature_flags, tablet_copy_error: None }))
}

fn spawn(shared: &Arc<Shared>, queued: &Arc<Queued>, job: Job) {
    shared.env.spawn("rpc call", work(shared.clone(), queued.clone(), job));
}

/// Runs `job` and then, in the same slot, what waits.
async fn work(shared: Arc<Shared>, queued: Arc<Queued>, job: Job) {
    let mut next = Some(job);
    while let Some(job) = next {
        let slot = Slot { shared: shared.clone(), queued: queued.clone(), released: AtomicBool::new(false) };
        let slot = Arc::new(slot);
        run(&shared, &queued, job, slot.clone()).await;
        next = if slot.take() { queued.next(&shared) } else { None };
    }
}

/// One call's right to run; see [`Call::release_slot`].
pub(crate) struct Slot {
    shared: Arc<Shared>,
    queued: Arc<Queued>,
    released: AtomicBool,
}

impl Slot {
    /// True the first time.
    fn take(&self) -> bool {
        !self.released.swap(true, Ordering::Relaxed)
    }

    pub(super) fn release(&self) {
        if self.take()
            && let Some(job) = self.queued.next(&self.shared)
        {
            spawn(&self.shared, &self.queued, job);
        }
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slot {{ released: {} }}", self.released.load(Ordering::Relaxed))
    }
}

async fn run(shared: &Shared, queued: &Queued, job: Job, slot: Arc<Slot>) {
    let Some(method) = queued.service.method(job.method()) else {
        let message = format!("service {} has no method {:?}", queued.service.name(), job.method());
        return job.responder.send(Answer::error(RpcErrorCodePb::ErrorNoSuchMethod, message));
    };
    if let Err(what) = fields::check_required(&job.body, method.required) {
        let message = format!("{}: {what}", method.name);
        return job.responder.send(Answer::error(RpcErrorCodePb::ErrorInvalidRequest, message));
    }
    let (responder, call) = to_call(job, method, slot);
    if let Err(refusal) = queued.service.authorize(&call) {
        return responder.send(refusal.into());
    }
    let service = queued.service.clone();
    match call.request_id.clone().filter(|_| method.tracked) {
        Some(id) => run_tracked(shared, service, &id, call, responder).await,
        None => responder.send(service.call(call).await.into()),
    }
}

fn to_call(job: Job, method: &'static MethodInfo, slot: Arc<Slot>) -> (Responder, Call) {
    let deadline = job.deadline();
    let call = Call {
        method: method.name,
        body: job.body,
        sidecars: job.sidecars,
        received: job.received,
        deadline,
        user: job.user,
        remote: job.remote,
        request_id: job.header.request_id,
        required_features: job.header.required_feature_flags,
        slot: Some(slot),
    };
    (job.responder, call)
}

async fn run_tracked(
    shared: &Shared,
    service: Arc<dyn Service>,
    id: &RequestIdPb,
    call: Call,
    responder: Responder,
) {
    let begun = shared.results.lock().begin(id, call.received, responder);
    let responder = match begun {
        Begin::Execute(responder) => responder,
        Begin::Attached => return count(&shared.counters.calls_repeated),
        Begin::Repeat(responder, reply) => {
            count(&shared.counters.calls_repeated);
            return responder.send(Answer::Ok(reply));
        }
        Begin::Stale(responder) => {
            let message = format!("request {} of client {} is stale", id.seq_no, id.client_id);
            return responder.send(Answer::error(RpcErrorCodePb::ErrorRequestStale, message));
        }
    };
    let reply = service.call(call).await;
    let cache = matches!(reply, Reply::Ok { cache: true, .. });
    let answer = Answer::from(reply);
    let waiters = match &answer {
        Answer::Ok(reply) if cache => {
            shared.results.lock().complete(id, reply.clone(), shared.env.now().mono)
        }
        _ => shared.results.lock().fail(id),
    };
    for waiter in [responder].into_iter().chain(waiters) {
        waiter.send(answer.clone());
    }
}
