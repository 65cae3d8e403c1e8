//! The turmoil world: tokio's own scheduler on each host, and turmoil's network of segments between them.
//!
//! Properties of turmoil, and how they are handled:
//!
//! - `tokio::spawn`ed tasks die in an order that differs from run to run: every task is spawned on the host's
//!   `LocalSet`.
//! - Time outside of a host's tasks is the real one: code that runs while a dead host's values are dropped reads the
//!   last simulated time.
//! - A dropped stream sends FIN: before a power cut the host is cut off from the others.
//! - Segments lost to a partition are never retransmitted, and the stream hangs: calls must have deadlines.
//!   [`TurmoilWorld::hold`] delays instead, as TCP would.
//! - Any write is taken whole, as one segment: writes are cut here, so that partial ones happen.
//!
//! Replacements for effects that this world lacks: a link blocked one way is held both ways; loss is a delay; a host
//! that accepts no connections is held; a paused process continues, but its links are held.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, UNIX_EPOCH};

use ::turmoil::{Builder, Sim};
use nyala_common::env::Env;

use super::{EPOCH, HostProgram, LinkRule, LinkRuleId, StopReason, World, WorldFailure};
use crate::event_log::{EventLog, InContext, RunFingerprint};
use crate::machine::Machine;
use crate::net::call_cuts::CallCutId;
use crate::net::rules::LinkEffect;
use sim_plan::faults::CallPart;

use host::{ArmedCuts, HostAddresses, Signals, StreamState, Streams, TurmoilHost, TurmoilSignal};

mod host;

const TICK: Duration = Duration::from_millis(1);
const LATENCY_MAX: Duration = Duration::from_millis(4);
/// Additional latency of a lost segment in this world.
const RETRANSMISSION: Duration = Duration::from_millis(200);

/// Result of a host's program or a client: an error ends the run.
pub type TurmoilResult = Result<(), Box<dyn std::error::Error>>;

/// One simulated network of machines.
pub struct TurmoilWorld {
    sim: Sim<'static>,
    seed: u64,
    log: EventLog,
    machines: BTreeMap<String, Arc<Machine>>,
    names: HostAddresses,
    signals: Signals,
    clients_left: usize,
    rules: BTreeMap<LinkRuleId, LinkRule>,
    next_rule: u64,
    paused: Vec<String>,
    /// Pairs of machines whose link is held now.
    held: Vec<(String, String)>,
    streams: Streams,
    cuts: ArmedCuts,
    cost: Option<engine::disk::mem::DiskCost>,
}

impl TurmoilWorld {
    /// `limit`: simulated time after which a run that has not ended is a failure.
    pub fn new(seed: u64, limit: Duration, log: EventLog) -> TurmoilWorld {
        let sim = Builder::new()
            .rng_seed(seed)
            .epoch(UNIX_EPOCH + EPOCH)
            .tick_duration(TICK)
            .simulation_duration(limit)
            .min_message_latency(Duration::from_micros(100))
            .max_message_latency(LATENCY_MAX)
            .tcp_capacity(1024)
            .enable_random_order()
            .build();
        TurmoilWorld {
            sim,
            seed,
            log,
            machines: BTreeMap::new(),
            names: HostAddresses::default(),
            signals: Signals::default(),
            clients_left: 0,
            rules: BTreeMap::new(),
            next_rule: 0,
            paused: Vec::new(),
            held: Vec::new(),
            streams: Streams::default(),
            cuts: ArmedCuts::default(),
            cost: None,
        }
    }

    /// Sets the latencies of every device created from now on.
    pub fn set_cost(&mut self, cost: engine::disk::mem::DiskCost) {
        self.cost = Some(cost);
    }

    /// Returns the machine of this name, created at the first call.
    pub fn machine(&mut self, name: &str) -> Arc<Machine> {
        if let Some(machine) = self.machines.get(name) {
            return machine.clone();
        }
        let number = self.machines.len() as u64 + 1;
        let seed = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number);
        let machine = Arc::new(Machine::new(name, seed, self.log.clone()));
        if let Some(cost) = self.cost {
            machine.set_cost(cost);
        }
        let ip = self.sim.lookup(name);
        self.names.lock().insert(name.to_string(), ip);
        self.machines.insert(name.to_string(), machine.clone());
        machine
    }

    /// Returns the address of a machine.
    pub fn ip(&mut self, name: &str) -> IpAddr {
        self.machine(name);
        self.sim.lookup(name)
    }

    /// Runs `program` on a machine, from now on and after each restart.
    pub fn host<F>(&mut self, name: &str, program: impl Fn(Env) -> F + 'static)
    where
        F: Future<Output = TurmoilResult> + 'static,
    {
        let env = self.env(name);
        self.sim.host(name, move || program(env.clone()));
    }

    /// Runs `program` on a machine; the run ends when all of these have.
    pub fn client<F>(&mut self, name: &str, program: impl FnOnce(Env) -> F)
    where
        F: Future<Output = TurmoilResult> + 'static,
    {
        let env = self.env(name);
        self.sim.client(name, program(env));
    }

    /// Lets time pass until every client has ended.
    pub fn run(&mut self) -> TurmoilResult {
        self.sim.run()
    }

    /// Lets this much time pass, or less if every client ends before.
    pub fn run_for(&mut self, time: Duration) -> Result<bool, Box<dyn std::error::Error>> {
        let end = self.sim.elapsed() + time;
        while self.sim.elapsed() < end {
            if self.sim.step()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Kills the process, not its machine: peers see their connections end, files keep what was written.
    pub fn kill(&mut self, name: &str) {
        self.note(name, "kill");
        self.sim.crash(name);
        self.machine(name).end_process();
    }

    /// Cuts the power: peers receive nothing, disks keep what was synced and perhaps some of the rest.
    pub fn cut_power(&mut self, name: &str) {
        self.note(name, "power cut");
        for other in self.others(name) {
            self.sim.partition(name, other.as_str());
        }
        self.sim.crash(name);
        self.machine(name).crash_disks();
    }

    /// Restarts a dead machine, which runs its program.
    pub fn restart(&mut self, name: &str) {
        self.note(name, "restart");
        for other in self.others(name) {
            self.sim.repair(name, other.as_str());
        }
        self.sim.bounce(name);
    }

    /// Holds the link between two machines until [`TurmoilWorld::release`]; nothing is lost.
    pub fn hold(&mut self, one: &str, other: &str) {
        self.note(one, "hold");
        self.sim.hold(one, other);
    }

    pub fn release(&mut self, one: &str, other: &str) {
        self.note(one, "release");
        self.sim.release(one, other);
    }

    pub fn fingerprint(&self) -> RunFingerprint {
        self.log.fingerprint()
    }

    fn note(&self, name: &str, what: &str) {
        self.log.record(self.sim.elapsed().as_nanos() as u64, name, what, &[]);
    }

    fn others(&self, name: &str) -> Vec<String> {
        self.machines.keys().filter(|other| *other != name).cloned().collect()
    }

    fn host_state(&mut self, name: &str) -> Arc<TurmoilHost> {
        let machine = self.machine(name);
        let ip = self.ip(name);
        Arc::new(TurmoilHost {
            machine,
            ip,
            names: self.names.clone(),
            last: AtomicU64::new(0),
            signals: self.signals.clone(),
            streams: self.streams.clone(),
            cuts: self.cuts.clone(),
        })
    }

    fn env(&mut self, name: &str) -> Env {
        self.host_state(name).env()
    }

    fn record(&self, name: &str, what: &str) {
        self.log.record_timeline(self.sim.elapsed().as_nanos() as u64, name, "world", what);
    }

    /// Returns the pairs of hosts that a rule is about.
    fn pairs(&self, rule: &LinkRule) -> Vec<(String, String)> {
        let names: Vec<String> = self.machines.keys().cloned().collect();
        let mut pairs = Vec::new();
        for from in names.iter().filter(|name| rule.from.as_ref().is_none_or(|from| from == *name)) {
            for to in names.iter().filter(|name| rule.to.as_ref().is_none_or(|to| to == *name)) {
                if from != to {
                    pairs.push((from.clone().min(to.clone()), from.clone().max(to.clone())));
                }
            }
        }
        pairs.sort();
        pairs.dedup();
        pairs
    }

    /// Holds and releases links as rules and pauses require now.
    fn apply_rules(&mut self) {
        let mut wanted = Vec::new();
        for rule in self.rules.values() {
            if matches!(rule.effect, LinkEffect::Block | LinkEffect::Ignore | LinkEffect::Refuse) {
                wanted.extend(self.pairs(rule));
            }
        }
        for paused in &self.paused {
            let all = LinkRule { from: Some(paused.clone()), to: None, effect: LinkEffect::Block };
            wanted.extend(self.pairs(&all));
        }
        wanted.sort();
        wanted.dedup();
        let before = std::mem::replace(&mut self.held, wanted);
        for (one, other) in before.iter().filter(|pair| !self.held.contains(pair)) {
            self.sim.release(one.as_str(), other.as_str());
        }
        for (one, other) in self.held.iter().filter(|pair| !before.contains(pair)) {
            self.sim.hold(one.as_str(), other.as_str());
        }
    }

    fn set_latency(&mut self, rule: &LinkRule, latency: Duration) {
        for (one, other) in self.pairs(rule) {
            self.sim.set_link_latency(one.as_str(), other.as_str(), latency);
        }
    }
}

/// Returns the signal for a program's end.
fn told(ended: super::ProgramResult, name: &str, client: bool) -> TurmoilSignal {
    let (host, error) = (name.to_string(), ended.err().map(|error| error.to_string()));
    match (client, error) {
        (true, None) => Ok(StopReason::ClientsEnded),
        (true, Some(message)) => Err(WorldFailure { host, message }),
        (false, error) => Ok(StopReason::Exited { host, error }),
    }
}

impl World for TurmoilWorld {
    fn machine(&mut self, host: &str) -> Arc<Machine> {
        TurmoilWorld::machine(self, host)
    }

    fn boot(&mut self, name: &str, program: HostProgram) {
        let host = self.host_state(name);
        self.sim.host(name, move || {
            let (here, program) = (host.clone(), program.clone());
            let future = Box::pin(async move {
                let ended = program(here.env()).await;
                here.signals.lock().push_back(told(ended, &here.machine.name, false));
                std::future::pending::<()>().await
            });
            let at = InContext { here: host.clone(), task: None, future };
            async move {
                at.await;
                Ok(())
            }
        });
    }

    fn client(&mut self, name: &str, program: HostProgram) {
        self.clients_left += 1;
        let host = self.host_state(name);
        let here = host.clone();
        let future = Box::pin(async move {
            let ended = program(here.env()).await;
            here.signals.lock().push_back(told(ended, &here.machine.name, true));
            // A client's machine continues when its program has ended.
            std::future::pending::<()>().await
        });
        let at = InContext { here: host, task: None, future };
        self.sim.client(name, async move {
            at.await;
            Ok(())
        });
    }

    fn now(&self) -> Duration {
        self.sim.elapsed()
    }

    fn run_until(&mut self, at: Duration) -> Result<StopReason, WorldFailure> {
        loop {
            let signal = self.signals.lock().pop_front();
            match signal {
                Some(Ok(StopReason::ClientsEnded)) => {
                    self.clients_left -= 1;
                    if self.clients_left == 0 {
                        return Ok(StopReason::ClientsEnded);
                    }
                }
                Some(signal) => return signal,
                None if self.sim.elapsed() >= at => return Ok(StopReason::Reached),
                None => {
                    let step = self.sim.step();
                    step.map_err(|error| WorldFailure {
                        host: "turmoil".into(),
                        message: error.to_string(),
                    })?;
                }
            }
        }
    }

    fn kill(&mut self, host: &str) {
        self.record(host, "kill");
        self.sim.crash(host);
        self.machine(host).end_process();
    }

    fn cut_power(&mut self, host: &str) {
        self.record(host, "power cut");
        TurmoilWorld::cut_power(self, host);
    }

    fn restart(&mut self, host: &str) {
        self.record(host, "restart");
        TurmoilWorld::restart(self, host);
        // A host that died while paused does not come back paused.
        self.paused.retain(|paused| paused != host);
        // Repairing its links has released them as well.
        self.held.retain(|(one, other)| one != host && other != host);
        self.apply_rules();
    }

    fn pause(&mut self, host: &str) {
        self.record(host, "pause");
        self.paused.push(host.to_string());
        self.apply_rules();
    }

    fn resume(&mut self, host: &str) {
        self.record(host, "resume");
        self.paused.retain(|paused| paused != host);
        self.apply_rules();
    }

    fn add_rule(&mut self, rule: LinkRule) -> LinkRuleId {
        self.record("network", &format!("begins {rule:?}"));
        let id = LinkRuleId(self.next_rule);
        self.next_rule += 1;
        match rule.effect {
            LinkEffect::Delay(nanos) => self.set_latency(&rule, Duration::from_nanos(nanos)),
            LinkEffect::Lose(_) => self.set_latency(&rule, RETRANSMISSION),
            LinkEffect::Block | LinkEffect::Ignore | LinkEffect::Refuse => {}
        }
        self.rules.insert(id, rule);
        self.apply_rules();
        id
    }

    fn remove_rule(&mut self, id: LinkRuleId) {
        self.record("network", &format!("ends rule {}", id.0));
        if let Some(rule) = self.rules.remove(&id)
            && matches!(rule.effect, LinkEffect::Delay(_) | LinkEffect::Lose(_))
        {
            self.set_latency(&rule, LATENCY_MAX);
        }
        self.apply_rules();
    }

    fn reset_between(&mut self, one: &str, other: &str) -> usize {
        self.record(one, &format!("reset connections with {other}"));
        let ips = [self.ip(one), self.ip(other)];
        let mut streams = self.streams.lock();
        streams.retain(|fate| Arc::strong_count(fate) > 1);
        let between = |fate: &&Arc<StreamState>| fate.ips == ips || fate.ips == [ips[1], ips[0]];
        let reset: Vec<Arc<StreamState>> = streams.iter().filter(between).cloned().collect();
        drop(streams);
        reset.iter().for_each(|fate| fate.reset());
        reset.len()
    }

    fn arm_call_cut(&mut self, opener: &str, acceptor: &str, part: CallPart, nth: u32) -> CallCutId {
        let (from, to) = (self.ip(opener), self.ip(acceptor));
        self.cuts.lock().arm(from, to, part, nth)
    }

    fn disarm_call_cut(&mut self, id: CallCutId) {
        self.cuts.lock().disarm(id);
    }

    fn calls_cut(&self) -> u64 {
        self.cuts.lock().cut
    }

    fn log(&self) -> &EventLog {
        &self.log
    }
}
