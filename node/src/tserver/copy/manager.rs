//! Tablet copies onto this server, from the request to a running replica, or back to the previous state.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use engine::disk::Disk;
use engine::error::{Error, ErrorKind, Result};
use engine::ids::{PeerId, TabletId, Term, Uuid};
use engine::note::Note;
use engine::note::raft::{NotedDataState, NotedRole, PostState, RaftAction, RaftNote};
use engine::replica::copy::{CopyManifest, CopySink};

use super::CopyConfig;
use super::source_client::CopySourceClient;
use crate::tserver::server::TabletServer;
use crate::tserver::tombstones::CopySlot;
use nyala_common::env::{Env, TaskHandle};
use nyala_common::wire::errors::{TabletError, TabletErrorCode};
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::consensus::StartTabletCopyRequestPb;

/// Running tablet copies onto one server.
#[derive(Default)]
pub struct CopyManager {
    running: Mutex<BTreeMap<TabletId, Box<dyn TaskHandle>>>,
    bytes_received: AtomicU64,
    finished: AtomicU64,
    failed: AtomicU64,
}

impl CopyManager {
    fn running(&self) -> MutexGuard<'_, BTreeMap<TabletId, Box<dyn TaskHandle>>> {
        let mut running = self.running.lock().expect("no task panics while holding the copies");
        running.retain(|_, task| !task.is_finished());
        running
    }

    /// Returns the number of running copies.
    pub fn count(&self) -> usize {
        self.running().len()
    }

    pub fn bytes_received(&self) -> u64 {
        self.bytes_received.load(Ordering::Relaxed)
    }

    /// Returns the numbers of copies that succeeded and that failed.
    pub fn ended(&self) -> (u64, u64) {
        (self.finished.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// Takes all tasks, so that they end with the server.
    pub fn take(&self) -> Vec<Box<dyn TaskHandle>> {
        std::mem::take(&mut *self.running()).into_values().collect()
    }
}

/// Tablet to copy and its source.
pub struct CopyOrder {
    pub tablet: TabletId,
    pub source: PeerId,
    /// `host:port` of the source.
    pub addr: String,
    /// Term of the leader that requested the copy; `None` for an operator's request.
    pub term: Option<Term>,
}

impl CopyOrder {
    pub fn of(request: &StartTabletCopyRequestPb) -> Result<CopyOrder> {
        let addr = &request.copy_peer_addr;
        Ok(CopyOrder {
            tablet: Uuid::parse(&request.tablet_id).map_err(|error| error.context("tablet_id"))?,
            source: Uuid::parse(&request.copy_peer_uuid).map_err(|error| error.context("copy_peer_uuid"))?,
            addr: format!("{}:{}", addr.host, addr.port),
            term: request.caller_term.and_then(|term| u64::try_from(term).ok()),
        })
    }
}

/// Starts to copy a tablet; the reply does not wait for the end of the copy.
///
/// Errors:
/// - `THROTTLED` if too many copies run.
/// - `ALREADY_INPROGRESS` if another task works on the tablet.
/// - `TABLET_ALREADY_EXISTS` if it would replace a replica in use.
/// - `INVALID_CONFIG` for a leader of an old term.
/// - `TABLET_NOT_FOUND` if a leader asks for a tablet that was permanently deleted here.
pub async fn start(server: Arc<TabletServer>, request: StartTabletCopyRequestPb) -> Result<(), TabletError> {
    let order = CopyOrder::of(&request)?;
    if order.source == server.uuid() {
        return Err(Error::invalid("a tablet cannot be copied from the server that it is copied to").into());
    }
    let most = server.config.copy.copies_max;
    if server.copies.count() >= most {
        let message = format!("{most} tablets are being copied to this server already");
        return Err(TabletError::of(TabletErrorCode::Throttled, &Error::throttled(message)));
    }
    if order.term.is_some() {
        // An operator may override a deletion, a leader cannot.
        server.tablets.check_not_deleted(order.tablet)?;
    }
    let slot = server.tablets.reserve_slot(order.tablet).await?;
    if let Some(Err(error)) = order.term.map(|term| slot.local.admit_term(term)) {
        let over = error.kind == ErrorKind::NotLeader;
        server.env.watch.mark_if(over, "tablet copy: refused, the leader's term is over");
        server.tablets.abort_copy(slot).await;
        return Err(TabletError::new(
            TabletErrorCode::InvalidConfig,
            ErrorCode::InvalidArgument,
            error.message,
        ));
    }
    let (tablet, of) = (order.tablet, server.clone());
    let mut running = server.copies.running();
    let task = server.env.spawn("tablet copy", async move { run(of, order, slot).await });
    running.insert(tablet, task);
    Ok(())
}

async fn run(server: Arc<TabletServer>, order: CopyOrder, slot: CopySlot) {
    let CopyOrder { tablet, source, addr, .. } = &order;
    let began = server.env.now().mono;
    tracing::info!(%tablet, %source, addr, "copying a tablet");
    let target = CopyTarget {
        env: &server.env,
        me: server.uuid(),
        wal: server.tablets.dirs().wal.disk.clone(),
        config: server.config.copy,
        received: &server.copies.bytes_received,
    };
    match copy(&target, &order, &slot).await {
        Ok(manifest) => {
            server.copies.finished.fetch_add(1, Ordering::Relaxed);
            let (bytes, took) = (manifest.total_bytes(), server.env.now().mono.since(began));
            tracing::info!(%tablet, bytes, ?took, last = %manifest.last_op, "a tablet was copied");
            server.tablets.open_copied(slot).await;
        }
        Err(error) => {
            server.copies.failed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%tablet, %source, %error, "a tablet could not be copied");
            server.tablets.abort_copy(slot).await;
        }
    }
}

/// Server that receives the copy.
pub struct CopyTarget<'a> {
    pub env: &'a Env,
    pub me: Uuid,
    pub wal: Arc<dyn Disk>,
    pub config: CopyConfig,
    /// Bytes fetched so far.
    pub received: &'a AtomicU64,
}

/// Fetches a tablet into its slot. After a failure the caller recovers the previous state from the disk.
pub async fn copy(target: &CopyTarget<'_>, order: &CopyOrder, slot: &CopySlot) -> Result<CopyManifest> {
    let mut remote = CopySourceClient::begin(target, order).await?;
    let copied = copy_session(target, order, slot, &mut remote).await;
    remote.end(copied.as_ref().err()).await;
    copied
}

async fn copy_session(
    target: &CopyTarget<'_>,
    order: &CopyOrder,
    slot: &CopySlot,
    remote: &mut CopySourceClient<'_>,
) -> Result<CopyManifest> {
    let env = target.env;
    let manifest = remote.manifest().await?;
    let (wal, data) = (target.wal.clone(), slot.data_dir.disk.clone());
    let begin = async {
        let sink = env.run(|| CopySink::begin(wal, data, &slot.local, order.term, manifest)).await?;
        let term = order.term.unwrap_or(sink.manifest().consensus.term);
        let began = RaftAction::CopyStart { source: order.source, term };
        note(env, &sink, slot, sink.consensus().term, began);
        Ok::<_, Error>(sink)
    };
    let mut sink = slot.alone(begin).await?;
    while let Some(wanted) = sink.wanted() {
        let chunk = remote.fetch(wanted.part, wanted.offset).await?;
        env.run(|| sink.put(wanted.part, &chunk)).await?;
        target.received.fetch_add(chunk.data.len() as u64, Ordering::Relaxed);
    }
    // The replica votes again when it runs, by its own log.
    let term = slot.end_votes(env).await?;
    env.run(|| sink.finish()).await?;
    note(env, &sink, slot, term, RaftAction::CopyFinish);
    Ok(sink.manifest().clone())
}

/// Reports the copy's action and the replica's term to the observer.
fn note(env: &Env, sink: &CopySink, slot: &CopySlot, term: Term, action: RaftAction) {
    let finished = action == RaftAction::CopyFinish;
    let manifest = sink.manifest();
    let post = PostState {
        term,
        last: if finished { manifest.last_op } else { slot.local.last_op.unwrap_or_default() },
        commit: if finished { manifest.committed } else { 0 },
        role: NotedRole::Follower,
        data: if finished { NotedDataState::Ready } else { NotedDataState::Copying },
    };
    let note = Note::Raft(RaftNote { action, post });
    tracing::info!(tablet = %sink.tablet(), %note);
    env.watch.note(sink.tablet(), &note);
}
