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

use super::executor_world::{Executor, ExecutorWorld, FirstTask};
use super::virtual_env::{Spawn, VirtualWorld};
use crate::event_log::EventLog;
use crate::machine::Machine;
use crate::net::Network;
use crate::net::rules::HostId;

/// Resolution of madsim's timers.
const TICK: Duration = Duration::from_millis(1);
/// Steps between two calls that make madsim drop its records of finished tasks.
const SWEEP_EVERY: u32 = 1 << 12;

/// Machines over madsim's executor.
pub type MadsimWorld = ExecutorWorld<MadsimExecutor>;

/// madsim's executor: one of its nodes for each host.
pub struct MadsimExecutor {
    runtime: Runtime,
    seed: u64,
    nodes: BTreeMap<HostId, NodeHandle>,
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

/// Spawns tasks on the node whose task runs.
struct OnCurrentNode;

impl Spawn for OnCurrentNode {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn TaskHandle> {
        Box::new(Task(::madsim::task::Builder::new().name(name).spawn(future)))
    }
}

impl MadsimWorld {
    pub fn new(
        seed: u64,
        network: sim_plan::NetworkSpec,
        cost: engine::disk::mem::DiskCost,
        log: EventLog,
    ) -> MadsimWorld {
        let runtime = Runtime::with_seed_and_config(seed, ::madsim::Config::default());
        let executor = MadsimExecutor { runtime, seed, nodes: BTreeMap::new() };
        ExecutorWorld::over(executor, Network::new(seed, network), cost, log)
    }
}

impl MadsimExecutor {
    fn on_node(&self, host: HostId, work: impl FnOnce(&Handle, &NodeHandle)) {
        let Some(node) = self.nodes.get(&host) else { return };
        self.runtime.block_on(async { work(&Handle::current(), node) });
    }
}

impl Executor for MadsimExecutor {
    fn machine(&self, number: u64, name: &str, log: EventLog) -> Machine {
        Machine::new(name, self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number), log)
    }

    fn spawner(&self, _host: HostId) -> Arc<dyn Spawn> {
        Arc::new(OnCurrentNode)
    }

    fn start(&mut self, host: HostId, name: &str, first: FirstTask) {
        let building = self.runtime.create_node().name(name);
        let handle = self.runtime.block_on(async move { building.init(move || first()).build() });
        self.nodes.insert(host, handle);
    }

    fn kill(&mut self, host: HostId) {
        self.on_node(host, |handle, node| handle.kill(node.id()));
    }

    fn restart(&mut self, host: HostId) {
        self.on_node(host, |handle, node| handle.restart(node.id()));
    }

    fn pause(&mut self, host: HostId) {
        self.on_node(host, |handle, node| handle.pause(node.id()));
    }

    fn resume(&mut self, host: HostId) {
        self.on_node(host, |handle, node| handle.resume(node.id()));
    }

    fn settle(&mut self) {
        self.runtime.block_on(async { ::madsim::time::sleep(TICK).await });
    }

    fn run(&mut self, world: &VirtualWorld, until: u64) -> bool {
        self.runtime.block_on(async move {
            for step in 1_u32.. {
                ::madsim::time::sleep(TICK).await;
                if world.has_signals() {
                    return false;
                }
                if !world.step(until) {
                    return true;
                }
                if step.is_multiple_of(SWEEP_EVERY) {
                    Handle::current().metrics().num_tasks();
                }
            }
            false
        })
    }
}
