//! Copying a tablet onto this server: from the order to a replica that runs, or back to what was there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use engine::disk::Disk;
use engine::error::{Error, ErrorKind, Result};
use engine::ids::{PeerId, TabletId, Term, Uuid};
use engine::note::Note;
use engine::note::raft::{Action, DataState, Post, RaftNote, Role};
use engine::replica::copy::{CopySink, Manifest};

use super::CopyConfig;
use super::remote::Remote;
use crate::env::{Env, TaskHandle};
use crate::proto::kudu::app_status_pb::ErrorCode;
use crate::proto::kudu::consensus::StartTabletCopyRequestPb;
use crate::tserver::server::Server;
use crate::tserver::tombstones::Vacant;
use crate::wire::status::{TabletError, TabletErrorCode};

/// The copies onto one server.
#[derive(Default)]
pub struct Copies {
    running: Mutex<BTreeMap<TabletId, Box<dyn TaskHandle>>>,
    bytes_received: AtomicU64,
    finished: AtomicU64,
    failed: AtomicU64,
}

impl Copies {
    fn running(&self) -> MutexGuard<'_, BTreeMap<TabletId, Box<dyn TaskHandle>>> {
        let mut running = self.running.lock().expect("nobody panics while holding the copies");
        running.retain(|_, task| !task.is_finished());
        running
    }

    /// How many are under way.
    pub fn count(&self) -> usize {
        self.running().len()
    }

    pub fn bytes_received(&self) -> u64 {
        self.bytes_received.load(Ordering::Relaxed)
    }

    /// How many ended with a replica, and how many did not.
    pub fn ended(&self) -> (u64, u64) {
        (self.finished.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// All tasks, to be ended with the server.
    pub fn take(&self) -> Vec<Box<dyn TaskHandle>> {
        std::mem::take(&mut *self.running()).into_values().collect()
    }
}

/// What to copy from where.
pub struct Order {
    pub tablet: TabletId,
    pub source: PeerId,
    /// `host:port`.
    pub addr: String,
    /// The term of the leader that wants it; an operator has none.
    pub term: Option<Term>,
}

impl Order {
    pub fn of(request: &StartTabletCopyRequestPb) -> Result<Order> {
        let addr = &request.copy_peer_addr;
        Ok(Order {
            tablet: Uuid::parse(&request.tablet_id).map_err(|error| error.context("tablet_id"))?,
            source: Uuid::parse(&request.copy_peer_uuid).map_err(|error| error.context("copy_peer_uuid"))?,
            addr: format!("{}:{}", addr.host, addr.port),
            term: request.caller_term.and_then(|term| u64::try_from(term).ok()),
        })
    }
}

/// Begins to copy a tablet; the answer does not wait for its end.
///
/// `THROTTLED` if too many are under way, `ALREADY_INPROGRESS` if the tablet is being worked on,
/// `TABLET_ALREADY_EXISTS` over a replica in use, `INVALID_CONFIG` for a leader whose term is over,
/// `TABLET_NOT_FOUND` for a leader's tablet that was deleted here for good.
pub async fn start(server: Arc<Server>, request: StartTabletCopyRequestPb) -> Result<(), TabletError> {
    let order = Order::of(&request)?;
    if order.source == server.uuid() {
        return Err(Error::invalid("a tablet cannot be copied from the server that it is copied to").into());
    }
    let most = server.config.copy.copies_max;
    if server.copies.count() >= most {
        let what = format!("{most} tablets are being copied to this server already");
        return Err(TabletError::of(TabletErrorCode::Throttled, &Error::throttled(what)));
    }
    if order.term.is_some() {
        // An operator may know better, a leader cannot.
        server.tablets.check_not_buried(order.tablet)?;
    }
    let vacant = server.tablets.vacate(order.tablet).await?;
    if let Some(Err(error)) = order.term.map(|term| vacant.local.admit_term(term)) {
        let over = error.kind == ErrorKind::NotLeader;
        server.env.watch.mark_if(over, "tablet copy: refused, the leader's term is over");
        server.tablets.give_back(vacant).await;
        return Err(TabletError::new(
            TabletErrorCode::InvalidConfig,
            ErrorCode::InvalidArgument,
            error.message,
        ));
    }
    let (tablet, of) = (order.tablet, server.clone());
    let mut running = server.copies.running();
    let task = server.env.spawn("tablet copy", async move { run(of, order, vacant).await });
    running.insert(tablet, task);
    Ok(())
}

async fn run(server: Arc<Server>, order: Order, vacant: Vacant) {
    let Order { tablet, source, addr, .. } = &order;
    let began = server.env.now().mono;
    tracing::info!(%tablet, %source, addr, "copying a tablet");
    let target = Target {
        env: &server.env,
        me: server.uuid(),
        wal: server.tablets.dirs().wal.disk.clone(),
        config: server.config.copy,
        received: &server.copies.bytes_received,
    };
    match copy(&target, &order, &vacant).await {
        Ok(manifest) => {
            server.copies.finished.fetch_add(1, Ordering::Relaxed);
            let (bytes, took) = (manifest.total_bytes(), server.env.now().mono.since(began));
            tracing::info!(%tablet, bytes, ?took, last = %manifest.last_op, "a tablet was copied");
            server.tablets.open_copied(vacant).await;
        }
        Err(error) => {
            server.copies.failed.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%tablet, %source, %error, "a tablet could not be copied");
            server.tablets.give_back(vacant).await;
        }
    }
}

/// The server that is copied to.
pub struct Target<'a> {
    pub env: &'a Env,
    pub me: Uuid,
    pub wal: Arc<dyn Disk>,
    pub config: CopyConfig,
    /// Counts what was fetched.
    pub received: &'a AtomicU64,
}

/// Fetches a tablet into its place. If this fails, what was there before is to be recovered from the disk.
pub async fn copy(target: &Target<'_>, order: &Order, vacant: &Vacant) -> Result<Manifest> {
    let mut remote = Remote::begin(target, order).await?;
    let copied = copy_session(target, order, vacant, &mut remote).await;
    remote.end(copied.as_ref().err()).await;
    copied
}

async fn copy_session(
    target: &Target<'_>,
    order: &Order,
    vacant: &Vacant,
    remote: &mut Remote<'_>,
) -> Result<Manifest> {
    let env = target.env;
    let manifest = remote.manifest().await?;
    let (wal, data) = (target.wal.clone(), vacant.data_dir.disk.clone());
    let begin = async {
        let sink = env.run(|| CopySink::begin(wal, data, &vacant.local, order.term, manifest)).await?;
        let term = order.term.unwrap_or(sink.manifest().consensus.term);
        let began = Action::CopyStart { source: order.source, term };
        note(env, &sink, vacant, sink.consensus().term, began);
        Ok::<_, Error>(sink)
    };
    let mut sink = vacant.alone(begin).await?;
    while let Some(wanted) = sink.wanted() {
        let chunk = remote.fetch(wanted.part, wanted.offset).await?;
        env.run(|| sink.put(wanted.part, &chunk)).await?;
        target.received.fetch_add(chunk.data.len() as u64, Ordering::Relaxed);
    }
    // It votes again when it runs, by its log then.
    let term = vacant.end_votes(env).await?;
    env.run(|| sink.finish()).await?;
    note(env, &sink, vacant, term, Action::CopyFinish);
    Ok(sink.manifest().clone())
}

/// Tells whoever watches what the copy did, and the term that the replica is in.
fn note(env: &Env, sink: &CopySink, vacant: &Vacant, term: Term, action: Action) {
    let finished = action == Action::CopyFinish;
    let manifest = sink.manifest();
    let post = Post {
        term,
        last: if finished { manifest.last_op } else { vacant.local.last_op.unwrap_or_default() },
        commit: if finished { manifest.committed } else { 0 },
        role: Role::Follower,
        data: if finished { DataState::Ready } else { DataState::Copying },
    };
    let note = Note::Raft(RaftNote { action, post });
    tracing::info!(tablet = %sink.tablet(), %note);
    env.watch.note(sink.tablet(), &note);
}
