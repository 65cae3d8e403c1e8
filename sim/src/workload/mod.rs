//! The workload: a plan's client operations on a cluster, over the real wire, and their history.
//!
//! ```text
//! prepare           one client creates the tables                              [`tables`]
//! run_client        each client executes its ops, one after the other          [`client_actor`]
//! check_recovery    all faults ended: the cluster is healthy again, and every
//!                   row is read once more, at every replica                    [`recovery_checks`]
//! ```
//!
//! The world calls these three with the environment of a client machine. Not here: anything about that world.

pub(crate) use self::model_client::comparison;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use engine::error::Error;
use engine::ids::TabletId;
use engine::sync::{Mutex, MutexGuard};
use nyala_client::{Client, ClientConfig};
use nyala_common::env::Env;

use crate::history::{CallOutcome, ClientNo, ClientRequest, History, HybridStamp, Nanos, TableNo};
use crate::model::Incarnation;
use crate::model_oracle::{self, TableHistory};
use crate::oracle::answers;
use crate::oracle::{self, OracleReport, Violation};
use crate::wire::connections::ConnectionLog;
use sim_plan::Plan;

mod admin;
mod append_list;
mod audit_lookups;
mod audit_reports;
mod audit_scans;
mod audit_servers;
mod auto_increment;
mod backup_log;
mod backups;
mod bank;
pub mod catalog_audit;
mod catalog_check;
mod checksums;
mod client_actor;
mod config_changes;
mod ddl;
mod final_state;
mod lists;
mod master_changes;
mod master_connections;
mod model_client;
mod model_tables;
mod own_columns;
mod owned_schema;
mod past_reads;
mod quiesce_check;
mod rebalancing;
mod recovery_checks;
mod restores;
pub mod row_encoding;
mod scans;
mod searches;
mod tables;

/// Port of masters.
pub const MASTER_PORT: u16 = 7051;
/// Port of tablet servers.
pub const TSERVER_PORT: u16 = 7050;

/// Pause of a client before it retries what the cluster was not ready for.
const PAUSE: Duration = Duration::from_millis(100);

/// The workload of one run. Clones share it.
#[derive(Clone)]
pub struct Workload {
    shared: Arc<Shared>,
}

struct Shared {
    plan: Plan,
    history: History,
    table_history: TableHistory,
    is_determined: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The newest timestamp that another client propagated, by client.
    propagated: Vec<HybridStamp>,
    /// The newest timestamp that any client has seen.
    newest: HybridStamp,
    /// Number of short-lived tables created so far.
    short_tables: TableNo,
    /// Tablets that existed at the end.
    live_tablets: BTreeSet<TabletId>,
    /// Columns and ranges that one client alone alters, by client and table.
    own: BTreeMap<(ClientNo, TableNo), own_columns::OwnedSchema>,
    /// Rows with auto-increment values, as far as clients know.
    numbered: oracle::auto_increment::AutoIncrementModel,
    /// Model tables, as far as clients know.
    model: model_tables::ModelTables,
    violations: Vec<Violation>,
    /// The last audit of the catalog, or why there is none.
    audit: Option<Result<catalog_audit::CatalogAudit, String>>,
    backups: backup_log::BackupLog,
    connections: ConnectionLog,
    counts: WorkloadCounts,
}

/// Counters of the workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkloadCounts {
    /// Operations with a reply, and those that failed or have an unknown outcome.
    pub answered: u64,
    pub unanswered: u64,
    /// Rows written and read.
    pub rows_written: u64,
    pub rows_read: u64,
    /// Alterations, short-lived tables, step-downs and moves that succeeded.
    pub changes: u64,
}

impl Workload {
    pub fn new(plan: &Plan) -> Workload {
        Workload::with(plan, false)
    }

    fn with(plan: &Plan, is_determined: bool) -> Workload {
        let state = State { propagated: vec![0; plan.clients.len()], ..State::default() };
        let (plan, history, table_history) = (plan.clone(), History::new(), TableHistory::default());
        let shared = Shared { plan, history, table_history, is_determined, state: Mutex::new(state) };
        Workload { shared: Arc::new(shared) }
    }

    pub fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    /// Returns true if the rows at the end must follow from the plan alone.
    fn is_determined(&self) -> bool {
        self.shared.is_determined
    }

    pub fn history(&self) -> &History {
        &self.shared.history
    }

    pub fn counts(&self) -> WorkloadCounts {
        self.state().counts
    }

    /// Returns the results of the history oracles and the violations that clients found themselves.
    pub fn report(&self) -> OracleReport {
        if self.plan().may_lose_acknowledged() {
            return oracle::check_history_after_loss(&self.history().operations(), &self.state().violations);
        }
        let operations = self.history().operations();
        let end = operations.iter().map(|operation| operation.invoked).max().unwrap_or_default();
        let apart = oracle::hybrid_time::max_clock_difference(self.plan(), end);
        let mut report = oracle::check_history(&operations, apart);
        answers::check(&operations, &self.state().model.errors.all(), self.plan(), &mut report);
        let tables = self.check_model_tables(apart);
        (report.checked, report.undecided) =
            (report.checked + tables.checked, report.undecided + tables.undecided);
        tables.violations.into_iter().for_each(|violation| report.add(violation));
        self.connection_faults().into_iter().for_each(|violation| report.add(violation));
        self.state().violations.iter().for_each(|violation| report.add(violation.clone()));
        report
    }

    /// Connects a client of the plan; each attempt is an operation of its history.
    async fn connect_as(&self, env: &Env, number: ClientNo) -> Client {
        let invoke = || self.history().invoke(number, nanos(env), 0, ClientRequest::Other("connect".into()));
        let mut call = Some(invoke());
        self.connect_with(env, |error| {
            let outcome = error.map_or(CallOutcome::Done, |error| CallOutcome::Failed(error.into()));
            call.take().into_iter().for_each(|call| self.history().answer(call, nanos(env), outcome.clone()));
            call = error.map(|_| invoke());
        })
        .await
    }

    /// `apart`: the largest difference of two machines' clocks.
    fn check_model_tables(&self, apart: Nanos) -> OracleReport {
        model_oracle::check(&self.model_tables(), &self.table_history().events(), apart)
    }

    /// Returns the model tables with all of their versions.
    pub fn model_tables(&self) -> Vec<Incarnation> {
        self.state().model.incarnations.clone()
    }

    /// Returns how often the run reached each cell of the generator-coverage table.
    pub fn coverage(&self) -> BTreeMap<String, u64> {
        let state = self.state();
        let mut cells =
            model_oracle::coverage::cells(&state.model.incarnations, &self.table_history().events());
        answers::count(&self.history().operations(), &state.model.errors.all(), &mut cells);
        for (name, count) in &state.model.steps {
            *cells.entry(format!("{}{name}", model_oracle::coverage::PREFIX)).or_default() += count;
        }
        cells
    }

    /// Returns the calls on model tables.
    pub fn table_history(&self) -> &TableHistory {
        &self.shared.table_history
    }

    /// Connects a client to the cluster; retries until it succeeds.
    async fn connect(&self, env: &Env) -> Client {
        self.connect_with(env, |_| ()).await
    }

    fn client_config(&self) -> ClientConfig {
        let cluster = &self.plan().cluster;
        let masters = (0..cluster.masters).map(|number| format!("m{number}:{MASTER_PORT}"));
        let mut config = ClientConfig::new(masters);
        config.rpc_timeout = cluster.rpc_timeout;
        config.operation_timeout = cluster.op_timeout;
        config
    }

    /// `attempted`: called after each attempt, with its error.
    async fn connect_with(&self, env: &Env, mut attempted: impl FnMut(Option<&Error>)) -> Client {
        let config = self.client_config();
        loop {
            let connected = Client::connect(env.clone(), config.clone()).await;
            attempted(connected.as_ref().err());
            match connected {
                Ok(client) => return client,
                Err(_) => env.sleep(PAUSE).await,
            }
        }
    }

    /// Returns the tablets that existed at the recovery checks.
    pub fn live_tablets(&self) -> Vec<TabletId> {
        self.state().live_tablets.iter().copied().collect()
    }

    fn report_violation(&self, violation: Violation) {
        self.state().violations.push(violation);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }

    fn count(&self, add: impl FnOnce(&mut WorkloadCounts)) {
        add(&mut self.state().counts);
    }

    /// Records the newest timestamp that a client has seen.
    fn record_newest(&self, client: &Client) {
        let seen = client.observed_timestamp().unwrap_or_default();
        let mut state = self.state();
        state.newest = state.newest.max(seen);
    }

    fn newest(&self) -> HybridStamp {
        self.state().newest
    }
}

fn nanos(env: &Env) -> Nanos {
    env.now().mono.0
}

/// Retries until success or the deadline; then returns the last error.
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
