//! The world whose draws are named by keys, over an executor of its own.
//!
//! ```text
//!   wake ──► ReadyTasks: priority = keyed(seed, task, n-th wake) ──► lowest first ──► poll
//!              task = (host, start, names and numbers of the spawns that lead to it)
//! ```
//!
//! A task's priority depends on no other task. The order is uniform, and a task that is missing leaves the order of the
//! others alone. The network, disks and nodes draw by key as well ([`crate::draws`]): a fault that is left out changes
//! only what it caused.
//!
//! - `order`: the kinds of orders; a seed has one.
//! - `ready`: tasks that are ready, and the names of tasks.
//! - `task`: one task as its wakers and its handle see it.
//! - `executor`: the futures, and the hosts that run them.
//! - `interception`: what nodes may reach without `Env`, in builds with `--cfg madsim`.
//!
//! Everything runs on one thread. Wakers and handles may be sent to others, which no node does.

use std::sync::Arc;

use super::executor_world::{Executor, ExecutorWorld, FirstTask};
use super::virtual_env::{Spawn, VirtualWorld};
use crate::draws::DrawSource;
use crate::event_log::EventLog;
use crate::machine::Machine;
use crate::net::Network;
use crate::net::rules::HostId;
use executor::{HostSpawner, TaskExecutor};
use interception::Interception;

mod executor;
mod interception;
mod order;
mod ready;
mod task;
#[cfg(test)]
mod tests;

/// Machines whose draws are named by keys.
pub type KeyedWorld = ExecutorWorld<KeyedExecutor>;

/// The executor of all hosts of a [`KeyedWorld`].
pub struct KeyedExecutor {
    interception: Interception,
    tasks: TaskExecutor,
    seed: u64,
}

impl KeyedWorld {
    pub fn new(
        seed: u64,
        network: sim_plan::NetworkSpec,
        cost: engine::disk::mem::DiskCost,
        log: EventLog,
    ) -> KeyedWorld {
        let (interception, tasks) = (Interception::new(seed), TaskExecutor::new(seed));
        let executor = KeyedExecutor { interception, tasks, seed };
        ExecutorWorld::over(executor, Network::drawing(DrawSource::Keyed(seed), network), cost, log)
    }
}

impl Executor for KeyedExecutor {
    fn machine(&self, _number: u64, name: &str, log: EventLog) -> Machine {
        Machine::drawing(name, DrawSource::Keyed(self.seed), log)
    }

    fn spawner(&self, host: HostId) -> Arc<dyn Spawn> {
        Arc::new(HostSpawner { ready: self.tasks.ready.clone(), host })
    }

    fn start(&mut self, host: HostId, name: &str, first: FirstTask) {
        let KeyedExecutor { interception, tasks, .. } = self;
        interception.within(|| tasks.start(host, name, first));
    }

    fn kill(&mut self, host: HostId) {
        let KeyedExecutor { interception, tasks, .. } = self;
        interception.within(|| tasks.kill(host));
    }

    fn restart(&mut self, host: HostId) {
        let KeyedExecutor { interception, tasks, .. } = self;
        interception.within(|| tasks.restart(host));
    }

    fn pause(&mut self, host: HostId) {
        self.tasks.pause(host);
    }

    fn resume(&mut self, host: HostId) {
        self.tasks.resume(host);
    }

    fn settle(&mut self) {
        let KeyedExecutor { interception, tasks, .. } = self;
        interception.within(|| tasks.run_ready());
    }

    fn run(&mut self, world: &VirtualWorld, until: u64) -> bool {
        let KeyedExecutor { interception, tasks, .. } = self;
        interception.within(|| {
            loop {
                tasks.run_ready();
                if world.has_signals() {
                    return false;
                }
                if !world.step(until) {
                    return true;
                }
            }
        })
    }

    fn reseed(&mut self, seed: u64) {
        self.tasks.reseed(seed);
    }

    fn draws_by_key(&self) -> bool {
        true
    }
}
