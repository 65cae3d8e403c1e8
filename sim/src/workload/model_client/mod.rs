//! Clients of model tables: plain clients with their own encodings, which record each call.
//!
//! ```text
//! prepare_model_tables   creates the plan's tables                         [`ddl`]
//! ModelClient            writes, scans and alterations of one client       [`writes`], [`reads`], [`ddl`]
//!                        some of its writes go through `nyala-client`     [`client_writes`]
//!                        some of its scans go through `nyala-client`       [`client_scans`]
//!                        which must find the tablets that it knows        [`known_tablets`]
//!                        whose totals the servers compute, too             [`client_aggregates`]
//!                        some of which pause between batches              [`paused_scans`]
//!                        checks what replies have besides rows            [`scan_replies`]
//!                        asks for metadata of tables and tablets           [`metadata`]
//! recover_model_tables   reads every replica once more, after the faults   [`recovery`]
//! check_restored         reads a table that was restored from a backup     [`restored`]
//! ```
//!
//! One alteration of a table is in flight at a time. One whose outcome stays unknown is the table's last.

mod alter_requests;
mod arrow_values;
mod client_aggregates;
mod client_columns;
mod client_scans;
mod client_writes;
mod consensus_at_rest;
mod ddl;
mod known_tablets;
mod metadata;
mod paused_scans;
pub(super) mod read_tablet;
mod reading;
mod reads;
mod recovery;
mod refused_alterations;
mod restored;
mod scan_replies;
mod table_settings;
mod writes;

use std::collections::BTreeSet;
use std::time::Duration;

use engine::error::ErrorKind;
use engine::time::{Instant, Timestamp};
use nyala_client::{Client, Session};
use nyala_common::env::Env;
use sim_plan::tables::{ModelTable, Value};
use sim_plan::{ClientOp, RandomStream};

pub(crate) use self::client_scans::comparison;
pub(super) use self::restored::{BackedUp, check_restored, tablets_of};
use super::model_tables::TableState;
use super::{MASTER_PORT, Workload, nanos};
use crate::history::{CallError, CallOutcome, ClientNo, ClientRequest, HybridStamp, Nanos};
use crate::model::RowCells;
use crate::model_oracle::{ReadOutcome, TableCall, TableEvent};
use crate::oracle::Violation;
use crate::wire::client::{CallFailure, PlainClient, TabletPlace};
use crate::wire::keys;

/// Number of the client that creates tables and reads them at the end.
const SETUP_CLIENT: ClientNo = 62;
/// Rows of a read that later changes may name, where servers number rows.
const NUMBERED_ROWS: usize = 6;
/// Percentage of operations for which a client uses the table's version before the newest.
const OLD_VIEW_PERCENT: u64 = 12;

/// A table as a client sees it.
#[derive(Debug, Clone)]
struct View {
    /// Index of the incarnation, and its id.
    table: usize,
    id: String,
    /// Number of the version whose columns the client uses.
    number: usize,
    spec: ModelTable,
}

/// The error of a plain call as one of the history: a refusal is a reply.
impl From<&CallFailure> for CallError {
    fn from(failure: &CallFailure) -> CallError {
        let kind = match failure {
            CallFailure::Refused { .. } => Some(ErrorKind::Invalid),
            CallFailure::NotNow(_) | CallFailure::Unknown(_) => None,
        };
        CallError { kind, message: failure.to_string() }
    }
}

/// One client of model tables.
pub(super) struct ModelClient {
    workload: Workload,
    env: Env,
    number: ClientNo,
    pub plain: PlainClient,
    /// The client of which some scans are.
    pub client: Option<Client>,
    /// The session of the last write, to be used again: the table may be another one by then.
    session: Option<Session>,
    /// Tablets that have answered the client.
    met: BTreeSet<String>,
}

impl ModelClient {
    pub(super) fn new(workload: &Workload, env: &Env, number: ClientNo) -> ModelClient {
        let cluster = &workload.plan().cluster;
        let masters = (0..cluster.masters).map(|number| format!("m{number}:{MASTER_PORT}")).collect();
        let mut plain = PlainClient::new(env.clone(), masters, number, cluster.rpc_timeout);
        plain.errors = workload.state().model.errors.clone();
        plain.connections = workload.state().connections.clone();
        ModelClient {
            workload: workload.clone(),
            env: env.clone(),
            number,
            plain,
            client: None,
            session: None,
            met: BTreeSet::new(),
        }
    }

    /// Executes an op on model tables; `seen`: the newest timestamp that the client has seen elsewhere.
    pub(super) async fn act(&mut self, op: &ClientOp, seen: HybridStamp) {
        self.plain.observe(seen);
        match op {
            ClientOp::TableWrite { table, kind, rows, draw } => {
                let random = &mut RandomStream::new(u64::from(*draw), "rows");
                self.write(*table, *kind, *rows, random).await;
            }
            ClientOp::TablePausedScan { table, draw, .. } => {
                let random = &mut RandomStream::new(u64::from(*draw), "scan");
                self.scan_with_pauses(*table, op, random).await;
            }
            ClientOp::TableScan { table, draw, .. } | ClientOp::TableDiff { table, draw, .. } => {
                let random = &mut RandomStream::new(u64::from(*draw), "scan");
                self.scan(*table, op, random).await;
            }
            ClientOp::TableAlter { table, step, draw } => {
                self.alter(*table, *step, *draw).await;
            }
            ClientOp::TableMetadata { table, asked, draw } => {
                let random = &mut RandomStream::new(u64::from(*draw), "metadata");
                self.ask_metadata(*table, *asked, random).await;
            }
            ClientOp::TableElect { table, draw } => self.elect(*table, *draw).await,
            _ => return,
        }
        let mut state = self.workload.state();
        state.model.newest = state.model.newest.max(self.plain.seen);
    }

    /// Returns a table as this client sees it: the newest version that is known, or the one before.
    fn view(&self, table: u8, random: &mut RandomStream) -> Option<View> {
        let old = random.percent(OLD_VIEW_PERCENT) && !self.workload.is_determined();
        let state = self.workload.state();
        let at = state.model.tables.get(usize::from(table)).filter(|state| !state.dropped)?.current;
        let found = &state.model.incarnations[at];
        let newest = found.newest();
        let older =
            found.versions[..newest].iter().rposition(|version| !version.void && version.known.is_some());
        let number = if old { older.unwrap_or(newest) } else { newest };
        let spec = found.versions[number].table.clone();
        Some(View { table: at, id: found.id.clone(), number, spec })
    }

    fn has_single_master(&self) -> bool {
        self.workload.plan().cluster.masters == 1
    }

    fn op_deadline(&self) -> Instant {
        self.plain.deadline(self.workload.plan().cluster.op_timeout)
    }

    /// Returns a timestamp some time before now.
    fn ago(&self, back: Duration) -> HybridStamp {
        let now = self.env.now().wall.micros;
        Timestamp::from_micros(now.saturating_sub(back.as_micros() as u64)).0
    }

    fn record(&self, (invoked, after): (Nanos, HybridStamp), view: &View, tablet: &str, call: TableCall) {
        self.remember_numbers(view, tablet, &call);
        let event = TableEvent {
            client: self.number,
            invoked,
            returned: nanos(&self.env),
            after,
            table: view.table,
            tablet: tablet.to_string(),
            view: view.number,
            call,
        };
        self.workload.table_history().add(event);
    }

    /// Remembers rows that a read returns, if servers number the rows: later changes name them.
    fn remember_numbers(&self, view: &View, tablet: &str, call: &TableCall) {
        let TableCall::Read { call, outcome: ReadOutcome::Rows { rows, .. } } = call else { return };
        let (Some(auto), Some(origin)) = (view.spec.auto_increment(), view.spec.origin()) else { return };
        // Without its origin a row cannot be told from others later.
        if !call.columns.contains(&origin) {
            return;
        }
        let live = rows.iter().rev().filter(|row| !row.deleted).take(NUMBERED_ROWS);
        let cells = live.map(|row| call.columns.iter().copied().zip(row.values.iter().cloned()).collect());
        let cells: Vec<RowCells> = cells.collect();
        let mut state = self.workload.state();
        let numbers = cells.iter().filter_map(|row| row.get(&auto)).filter_map(Value::number);
        state.model.numbers.entry(tablet.to_string()).or_default().extend(numbers);
        state.model.remember(view.table, cells.iter());
    }

    fn report(&self, what: String) {
        self.workload.report_violation(Violation::new(crate::model_oracle::NAME, what));
    }

    /// Looks a table's tablets up, which is an operation of the history.
    async fn locate_recorded(&mut self, table: &str, deadline: Instant) -> Option<Vec<TabletPlace>> {
        let request = ClientRequest::Other("look up a model table".to_string());
        let call = self.workload.history().invoke(self.number, nanos(&self.env), self.plain.seen, request);
        let located = self.plain.locate(table, deadline).await;
        let outcome = match &located {
            Ok(_) => CallOutcome::Done,
            Err(failure) => CallOutcome::Failed(failure.into()),
        };
        self.workload.history().answer(call, nanos(&self.env), outcome);
        located.ok()
    }

    /// Returns the tablets of a table, whose bounds must be those of a version that may be in force.
    async fn locate(&mut self, view: &View, deadline: Instant) -> Option<Vec<TabletPlace>> {
        let called = nanos(&self.env);
        let places = self.locate_recorded(&view.id, deadline).await?;
        let returned = nanos(&self.env);
        let mut found: Vec<keys::Bounds> = places.iter().map(|place| place.bounds.clone()).collect();
        found.sort();
        // One of several masters may answer before it learns that it does not lead any more: with an earlier version.
        let called = if self.has_single_master() { called } else { 0 };
        let state = self.workload.state();
        let mut possible = state.model.incarnations[view.table].possible(called..=returned);
        let known = possible.any(|version| keys::tablet_bounds(&version.table) == found);
        drop(possible);
        let dropped = state.model.tables.iter().any(|table| table.dropped && table.current == view.table);
        drop(state);
        if !known && !dropped {
            self.report(format!(
                "table {}: tablets at {found:02x?}, those of no version",
                view.spec.spec.number
            ));
        }
        self.learn_tablets(view, &places);
        Some(places)
    }
}
