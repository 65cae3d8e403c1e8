//! The futures of all tasks, and the hosts that run them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use nyala_common::env::{BoxFuture, TaskHandle};

use super::ready::{ReadyTask, ReadyTasks};
use super::task::{NeverRun, Slot, SpawnedTask, Task, WakeQueue};
use crate::net::rules::HostId;
use crate::world::executor_world::FirstTask;
use crate::world::virtual_env::Spawn;

/// Spawns tasks of one host.
pub(super) struct HostSpawner {
    pub(super) ready: Arc<ReadyTasks>,
    pub(super) host: HostId,
}

impl Spawn for HostSpawner {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn TaskHandle> {
        match self.ready.spawn(self.host, name, future) {
            Ok(task) => Box::new(SpawnedTask(task)),
            // What a process spawns as it ends never runs.
            Err(_future) => Box::new(NeverRun),
        }
    }
}

/// A task that has not ended.
struct LiveTask {
    task: Arc<Task>,
    waker: Waker,
    future: Pin<Box<dyn Future<Output = ()>>>,
}

/// A host's process.
#[derive(Default)]
struct HostProcess {
    first: Option<FirstTask>,
    is_paused: bool,
    /// Tasks that were to run while it was paused.
    parked: Vec<ReadyTask>,
}

/// The tasks of all hosts.
pub(super) struct TaskExecutor {
    pub(super) ready: Arc<ReadyTasks>,
    tasks: Vec<Option<LiveTask>>,
    hosts: Vec<HostProcess>,
    /// Kept for its memory.
    spawned: Vec<(Arc<Task>, BoxFuture<'static, ()>)>,
}

impl TaskExecutor {
    pub(super) fn new(seed: u64) -> TaskExecutor {
        let ready = Arc::new(ReadyTasks::new(seed));
        TaskExecutor { ready, tasks: Vec::new(), hosts: Vec::new(), spawned: Vec::new() }
    }

    pub(super) fn reseed(&mut self, seed: u64) {
        self.ready.reseed(seed);
    }

    /// Starts a host's process; its first task is ready.
    pub(super) fn start(&mut self, host: HostId, name: &str, first: FirstTask) {
        if self.hosts.len() <= host {
            self.hosts.resize_with(host + 1, HostProcess::default);
        }
        self.hosts[host].first = Some(first);
        self.begin(host, Some(name));
    }

    /// Starts the process of a host again; the one that runs, if any, is killed.
    pub(super) fn restart(&mut self, host: HostId) {
        self.kill(host);
        self.begin(host, None);
    }

    fn begin(&mut self, host: HostId, name: Option<&str>) {
        let Some(first) = self.hosts.get(host).and_then(|process| process.first.clone()) else { return };
        let task = self.ready.begin_process(host, name);
        let future = first();
        self.insert(task.clone(), future);
        self.ready.wake(&task);
    }

    fn insert(&mut self, task: Arc<Task>, future: Pin<Box<dyn Future<Output = ()>>>) {
        let slot = task.slot as usize;
        if self.tasks.len() <= slot {
            self.tasks.resize_with(slot + 1, || None);
        }
        self.tasks[slot] = Some(LiveTask { waker: Waker::from(task.clone()), task, future });
    }

    /// Drops all tasks of a host in the order of their spawns.
    pub(super) fn kill(&mut self, host: HostId) {
        self.ready.end_process(host);
        for (task, future) in self.ready.take_spawned() {
            self.insert(task, future);
        }
        if let Some(process) = self.hosts.get_mut(host) {
            (process.is_paused, process.parked) = (false, Vec::new());
        }
        let of_host = self.tasks.iter().flatten().filter(|live| live.task.host == host);
        let mut killed: Vec<(u64, Slot)> = of_host.map(|live| (live.task.number, live.task.slot)).collect();
        killed.sort_unstable();
        killed.into_iter().for_each(|(_, slot)| self.remove(slot));
    }

    pub(super) fn pause(&mut self, host: HostId) {
        if let Some(process) = self.hosts.get_mut(host) {
            process.is_paused = true;
        }
    }

    pub(super) fn resume(&mut self, host: HostId) {
        if let Some(process) = self.hosts.get_mut(host) {
            process.is_paused = false;
            self.ready.put_back(std::mem::take(&mut process.parked));
        }
    }

    /// Runs tasks until none is ready.
    pub(super) fn run_ready(&mut self) {
        let mut spawned = std::mem::take(&mut self.spawned);
        while let Some(next) = self.ready.take_next(&mut spawned) {
            for (task, future) in spawned.drain(..) {
                self.insert(task, future);
            }
            self.poll(next);
        }
        self.spawned = spawned;
    }

    fn poll(&mut self, next: ReadyTask) {
        let live = self.tasks.get_mut(next.slot as usize).and_then(Option::as_mut);
        // A killed task's entry stays among the ready ones.
        let Some(live) = live.filter(|live| live.task.number == next.number) else { return };
        let process = &mut self.hosts[live.task.host];
        if process.is_paused {
            process.parked.push(next);
            return;
        }
        if live.task.is_aborted() {
            return self.remove(next.slot);
        }
        live.task.begin_poll();
        if live.future.as_mut().poll(&mut Context::from_waker(&live.waker)).is_ready() {
            self.remove(next.slot);
        }
    }

    /// Drops a task. Its future may wake and spawn others as it goes.
    fn remove(&mut self, slot: Slot) {
        let Some(live) = self.tasks[slot as usize].take() else { return };
        drop(live.future);
        live.task.end();
        self.ready.free(slot);
    }
}
