//! The state behind all servers and callers of a trial, and the check of each call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::time::Instant;
use nyala_common::rpc::RpcErrorCodePb;
use nyala_common::rpc::client::{RpcError, RpcResponse};
use nyala_common::rpc::server::RpcHandle;
use sim_plan::RandomStream;

use super::executions::{ExecutionKey, Executions, RememberedSpans};
use super::incoming_memory;
use super::order::{Method, Order};
use super::settings::SERVERS;
use super::silences::Silences;

/// Time after a disturbance until all connections are whole again: silence is noticed, segments are sent again.
const RECOVERY: Duration = Duration::from_secs(8);
/// Deadline within which a call that nothing disturbs has its reply.
const AMPLE: Duration = Duration::from_millis(2_500);
/// Most by which a caller's timer may be late.
const LATE: Duration = Duration::from_millis(20);
/// Longest time until the first bytes of a call arrive: a segment may be lost, and is sent again.
const ARRIVAL: Duration = Duration::from_millis(500);
/// Time for which a call without a reply may still be at its server.
const LINGERS: Duration = Duration::from_secs(10);

/// A call that was made.
#[derive(Debug, Clone)]
pub(super) struct CallRecord {
    /// Number of the attempt; no two calls have the same.
    pub attempt: u64,
    /// Number of the client; calls that follow each other on connections of their own have another one.
    pub client: usize,
    pub server: usize,
    pub method: Method,
    pub order: Order,
    /// The user as whom the server has to know the caller.
    pub user: String,
    pub began: Instant,
    pub deadline: Instant,
    /// True if it needs a feature that no service has.
    pub needs_feature: bool,
    /// True if its request id is one that its client has declared complete.
    pub is_stale: bool,
}

/// A call at a server, for the size of its queue.
struct Presence {
    server: usize,
    client: usize,
    attempt: u64,
    began: Instant,
    /// Time of its end, and whether it had a reply.
    ended: Option<(Instant, bool)>,
}

#[derive(Default)]
struct ServerState {
    /// Number of its start.
    start: u64,
    /// Orders whose calls hold a slot.
    running: Vec<u64>,
    handle: Option<Arc<RpcHandle>>,
    /// True if it has to stop in order.
    stops: bool,
}

pub(super) struct Ledger {
    pub found: Option<String>,
    pub story: Vec<String>,
    /// Callers that have ended.
    pub ended: usize,
    /// Calls that a server runs and keeps waiting.
    pub concurrency: usize,
    pub queue: usize,
    pub keepalive: Duration,
    /// Time of the last disturbance; later than now while one lasts.
    disturbed: Instant,
    next: u64,
    servers: [ServerState; SERVERS],
    presences: Vec<Presence>,
    /// Refusals that orders had so far, and times before which their replies may not leave.
    refusals: BTreeMap<u64, u64>,
    barriers: BTreeMap<u64, Instant>,
    /// Executions of orders, and times for which servers remember them.
    pub executions: Executions,
    /// Connections that were lost in silence.
    silences: Silences,
    /// Last time at which a client closed its connection to a server.
    disconnects: BTreeMap<(usize, usize), Instant>,
}

impl Ledger {
    pub(super) fn draw(random: &mut RandomStream) -> Ledger {
        Ledger {
            found: None,
            story: Vec::new(),
            ended: 0,
            concurrency: random.pick(&[1, 2, 4]),
            queue: random.pick(&[1, 2, 50]),
            keepalive: random.pick(&[Duration::from_secs(2), Duration::from_secs(65)]),
            disturbed: Instant(0),
            next: 0,
            servers: Default::default(),
            presences: Vec::new(),
            refusals: BTreeMap::new(),
            barriers: BTreeMap::new(),
            executions: Executions::new(RememberedSpans::long()),
            silences: Silences::default(),
            disconnects: BTreeMap::new(),
        }
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn note(&mut self, now: Instant, what: impl Into<String>) {
        if self.found.is_some() {
            return;
        }
        self.story.push(format!("{:.4} s: {}", now.0 as f64 / 1e9, what.into()));
    }

    /// Records what is wrong, unless something was before.
    pub(super) fn report(&mut self, what: String) {
        self.found.get_or_insert(what);
    }

    /// Records a disturbance; `lasts`: until the next one is recorded.
    pub(super) fn disturb(&mut self, now: Instant, lasts: bool) {
        self.disturbed = if lasts { Instant(u64::MAX) } else { now };
    }

    /// Returns true if no disturbance lasts.
    pub(super) fn is_whole(&self) -> bool {
        self.disturbed != Instant(u64::MAX)
    }

    /// Records that a client and a server lose this many connections in silence: the client has to find out
    /// by calls.
    pub(super) fn silence(&mut self, (client, server): (usize, usize), connections: usize, now: Instant) {
        let start = self.servers[server].start;
        self.silences.add((client, server), start, connections, now);
    }

    /// Returns a server to which a client is to send calls at short intervals, once.
    pub(super) fn take_beats(&mut self, client: usize) -> Option<usize> {
        self.silences.take_beats(client)
    }

    /// Records that a client closes its connection to a server.
    pub(super) fn disconnect(&mut self, client: usize, server: usize, now: Instant) {
        self.disconnects.insert((client, server), now);
    }

    /// A server starts, with nothing to do; returns the number of the start.
    pub(super) fn start(&mut self, server: usize, handle: Arc<RpcHandle>) -> u64 {
        let start = self.servers[server].start + 1;
        self.servers[server] = ServerState { start, handle: Some(handle), ..ServerState::default() };
        start
    }

    /// Lets a server stop in order.
    pub(super) fn stop(&mut self, server: usize) {
        self.servers[server].stops = true;
    }

    pub(super) fn stops(&self, server: usize) -> bool {
        self.servers[server].stops
    }

    /// A call takes a slot.
    pub(super) fn enter(&mut self, server: usize, order: u64) {
        self.servers[server].running.push(order);
        let running = self.servers[server].running.len();
        if running > self.concurrency {
            self.report(format!("server {server} runs {running} calls, {} are allowed", self.concurrency));
        }
    }

    /// A call ends, or lets others begin.
    pub(super) fn leave(&mut self, (server, start): (usize, u64), order: u64) {
        let state = &mut self.servers[server];
        let own = state.running.iter().position(|running| *running == order);
        if let Some(own) = own.filter(|_| state.start == start) {
            state.running.swap_remove(own);
        }
    }

    /// The service begins to execute a tracked order.
    pub(super) fn begin_execution(&mut self, key: ExecutionKey, now: Instant) {
        let wrong = self.executions.enter(key, now);
        wrong.into_iter().for_each(|what| self.report(what));
    }

    /// The service executes an order.
    pub(super) fn execute(
        &mut self,
        (server, start): (usize, u64),
        order: &Order,
        is_tracked: bool,
        now: Instant,
    ) {
        let number = order.number;
        let (is_first, wrong) = self.executions.effect((server, start, number), is_tracked, now);
        // The reply to an execution that is forgotten may still be on its way.
        if order.barrier > 0 && is_first {
            self.barriers.insert(number, now.after(Duration::from_micros(order.barrier)));
        }
        if !is_first && is_tracked {
            self.note(now, format!("server {server} executes order {number} again, which it has forgotten"));
        }
        wrong.into_iter().for_each(|what| self.report(what));
    }

    /// Returns the time before which no reply to an order may leave.
    pub(super) fn barrier(&self, order: u64) -> Option<Instant> {
        self.barriers.get(&order).copied()
    }

    /// Returns true if the service refuses an order this time.
    pub(super) fn refuses(&mut self, order: &Order) -> bool {
        let refusals = self.refusals.entry(order.number).or_default();
        *refusals += 1;
        *refusals <= order.refusals
    }

    fn was_executed(&self, number: u64) -> bool {
        self.executions.has_effect(number)
    }

    /// A caller begins a call.
    pub(super) fn begin(&mut self, call: &CallRecord) {
        let (server, client, attempt) = (call.server, call.client, call.attempt);
        self.executions.begin(call.order.number, call.began);
        self.presences.push(Presence { server, client, attempt, began: call.began, ended: None });
    }

    /// Checks the outcome of a call.
    pub(super) fn conclude(
        &mut self,
        call: &CallRecord,
        outcome: &Result<RpcResponse<String>, RpcError>,
        now: Instant,
    ) {
        let told = told(outcome);
        let (method, number) = (call.method.name(), call.order.number);
        self.note(now, format!("client {}, server {}: {method} {number}: {told}", call.client, call.server));
        if let Err(wrong) = self.check(call, outcome, now) {
            let order = Order { filling: 0, ..call.order.clone() };
            let since = call.began.0 as f64 / 1e9;
            self.report(format!("{method} of client {} at {since:.4} s: {wrong}; {order:?}", call.client));
        }
        self.end(call, outcome, now);
    }

    /// Records the outcome of a call that its server may refuse for lack of memory.
    pub(super) fn conclude_long(
        &mut self,
        call: &CallRecord,
        outcome: &Result<RpcResponse<String>, RpcError>,
        now: Instant,
    ) {
        let (client, server, number) = (call.client, call.server, call.order.number);
        let told = told(outcome);
        self.note(now, format!("client {client}, server {server}: long request {number}: {told}"));
        self.end(call, outcome, now);
    }

    fn end(&mut self, call: &CallRecord, outcome: &Result<RpcResponse<String>, RpcError>, now: Instant) {
        let answered = matches!(outcome, Ok(_) | Err(RpcError::Remote { .. }));
        let own = self.presences.iter_mut().rev().find(|presence| presence.attempt == call.attempt);
        if let Some(presence) = own {
            presence.ended = Some((now, answered));
        }
        self.presences.retain(|presence| presence.ended.is_none_or(|(at, _)| now.since(at) < LINGERS * 2));
    }

    fn check(
        &self,
        call: &CallRecord,
        outcome: &Result<RpcResponse<String>, RpcError>,
        now: Instant,
    ) -> Result<(), String> {
        // A client that was paused is late.
        if now.since(call.deadline) > LATE && self.is_calm(call) {
            return Err("it ends after its deadline".to_string());
        }
        match outcome {
            Ok(_) if self.barrier(call.order.number).is_some_and(|barrier| now < barrier) => {
                Err("its reply leaves too early".to_string())
            }
            Ok(response) => check_reply(call, response),
            Err(RpcError::Remote { code, unsupported_features, .. }) => {
                self.check_refusal(call, *code, unsupported_features, now)
            }
            Err(RpcError::Malformed { message }) => Err(format!("the reply is malformed: {message}")),
            Err(RpcError::TimedOut { sent, .. }) => {
                let left = call.deadline.since(now);
                let is_ample = call.deadline.since(call.began) >= AMPLE;
                match () {
                    () if is_ample && self.is_calm(call) => {
                        Err("it times out, although nothing is wrong".to_string())
                    }
                    () if *sent && !left.is_zero() => Err(format!("it times out {left:?} early")),
                    () => self.check_unsent(call, *sent),
                }
            }
            Err(RpcError::Network { message, sent }) => {
                let is_explained = !self.is_calm(call) || self.was_idle(call) || self.was_closed(call);
                match is_explained {
                    true => self.check_unsent(call, *sent),
                    false => Err(format!("it fails, although nothing is wrong: {message}")),
                }
            }
        }
    }

    fn check_unsent(&self, call: &CallRecord, sent: bool) -> Result<(), String> {
        let is_first = call.method != Method::Tracked;
        match !sent && is_first && self.was_executed(call.order.number) {
            true => Err("it was certainly not executed, and was".to_string()),
            false => Ok(()),
        }
    }

    /// Checks an error that the server has sent.
    fn check_refusal(
        &self,
        call: &CallRecord,
        code: RpcErrorCodePb,
        unsupported: &[u32],
        now: Instant,
    ) -> Result<(), String> {
        let is_right = match code {
            RpcErrorCodePb::ErrorNoSuchMethod => call.method == Method::Unknown,
            RpcErrorCodePb::ErrorInvalidRequest => call.needs_feature && !unsupported.is_empty(),
            RpcErrorCodePb::ErrorRequestStale => call.is_stale,
            RpcErrorCodePb::ErrorServerTooBusy if call.order.refusals > 0 || now >= call.deadline => true,
            RpcErrorCodePb::ErrorServerTooBusy => self.others(call, now) >= self.concurrency + self.queue,
            RpcErrorCodePb::FatalServerShuttingDown => !self.is_calm(call),
            _ => false,
        };
        if !is_right {
            return Err(format!("it is refused with {}", code.as_str_name()));
        }
        self.check_unsent(call, false)
    }

    /// Returns how many other calls may have been at the server at the same time.
    fn others(&self, call: &CallRecord, now: Instant) -> usize {
        let overlaps = |presence: &&Presence| {
            let stays = match presence.ended {
                None => true,
                Some((at, true)) => at >= call.began,
                Some((at, false)) => at.after(LINGERS) >= call.began,
            };
            presence.server == call.server
                && presence.attempt != call.attempt
                && stays
                && presence.began <= now
        };
        self.presences.iter().filter(overlaps).count()
    }

    /// Returns true if the call's connection may have been closed as it was idle.
    fn was_idle(&self, call: &CallRecord) -> bool {
        let same = |presence: &&Presence| {
            (presence.client, presence.server) == (call.client, call.server)
                && presence.attempt != call.attempt
        };
        let ends = self.presences.iter().filter(same);
        let last = ends.map(|presence| presence.ended.map_or(call.began, |(at, _)| at)).max();
        let idle = call.began.since(last.unwrap_or_default());
        idle + ARRIVAL >= self.keepalive
    }

    /// Returns true if the call's client has closed its connection meanwhile.
    fn was_closed(&self, call: &CallRecord) -> bool {
        self.disconnects.get(&(call.client, call.server)).is_some_and(|at| *at >= call.began)
    }

    fn is_calm(&self, call: &CallRecord) -> bool {
        call.began > self.disturbed && call.began.since(self.disturbed) >= RECOVERY
    }

    /// Checks that servers have nothing left to do. A connection that was lost in silence may be open until
    /// it has been idle for long: nothing else tells its server.
    pub(super) fn check_end(&mut self, now: Instant) {
        for server in 0..SERVERS {
            let start = self.servers[server].start;
            let unnoticed = self.silences.unnoticed(server, start, now, self.keepalive + RECOVERY) as u64;
            let Some(handle) = self.servers[server].handle.clone() else { continue };
            let open = handle.counters().connections_open.load(std::sync::atomic::Ordering::Relaxed);
            let (queued, running) = (handle.queued_calls()(), &self.servers[server].running);
            if queued > 0 || open > unnoticed || !running.is_empty() {
                self.report(format!(
                    "server {server} has {queued} calls in its queue, runs {running:?}, and has {open} connections"
                ));
            }
            if let Err(what) = incoming_memory::check(open, handle.incoming_bytes()) {
                self.report(format!("server {server} {what}"));
            }
        }
    }
}

/// Returns the outcome of a call as the story has it.
fn told(outcome: &Result<RpcResponse<String>, RpcError>) -> String {
    match outcome {
        Ok(_) => "done".to_string(),
        Err(error) => error.to_string(),
    }
}

fn check_reply(call: &CallRecord, response: &RpcResponse<String>) -> Result<(), String> {
    let order = &call.order;
    if call.method == Method::Unknown || call.needs_feature {
        return Err("it is executed, and should be refused".to_string());
    }
    if response.message != order.reply_text(&call.user) {
        let start: String = response.message.chars().take(60).collect();
        return Err(format!("its reply begins {start:?}, for the order {} of {}", order.number, call.user));
    }
    match response.sidecars == order.reply_sidecars() {
        true => Ok(()),
        false => Err("its sidecars are not those of its order".to_string()),
    }
}
