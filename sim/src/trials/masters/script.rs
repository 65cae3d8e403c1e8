//! The client script: requests to the leading master, one after another, also right after a change of leadership.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::ids::Uuid;
use engine::sync::Mutex;
use engine::time::Instant;
use nyala_common::env::Env;
use nyala_common::rpc::client::RpcError;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::consensus::{LeaderStepDownMode, LeaderStepDownRequestPb, LeaderStepDownResponsePb};
use nyala_proto::kudu::master::master_error_pb::Code;
use nyala_proto::kudu::master::{
    ConnectToMasterRequestPb, ConnectToMasterResponsePb, MasterErrorPb, TableIdentifierPb,
};
use prost::Message;
use sim_plan::RandomStream;

use super::links::Links;
use super::rights::{Policy, USERS};
use super::settings::{BEGINNING, MASTERS, TRUSTED};
use super::state::State;
use crate::wire::client::{CONSENSUS, MASTER, MasterReply};
use crate::world::ProgramResult;

/// Pause before masters are asked again which of them leads, and the number of such rounds.
const LOOK: Duration = Duration::from_millis(10);
const ROUNDS: usize = 300;
/// Longest pause between two requests, in milliseconds.
const PAUSE_MILLIS: u64 = 300;

/// The answer of masters to a request.
#[derive(Debug)]
pub(super) enum Answer<R> {
    Done {
        master: usize,
        reply: R,
    },
    Refused {
        master: usize,
        error: MasterErrorPb,
    },
    /// It was not executed.
    NotNow,
    /// It may have been executed, or will be.
    Unknown,
}

pub(super) struct Script {
    pub(super) links: Links,
    pub(super) state: Arc<Mutex<State>>,
    pub(super) random: RandomStream,
    pub(super) policy: Option<Policy>,
    /// True if clients prove who they are.
    pub(super) secure: bool,
    /// Number of the next table.
    pub(super) next: u32,
    /// Time of the last request that lets another master lead.
    pub(super) transferred: Instant,
    /// Lists of masters in a row that had two leaders.
    pub(super) doubled: u32,
    leader: Option<usize>,
}

impl Script {
    fn new(env: Env, state: Arc<Mutex<State>>, random: RandomStream, secure: bool) -> Script {
        let policy = state.lock().policy.clone();
        Script {
            links: Links::new(env),
            state,
            random,
            policy,
            secure,
            next: 0,
            transferred: Instant::default(),
            doubled: 0,
            leader: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Create,
    /// Another master is to lead, and a table is created at once.
    CreateAfterTransfer,
    Rename,
    Alter,
    Drop,
    Locate,
    ListServers,
    ListTables,
    Maintenance,
    ReadSchema,
    /// Reads by users who may not see all tables.
    ListAsUser,
    ReadStatistics,
    LocateTablets,
    ListMasters,
}

/// Runs the script; the error is what is wrong.
pub(super) async fn run(
    env: Env,
    state: Arc<Mutex<State>>,
    random: RandomStream,
    secure: bool,
) -> ProgramResult {
    env.sleep(BEGINNING).await;
    let played = Script::new(env, state.clone(), random, secure).play().await;
    let mut state = state.lock();
    if let Err(what) = played {
        state.report(what);
    }
    state.ended = true;
    Ok(())
}

impl Script {
    async fn play(&mut self) -> Result<(), String> {
        while !self.state.lock().quiet {
            self.step().await?;
            let pause = self.random.below(PAUSE_MILLIS);
            self.links.env.sleep(Duration::from_millis(pause)).await;
        }
        self.end().await
    }

    async fn step(&mut self) -> Result<(), String> {
        let step = self.random.weighted(&[
            (Step::Create, 8),
            (Step::CreateAfterTransfer, 3),
            (Step::Rename, 3),
            (Step::Alter, 3),
            (Step::Drop, 3),
            (Step::Locate, 5),
            (Step::ListServers, 4),
            (Step::ListTables, 4),
            (Step::Maintenance, 2),
            (Step::ReadSchema, 4),
            (Step::ListAsUser, 2),
            (Step::ReadStatistics, 1),
            (Step::LocateTablets, 1),
            (Step::ListMasters, 1),
        ]);
        match step {
            Step::Create => self.create().await,
            Step::CreateAfterTransfer => {
                self.transfer().await;
                self.create().await
            }
            Step::Rename => self.rename().await,
            Step::Alter => self.alter().await,
            Step::Drop => self.drop_table().await,
            Step::Locate => self.locate_any().await,
            Step::ListServers => self.list_servers().await,
            Step::ListTables => self.list_tables().await,
            Step::Maintenance => self.change_maintenance().await,
            Step::ReadSchema => self.read_schema().await,
            Step::ListAsUser => self.list_as_user().await,
            Step::ReadStatistics => self.read_statistics().await,
            Step::LocateTablets => self.locate_tablets().await,
            Step::ListMasters => self.list_masters().await,
        }
    }

    /// Returns the user of the next request.
    pub(super) fn draw_user(&mut self) -> &'static str {
        if self.policy.is_none() { TRUSTED } else { self.random.pick(&USERS) }
    }

    /// Returns the leading master, if one comes to lead soon.
    pub(super) async fn leader(&mut self) -> Option<usize> {
        for _ in 0..ROUNDS {
            if self.leader.is_some() {
                return self.leader;
            }
            for master in 0..MASTERS {
                let request = ConnectToMasterRequestPb {};
                let asked: Result<ConnectToMasterResponsePb, RpcError> =
                    self.links.call(master, "ConnectToMaster", &request).await;
                if asked.is_ok_and(|reply| reply.error.is_none() && reply.role() == Role::Leader) {
                    self.leader = Some(master);
                }
            }
            self.links.env.sleep(LOOK).await;
        }
        None
    }

    /// Makes a request to the leading master.
    pub(super) async fn ask<Q: Message, R: MasterReply>(
        &mut self,
        user: &str,
        method: &str,
        request: &Q,
    ) -> Answer<R> {
        let Some(master) = self.leader().await else { return Answer::NotNow };
        let reply: Result<R, RpcError> = self.links.call_as(user, master, (MASTER, method), request).await;
        let answer = match reply {
            Ok(reply) => match reply.error().cloned() {
                None => Answer::Done { master, reply },
                Some(error) if error.code() == Code::NotTheLeader => Answer::NotNow,
                Some(error) if error.code() == Code::CatalogManagerNotInitialized => Answer::Unknown,
                Some(error) => Answer::Refused { master, error },
            },
            Err(RpcError::Network { sent: false, .. } | RpcError::TimedOut { sent: false, .. }) => {
                Answer::NotNow
            }
            Err(_) => Answer::Unknown,
        };
        if matches!(answer, Answer::NotNow | Answer::Unknown) {
            self.leader = None;
        }
        answer
    }

    /// Lets another master lead.
    pub(super) async fn transfer(&mut self) {
        let Some(master) = self.leader().await else { return };
        let mode = self.random.pick(&[LeaderStepDownMode::Graceful, LeaderStepDownMode::Abrupt]);
        self.step_down(master, mode, None).await;
    }

    /// Lets a master lead, if its id is known.
    pub(super) async fn transfer_to(&mut self, next: usize) {
        let Some(master) = self.leader().await.filter(|master| *master != next) else { return };
        let id = self.state.lock().masters[next].id.clone();
        self.step_down(master, LeaderStepDownMode::Graceful, id).await;
    }

    async fn step_down(&mut self, master: usize, mode: LeaderStepDownMode, next: Option<Bytes>) {
        let request = LeaderStepDownRequestPb {
            dest_uuid: None,
            tablet_id: Bytes::from(Uuid::ZERO.to_string()),
            mode: Some(mode as i32),
            new_leader_uuid: next,
        };
        let reply: Result<LeaderStepDownResponsePb, RpcError> =
            self.links.call_as(TRUSTED, master, (CONSENSUS, "LeaderStepDown"), &request).await;
        let error = reply.map(|reply| reply.error);
        self.note(format!("master {master} is to step down, {mode:?}: {error:?}"));
        (self.leader, self.transferred) = (None, self.links.now());
    }

    pub(super) fn note(&self, what: String) {
        let at = self.links.now();
        self.state.lock().note(format!("{:.3} s: {what}", at.0 as f64 / 1e9));
    }
}

/// Returns the identifier of a table.
pub(super) fn by_id(id: &str) -> TableIdentifierPb {
    TableIdentifierPb { table_id: Some(Bytes::copy_from_slice(id.as_bytes())), table_name: None }
}
