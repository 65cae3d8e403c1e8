//! A trial of calls: servers of a made-up service, and callers that check every reply.
//!
//! ```text
//!   callers: orders of any size and time ── Proxy ── SimNet: narrow, cut ── RpcServer ──► service: executes orders
//!      │  several calls of a connection, retries of tracked ones                              │ at most once?
//!      └──────────── every reply, error and time is right by the [`ledger`] ◄─────────────────┘ in time?
//! ```
//!
//! In a run, few messages fill a window, few queues overflow, and what a client hides by its retries stays unseen.
//!
//! - A reply is its order's, with all sidecars, and comes by the deadline; a call that nothing disturbs gets one.
//! - A call that certainly was not executed was not. A tracked request is executed once per start of its server;
//!   servers of some trials forget replies and clients soon, but none that is in progress.
//! - Of the calls of a service, no more run than it may run at once, and none that has expired. A call is refused only
//!   if the queue can be full.
//! - A client whose token is refused falls back to its own credentials.
//! - A connection that is lost in silence is replaced, although calls are sent on it at short intervals, or
//!   one after the other with short timeouts.
//! - In the end, no call is left, and no memory of incomplete requests: long ones have exceeded it.
//!
//! *Not here:* bytes that break the protocol, which `fuzz` and the hostile peer of a run send.

mod beats;
mod caller;
mod clients;
mod executions;
mod incoming_memory;
mod ledger;
mod long_requests;
mod order;
mod security;
mod service;
mod settings;
mod silences;
mod step;

use std::sync::Arc;
use std::time::Duration;

use engine::disk::mem::DiskCost;
use engine::sync::Mutex;
use sim_plan::{NetworkSpec, RandomStream};

use self::executions::RememberedSpans;
use self::ledger::Ledger;
use self::security::TrialSecurity;
use self::settings::{CLIENTS, DISTURBED, END, INCOMING_BYTES, SERVERS, WORKERS, client_name, server_name};
use super::pass;
use crate::event_log::EventLog;
use crate::oracle::Violation;
use crate::world::keyed::KeyedWorld;
use crate::world::{HostProgram, LinkRuleId, World};

/// Name of this oracle.
const NAME: &str = "rpc trial";

/// Lines that a violation's story ends with.
const STORY: usize = 40;

struct RpcTrial {
    random: RandomStream,
    world: KeyedWorld,
    ledger: Arc<Mutex<Ledger>>,
    security: Arc<TrialSecurity>,
    up: [bool; SERVERS],
    rules: Vec<LinkRuleId>,
}

/// Runs the trial of a seed; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let mut trial = RpcTrial::create(seed);
    trial.run();
    let mut ledger = trial.ledger.lock();
    let what = ledger.found.take()?;
    let story = std::mem::take(&mut ledger.story);
    Some(Violation::new(NAME, format!("seed {seed}: {what}")).with_end_of(story, STORY))
}

/// Draws a network: some are narrow, so that windows and send queues are full often.
fn network(random: &mut RandomStream) -> NetworkSpec {
    NetworkSpec {
        latency: Duration::from_micros(100),
        jitter: Duration::from_micros(400),
        bytes_per_ms: random.pick(&[20_000, 100_000]),
        window: random.pick(&[2_048, 16_384, 65_536]),
        loss_per_mille: random.pick(&[0, 0, 1]),
        cut_one_in: random.pick(&[5, 50]),
    }
}

impl RpcTrial {
    fn create(seed: u64) -> RpcTrial {
        let mut random = RandomStream::new(seed, "rpc trial");
        let log = EventLog::keeping(0..0, false);
        let world = KeyedWorld::new(seed, network(&mut random), DiskCost::default(), log);
        let security = Arc::new(TrialSecurity::draw(&mut random, world.true_micros()));
        let mut ledger = Ledger::draw(&mut random);
        ledger.executions.spans = RememberedSpans::draw(seed);
        let ledger = Arc::new(Mutex::new(ledger));
        RpcTrial { random, world, ledger, security, up: [true; SERVERS], rules: Vec::new() }
    }

    fn run(&mut self) {
        for server in 0..SERVERS {
            let (ledger, security) = (self.ledger.clone(), self.security.clone());
            let program: HostProgram =
                Arc::new(move |env| Box::pin(service::run(env, ledger.clone(), security.clone(), server)));
            // The least that servers accept applies, not a share of the memory.
            self.world.machine(&server_name(server)).set_memory_bytes(INCOMING_BYTES);
            self.world.boot(&server_name(server), program);
        }
        self.pass(Duration::from_millis(100));
        for client in 0..CLIENTS {
            let (ledger, security, seed) =
                (self.ledger.clone(), self.security.clone(), self.random.next_u64());
            let program: HostProgram = Arc::new(move |env| {
                Box::pin(clients::run(env, ledger.clone(), security.clone(), (client, seed)))
            });
            self.world.client(&client_name(client), program);
        }
        while self.world.now() < DISTURBED && self.ledger.lock().found.is_none() {
            let wait = self.random.span(Duration::from_millis(5), Duration::from_secs(3));
            self.pass(wait);
            self.take_step();
        }
        self.heal();
        self.pass(END.saturating_sub(self.world.now()));
        let now = self.world.mono();
        let mut ledger = self.ledger.lock();
        if ledger.ended < CLIENTS * WORKERS {
            ledger.report("not all calls have ended".to_string());
        }
        ledger.check_end(now);
    }

    /// Lets time pass.
    fn pass(&mut self, span: Duration) {
        let until = self.world.now() + span;
        if let Err(failure) = pass::until(&mut self.world, until) {
            self.ledger.lock().report(failure);
        }
    }
}

#[cfg(test)]
mod tests;
