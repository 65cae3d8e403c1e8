//! One server of the group: a core, pending disk writes, and durable state.

use std::collections::VecDeque;

use bytes::Bytes;
use engine::ids::{OpId, PeerId, Term};
use engine::raft::{
    BootState, ConsensusMeta, LogChange, Raft, RaftConfig, RaftEffects, RaftEvent, RaftOptions, RaftReply,
    Role, TimestampSource, kind,
};
use engine::replica::copy::{LocalData, LocalReplica};
use engine::time::{ClockReading, HybridClock, Instant, Timestamp, WallTime};
use engine::wal::ReplicateEntry;

use super::hibernation::{DeferredEvents, Idle};
use super::ids::TABLET;
use super::replica_store::ReplicaStore;
use super::server_disk::Disk;

pub enum Life {
    Up(Box<Raft>),
    Down,
    /// The server runs, the replica has failed; the last operation of its log, if known.
    Failed(Option<OpId>),
}

pub struct Node {
    pub id: PeerId,
    pub disk: Disk,
    /// Clock error in microseconds.
    pub skew: i64,
    /// Number of starts.
    pub life: u64,
    /// The log in the core's view.
    pub log: Vec<ReplicateEntry>,
    state: Life,
    /// Stored state while there is no replica.
    store: Option<ReplicaStore>,
    clock: HybridClock,
    log_queue: VecDeque<LogChange>,
    meta_queue: VecDeque<(u64, ConsensusMeta)>,
    output: RaftEffects,
    pub deferred: DeferredEvents,
    /// Core status that the server last observed.
    reported_status: Option<ReportedStatus>,
}

/// Fields of a core's status: role, term, leader, configurations, true if it transfers its leadership.
type ReportedStatus = (Role, Term, Option<PeerId>, RaftConfig, Option<RaftConfig>, bool);

fn reported_status(raft: &Raft) -> ReportedStatus {
    let whenever = ClockReading { mono: Instant(0), wall: WallTime { micros: 0, error_micros: 0 } };
    let status = raft.status(whenever);
    let configs = (status.committed_config, status.pending_config);
    (status.role, status.term, status.leader, configs.0, configs.1, status.transferring)
}

struct NodeClock<'a> {
    hybrid: &'a mut HybridClock,
    wall: WallTime,
}

impl TimestampSource for NodeClock<'_> {
    fn begin(&mut self) -> Timestamp {
        self.take()
    }

    fn take(&mut self) -> Timestamp {
        self.hybrid.now(self.wall)
    }

    fn pass(&mut self, seen: Timestamp) {
        self.hybrid.pass(seen);
    }
}

impl Node {
    pub fn new(id: PeerId, disk: Disk, skew: i64) -> Node {
        let store = disk.meta.is_none().then(ReplicaStore::empty);
        Node {
            id,
            disk,
            store,
            skew,
            life: 0,
            log: Vec::new(),
            state: Life::Down,
            clock: HybridClock::new(10_000_000),
            log_queue: VecDeque::new(),
            meta_queue: VecDeque::new(),
            output: RaftEffects::default(),
            deferred: DeferredEvents::default(),
            reported_status: None,
        }
    }

    pub fn raft(&self) -> Option<&Raft> {
        match &self.state {
            Life::Up(raft) => Some(raft),
            Life::Down | Life::Failed(_) => None,
        }
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, Life::Up(_))
    }

    pub fn is_failed(&self) -> bool {
        matches!(self.state, Life::Failed(_))
    }

    /// Returns true for a replica whose server is not running, or that failed. A server without a replica always runs.
    pub fn is_down(&self) -> bool {
        !self.is_up() && !self.has_no_replica()
    }

    /// Returns true if there is no replica: never, not yet, or a tombstone.
    pub fn has_no_replica(&self) -> bool {
        self.store.is_some()
    }

    pub fn is_copying(&self) -> bool {
        self.store.as_ref().is_some_and(ReplicaStore::is_copying)
    }

    /// Runs `work` on the stored state of a server without a replica.
    pub fn with_store<R>(&mut self, work: impl FnOnce(&mut ReplicaStore) -> R) -> R {
        let store = self.store.as_mut().expect("there is no replica here");
        let done = work(store);
        self.disk = Disk { meta: store.meta(), tombstone: store.last_op(), ..Disk::default() };
        done
    }

    /// Opens the copied replica of a complete copy. Returns true if there is a replica now.
    pub fn open_copied(&mut self) -> bool {
        let Some(disk) = self.store.as_mut().and_then(ReplicaStore::finish) else { return false };
        (self.disk, self.store) = (disk, None);
        true
    }

    /// Returns the last operation in the log of a replica that does not run.
    pub fn persisted_last_op(&self) -> Option<OpId> {
        if let Life::Failed(last) = self.state { last } else { self.disk.tombstone }
    }

    /// Returns true if a replica is or was here and the end of its log is unknown.
    pub fn has_unknown_log_end(&self) -> bool {
        let without = self.is_failed() || (self.has_no_replica() && self.disk.meta.is_some());
        without && self.persisted_last_op().is_none()
    }

    /// Returns the local state that the server would report when it is told to copy.
    pub fn local(&self) -> LocalReplica {
        let has = match &self.store {
            Some(store) => store.has(),
            None if self.is_failed() => LocalData::Failed,
            None => LocalData::Replica,
        };
        let term = self.disk.meta.as_ref().map_or(0, |meta| meta.term);
        LocalReplica {
            server: self.id,
            tablet: TABLET,
            has,
            last_op: self.persisted_last_op(),
            at_least: OpId::MIN,
            term,
            rejected: None,
        }
    }

    pub fn deadline(&self) -> Instant {
        self.raft().map_or(Instant(u64::MAX), Raft::deadline)
    }

    pub fn boot(&mut self, seed: u64, pick: u64, fresh: bool) -> Option<BootState> {
        if self.is_up() || self.has_no_replica() {
            return None;
        }
        let disk = &mut self.disk;
        let mut meta = disk.meta.clone()?;
        let committed = disk.committed as usize;
        let configs = disk.log[..committed].iter().filter(|entry| entry.kind == kind::CONFIG);
        if let Some(entry) = configs.last()
            && Some(entry.op.index) > meta.committed.opid_index
        {
            meta.committed = RaftConfig::decode(&entry.payload).expect("it was in the log");
        }
        let last = committed.checked_sub(1).map(|at| &disk.log[at]);
        let last_term = disk.log.last().map_or(0, |e| e.op.term);
        let elected = if pick.is_multiple_of(2) { meta.elect_only_voter(self.id, last_term) } else { None };
        if elected.is_some() {
            disk.meta = Some(meta.clone());
        }
        Some(BootState {
            me: self.id,
            address: None,
            meta,
            meta_stored: true,
            elected,
            fresh,
            committed: last.map_or(OpId::MIN, |entry| entry.op),
            committed_at: last.map_or(Timestamp::MIN, |entry| entry.timestamp),
            pending: disk.log[committed..].to_vec(),
            seed,
        })
    }

    pub fn start(&mut self, now: ClockReading, boot: BootState, options: RaftOptions) {
        self.life += 1;
        self.log = self.disk.log.clone();
        self.reported_status = None;
        self.clock = HybridClock::new(10_000_000);
        let mut raft = Raft::new(options, boot);
        let mut clock = NodeClock { hybrid: &mut self.clock, wall: now.wall };
        raft.start(now, &mut clock, &mut self.output);
        self.state = Life::Up(Box::new(raft));
    }

    pub fn step(&mut self, now: ClockReading, event: RaftEvent) -> bool {
        let Life::Up(raft) = &self.state else { return false };
        let idle = Idle::of(raft, &event);
        self.deferred.seen += u64::from(idle.is_some());
        match idle {
            Some(idle) if self.deferred.defers => self.defer(now, event, idle),
            idle => {
                self.process_deferred();
                self.step_at(now, event);
                idle.iter().for_each(|idle| idle.check(&self.output));
            }
        }
        true
    }

    /// Replies at once and defers the event.
    fn defer(&mut self, now: ClockReading, event: RaftEvent, idle: Idle) {
        if let (RaftEvent::Update { ticket, .. }, Idle::Heartbeat(answer)) = (&event, &idle) {
            self.output.replies.push((*ticket, RaftReply::Update(answer.clone())));
        }
        self.deferred.queue.push((now, event, idle));
    }

    fn process_deferred(&mut self) {
        for (now, event, idle) in std::mem::take(&mut self.deferred.queue) {
            let before = std::mem::take(&mut self.output);
            self.step_at(now, event);
            idle.check(&self.output);
            let notes = std::mem::replace(&mut self.output, before).notes;
            self.output.notes.extend(notes);
        }
    }

    fn step_at(&mut self, now: ClockReading, event: RaftEvent) {
        let Life::Up(raft) = &mut self.state else { return };
        let mut clock = NodeClock { hybrid: &mut self.clock, wall: now.wall };
        raft.step(now, event, &mut clock, &mut self.output);
    }

    pub fn propose(&mut self, now: ClockReading, payload: Bytes) -> bool {
        self.process_deferred();
        let Life::Up(raft) = &mut self.state else { return false };
        let mut clock = NodeClock { hybrid: &mut self.clock, wall: now.wall };
        if raft.propose(kind::WRITE, payload, &mut clock, &mut self.output).is_err() {
            return false;
        }
        raft.send_pending_updates(now, &mut self.output);
        true
    }

    /// Lets a reader wait here until `at` is safe.
    pub fn want_safe_time(&mut self, now: ClockReading, at: Timestamp) {
        self.process_deferred();
        let Life::Up(raft) = &mut self.state else { return };
        let mut clock = NodeClock { hybrid: &mut self.clock, wall: now.wall };
        raft.want_safe_time(now, at, &mut clock, &mut self.output);
    }

    /// Returns the output of the last step; its writes are queued.
    pub fn take_output(&mut self) -> RaftEffects {
        let output = std::mem::take(&mut self.output);
        for change in &output.log {
            match change {
                LogChange::Append { entry, .. } => self.log.push(entry.clone()),
                LogChange::Truncate { after } => self.log.truncate(*after as usize),
            }
        }
        self.log_queue.extend(output.log.iter().cloned());
        self.meta_queue.extend(output.meta.iter().cloned());
        self.observe_status(output.status_changed);
        if let Some(raft) = self.raft() {
            assert_eq!(
                self.log.last().map_or(OpId::MIN, |entry| entry.op),
                raft.last(),
                "the log of {}",
                self.id
            );
        }
        output
    }

    /// Checks that the core reported a change of its status. `reported` is true if it reported one.
    fn observe_status(&mut self, reported: bool) {
        let Some(reported_status) = self.raft().map(reported_status) else { return };
        if let Some(before) = self.reported_status.take()
            && !reported
        {
            assert_eq!(before, reported_status, "{} does not report that its status changed", self.id);
        }
        self.reported_status = Some(reported_status);
    }

    /// Does one or several writes and returns the event that reports them.
    pub fn write(&mut self, pick: u64) -> Option<RaftEvent> {
        if let Life::Up(raft) = &self.state {
            let applied = raft.committed().index.min(self.disk.log.len() as u64);
            // A durable and committed entry may have its commit record too, unless it is about to be truncated.
            if self.log_queue.is_empty() && pick.is_multiple_of(3) {
                self.disk.committed = applied;
            }
        }
        if pick.is_multiple_of(2)
            && let Some((number, meta)) = self.meta_queue.pop_front()
        {
            self.disk.meta = Some(meta);
            return Some(RaftEvent::MetaPersisted(number));
        }
        let count = 1 + (pick / 8) as usize % 4;
        let mut last = None;
        for change in self.log_queue.drain(..count.min(self.log_queue.len())) {
            if let LogChange::Append { entry, .. } = &change {
                last = Some(entry.op);
            }
            self.disk.change(change);
        }
        last.map(RaftEvent::Persisted)
    }

    /// Stores the oldest pending metadata, if any.
    pub fn write_meta(&mut self) -> Option<RaftEvent> {
        let (number, meta) = self.meta_queue.pop_front()?;
        self.disk.meta = Some(meta);
        Some(RaftEvent::MetaPersisted(number))
    }

    /// Does all pending writes of the log.
    pub fn write_log(&mut self) -> Option<RaftEvent> {
        let mut last = None;
        for change in std::mem::take(&mut self.log_queue) {
            if let LogChange::Append { entry, .. } = &change {
                last = Some(entry.op);
            }
            self.disk.change(change);
        }
        last.map(RaftEvent::Persisted)
    }

    /// Drops the state in memory; of the unconfirmed writes, some are done.
    pub fn crash(&mut self, luck: u64) {
        let done = luck as usize % (self.log_queue.len() + 1);
        for change in self.log_queue.drain(..).take(done).collect::<Vec<_>>() {
            self.disk.change(change);
        }
        if luck & (1 << 40) != 0
            && let Some((_, meta)) = self.meta_queue.pop_front()
        {
            self.disk.meta = Some(meta);
        }
        self.stop();
    }

    fn stop(&mut self) {
        self.log_queue.clear();
        self.meta_queue.clear();
        self.output = RaftEffects::default();
        self.deferred.queue.clear();
        self.state = Life::Down;
        self.life += 1;
    }

    /// Deletes the data after the queued writes are durable, and keeps the persisted vote.
    pub fn tombstone(&mut self) {
        let (last, meta) = match (&self.state, &self.disk.meta) {
            (Life::Up(raft), _) => (Some(raft.last()), raft.meta().clone()),
            (Life::Failed(last), Some(meta)) => (*last, meta.clone()),
            _ => return,
        };
        self.stop();
        self.store = Some(ReplicaStore::tombstone(&meta, last));
        self.with_store(|_| ());
        self.log.clear();
    }

    /// Ends the replica with an error; queued writes may never reach the disk. `knows`: the server still knows the last
    /// operation of the log.
    pub fn fail(&mut self, knows: bool) {
        let Some(raft) = self.raft() else { return };
        let (last, committed) = (raft.last(), raft.committed().index);
        self.stop();
        self.disk.committed = committed.min(self.disk.log.len() as u64);
        self.state = Life::Failed(knows.then_some(last));
    }

    /// Prepares a failed replica for its replacement by a copy.
    pub fn prepare_replacement(&mut self) {
        let failed = self.is_failed().then(|| self.disk.meta.as_ref().map(ReplicaStore::failed)).flatten();
        if failed.is_some() {
            self.stop();
            self.store = failed;
            self.log.clear();
        }
    }
}
