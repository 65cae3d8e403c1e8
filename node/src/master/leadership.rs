//! Leadership of the masters: the role of this master, and the catalog loop while it leads.
//!
//! ```text
//!  open ──▶ following ──elected──▶ loading: the log is applied, the catalog read ──▶ leading: the catalog loop runs
//!                ▲                    │ another term                                     │ another term
//!                └────────────────────┴──────────────────────────────────────────────────┘
//! ```
//!
//! Invariant: a leadership belongs to one term, and its catalog loop writes to the system tablet only in that term. So
//! a master that lost and regained leadership without noticing cannot store decisions based on older rows.

use engine::sync::{Mutex, MutexGuard};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use engine::catalog::Catalog;
use engine::error::{Error, ErrorKind, Result};
use engine::ids::Term;
use engine::raft::{RaftStatus, Role};
use engine::replica::Op;
use engine::time::Instant;
use tokio::sync::Notify;

use super::catalog_loop::{self, CatalogGauges, CatalogHandle};
use super::config::MasterConfig;
use super::history_holds::HistoryHolds;
use super::known_tservers::KnownTservers;
use super::secrets::MasterSecrets;
use super::system_tablet::{self, SystemTablet};
use super::tserver_calls::TserverCaller;
use crate::hosting::replica::ReplicaHandle;
use crate::server::{ServerHealth, ServerStatus};
use nyala_common::env::Env;
use nyala_common::security::RpcCaller;

/// Role of this master.
#[derive(Clone, Default)]
enum MasterRole {
    /// The system tablet is not open yet.
    #[default]
    Starting,
    Following,
    /// Elected, and the catalog is not loaded yet.
    Loading,
    Leading(CatalogHandle),
    Stopped,
}

/// Role of this master, shared by its services and its leadership task.
#[derive(Default)]
pub struct LeadershipHandle {
    state: Mutex<MasterRole>,
    failure: Mutex<Option<Error>>,
    changed: Notify,
}

/// Reason that this master has no catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatalogUnavailable {
    /// The server has just started, or is stopping.
    NotOpen,
    /// Another master leads, or none.
    NotLeader,
    /// This master leads and is loading the catalog.
    Loading,
}

impl LeadershipHandle {
    /// Returns the catalog if this master leads and has loaded it.
    pub fn catalog(&self) -> Result<CatalogHandle, CatalogUnavailable> {
        match &*self.state() {
            MasterRole::Leading(catalog) => Ok(catalog.clone()),
            MasterRole::Loading => Err(CatalogUnavailable::Loading),
            MasterRole::Following => Err(CatalogUnavailable::NotLeader),
            MasterRole::Starting | MasterRole::Stopped => Err(CatalogUnavailable::NotOpen),
        }
    }

    /// Waits until this master has the catalog, or never will.
    pub async fn until_leading(&self) {
        self.until(|state| matches!(state, MasterRole::Leading(_) | MasterRole::Stopped)).await;
    }

    /// Waits until the master has stopped or failed.
    pub async fn until_stopped(&self) {
        self.until(|state| matches!(state, MasterRole::Stopped)).await;
    }

    async fn until(&self, met: impl Fn(&MasterRole) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if met(&self.state()) {
                return;
            }
            changed.await;
        }
    }

    fn set(&self, state: MasterRole) {
        *self.state() = state;
        self.changed.notify_waiters();
    }

    /// Marks the master as stopped: it never has a catalog again.
    pub fn stop(&self) {
        self.set(MasterRole::Stopped);
    }

    /// Marks the master as failed.
    pub fn fail(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
        self.stop();
    }

    /// Returns the error that failed the master, if any.
    pub fn failure(&self) -> Option<Error> {
        self.failure.lock().clone()
    }

    fn state(&self) -> MutexGuard<'_, MasterRole> {
        self.state.lock()
    }
}

/// The leadership task with all that a leadership needs.
pub(super) struct LeadershipTask {
    pub(super) env: Env,
    pub(super) config: MasterConfig,
    pub(super) replica: ReplicaHandle,
    pub(super) leadership: Arc<LeadershipHandle>,
    pub(super) status: Arc<ServerStatus>,
    pub(super) known_tservers: Arc<KnownTservers>,
    pub(super) counts: Arc<CatalogGauges>,
    pub(super) secrets: Arc<MasterSecrets>,
    pub(super) history_holds: Arc<HistoryHolds>,
    /// Name and credentials of calls to tablet servers.
    pub(super) caller: RpcCaller,
}

/// Longest wait for a status change before the status is read again.
const LOOK: Duration = Duration::from_secs(3600);

impl LeadershipTask {
    /// Leads whenever this master is elected, until the replica stops or fails.
    pub(super) async fn run(self) {
        self.leadership.set(MasterRole::Following);
        while !self.replica.is_stopped() {
            let leads = |status: &RaftStatus| status.role == Role::Leader;
            let status = self.replica.wait_status(self.distant_deadline(), leads).await;
            if leads(&status) {
                self.run_as_leader(status.term).await;
                self.counts.clear();
                if !self.replica.is_stopped() {
                    self.leadership.set(MasterRole::Following);
                }
            }
        }
        match self.replica.failure() {
            Some(error) => {
                self.status.set_health(ServerHealth::Failed("the system tablet failed".to_string()));
                self.leadership.fail(error);
            }
            None => self.leadership.stop(),
        }
    }

    fn distant_deadline(&self) -> Instant {
        self.env.now().mono.after(LOOK)
    }

    /// Leads in `term`, until that term ends.
    async fn run_as_leader(&self, term: Term) {
        self.leadership.set(MasterRole::Loading);
        let catalog = match self.while_leading(term, self.load(term)).await {
            Some(Ok(catalog)) => catalog,
            Some(Err(error)) if matches!(error.kind, ErrorKind::NotLeader | ErrorKind::Aborted) => return,
            Some(Err(error)) if matches!(error.kind, ErrorKind::NotReady | ErrorKind::Throttled) => {
                // A leadership transfer is in progress. If it fails, this master continues to lead.
                tracing::debug!(%error, "the catalog cannot be loaded yet");
                self.env.sleep(self.config.raft.heartbeat_interval).await;
                return;
            }
            Some(Err(error)) => {
                if error.kind == ErrorKind::Unsupported {
                    self.status.formats.refuse(error.clone());
                }
                // Another master would read the same rows, so this is final.
                self.replica.fail(&error.context("the catalog cannot be loaded"));
                return;
            }
            None => return,
        };
        let requests = TserverCaller::new(&self.env, self.config.tserver_rpc_timeout, self.caller.clone());
        let system = SystemTablet::new(self.replica.clone(), term);
        let handle = catalog_loop::start(&self.env, catalog, system, requests, self.counts.clone());
        // Order: the keys are usable before a client can ask for a token.
        match self.while_leading(term, self.secrets.refresh(&handle)).await {
            Some(Ok(())) => {
                tracing::info!(?term, "this master leads");
                self.history_holds.begin_leadership(self.env.now().mono);
                self.leadership.set(MasterRole::Leading(handle.clone()));
                self.while_leading(term, self.lead(&handle)).await;
                tracing::info!(?term, "this master leads no longer");
            }
            Some(Err(error)) => {
                tracing::warn!(%error, "the cluster's keys are not usable; trying again");
                self.env.sleep(self.config.raft.heartbeat_interval).await;
            }
            None => {}
        }
        self.secrets.end_leadership();
        self.history_holds.end_leadership();
        handle.end_leadership();
    }

    /// Leads until the catalog's loop ends.
    async fn lead(&self, catalog: &CatalogHandle) {
        tokio::select! {
            biased;
            () = catalog.ended() => {}
            () = self.secrets.run_as_leader(catalog) => {}
        }
    }

    /// Runs `work`; `None` if `term` ends first.
    async fn while_leading<T>(&self, term: Term, work: impl Future<Output = T>) -> Option<T> {
        let over = async {
            let ended = |status: &RaftStatus| status.role != Role::Leader || status.term != term;
            while !self.replica.is_stopped()
                && !ended(&*self.replica.wait_status(self.distant_deadline(), ended).await)
            {}
        };
        tokio::select! { biased; done = work => Some(done), () = over => None }
    }

    /// Loads the catalog as every earlier term left it: an operation of this term has been applied, so all earlier ones
    /// have.
    async fn load(&self, term: Term) -> Result<Catalog> {
        self.replica.propose_in(term, Op::NoOp, None).await?;
        let tablet = self.replica.tablet().clone();
        let rows = self.env.run(|| system_tablet::read_rows(&tablet)).await?;
        let seed = [self.env.rng.next_u64(), self.env.rng.next_u64()];
        let mut catalog = Catalog::load(self.config.catalog.clone(), seed, self.env.now(), rows)?;
        for server in self.known_tservers.all() {
            catalog.import_contact(server);
        }
        Ok(catalog)
    }
}

/// Returns the error for calls that need a catalog.
pub(super) fn absent(why: CatalogUnavailable) -> Error {
    match why {
        CatalogUnavailable::NotOpen => Error::not_ready("the catalog is still being loaded"),
        CatalogUnavailable::NotLeader => Error::not_leader("Not the leader"),
        CatalogUnavailable::Loading => Error::not_ready("this master was just elected and loads the catalog"),
    }
}
