//! Joining masters that are there already: the system tablet comes as a copy from the one that leads.
//!
//! ```text
//!   no system tablet ──▶ waiting ── StartTabletCopy ──▶ copying ──▶ opened: it listens, is promoted, votes
//!                           ▲                              │
//!                           └──────────── failed ──────────┘
//! ```
//!
//! A master that waits answers the leader that it has no such tablet. It does not matter how much of the log the leader
//! still has.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};

use engine::error::{Error, ErrorKind, Result};
use engine::ids::OpId;
use engine::replica::copy::{Has, Local};
use engine::replica::{cmeta, tombstone};
use engine::tablet::meta::{DataState, TabletMeta};
use tokio::sync::oneshot;

use super::system::TABLET_ID;
use crate::dirs::ServerDirs;
use crate::env::Env;
use crate::proto::kudu::app_status_pb::ErrorCode;
use crate::tserver::copy::{self, CopyConfig, Order, Target};
use crate::tserver::entry::{EntryState, TabletEntry};
use crate::tserver::tombstones::Vacant;
use crate::wire::status::{TabletError, TabletErrorCode};

/// What a master without a system tablet does about it; shared with its ConsensusService.
#[derive(Default)]
pub(super) struct Joining(Mutex<State>);

#[derive(Default)]
enum State {
    /// It has one, or will make it.
    #[default]
    No,
    Waiting(oneshot::Sender<Order>),
    Copying,
}

impl Joining {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panics while holding it")
    }

    /// What whoever asks for the system tablet is told.
    pub(super) fn absent(&self) -> TabletError {
        match &*self.state() {
            State::Waiting(_) => {
                let what = format!("Tablet not found: {TABLET_ID}: this master waits for a copy of it");
                TabletError::new(TabletErrorCode::TabletNotFound, ErrorCode::NotFound, what)
            }
            State::Copying => not_running("the system tablet is being copied"),
            State::No => not_running("the system tablet is being opened"),
        }
    }

    /// Takes a leader's order to copy; the answer does not wait for the copy. `ALREADY_INPROGRESS` if none is needed,
    /// or one is under way.
    pub(super) fn order(&self, order: Order) -> Result<(), TabletError> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Copying) {
            State::Waiting(waiting) => {
                // A master that is stopping has no use for it.
                let _stopping = waiting.send(order);
                Ok(())
            }
            other => {
                *state = other;
                let error = Error::already_present("this master has a system tablet, or is about to");
                Err(TabletError::of(TabletErrorCode::AlreadyInprogress, &error))
            }
        }
    }

    /// The next order. The master cannot be told anything else meanwhile.
    async fn next(&self) -> Result<Order> {
        let (sender, order) = oneshot::channel();
        *self.state() = State::Waiting(sender);
        order.await.map_err(|_| Error::aborted("the master is stopping"))
    }

    /// Returns when the system tablet is here, whole.
    pub(super) async fn join(&self, env: &Env, dirs: &ServerDirs, config: CopyConfig) -> Result<()> {
        tracing::info!("this master waits to be added by the others, and for a copy of the system tablet");
        loop {
            let order = self.next().await?;
            match copy_system(env, dirs, config, &order).await {
                Ok(()) => {
                    *self.state() = State::No;
                    return Ok(());
                }
                Err(error) => {
                    tracing::warn!(%error, source = %order.source, "no copy of the system tablet; waiting")
                }
            }
            let left = env.run(|| recover(dirs)).await?;
            if left.is_some_and(|meta| meta.data_state == DataState::Ready) {
                // Only the last step was not heard of.
                *self.state() = State::No;
                return Ok(());
            }
        }
    }
}

fn not_running(what: &str) -> TabletError {
    TabletError::new(TabletErrorCode::TabletNotRunning, ErrorCode::ServiceUnavailable, what)
}

/// The superblock of the system tablet, after completing what a crash interrupted; `None` if there is none. Does disk
/// work.
pub(super) fn recover(dirs: &ServerDirs) -> Result<Option<TabletMeta>> {
    match tombstone::recover(&*dirs.wal.disk, &*dirs.data[0].disk, TABLET_ID) {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        recovered => recovered,
    }
}

async fn copy_system(env: &Env, dirs: &ServerDirs, config: CopyConfig, order: &Order) -> Result<()> {
    let vacant = env.run(|| vacant(dirs)).await?;
    let received = AtomicU64::new(0);
    let target = Target { env, me: dirs.uuid, wal: dirs.wal.disk.clone(), config, received: &received };
    let manifest = copy::copy(&target, order, &vacant).await?;
    let (bytes, last, source) = (manifest.total_bytes(), manifest.last_op, order.source);
    tracing::info!(bytes, %last, %source, "the system tablet was copied");
    Ok(())
}

/// The place of the system tablet. Does disk work.
fn vacant(dirs: &ServerDirs) -> Result<Vacant> {
    let dir = dirs.data[0].clone();
    let known = recover(dirs)?;
    let local = match &known {
        None => Local { tablet: TABLET_ID, has: Has::Nothing, last_op: None, at_least: OpId::MIN, term: 0 },
        Some(meta) => Local {
            tablet: TABLET_ID,
            has: if meta.data_state == DataState::Ready { Has::Replica } else { Has::Tombstone },
            last_op: meta.tombstone_last_op,
            at_least: meta.last_op,
            term: cmeta::load_known(&*dir.disk, TABLET_ID)?.map_or(0, |meta| meta.term),
        },
    };
    let meta = known.unwrap_or_else(|| TabletMeta::unreadable(TABLET_ID));
    let entry = TabletEntry::new(meta, dir.clone());
    entry.set_state(EntryState::Copying);
    Ok(Vacant::new(local, dir, Arc::new(entry)))
}
