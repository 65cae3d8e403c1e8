//! The world with madsim's executor, which runs the ready tasks in random order.
//!
//! madsim's part: the executor and its seed, nodes that are killed, paused and restarted, and the interception of the
//! C library's clock and randomness. So a call that escapes [`Env`] is at least the same in every run of a seed. Not
//! madsim's: its network is too lenient (no backpressure, an end that arrives through a partition), its file system has
//! no power cut, and its timers are no finer than a millisecond. So time, network and devices are [`virtual_env`]'s.
//! madsim's own time is used for one thing: a timer of its fires only when no task is ready, which is when
//! [`VirtualWorld`] may advance.
//!
//! Tasks run on one thread; nothing here or in a node may start another, which madsim refuses. One run per process:
//! statics, such as tokio's counters, are part of what a seed decides.
//!
//! [`virtual_env`]: super::virtual_env

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::madsim::runtime::{Handle, NodeHandle, Runtime};
use ::madsim::task::JoinHandle;
use nyala_common::env::{BoxFuture, TaskHandle};

use super::virtual_env::{HostSignal, VirtualNode, VirtualWorld, nanos};
use super::{HostProgram, LinkRule, LinkRuleId, StopReason, World, WorldFailure};
use crate::event_log::{EventLog, ExecutionContext, InContext};
use crate::machine::Machine;
use crate::net::Network;
use crate::net::call_cuts::CallCutId;
use crate::net::capacity::{CapacityUsed, HostCapacity};
use crate::net::rules::{HostId, Rule, RuleId};
use sim_plan::faults::CallPart;

/// Resolution of madsim's timers.
const TICK: Duration = Duration::from_millis(1);
/// Steps between two calls that make madsim drop its records of finished tasks.
const SWEEP_EVERY: u32 = 1 << 12;

/// Machines over madsim's executor.
pub struct MadsimWorld {
    runtime: Runtime,
    virtual_world: Arc<VirtualWorld>,
    seed: u64,
    log: EventLog,
    hosts: BTreeMap<String, Host>,
    clients_left: usize,
    cost: engine::disk::mem::DiskCost,
}

struct Host {
    node: Arc<VirtualNode>,
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
        network: sim_plan::NetworkSpec,
        cost: engine::disk::mem::DiskCost,
        log: EventLog,
    ) -> MadsimWorld {
        MadsimWorld {
            runtime: Runtime::with_seed_and_config(seed, ::madsim::Config::default()),
            virtual_world: VirtualWorld::new(Network::new(seed, network)),
            seed,
            log,
            hosts: BTreeMap::new(),
            clients_left: 0,
            cost,
        }
    }

    fn node(&mut self, name: &str) -> Arc<VirtualNode> {
        if let Some(host) = self.hosts.get(name) {
            return host.node.clone();
        }
        let number = self.hosts.len() as u64 + 1;
        let seed = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number);
        let machine = Arc::new(Machine::new(name, seed, self.log.clone()));
        machine.set_cost(self.cost);
        let id = self.virtual_world.net(|net, _| net.host(name));
        let node = Arc::new(VirtualNode { virtual_world: self.virtual_world.clone(), machine, id });
        self.hosts.insert(name.to_string(), Host { node: node.clone(), handle: None });
        node
    }

    /// Bounds a machine's throughput from now on.
    pub fn set_capacity(&mut self, host: &str, capacity: HostCapacity) {
        let id = self.id(host);
        self.virtual_world.net(|net, _| net.set_capacity(id, capacity));
    }

    /// Returns the capacity that a machine has used.
    pub fn used(&mut self, host: &str) -> CapacityUsed {
        let id = self.id(host);
        self.virtual_world.net(|net, now| net.used(now, id))
    }

    fn id(&mut self, name: &str) -> HostId {
        self.node(name).id
    }

    fn name_of(&self, id: HostId) -> String {
        self.virtual_world.net(|net, _| net.name(id).to_string())
    }

    /// Starts a program whose end is reported by `signal`.
    fn start(&mut self, name: &str, program: HostProgram, signal: fn(HostId, Option<String>) -> HostSignal) {
        let node = self.node(name);
        let inner = node.clone();
        let init = move || {
            let here: Arc<dyn ExecutionContext> = inner.clone();
            let (node, program) = (inner.clone(), program.clone());
            let future = Box::pin(async move {
                let ended = program(node.env(spawn)).await;
                node.virtual_world.signal(signal(node.id, ended.err().map(|error| error.to_string())));
                // A program that ended must not end its node.
                std::future::pending::<()>().await
            });
            InContext { here, task: None, future }
        };
        let building = self.runtime.create_node().name(name);
        let handle = self.runtime.block_on(async move { building.init(init).build() });
        if let Some(host) = self.hosts.get_mut(name) {
            host.handle = Some(handle);
        }
    }

    fn on_node(&mut self, name: &str, what: &str, work: impl FnOnce(&Handle, &NodeHandle)) {
        self.log.record_timeline(self.virtual_world.nanos(), name, "world", what);
        let Some(handle) = self.hosts.get(name).and_then(|host| host.handle.as_ref()) else { return };
        self.runtime.block_on(async { work(&Handle::current(), handle) });
        self.settle();
    }

    /// Runs every ready task without advancing time.
    fn settle(&self) {
        self.runtime.block_on(async { ::madsim::time::sleep(TICK).await });
    }

    fn rule(&mut self, rule: &LinkRule) -> Rule {
        let from = rule.from.as_deref().map(|name| self.id(name));
        let to = rule.to.as_deref().map(|name| self.id(name));
        Rule { from, to, effect: rule.effect }
    }

    fn stopped_by(&mut self, signal: HostSignal) -> Option<Result<StopReason, WorldFailure>> {
        match signal {
            HostSignal::LostPower(id) => Some(Ok(StopReason::LostPower { host: self.name_of(id) })),
            HostSignal::Fired(fault) => Some(Ok(StopReason::Fired { fault })),
            HostSignal::Exited(id, error) => Some(Ok(StopReason::Exited { host: self.name_of(id), error })),
            HostSignal::ClientFailed(id, message) => {
                Some(Err(WorldFailure { host: self.name_of(id), message }))
            }
            HostSignal::ClientEnded => {
                self.clients_left -= 1;
                (self.clients_left == 0).then_some(Ok(StopReason::ClientsEnded))
            }
        }
    }
}

impl World for MadsimWorld {
    fn machine(&mut self, host: &str) -> Arc<Machine> {
        self.node(host).machine.clone()
    }

    fn boot(&mut self, host: &str, program: HostProgram) {
        self.start(host, program, HostSignal::Exited);
    }

    fn client(&mut self, host: &str, program: HostProgram) {
        self.clients_left += 1;
        self.start(host, program, |id, error| match error {
            Some(error) => HostSignal::ClientFailed(id, error),
            None => HostSignal::ClientEnded,
        });
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.virtual_world.nanos())
    }

    fn run_until(&mut self, at: Duration) -> Result<StopReason, WorldFailure> {
        let until = nanos(at);
        loop {
            while let Some(signal) = self.virtual_world.next_signal() {
                if let Some(stopped) = self.stopped_by(signal) {
                    return stopped;
                }
            }
            let virtual_world = &self.virtual_world;
            let reached = self.runtime.block_on(async move {
                for step in 1_u32.. {
                    ::madsim::time::sleep(TICK).await;
                    if virtual_world.has_signals() {
                        return false;
                    }
                    if !virtual_world.step(until) {
                        return true;
                    }
                    if step.is_multiple_of(SWEEP_EVERY) {
                        Handle::current().metrics().num_tasks();
                    }
                }
                false
            });
            if reached {
                return Ok(StopReason::Reached);
            }
        }
    }

    fn kill(&mut self, host: &str) {
        self.on_node(host, "kill", |handle, node| handle.kill(node.id()));
        self.machine(host).end_process();
    }

    fn cut_power(&mut self, host: &str) {
        let node = self.node(host);
        self.virtual_world.net(|net, _| net.power_off(node.id));
        node.machine.crash_disks();
        self.on_node(host, "power cut", |handle, node| handle.kill(node.id()));
    }

    fn restart(&mut self, host: &str) {
        let id = self.id(host);
        self.virtual_world.net(|net, now| net.power_on(now, id));
        self.on_node(host, "restart", |handle, node| handle.restart(node.id()));
    }

    fn pause(&mut self, host: &str) {
        self.on_node(host, "pause", |handle, node| handle.pause(node.id()));
    }

    fn resume(&mut self, host: &str) {
        self.on_node(host, "resume", |handle, node| handle.resume(node.id()));
    }

    fn add_rule(&mut self, rule: LinkRule) -> LinkRuleId {
        self.log.record_timeline(self.virtual_world.nanos(), "network", "world", &format!("begins {rule:?}"));
        let rule = self.rule(&rule);
        LinkRuleId(self.virtual_world.net(|net, _| net.add_rule(rule)).0)
    }

    fn remove_rule(&mut self, id: LinkRuleId) {
        self.log.record_timeline(
            self.virtual_world.nanos(),
            "network",
            "world",
            &format!("ends rule {}", id.0),
        );
        self.virtual_world.net(|net, now| net.remove_rule(now, RuleId(id.0)));
    }

    fn reset_between(&mut self, one: &str, other: &str) -> usize {
        let (a, b) = (self.id(one), self.id(other));
        self.log.record_timeline(
            self.virtual_world.nanos(),
            one,
            "world",
            &format!("reset connections with {other}"),
        );
        self.virtual_world.net(|net, _| net.reset_between(a, b))
    }

    fn arm_call_cut(&mut self, opener: &str, acceptor: &str, part: CallPart, nth: u32) -> CallCutId {
        let (from, to) = (self.id(opener), self.id(acceptor));
        self.virtual_world.net(|net, _| net.cuts.arm(from, to, part, nth))
    }

    fn disarm_call_cut(&mut self, id: CallCutId) {
        self.virtual_world.net(|net, _| net.cuts.disarm(id));
    }

    fn calls_cut(&self) -> u64 {
        self.virtual_world.net(|net, _| net.cuts.cut)
    }

    fn reseed(&mut self, seed: u64) {
        self.virtual_world.net(|net, _| net.reseed(seed));
    }

    fn log(&self) -> &EventLog {
        &self.log
    }

    fn work_counts(&self) -> BTreeMap<&'static str, u64> {
        let (steps, net) = self.virtual_world.counts();
        let counts = [
            ("steps", steps.steps),
            ("polls", steps.polls),
            ("timers set", steps.timers_set),
            ("timers polled", steps.timer_polls),
            ("timers fired", steps.timers_fired),
            ("timers cancelled", steps.timers_cancelled),
            ("connections", net.connected),
            ("segments", net.segments),
            ("segment bytes", net.bytes),
            ("segments sent again", net.retransmitted),
        ];
        counts.into_iter().collect()
    }
}
