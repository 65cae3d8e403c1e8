//! Creation, alteration, soft deletion and drop of model tables.

use std::collections::BTreeSet;
use std::time::Duration;

use engine::time::Instant;
use nyala_common::env::Env;
use nyala_common::rpc::client::{CallOptions, RpcResponse};
use nyala_proto::kudu::consensus::{RunLeaderElectionRequestPb, RunLeaderElectionResponsePb};
use nyala_proto::kudu::master::{
    AlterTableRequestPb, AlterTableResponsePb, CreateTableResponsePb, DeleteTableRequestPb,
    DeleteTableResponsePb, GetTableSchemaRequestPb, GetTableSchemaResponsePb, IsAlterTableDoneRequestPb,
    IsAlterTableDoneResponsePb, IsCreateTableDoneRequestPb, IsCreateTableDoneResponsePb,
    RecallDeletedTableRequestPb, RecallDeletedTableResponsePb, TableIdentifierPb,
};
use sim_plan::client_ops::TableStep;
use sim_plan::tables::{ModelTable, RangeSpec};
use sim_plan::{Fault, RandomStream};

use super::alter_requests::alter_request;
use super::{ModelClient, SETUP_CLIENT, TableState, table_settings};
use crate::history::{CallOutcome, ClientRequest, Nanos};
use crate::model::alter_draws;
use crate::model::{Incarnation, TableSettings, TableVersion};
use crate::oracle::Violation;
use crate::wire::client::{CONSENSUS, CallFailure, PAUSE, table_of};
use crate::wire::{keys, schema};
use crate::workload::{Workload, nanos};

/// Codes of masters.
const TABLE_NOT_FOUND: i32 = 3;
const TABLE_ALREADY_PRESENT: i32 = 4;
/// More replicas than live tablet servers: servers that are down now may be back soon.
const REPLICATION_FACTOR_TOO_HIGH: i32 = 8;
const TABLE_SOFT_DELETED: i32 = 16;
/// Percentage of alterations before which an invalid one is asked for.
const REFUSED_PERCENT: u64 = 25;
/// Percentage of alterations that also change owner, comment or extra configuration.
const SETTINGS_PERCENT: u64 = 40;
/// Times that a soft-deleted table is kept, in seconds: longer than any plan waits until it recalls one.
const RESERVES: [u32; 2] = [120, 3_600];
/// Longest time after which a soft-deleted table is recalled.
const HIDDEN_MAX: Duration = Duration::from_secs(8);
/// Most times that a table is created again.
const RECREATED_MAX: u8 = 2;
/// Most versions of a table, and columns that it ever had.
const VERSIONS_MAX: usize = 40;

impl Workload {
    /// Creates the model tables of the plan.
    pub(in crate::workload) async fn prepare_model_tables(&self, env: &Env) {
        let mut client = ModelClient::new(self, env, SETUP_CLIENT);
        for table in &self.plan().tables {
            let deadline = client.plain.deadline(self.plan().quiet);
            let name = format!("model{}", table.spec.number);
            let created = client.create(table, name, deadline).await;
            let mut state = self.state();
            let mut of_table = TableState { dropped: true, ..TableState::default() };
            match created {
                Ok(incarnation) => {
                    state.model.incarnations.push(incarnation);
                    of_table =
                        TableState { current: state.model.incarnations.len() - 1, ..TableState::default() };
                }
                Err(why) => state.violations.push(Violation::new(crate::model_oracle::NAME, why)),
            }
            state.model.tables.push(of_table);
        }
    }
}

impl ModelClient {
    /// Creates a table, or finds that an attempt whose reply was lost has created it.
    async fn create(
        &mut self,
        table: &ModelTable,
        name: String,
        deadline: Instant,
    ) -> Result<Incarnation, String> {
        let called = nanos(&self.env);
        let (settings, replicas) = (self.first_settings(table), self.replicas());
        let (request, features) = schema::create(table, &name, &settings, replicas);
        let table_id = loop {
            let called: Result<CreateTableResponsePb, CallFailure> =
                self.plain.ask_master("CreateTable", &request, features.clone()).await;
            match called {
                Ok(reply) => break reply.table_id,
                Err(CallFailure::Refused { code: TABLE_ALREADY_PRESENT, .. }) => break None,
                Err(failure @ CallFailure::Refused { code, .. }) if code != REPLICATION_FACTOR_TOO_HIGH => {
                    return Err(format!("table {name} cannot be created: {failure}"));
                }
                Err(failure) if self.plain.is_over(deadline) => {
                    return Err(format!("table {name} is not created in time: {failure}"));
                }
                Err(failure) => {
                    self.record_refusal(&name, &failure);
                    self.env.sleep(PAUSE).await;
                }
            }
        };
        let named = match table_id {
            Some(_) => TableIdentifierPb { table_id, table_name: None },
            None => TableIdentifierPb { table_id, table_name: Some(name.clone()) },
        };
        let created = self.wait_until_created(named.clone(), deadline).await;
        created.map_err(|failure| format!("table {name} does not come up: {failure}"))?;
        let found = self.schema_of(named, deadline).await;
        let found = found.map_err(|failure| format!("table {name} has no schema: {failure}"))?;
        let id = String::from_utf8_lossy(found.table_id()).into_owned();
        let mut made = Incarnation::new(table.clone(), id, name, called, nanos(&self.env));
        made.versions[0].settings = settings;
        if let Some(what) = schema_fault(&made.versions[0], replicas, &found) {
            self.report(format!("table {}: its schema is wrong: {what}", made.number));
        }
        Ok(made)
    }

    /// Records a refusal after which the creation is tried again: `creations` asks if it has a cause.
    fn record_refusal(&self, name: &str, failure: &CallFailure) {
        if matches!(failure, CallFailure::Refused { .. }) {
            let (now, request) = (nanos(&self.env), ClientRequest::Other(format!("make model table {name}")));
            let call = self.workload.history().invoke(self.number, now, self.plain.seen, request);
            self.workload.history().answer(call, now, CallOutcome::Failed(failure.into()));
        }
    }

    fn first_settings(&self, table: &ModelTable) -> TableSettings {
        let seed = self.workload.plan().seed.wrapping_add(u64::from(table.spec.number) << 32);
        TableSettings::drawn(&mut RandomStream::new(seed, "table settings"))
    }

    pub(super) fn replicas(&self) -> i32 {
        i32::from(self.workload.plan().cluster.replicas)
    }

    async fn wait_until_created(
        &mut self,
        table: TableIdentifierPb,
        deadline: Instant,
    ) -> Result<(), CallFailure> {
        let request = IsCreateTableDoneRequestPb { table };
        loop {
            let asked: Result<IsCreateTableDoneResponsePb, CallFailure> =
                self.plain.ask_until("IsCreateTableDone", &request, deadline).await;
            match asked {
                Ok(reply) if reply.done() => return Ok(()),
                // A master that does not lead any more may not know the table.
                Err(failure) if self.has_single_master() => return Err(failure),
                Ok(_) | Err(_) => {}
            }
            if self.plain.is_over(deadline) {
                return Err(CallFailure::NotNow("its tablets are not running".to_string()));
            }
            self.env.sleep(PAUSE).await;
        }
    }

    pub(super) async fn schema_of(
        &mut self,
        table: TableIdentifierPb,
        deadline: Instant,
    ) -> Result<GetTableSchemaResponsePb, CallFailure> {
        self.plain.ask_until("GetTableSchema", &GetTableSchemaRequestPb { table }, deadline).await
    }

    /// Alters a table, unless another client does or an earlier outcome is unknown.
    pub(super) async fn alter(&mut self, table: u8, step: TableStep, draw: u32) {
        let stream = |name| RandomStream::new(u64::from(draw), name);
        let (random, more) = (&mut stream("alter"), &mut stream("more of an alteration"));
        let at = usize::from(table);
        {
            let mut state = self.workload.state();
            let Some(of_table) = state.model.tables.get_mut(at) else { return };
            if of_table.busy || of_table.frozen || of_table.dropped {
                return;
            }
            of_table.busy = true;
            if matches!(step, TableStep::HideAndRecall | TableStep::Recreate) {
                let (now, current) = (nanos(&self.env), of_table.current);
                state.model.incarnations[current].absent.push((now, Nanos::MAX));
            }
        }
        let is_first = step != TableStep::Refused && more.percent(REFUSED_PERCENT);
        if is_first && !self.workload.is_determined() {
            self.alter_wrongly(at, more).await;
        }
        let known = match step {
            TableStep::HideAndRecall => {
                let known = self.hide_and_recall(at, more).await;
                if known {
                    self.end_absence(at);
                }
                known
            }
            TableStep::Recreate => self.recreate(at).await,
            TableStep::Refused => {
                if !self.workload.is_determined() {
                    self.alter_wrongly(at, random).await;
                }
                true
            }
            step => self.alter_version(at, step, random, &mut stream("settings")).await,
        };
        self.workload.count(|counts| counts.changes += u64::from(known));
        let mut state = self.workload.state();
        if known {
            *state.model.steps.entry(format!("alter {}", step.word())).or_default() += 1;
        }
        state.model.tables[at].busy = false;
        state.model.tables[at].frozen = !known;
    }

    fn end_absence(&self, at: usize) {
        let mut state = self.workload.state();
        let current = state.model.tables[at].current;
        let now = nanos(&self.env);
        state.model.incarnations[current].absent.last_mut().into_iter().for_each(|span| span.1 = now);
    }

    /// Makes a new version. Returns false if its outcome is unknown.
    async fn alter_version(
        &mut self,
        at: usize,
        step: TableStep,
        random: &mut RandomStream,
        of_settings: &mut RandomStream,
    ) -> bool {
        let (table, id, number, before, alteration) = {
            let mut state = self.workload.state();
            let table = state.model.tables[at].current;
            let of_table = &mut state.model.incarnations[table];
            let before = of_table.versions[of_table.newest()].clone();
            let next = of_table.columns.keys().next_back().map_or(0, |last| last + 1);
            let gone = ranges_ever(of_table);
            let shape = (before.name.as_str(), &before.table);
            let drawn = alter_draws::alteration(random, step, shape, next, &gone);
            let Some(alteration) = drawn.filter(|_| of_table.versions.len() < VERSIONS_MAX) else {
                return true;
            };
            let now = nanos(&self.env);
            let number = of_table.begin(alteration.name.clone(), alteration.table.clone(), now);
            of_table.versions[number].dropped = alteration.dropped_ranges();
            (table, of_table.id.clone(), number, before, alteration)
        };
        let (mut request, features) = alter_request(&id, &before, &alteration);
        if of_settings.percent(SETTINGS_PERCENT) {
            let settings = before.settings.changed(of_settings);
            table_settings::add_changes(&mut request, &before.settings, &settings);
            self.set_settings(table, number, settings);
        }
        let deadline = self.plain.deadline(self.workload.plan().cluster.op_timeout * 2);
        let called = self.ask_to_alter(&request, features, deadline).await;
        if let Err(CallFailure::Refused { code, message, .. }) = &called {
            self.workload.state().model.incarnations[table].versions[number].void = true;
            if ![TABLE_ALREADY_PRESENT, TABLE_SOFT_DELETED].contains(code) {
                let steps = &alteration.steps;
                self.report(format!("table {at}: {steps:?} was refused ({code}): {message}"));
            }
            return true;
        }
        let told = called.is_ok();
        self.wait_until_altered(table, number, &id, told, deadline).await
    }

    fn set_settings(&self, table: usize, number: usize, settings: TableSettings) {
        let mut state = self.workload.state();
        state.model.incarnations[table].versions[number].settings = settings;
        *state.model.steps.entry("alter settings".to_string()).or_default() += 1;
    }

    /// Asks once, or in determined plans until the request was sent: whether it is executed must not depend on time.
    async fn ask_to_alter(
        &mut self,
        request: &AlterTableRequestPb,
        features: Vec<u32>,
        deadline: Instant,
    ) -> Result<AlterTableResponsePb, CallFailure> {
        loop {
            let called = self.plain.ask_master("AlterTable", request, features.clone()).await;
            let repeats = self.workload.is_determined() && !self.plain.is_over(deadline);
            match called {
                Err(CallFailure::NotNow(_)) if repeats => self.env.sleep(PAUSE).await,
                called => return called,
            }
        }
    }

    /// Waits until a version is in force everywhere. `told`: the call succeeded.
    async fn wait_until_altered(
        &mut self,
        table: usize,
        number: usize,
        id: &str,
        told: bool,
        deadline: Instant,
    ) -> bool {
        let version = self.workload.state().model.incarnations[table].versions[number].clone();
        let mut seen = told;
        while !self.plain.is_over(deadline) {
            seen = seen || self.has_version(id, &version, deadline).await;
            let request = IsAlterTableDoneRequestPb { table: table_of(id) };
            let asked: Result<IsAlterTableDoneResponsePb, CallFailure> =
                self.plain.ask_until("IsAlterTableDone", &request, deadline).await;
            if seen && asked.is_ok_and(|reply| reply.done()) {
                let found = self.has_version(id, &version, deadline).await;
                if !found && !self.has_single_master() {
                    self.env.sleep(PAUSE).await;
                    continue;
                }
                if !found && !self.plain.is_over(deadline) {
                    self.report_version(id, &version, deadline).await;
                }
                let now = nanos(&self.env);
                self.workload.state().model.incarnations[table].versions[number].known = Some(now);
                return true;
            }
            self.env.sleep(PAUSE).await;
        }
        false
    }

    /// Returns true if masters report a version.
    async fn has_version(&mut self, id: &str, version: &TableVersion, deadline: Instant) -> bool {
        let schema = self.schema_of(table_of(id), deadline).await;
        let places = self.plain.locate(id, deadline).await;
        let (Ok(schema), Ok(places)) = (schema, places) else { return false };
        let bounds: BTreeSet<keys::Bounds> = places.into_iter().map(|place| place.bounds).collect();
        let want: BTreeSet<keys::Bounds> = keys::tablet_bounds(&version.table).into_iter().collect();
        schema_fault(version, self.replicas(), &schema).is_none() && bounds == want
    }

    async fn report_version(&mut self, id: &str, version: &TableVersion, deadline: Instant) {
        let Ok(found) = self.schema_of(table_of(id), deadline).await else { return };
        let what = schema_fault(version, self.replicas(), &found);
        let what = what.unwrap_or_else(|| "its tablets are others".to_string());
        let number = version.table.spec.number;
        self.report(format!("table {number}: after an alteration that is done, {what}"));
    }

    /// Hides a table and recalls it. Its rows stay, and clients continue to use them.
    async fn hide_and_recall(&mut self, at: usize, random: &mut RandomStream) -> bool {
        let id = self.id(at);
        let hidden_for = if random.percent(50) { random.span(PAUSE, HIDDEN_MAX) } else { PAUSE * 2 };
        let deadline = self.plain.deadline(hidden_for + self.workload.plan().cluster.op_timeout * 2);
        let hide = DeleteTableRequestPb {
            table: table_of(&id),
            modify_external_catalogs: None,
            reserve_seconds: Some(random.pick(&RESERVES)),
        };
        let hidden: Result<DeleteTableResponsePb, CallFailure> =
            self.plain.ask_master("DeleteTable", &hide, Vec::new()).await;
        if let Err(failure @ CallFailure::Refused { .. }) = &hidden {
            self.report(format!("table {at} cannot be hidden: {failure}"));
        }
        self.env.sleep(hidden_for).await;
        let mut is_first = true;
        let recall = RecallDeletedTableRequestPb { table: table_of(&id), new_table_name: None };
        while !self.plain.is_over(deadline) {
            let called: Result<RecallDeletedTableResponsePb, CallFailure> =
                self.plain.ask_master("RecallDeletedTable", &recall, Vec::new()).await;
            match called {
                Ok(_) => return true,
                // An attempt whose reply was lost may have recalled it, or nothing was hidden.
                Err(CallFailure::Refused { code: TABLE_NOT_FOUND, .. }) => {
                    if is_first && hidden.is_ok() && !self.has_clock_steps() {
                        self.report(format!("table {at} is gone {hidden_for:?} after it was hidden"));
                    }
                    return hidden.is_ok();
                }
                Err(failure @ CallFailure::Refused { .. }) => {
                    self.report(format!("table {at} cannot be recalled: {failure}"));
                    return false;
                }
                Err(_) => {
                    is_first = false;
                    self.env.sleep(PAUSE).await;
                }
            }
        }
        false
    }

    /// Returns true if a clock may be wrong by more than the time for which a hidden table is kept.
    fn has_clock_steps(&self) -> bool {
        self.workload.plan().faults.iter().any(|fault| matches!(fault.kind, Fault::ClockStep { .. }))
    }

    /// Drops a table and creates it again under its name.
    async fn recreate(&mut self, at: usize) -> bool {
        let (id, name) = {
            let mut state = self.workload.state();
            let of_table = &mut state.model.tables[at];
            if of_table.recreated >= RECREATED_MAX {
                return true;
            }
            (of_table.dropped, of_table.recreated) = (true, of_table.recreated + 1);
            let incarnation = of_table.current;
            let found = &state.model.incarnations[incarnation];
            (found.id.clone(), found.versions[found.newest()].name.clone())
        };
        let deadline = self.plain.deadline(self.workload.plan().cluster.op_timeout * 4);
        if !self.drop_table(at, &id, deadline).await {
            return false;
        }
        {
            let mut state = self.workload.state();
            let current = state.model.tables[at].current;
            state.model.incarnations[current].gone = Some(nanos(&self.env));
        }
        let gone = self.schema_of(table_of(&id), deadline).await;
        if gone.is_ok() && self.has_single_master() {
            self.report(format!("table {at} has a schema after its drop"));
        }
        let table = self.workload.plan().tables[at].clone();
        match self.create(&table, name, deadline).await {
            Ok(incarnation) => {
                if incarnation.id == id {
                    self.report(format!("table {at} has its old id after its drop: {id}"));
                }
                let mut state = self.workload.state();
                state.model.incarnations.push(incarnation);
                let current = state.model.incarnations.len() - 1;
                state.model.tables[at].current = current;
                state.model.tables[at].dropped = false;
                true
            }
            Err(why) if self.plain.is_over(deadline) => {
                tracing::info!("table {at} is not created again: {why}");
                false
            }
            Err(why) => {
                self.report(why);
                false
            }
        }
    }

    async fn drop_table(&mut self, at: usize, id: &str, deadline: Instant) -> bool {
        let request = DeleteTableRequestPb { table: table_of(id), ..Default::default() };
        let mut tried = false;
        while !self.plain.is_over(deadline) {
            let called: Result<DeleteTableResponsePb, CallFailure> =
                self.plain.ask_master("DeleteTable", &request, Vec::new()).await;
            match called {
                Ok(_) => return true,
                Err(CallFailure::Refused { code: TABLE_NOT_FOUND, .. }) if tried => return true,
                Err(failure @ CallFailure::Refused { .. }) => {
                    self.report(format!("table {at} cannot be dropped: {failure}"));
                    return false;
                }
                Err(_) => self.env.sleep(PAUSE).await,
            }
            tried = true;
        }
        false
    }

    fn id(&self, at: usize) -> String {
        let state = self.workload.state();
        state.model.incarnations[state.model.tables[at].current].id.clone()
    }

    /// Asks a replica of a tablet to stand for election.
    pub(super) async fn elect(&mut self, table: u8, draw: u32) {
        let random = &mut RandomStream::new(u64::from(draw), "elect");
        let Some(view) = self.view(table, random) else { return };
        let deadline = self.op_deadline();
        let Some(places) = self.locate(&view, deadline).await else { return };
        let replicas: Vec<_> = places
            .iter()
            .flat_map(|place| place.replicas.iter().map(move |replica| (place, replica)))
            .collect();
        if replicas.is_empty() {
            return;
        }
        let (place, replica) = random.pick(&replicas);
        let request = RunLeaderElectionRequestPb {
            dest_uuid: Some(replica.server_id.clone()),
            tablet_id: place.id.clone().into_bytes().into(),
        };
        let options = CallOptions::default();
        let what =
            ClientRequest::Operator(format!("model table {table}: a replica is to stand for election"));
        let call = self.workload.history().invoke(self.number, nanos(&self.env), self.plain.seen, what);
        let called: Result<RpcResponse<RunLeaderElectionResponsePb>, CallFailure> =
            self.plain.call(&replica.address, CONSENSUS, "RunLeaderElection", &request, options).await;
        self.workload.history().answer(call, nanos(&self.env), CallOutcome::Done);
        self.workload.count(|counts| counts.changes += u64::from(called.is_ok()));
        self.env.sleep(Duration::from_millis(1)).await;
    }
}

/// Returns all ranges that a table ever had.
pub(super) fn ranges_ever(table: &Incarnation) -> Vec<RangeSpec> {
    let mut found: Vec<RangeSpec> = Vec::new();
    for range in table.versions.iter().flat_map(|version| &version.table.ranges) {
        if !found.contains(range) {
            found.push(range.clone());
        }
    }
    found
}

/// Returns what a schema has that a version has not. `replicas`: those of each tablet.
pub(super) fn schema_fault(
    version: &TableVersion,
    replicas: i32,
    found: &GetTableSchemaResponsePb,
) -> Option<String> {
    if found.table_name() != version.name {
        return Some(format!("its name is {}, not {}", found.table_name(), version.name));
    }
    columns_fault(version, found).or_else(|| table_settings::fault(&version.settings, replicas, found))
}

pub(super) fn columns_fault(version: &TableVersion, found: &GetTableSchemaResponsePb) -> Option<String> {
    let columns = found.schema.clone().unwrap_or_default().columns;
    if columns.len() != version.table.columns.len() {
        return Some(format!("it has {} columns, not {}", columns.len(), version.table.columns.len()));
    }
    let keys = version.table.key_columns().len();
    let each = version.table.columns.iter().zip(&columns).enumerate();
    let mut wrong = each.map(|(at, (spec, pb))| (spec, schema::differences(spec, pb, at < keys)));
    wrong.find(|(_, what)| !what.is_empty()).map(|(spec, what)| format!("column {}: {what:?}", spec.name))
}
