//! An access trial: a tablet server that checks authorization tokens, and callers with drawn privileges.
//!
//! ```text
//!   drawn privileges ──► token: valid, missing, expired, forged, of another user, of another table; signed with a key
//!                          │   that the server has had for long, not with the newest
//!                          │
//!   Write │ Scan │ SplitKeyRange │ Checksum ──► server of the keyed world ──► done, 15: no right, 17: no valid token
//!                          │                                                          │
//!                          └──────────► [`Rights`], the rules of Kudu's documents ──► must agree
//! ```
//!
//! A write that is refused must change nothing, and a scanner belongs to the caller that opened it.
//!
//! *Not here:* how masters decide on privileges, and proofs of identity.

mod calls;
mod names;
mod rights;
mod tokens;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use engine::disk::mem::DiskCost;
use engine::sync::Mutex;
use sim_plan::tables::ModelTable;
use sim_plan::{FaultProfile, Plan, PlanSize, RandomStream};

use self::calls::AccessCalls;
use self::names::{SERVER, SUPERUSER};
use self::tokens::Issuer;
use super::draw;
use crate::cluster;
use crate::event_log::EventLog;
use crate::oracle::Violation;
use crate::run_observer::RunObserver;
use crate::security;
use crate::world::keyed::KeyedWorld;
use crate::world::{HostProgram, World};

/// Name of this oracle.
const NAME: &str = "access trial";
/// Machine of the callers.
const CLIENT: &str = "client";
/// Time until the server has started, and until all calls have replies.
const START: Duration = Duration::from_secs(2);
const CALLS: Duration = Duration::from_secs(120);

/// Runs the trial of a seed; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let what = play(seed)?;
    Some(Violation::new(NAME, format!("seed {seed}: {what}")))
}

fn play(seed: u64) -> Option<String> {
    let mut random = RandomStream::new(seed, "access trial");
    let table = draw::table(&mut random);
    let plan = plan_of(seed);
    let mut world =
        KeyedWorld::new(seed, plan.network.clone(), DiskCost::default(), EventLog::keeping(0..0, false));
    let observer = RunObserver::new(&plan, None);
    let machine = world.machine(&SERVER.name());
    machine.set_observer(observer.observer_for(SERVER, &machine));
    let config = cluster::tserver_with(&plan, SERVER, security::trusted_settings(SUPERUSER));
    world.boot(&SERVER.name(), cluster::tablet_server(config, SERVER, observer.running()));
    if let Err(failure) = world.run_until(START) {
        return Some(failure.to_string());
    }
    let issuer = Issuer::new(&mut random, world.true_micros());
    let (_, server) = observer.running().all().pop()?;
    issuer.teach(&server.identity.keyring);
    run_calls(&mut world, random, table, issuer)
}

/// Makes all calls of the trial; returns what is wrong.
fn run_calls(
    world: &mut KeyedWorld,
    random: RandomStream,
    table: ModelTable,
    issuer: Issuer,
) -> Option<String> {
    let result: Arc<Mutex<Option<Result<(), String>>>> = Arc::default();
    let into = result.clone();
    let given = Mutex::new(Some((random, table, issuer)));
    let program: HostProgram = Arc::new(move |env| {
        let (into, given) = (into.clone(), given.lock().take());
        Box::pin(async move {
            if let Some((random, table, issuer)) = given {
                let ended = AccessCalls::new(env, random, table, issuer).play().await;
                *into.lock() = Some(ended);
            }
            Ok(())
        })
    });
    world.client(CLIENT, program);
    if let Err(failure) = world.run_until(START + CALLS) {
        return Some(failure.to_string());
    }
    let ended = result.lock().take();
    ended.unwrap_or_else(|| Err("not all calls have replies".to_string())).err()
}

/// Returns the plan of a trial: settings of one server, without masters that answer.
fn plan_of(seed: u64) -> Plan {
    let mut plan = Plan::generate(seed, FaultProfile::Calm, PlanSize::Smoke);
    (plan.clients, plan.faults, plan.clocks, plan.tables) = Default::default();
    (plan.cluster.masters, plan.cluster.tservers, plan.cluster.replicas) = (1, 1, 1);
    plan.security = None;
    plan
}

#[cfg(test)]
mod tests;
