//! A client of a trial: callers that share its connections, its beats, a caller with connections of its own, and long
//! requests at last.

use std::sync::Arc;
use std::time::Duration;

use engine::sync::Mutex;
use futures_util::future::{join_all, join3};
use nyala_common::env::Env;
use nyala_common::rpc::client::Proxy;
use sim_plan::RandomStream;

use super::beats;
use super::caller::Caller;
use super::ledger::Ledger;
use super::long_requests;
use super::security::TrialSecurity;
use super::settings::{CLIENTS, SERVERS, WORKERS};
use crate::world::ProgramResult;

/// Time in which what is still on the way arrives, and servers notice that connections have ended.
const SETTLE: Duration = Duration::from_secs(12);

/// Runs a client until all of its calls have ended.
pub(super) async fn run(
    env: Env,
    ledger: Arc<Mutex<Ledger>>,
    security: Arc<TrialSecurity>,
    (client, seed): (usize, u64),
) -> ProgramResult {
    let caller = security.client(&env, client)?;
    let proxies = security.proxies(&env, &caller);
    let worker = |number: usize| Caller {
        env: env.clone(),
        ledger: ledger.clone(),
        proxies: proxies.clone(),
        random: RandomStream::new(seed, &format!("worker {number}")),
        client,
        name: format!("client {client}, worker {number}"),
        sequence: 0,
        user: security.user(client),
        caller: caller.clone(),
        security: security.clone(),
    };
    let own = security.client(&env, client)?;
    let in_turn = Caller {
        client: CLIENTS + client,
        proxies: security.proxies(&env, &own),
        caller: own,
        ..worker(WORKERS + 1)
    };
    let long = |lane: usize| Caller {
        client: CLIENTS * 2 + client,
        proxies: security.proxies(&env, &caller),
        ..worker(WORKERS + 2 + lane)
    };
    let long = (0..long_requests::LANES).map(long).collect();
    let ended = ledger.clone();
    let callers = join_all((0..WORKERS).map(|number| worker(number).run()));
    join3(callers, beats::run(worker(WORKERS)), beats::run_in_turn(in_turn)).await;
    proxies.iter().for_each(Proxy::disconnect);
    // The clients' requests do not meet.
    long_requests::run(long, client % SERVERS).await;
    env.sleep(SETTLE).await;
    ended.lock().ended += WORKERS;
    Ok(())
}
