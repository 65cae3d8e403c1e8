//! A world of [`virtual_env`]'s time, network and devices over an executor: what is the same for every executor.
//!
//! ```text
//! driver ──► ExecutorWorld ──► Executor: runs ready tasks until none is left ──► VirtualWorld::step
//!                 ▲ signals of hosts: exit, power lost, trigger fired ◄──────────────┘
//! ```
//!
//! [`virtual_env`]: super::virtual_env

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::virtual_env::{HostSignal, Spawn, VirtualNode, VirtualWorld, nanos};
use super::{HostProgram, LinkRule, LinkRuleId, StopReason, World, WorldFailure};
use crate::event_log::{EventLog, ExecutionContext, InContext};
use crate::machine::Machine;
use crate::net::Network;
use crate::net::call_cuts::CallCutId;
use crate::net::capacity::{CapacityUsed, HostCapacity};
use crate::net::rules::{HostId, Rule, RuleId};
use sim_plan::faults::CallPart;

/// Creates the first task of a host's process.
pub type FirstTask = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()>>> + Send + Sync>;

/// An executor of the tasks of all hosts, and the source of its world's draws.
pub trait Executor {
    /// Creates a machine whose draws are the executor's.
    fn machine(&self, number: u64, name: &str, log: EventLog) -> Machine;

    /// Returns the spawner for the tasks of a host.
    fn spawner(&self, host: HostId) -> Arc<dyn Spawn>;

    /// Starts a host's process, which runs its first task now and after each restart.
    fn start(&mut self, host: HostId, name: &str, first: FirstTask);

    /// Drops all tasks of a host.
    fn kill(&mut self, host: HostId);

    /// Starts the process of a killed host again.
    fn restart(&mut self, host: HostId);

    /// Keeps the tasks of a host from running until [`Executor::resume`].
    fn pause(&mut self, host: HostId);
    fn resume(&mut self, host: HostId);

    /// Runs every ready task without advancing time.
    fn settle(&mut self);

    /// Runs tasks and advances time until `until`, true, or until a host signals, false.
    fn run(&mut self, world: &VirtualWorld, until: u64) -> bool;

    /// Draws from another seed from now on, if the executor can.
    fn reseed(&mut self, _seed: u64) {}

    /// True if draws are named by keys: see [`crate::draws`].
    fn draws_by_key(&self) -> bool {
        false
    }
}

/// Machines over an executor.
pub struct ExecutorWorld<E> {
    executor: E,
    virtual_world: Arc<VirtualWorld>,
    log: EventLog,
    hosts: BTreeMap<String, Host>,
    clients_left: usize,
    cost: engine::disk::mem::DiskCost,
}

struct Host {
    node: Arc<VirtualNode>,
    is_booted: bool,
}

impl<E: Executor> ExecutorWorld<E> {
    pub fn over(
        executor: E,
        network: Network,
        cost: engine::disk::mem::DiskCost,
        log: EventLog,
    ) -> ExecutorWorld<E> {
        let (virtual_world, hosts) = (VirtualWorld::new(network), BTreeMap::new());
        ExecutorWorld { executor, virtual_world, log, hosts, clients_left: 0, cost }
    }

    fn node(&mut self, name: &str) -> Arc<VirtualNode> {
        if let Some(host) = self.hosts.get(name) {
            return host.node.clone();
        }
        let number = self.hosts.len() as u64 + 1;
        let machine = Arc::new(self.executor.machine(number, name, self.log.clone()));
        machine.set_cost(self.cost);
        let id = self.virtual_world.net(|net, _| net.host(name));
        let node = Arc::new(VirtualNode { virtual_world: self.virtual_world.clone(), machine, id });
        self.hosts.insert(name.to_string(), Host { node: node.clone(), is_booted: false });
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
        let (id, spawner) = (node.id, self.executor.spawner(node.id));
        let first: FirstTask = Arc::new(move || {
            let here: Arc<dyn ExecutionContext> = node.clone();
            let (node, program, spawner) = (node.clone(), program.clone(), spawner.clone());
            node.machine.begin_start();
            let future = Box::pin(async move {
                let ended = program(node.env(spawner)).await;
                node.virtual_world.signal(signal(node.id, ended.err().map(|error| error.to_string())));
                // A program that ended must not end its node.
                std::future::pending::<()>().await
            });
            Box::pin(InContext { here, task: None, future })
        });
        self.executor.start(id, name, first);
        if let Some(host) = self.hosts.get_mut(name) {
            host.is_booted = true;
        }
    }

    fn on_node(&mut self, name: &str, what: &str, work: impl FnOnce(&mut E, HostId)) {
        self.log.record_timeline(self.virtual_world.nanos(), name, "world", what);
        let Some(id) = self.hosts.get(name).filter(|host| host.is_booted).map(|host| host.node.id) else {
            return;
        };
        work(&mut self.executor, id);
        self.executor.settle();
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

impl<E: Executor> World for ExecutorWorld<E> {
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
            if self.executor.run(&self.virtual_world, until) {
                return Ok(StopReason::Reached);
            }
        }
    }

    fn kill(&mut self, host: &str) {
        self.on_node(host, "kill", |executor, id| executor.kill(id));
        self.machine(host).end_process();
    }

    fn cut_power(&mut self, host: &str) {
        let node = self.node(host);
        self.virtual_world.net(|net, _| net.power_off(node.id));
        node.machine.crash_disks();
        self.on_node(host, "power cut", |executor, id| executor.kill(id));
    }

    fn restart(&mut self, host: &str) {
        let id = self.id(host);
        self.virtual_world.net(|net, now| net.power_on(now, id));
        self.on_node(host, "restart", |executor, id| executor.restart(id));
    }

    fn pause(&mut self, host: &str) {
        self.on_node(host, "pause", |executor, id| executor.pause(id));
    }

    fn resume(&mut self, host: &str) {
        self.on_node(host, "resume", |executor, id| executor.resume(id));
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

    fn silence_between(&mut self, one: &str, other: &str) -> usize {
        let (a, b) = (self.id(one), self.id(other));
        let what = format!("silences connections with {other}");
        self.log.record_timeline(self.virtual_world.nanos(), one, "world", &what);
        self.virtual_world.net(|net, _| net.silence_between(a, b))
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
        self.executor.reseed(seed);
    }

    fn draws_by_key(&self) -> bool {
        self.executor.draws_by_key()
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
