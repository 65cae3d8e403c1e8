//! Backups by clients of their own, composed as the command line does. Their store is the disk of the client's host.
//!
//! Such a client is a process that may be killed: each run connects by itself, and the number of the next op outlives
//! the process. A killed run returns nothing, and may have completed its backup nevertheless.

use engine::error::Result;
use nyala_backup::create::{self, BackupKind, Created, create, take_snapshot};
use nyala_backup::hold::HistoryHold;
use nyala_backup::store::BackupStore;
use nyala_client::Client;
use nyala_common::env::Env;
use sim_plan::ClientOp;
use sim_plan::client_ops::{BackupChoice, ClientProgram};

use super::backup_log::BackupRun;
use super::model_client::tablets_of;
use super::{PAUSE, Workload, nanos, tables};
use crate::history::{CallOutcome, ClientNo, ClientRequest, TableNo};

/// Directory of the store on a client's host, to which faults of the disk `data` apply.
pub(super) const STORE: &str = "data";
/// Tablets that are read at the same time.
const PARALLEL: usize = 4;

impl Workload {
    /// Executes the ops of a client that backs up tables, from the first one that no earlier process of it has begun.
    pub async fn run_backups(&self, env: &Env, index: usize) {
        let program = &self.plan().clients[index];
        let number = ClientNo::from(program.setup.number);
        while let Some(op) = self.next_op(program) {
            match op {
                ClientOp::Wait { span } => env.sleep(*span).await,
                ClientOp::Backup { table, kind } => {
                    self.back_up(env, number, &tables::name(TableNo::from(*table)), *kind).await;
                }
                ClientOp::TableBackup { table, kind } => {
                    let Some((id, name)) = self.model_table(*table) else { continue };
                    self.learn_bounds(env, number, &id).await;
                    self.back_up(env, number, &name, *kind).await;
                    self.learn_bounds(env, number, &id).await;
                }
                _ => {}
            }
            env.sleep(program.setup.pace).await;
        }
        self.state().backups.ended.insert(number);
    }

    /// Waits until a client that backs up tables has ended.
    pub async fn wait_for_backups(&self, env: &Env, number: ClientNo) {
        while !self.state().backups.ended.contains(&number) {
            env.sleep(PAUSE).await;
        }
    }

    fn next_op<'a>(&self, program: &'a ClientProgram) -> Option<&'a ClientOp> {
        let mut state = self.state();
        let begun = state.backups.begun.entry(ClientNo::from(program.setup.number)).or_default();
        *begun += 1;
        program.ops.get(*begun - 1)
    }

    /// Returns the id and the name of a model table; `None` if it is dropped just now.
    fn model_table(&self, table: u8) -> Option<(String, String)> {
        let state = self.state();
        let at = state.model.tables.get(usize::from(table)).filter(|table| !table.dropped)?.current;
        let found = &state.model.incarnations[at];
        Some((found.id.clone(), found.versions[found.newest()].name.clone()))
    }

    /// Remembers the tablets that a model table has now, as far as masters answer.
    async fn learn_bounds(&self, env: &Env, number: ClientNo, id: &str) {
        let tablets = tablets_of(self, env, number, id).await;
        self.state().backups.bounds.extend(tablets);
    }

    async fn back_up(&self, env: &Env, number: ClientNo, name: &str, kind: BackupChoice) {
        let client = self.connect_as(env, number).await;
        let invoked = nanos(env);
        let request = ClientRequest::Other(format!("backup of table {name}, {}", kind.word()));
        let call = self.history().invoke(number, invoked, 0, request);
        let run = {
            let mut state = self.state();
            state.backups.runs.push(BackupRun { client: number, invoked, returned: None, reported: None });
            state.backups.runs.len() - 1
        };
        let created = create_backup(env, &client, name, kind_of(kind)).await;
        let outcome = match &created {
            Ok(_) => CallOutcome::Done,
            Err(error) => {
                tracing::info!(%error, "no backup of table {name}");
                CallOutcome::Failed(error.into())
            }
        };
        self.history().answer(call, nanos(env), outcome);
        self.count(|counts| {
            counts.answered += u64::from(created.is_ok());
            counts.unanswered += u64::from(created.is_err());
        });
        let mut state = self.state();
        let run = &mut state.backups.runs[run];
        run.returned = Some(nanos(env));
        run.reported = created.as_ref().ok().map(|created| {
            let manifest = &created.manifest;
            (manifest.table_id.clone(), manifest.to_ms)
        });
        let done = match &created {
            Ok(created) if created.manifest.is_full() => "backup full",
            Ok(_) => "backup incremental",
            Err(_) => "backup failed",
        };
        *state.model.steps.entry(done.to_string()).or_default() += 1;
    }
}

fn kind_of(kind: BackupChoice) -> BackupKind {
    match kind {
        BackupChoice::Any => BackupKind::Any,
        BackupChoice::Full => BackupKind::Full,
        BackupChoice::Incremental => BackupKind::Incremental,
    }
}

/// Backs up one table as `nyala backup create` does.
async fn create_backup(env: &Env, client: &Client, name: &str, kind: BackupKind) -> Result<Created> {
    let store = BackupStore::create(env, STORE)?;
    let listing = store.list()?;
    let snapshot = take_snapshot(client, &[name.to_string()]).await;
    let held = create::oldest_reads(&snapshot, &listing, kind);
    let (hold, _not_held) = HistoryHold::acquire(env, held).await;
    let (_, table) = &snapshot.tables[0];
    let created = match table {
        Ok(table) => create(&store, table, snapshot.to_ms, &listing, kind, PARALLEL).await,
        Err(error) => Err(error.clone()),
    };
    hold.release().await;
    created
}
