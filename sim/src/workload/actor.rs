//! One client of a run: does its ops one after the other and writes down what it saw.

use std::collections::BTreeMap;

use engine::error::{Error, ErrorKind};
use node::client::{Client, FlushMode, Receipt, Session, SessionConfig, Table};
use node::env::Env;
use node::proto::kudu::ExternalConsistencyMode;

use super::lists::List;
use super::{PAUSE, Workload, nanos, rows, tables};
use crate::history::{
    Call, ClientNo, Outcome, Request, RowAnswer, RowOp, RowOpKind, RowOutcome, Stamp, TableNo,
};
use crate::oracle::clocks;
use crate::plan::Op;
use crate::plan::ops::{ClientProgram, Flush, Waits};
use crate::view::HEAVY;

/// One client at work.
pub(super) struct Actor {
    pub workload: Workload,
    pub env: Env,
    pub number: ClientNo,
    pub client: Client,
    tables: BTreeMap<TableNo, Table>,
    mode: Flush,
    session: Session,
    /// Rows that the session has taken and not answered, by tag.
    waiting: BTreeMap<u64, Call>,
    next_tag: u64,
    /// Whether writes are done when their time has passed.
    waits: bool,
    /// Accounts whose balance depends on a transfer of unknown outcome.
    pub retired: Vec<i64>,
    pub list: List,
}

impl Workload {
    /// Does the ops of the plan's client at `index`.
    pub async fn run_client(&self, env: &Env, index: usize) {
        let program = self.plan().clients[index].clone();
        let client = self.connect(env).await;
        let mut actor = Actor::new(self.clone(), env.clone(), client, &program);
        actor.run(&program, index).await;
    }
}

impl Actor {
    pub fn new(workload: Workload, env: Env, client: Client, program: &ClientProgram) -> Actor {
        let mode = program.setup.flush;
        let mut config = SessionConfig::new(match mode {
            Flush::Sync => FlushMode::AutoSync,
            Flush::Manual => FlushMode::Manual,
            Flush::Background => FlushMode::AutoBackground,
        });
        config.timeout = workload.plan().cluster.op_timeout;
        config.receipts = true;
        let waits = program.setup.waits == Waits::Commit;
        if waits {
            config.consistency = ExternalConsistencyMode::CommitWait;
        }
        let number = ClientNo::from(program.setup.number);
        let session = client.session(config);
        let (tables, waiting, retired) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        let list = List::default();
        Actor {
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
        }
    }

    async fn run(&mut self, program: &ClientProgram, index: usize) {
        for (at, op) in program.ops.iter().enumerate() {
            self.hear(index);
            self.act(op, at).await;
            self.workload.saw(&self.client);
            let every = program.setup.propagate_every as usize;
            if every > 0 && (at + 1).is_multiple_of(every) {
                self.tell(index);
            }
            self.env.sleep(program.setup.pace).await;
        }
        self.flush().await;
    }

    /// Takes what another client told this one.
    fn hear(&self, index: usize) {
        let told = self.workload.state().told[index];
        if told > 0 {
            self.client.observe_timestamp(told);
        }
    }

    fn tell(&self, index: usize) {
        let seen = self.after();
        let mut state = self.workload.state();
        let next = (index + 1) % state.told.len();
        state.told[next] = state.told[next].max(seen);
    }

    async fn act(&mut self, op: &Op, at: usize) {
        match op {
            Op::Write { kind, table, key, value } => {
                let kind = rows::kind(*kind);
                self.write(TableNo::from(*table), kind, i64::from(*key), *value).await;
            }
            Op::Flush {} => self.flush().await,
            Op::Get { table, key, at, from } => {
                self.get(TableNo::from(*table), i64::from(*key), *at, *from).await;
            }
            Op::Scan { table, low, high, at, back, ordered, from } => {
                let keys = (i64::from(*low), i64::from(*high).min(tables::KEYS_END));
                self.scan(TableNo::from(*table), keys, *at, *back, *ordered, *from).await;
            }
            Op::SlowScan { table, ordered, pause, from } => {
                self.slow_scan(TableNo::from(*table), *ordered, *pause, *from).await;
            }
            Op::Find { .. } => self.find(op).await,
            Op::Diff { table, back } => self.diff(TableNo::from(*table), *back).await,
            Op::Transfer { debit, credit, amount, .. } => self.transfer(*debit, *credit, *amount).await,
            Op::Wait { span } => self.env.sleep(*span).await,
            Op::AddColumn { .. }
            | Op::DropColumn { .. }
            | Op::AddRange { .. }
            | Op::DropRange { .. }
            | Op::ShortTable { .. } => self.change(op, at).await,
            Op::OwnColumn { table, step } => self.own_column(TableNo::from(*table), *step).await,
            Op::OwnRange { table, step } => self.own_range(TableNo::from(*table), *step).await,
            Op::StepDown { table, tablet } => self.step_down(TableNo::from(*table), *tablet).await,
            Op::Elect { table, tablet, replica } => {
                self.elect(TableNo::from(*table), *tablet, *replica).await;
            }
            Op::Evict { table, tablet, asked } => self.evict(TableNo::from(*table), *tablet, *asked).await,
            Op::Link {} => self.link().await,
            Op::Walk { back, from } => self.walk(*back, *from).await,
            Op::Numbered { step } => self.numbered(*step).await,
            Op::Quiesce { server, span } => self.quiesce(*server, *span).await,
            Op::Rebalance { at_once } => self.rebalance(*at_once).await,
            Op::RemoveMaster { master } => self.remove_master(*master).await,
            Op::AddMaster { master } => self.add_master(*master).await,
            Op::Inspect { server } => self.inspect(*server).await,
            Op::Move { table, tablet, asked } => {
                self.move_replica(TableNo::from(*table), *tablet, *asked).await;
            }
        }
    }

    /// The newest timestamp that this client has seen.
    pub fn after(&self) -> Stamp {
        self.client.observed_timestamp().unwrap_or_default()
    }

    pub fn invoke(&self, request: Request) -> Call {
        self.workload.history().invoke(self.number, nanos(&self.env), self.after(), request)
    }

    pub fn answer(&self, call: Call, outcome: Outcome) {
        let answered = matches!(outcome, Outcome::Written(_) | Outcome::Rows { .. } | Outcome::Done);
        self.workload.count(|counts| {
            counts.answered += u64::from(answered);
            counts.unanswered += u64::from(!answered);
        });
        self.workload.history().answer(call, nanos(&self.env), outcome);
    }

    /// A table by its number; tries until it is opened, for it is there.
    pub async fn table(&mut self, number: TableNo) -> Table {
        if let Some(table) = self.tables.get(&number) {
            return table.clone();
        }
        let name = tables::name(number);
        loop {
            match self.client.open_table(&name).await {
                Ok(table) => {
                    self.tables.insert(number, table.clone());
                    return table;
                }
                Err(_) => self.env.sleep(PAUSE).await,
            }
        }
    }

    /// Has a table opened anew when it is used next.
    pub fn forget_table(&mut self, number: TableNo) {
        self.tables.remove(&number);
    }

    /// Takes a table as it has become.
    pub fn replace_table(&mut self, number: TableNo, table: Table) {
        self.tables.insert(number, table);
    }

    /// A number that no other op of the run writes.
    pub fn number(&mut self) -> i64 {
        self.next_tag += 1;
        (self.next_tag * 64) as i64 + i64::from(self.number)
    }

    /// A number that this client wrote `back` numbers ago, as long as it wrote rows only.
    pub fn number_before(&self, back: u32) -> i64 {
        (self.next_tag.saturating_sub(u64::from(back)) * 64) as i64 + i64::from(self.number)
    }

    async fn write(&mut self, number: TableNo, kind: RowOpKind, key: i64, choice: u32) {
        let table = self.table(number).await;
        let heavy = if i64::from(choice) >= HEAVY { HEAVY } else { 0 };
        let value = self.number() + heavy;
        let op = rows::op(kind, key, value, choice, self.workload.plan().data.few);
        self.apply(number, &table, op).await;
    }

    /// Hands a row to the session.
    pub async fn apply(&mut self, number: TableNo, table: &Table, op: RowOp) {
        let tag = self.next_tag;
        self.next_tag += 1;
        let encoded = rows::Encoded::new(&op);
        let kind = op.kind;
        let call = self.invoke(Request::Write { table: number, rows: vec![op] });
        self.waiting.insert(tag, call);
        let cells = encoded.cells_of(table.schema());
        let applied = self.session.apply(table, kind, &cells, tag).await;
        self.collect();
        if self.mode == Flush::Sync || applied.is_err() {
            self.give_up(applied.err());
        }
    }

    /// Sends what the session holds and waits for the answers.
    pub async fn flush(&mut self) {
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
            if matches!(answer, RowAnswer::At { outcome: RowOutcome::Refused, .. }) {
                self.look_again();
            }
            if self.waits && receipt.refused.is_none() {
                let now = self.env.now();
                let found = clocks::check_waited(self.workload.plan(), receipt.timestamp, now);
                found.into_iter().for_each(|finding| self.workload.object(finding));
            }
            self.answer(call, Outcome::Written(vec![answer]));
        }
    }

    /// Others may have altered the tables that this client knows.
    fn look_again(&mut self) {
        if self.workload.plan().alters() {
            self.tables.clear();
        }
    }

    /// Nobody will answer what is waiting now.
    fn give_up(&mut self, error: Option<Error>) {
        if error.is_some() {
            self.look_again();
        }
        let certain = error.as_ref().is_some_and(|error| self.surely_had_no_effect(error));
        let why = error.map_or("no answer".to_string(), |error| error.message);
        for (_, call) in std::mem::take(&mut self.waiting) {
            let outcome = if certain { Outcome::Failed } else { Outcome::Unknown };
            self.answer(call, outcome(why.clone()));
        }
    }

    /// Whether this error says that nothing came of the one write that waits. What is invalid was refused when it came;
    /// only where columns or ranges go may an earlier attempt have been valid.
    fn surely_had_no_effect(&self, error: &Error) -> bool {
        let alone = self.mode == Flush::Sync && self.waiting.len() == 1;
        alone && error.kind == ErrorKind::Invalid && !self.workload.plan().loses_columns()
    }
}

/// What a tablet said of a row.
pub(super) fn answer_of(receipt: &Receipt) -> RowAnswer {
    let outcome = match receipt.refused.as_ref().map(|error| error.kind) {
        None => RowOutcome::Done,
        Some(ErrorKind::AlreadyPresent) => RowOutcome::AlreadyPresent,
        Some(ErrorKind::NotFound) => RowOutcome::NotFound,
        Some(_) => RowOutcome::Refused,
    };
    RowAnswer::At { at: receipt.timestamp, outcome }
}
