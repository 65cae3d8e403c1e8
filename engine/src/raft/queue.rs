//! The leader's view of each peer: what it has, what is on its way, what to send next.
//!
//! ```text
//!   probing     one update at a time from where the logs may agree: `base`
//!      │ accepted                          ▲ refused: jump to what the follower knows to be committed;
//!      ▼                                   │ lost: again, later
//!   streaming   several updates on their way, each full of what there is
//! ```
//!
//! Entries that are no longer in memory are read from the log, while heartbeats go on. If what follows the jump is gone
//! from the log, the peer may still share more than it knows to be committed (a crash can take that knowledge): later
//! entries are tried. If that fails, too, the peer cannot be helped. One without a
//! replica is told to copy one.

use super::config::Member;
use super::log::RaftLog;
use super::message::{Health, Message, PeerStatus, ReadLog, UpdateRequest, UpdateResponse};
use super::{ConsensusMeta, Peer, RaftOptions};
use crate::ids::{OpId, PeerId, Term};
use crate::time::{Instant, Timestamp};
use crate::wal::Replicate;

/// One peer, as the leader sees it.
pub(super) struct Progress {
    pub peer: Peer,
    /// The first entry not sent yet.
    next: u64,
    /// Where sending starts again when something went wrong.
    base: u64,
    /// It is known to have everything up to here, durably.
    pub matched: u64,
    /// It was last told that everything up to here is committed.
    told: u64,
    matched_term: Term,
    probing: bool,
    /// Numbers of the updates on their way.
    inflight: Vec<u64>,
    /// A reader waits for an answer to what is sent from here on.
    pub asked: bool,
    failures: u32,
    retry_at: Instant,
    /// When it was first sent anything: its silence counts from there, however long the leader has led.
    first_sent: Option<Instant>,
    last_sent: Option<Instant>,
    pub heard: Option<Instant>,
    /// The newest update that it answered in this term: it had not voted for anybody else by then.
    pub confirmed: u64,
    /// The index from which entries are being read for it.
    reading: Option<u64>,
    /// What was read, and the entry before it.
    read: Option<(OpId, Vec<Replicate>)>,
    copy: Copy,
    /// The log here no longer has what it needs.
    pub unrecoverable: bool,
    /// It said that its replica has failed; a restart of its server may mend that.
    pub broken: bool,
    /// The end of its log, when it refused an update.
    their_last: OpId,
    /// The log here begins after this one; entries after it are tried instead, from `base` down.
    gone: Option<u64>,
    /// The health that the last report could have shown.
    pub reported: Health,
}

/// Whether a peer needs a copy of the tablet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copy {
    No,
    Wanted,
    /// It was asked to begin and has not answered.
    Asked,
}

/// Heartbeats may be on their way besides full updates.
const SPARE_INFLIGHT: usize = 2;

impl Progress {
    pub fn new(peer: Peer, base: u64) -> Progress {
        Progress {
            peer,
            next: base + 1,
            base,
            matched: 0,
            matched_term: 0,
            told: 0,
            probing: true,
            inflight: Vec::new(),
            asked: false,
            failures: 0,
            retry_at: Instant(0),
            first_sent: None,
            last_sent: None,
            heard: None,
            confirmed: 0,
            reading: None,
            read: None,
            copy: Copy::No,
            unrecoverable: false,
            broken: false,
            their_last: OpId::MIN,
            gone: None,
            reported: Health::Unknown,
        }
    }

    /// An update came back, one way or the other. False if it is none of those on their way: then it tells of a
    /// replica that may be gone since, and must not be believed.
    pub fn landed(&mut self, sent: u64) -> bool {
        let at = self.inflight.iter().position(|number| *number == sent);
        at.map(|at| self.inflight.remove(at)).is_some()
    }

    /// It took what it was sent.
    pub fn accepted(&mut self, response: &UpdateResponse, log: &RaftLog) {
        (self.failures, self.broken) = (0, false);
        let op = response.last_received_current_leader;
        // An entry whose term is not known here any more is committed, and the same everywhere.
        let same = log.term_at(op.index).is_none_or(|term| term == op.term) && op.index <= log.last().index;
        if op.index > self.matched && same {
            (self.matched, self.matched_term) = (op.index, op.term);
            (self.unrecoverable, self.gone) = (false, None);
        }
        self.probing = false;
        self.base = self.base.max(self.matched);
        self.next = self.next.max(self.matched + 1);
    }

    /// Its log is another one: begins again after the last entry that surely is the same.
    pub fn jump(&mut self, response: &UpdateResponse, log: &RaftLog) {
        let same = if log.holds(response.last_received) {
            response.last_received.index
        } else {
            response.last_committed.min(log.last().index)
        };
        (self.failures, self.broken) = (0, false);
        self.their_last = response.last_received;
        match self.gone {
            // What agrees at one place agrees before it: halfway down, until it does.
            Some(gone) if same <= gone => self.try_later_entry(gone, gone + (self.base.max(gone) - gone) / 2),
            _ => self.restart(same.max(self.matched)),
        }
    }

    /// The log here begins after `gone`: goes on from `index`, which the peer may share.
    fn try_later_entry(&mut self, gone: u64, index: u64) {
        if index > gone {
            self.restart(index);
        } else {
            self.unrecoverable = true;
        }
    }

    /// It cannot be reached or cannot take anything: later, from where it is known to be.
    pub fn failed(&mut self, now: Instant, options: &RaftOptions) {
        let wait = options.heartbeat_interval * (1 << self.failures.min(2));
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now.after(wait.min(options.backoff_max));
        self.restart(self.base);
    }

    fn restart(&mut self, base: u64) {
        (self.base, self.next, self.probing) = (base, base + 1, true);
        (self.reading, self.read, self.told) = (None, None, 0);
    }

    /// It has no replica (any more).
    pub fn lost_everything(&mut self) {
        (self.matched, self.matched_term) = (0, 0);
        (self.unrecoverable, self.broken, self.gone) = (false, false, None);
        self.inflight.clear();
        if self.copy == Copy::No {
            self.copy = Copy::Wanted;
        }
    }

    pub fn copy_begun(&mut self, begun: bool, now: Instant, options: &RaftOptions) {
        // Whether it began or not, the next update will tell when it is done or has to be asked again.
        self.copy = Copy::No;
        self.failed(now, options);
        if begun {
            self.failures = 0;
            self.heard = Some(now);
        }
    }

    /// The leader's entry at `index`: from its log, or from what the peer said.
    fn op_at(&self, index: u64, log: &RaftLog) -> Option<OpId> {
        let matched = OpId { term: self.matched_term, index: self.matched };
        log.op_at(index).or_else(|| (index == self.matched).then_some(matched))
    }

    /// Entries from the log. What is beyond `committed` may be another leader's: the disk can be behind.
    pub fn took(&mut self, from: u64, mut entries: Vec<Replicate>, committed: u64, log: &RaftLog) {
        if self.reading != Some(from) {
            return;
        }
        self.reading = None;
        entries.retain(|entry| entry.op.index <= committed);
        let preceding = if from < self.next {
            (!entries.is_empty()).then(|| entries.remove(0).op)
        } else {
            self.op_at(from - 1, log)
        };
        let contiguous = entries.iter().zip(self.next..).all(|(entry, index)| entry.op.index == index);
        if let Some(preceding) = preceding
            && preceding.index + 1 == self.next
            && contiguous
        {
            self.read = Some((preceding, entries));
        }
    }

    /// The log does not have what it needs.
    pub fn out_of_reach(&mut self, from: u64, log: &RaftLog) {
        if self.reading == Some(from) {
            self.gone = Some(from);
            self.restart(self.base);
            let end = self.their_last.index.min(log.last().index);
            self.try_later_entry(from, log.last_shareable(self.their_last).unwrap_or(end));
        }
    }

    pub fn read_failed(&mut self, from: u64, now: Instant, options: &RaftOptions) {
        if self.reading == Some(from) {
            self.failed(now, options);
        }
    }

    pub fn health(&self, now: Instant, options: &RaftOptions) -> Health {
        let since = self.heard.or(self.first_sent).unwrap_or(now);
        let silent = now.since(since) >= options.follower_failed_after;
        match self.heard {
            _ if self.unrecoverable || self.broken => Health::FailedUnrecoverable,
            _ if silent => Health::Failed,
            None => Health::Unknown,
            Some(_) => Health::Healthy,
        }
    }

    pub fn status(&self, now: Instant, options: &RaftOptions) -> PeerStatus {
        PeerStatus {
            id: self.peer.id,
            member: self.peer.member,
            health: self.health(now, options),
            matched: self.matched,
            silent: self.heard.map(|at| now.since(at)),
        }
    }

    /// Whether it lacks no more than one update can carry.
    pub fn is_caught_up(&self, committed: u64, log: &RaftLog, options: &RaftOptions) -> bool {
        let close = || {
            let lacking = log.bytes_between(self.matched, committed);
            lacking.is_some_and(|bytes| bytes <= options.batch_bytes_max)
        };
        !self.probing && self.matched > 0 && (self.matched >= committed || close())
    }

    /// A non-voter that is to become a voter.
    pub fn wants_promotion(&self) -> bool {
        self.peer.member == Member::NonVoter && self.peer.promote && !self.unrecoverable && !self.broken
    }

    fn heartbeat_at(&self, options: &RaftOptions) -> Instant {
        let due = self.last_sent.map_or(Instant(0), |at| options.heartbeat_after(at));
        due.max(self.retry_at)
    }

    /// It has what is committed and was not told so: those who read there would wait for the next heartbeat.
    fn should_hear_of(&self, committed: u64) -> bool {
        self.told < committed && self.matched >= committed && !self.probing && self.inflight.is_empty()
    }

    /// It has everything, knows so, and there is room for the next heartbeat whether or not the last was answered.
    pub fn is_at_rest(&self, last: OpId, options: &RaftOptions) -> bool {
        let has_all = self.matched == last.index && self.told == last.index && !self.probing;
        let healthy = self.reported == Health::Healthy && self.failures == 0 && self.copy == Copy::No;
        has_all && healthy && !self.asked && !self.is_full(options) && !self.wants_promotion()
    }

    fn is_full(&self, options: &RaftOptions) -> bool {
        self.inflight.len() >= options.inflight_max + SPARE_INFLIGHT
    }

    pub fn deadline(&self, options: &RaftOptions) -> Instant {
        match self.copy {
            Copy::Wanted => self.retry_at,
            Copy::Asked => Instant(u64::MAX),
            // An answer will come, if only that there is none.
            Copy::No if self.is_full(options) => Instant(u64::MAX),
            Copy::No => self.heartbeat_at(options),
        }
    }
}

/// What all updates of one moment have in common.
pub(super) struct Queue<'a> {
    pub now: Instant,
    pub options: &'a RaftOptions,
    pub log: &'a RaftLog,
    pub meta: &'a ConsensusMeta,
    pub me: PeerId,
    pub committed: u64,
    pub all_replicated: u64,
    /// A safe time, and the last entry before it was picked.
    pub safe: Option<(Timestamp, u64)>,
}

impl Queue<'_> {
    /// Adds what `to` should be sent now.
    pub fn fill(
        &self,
        to: &mut Progress,
        sent: &mut u64,
        messages: &mut Vec<(Peer, Message)>,
        reads: &mut Vec<ReadLog>,
    ) {
        if self.now < to.retry_at || to.copy == Copy::Asked {
            return;
        }
        if to.copy == Copy::Wanted {
            to.copy = Copy::Asked;
            if let Some(source) = self.myself() {
                messages.push((to.peer.clone(), Message::StartCopy { source, term: self.meta.term }));
            }
            return;
        }
        let before = *sent;
        while let Some((preceding, entries)) = self.next_entries(to, reads) {
            messages.push(self.update(to, sent, preceding, entries));
        }
        if *sent != before || to.is_full(self.options) {
            return;
        }
        if to.asked || to.should_hear_of(self.committed) {
            messages.push(self.update(to, sent, self.heartbeat_preceding(to), Vec::new()));
        } else if self.now >= to.heartbeat_at(self.options) {
            let request = self.request(to, sent, self.heartbeat_preceding(to), Vec::new());
            messages.push((to.peer.clone(), Message::Heartbeat(request)));
        }
    }

    /// This server as its peers know it.
    fn myself(&self) -> Option<Peer> {
        self.meta.committed.peer(self.me).cloned()
    }

    /// The next entries for a peer that has room for them; asks for them to be read if they are not in memory.
    fn next_entries(&self, to: &mut Progress, reads: &mut Vec<ReadLog>) -> Option<(OpId, Vec<Replicate>)> {
        let room = if to.probing { 1 } else { self.options.inflight_max };
        if to.inflight.len() >= room || to.unrecoverable || to.broken {
            return None;
        }
        if let Some((preceding, entries)) = to.read.take()
            && preceding.index + 1 == to.next
        {
            return Some((preceding, entries));
        }
        if to.reading.is_some() || to.next > self.log.last().index {
            return None;
        }
        let preceding = to.op_at(to.next - 1, self.log);
        let max_bytes = self.options.batch_bytes_max;
        if let (Some(preceding), Some(entries)) = (preceding, self.log.slice(to.next, max_bytes)) {
            return Some((preceding, entries));
        }
        let from = if preceding.is_some() { to.next } else { to.next - 1 };
        to.reading = Some(from);
        reads.push(ReadLog { peer: to.peer.id, from, max_bytes });
        None
    }

    /// A heartbeat says no more than what is known to be taken, so that it is answered at once: what is on its way may
    /// wait for the follower's disk. The beginning of the log is the same everywhere.
    fn heartbeat_preceding(&self, to: &Progress) -> OpId {
        let index = if to.inflight.is_empty() { to.next - 1 } else { to.matched };
        to.op_at(index, self.log).unwrap_or(OpId::MIN)
    }

    fn update(
        &self,
        to: &mut Progress,
        sent: &mut u64,
        preceding: OpId,
        entries: Vec<Replicate>,
    ) -> (Peer, Message) {
        let request = self.request(to, sent, preceding, entries);
        (to.peer.clone(), Message::Update(request))
    }

    fn request(
        &self,
        to: &mut Progress,
        sent: &mut u64,
        preceding: OpId,
        entries: Vec<Replicate>,
    ) -> UpdateRequest {
        *sent += 1;
        to.inflight.push(*sent);
        to.first_sent.get_or_insert(self.now);
        to.last_sent = Some(self.now);
        to.asked = false;
        let mut request = UpdateRequest {
            tablet: self.meta.tablet,
            caller: self.me,
            dest: to.peer.id,
            term: self.meta.term,
            sent: *sent,
            preceding,
            entries,
            committed: self.committed,
            all_replicated: self.all_replicated,
            safe_time: None,
        };
        to.next = to.next.max(request.last().index + 1);
        to.told = request.committed;
        request.safe_time = self.safe.filter(|(_, last)| request.last().index >= *last).map(|(at, _)| at);
        request
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
