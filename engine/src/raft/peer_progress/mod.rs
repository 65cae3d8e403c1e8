//! The leader's view of each peer: match index, updates in flight, entries to send next.
//!
//! ```text
//!   probing     one update at a time from where the logs may agree: `base`
//!      │ accepted                          ▲ rejected: jump to the follower's commit index;
//!      ▼                                   │ lost: retry later
//!   streaming   several updates in flight, each full of the available entries
//! ```
//!
//! Entries that are no longer in memory are read from the log, while heartbeats continue. If log GC deleted the entry
//! after the jump, the peer may still share more than its commit index (a crash can lose that index): later entries are
//! tried. If that fails too, the peer cannot be caught up. A peer without a replica is told to copy one. A learner
//! whose copies fail again and again must be replaced by one on another server.

use super::config::MemberKind;
use super::interface::{LogReadRequest, PeerHealth, PeerStatus, RaftMessage, UpdateRequest, UpdateResponse};
use super::log::RaftLog;
use super::{ConsensusMeta, Peer, RaftOptions};
use crate::ids::{OpId, PeerId, Term};
use crate::time::{Instant, Timestamp};
use crate::wal::ReplicateEntry;

/// Progress of one peer, as the leader sees it.
pub(super) struct PeerProgress {
    pub peer: Peer,
    /// The first entry not sent yet.
    next: u64,
    /// Index from which sending restarts after a failure.
    base: u64,
    /// Match index: the peer has every entry up to here durably.
    pub matched: u64,
    /// Commit index last sent to the peer.
    sent_commit: u64,
    matched_term: Term,
    /// Number of the newest update sent when the match index rose last.
    matched_after: u64,
    probing: bool,
    /// Numbers of the updates in flight.
    inflight: Vec<u64>,
    /// True if a reader waits for a response to an update sent from here on.
    pub reader_waits: bool,
    failures: u32,
    retry_at: Instant,
    /// Time of the first update sent. Silence counts from there, however old the leadership is.
    first_sent: Option<Instant>,
    last_sent: Option<Instant>,
    pub last_response: Option<Instant>,
    /// The newest update with a response in this term: until it arrived, the peer had voted for no other leader.
    pub confirmed: u64,
    /// The index from which entries are being read for the peer.
    reading_from: Option<u64>,
    /// Entries read from the log, and the entry before them.
    read_entries: Option<(OpId, Vec<ReplicateEntry>)>,
    copy: CopyNeed,
    /// True from the beginning of a copy until the peer reports a replica, or none.
    copying: bool,
    /// Number of copies that began and left no replica, since the peer last had one.
    copies_failed: u32,
    /// True if log GC deleted entries that the peer needs.
    pub unrecoverable: bool,
    /// True if the peer reported that its replica has failed; a restart of its server may repair that.
    pub broken: bool,
    /// The last entry of the peer's log, when it rejected an update.
    their_last: OpId,
    /// Index after which the log here begins. Later entries are tried instead, from `base` down.
    gced_until: Option<u64>,
    /// Number of the newest update sent, and of the newest one when the entry that is tried now was chosen.
    newest_sent: u64,
    tried_after: u64,
    /// The peer's health at the last report.
    pub reported: PeerHealth,
}

/// Need of a peer for a tablet copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CopyNeed {
    No,
    Wanted,
    /// The copy was requested and has no response yet.
    Asked,
}

/// Heartbeats allowed in flight besides full updates.
const SPARE_INFLIGHT: usize = 2;
/// Failed copies in succession after which a learner counts as failed.
const COPIES_FAILED_MAX: u32 = 5;

impl PeerProgress {
    pub(super) fn new(peer: Peer, base: u64) -> PeerProgress {
        PeerProgress {
            peer,
            next: base + 1,
            base,
            matched: 0,
            matched_term: 0,
            matched_after: 0,
            sent_commit: 0,
            probing: true,
            inflight: Vec::new(),
            reader_waits: false,
            failures: 0,
            retry_at: Instant(0),
            first_sent: None,
            last_sent: None,
            last_response: None,
            confirmed: 0,
            reading_from: None,
            read_entries: None,
            copy: CopyNeed::No,
            copying: false,
            copies_failed: 0,
            unrecoverable: false,
            broken: false,
            their_last: OpId::MIN,
            gced_until: None,
            newest_sent: 0,
            tried_after: 0,
            reported: PeerHealth::Unknown,
        }
    }

    /// Removes an update from those in flight when its result arrives. Returns false if it is none of them: then it
    /// describes a replica that may be gone since, and must be ignored.
    pub(super) fn on_response(&mut self, sent: u64) -> bool {
        let at = self.inflight.iter().position(|number| *number == sent);
        at.map(|at| self.inflight.remove(at)).is_some()
    }

    /// Records that the peer accepted an update.
    pub(super) fn accepted(&mut self, response: &UpdateResponse, log: &RaftLog) {
        (self.failures, self.broken) = (0, false);
        (self.copying, self.copies_failed) = (false, 0);
        let op = response.last_received_current_leader;
        // An entry whose term is no longer known here is committed, and the same everywhere.
        let same = log.term_at(op.index).is_none_or(|term| term == op.term) && op.index <= log.last().index;
        if op.index > self.matched && same {
            (self.matched, self.matched_term) = (op.index, op.term);
            self.matched_after = self.newest_sent;
            (self.unrecoverable, self.gced_until) = (false, None);
        } else if self.unrecoverable && self.is_beyond_gc(response.last_received, log) {
            // It got what log GC deleted here from elsewhere: by a tablet copy, during which the log was searched for
            // what a peer without a replica lacks.
            (self.unrecoverable, self.gced_until) = (false, None);
            return self.restart(response.last_received.index);
        }
        self.probing = false;
        self.base = self.base.max(self.matched);
        self.next = self.next.max(self.matched + 1);
    }

    /// Returns true if the entry is the leader's, too, and all after it are in the log here.
    fn is_beyond_gc(&self, op: OpId, log: &RaftLog) -> bool {
        log.holds(op) && self.gced_until.is_some_and(|gced| op.index > gced)
    }

    /// Restarts after the last entry that is known to be the same, as the peer's log differs. `sent`: the number of the
    /// update that the peer rejected.
    pub(super) fn reset_next_index(&mut self, sent: u64, response: &UpdateResponse, log: &RaftLog) {
        let same = if log.holds(response.last_received) {
            response.last_received.index
        } else {
            response.last_committed.min(log.last().index)
        };
        (self.failures, self.broken) = (0, false);
        self.their_last = response.last_received;
        if sent > self.matched_after && response.last_received.index < self.matched {
            self.unmatch(response.last_received, log);
        }
        match self.gced_until {
            // Several updates may be in flight. One from before the entry was chosen says nothing about it, and a
            // member that can catch up must not be taken for one that cannot.
            Some(_) if sent <= self.tried_after => {}
            // Logs that agree at an index agree before it: the search goes halfway down until they agree.
            Some(gced_until) if same <= gced_until => {
                let index = gced_until + (self.base.max(gced_until) - gced_until) / 2;
                self.try_later_entry(gced_until, index, log)
            }
            _ => self.restart(same.max(self.matched)),
        }
    }

    /// Lowers the match index to the end of the peer's log: it answered an update that was sent after its
    /// acknowledgement, so it has lost entries since, such as by a power cut without synced logs.
    fn unmatch(&mut self, their_last: OpId, log: &RaftLog) {
        let same = if log.holds(their_last) { their_last } else { OpId::MIN };
        (self.matched, self.matched_term) = (same.index, same.term);
    }

    /// Continues from `index`, which the peer may share; the log here begins after `gced_until`. The entry at
    /// `gced_until` itself can be shared if its term is known: those after it are there.
    fn try_later_entry(&mut self, gced_until: u64, index: u64, log: &RaftLog) {
        self.tried_after = self.newest_sent;
        let last_gced = index == gced_until && self.base != index && log.op_at(index).is_some();
        if index > gced_until || last_gced {
            self.restart(index);
        } else {
            self.unrecoverable = true;
        }
    }

    /// Records that the peer is unreachable or cannot accept updates: retries later from its known position.
    pub(super) fn failed(&mut self, now: Instant, options: &RaftOptions) {
        let wait = options.heartbeat_interval * (1 << self.failures.min(2));
        self.failures = self.failures.saturating_add(1);
        // A peer whose replica is being copied answers with an error: it is asked often enough to count as alive.
        self.retry_at = now.after(wait.min(options.backoff_max).min(options.follower_failed_after / 3));
        self.restart(self.base);
    }

    fn restart(&mut self, base: u64) {
        (self.base, self.next, self.probing) = (base, base + 1, true);
        (self.reading_from, self.read_entries, self.sent_commit) = (None, None, 0);
    }

    /// Records that the peer has no replica, or none any more.
    pub(super) fn on_replica_missing(&mut self) {
        (self.matched, self.matched_term) = (0, 0);
        (self.unrecoverable, self.broken, self.gced_until) = (false, false, None);
        self.inflight.clear();
        if self.copy == CopyNeed::No {
            self.copy = CopyNeed::Wanted;
        }
        self.copies_failed += u32::from(std::mem::take(&mut self.copying));
    }

    pub(super) fn copy_begun(&mut self, begun: bool, now: Instant, options: &RaftOptions) {
        // In both cases the next update reports if the copy is done or must be requested again.
        self.copy = CopyNeed::No;
        self.failed(now, options);
        if begun {
            self.failures = 0;
            self.last_response = Some(now);
        }
        // A refused request is no failed copy: its server may be busy, or short of space for a time.
        self.copying |= begun;
    }

    /// The leader's entry at `index`: from its log, or from the peer's match index.
    fn op_at(&self, index: u64, log: &RaftLog) -> Option<OpId> {
        let matched = OpId { term: self.matched_term, index: self.matched };
        log.op_at(index).or_else(|| (index == self.matched).then_some(matched))
    }

    /// Accepts entries read from the log, after [`RaftLog::committed_part`]. Without any, the read has failed: it is
    /// repeated after a pause, because the disk may be behind for long.
    pub(super) fn on_entries_read(
        &mut self,
        from: u64,
        mut entries: Vec<ReplicateEntry>,
        log: &RaftLog,
        now: Instant,
        options: &RaftOptions,
    ) {
        if entries.is_empty() {
            return self.read_failed(from, now, options);
        }
        if self.reading_from != Some(from) {
            return;
        }
        self.reading_from = None;
        let preceding = if from < self.next { Some(entries.remove(0).op) } else { self.op_at(from - 1, log) };
        let contiguous = entries.iter().zip(self.next..).all(|(entry, index)| entry.op.index == index);
        if let Some(preceding) = preceding
            && preceding.index + 1 == self.next
            && contiguous
        {
            self.read_entries = Some((preceding, entries));
        }
    }

    /// Records that log GC deleted the entries that the peer needs.
    pub(super) fn on_entries_gced(&mut self, from: u64, log: &RaftLog) {
        if self.reading_from == Some(from) {
            self.gced_until = Some(from);
            self.restart(self.base);
            let end = self.their_last.index.min(log.last().index);
            self.try_later_entry(from, log.last_shareable(self.their_last).unwrap_or(end), log);
        }
    }

    pub(super) fn read_failed(&mut self, from: u64, now: Instant, options: &RaftOptions) {
        if self.reading_from == Some(from) {
            self.failed(now, options);
        }
    }

    /// Returns true for a learner that no copy reaches: it answers, and never gets a replica.
    fn is_uncopyable(&self) -> bool {
        self.peer.member == MemberKind::NonVoter && self.copies_failed >= COPIES_FAILED_MAX
    }

    pub(super) fn health(&self, now: Instant, options: &RaftOptions) -> PeerHealth {
        if self.is_uncopyable() {
            return PeerHealth::FailedUnrecoverable;
        }
        let since = self.last_response.or(self.first_sent).unwrap_or(now);
        let silent = now.since(since) >= options.follower_failed_after;
        match self.last_response {
            _ if self.unrecoverable || self.broken => PeerHealth::FailedUnrecoverable,
            _ if silent => PeerHealth::Failed,
            None => PeerHealth::Unknown,
            Some(_) => PeerHealth::Healthy,
        }
    }

    pub(super) fn status(&self, now: Instant, options: &RaftOptions) -> PeerStatus {
        PeerStatus {
            id: self.peer.id,
            member: self.peer.member,
            health: self.health(now, options),
            matched: self.matched,
            silent: self.last_response.map(|at| now.since(at)),
        }
    }

    /// Returns true if one update can carry all that the peer lacks.
    pub(super) fn is_caught_up(&self, committed: u64, log: &RaftLog, options: &RaftOptions) -> bool {
        let close = || {
            let lacking = log.bytes_between(self.matched, committed);
            lacking.is_some_and(|bytes| bytes <= options.batch_bytes_max)
        };
        !self.probing && self.matched > 0 && (self.matched >= committed || close())
    }

    /// Returns true for a learner that is to become a voter.
    pub(super) fn wants_promotion(&self) -> bool {
        self.peer.member == MemberKind::NonVoter && self.peer.promote && !self.unrecoverable && !self.broken
    }

    fn heartbeat_at(&self, options: &RaftOptions) -> Instant {
        let due = self.last_sent.map_or(Instant(0), |at| options.heartbeat_after(at));
        due.max(self.retry_at)
    }

    /// Returns true if the peer has all committed entries but not the commit index: its readers would wait for the next
    /// heartbeat.
    fn needs_commit_notice(&self, committed: u64) -> bool {
        self.sent_commit < committed && self.matched >= committed && !self.probing && self.inflight.is_empty()
    }

    /// Returns true if the peer has every entry and the commit index, and the next heartbeat can leave even without a
    /// response to the last one.
    pub(super) fn is_idle(&self, last: OpId, options: &RaftOptions) -> bool {
        let has_all = self.matched == last.index && self.sent_commit == last.index && !self.probing;
        let healthy = self.reported == PeerHealth::Healthy && self.failures == 0 && self.copy == CopyNeed::No;
        has_all && healthy && !self.reader_waits && !self.is_full(options) && !self.wants_promotion()
    }

    fn is_full(&self, options: &RaftOptions) -> bool {
        self.inflight.len() >= options.inflight_max + SPARE_INFLIGHT
    }

    pub(super) fn deadline(&self, options: &RaftOptions) -> Instant {
        match self.copy {
            CopyNeed::Wanted => self.retry_at,
            CopyNeed::Asked => Instant(u64::MAX),
            // A result always arrives, even if no response does.
            CopyNeed::No if self.is_full(options) => Instant(u64::MAX),
            CopyNeed::No => self.heartbeat_at(options),
        }
    }
}

/// State that all updates of one step share.
pub(super) struct UpdateContext<'a> {
    pub now: Instant,
    pub options: &'a RaftOptions,
    pub log: &'a RaftLog,
    pub meta: &'a ConsensusMeta,
    pub me: PeerId,
    pub address: Option<&'a (String, u16)>,
    pub committed: u64,
    pub all_replicated: u64,
    /// A safe time, and the last entry at the time of its proposal.
    pub safe: Option<(Timestamp, u64)>,
}

impl UpdateContext<'_> {
    /// Adds the messages that `to` is due now.
    pub(super) fn fill(
        &self,
        to: &mut PeerProgress,
        sent: &mut u64,
        messages: &mut Vec<(Peer, RaftMessage)>,
        reads: &mut Vec<LogReadRequest>,
    ) {
        if self.now < to.retry_at || to.copy == CopyNeed::Asked {
            return;
        }
        if to.copy == CopyNeed::Wanted {
            to.copy = CopyNeed::Asked;
            if let Some(source) = self.local_peer() {
                messages.push((to.peer.clone(), RaftMessage::StartCopy { source, term: self.meta.term }));
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
        if to.reader_waits || to.needs_commit_notice(self.committed) {
            messages.push(self.update(to, sent, self.heartbeat_preceding(to), Vec::new()));
        } else if self.now >= to.heartbeat_at(self.options) {
            let request = self.request(to, sent, self.heartbeat_preceding(to), Vec::new());
            messages.push((to.peer.clone(), RaftMessage::Heartbeat(request)));
        }
    }

    /// This server as its peers know it.
    fn local_peer(&self) -> Option<Peer> {
        let mut config = self.meta.committed.clone();
        config.readdress_only_voter(self.me, self.address);
        config.peer(self.me).cloned()
    }

    /// Returns the next entries for a peer with a free slot in flight; requests a read if they are not in memory.
    fn next_entries(
        &self,
        to: &mut PeerProgress,
        reads: &mut Vec<LogReadRequest>,
    ) -> Option<(OpId, Vec<ReplicateEntry>)> {
        let slots = if to.probing { 1 } else { self.options.inflight_max };
        if to.inflight.len() >= slots || to.unrecoverable || to.broken {
            return None;
        }
        if let Some((preceding, entries)) = to.read_entries.take()
            && preceding.index + 1 == to.next
        {
            return Some((preceding, entries));
        }
        if to.reading_from.is_some() || to.next > self.log.last().index {
            return None;
        }
        let preceding = to.op_at(to.next - 1, self.log);
        let max_bytes = self.options.batch_bytes_max;
        if let (Some(preceding), Some(entries)) = (preceding, self.log.slice(to.next, max_bytes)) {
            return Some((preceding, entries));
        }
        let from = if preceding.is_some() { to.next } else { to.next - 1 };
        to.reading_from = Some(from);
        reads.push(LogReadRequest { peer: to.peer.id, from, max_bytes });
        None
    }

    /// A heartbeat names only an entry that the peer is known to have, so its response is immediate: entries in flight
    /// may wait for the follower's disk. The beginning of the log is the same everywhere.
    fn heartbeat_preceding(&self, to: &PeerProgress) -> OpId {
        let index = if to.inflight.is_empty() { to.next - 1 } else { to.matched };
        to.op_at(index, self.log).unwrap_or(OpId::MIN)
    }

    fn update(
        &self,
        to: &mut PeerProgress,
        sent: &mut u64,
        preceding: OpId,
        entries: Vec<ReplicateEntry>,
    ) -> (Peer, RaftMessage) {
        let request = self.request(to, sent, preceding, entries);
        (to.peer.clone(), RaftMessage::Update(request))
    }

    fn request(
        &self,
        to: &mut PeerProgress,
        sent: &mut u64,
        preceding: OpId,
        entries: Vec<ReplicateEntry>,
    ) -> UpdateRequest {
        *sent += 1;
        to.inflight.push(*sent);
        to.newest_sent = *sent;
        to.first_sent.get_or_insert(self.now);
        to.last_sent = Some(self.now);
        to.reader_waits = false;
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
        to.sent_commit = request.committed;
        request.safe_time = self.safe.filter(|(_, last)| request.last().index >= *last).map(|(at, _)| at);
        request
    }
}

#[cfg(test)]
mod tests;
