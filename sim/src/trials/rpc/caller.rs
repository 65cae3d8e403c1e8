//! A caller of a trial: a task that shares connections with others, and sends tracked requests again.

use std::sync::Arc;
use std::time::Duration;

use engine::sync::Mutex;
use engine::time::Instant;
use futures_util::future::join_all;
use nyala_common::env::Env;
use nyala_common::rpc::RequestIdPb;
use nyala_common::rpc::client::{CallOptions, Proxy, RpcError};
use nyala_common::security::RpcCaller;
use sim_plan::RandomStream;

use super::ledger::{CallRecord, Ledger};
use super::order::{Method, Order};
use super::security::TrialSecurity;
use super::service::{FEATURE, SERVICE};
use super::settings::{CALLING, SERVERS};

/// A feature that the service does not have.
const NO_FEATURE: u32 = 99;
/// Percentage of pauses after which a client connects with an expired token.
const RELOGIN: u64 = 5;
/// Percentage of pauses after which a client closes its connection to a server, on which others may call.
const DISCONNECT: u64 = 3;
/// Attempts of a tracked request.
const ATTEMPTS: usize = 4;
/// Longest pause between two calls, and one in which connections become idle.
const PAUSE_MILLIS: u64 = 2_000;
const IDLE_MILLIS: u64 = 4_500;

pub(super) struct Caller {
    pub env: Env,
    pub ledger: Arc<Mutex<Ledger>>,
    pub proxies: Arc<Vec<Proxy>>,
    pub random: RandomStream,
    /// Number of the client, as which the ledger knows its connections.
    pub client: usize,
    /// Name as which its tracked requests are known, and the number of the last one.
    pub name: String,
    pub sequence: i64,
    /// The user that servers must see.
    pub user: String,
    pub caller: RpcCaller,
    pub security: Arc<TrialSecurity>,
}

impl Caller {
    /// Makes calls until the end of the trial's calls.
    pub(super) async fn run(mut self) {
        let began = self.env.now().mono;
        while self.env.now().mono.since(began) < CALLING {
            let idles = self.random.percent(2);
            let pause = self.random.below(if idles { IDLE_MILLIS } else { PAUSE_MILLIS });
            self.env.sleep(Duration::from_millis(pause)).await;
            if self.random.percent(RELOGIN) {
                self.connect_with_old_token().await;
            }
            if self.random.percent(DISCONNECT) {
                self.disconnect();
            }
            // Some calls follow each other at once.
            for _ in 0..self.random.pick(&[1, 1, 4]) {
                self.make_call().await;
            }
        }
    }

    async fn make_call(&mut self) {
        let number = self.ledger.lock().next_number();
        let order = Order::draw(&mut self.random, number);
        let method = self.random.weighted(&[
            (Method::Quick, 40),
            (Method::Slow, 30),
            (Method::Tracked, 25),
            (Method::Unknown, 3),
        ]);
        let server = self.random.below(SERVERS as u64) as usize;
        let needs_feature = self.random.percent(4);
        match method {
            Method::Tracked if self.random.percent(30) => self.make_overtaken(server, order).await,
            Method::Tracked if !needs_feature => self.make_tracked(server, order).await,
            Method::Tracked => {}
            _ => {
                let timeout = self.draw_timeout();
                let call = self.record(server, method, order, timeout);
                let _ = self.attempt(CallRecord { needs_feature, ..call }, None).await;
            }
        }
    }

    /// Gets an expired token, and connects to all servers at once: each refuses it, and the client falls back to its
    /// own credentials.
    async fn connect_with_old_token(&mut self) {
        if !self.security.renew_expired(&self.caller, self.client) {
            return;
        }
        let shared = std::mem::replace(&mut self.proxies, self.security.proxies(&self.env, &self.caller));
        let calls: Vec<CallRecord> = (0..SERVERS).map(|server| self.small_call(server)).collect();
        let this = &*self;
        join_all(calls.into_iter().map(|call| this.exchange(call, None, Vec::new()))).await;
        self.proxies.iter().for_each(Proxy::disconnect);
        self.proxies = shared;
    }

    /// Closes the connection to a server. Calls on it fail, and later ones open another.
    fn disconnect(&mut self) {
        let server = self.random.below(SERVERS as u64) as usize;
        self.ledger.lock().disconnect(self.client, server, self.now());
        self.proxies[server].disconnect();
    }

    pub(super) fn now(&self) -> Instant {
        self.env.now().mono
    }

    pub(super) async fn sleep(&self, span: Duration) {
        self.env.sleep(span).await;
    }

    /// Returns the server to which the client is to send calls at short intervals, once.
    pub(super) fn take_beats(&self) -> Option<usize> {
        self.ledger.lock().take_beats(self.client)
    }

    /// Makes a call with a small order that takes no time.
    pub(super) async fn make_quick_call(&self, server: usize, timeout: Duration) {
        let order = Order::small(self.ledger.lock().next_number());
        let call = self.record(server, Method::Quick, order, timeout);
        self.exchange(call, None, Vec::new()).await;
    }

    fn small_call(&mut self, server: usize) -> CallRecord {
        let number = self.ledger.lock().next_number();
        let order = Order::draw(&mut self.random, number);
        let order = Order { reply: 1, filling: 1, sidecars: Vec::new(), attached: Vec::new(), ..order };
        self.record(server, Method::Slow, order, Duration::from_secs(8))
    }

    fn draw_timeout(&mut self) -> Duration {
        Duration::from_millis(self.random.pick(&[30, 200, 1_000, 5_000, 8_000]))
    }

    pub(super) fn record(
        &self,
        server: usize,
        method: Method,
        order: Order,
        timeout: Duration,
    ) -> CallRecord {
        let began = self.env.now().mono;
        CallRecord {
            attempt: self.ledger.lock().next_number(),
            client: self.client,
            server,
            method,
            order,
            user: self.user.clone(),
            began,
            deadline: began.after(timeout),
            needs_feature: false,
            is_stale: false,
        }
    }

    /// Makes a call; returns true if it has been executed, or refused permanently.
    async fn attempt(&mut self, call: CallRecord, request_id: Option<RequestIdPb>) -> bool {
        let features = match call.needs_feature {
            true => vec![FEATURE, NO_FEATURE],
            false if self.random.percent(10) => vec![FEATURE],
            false => Vec::new(),
        };
        self.exchange(call, request_id, features).await
    }

    async fn exchange(&self, call: CallRecord, request_id: Option<RequestIdPb>, features: Vec<u32>) -> bool {
        self.ledger.lock().begin(&call);
        let options = CallOptions { features, request_id, ..CallOptions::default() };
        let (text, sidecars) = (call.order.to_text(), call.order.request_sidecars());
        let proxy = &self.proxies[call.server];
        let name = call.method.name();
        let outcome = proxy.call_with_sidecars(SERVICE, name, &text, sidecars, call.deadline, options).await;
        self.ledger.lock().conclude(&call, &outcome, self.env.now().mono);
        match &outcome {
            Ok(_) => true,
            Err(error) => {
                !matches!(error, RpcError::TimedOut { .. } | RpcError::Network { .. }) && !error.is_busy()
            }
        }
    }

    /// Makes a tracked request until it has a reply, and perhaps once more after that.
    async fn make_tracked(&mut self, server: usize, order: Order) {
        self.sequence += 1;
        let mut id = RequestIdPb {
            client_id: self.name.clone(),
            seq_no: self.sequence,
            first_incomplete_seq_no: self.sequence - self.random.pick(&[0, 0, 1]),
            attempt_no: 0,
        };
        let repeats = self.random.percent(20);
        for attempt in 0..ATTEMPTS {
            id.attempt_no = attempt as i64;
            let timeout = self.draw_timeout();
            let call = self.record(server, Method::Tracked, order.clone(), timeout);
            let done = self.attempt(call, Some(id.clone())).await;
            if done && !repeats {
                break;
            }
        }
        if self.random.percent(10) {
            self.make_stale(server, &order, id).await;
        }
    }

    /// Makes a tracked request that another one of its client overtakes, before it has a reply.
    async fn make_overtaken(&mut self, server: usize, order: Order) {
        self.sequence += 2;
        let number = self.ledger.lock().next_number();
        let second = Order::draw(&mut self.random, number);
        let (one, two) = (self.sequence - 1, self.sequence);
        let id = |seq_no, first_incomplete_seq_no, attempt_no| {
            let client_id = self.name.clone();
            RequestIdPb { client_id, seq_no, first_incomplete_seq_no, attempt_no }
        };
        // Only the second request declares those before the first one complete.
        let (first, other, again) = (id(one, one - 1, 0), id(two, one, 0), id(one, one, 1));
        let (short, long) = (Duration::from_millis(self.random.pick(&[20, 200])), Duration::from_secs(5));
        let call = self.record(server, Method::Tracked, order.clone(), short);
        self.attempt(call, Some(first)).await;
        let pause = self.random.below(PAUSE_MILLIS / 4);
        self.env.sleep(Duration::from_millis(pause)).await;
        let call = self.record(server, Method::Tracked, second, long);
        self.attempt(call, Some(other)).await;
        let call = self.record(server, Method::Tracked, order, long);
        self.attempt(call, Some(again)).await;
    }

    /// Declares a request complete with another one, then sends it again, as a late packet.
    async fn make_stale(&mut self, server: usize, order: &Order, old: RequestIdPb) {
        self.sequence += 1;
        let (number, timeout) = (self.ledger.lock().next_number(), Duration::from_secs(5));
        let id = RequestIdPb {
            seq_no: self.sequence,
            first_incomplete_seq_no: self.sequence,
            attempt_no: 0,
            ..old.clone()
        };
        let next = Order { number, ..Order::draw(&mut self.random, number) };
        let call = self.record(server, Method::Tracked, next, timeout);
        if self.attempt(call, Some(id)).await {
            let call = self.record(server, Method::Tracked, order.clone(), timeout);
            self.attempt(CallRecord { is_stale: true, ..call }, Some(old)).await;
        }
    }
}
