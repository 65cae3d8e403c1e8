//! One client of a run: executes its ops one after the other and records the history.

use std::collections::BTreeMap;

use engine::error::{Error, ErrorKind};
use nyala_client::{Client, FlushMode, RowReceipt, Session, SessionConfig, Table};
use nyala_common::env::Env;
use nyala_proto::kudu::ExternalConsistencyMode;

use super::append_list::AppendList;
use super::model_client::ModelClient;
use super::{PAUSE, Workload, nanos, row_encoding, tables};
use crate::history::{
    CallError, CallOutcome, ClientNo, ClientRequest, HybridStamp, PendingCall, RowOp, RowOpKind, RowOutcome,
    RowResult, TableNo,
};
use crate::oracle::hybrid_time;
use crate::projection::LARGE_VALUE_MIN;
use sim_plan::ClientOp;
use sim_plan::client_ops::{ClientProgram, FlushMode as PlanFlushMode, WriteWait};

/// One client of the workload.
pub(super) struct ClientActor {
    pub workload: Workload,
    pub env: Env,
    pub number: ClientNo,
    pub client: Client,
    tables: BTreeMap<TableNo, Table>,
    mode: PlanFlushMode,
    session: Session,
    /// Rows that the session has buffered and not acknowledged, by tag.
    waiting: BTreeMap<u64, PendingCall>,
    next_tag: u64,
    /// True if writes use commit wait.
    waits: bool,
    /// Accounts whose balance depends on a transfer of unknown outcome.
    pub retired: Vec<i64>,
    pub list: AppendList,
    /// The client of model tables.
    model: ModelClient,
}

impl Workload {
    /// Executes the ops of the plan's client at `index`.
    pub async fn run_client(&self, env: &Env, index: usize) {
        let program = self.plan().clients[index].clone();
        let client = self.connect_as(env, ClientNo::from(program.setup.number)).await;
        let mut actor = ClientActor::new(self.clone(), env.clone(), client, &program);
        self.beside_questions(env, index, actor.run(&program, index)).await;
    }
}

impl ClientActor {
    pub(super) fn new(workload: Workload, env: Env, client: Client, program: &ClientProgram) -> ClientActor {
        let mode = program.setup.flush;
        let mut config = SessionConfig::new(match mode {
            PlanFlushMode::Sync => FlushMode::AutoSync,
            PlanFlushMode::Manual => FlushMode::Manual,
            PlanFlushMode::Background => FlushMode::AutoBackground,
        });
        config.timeout = workload.plan().cluster.op_timeout;
        config.receipts = true;
        let waits = program.setup.waits == WriteWait::Commit;
        if waits {
            config.consistency = ExternalConsistencyMode::CommitWait;
        }
        let number = ClientNo::from(program.setup.number);
        let session = client.session(config);
        let (tables, waiting, retired) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let list = AppendList::default();
        let mut model = ModelClient::new(&workload, &env, number);
        model.client = Some(client.clone());
        ClientActor {
            workload,
            env,
            number,
            client,
            tables,
            mode,
            session,
            waiting,
            next_tag: 1,
            waits,
            retired,
            list,
            model,
        }
    }

    async fn run(&mut self, program: &ClientProgram, index: usize) {
        for (at, op) in program.ops.iter().enumerate() {
            self.receive_timestamp(index);
            self.act(op, at).await;
            self.workload.record_newest(&self.client);
            let every = program.setup.propagate_every as usize;
            if every > 0 && (at + 1).is_multiple_of(every) {
                self.propagate_timestamp(index);
            }
            self.env.sleep(program.setup.pace).await;
        }
        self.flush().await;
    }

    /// Takes over the timestamp that another client propagated to this one.
    fn receive_timestamp(&self, index: usize) {
        let propagated = self.workload.state().propagated[index];
        if propagated > 0 {
            self.client.observe_timestamp(propagated);
        }
    }

    fn propagate_timestamp(&self, index: usize) {
        let seen = self.after();
        let mut state = self.workload.state();
        let next = (index + 1) % state.propagated.len();
        state.propagated[next] = state.propagated[next].max(seen);
    }

    async fn act(&mut self, op: &ClientOp, at: usize) {
        match op {
            ClientOp::Write { kind, table, key, value } => {
                let kind = row_encoding::kind(*kind);
                self.write(TableNo::from(*table), kind, i64::from(*key), *value).await;
            }
            ClientOp::Flush {} => self.flush().await,
            ClientOp::Get { table, key, at, from } => {
                self.get(TableNo::from(*table), i64::from(*key), *at, *from).await;
            }
            ClientOp::Scan { table, low, high, at, back, ordered, from } => {
                let keys = (i64::from(*low), i64::from(*high).min(tables::KEYS_END));
                self.scan(TableNo::from(*table), keys, *at, *back, *ordered, *from).await;
            }
            ClientOp::SlowScan { table, ordered, pause, from } => {
                self.slow_scan(TableNo::from(*table), *ordered, *pause, *from).await;
            }
            ClientOp::Find { .. } => self.find(op).await,
            ClientOp::Diff { table, back } => self.diff(TableNo::from(*table), *back).await,
            ClientOp::Transfer { debit, credit, amount, .. } => self.transfer(*debit, *credit, *amount).await,
            ClientOp::Wait { span } => self.env.sleep(*span).await,
            ClientOp::AddColumn { .. }
            | ClientOp::DropColumn { .. }
            | ClientOp::AddRange { .. }
            | ClientOp::DropRange { .. }
            | ClientOp::ShortTable { .. } => self.change(op, at).await,
            ClientOp::OwnColumn { table, step } => self.own_column(TableNo::from(*table), *step).await,
            ClientOp::OwnRange { table, step } => self.own_range(TableNo::from(*table), *step).await,
            ClientOp::StepDown { table, tablet } => self.step_down(TableNo::from(*table), *tablet).await,
            ClientOp::Elect { table, tablet, replica } => {
                self.elect(TableNo::from(*table), *tablet, *replica).await;
            }
            ClientOp::Evict { table, tablet, asked } => {
                self.evict(TableNo::from(*table), *tablet, *asked).await
            }
            ClientOp::Link {} => self.link().await,
            ClientOp::Walk { back, from } => self.walk(*back, *from).await,
            ClientOp::Numbered { step } => self.numbered(*step).await,
            ClientOp::Quiesce { server, span } => self.quiesce(*server, *span).await,
            ClientOp::Rebalance { at_once } => self.rebalance(*at_once).await,
            ClientOp::RemoveMaster { master } => self.remove_master(*master).await,
            ClientOp::AddMaster { master } => self.add_master(*master).await,
            ClientOp::TableWrite { .. }
            | ClientOp::TableScan { .. }
            | ClientOp::TableDiff { .. }
            | ClientOp::TableAlter { .. }
            | ClientOp::TableMetadata { .. }
            | ClientOp::TablePausedScan { .. }
            | ClientOp::TableElect { .. } => {
                let seen = self.after();
                self.model.act(op, seen).await;
                self.client.observe_timestamp(self.model.plain.seen);
            }
            // Clients that back up tables have no other ops: `backups`.
            ClientOp::Backup { .. } | ClientOp::TableBackup { .. } => {}
            ClientOp::Inspect { server } => self.inspect(*server).await,
            ClientOp::Move { table, tablet, asked } => {
                self.move_replica(TableNo::from(*table), *tablet, *asked).await;
            }
        }
    }

    /// Returns the newest timestamp that this client has seen.
    pub(super) fn after(&self) -> HybridStamp {
        self.client.observed_timestamp().unwrap_or_default()
    }

    pub(super) fn invoke(&self, request: ClientRequest) -> PendingCall {
        self.workload.history().invoke(self.number, nanos(&self.env), self.after(), request)
    }

    pub(super) fn answer(&self, call: PendingCall, outcome: CallOutcome) {
        let answered =
            matches!(outcome, CallOutcome::Written(_) | CallOutcome::Rows { .. } | CallOutcome::Done);
        self.workload.count(|counts| {
            counts.answered += u64::from(answered);
            counts.unanswered += u64::from(!answered);
        });
        self.workload.history().answer(call, nanos(&self.env), outcome);
    }

    /// Returns a table by its number; retries until it is opened, for it exists.
    pub(super) async fn table(&mut self, number: TableNo) -> Table {
        if let Some(table) = self.tables.get(&number) {
            return table.clone();
        }
        let name = tables::name(number);
        loop {
            let call = self.invoke(ClientRequest::Other(format!("open table {name}")));
            match self.client.open_table(&name).await {
                Ok(table) => {
                    self.answer(call, CallOutcome::Done);
                    self.tables.insert(number, table.clone());
                    return table;
                }
                Err(error) => self.answer(call, CallOutcome::Failed(error.into())),
            }
            self.env.sleep(PAUSE).await;
        }
    }

    /// Makes the next use of a table open it again.
    pub(super) fn forget_table(&mut self, number: TableNo) {
        self.tables.remove(&number);
    }

    /// Stores the new version of a table.
    pub(super) fn replace_table(&mut self, number: TableNo, table: Table) {
        self.tables.insert(number, table);
    }

    /// Returns a number that no other op of the run writes.
    pub(super) fn number(&mut self) -> i64 {
        self.next_tag += 1;
        (self.next_tag * 64) as i64 + i64::from(self.number)
    }

    /// Returns a number that this client wrote `back` numbers ago, as long as it wrote rows only.
    pub(super) fn number_before(&self, back: u32) -> i64 {
        (self.next_tag.saturating_sub(u64::from(back)) * 64) as i64 + i64::from(self.number)
    }

    async fn write(&mut self, number: TableNo, kind: RowOpKind, key: i64, choice: u32) {
        let table = self.table(number).await;
        let heavy = if i64::from(choice) >= LARGE_VALUE_MIN { LARGE_VALUE_MIN } else { 0 };
        let value = self.number() + heavy;
        let op = row_encoding::op(kind, key, value, choice, self.workload.plan().data.few);
        self.apply(number, &table, op).await;
    }

    /// Passes a row to the session.
    pub(super) async fn apply(&mut self, number: TableNo, table: &Table, op: RowOp) {
        let tag = self.next_tag;
        self.next_tag += 1;
        let encoded = row_encoding::EncodedCells::new(&op);
        let kind = op.kind;
        let call = self.invoke(ClientRequest::Write { table: number, rows: vec![op] });
        self.waiting.insert(tag, call);
        let cells = encoded.cells_of(table.schema());
        let applied = self.session.apply(table, kind, &cells, tag).await;
        self.collect();
        if self.mode == PlanFlushMode::Sync || applied.is_err() {
            self.give_up(applied.err());
        }
    }

    /// Sends what the session buffers and waits for the replies.
    pub(super) async fn flush(&mut self) {
        let failures = self.session.flush().await;
        self.collect();
        let error = failures.into_iter().map(|failure| failure.error).next();
        self.give_up(error);
    }

    fn collect(&mut self) {
        for receipt in self.session.take_receipts() {
            let Some(call) = self.waiting.remove(&receipt.tag) else { continue };
            self.workload.count(|counts| counts.rows_written += u64::from(receipt.refused.is_none()));
            let answer = answer_of(&receipt);
            if matches!(answer, RowResult::At { outcome: RowOutcome::Refused, .. }) {
                self.reread();
            }
            if self.waits && receipt.refused.is_none() {
                let now = self.env.now();
                let found = hybrid_time::check_waited(self.workload.plan(), receipt.timestamp, now);
                found.into_iter().for_each(|violation| self.workload.report_violation(violation));
            }
            self.answer(call, CallOutcome::Written(vec![answer]));
        }
    }

    /// Opens tables again that other clients may have altered.
    fn reread(&mut self) {
        if self.workload.plan().alters() {
            self.tables.clear();
        }
    }

    /// Ends the waiting calls, which will get no reply.
    fn give_up(&mut self, error: Option<Error>) {
        if error.is_some() {
            self.reread();
        }
        let certain = error.as_ref().is_some_and(|error| self.is_definite_failure(error));
        let why = CallError::from(error);
        for (_, call) in std::mem::take(&mut self.waiting) {
            let outcome = if certain { CallOutcome::Failed } else { CallOutcome::Unknown };
            self.answer(call, outcome(why.clone()));
        }
    }

    /// Returns true if this error proves that the one waiting write had no effect. An invalid write was rejected on
    /// arrival; only where columns or ranges are dropped may an earlier attempt have been valid.
    fn is_definite_failure(&self, error: &Error) -> bool {
        let alone = self.mode == PlanFlushMode::Sync && self.waiting.len() == 1;
        alone && error.kind == ErrorKind::Invalid && !self.workload.plan().loses_columns()
    }
}

/// Returns a tablet's reply for a row.
pub(super) fn answer_of(receipt: &RowReceipt) -> RowResult {
    let outcome = match receipt.refused.as_ref().map(|error| error.kind) {
        None => RowOutcome::Done,
        Some(ErrorKind::AlreadyPresent) => RowOutcome::AlreadyPresent,
        Some(ErrorKind::NotFound) => RowOutcome::NotFound,
        Some(_) => RowOutcome::Refused,
    };
    RowResult::At { at: receipt.timestamp, outcome }
}
