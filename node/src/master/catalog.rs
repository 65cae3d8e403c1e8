//! The catalog's loop: one task that alone touches the [`Catalog`] and sees to the order of its effects.
//!
//! ```text
//!   commands, heartbeats ──▶ inbox ──▶ Catalog::step … ──▶ one write to the system tablet, durable
//!   reads, answers of tservers ──▲                                     │
//!                                └── requests to tablet servers ◀──────┴──▶ answers, then reads
//! ```
//!
//! A turn takes what waits in the inbox, so that many changes share one durable write. Nobody sees a change
//! before it is durable: reads of a turn are answered after its write. If the write fails, what is in memory is
//! ahead of what is stored, so the loop ends and every later call is told that the catalog is gone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::catalog::{
    Answer, Catalog, Command, Counts, DoneResult, Effects, Event, Heartbeat, HeartbeatReply, Refusal, TaskKey,
};
use engine::error::{Error, Result};
use engine::time::{Instant, Now};
use tokio::sync::{Notify, oneshot};

use super::requests::Requests;
use super::system::SystemTablet;
use crate::env::Env;
use crate::mailbox::{self, Mailbox, Received, Sender};
use crate::metrics::{Collect, Samples};

type Read = Box<dyn FnOnce(&Catalog, Now) + Send>;

/// What the loop is asked.
pub(super) enum Message {
    Command { caller: String, command: Command, answer: oneshot::Sender<Result<Answer, Refusal>> },
    Heartbeat { heartbeat: Box<Heartbeat>, answer: oneshot::Sender<HeartbeatReply> },
    Answered { task: TaskKey, result: Result<()> },
    Read(Read),
    Stop(Option<oneshot::Sender<()>>),
}

/// A way to the loop; clone it freely.
#[derive(Clone)]
pub struct CatalogHandle {
    inbox: Sender<Message>,
    ended: Arc<Ended>,
}

/// What the catalog counted last; read by the metrics.
#[derive(Default)]
pub struct CatalogCounts(Mutex<Counts>);

impl CatalogCounts {
    /// Nothing is known any more.
    pub(super) fn clear(&self) {
        self.set(Counts::default());
    }

    fn set(&self, counts: Counts) {
        *self.0.lock().expect("nobody panics while holding it") = counts;
    }
}

impl Collect for CatalogCounts {
    fn collect(&self, out: &mut Samples) {
        let counts = *self.0.lock().expect("nobody panics while holding it");
        let mut gauge = |name, help, value| out.gauge(name, help, &[], value as f64);
        gauge("catalog_tables", "Tables that are not deleted.", counts.tables);
        gauge("catalog_tablets", "Tablets of these tables.", counts.tablets);
        gauge("catalog_tablets_not_running", "Tablets that are not up.", counts.tablets_not_running);
        gauge("catalog_tablet_servers", "Tablet servers that have registered.", counts.servers);
        gauge("catalog_tablet_servers_alive", "Tablet servers heard of lately.", counts.servers_alive);
        let help = "Tablets with fewer good replicas than wanted.";
        gauge("catalog_tablets_under_replicated", help, counts.tablets_under_replicated);
        gauge("catalog_tombstones", "Tombstones that tablet servers keep.", counts.tombstones);
        gauge("catalog_requests_pending", "Requests to tablet servers not done.", counts.requests);
    }
}

/// Set and rung when the loop has ended.
#[derive(Default)]
struct Ended {
    deposed: AtomicBool,
    flag: AtomicBool,
    bell: Notify,
}

/// Messages that may wait; senders beyond them wait for room.
const INBOX: usize = 4096;
/// How often everything is counted.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// Messages taken in one turn at most.
const TURN_MAX: usize = 256;

/// Starts the loop of `catalog`, kept in `system`.
pub fn start(
    env: &Env,
    catalog: Catalog,
    system: SystemTablet,
    requests: Requests,
    counts: Arc<CatalogCounts>,
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
        out: Effects::default(),
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
    /// Asks for a change and waits until it is durable, or refused. `NotReady` if the loop has ended.
    pub async fn command(&self, caller: &str, command: Command) -> Result<Result<Answer, Refusal>> {
        let (answer, answered) = oneshot::channel();
        self.send(Message::Command { caller: caller.to_string(), command, answer }).await?;
        answered.await.map_err(|_| gone())
    }

    pub async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply> {
        let (answer, answered) = oneshot::channel();
        self.send(Message::Heartbeat { heartbeat: Box::new(heartbeat), answer }).await?;
        answered.await.map_err(|_| gone())
    }

    /// Looks at the catalog as it is stored now. `look` runs in the loop: it must be quick.
    pub async fn read<R: Send + 'static>(
        &self,
        look: impl FnOnce(&Catalog, Now) -> R + Send + 'static,
    ) -> Result<R> {
        let (answer, answered) = oneshot::channel();
        // The caller may have given up; then nobody needs the answer.
        let read: Read = Box::new(move |catalog, now| drop(answer.send(look(catalog, now))));
        self.send(Message::Read(read)).await?;
        answered.await.map_err(|_| gone())
    }

    async fn send(&self, message: Message) -> Result<()> {
        self.inbox.send(message).await.map_err(|_| gone())
    }

    /// Ends the loop as another master leads: what it knows may be out of date, so that nobody is told of it any
    /// more. Only those whose changes turn out to be stored hear of that.
    pub fn depose(&self) {
        self.ended.deposed.store(true, Ordering::Release);
        // If it has no room, it looks anyway before it answers.
        let _full = self.inbox.try_send(Message::Stop(None));
    }

    /// Ends the loop after what was asked before.
    pub async fn stop(&self) {
        let (answer, answered) = oneshot::channel();
        if self.send(Message::Stop(Some(answer))).await.is_ok() {
            // An error means that the loop ended by itself, which is as good.
            drop(answered.await);
        }
    }

    /// Returns when the loop has ended: it was told to, or the system tablet took no more writes from it.
    pub async fn ended(&self) {
        let bell = self.ended.bell.notified();
        tokio::pin!(bell);
        bell.as_mut().enable();
        if !self.ended.flag.load(Ordering::Acquire) {
            bell.await;
        }
    }
}

fn gone() -> Error {
    Error::not_ready("the catalog is not available on this master")
}

enum Waiter {
    Command(oneshot::Sender<Result<Answer, Refusal>>),
    Heartbeat(oneshot::Sender<HeartbeatReply>),
}

struct CatalogLoop {
    env: Env,
    catalog: Catalog,
    system: SystemTablet,
    requests: Requests,
    /// For the answers of tablet servers.
    answers_to: Sender<Message>,
    inbox: Mailbox<Message>,
    waiting: BTreeMap<u64, Waiter>,
    next_ticket: u64,
    out: Effects,
    reads: Vec<Read>,
    counts: Arc<CatalogCounts>,
    next_count: Instant,
    stopping: bool,
    stopped: Option<oneshot::Sender<()>>,
    ended: Arc<Ended>,
}

impl CatalogLoop {
    async fn run(mut self) {
        let mut batch = Vec::new();
        // The first step writes what a new catalog has to remember.
        self.step(Event::Tick);
        while self.turn(&mut batch).await {
            let deadline = self.catalog.deadline();
            let received = self.inbox.recv_until(Some(deadline), &mut batch, TURN_MAX).await;
            if received == Received::Closed {
                break;
            }
        }
        self.inbox.close();
        if let Some(answer) = self.stopped.take() {
            let _gone = answer.send(());
        }
    }

    /// Handles `batch`; `false` ends the loop.
    async fn turn(&mut self, batch: &mut Vec<Message>) -> bool {
        if batch.is_empty() {
            self.step(Event::Tick);
        }
        for message in batch.drain(..) {
            self.message(message);
        }
        if !self.out.writes.is_empty() {
            let writes = std::mem::take(&mut self.out.writes);
            if let Err(error) = self.system.write(&writes).await {
                tracing::warn!(%error, "the system tablet did not take a change; this catalog ends");
                return false;
            }
        }
        self.release();
        !self.stopping
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Command { caller, command, answer } => {
                let ticket = self.ticket(Waiter::Command(answer));
                self.step(Event::Command { ticket, caller, command });
            }
            Message::Heartbeat { heartbeat, answer } => {
                let ticket = self.ticket(Waiter::Heartbeat(answer));
                self.step(Event::Heartbeat { ticket, heartbeat });
            }
            Message::Answered { task, result } => self.step(Event::Answered { task, result }),
            Message::Read(read) => self.reads.push(read),
            Message::Stop(answer) => {
                self.stopping = true;
                self.stopped = answer;
            }
        }
    }

    fn ticket(&mut self, waiter: Waiter) -> u64 {
        self.next_ticket += 1;
        self.waiting.insert(self.next_ticket, waiter);
        self.next_ticket
    }

    fn step(&mut self, event: Event) {
        self.catalog.step(self.env.now(), event, &mut self.out);
    }

    /// Lets out what the turn's write made true.
    fn release(&mut self) {
        for note in self.out.notes.drain(..) {
            tracing::info!("{note}");
        }
        for done in self.out.answers.drain(..) {
            // Callers that have given up need no answer.
            match (self.waiting.remove(&done.ticket), done.result) {
                (Some(Waiter::Command(answer)), DoneResult::Command(result)) => drop(answer.send(result)),
                (Some(Waiter::Heartbeat(answer)), DoneResult::Heartbeat(reply)) => drop(answer.send(reply)),
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
                // An error means that the loop has ended; a new master asks again.
                let _ended = answers.send(Message::Answered { task, result }).await;
            });
        }
        let now = self.env.now();
        if self.next_count <= now.mono {
            self.next_count = now.mono.after(COUNT_INTERVAL);
            self.counts.set(self.catalog.counts(now.mono));
        }
        for read in self.reads.drain(..) {
            read(&self.catalog, now);
        }
    }
}
