//! The catalog loop: one task owns the [`Catalog`] and orders its effects.
//!
//! ```text
//!   commands, heartbeats ──▶ inbox ──▶ Catalog::step … ──▶ one write to the system tablet, durable
//!   reads, replies of tservers ──▲                                     │
//!                                └── requests to tablet servers ◀──────┴──▶ replies, then reads
//! ```
//!
//! - A turn takes all messages from the inbox, so that many changes share one durable write; large ones have their own.
//! - Changes that belong together are one write. A report or a sweep may be several: each must fit into an operation.
//! - Invariant: no change is visible before it is durable. Reads of a turn are answered after its write.
//! - After a failed write the state in memory is ahead of the stored one. So the loop ends, and every later call gets
//!   an error.

use engine::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::catalog::{
    Catalog, CatalogCommand, CatalogCounts, CatalogEffects, CatalogError, CatalogEvent, CommandReply,
    EventResult, Heartbeat, HeartbeatReply, TableSizes, TaskKey,
};
use engine::error::{Error, Result};
use engine::time::{ClockReading, Instant};
use tokio::sync::{Notify, oneshot};

use super::system_tablet::SystemTablet;
use super::tserver_calls::TserverCaller;
use nyala_common::env::Env;
use nyala_common::mailbox::{self, Mailbox, MailboxSender, WaitResult};
use nyala_common::metrics::definition::EntityKind;
use nyala_common::metrics::{Entity, MetricSnapshot, MetricSource, table};

type Read = Box<dyn FnOnce(&Catalog, ClockReading) + Send>;

/// Message to the loop.
pub(super) enum CatalogMessage {
    Command {
        caller: String,
        command: CatalogCommand,
        answer: oneshot::Sender<Result<CommandReply, CatalogError>>,
    },
    Heartbeat {
        heartbeat: Box<Heartbeat>,
        answer: oneshot::Sender<HeartbeatReply>,
    },
    Answered {
        task: TaskKey,
        result: Result<()>,
    },
    Read(Read),
    Stop(Option<oneshot::Sender<()>>),
}

/// Handle of the loop; cheap to clone.
#[derive(Clone)]
pub struct CatalogHandle {
    inbox: MailboxSender<CatalogMessage>,
    ended: Arc<LoopExit>,
}

/// Counts of the catalog as of its last pass, for the metrics. `None` while this master does not lead: then it has no
/// such metrics, so that an alert can see that no master leads.
#[derive(Default)]
pub struct CatalogGauges(Mutex<Option<(CatalogCounts, Vec<TableSizes>)>>);

impl CatalogGauges {
    /// Removes the counts when the catalog is not available.
    pub(super) fn clear(&self) {
        *self.0.lock() = None;
    }

    /// Stores the counts unless the leadership has ended. Order: `deposed` is set before [`CatalogGauges::clear`], so
    /// that no count stays after it.
    fn set(&self, deposed: &AtomicBool, counts: CatalogCounts, tables: Vec<TableSizes>) {
        let mut latest = self.0.lock();
        if !deposed.load(Ordering::Acquire) {
            *latest = Some((counts, tables));
        }
    }
}

impl MetricSource for CatalogGauges {
    fn collect(&self, out: &mut MetricSnapshot) {
        let latest = self.0.lock().clone();
        let server = &mut out.server;
        // Kudu's masters have this one whether they lead or not.
        let skew = latest.as_ref().map_or(0, |(counts, _)| counts.replica_skew);
        server.gauge(&table::CLUSTER_REPLICA_SKEW, skew);
        let Some((counts, tables)) = latest else { return };
        server.gauge(&table::CATALOG_TABLES, counts.tables);
        server.gauge(&table::CATALOG_TABLETS, counts.tablets);
        server.gauge(&table::CATALOG_TABLETS_NOT_RUNNING, counts.tablets_not_running);
        server.gauge(&table::CATALOG_TABLETS_UNDER_REPLICATED, counts.tablets_under_replicated);
        server.gauge(&table::CATALOG_TABLET_SERVERS, counts.servers);
        server.gauge(&table::CATALOG_TABLET_SERVERS_ALIVE, counts.servers_alive);
        server.gauge(&table::CATALOG_TOMBSTONES, counts.tombstones);
        server.gauge(&table::CATALOG_REQUESTS_PENDING, counts.requests);
        out.others.extend(tables.iter().map(table_entity));
    }
}

fn table_entity(sizes: &TableSizes) -> Entity {
    let mut entity = Entity::new(EntityKind::Table, sizes.id.to_string());
    entity.attribute("table_name", sizes.name.clone());
    entity.gauge(&table::TABLE_COLUMN_COUNT, sizes.columns);
    entity.gauge(&table::TABLE_SCHEMA_VERSION, u64::from(sizes.schema_version));
    entity.gauge(&table::TABLE_ON_DISK_SIZE, sizes.statistics.disk_bytes);
    if let Some(rows) = sizes.statistics.live_rows {
        entity.gauge(&table::TABLE_LIVE_ROW_COUNT, rows);
    }
    entity
}

/// Flag and notification that the loop has ended.
#[derive(Default)]
struct LoopExit {
    deposed: AtomicBool,
    flag: AtomicBool,
    bell: Notify,
}

/// Capacity of the inbox; senders wait while it is full.
const INBOX: usize = 4096;
/// Interval between counts of the catalog.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// Largest number of messages in one turn.
const TURN_MAX: usize = 256;
/// Bytes of changes after which a turn writes before it processes the next message, and most bytes of an operation with
/// changes that do not belong together. A single change has at most some 40 MiB, and must fit into one operation.
const TURN_BYTES_MAX: usize = 1 << 20;

/// Starts the loop of `catalog`, stored in `system`.
pub fn start(
    env: &Env,
    catalog: Catalog,
    system: SystemTablet,
    requests: TserverCaller,
    counts: Arc<CatalogGauges>,
) -> CatalogHandle {
    let (inbox, messages) = mailbox::mailbox(env, INBOX);
    let handle = CatalogHandle { inbox: inbox.clone(), ended: Arc::default() };
    let looped = CatalogLoop {
        env: env.clone(),
        catalog,
        system,
        requests,
        answers_to: inbox,
        inbox: messages,
        waiting: BTreeMap::new(),
        next_ticket: 0,
        out: CatalogEffects::default(),
        reads: Vec::new(),
        counts,
        next_count: Instant::default(),
        stopping: false,
        stopped: None,
        ended: handle.ended.clone(),
    };
    let ended = handle.ended.clone();
    env.spawn("catalog", async move {
        looped.run().await;
        ended.flag.store(true, Ordering::Release);
        ended.bell.notify_waiters();
    });
    handle
}

impl CatalogHandle {
    /// Runs a command and waits until it is durable, or rejected. `NotReady` if the loop has ended.
    pub async fn command(
        &self,
        caller: &str,
        command: CatalogCommand,
    ) -> Result<Result<CommandReply, CatalogError>> {
        let (answer, answered) = oneshot::channel();
        self.send(CatalogMessage::Command { caller: caller.to_string(), command, answer }).await?;
        answered.await.map_err(|_| unavailable_error())
    }

    pub async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply> {
        let (answer, answered) = oneshot::channel();
        self.send(CatalogMessage::Heartbeat { heartbeat: Box::new(heartbeat), answer }).await?;
        answered.await.map_err(|_| unavailable_error())
    }

    /// Reads the catalog as stored now. `look` runs in the loop, so it must be quick.
    pub async fn read<R: Send + 'static>(
        &self,
        look: impl FnOnce(&Catalog, ClockReading) -> R + Send + 'static,
    ) -> Result<R> {
        let (answer, answered) = oneshot::channel();
        // The caller may have stopped waiting; then the reply is dropped.
        let read: Read = Box::new(move |catalog, now| drop(answer.send(look(catalog, now))));
        self.send(CatalogMessage::Read(read)).await?;
        answered.await.map_err(|_| unavailable_error())
    }

    async fn send(&self, message: CatalogMessage) -> Result<()> {
        self.inbox.send(message).await.map_err(|_| unavailable_error())
    }

    /// Ends the loop because another master leads. Its state may be stale, so no caller is shown it any more. Only
    /// commands that turn out to be stored succeed.
    pub fn end_leadership(&self) {
        self.ended.deposed.store(true, Ordering::Release);
        // A full inbox needs no message: the loop checks the flag before it replies.
        let _full = self.inbox.try_send(CatalogMessage::Stop(None));
    }

    /// Ends the loop after the earlier messages.
    pub async fn stop(&self) {
        let (answer, answered) = oneshot::channel();
        if self.send(CatalogMessage::Stop(Some(answer))).await.is_ok() {
            // An error means that the loop has ended already.
            drop(answered.await);
        }
    }

    /// Waits until the loop has ended: it was stopped, or a write to the system tablet failed.
    pub async fn ended(&self) {
        let bell = self.ended.bell.notified();
        tokio::pin!(bell);
        bell.as_mut().enable();
        if !self.ended.flag.load(Ordering::Acquire) {
            bell.await;
        }
    }
}

fn unavailable_error() -> Error {
    Error::not_ready("the catalog is not available on this master")
}

enum ReplyWaiter {
    Command(oneshot::Sender<Result<CommandReply, CatalogError>>),
    Heartbeat(oneshot::Sender<HeartbeatReply>),
}

struct CatalogLoop {
    env: Env,
    catalog: Catalog,
    system: SystemTablet,
    requests: TserverCaller,
    /// Sender for the replies of tablet servers.
    answers_to: MailboxSender<CatalogMessage>,
    inbox: Mailbox<CatalogMessage>,
    waiting: BTreeMap<u64, ReplyWaiter>,
    next_ticket: u64,
    out: CatalogEffects,
    reads: Vec<Read>,
    counts: Arc<CatalogGauges>,
    next_count: Instant,
    stopping: bool,
    stopped: Option<oneshot::Sender<()>>,
    ended: Arc<LoopExit>,
}

impl CatalogLoop {
    async fn run(mut self) {
        let mut batch = Vec::new();
        // The first step writes the initial records of a new catalog.
        self.step(CatalogEvent::Tick);
        while self.turn(&mut batch).await {
            let deadline = self.catalog.deadline();
            let received = self.inbox.recv_until(Some(deadline), &mut batch, TURN_MAX).await;
            if received == WaitResult::Closed {
                break;
            }
        }
        self.inbox.close();
        if let Some(answer) = self.stopped.take() {
            let _gone = answer.send(());
        }
    }

    /// Processes `batch`; returns false to end the loop.
    async fn turn(&mut self, batch: &mut Vec<CatalogMessage>) -> bool {
        if batch.is_empty() {
            self.step(CatalogEvent::Tick);
        }
        for message in batch.drain(..) {
            self.message(message);
            // The changes of a whole turn would take too much memory.
            if self.out.write_bytes() > TURN_BYTES_MAX && !self.write().await {
                return false;
            }
        }
        if !self.write().await {
            return false;
        }
        self.release();
        !self.stopping
    }

    /// Stores what has changed; returns false to end the loop.
    async fn write(&mut self) -> bool {
        for writes in self.out.take_operations(TURN_BYTES_MAX) {
            if let Err(error) = self.system.write(&writes).await {
                tracing::warn!(%error, "the system tablet did not take a change; this catalog ends");
                return false;
            }
        }
        true
    }

    fn message(&mut self, message: CatalogMessage) {
        match message {
            CatalogMessage::Command { caller, command, answer } => {
                let ticket = self.ticket(ReplyWaiter::Command(answer));
                self.step(CatalogEvent::Command { ticket, caller, command });
            }
            CatalogMessage::Heartbeat { heartbeat, answer } => {
                let ticket = self.ticket(ReplyWaiter::Heartbeat(answer));
                self.step(CatalogEvent::Heartbeat { ticket, heartbeat });
            }
            CatalogMessage::Answered { task, result } => self.step(CatalogEvent::Answered { task, result }),
            CatalogMessage::Read(read) => self.reads.push(read),
            CatalogMessage::Stop(answer) => {
                self.stopping = true;
                self.stopped = answer;
            }
        }
    }

    fn ticket(&mut self, waiter: ReplyWaiter) -> u64 {
        self.next_ticket += 1;
        self.waiting.insert(self.next_ticket, waiter);
        self.next_ticket
    }

    fn step(&mut self, event: CatalogEvent) {
        self.catalog.step(self.env.now(), event, &mut self.out);
    }

    /// Releases the effects of the turn's durable write.
    fn release(&mut self) {
        for note in self.out.notes.drain(..) {
            tracing::info!("{note}");
        }
        for done in self.out.replies.drain(..) {
            // The callers may have stopped waiting; then the replies are dropped.
            match (self.waiting.remove(&done.ticket), done.result) {
                (Some(ReplyWaiter::Command(answer)), EventResult::Command(result)) => {
                    drop(answer.send(result))
                }
                (Some(ReplyWaiter::Heartbeat(answer)), EventResult::Heartbeat(reply)) => {
                    drop(answer.send(reply))
                }
                _ => {}
            }
        }
        if self.ended.deposed.load(Ordering::Acquire) {
            self.stopping = true;
            return;
        }
        for request in self.out.requests.drain(..) {
            let answers = self.answers_to.clone();
            self.requests.send(request, move |task, result| async move {
                // An error means that the loop has ended; a new leader sends the request again.
                let _ended = answers.send(CatalogMessage::Answered { task, result }).await;
            });
        }
        let now = self.env.now();
        if self.next_count <= now.mono {
            self.next_count = now.mono.after(COUNT_INTERVAL);
            let (counts, tables) = (self.catalog.counts(now.mono), self.catalog.table_sizes());
            self.counts.set(&self.ended.deposed, counts, tables);
        }
        for read in self.reads.drain(..) {
            read(&self.catalog, now);
        }
    }
}
