//! Tablet copies onto this server, from the request to a running replica, or back to the previous state.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::error::{Error, ErrorKind};
use engine::note::Note;
use tokio::sync::oneshot;

use super::server::{TabletServer, USER};
use crate::hosting::copy::{CopyOrder, CopyTarget, copy};
use crate::hosting::tombstones::CopySlot;
use nyala_common::wire::errors::{TabletError, TabletErrorCode};
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::consensus::StartTabletCopyRequestPb;

/// Sender of the outcome of the begin of a session; `None` once it is sent.
type SessionSender = Option<oneshot::Sender<Result<(), Error>>>;

/// Starts to copy a tablet; the reply does not wait for the end of the copy. The reply to an operator waits until the
/// source has opened a session, and has the error if it does not: only leaders repeat a request by themselves. The copy
/// continues without the caller.
///
/// Errors:
/// - `THROTTLED` if too many copies run, space is short, or a copy of the tablet failed lately.
/// - `ALREADY_INPROGRESS` if another task works on the tablet.
/// - `TABLET_ALREADY_EXISTS` if it would replace a replica in use.
/// - `INVALID_CONFIG` for a leader of an old term.
/// - `TABLET_NOT_FOUND` if a leader asks for a tablet that was permanently deleted here.
/// - `UNKNOWN_ERROR` with the source's status if an operator's copy cannot begin.
pub(super) async fn start(
    server: Arc<TabletServer>,
    request: StartTabletCopyRequestPb,
) -> Result<(), TabletError> {
    let order = CopyOrder::of(&request)?;
    let (tablet, leader) = (order.tablet, order.leader().map(|leader| leader.id));
    let (begun, session) = oneshot::channel();
    let admitted = admit(server.clone(), order, begun).await;
    let Some(leader) = leader else {
        admitted?;
        let opened = session.await.unwrap_or_else(|_| Err(Error::aborted("the server has stopped the copy")));
        return opened.map_err(|error| error.context("unable to begin tablet copy session").into());
    };
    if admitted.is_err() {
        server.env.observer.note(tablet, &Note::CopyRefused { leader });
    }
    admitted
}

/// Reserves the tablet's slot and starts the copy, which reports to `begun`.
async fn admit(
    server: Arc<TabletServer>,
    order: CopyOrder,
    begun: oneshot::Sender<Result<(), Error>>,
) -> Result<(), TabletError> {
    if order.source == server.uuid() {
        return Err(Error::invalid("a tablet cannot be copied from the server that it is copied to").into());
    }
    if server.copies.count() >= server.config.copy.copies_max {
        return Err(too_many(&server));
    }
    server.tablets.check_space()?;
    if order.term.is_some() {
        // An operator may override a deletion and a pause, a leader cannot.
        server.tablets.check_not_deleted(order.tablet)?;
        if let Some(why) = server.copies.retries().refuse(order.tablet, server.env.now().mono) {
            return Err(TabletError::of(TabletErrorCode::Throttled, &Error::throttled(why)));
        }
    }
    let slot = server.tablets.reserve_slot(order.tablet).await?;
    if let Some(Err(error)) = order.term.map(|term| slot.local.admit_term(term)) {
        let over = error.kind == ErrorKind::NotLeader;
        server.env.observer.mark_if(over, "tablet copy: rejected, stale term");
        server.tablets.abort_copy(slot).await;
        return Err(TabletError::new(
            TabletErrorCode::InvalidConfig,
            ErrorCode::InvalidArgument,
            error.message,
        ));
    }
    if let Some(slot) = spawn(&server, order, slot, Some(begun)) {
        server.tablets.abort_copy(slot).await;
        return Err(too_many(&server));
    }
    Ok(())
}

/// Starts the task of a copy. Returns the slot if other copies have begun while it was reserved, as many as may run.
fn spawn(
    server: &Arc<TabletServer>,
    order: CopyOrder,
    slot: CopySlot,
    begun: SessionSender,
) -> Option<CopySlot> {
    let mut running = server.copies.running();
    if running.len() >= server.config.copy.copies_max {
        return Some(slot);
    }
    let (tablet, of) = (order.tablet, server.clone());
    let task = server.env.spawn("tablet copy", async move { run(of, order, slot, begun).await });
    running.insert(tablet, task);
    None
}

fn too_many(server: &TabletServer) -> TabletError {
    let most = server.config.copy.copies_max;
    let message = format!("{most} tablets are being copied to this server already");
    TabletError::of(TabletErrorCode::Throttled, &Error::throttled(message))
}

async fn run(server: Arc<TabletServer>, order: CopyOrder, slot: CopySlot, mut begun: SessionSender) {
    let CopyOrder { tablet, source, addr, .. } = &order;
    let began = server.env.now().mono;
    tracing::info!(%tablet, %source, addr, "copying a tablet");
    let target = CopyTarget {
        env: &server.env,
        caller: server.identity.caller(USER),
        me: server.uuid(),
        wal: server.tablets.dirs().wal.disk.clone(),
        config: server.config.copy,
        received: &server.copies.bytes_received,
        space: Some((server.tablets.space(), &server.copies.space)),
    };
    let copied = copy(&target, &order, &slot, || send_once(&mut begun, Ok(()))).await;
    server.metrics.tablet_copy.record_millis(server.env.now().mono.since(began));
    match copied {
        Ok(manifest) => {
            server.copies.retries().succeeded(*tablet);
            server.copies.finished.fetch_add(1, Ordering::Relaxed);
            let (bytes, took) = (manifest.total_bytes(), server.env.now().mono.since(began));
            tracing::info!(%tablet, bytes, ?took, last = %manifest.last_op, "a tablet was copied");
            server.tablets.open_copied(slot).await;
        }
        Err(error) => {
            server.copies.failed.fetch_add(1, Ordering::Relaxed);
            let retry_in = server.copies.retries().failed(*tablet, server.env.now().mono, &error);
            tracing::warn!(%tablet, %source, %error, ?retry_in, "a tablet could not be copied");
            server.tablets.abort_copy(slot).await;
            // Order: after the slot is free, for the next request of the same caller.
            send_once(&mut begun, Err(error));
        }
    }
}

/// Sends the outcome of a session's begin, unless one was sent. A caller that has gone away gets none.
fn send_once(begun: &mut SessionSender, outcome: Result<(), Error>) {
    if let Some(begun) = begun.take() {
        let _ = begun.send(outcome);
    }
}
