//! The world of breadth: madsim's executor, which takes a random one of the ready tasks each time.
//!
//! What is madsim's: the executor and its seed, nodes that are killed, paused and restarted, and the interception of
//! the C library's clock and randomness, so that a call that escapes [`Env`] is at least the same in every run of a
//! seed. What is not: its network forgives too much (no backpressure, an end that is heard through a partition), its
//! file system has no power failure, and its timers are no finer than a millisecond. So time, network and devices
//! are [`clockwork`]'s, and madsim's own time is used for one thing: a timer of its fires only when no task is
//! ready, which is when the clockwork may move on.
//!
//! Tasks run on one thread; nothing here or in a node may start another, which madsim refuses. One run per process:
//! statics, such as tokio's counters, are part of what a seed decides.
//!
//! [`clockwork`]: super::clockwork

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::madsim::runtime::{Handle, NodeHandle, Runtime};
use ::madsim::task::JoinHandle;
use node::env::{BoxFuture, TaskHandle};

use super::clockwork::{Clockwork, Node, Signal, nanos};
use super::{Failure, LinkRule, LinkRuleId, Program, Stopped, World};
use crate::machine::Machine;
use crate::net::Network;
use crate::net::capacity::{Capacity, Used};
use crate::net::rules::{HostId, Rule, RuleId};
use crate::plan;
use crate::trace::{At, EventLog, Whereabouts};

/// The least that madsim's timers can do.
const TICK: Duration = Duration::from_millis(1);
/// madsim remembers every task of a node until it is asked how many there are.
const SWEEP_EVERY: u32 = 1 << 12;

/// Machines over madsim's executor.
pub struct MadsimWorld {
    runtime: Runtime,
    clockwork: Arc<Clockwork>,
    seed: u64,
    log: EventLog,
    hosts: BTreeMap<String, Host>,
    clients_left: usize,
    cost: engine::disk::mem::DiskCost,
}

struct Host {
    node: Arc<Node>,
    handle: Option<NodeHandle>,
}

struct Task(JoinHandle<()>);

impl TaskHandle for Task {
    fn abort(&self) {
        self.0.abort();
    }

    fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

fn spawn(name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn TaskHandle> {
    Box::new(Task(::madsim::task::Builder::new().name(name).spawn(future)))
}

impl MadsimWorld {
    pub fn new(
        seed: u64,
        network: plan::Network,
        cost: engine::disk::mem::DiskCost,
        log: EventLog,
    ) -> MadsimWorld {
        MadsimWorld {
            runtime: Runtime::with_seed_and_config(seed, ::madsim::Config::default()),
            clockwork: Clockwork::new(Network::new(seed, network)),
            seed,
            log,
            hosts: BTreeMap::new(),
            clients_left: 0,
            cost,
        }
    }

    fn node(&mut self, name: &str) -> Arc<Node> {
        if let Some(host) = self.hosts.get(name) {
            return host.node.clone();
        }
        let number = self.hosts.len() as u64 + 1;
        let seed = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number);
        let machine = Arc::new(Machine::new(name, seed, self.log.clone()));
        machine.set_cost(self.cost);
        let id = self.clockwork.net(|net, _| net.host(name));
        let node = Arc::new(Node { clockwork: self.clockwork.clone(), machine, id });
        self.hosts.insert(name.to_string(), Host { node: node.clone(), handle: None });
        node
    }

    /// From now on a machine takes no more than this.
    pub fn set_capacity(&mut self, host: &str, capacity: Capacity) {
        let id = self.id(host);
        self.clockwork.net(|net, _| net.set_capacity(id, capacity));
    }

    /// What of its capacity a machine has used.
    pub fn used(&mut self, host: &str) -> Used {
        let id = self.id(host);
        self.clockwork.net(|net, now| net.used(now, id))
    }

    fn id(&mut self, name: &str) -> HostId {
        self.node(name).id
    }

    fn name_of(&self, id: HostId) -> String {
        self.clockwork.net(|net, _| net.name(id).to_string())
    }

    /// Starts a program whose end is told by `signal`.
    fn start(&mut self, name: &str, program: Program, signal: fn(HostId, Option<String>) -> Signal) {
        let node = self.node(name);
        let inner = node.clone();
        let init = move || {
            let here: Arc<dyn Whereabouts> = inner.clone();
            let (node, program) = (inner.clone(), program.clone());
            let future = Box::pin(async move {
                let ended = program(node.env(spawn)).await;
                node.clockwork.signal(signal(node.id, ended.err().map(|error| error.to_string())));
                // A program that ended takes its node with it, in its own time.
                std::future::pending::<()>().await
            });
            At { here, future }
        };
        let building = self.runtime.create_node().name(name);
        let handle = self.runtime.block_on(async move { building.init(init).build() });
        if let Some(host) = self.hosts.get_mut(name) {
            host.handle = Some(handle);
        }
    }

    fn on_node(&mut self, name: &str, what: &str, work: impl FnOnce(&Handle, &NodeHandle)) {
        self.log.moment(self.clockwork.nanos(), name, "world", what);
        let Some(handle) = self.hosts.get(name).and_then(|host| host.handle.as_ref()) else { return };
        self.runtime.block_on(async { work(&Handle::current(), handle) });
        self.settle();
    }

    /// Lets every ready task run, without time passing.
    fn settle(&self) {
        self.runtime.block_on(async { ::madsim::time::sleep(TICK).await });
    }

    fn rule(&mut self, rule: &LinkRule) -> Rule {
        let from = rule.from.as_deref().map(|name| self.id(name));
        let to = rule.to.as_deref().map(|name| self.id(name));
        Rule { from, to, effect: rule.effect }
    }

    fn stopped_by(&mut self, signal: Signal) -> Option<Result<Stopped, Failure>> {
        match signal {
            Signal::LostPower(id) => Some(Ok(Stopped::LostPower { host: self.name_of(id) })),
            Signal::Struck(fault) => Some(Ok(Stopped::Struck { fault })),
            Signal::Exited(id, error) => Some(Ok(Stopped::Exited { host: self.name_of(id), error })),
            Signal::ClientFailed(id, message) => Some(Err(Failure { host: self.name_of(id), message })),
            Signal::ClientEnded => {
                self.clients_left -= 1;
                (self.clients_left == 0).then_some(Ok(Stopped::ClientsEnded))
            }
        }
    }
}

impl World for MadsimWorld {
    fn machine(&mut self, host: &str) -> Arc<Machine> {
        self.node(host).machine.clone()
    }

    fn boot(&mut self, host: &str, program: Program) {
        self.start(host, program, Signal::Exited);
    }

    fn client(&mut self, host: &str, program: Program) {
        self.clients_left += 1;
        self.start(host, program, |id, error| match error {
            Some(error) => Signal::ClientFailed(id, error),
            None => Signal::ClientEnded,
        });
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.clockwork.nanos())
    }

    fn run_until(&mut self, at: Duration) -> Result<Stopped, Failure> {
        let until = nanos(at);
        loop {
            while let Some(signal) = self.clockwork.next_signal() {
                if let Some(stopped) = self.stopped_by(signal) {
                    return stopped;
                }
            }
            let clockwork = &self.clockwork;
            let reached = self.runtime.block_on(async move {
                for step in 1_u32.. {
                    ::madsim::time::sleep(TICK).await;
                    if clockwork.has_signals() {
                        return false;
                    }
                    if !clockwork.step(until) {
                        return true;
                    }
                    if step.is_multiple_of(SWEEP_EVERY) {
                        Handle::current().metrics().num_tasks();
                    }
                }
                false
            });
            if reached {
                return Ok(Stopped::Reached);
            }
        }
    }

    fn kill(&mut self, host: &str) {
        self.on_node(host, "kill", |handle, node| handle.kill(node.id()));
        self.machine(host).end_process();
    }

    fn cut_power(&mut self, host: &str) {
        let node = self.node(host);
        self.clockwork.net(|net, _| net.power_off(node.id));
        node.machine.crash_disks();
        self.on_node(host, "power cut", |handle, node| handle.kill(node.id()));
    }

    fn restart(&mut self, host: &str) {
        let id = self.id(host);
        self.clockwork.net(|net, now| net.power_on(now, id));
        self.on_node(host, "restart", |handle, node| handle.restart(node.id()));
    }

    fn pause(&mut self, host: &str) {
        self.on_node(host, "pause", |handle, node| handle.pause(node.id()));
    }

    fn resume(&mut self, host: &str) {
        self.on_node(host, "resume", |handle, node| handle.resume(node.id()));
    }

    fn add_rule(&mut self, rule: LinkRule) -> LinkRuleId {
        self.log.moment(self.clockwork.nanos(), "network", "world", &format!("begins {rule:?}"));
        let rule = self.rule(&rule);
        LinkRuleId(self.clockwork.net(|net, _| net.add_rule(rule)).0)
    }

    fn remove_rule(&mut self, id: LinkRuleId) {
        self.log.moment(self.clockwork.nanos(), "network", "world", &format!("ends rule {}", id.0));
        self.clockwork.net(|net, now| net.remove_rule(now, RuleId(id.0)));
    }

    fn reset_between(&mut self, one: &str, other: &str) -> usize {
        let (a, b) = (self.id(one), self.id(other));
        self.log.moment(self.clockwork.nanos(), one, "world", &format!("reset connections with {other}"));
        self.clockwork.net(|net, _| net.reset_between(a, b))
    }

    fn log(&self) -> &EventLog {
        &self.log
    }
}
