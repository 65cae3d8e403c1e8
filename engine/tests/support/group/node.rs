//! One server of the group: a core, the writes its disk has yet to do, and what is durable.
#![allow(dead_code)] // each test uses a part

use std::collections::VecDeque;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::ids::{OpId, PeerId, Term};
use engine::raft::{
    Boot, Clock, Config, ConsensusMeta, Event, LogChange, Output, Raft, RaftOptions, Reply, Role, kind,
};
use engine::replica::copy::{Has, Local};
use engine::time::{HybridClock, Instant, Now, Timestamp, WallTime};
use engine::wal::Replicate;

use super::resting::{Idle, Resting};
use super::shelf::Shelf;

/// What survives a crash.
#[derive(Default)]
pub struct Disk {
    /// Of a replica or a tombstone.
    pub meta: Option<ConsensusMeta>,
    /// From index 1 on.
    pub log: Vec<Replicate>,
    /// The last commit record.
    pub committed: u64,
    /// What a tombstone, or a copy under way, remembers.
    pub tombstone: Option<OpId>,
    /// Entries below can no longer be read for peers.
    pub gc_before: u64,
}

impl Disk {
    pub fn with(meta: ConsensusMeta) -> Disk {
        Disk { meta: Some(meta), ..Disk::default() }
    }

    pub fn read(&self, from: u64, max_bytes: usize) -> Result<Vec<Replicate>> {
        if from < self.gc_before || from == 0 {
            return Err(Error::not_found("the log no longer has it"));
        }
        let (mut bytes, mut entries) = (0, Vec::new());
        for entry in self.log.iter().skip(from as usize - 1) {
            bytes += entry.payload.len();
            if bytes > max_bytes && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        Ok(entries)
    }

    fn change(&mut self, change: LogChange) {
        match change {
            LogChange::Append { entry, .. } => {
                assert_eq!(entry.op.index, self.log.len() as u64 + 1, "the log is written in order");
                self.log.push(entry);
            }
            LogChange::Truncate { after } => self.log.truncate(after as usize),
        }
    }
}

pub enum Life {
    Up(Box<Raft>),
    Down,
    /// The server runs, the replica does not: how far its log went, if that is known.
    Failed(Option<OpId>),
}

pub struct Node {
    pub id: PeerId,
    pub disk: Disk,
    /// Microseconds its clock is off.
    pub skew: i64,
    /// How often it was started.
    pub life: u64,
    /// The log as the core believes it to be.
    pub log: Vec<Replicate>,
    state: Life,
    /// Where things are while there is no replica.
    shelf: Option<Shelf>,
    clock: HybridClock,
    log_queue: VecDeque<LogChange>,
    meta_queue: VecDeque<(u64, ConsensusMeta)>,
    output: Output,
    pub resting: Resting,
    /// What its server showed of the core last.
    shown: Option<Shown>,
}

/// Of a core's status: role, term, leader, configurations, whether it hands over.
type Shown = (Role, Term, Option<PeerId>, Config, Option<Config>, bool);

fn shown(raft: &Raft) -> Shown {
    let whenever = Now { mono: Instant(0), wall: WallTime { micros: 0, error_micros: 0 } };
    let status = raft.status(whenever);
    let configs = (status.committed_config, status.pending_config);
    (status.role, status.term, status.leader, configs.0, configs.1, status.transferring)
}

struct NodeClock<'a> {
    hybrid: &'a mut HybridClock,
    wall: WallTime,
}

impl Clock for NodeClock<'_> {
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
        let shelf = disk.meta.is_none().then(Shelf::empty);
        Node {
            id,
            disk,
            shelf,
            skew,
            life: 0,
            log: Vec::new(),
            state: Life::Down,
            clock: HybridClock::new(10_000_000),
            log_queue: VecDeque::new(),
            meta_queue: VecDeque::new(),
            output: Output::default(),
            resting: Resting::default(),
            shown: None,
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

    /// A replica whose server is not running, or that failed. A server without a replica always runs.
    pub fn is_down(&self) -> bool {
        !self.is_up() && !self.is_empty_handed()
    }

    /// No replica: never, not yet, or a tombstone.
    pub fn is_empty_handed(&self) -> bool {
        self.shelf.is_some()
    }

    pub fn is_copying(&self) -> bool {
        self.shelf.as_ref().is_some_and(Shelf::is_copying)
    }

    /// Does something with what a server without a replica has.
    pub fn on_shelf<R>(&mut self, work: impl FnOnce(&mut Shelf) -> R) -> R {
        let shelf = self.shelf.as_mut().expect("there is no replica here");
        let done = work(shelf);
        self.disk = Disk { meta: shelf.meta(), tombstone: shelf.last_op(), ..Disk::default() };
        done
    }

    /// The copy is complete: whether there is a replica now.
    pub fn unshelve(&mut self) -> bool {
        let Some(disk) = self.shelf.as_mut().and_then(Shelf::finish) else { return false };
        (self.disk, self.shelf) = (disk, None);
        true
    }

    /// How far the log went of what does not run.
    pub fn remembers(&self) -> Option<OpId> {
        if let Life::Failed(last) = self.state { last } else { self.disk.tombstone }
    }

    /// Whether there is or was a replica here of whose log nobody knows any more how far it went.
    pub fn is_blind(&self) -> bool {
        let without = self.is_failed() || (self.is_empty_handed() && self.disk.meta.is_some());
        without && self.remembers().is_none()
    }

    /// What it would say of itself when it is told to copy.
    pub fn local(&self) -> Local {
        let has = match &self.shelf {
            Some(shelf) => shelf.has(),
            None if self.is_failed() => Has::Failed,
            None => Has::Replica,
        };
        let term = self.disk.meta.as_ref().map_or(0, |meta| meta.term);
        Local { tablet: super::TABLET, has, last_op: self.remembers(), at_least: OpId::MIN, term }
    }

    pub fn deadline(&self) -> Instant {
        self.raft().map_or(Instant(u64::MAX), Raft::deadline)
    }

    pub fn boot(&mut self, seed: u64, pick: u64, fresh: bool) -> Option<Boot> {
        if self.is_up() || self.is_empty_handed() {
            return None;
        }
        let disk = &mut self.disk;
        let mut meta = disk.meta.clone()?;
        let committed = disk.committed as usize;
        let configs = disk.log[..committed].iter().filter(|entry| entry.kind == kind::CONFIG);
        if let Some(entry) = configs.last()
            && Some(entry.op.index) > meta.committed.opid_index
        {
            meta.committed = Config::decode(&entry.payload).expect("it was in the log");
        }
        let last = committed.checked_sub(1).map(|at| &disk.log[at]);
        let last_term = disk.log.last().map_or(0, |e| e.op.term);
        let elected = if pick.is_multiple_of(2) { meta.elect_only_voter(self.id, last_term) } else { None };
        if elected.is_some() {
            disk.meta = Some(meta.clone());
        }
        Some(Boot {
            me: self.id,
            meta,
            elected,
            fresh,
            committed: last.map_or(OpId::MIN, |entry| entry.op),
            committed_at: last.map_or(Timestamp::MIN, |entry| entry.timestamp),
            pending: disk.log[committed..].to_vec(),
            seed,
        })
    }

    pub fn start(&mut self, now: Now, boot: Boot, options: RaftOptions) {
        self.life += 1;
        self.log = self.disk.log.clone();
        self.shown = None;
        self.clock = HybridClock::new(10_000_000);
        let mut raft = Raft::new(options, boot);
        let mut clock = NodeClock { hybrid: &mut self.clock, wall: now.wall };
        raft.start(now, &mut clock, &mut self.output);
        self.state = Life::Up(Box::new(raft));
    }

    pub fn step(&mut self, now: Now, event: Event) -> bool {
        let Life::Up(raft) = &self.state else { return false };
        let idle = Idle::of(raft, &event);
        self.resting.seen += u64::from(idle.is_some());
        match idle {
            Some(idle) if self.resting.keeps => self.keep(now, event, idle),
            idle => {
                self.end_rest();
                self.step_at(now, event);
                idle.iter().for_each(|idle| idle.check(&self.output));
            }
        }
        true
    }

    /// Answers at once and lets the core see it later.
    fn keep(&mut self, now: Now, event: Event, idle: Idle) {
        if let (Event::Update { ticket, .. }, Idle::Heartbeat(answer)) = (&event, &idle) {
            self.output.replies.push((*ticket, Reply::Update(answer.clone())));
        }
        self.resting.kept.push((now, event, idle));
    }

    fn end_rest(&mut self) {
        for (now, event, idle) in std::mem::take(&mut self.resting.kept) {
            let before = std::mem::take(&mut self.output);
            self.step_at(now, event);
            idle.check(&self.output);
            let notes = std::mem::replace(&mut self.output, before).notes;
            self.output.notes.extend(notes);
        }
    }

    fn step_at(&mut self, now: Now, event: Event) {
        let Life::Up(raft) = &mut self.state else { return };
        let mut clock = NodeClock { hybrid: &mut self.clock, wall: now.wall };
        raft.step(now, event, &mut clock, &mut self.output);
    }

    pub fn propose(&mut self, now: Now, payload: Bytes) -> bool {
        self.end_rest();
        let Life::Up(raft) = &mut self.state else { return false };
        let mut clock = NodeClock { hybrid: &mut self.clock, wall: now.wall };
        if raft.propose(kind::WRITE, payload, &mut clock, &mut self.output).is_err() {
            return false;
        }
        raft.pump(now, &mut self.output);
        true
    }

    /// A reader here waits until `at` is safe.
    pub fn want_safe_time(&mut self, now: Now, at: Timestamp) {
        self.end_rest();
        let Life::Up(raft) = &mut self.state else { return };
        let mut clock = NodeClock { hybrid: &mut self.clock, wall: now.wall };
        raft.want_safe_time(now, at, &mut clock, &mut self.output);
    }

    /// What the last step gave out; its writes are queued.
    pub fn take_output(&mut self) -> Output {
        let output = std::mem::take(&mut self.output);
        for change in &output.log {
            match change {
                LogChange::Append { entry, .. } => self.log.push(entry.clone()),
                LogChange::Truncate { after } => self.log.truncate(*after as usize),
            }
        }
        self.log_queue.extend(output.log.iter().cloned());
        self.meta_queue.extend(output.meta.iter().cloned());
        self.show(output.status_changed);
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

    /// A server looks at its core's status when it is told that it changed.
    fn show(&mut self, told: bool) {
        let Some(shown) = self.raft().map(shown) else { return };
        if let Some(before) = self.shown.take()
            && !told
        {
            assert_eq!(before, shown, "{} does not say that its status changed", self.id);
        }
        self.shown = Some(shown);
    }

    /// Does a write or several; the event that says so.
    pub fn write(&mut self, pick: u64) -> Option<Event> {
        if let Life::Up(raft) = &self.state {
            let applied = raft.committed().index.min(self.disk.log.len() as u64);
            // What is durable and committed may have its commit record too, unless it is about to be taken back.
            if self.log_queue.is_empty() && pick.is_multiple_of(3) {
                self.disk.committed = applied;
            }
        }
        if pick.is_multiple_of(2)
            && let Some((number, meta)) = self.meta_queue.pop_front()
        {
            self.disk.meta = Some(meta);
            return Some(Event::MetaPersisted(number));
        }
        let count = 1 + (pick / 8) as usize % 4;
        let mut last = None;
        for change in self.log_queue.drain(..count.min(self.log_queue.len())) {
            if let LogChange::Append { entry, .. } = &change {
                last = Some(entry.op);
            }
            self.disk.change(change);
        }
        last.map(Event::Persisted)
    }

    /// Stores the oldest metadata that waits for it, if any.
    pub fn write_meta(&mut self) -> Option<Event> {
        let (number, meta) = self.meta_queue.pop_front()?;
        self.disk.meta = Some(meta);
        Some(Event::MetaPersisted(number))
    }

    /// Does all that waits for the log.
    pub fn write_log(&mut self) -> Option<Event> {
        let mut last = None;
        for change in std::mem::take(&mut self.log_queue) {
            if let LogChange::Append { entry, .. } = &change {
                last = Some(entry.op);
            }
            self.disk.change(change);
        }
        last.map(Event::Persisted)
    }

    /// Loses what is in memory; of the writes not confirmed, some are done.
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
        self.output = Output::default();
        self.resting.kept.clear();
        self.state = Life::Down;
        self.life += 1;
    }

    /// Deletes the data, after everything queued is durable, and keeps the promises.
    pub fn tombstone(&mut self) {
        let (last, meta) = match (&self.state, &self.disk.meta) {
            (Life::Up(raft), _) => (Some(raft.last()), raft.meta().clone()),
            (Life::Failed(last), Some(meta)) => (*last, meta.clone()),
            _ => return,
        };
        self.stop();
        self.shelf = Some(Shelf::tombstone(&meta, last));
        self.on_shelf(|_| ());
        self.log.clear();
    }

    /// The replica ends by an error; what is queued may not reach the disk any more. `knows`: its server still knows how
    /// far its log went.
    pub fn fail(&mut self, knows: bool) {
        let Some(raft) = self.raft() else { return };
        let (last, committed) = (raft.last(), raft.committed().index);
        self.stop();
        self.disk.committed = committed.min(self.disk.log.len() as u64);
        self.state = Life::Failed(knows.then_some(last));
    }

    /// A copy is about to replace a replica that failed.
    pub fn give_way(&mut self) {
        let failed = self.is_failed().then(|| self.disk.meta.as_ref().map(Shelf::failed)).flatten();
        if failed.is_some() {
            self.stop();
            self.shelf = failed;
            self.log.clear();
        }
    }
}
