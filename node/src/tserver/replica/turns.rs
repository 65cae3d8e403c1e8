//! The loop itself: what waits is stepped through in one turn, then what came of it is sent on its ways.
//!
//! No way waits for another: what must not leave before something is durable, the replica holds back until it is
//! told so. Consensus metadata is stored by a task of its own, so that a slow disk delays the votes and nothing else.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::error::{Error, Result};
use engine::ids::Term;
use engine::memory::Promise;
use engine::note::Note;
use engine::raft::{self, ConsensusMeta, Reply, Role};
use engine::replica::{Effects, Event, Op, Replica, RequestId, write_log};
use engine::time::{Instant, Now, Timestamp};
use engine::wal::Wal;
use tokio::sync::{mpsc, oneshot};

use super::{Answer, Applied, Command, MakeEvent, Shared, other_term, stopped};
use crate::mailbox::Alarm;
use crate::tserver::log::{self, Log, LogWork};
use crate::tserver::peers::Post;

/// Commands taken in one turn at most.
const TURN_MAX: usize = 1024;
/// A turn with more bytes of operations than this runs where it does not hold up other tasks.
const BRIEF_TURN_BYTES: usize = 64 << 10;

/// Followers look at the time at moments so many times as far apart as those at which leaders do.
const LOOK_EARLY: u32 = 10;

/// How long a turn takes, and whether it may have to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weight {
    /// Over in microseconds: no operations, or small ones to a tablet that is all in memory.
    Light,
    /// Small ones to a tablet with row sets on disk: mostly their filters and indexes are in memory.
    Brief,
    Heavy,
}

pub(super) struct ReplicaLoop {
    shared: Arc<Shared>,
    replica: Replica,
    log: Log,
    inbox: mpsc::UnboundedReceiver<Command>,
    /// For the news of those who work for this loop; they must not keep it alive.
    news: mpsc::WeakUnboundedSender<Command>,
    /// Takes what became of messages.
    post: Post,
    alarm: Alarm,
    /// Those whose operations are under way, and room for what these will hold.
    waiting: BTreeMap<u64, (Answer, Option<Promise>)>,
    /// Room for what leaders' operations up to an index will hold.
    room: VecDeque<(u64, Promise)>,
    asked: BTreeMap<u64, oneshot::Sender<Reply>>,
    next_ticket: u64,
    out: Effects,
    /// Room for what is kept while this replica rests.
    kept: Vec<(Now, raft::Event)>,
    meta: MetaStore,
    /// Why no more work is taken.
    stopping: Option<oneshot::Sender<Replica>>,
    /// Bytes of operations that leaders sent and that may not be applied yet.
    received_bytes: usize,
}

/// Storing consensus metadata, one version at a time.
#[derive(Default)]
struct MetaStore {
    busy: bool,
    /// The newest version that is not being stored yet.
    next: Option<(u64, ConsensusMeta)>,
}

impl ReplicaLoop {
    pub(super) fn new(
        shared: Arc<Shared>,
        (replica, out): (Replica, Effects),
        wal: Wal,
        inbox: &mpsc::UnboundedSender<Command>,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> ReplicaLoop {
        let news = inbox.downgrade();
        let log = if shared.config.log_sync {
            let news = news.clone();
            log::start(
                &shared.env,
                wal,
                shared.log_bytes.clone(),
                Box::new(move |done| tell(&news, done.into())),
            )
        } else {
            Log::Here(Box::new(wal))
        };
        let post: Post = {
            let (news, shared) = (news.clone(), shared.clone());
            Arc::new(move |event| match shared.resting.keep(event, || shared.env.now()) {
                Some(event) => tell(&news, Command::Event(event)),
                None => shared.env.watch.mark("replica: slept through an answer"),
            })
        };
        ReplicaLoop {
            shared,
            replica,
            log,
            inbox: commands,
            news,
            post,
            alarm: Alarm::default(),
            waiting: BTreeMap::new(),
            room: VecDeque::new(),
            asked: BTreeMap::new(),
            next_ticket: 0,
            out,
            kept: Vec::new(),
            meta: MetaStore::default(),
            stopping: None,
            received_bytes: 0,
        }
    }

    pub(super) async fn run(mut self) {
        let mut commands = Vec::new();
        // What starting came to.
        self.turn(&mut commands);
        self.deliver();
        loop {
            let deadline = Some(self.deadline()).filter(|deadline| *deadline < NEVER);
            self.rest();
            let received = self.inbox.recv_many(&mut commands, TURN_MAX);
            if self.alarm.until(&self.shared.env, deadline, received).await == Some(0) {
                return;
            }
            let env = self.shared.env.clone();
            match self.weight(&commands) {
                Weight::Light => self.turn(&mut commands),
                Weight::Brief => env.run_brief(|| self.turn(&mut commands)).await,
                Weight::Heavy => env.run(|| self.turn(&mut commands)).await,
            }
            self.deliver();
            if let Some(error) = self.shared.failure() {
                self.refuse(&error);
            }
            if self.stopping.is_some() && !self.may_finish() {
                self.refuse(&stopped());
            }
            if self.stopping.is_some() && self.waiting.is_empty() {
                return self.close().await;
            }
        }
    }

    /// When to look at the time again. The replicas of a server look together, so that many tablets wake it no more
    /// often than one: leaders a little late, as their heartbeats share calls anyway; followers early, then again when
    /// it is time for an election, unless a heartbeat has put that off, as nearly always.
    fn deadline(&self) -> Instant {
        let deadline = self.replica.deadline();
        let gather = self.shared.config.peers.gather();
        if self.replica.is_leader() {
            return deadline.round_up(gather);
        }
        let early = deadline.round_down(gather * LOOK_EARLY);
        if early > self.shared.env.now().mono { early } else { deadline }
    }

    /// Lets heartbeats be answered without a turn, if they say nothing new.
    fn rest(&self) {
        let takes_part = self.stopping.is_none() && self.shared.failure().is_none();
        self.shared.resting.begin(self.replica.rest().filter(|_| takes_part));
    }

    /// Takes what came while this replica rested, before all else.
    fn end_rest(&mut self) {
        let mut kept = std::mem::take(&mut self.kept);
        self.shared.resting.end(&mut kept);
        for (now, event) in kept.drain(..) {
            self.step_at(now, Event::Raft(event));
        }
        self.kept = kept;
    }

    /// Whether what was proposed ends for sure: nobody else has to agree.
    fn may_finish(&self) -> bool {
        let status = self.shared.status();
        status.role == Role::Leader && status.active_config().voter_count() == 1
    }

    /// What a turn of these commands may take.
    fn weight(&mut self, commands: &[Command]) -> Weight {
        let (mut proposed, mut received, mut heavy) = (0, 0, false);
        for command in commands {
            match command {
                Command::Propose { bytes, .. } => proposed += bytes,
                Command::Ask { bytes, .. } => received += bytes,
                Command::With(_) | Command::WithWal(_) | Command::Stop(_) => heavy = true,
                Command::Event(_)
                | Command::Persisted(_)
                | Command::MetaStored(..)
                | Command::WantSnapshot(_) => {}
            }
        }
        let idle = self.replica.last_op() == self.replica.last_applied();
        // What leaders sent and is not committed yet may be applied in this turn, and so may what was proposed here.
        self.received_bytes = received + if idle { 0 } else { self.received_bytes };
        if idle && proposed + received == 0 {
            return if heavy { Weight::Heavy } else { Weight::Light };
        }
        let pending = self.shared.pending_bytes.load(Ordering::Relaxed).max(proposed);
        match pending + self.received_bytes <= BRIEF_TURN_BYTES {
            true if !heavy && self.replica.tablet().state().disk.is_empty() => Weight::Light,
            true if !heavy => Weight::Brief,
            _ => Weight::Heavy,
        }
    }

    /// Steps the replica through `commands` and starts what comes of it.
    fn turn(&mut self, commands: &mut Vec<Command>) {
        self.end_rest();
        for command in commands.drain(..) {
            self.check(|this| this.command(command));
        }
        self.end_if_failed();
        if self.shared.env.now().mono >= self.replica.deadline() {
            // After the messages: they may say that the leader lives.
            self.raft(raft::Event::Tick);
        }
        self.replica.flush(self.shared.env.now(), &mut self.out);
        // To the others first: they write their logs while this one is written.
        self.tell();
        self.send();
        self.check(ReplicaLoop::write_log);
        self.tell();
        self.send();
    }

    /// What failed outside the replica ends it too: it must not go on leading.
    fn end_if_failed(&mut self) {
        if self.replica.failure().is_none()
            && let Some(error) = self.shared.failure()
        {
            self.step(Event::LogFailed(error));
        }
    }

    /// Does `work`; if it fails, so has the replica.
    fn check(&mut self, work: impl FnOnce(&mut ReplicaLoop) -> Result<()>) {
        if let Err(error) = work(self) {
            self.shared.fail(&error);
        }
    }

    fn command(&mut self, command: Command) -> Result<()> {
        let failed = self.shared.failure().is_some();
        match command {
            Command::Propose { op, request, term, answer, room, .. } => {
                self.propose(op, request, term, (answer, room));
            }
            Command::Stop(answer) => self.stopping = Some(answer),
            Command::MetaStored(number, stored) => self.meta_stored(number, stored),
            // Whoever asked finds the replica failed when the command is dropped.
            _ if failed => {}
            Command::Ask { event, answer, room, .. } => {
                self.room.extend(room);
                self.ask(event, answer);
            }
            Command::Event(event) => self.raft(event),
            Command::WantSnapshot(before) => {
                self.step(Event::WantSnapshot { at: Timestamp(before.0.saturating_sub(1)) });
            }
            Command::Persisted(Ok(op)) => self.raft(raft::Event::Persisted(op)),
            Command::Persisted(Err(error)) => self.step(Event::LogFailed(error)),
            Command::With(work) => work(&mut self.replica, &mut self.out),
            Command::WithWal(work) => return self.with_wal(work),
        }
        Ok(())
    }

    fn propose(
        &mut self,
        op: Op,
        request: Option<RequestId>,
        term: Option<Term>,
        (answer, room): (Answer, Option<Promise>),
    ) {
        // Nobody is elected within one turn, so what the last one left says in which term this is.
        let another = || term.filter(|term| self.shared.status().term != *term).map(other_term);
        let refusal = match self.shared.failure() {
            Some(error) => Some(error),
            None => self.stopping.is_some().then(stopped).or_else(another),
        };
        if let Some(error) = refusal {
            // Whoever asked may have given up; then nobody needs the answer.
            let _gone = answer.send(Err(error));
            return;
        }
        let ticket = self.ticket();
        self.waiting.insert(ticket, (answer, room));
        self.step(Event::Propose { ticket, op, request });
    }

    fn ask(&mut self, event: MakeEvent, answer: oneshot::Sender<Reply>) {
        let ticket = self.ticket();
        self.asked.insert(ticket, answer);
        self.raft(event(ticket));
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    fn raft(&mut self, event: raft::Event) {
        self.step(Event::Raft(event));
    }

    fn step(&mut self, event: Event) {
        self.step_at(self.shared.env.now(), event);
    }

    fn step_at(&mut self, now: Now, event: Event) {
        let clock = &self.shared.clock;
        self.replica.step(now, event, &mut || clock.now(), &mut self.out);
        clock.pass(self.out.seen);
        if let Some(error) = self.replica.failure() {
            self.shared.fail(error);
        }
    }

    /// Lets out what needs no log: messages, answers, metadata.
    fn send(&mut self) {
        let tablet = self.shared.tablet.tablet;
        for (peer, message) in self.out.messages.drain(..) {
            self.shared.config.peers.send(tablet, &peer, message, &self.post);
        }
        for (ticket, reply) in self.out.replies.drain(..) {
            if let Some(answer) = self.asked.remove(&ticket) {
                // Whoever asked may have given up.
                let _gone = answer.send(reply);
            }
        }
        if let Some(newer) = self.out.meta.take() {
            self.meta.next = Some(newer);
        }
        self.store_meta();
    }

    fn store_meta(&mut self) {
        if self.meta.busy || self.shared.failure().is_some() {
            return;
        }
        let Some((number, meta)) = self.meta.next.take() else { return };
        self.meta.busy = true;
        let (env, disk, news) =
            (self.shared.env.clone(), self.replica.data_disk().clone(), self.news.clone());
        self.shared.env.spawn("consensus metadata", async move {
            let stored = env.run(|| engine::replica::cmeta::store(&*disk, &meta)).await;
            tell(&news, Command::MetaStored(number, stored));
        });
    }

    fn meta_stored(&mut self, number: u64, stored: Result<()>) {
        self.meta.busy = false;
        match stored {
            Ok(()) => self.raft(raft::Event::MetaPersisted(number)),
            Err(error) => self.step(Event::MetaFailed(error)),
        }
    }

    /// Gives changes of the log to the log. Entries that only say what was done wait for the next operation.
    fn write_log(&mut self) -> Result<()> {
        while self.shared.failure().is_none() && log::has_operations(&self.out.log) {
            let last = log::last_op(&self.out.log);
            let writes = std::mem::take(&mut self.out.log);
            match &mut self.log {
                Log::Here(wal) => {
                    write_log(wal, writes)?;
                    self.shared.log_bytes.store(wal.bytes(), Ordering::Relaxed);
                    if let Some(last) = last {
                        self.raft(raft::Event::Persisted(last));
                    }
                }
                Log::Beside(works) => {
                    works.send(LogWork::Append { writes, last }).map_err(|_| log::gone())?;
                }
            }
        }
        self.read_log()
    }

    /// Reads what peers that lag need. What was written before is in what is read.
    fn read_log(&mut self) -> Result<()> {
        for read in std::mem::take(&mut self.out.read_log) {
            match &mut self.log {
                Log::Here(wal) => {
                    let result = wal.read(read.from, read.max_bytes);
                    let event = raft::Event::LogRead { peer: read.peer, from: read.from, result };
                    self.raft(event);
                }
                Log::Beside(works) => works.send(LogWork::Read(read)).map_err(|_| log::gone())?,
            }
        }
        Ok(())
    }

    fn with_wal(&mut self, work: log::WithWal) -> Result<()> {
        self.write_log()?;
        let writes = std::mem::take(&mut self.out.log);
        match &mut self.log {
            Log::Here(wal) => {
                log::write_and_sync(wal, writes)?;
                work(wal);
                self.shared.log_bytes.store(wal.bytes(), Ordering::Relaxed);
                Ok(())
            }
            Log::Beside(works) => {
                let append = LogWork::Append { writes, last: None };
                works.send(append).and_then(|()| works.send(LogWork::With(work))).map_err(|_| log::gone())
            }
        }
    }

    /// Hands the notes on: before any message leaves, so that what is told first was first.
    fn tell(&mut self) {
        let tablet = self.shared.tablet.tablet;
        for note in self.out.notes.drain(..) {
            match &note {
                Note::Raft(note) => tracing::trace!(%tablet, %note),
                note => tracing::info!(%tablet, %note),
            }
            self.shared.env.watch.note(tablet, &note);
        }
    }

    /// Answers those whose operations are done, and tells those who follow the replica.
    fn deliver(&mut self) {
        self.tell();
        for (request, timestamp, result) in self.out.completed.drain(..) {
            (self.shared.config.on_completed)(&request, timestamp, &result);
        }
        if std::mem::take(&mut self.out.status_changed) {
            let now = self.shared.env.now();
            self.shared.set_status(self.replica.status(now));
        }
        let progress = std::mem::take(&mut self.out.progress) || !self.out.done.is_empty();
        for done in self.out.done.drain(..) {
            let Some((answer, _)) = self.waiting.remove(&done.ticket) else { continue };
            let (op_id, timestamp) = (done.op_id, done.timestamp);
            let _gone = answer.send(done.result.map(|result| Applied { op_id, timestamp, result }));
        }
        self.give_room_back();
        if progress {
            self.shared.progress.notify_waiters();
        }
    }

    /// What is applied is held by the tablet, and needs no promise any more; what was taken back will never be.
    fn give_room_back(&mut self) {
        let applied = match self.replica.last_applied() {
            applied if applied == self.replica.last_op() => u64::MAX,
            applied => applied.index,
        };
        while self.room.front().is_some_and(|(index, _)| *index <= applied) {
            self.room.pop_front();
        }
    }

    /// Tells all that wait.
    fn refuse(&mut self, error: &Error) {
        for (_, (answer, _)) in std::mem::take(&mut self.waiting) {
            let _gone = answer.send(Err(error.clone()));
        }
        self.asked.clear();
    }

    /// Closes the log with everything in it and hands the replica to whoever stopped it.
    async fn close(mut self) {
        self.asked.clear();
        self.finish_meta().await;
        let writes = std::mem::take(&mut self.out.log);
        let failed = self.shared.failure().is_some();
        match self.log {
            Log::Here(mut wal) if !failed => {
                let env = self.shared.env.clone();
                let closed = env.run(|| log::write_and_sync(&mut wal, writes)).await;
                if let Err(error) = closed {
                    tracing::warn!(%error, "a log could not be closed in order; a restart replays it");
                }
            }
            Log::Here(_) => {}
            Log::Beside(works) => {
                let (answer, closed) = oneshot::channel();
                let append = LogWork::Append { writes, last: None };
                if works.send(append).and_then(|()| works.send(LogWork::Stop(answer))).is_ok() {
                    // An error means that the log task ended with the node.
                    drop(closed.await);
                }
            }
        }
        if let Some(answer) = self.stopping.take() {
            // A caller that went away leaves the replica to be dropped, which closes it too.
            drop(answer.send(self.replica));
        }
    }

    /// Whoever stopped the replica may remove its files: nothing may be written after that.
    async fn finish_meta(&mut self) {
        while self.meta.busy {
            match self.inbox.recv().await {
                Some(Command::MetaStored(..)) | None => self.meta.busy = false,
                // Nobody is served any more.
                Some(_) => {}
            }
        }
    }
}

/// Deadlines of replicas that wait for nothing.
const NEVER: Instant = Instant(u64::MAX);

/// A loop that ended needs no news.
fn tell(news: &mpsc::WeakUnboundedSender<Command>, command: Command) {
    if let Some(inbox) = news.upgrade() {
        let _ended = inbox.send(command);
    }
}

impl From<log::LogDone> for Command {
    fn from(done: log::LogDone) -> Command {
        match done {
            log::LogDone::Persisted(result) => Command::Persisted(result),
            log::LogDone::Read(read, result) => {
                Command::Event(raft::Event::LogRead { peer: read.peer, from: read.from, result })
            }
        }
    }
}
