//! A masters trial: three real masters, made-up tablet servers, and clients that watch masters take over.
//!
//! ```text
//!   prober of each master: role, tokens, lists ──┐
//!   script: DDL, locations, lists, a drain ──────┼──► masters of the keyed world ──► CreateTablet, ChangeConfig, ...
//!   tokens of all keys, presented to each ───────┘       │ killed, cut off, with slow disks,      │
//!                                                        │ leaders that step down                 ▼
//!                                heartbeats, reports ────┴── made-up servers with groups of tablets:
//!                                                            late, down, new, with locations, in maintenance mode
//!   what must hold: `prober`, `ddl`, `listing`, `registrations`, `schemas`, `views`, `orders`, `turns`, `beats`,
//!                   `keys`, `tokens`, `draining`, `quiet`, `sums`, `unregistering`
//! ```
//!
//! - A master that says it leads serves and gives out tokens; any other sends clients on.
//! - What was acknowledged is there at the next leader; a table that can be created is, also right after a failover.
//! - A new tablet has as many voters as its table, in different locations; each gets its replica from the masters.
//! - A token is accepted while it is valid, wherever masters have had the time to read its key.
//! - Users do and see what their policy allows, and nothing else; tokens for tables state these rights.
//! - In the end all tables are whole, and a server drains. One that is unregistered then is not listed again.
//!
//! *Not here:* the catalog's decisions in detail (`catalog`), tablet servers, rows.

mod beats;
mod ddl;
mod draining;
mod fault_end;
mod faults;
mod group;
mod keys;
mod known_master;
mod links;
mod listing;
mod maintenance;
mod orders;
mod outage;
mod prober;
mod quiet;
mod registrations;
mod rights;
mod schemas;
mod script;
mod server;
mod service;
mod settings;
mod state;
mod sums;
mod tables;
mod tokens;
mod turns;
mod unregistering;
mod views;

use std::sync::Arc;
use std::time::Duration;

use engine::disk::mem::DiskCost;
use engine::sync::Mutex;
use nyala_common::security::acl::AccessList;
use sim_plan::{Plan, RandomStream};

use self::fault_end::FaultEnd;
use self::rights::Policy;
use self::settings::{
    BEGINNING, END, FAULTS_END, LOCATIONS_TTL_MILLIS, MASTERS, POLICY, SECURITY, SERVERS, TICK, TRUSTED,
    master,
};
use self::state::State;
use super::fleet::{self, host};
use crate::cluster;
use crate::event_log::EventLog;
use crate::oracle::Violation;
use crate::run_observer::RunObserver;
use crate::security;
use crate::world::keyed::KeyedWorld;
use crate::world::{HostProgram, StopReason, World};

/// Name of this oracle.
const NAME: &str = "masters trial";
/// Lines that a violation's story ends with.
const STORY: usize = 60;
/// Access in the trials of seeds in a row: few seeds come to all situations.
const ACCESS: [Access; 7] = [
    Access::Policy,
    Access::Proofs,
    Access::Free,
    Access::Policy,
    Access::Proofs,
    Access::Policy,
    Access::Proofs,
];
/// Latencies of the masters' devices.
const DEVICE: DiskCost =
    DiskCost { op: Duration::from_micros(20), kib: Duration::from_micros(2), sync: Duration::from_millis(1) };

/// Access of users in a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// A policy, for users who state their names.
    Policy,
    /// Connections with proofs of identity.
    Proofs,
    /// All users may do everything.
    Free,
}

struct MastersTrial {
    random: RandomStream,
    world: KeyedWorld,
    plan: Plan,
    observer: RunObserver,
    state: Arc<Mutex<State>>,
    /// Ends of faults, at their times.
    ends: Vec<(Duration, FaultEnd)>,
    /// True while the masters' disks are slow.
    is_slow: bool,
}

/// Runs the trial of a seed; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let mut trial = MastersTrial::create(seed);
    trial.run();
    let mut state = trial.state.lock();
    let what = state.found.take()?;
    let steps = std::mem::take(&mut state.steps);
    let at = trial.world.now();
    Some(Violation::new(NAME, format!("seed {seed}, at {at:?}: {what}")).with_end_of(steps, STORY))
}

impl MastersTrial {
    fn create(seed: u64) -> MastersTrial {
        let mut random = RandomStream::new(seed, "masters trial");
        let mut plan = fleet::plan_of(seed, MASTERS, SERVERS, SERVERS);
        let access = ACCESS[(seed % ACCESS.len() as u64) as usize];
        plan.security = (access == Access::Proofs).then_some(SECURITY);
        let policy = (access == Access::Policy).then(|| Policy::draw(&mut random));
        let log = EventLog::keeping(0..0, false);
        let world = KeyedWorld::new(seed, plan.network.clone(), DiskCost::default(), log);
        let state = State::new(RandomStream::new(seed, "masters trial, servers"), policy);
        MastersTrial {
            random,
            world,
            observer: RunObserver::new(&plan, None),
            plan,
            state: Arc::new(Mutex::new(state)),
            ends: Vec::new(),
            is_slow: false,
        }
    }

    fn run(&mut self) {
        (0..MASTERS).for_each(|number| self.boot_master(number));
        (0..SERVERS).for_each(|number| self.boot_server(number));
        self.start_clients();
        self.pass(BEGINNING);
        let mut next = self.world.now();
        while self.world.now() < FAULTS_END && !self.is_over() {
            if self.world.now() >= next {
                next = self.world.now() + self.begin_fault();
            }
            self.end_faults(false);
            self.pass(TICK);
        }
        self.end_faults(true);
        self.state.lock().quiet = true;
        while self.world.now() < END && !self.is_over() {
            self.serve_outage();
            self.pass(TICK);
        }
        let mut state = self.state.lock();
        if !state.ended {
            state.report("the script has not come to its end");
        }
    }

    fn is_over(&self) -> bool {
        self.state.lock().is_over()
    }

    /// Lets time pass, in steps.
    fn pass(&mut self, span: Duration) {
        let until = self.world.now() + span;
        while self.world.now() < until {
            let next = self.world.now() + TICK;
            match self.world.run_until(next) {
                Ok(StopReason::Exited { host, error }) => {
                    self.state.lock().report(format!("{host} ends by itself: {error:?}"));
                    return;
                }
                Ok(_) => {}
                Err(failure) => {
                    self.state.lock().report(failure.to_string());
                    return;
                }
            }
            let now = self.world.mono();
            self.state.lock().turn(now);
        }
    }

    fn boot_master(&mut self, number: usize) {
        let name = master(number).name();
        let machine = self.world.machine(&name);
        machine.set_cost(DEVICE);
        machine.set_observer(self.observer.observer_for(master(number), &machine));
        let policy = self.state.lock().policy.clone();
        let has_policy = policy.is_some();
        policy.into_iter().for_each(|policy| machine.put_file(POLICY, policy.text().into_bytes()));
        let program = cluster::master_with(&self.plan, master(number), move |env, config| {
            config.catalog = settings::catalog(config.catalog.clone());
            config.locations = settings::locations();
            config.table_locations_ttl_ms = LOCATIONS_TTL_MILLIS;
            if !has_policy {
                return Ok(());
            }
            config.security = Some(security::trusted_settings(TRUSTED));
            config.set_policy(env, POLICY, AccessList::user(TRUSTED), END)
        });
        self.state.lock().masters[number].start(self.world.mono());
        self.world.boot(&name, program);
    }

    fn boot_server(&mut self, number: usize) {
        let (state, security) = (self.state.clone(), self.plan.security.clone());
        let program: HostProgram =
            Arc::new(move |env| Box::pin(service::serve(env, state.clone(), number, security.clone())));
        self.world.boot(&host(number).name(), program);
    }

    fn start_clients(&mut self) {
        let secure = self.plan.security.is_some();
        for number in 0..MASTERS {
            let state = self.state.clone();
            let program: HostProgram =
                Arc::new(move |env| Box::pin(prober::run(env, state.clone(), number, secure)));
            self.start_client(&format!("prober{number}"), program);
        }
        let (state, seed) = (self.state.clone(), self.random.next_u64());
        let program: HostProgram = Arc::new(move |env| {
            let random = RandomStream::new(seed, "masters trial, script");
            Box::pin(script::run(env, state.clone(), random, secure))
        });
        self.start_client("script", program);
        if secure {
            let state = self.state.clone();
            let program: HostProgram = Arc::new(move |env| Box::pin(tokens::run(env, state.clone())));
            // It has no ticket: only the tokens of others.
            self.world.client("tokens", program);
        }
    }

    fn start_client(&mut self, name: &str, program: HostProgram) {
        cluster::give_ticket(&mut self.world, &self.plan, name);
        self.world.client(name, program);
    }
}

#[cfg(test)]
mod tests;
