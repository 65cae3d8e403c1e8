//! Tasks that are ready, by priority; spawned tasks until the executor takes them; names of tasks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use engine::sync::{Mutex, MutexGuard};
use nyala_common::env::BoxFuture;

use super::order::TaskOrder;
use super::task::{Slot, Task, WakeQueue};
use crate::draws::{Purpose, keyed, name_word};
use crate::net::rules::HostId;

/// A task that waits for its poll. The lowest runs first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ReadyTask {
    priority: u64,
    /// Number of its spawn: equal priorities run in this order, and a task of another number has the slot no more.
    pub(super) number: u64,
    pub(super) slot: Slot,
}

/// The part of the executor that wakers, handles and spawners share.
pub(super) struct ReadyTasks {
    state: Mutex<ReadyState>,
}

struct ReadyState {
    order: TaskOrder,
    seed: u64,
    heap: BinaryHeap<Reverse<ReadyTask>>,
    /// Wakes of all tasks.
    wakes: u64,
    /// Tasks that the executor has not taken yet.
    spawned: Vec<(Arc<Task>, BoxFuture<'static, ()>)>,
    spawns: u64,
    slots: Vec<Name>,
    free: Vec<Slot>,
    /// The task that runs.
    current: Option<Slot>,
    hosts: Vec<HostName>,
}

/// Name of a task, and the number of its spawns by their name.
#[derive(Debug, Clone, Default)]
struct Name {
    host: HostId,
    key: u64,
    children: Vec<(&'static str, u64)>,
}

impl Name {
    /// Returns the name of the next task that is spawned by this one.
    fn child(&mut self, name: &'static str) -> Name {
        let at = self.children.iter().position(|(known, _)| *known == name);
        let at = at.unwrap_or_else(|| {
            self.children.push((name, 0));
            self.children.len() - 1
        });
        let nth = &mut self.children[at].1;
        *nth += 1;
        let key = keyed(0, Purpose::Task, [self.key, name_word(name), *nth]);
        Name { host: self.host, key, children: Vec::new() }
    }
}

/// A host's process, as far as names need it.
#[derive(Debug, Clone, Default)]
struct HostName {
    word: u64,
    starts: u64,
    is_alive: bool,
    /// Parent of tasks that no task of the host spawned.
    root: Name,
}

/// Name of the first task of a process.
const FIRST: &str = "main";

impl WakeQueue for ReadyTasks {
    fn wake(&self, task: &Task) {
        let Some(nth) = task.begin_wake() else { return };
        let state = &mut *self.state();
        let priority = state.order.priority(state.seed, task.key, nth, state.wakes);
        state.wakes += 1;
        state.heap.push(Reverse(ReadyTask { priority, number: task.number, slot: task.slot }));
    }
}

impl ReadyTasks {
    pub(super) fn new(seed: u64) -> ReadyTasks {
        let state = ReadyState {
            order: TaskOrder::of(seed),
            seed,
            heap: BinaryHeap::new(),
            wakes: 0,
            spawned: Vec::new(),
            spawns: 0,
            slots: Vec::new(),
            free: Vec::new(),
            current: None,
            hosts: Vec::new(),
        };
        ReadyTasks { state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, ReadyState> {
        self.state.lock()
    }

    /// Sets the order, for tests.
    #[cfg(test)]
    pub(super) fn set_order(&self, order: TaskOrder) {
        self.state().order = order;
    }

    /// Draws priorities from another seed from now on; the order stays.
    pub(super) fn reseed(&self, seed: u64) {
        self.state().seed = seed;
    }

    /// Puts a task back that its host could not run, at the priority that it had.
    pub(super) fn put_back(&self, tasks: Vec<ReadyTask>) {
        self.state().heap.extend(tasks.into_iter().map(Reverse));
    }

    /// Takes the first ready task, which is the current one from now on, and the tasks spawned since the last call.
    pub(super) fn take_next(
        &self,
        spawned: &mut Vec<(Arc<Task>, BoxFuture<'static, ()>)>,
    ) -> Option<ReadyTask> {
        let state = &mut *self.state();
        spawned.append(&mut state.spawned);
        let next = state.heap.pop().map(|Reverse(task)| task);
        state.current = next.map(|task| task.slot);
        next
    }

    /// Takes the tasks spawned since the last call; no task is current.
    pub(super) fn take_spawned(&self) -> Vec<(Arc<Task>, BoxFuture<'static, ()>)> {
        let state = &mut *self.state();
        state.current = None;
        std::mem::take(&mut state.spawned)
    }

    /// Begins a process of a host; returns its first task, which is not ready yet.
    pub(super) fn begin_process(self: &Arc<ReadyTasks>, host: HostId, name: Option<&str>) -> Arc<Task> {
        let state = &mut *self.state();
        if state.hosts.len() <= host {
            state.hosts.resize_with(host + 1, HostName::default);
        }
        let process = &mut state.hosts[host];
        if let Some(name) = name {
            process.word = name_word(name);
        }
        process.starts += 1;
        process.is_alive = true;
        let key = keyed(0, Purpose::Task, [process.word, process.starts, 0]);
        process.root = Name { host, key, children: Vec::new() };
        let name = process.root.child(FIRST);
        self.add(state, name)
    }

    /// Ends a process: its host spawns no tasks until another begins.
    pub(super) fn end_process(&self, host: HostId) {
        if let Some(process) = self.state().hosts.get_mut(host) {
            process.is_alive = false;
        }
    }

    /// Spawns a task of a host, which is ready at once. Gives the future back if the host has no process.
    pub(super) fn spawn(
        self: &Arc<ReadyTasks>,
        host: HostId,
        name: &'static str,
        future: BoxFuture<'static, ()>,
    ) -> Result<Arc<Task>, BoxFuture<'static, ()>> {
        let mut state = self.state();
        if !state.hosts.get(host).is_some_and(|process| process.is_alive) {
            return Err(future);
        }
        let name = state.name_child(host, name);
        let task = self.add(&mut state, name);
        state.spawned.push((task.clone(), future));
        drop(state);
        self.wake(&task);
        Ok(task)
    }

    fn add(self: &Arc<ReadyTasks>, state: &mut ReadyState, name: Name) -> Arc<Task> {
        let (host, key) = (name.host, name.key);
        let slot = match state.free.pop() {
            Some(slot) => {
                state.slots[slot as usize] = name;
                slot
            }
            None => {
                state.slots.push(name);
                (state.slots.len() - 1) as Slot
            }
        };
        state.spawns += 1;
        Arc::new(Task::new(self.clone(), slot, state.spawns, host, key))
    }

    /// Lets another task have the slot of one that has ended.
    pub(super) fn free(&self, slot: Slot) {
        self.state().free.push(slot);
    }
}

impl ReadyState {
    /// Returns the name of a task that the current one spawns, or the host itself if another host's or none runs.
    fn name_child(&mut self, host: HostId, name: &'static str) -> Name {
        let current = self.current.map(|slot| slot as usize).filter(|slot| self.slots[*slot].host == host);
        match current {
            Some(slot) => self.slots[slot].child(name),
            None => self.hosts[host].root.child(name),
        }
    }
}
