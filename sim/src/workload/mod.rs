//! What a plan's clients do to a cluster, over the real wire, and the history of what they saw.
//!
//! ```text
//! prepare    one client makes the tables                              [`tables`]
//! run        each client does its ops, one after the other            [`actor`]
//! settle     all faults healed: the cluster is whole again, and every
//!            row is read once more, at every replica                  [`settle`]
//! ```
//!
//! The world calls these three with the environment of a client machine; nothing here knows which world it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use engine::error::Error;
use engine::ids::TabletId;
use node::client::{Client, ClientConfig};
use node::env::Env;

use crate::history::{ClientNo, History, Nanos, Stamp, TableNo};
use crate::oracle::{self, Finding, Report};
use crate::plan::Plan;

mod actor;
mod admin;
mod bank;
mod ddl;
mod find;
mod lists;
mod look_back;
mod masters;
mod members;
mod numbered;
mod own;
mod quiet;
pub mod rows;
mod scans;
mod settle;
mod spread;
mod tables;

/// Where masters listen.
pub const MASTER_PORT: u16 = 7051;
/// Where tablet servers listen.
pub const TSERVER_PORT: u16 = 7050;

/// How long a client waits before it tries again what the cluster was not ready for.
const PAUSE: Duration = Duration::from_millis(100);

/// The workload of one run. Clones share it.
#[derive(Clone)]
pub struct Workload {
    shared: Arc<Shared>,
}

struct Shared {
    plan: Plan,
    history: History,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By client: the newest timestamp that another told it.
    told: Vec<Stamp>,
    /// The newest timestamp that any client has seen.
    newest: Stamp,
    /// Tables made so far, for their numbers.
    short_tables: TableNo,
    /// Tablets that were there in the end.
    living: BTreeSet<TabletId>,
    /// By client and table: what nobody else alters.
    own: BTreeMap<(ClientNo, TableNo), own::Own>,
    /// Rows that the servers number, as far as clients know.
    numbered: oracle::numbered::Account,
    findings: Vec<Finding>,
    counts: Counts,
}

/// How much was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that were answered, and those whose outcome is unknown or that failed.
    pub answered: u64,
    pub unanswered: u64,
    /// Rows written and read.
    pub rows_written: u64,
    pub rows_read: u64,
    /// Alterations, short tables, step-downs and moves that succeeded.
    pub changes: u64,
}

impl Workload {
    pub fn new(plan: &Plan) -> Workload {
        let state = State { told: vec![0; plan.clients.len()], ..State::default() };
        let shared = Shared { plan: plan.clone(), history: History::new(), state: Mutex::new(state) };
        Workload { shared: Arc::new(shared) }
    }

    pub fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    pub fn history(&self) -> &History {
        &self.shared.history
    }

    pub fn counts(&self) -> Counts {
        self.state().counts
    }

    /// What the judges of histories say, and what clients noticed by themselves.
    pub fn report(&self) -> Report {
        if self.plan().forgets() {
            return oracle::judge_forgetful(&self.history().operations(), &self.state().findings);
        }
        let operations = self.history().operations();
        let end = operations.iter().map(|operation| operation.invoked).max().unwrap_or_default();
        let mut report = oracle::judge(&operations, oracle::clocks::apart(self.plan(), end));
        self.state().findings.iter().for_each(|finding| report.add(finding.clone()));
        report
    }

    /// A client of the cluster; tries until there is one.
    async fn connect(&self, env: &Env) -> Client {
        let cluster = &self.plan().cluster;
        let masters = (0..cluster.masters).map(|number| format!("m{number}:{MASTER_PORT}"));
        let mut config = ClientConfig::new(masters);
        config.rpc_timeout = cluster.rpc_timeout;
        config.operation_timeout = cluster.op_timeout;
        loop {
            match Client::connect(env.clone(), config.clone()).await {
                Ok(client) => return client,
                Err(_) => env.sleep(PAUSE).await,
            }
        }
    }

    /// Tablets that were there when the healed cluster was looked at.
    pub fn living_tablets(&self) -> Vec<TabletId> {
        self.state().living.iter().copied().collect()
    }

    fn object(&self, finding: Finding) {
        self.state().findings.push(finding);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().expect("nothing panics while it holds the workload's state")
    }

    fn count(&self, add: impl FnOnce(&mut Counts)) {
        add(&mut self.state().counts);
    }

    /// Remembers what a client has seen.
    fn saw(&self, client: &Client) {
        let seen = client.observed_timestamp().unwrap_or_default();
        let mut state = self.state();
        state.newest = state.newest.max(seen);
    }

    fn newest(&self) -> Stamp {
        self.state().newest
    }
}

fn nanos(env: &Env) -> Nanos {
    env.now().mono.0
}

/// Tries again until it succeeds or the deadline has passed; then the last error.
async fn until<T>(
    env: &Env,
    within: Duration,
    mut attempt: impl AsyncFnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let deadline = env.now().mono.after(within);
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) if env.now().mono >= deadline => return Err(error),
            Err(_) => env.sleep(PAUSE).await,
        }
    }
}
