//! The made-up service, and the server that has it.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::sync::Mutex;
use nyala_common::env::{BoxFuture, Env};
use nyala_common::rpc::server::RpcServer;
use nyala_common::rpc::{Call, MethodInfo, Reply, RpcConfig, RpcErrorCodePb, Service};
use nyala_common::security::acl::MethodRole;

use super::executions::ExecutionKey;
use super::ledger::Ledger;
use super::order::Order;
use super::security::TrialSecurity;
use super::settings::{GRACE, INCOMING_BYTES, PORT};
use crate::world::ProgramResult;

pub(super) const SERVICE: &str = "trial.Service";
/// The only feature that the service has.
pub(super) const FEATURE: u32 = 3;
const METHODS: [MethodInfo; 3] = [method("Quick", false), method("Slow", false), method("Tracked", true)];
/// Time between two looks whether the server has to stop.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes of replies that wait for a peer above which a connection reads no more.
const UNSENT: usize = 100_000;

const fn method(name: &'static str, tracked: bool) -> MethodInfo {
    MethodInfo { name, role: MethodRole::Client, audited: false, tracked, required: &[] }
}

struct TrialService {
    env: Env,
    ledger: Arc<Mutex<Ledger>>,
    server: usize,
    /// Number of the server's start.
    start: Mutex<u64>,
}

/// The slot of a call, until it ends or gives it up.
struct Slot {
    ledger: Arc<Mutex<Ledger>>,
    /// Server and number of its start.
    server: (usize, u64),
    order: u64,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.ledger.lock().leave(self.server, self.order);
    }
}

/// A call that executes a tracked order, until it ends or is given up.
struct TrackedExecution {
    ledger: Arc<Mutex<Ledger>>,
    key: ExecutionKey,
}

impl Drop for TrackedExecution {
    fn drop(&mut self) {
        self.ledger.lock().executions.leave(self.key);
    }
}

impl TrialService {
    async fn serve(&self, call: Call) -> Reply {
        let start = *self.start.lock();
        let parsed = call.decode::<String>().ok().and_then(|text| Order::parse(&text));
        let Some(order) = parsed.filter(|order| call.sidecars == order.request_sidecars()) else {
            self.ledger.lock().report(format!("a {} does not arrive as it was sent", call.method));
            return Reply::error(RpcErrorCodePb::ErrorInvalidRequest, "no order");
        };
        if call.deadline.is_some_and(|deadline| deadline < self.env.now().mono) {
            self.ledger.lock().report(format!("order {} begins after its deadline", order.number));
        }
        if self.ledger.lock().refuses(&order) {
            return Reply::too_busy("the order is refused");
        }
        self.ledger.lock().enter(self.server, order.number);
        let mut slot =
            Some(Slot { ledger: self.ledger.clone(), server: (self.server, start), order: order.number });
        let tracked = call.method == "Tracked";
        let key = (self.server, start, order.number);
        let execution = tracked.then(|| self.begin_execution(key));
        if order.leaves {
            call.leave_connection().await;
        }
        if order.releases {
            slot = None;
            call.release_slot();
        }
        self.wait(order.before).await;
        let now = self.env.now().mono;
        self.ledger.lock().execute((self.server, start), &order, tracked, now);
        self.wait(order.after).await;
        self.wait_for_barrier(order.number).await;
        drop(slot);
        if execution.is_some() {
            self.ledger.lock().executions.complete(key, self.env.now().mono);
        }
        let reply = Reply::with_sidecars(&order.reply_text(&call.user), order.reply_sidecars());
        if tracked { reply.cached() } else { reply }
    }

    fn begin_execution(&self, key: ExecutionKey) -> TrackedExecution {
        self.ledger.lock().begin_execution(key, self.env.now().mono);
        TrackedExecution { ledger: self.ledger.clone(), key }
    }

    async fn wait_for_barrier(&self, order: u64) {
        let until = self.ledger.lock().barrier(order);
        if let Some(until) = until {
            self.env.sleep(until.since(self.env.now().mono)).await;
        }
    }

    async fn wait(&self, micros: u64) {
        if micros > 0 {
            self.env.sleep(Duration::from_micros(micros)).await;
        }
    }
}

impl Service for TrialService {
    fn name(&self) -> &'static str {
        SERVICE
    }

    fn features(&self) -> &'static [u32] {
        &[FEATURE]
    }

    fn methods(&self) -> &'static [MethodInfo] {
        &METHODS
    }

    fn begins_on_connection(&self, method: &str) -> bool {
        method == "Quick"
    }

    fn before_repeat<'a>(&'a self, call: &'a Call, _: &'a Bytes) -> BoxFuture<'a, Result<(), Reply>> {
        Box::pin(async move {
            let order = call.decode::<String>().ok().and_then(|text| Order::parse(&text));
            if let Some(order) = order {
                self.wait_for_barrier(order.number).await;
            }
            Ok(())
        })
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        Box::pin(async move { self.serve(call).await })
    }
}

/// Serves until the server's host dies.
pub(super) async fn run(
    env: Env,
    ledger: Arc<Mutex<Ledger>>,
    security: Arc<TrialSecurity>,
    server: usize,
) -> ProgramResult {
    let listener = env.net.listen(([0, 0, 0, 0], PORT).into()).await?;
    let config = {
        let ledger = ledger.lock();
        RpcConfig {
            queue_length: ledger.queue,
            concurrency: ledger.concurrency,
            keepalive: Some(ledger.keepalive),
            incoming_bytes_min: INCOMING_BYTES,
            max_unsent_bytes: UNSENT,
            encryption: security.encryption,
            remember_responses: ledger.executions.spans.replies,
            remember_clients: ledger.executions.spans.clients,
            ..RpcConfig::default()
        }
    };
    let service = TrialService { env: env.clone(), ledger: ledger.clone(), server, start: Mutex::new(0) };
    let service = Arc::new(service);
    let own = security.server(&env, server)?;
    let rpc = RpcServer::new(env.clone(), config).with_security(own).add(service.clone());
    let handle = Arc::new(rpc.serve(listener));
    let start = ledger.lock().start(server, handle.clone());
    *service.start.lock() = start;
    while !ledger.lock().stops(server) {
        env.sleep(LOOK).await;
    }
    handle.shutdown(GRACE).await;
    pending().await
}
