//! Who leads the masters, and what that means here.
//!
//! ```text
//!  open ──▶ following ──elected──▶ loading: the log is applied, the catalog read ──▶ leading: the catalog's loop
//!                ▲                    │ another term                                     │ another term
//!                └────────────────────┴──────────────────────────────────────────────────┘
//! ```
//!
//! A reign belongs to one term. Its loop may write to the system tablet only in that term, so a master that was
//! deposed and elected again, unnoticed, cannot store what it decided on older rows.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use engine::catalog::Catalog;
use engine::error::{Error, ErrorKind, Result};
use engine::ids::Term;
use engine::raft::{Role, Status};
use engine::replica::Op;
use engine::time::Instant;
use tokio::sync::Notify;

use super::acquaintances::Acquaintances;
use super::catalog::{self, CatalogCounts, CatalogHandle};
use super::config::MasterConfig;
use super::requests::Requests;
use super::system::{self, SystemTablet};
use crate::env::Env;
use crate::server::{Health, ServerStatus};
use crate::tserver::replica::ReplicaHandle;

/// What this master is to the cluster just now.
#[derive(Clone, Default)]
enum State {
    /// The system tablet is not open yet.
    #[default]
    Starting,
    Following,
    /// Elected, but without a catalog yet.
    Loading,
    Leading(CatalogHandle),
    Stopped,
}

/// What this master is to the cluster; shared by its services and its reign.
#[derive(Default)]
pub struct Standing {
    state: Mutex<State>,
    failure: Mutex<Option<Error>>,
    changed: Notify,
}

/// Why there is no catalog here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// The server has only just started, or is stopping.
    NotOpen,
    /// Another master leads, or nobody.
    NotLeader,
    /// This master leads and is about to have it.
    Loading,
}

impl Standing {
    /// The catalog, if this master leads and has it.
    pub fn catalog(&self) -> Result<CatalogHandle, Absent> {
        match &*self.state() {
            State::Leading(catalog) => Ok(catalog.clone()),
            State::Loading => Err(Absent::Loading),
            State::Following => Err(Absent::NotLeader),
            State::Starting | State::Stopped => Err(Absent::NotOpen),
        }
    }

    /// Waits until this master has the catalog, or never will.
    pub async fn until_leading(&self) {
        self.until(|state| matches!(state, State::Leading(_) | State::Stopped)).await;
    }

    /// Waits until the master has stopped, or had to give up.
    pub async fn until_stopped(&self) {
        self.until(|state| matches!(state, State::Stopped)).await;
    }

    async fn until(&self, met: impl Fn(&State) -> bool) {
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

    fn set(&self, state: State) {
        *self.state() = state;
        self.changed.notify_waiters();
    }

    /// No catalog will ever be here again.
    pub fn stop(&self) {
        self.set(State::Stopped);
    }

    /// The master had to give up.
    pub fn fail(&self, error: Error) {
        self.failure.lock().expect("nobody panics while holding it").get_or_insert(error);
        self.stop();
    }

    /// Why it had to.
    pub fn failure(&self) -> Option<Error> {
        self.failure.lock().expect("nobody panics while holding it").clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while holding it")
    }
}

/// Everything a reign needs.
pub(super) struct Reign {
    pub(super) env: Env,
    pub(super) config: MasterConfig,
    pub(super) replica: ReplicaHandle,
    pub(super) standing: Arc<Standing>,
    pub(super) status: Arc<ServerStatus>,
    pub(super) acquaintances: Arc<Acquaintances>,
    pub(super) counts: Arc<CatalogCounts>,
}

/// How long to wait for news before looking again anyway.
const LOOK: Duration = Duration::from_secs(3600);

impl Reign {
    /// Leads whenever the system tablet is led from here, until the replica stops or fails.
    pub(super) async fn run(self) {
        self.standing.set(State::Following);
        while !self.replica.is_stopped() {
            let leads = |status: &Status| status.role == Role::Leader;
            let status = self.replica.wait_status(self.far(), leads).await;
            if leads(&status) {
                self.lead(status.term).await;
                self.counts.clear();
                if !self.replica.is_stopped() {
                    self.standing.set(State::Following);
                }
            }
        }
        match self.replica.failure() {
            Some(error) => {
                self.status.set_health(Health::Failed("the system tablet failed".to_string()));
                self.standing.fail(error);
            }
            None => self.standing.stop(),
        }
    }

    fn far(&self) -> Instant {
        self.env.now().mono.after(LOOK)
    }

    /// Leads in `term`, until that ends.
    async fn lead(&self, term: Term) {
        self.standing.set(State::Loading);
        let catalog = match self.while_leading(term, self.load(term)).await {
            Some(Ok(catalog)) => catalog,
            Some(Err(error)) if matches!(error.kind, ErrorKind::NotLeader | ErrorKind::Aborted) => return,
            Some(Err(error)) if matches!(error.kind, ErrorKind::NotReady | ErrorKind::Throttled) => {
                // It is handing over. Should nobody take over, it leads on.
                tracing::debug!(%error, "the catalog cannot be loaded yet");
                self.env.sleep(self.config.raft.heartbeat_interval).await;
                return;
            }
            Some(Err(error)) => {
                // Another master would read the same rows.
                self.replica.fail(&error.context("the catalog cannot be loaded"));
                return;
            }
            None => return,
        };
        tracing::info!(?term, "this master leads");
        let requests = Requests::new(&self.env, self.config.tserver_rpc_timeout);
        let system = SystemTablet::new(self.replica.clone(), term);
        let handle = catalog::start(&self.env, catalog, system, requests, self.counts.clone());
        self.standing.set(State::Leading(handle.clone()));
        self.while_leading(term, handle.ended()).await;
        handle.depose();
        tracing::info!(?term, "this master leads no longer");
    }

    /// `work`'s result, or `None` when `term` ends first.
    async fn while_leading<T>(&self, term: Term, work: impl Future<Output = T>) -> Option<T> {
        let over = async {
            let ended = |status: &Status| status.role != Role::Leader || status.term != term;
            while !self.replica.is_stopped() && !ended(&*self.replica.wait_status(self.far(), ended).await) {}
        };
        tokio::select! { biased; done = work => Some(done), () = over => None }
    }

    /// The catalog as every earlier term left it: an operation of this term has been applied, so all theirs have.
    async fn load(&self, term: Term) -> Result<Catalog> {
        self.replica.propose_in(term, Op::NoOp, None).await?;
        let tablet = self.replica.tablet().clone();
        let rows = self.env.run(|| system::read_rows(&tablet)).await?;
        let seed = [self.env.rng.next_u64(), self.env.rng.next_u64()];
        let mut catalog = Catalog::load(self.config.catalog.clone(), seed, self.env.now(), rows)?;
        for server in self.acquaintances.all() {
            catalog.acquaint(server);
        }
        Ok(catalog)
    }
}

/// The error that calls get which need a catalog.
pub(super) fn absent(why: Absent) -> Error {
    match why {
        Absent::NotOpen => Error::not_ready("the catalog is still being loaded"),
        Absent::NotLeader => Error::not_leader("Not the leader"),
        Absent::Loading => Error::not_ready("this master was just elected and loads the catalog"),
    }
}
