//! Joining an existing cluster: the system tablet is copied from the leader of the masters.
//!
//! ```text
//!   no system tablet ──▶ waiting ── StartTabletCopy ──▶ copying ──▶ opened: a learner, promoted to a voter
//!                           ▲                              │
//!                           └──────────── failed ──────────┘
//! ```
//!
//! While it waits, the master replies to the leader that it does not have the tablet. So the copy does not depend on
//! how much of the log the leader still has.

use engine::sync::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use engine::error::{Error, ErrorKind, Result};
use engine::replica::copy::{LocalData, LocalReplica, RejectedSource};
use engine::replica::{consensus_meta_store, tombstone};
use engine::tablet::superblock::{DataState, Superblock};
use tokio::sync::oneshot;

use super::system_tablet::{self, TABLET_ID};
use crate::dirs::ServerDirs;
use crate::hosting::copy::{self, CopyConfig, CopyOrder, CopyTarget};
use crate::hosting::tablet_entry::{EntryState, TabletEntry};
use crate::hosting::tombstones::CopySlot;
use nyala_common::env::Env;
use nyala_common::security::RpcCaller;
use nyala_common::wire::errors::{TabletError, TabletErrorCode};
use nyala_proto::kudu::app_status_pb::ErrorCode;

/// Join state of a master without a system tablet, shared with its ConsensusService.
#[derive(Default)]
pub(super) struct JoinState(Mutex<State>);

#[derive(Default)]
enum State {
    /// The master has a system tablet, or does not know yet if it has one.
    #[default]
    Opening,
    /// The master has none, and creates it if the cluster is new.
    Absent,
    Waiting(oneshot::Sender<CopyOrder>),
    Copying,
}

impl JoinState {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Returns the error for calls to the missing system tablet.
    pub(super) fn absent(&self) -> TabletError {
        match &*self.state() {
            State::Waiting(_) => {
                let message = format!("Tablet not found: {TABLET_ID}: this master waits for a copy of it");
                TabletError::new(TabletErrorCode::TabletNotFound, ErrorCode::NotFound, message)
            }
            State::Copying => not_running("the system tablet is being copied"),
            State::Absent => not_running("the system tablet is not created yet"),
            State::Opening => not_running("the system tablet is being opened"),
        }
    }

    /// Notes that the master has no system tablet, before it asks the others about theirs.
    pub(super) fn set_absent(&self) {
        *self.state() = State::Absent;
    }

    /// Returns the error of a master that has a system tablet, or may soon have one, but cannot tell its configuration.
    /// Another master takes the absence of this error for a statement: there is no system tablet here.
    pub(super) fn check_absent(&self) -> Result<(), TabletError> {
        match &*self.state() {
            State::Absent | State::Waiting(_) => Ok(()),
            State::Copying => Err(not_running("the system tablet is being copied")),
            State::Opening => Err(not_running("the system tablet is being opened")),
        }
    }

    /// Accepts a leader's request to copy; the reply does not wait for the copy. `ALREADY_INPROGRESS` if none is
    /// needed, or one is running.
    pub(super) fn order(&self, order: CopyOrder) -> Result<(), TabletError> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Copying) {
            State::Waiting(order_sender) => {
                // A stopping master ignores the request.
                let _stopping = order_sender.send(order);
                Ok(())
            }
            other => {
                *state = other;
                let error = Error::already_present("this master has a system tablet, or is about to");
                Err(TabletError::of(TabletErrorCode::AlreadyInprogress, &error))
            }
        }
    }

    /// Waits for the next copy request and rejects others meanwhile.
    async fn next(&self) -> Result<CopyOrder> {
        let (sender, order) = oneshot::channel();
        *self.state() = State::Waiting(sender);
        order.await.map_err(|_| Error::aborted("the master is stopping"))
    }

    /// Waits until the system tablet has been copied completely.
    pub(super) async fn join(
        &self,
        env: &Env,
        caller: &RpcCaller,
        dirs: &ServerDirs,
        config: CopyConfig,
    ) -> Result<()> {
        tracing::info!("this master waits to be added by the others, and for a copy of the system tablet");
        let mut rejected = None;
        loop {
            let order = self.next().await?;
            match copy_system(env, caller, dirs, config, &order, &mut rejected).await {
                Ok(()) => {
                    *self.state() = State::Opening;
                    return Ok(());
                }
                Err(error) => {
                    tracing::warn!(%error, source = %order.source, "no copy of the system tablet; waiting")
                }
            }
            let left = env.run(|| recover(dirs)).await?;
            if left.is_some_and(|meta| meta.data_state == DataState::Ready) {
                // The tablet was complete; only the reply of the last step was lost.
                *self.state() = State::Opening;
                return Ok(());
            }
        }
    }
}

fn not_running(message: &str) -> TabletError {
    TabletError::new(TabletErrorCode::TabletNotRunning, ErrorCode::ServiceUnavailable, message)
}

/// Returns the superblock of the system tablet after completing an interrupted change; `None` if there is none. Does
/// disk work.
pub(super) fn recover(dirs: &ServerDirs) -> Result<Option<Superblock>> {
    match tombstone::recover(&*dirs.wal.disk, &*system_tablet::data_dir(dirs)?.disk, TABLET_ID) {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        recovered => recovered,
    }
}

async fn copy_system(
    env: &Env,
    caller: &RpcCaller,
    dirs: &ServerDirs,
    config: CopyConfig,
    order: &CopyOrder,
    rejected: &mut Option<RejectedSource>,
) -> Result<()> {
    let slot = env.run(|| system_tablet_slot(dirs, *rejected)).await?;
    let received = AtomicU64::new(0);
    let target = CopyTarget {
        env,
        caller: caller.clone(),
        me: dirs.uuid,
        wal: dirs.wal.disk.clone(),
        config,
        received: &received,
        space: None,
    };
    let copied = copy::copy(&target, order, &slot, || {}).await;
    *rejected = slot.rejected();
    let manifest = copied?;
    let (bytes, last, source) = (manifest.total_bytes(), manifest.last_op, order.source);
    tracing::info!(bytes, %last, %source, "the system tablet was copied");
    Ok(())
}

/// Returns the slot of the system tablet; `rejected` is what the last one remembers. Does disk work.
fn system_tablet_slot(dirs: &ServerDirs, rejected: Option<RejectedSource>) -> Result<CopySlot> {
    let dir = system_tablet::data_dir(dirs)?.clone();
    let known = recover(dirs)?;
    let local = match &known {
        None => LocalReplica::nothing(dirs.uuid, TABLET_ID),
        Some(meta) => LocalReplica {
            server: dirs.uuid,
            tablet: TABLET_ID,
            has: if meta.data_state == DataState::Ready { LocalData::Replica } else { LocalData::Tombstone },
            last_op: meta.tombstone_last_op,
            at_least: meta.last_op,
            term: consensus_meta_store::load_known(&*dir.disk, TABLET_ID)?.map_or(0, |meta| meta.term),
            rejected,
        },
    };
    let meta = known.unwrap_or_else(|| Superblock::unreadable(TABLET_ID));
    let entry = TabletEntry::new(meta, dir.clone());
    entry.set_state(EntryState::Copying);
    Ok(CopySlot::new(local, dir, Arc::new(entry)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_master_that_knows_it_says_that_it_has_no_system_tablet() {
        let joining = JoinState::default();
        let opening = joining.check_absent().expect_err("it has not looked");
        assert_eq!(opening.code, TabletErrorCode::TabletNotRunning);
        assert_eq!(opening.status.code, ErrorCode::ServiceUnavailable as i32, "the question is asked again");
        joining.set_absent();
        assert_eq!(joining.check_absent(), Ok(()));
        let waiting = joining.next();
        let mut waiting = std::pin::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending(), "nobody has ordered a copy");
        assert_eq!(joining.check_absent(), Ok(()));
        *joining.state() = State::Copying;
        assert!(joining.check_absent().is_err(), "the copy may be complete soon");
    }
}
