//! Cores, locks and clients as events in simulated time.
//!
//! A client waits, then its operation needs a core. Its steps are work that any core does, and sections that one
//! operation at a time has. Times are exponential with the given means, from a fixed seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rand::distr::{Distribution, Uniform};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::Exp1;

use crate::measurement::SectionWait;

/// Simulated server and its clients.
#[derive(Debug, Clone)]
pub(crate) struct ServerSetup {
    pub cores: u32,
    pub clients: u32,
    /// Mean time between a reply and the client's next operation.
    pub pause_us: f64,
    /// Mean work of an operation outside of the sections.
    pub work_us: f64,
    pub sections: Vec<SectionSetup>,
}

#[derive(Debug, Clone)]
pub(crate) struct SectionSetup {
    pub wait: SectionWait,
    /// Locks of this kind, one of which an operation needs at random.
    pub locks: u32,
    pub visits: u32,
    /// Mean time of all visits together.
    pub held_us: f64,
}

/// Result of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SimulatedResult {
    pub rate: f64,
    /// Share of the cores' time that was work.
    pub cores_busy: f64,
    /// Share of time for which the busiest lock of each section was held.
    pub held: Vec<f64>,
}

/// Operations that end before anything is counted, and those that are counted.
const WARM_UP: u64 = 2_000;
const COUNTED: u64 = 12_000;
const SEED: u64 = 1;

pub(crate) fn simulate(setup: &ServerSetup) -> SimulatedResult {
    let mut server = Server::new(setup);
    (0..setup.clients as usize).for_each(|client| server.pause(client));
    server.run_until(WARM_UP);
    let (from, ended) = (server.now, server.ended);
    server.work_ns = 0;
    server.locks.iter_mut().flatten().for_each(|lock| lock.held_ns = 0);
    server.run_until(WARM_UP + COUNTED);
    let elapsed = (server.now - from).max(1) as f64;
    let busiest = |locks: &Vec<Lock>| locks.iter().map(|lock| lock.held_ns).max().unwrap_or(0) as f64;
    SimulatedResult {
        rate: (server.ended - ended) as f64 / elapsed * 1e9,
        cores_busy: server.work_ns as f64 / elapsed / f64::from(setup.cores),
        held: server.locks.iter().map(|locks| busiest(locks) / elapsed).collect(),
    }
}

#[derive(Clone, Copy)]
enum Step {
    Work { ns: u64 },
    Visit { section: usize, lock: usize, ns: u64 },
}

impl Step {
    fn ns(self) -> u64 {
        match self {
            Step::Work { ns } | Step::Visit { ns, .. } => ns,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    PauseEnd,
    StepEnd,
}

#[derive(Default, Clone)]
struct Lock {
    is_held: bool,
    waiting: VecDeque<usize>,
    held_ns: u64,
}

/// A client's operation: steps left, the next one last.
#[derive(Default, Clone)]
struct Operation {
    steps: Vec<Step>,
    /// True if the lock of the next step was passed on to it.
    has_lock: bool,
}

struct Server<'a> {
    setup: &'a ServerSetup,
    rng: ChaCha8Rng,
    now: u64,
    /// Events by time and then by order of their creation.
    events: BinaryHeap<Reverse<(u64, u64, Event, usize)>>,
    created: u64,
    free_cores: u32,
    ready: VecDeque<usize>,
    operations: Vec<Operation>,
    locks: Vec<Vec<Lock>>,
    ended: u64,
    work_ns: u64,
}

impl<'a> Server<'a> {
    fn new(setup: &'a ServerSetup) -> Server<'a> {
        let locks = setup.sections.iter().map(|section| vec![Lock::default(); section.locks as usize]);
        Server {
            setup,
            rng: ChaCha8Rng::seed_from_u64(SEED),
            now: 0,
            events: BinaryHeap::new(),
            created: 0,
            free_cores: setup.cores,
            ready: VecDeque::new(),
            operations: vec![Operation::default(); setup.clients as usize],
            locks: locks.collect(),
            ended: 0,
            work_ns: 0,
        }
    }

    fn run_until(&mut self, ended: u64) {
        while self.ended < ended {
            let Some(Reverse((at, _, event, client))) = self.events.pop() else { return };
            self.now = at;
            match event {
                Event::PauseEnd => {
                    self.operations[client].steps = self.steps();
                    self.ready.push_back(client);
                }
                Event::StepEnd => self.end_step(client),
            }
            self.use_cores();
        }
    }

    fn after(&mut self, ns: u64, event: Event, client: usize) {
        self.created += 1;
        self.events.push(Reverse((self.now + ns, self.created, event, client)));
    }

    fn draw_ns(&mut self, mean_us: f64) -> u64 {
        let drawn: f64 = Exp1.sample(&mut self.rng);
        (drawn * mean_us * 1e3) as u64
    }

    fn pause(&mut self, client: usize) {
        let ns = self.draw_ns(self.setup.pause_us);
        self.after(ns, Event::PauseEnd, client);
    }

    /// Returns the steps of an operation, the first one last: work before and after each visit.
    fn steps(&mut self) -> Vec<Step> {
        let setup = self.setup;
        let visits: u32 = setup.sections.iter().map(|section| section.visits).sum();
        let work_us = setup.work_us / f64::from(visits + 1);
        let mut steps = vec![Step::Work { ns: self.draw_ns(work_us) }];
        for (number, section) in setup.sections.iter().enumerate() {
            let lock = Uniform::new(0, section.locks.max(1)).map_or(0, |any| any.sample(&mut self.rng));
            for _ in 0..section.visits {
                let ns = self.draw_ns(section.held_us / f64::from(section.visits));
                steps.push(Step::Visit { section: number, lock: lock as usize, ns });
                steps.push(Step::Work { ns: self.draw_ns(work_us) });
            }
        }
        steps
    }

    /// Gives free cores to operations that are ready.
    fn use_cores(&mut self) {
        while self.free_cores > 0
            && let Some(client) = self.ready.pop_front()
        {
            self.free_cores -= 1;
            self.begin_step(client);
        }
    }

    /// Begins the next step of an operation that has a core.
    fn begin_step(&mut self, client: usize) {
        let Some(&step) = self.operations[client].steps.last() else {
            self.free_cores += 1;
            self.ended += 1;
            return self.pause(client);
        };
        let has_lock = std::mem::take(&mut self.operations[client].has_lock);
        if let Step::Visit { section, lock, .. } = step
            && !has_lock
        {
            let lock = &mut self.locks[section][lock];
            if lock.is_held {
                lock.waiting.push_back(client);
                let leaves = self.setup.sections[section].wait == SectionWait::InQueue;
                self.free_cores += u32::from(leaves);
                return;
            }
            lock.is_held = true;
        }
        self.after(step.ns(), Event::StepEnd, client);
    }

    fn end_step(&mut self, client: usize) {
        let Some(step) = self.operations[client].steps.pop() else { return };
        self.work_ns += step.ns();
        if let Step::Visit { section, lock, ns } = step {
            self.locks[section][lock].held_ns += ns;
            self.release(section, lock);
        }
        self.begin_step(client);
    }

    /// Passes a lock on to the operation that has waited longest.
    fn release(&mut self, section: usize, lock: usize) {
        let lock = &mut self.locks[section][lock];
        let Some(next) = lock.waiting.pop_front() else {
            lock.is_held = false;
            return;
        };
        self.operations[next].has_lock = true;
        match self.setup.sections[section].wait {
            SectionWait::OnCore => self.begin_step(next),
            SectionWait::InQueue => self.ready.push_front(next),
        }
    }
}
