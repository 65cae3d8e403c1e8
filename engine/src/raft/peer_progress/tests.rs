use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::ids::Uuid;
use crate::raft::interface::UpdateError;
use crate::raft::interface::UpdateErrorKind::PrecedingMismatch;

#[test]
fn a_peer_fails_by_its_own_silence_not_by_the_age_of_the_leader() {
    let options = RaftOptions::default();
    let at = |seconds: u64| Instant(0).after(Duration::from_secs(seconds));
    let mut added = PeerProgress::new(Peer::voter(Uuid([2; 16]), "host", 7050), 0);
    // The leader has led for an hour when it adds the peer.
    assert_eq!(added.health(at(3600), &options), PeerHealth::Unknown);
    added.first_sent = Some(at(3600));
    assert_eq!(added.health(at(3899), &options), PeerHealth::Unknown);
    assert_eq!(added.health(at(3900), &options), PeerHealth::Failed);
    added.last_response = Some(at(3950));
    assert_eq!(added.health(at(4000), &options), PeerHealth::Healthy);
    assert_eq!(added.health(at(4250), &options), PeerHealth::Failed);
}

fn op(term: Term, index: u64) -> OpId {
    OpId { term, index }
}

fn entry(at: OpId) -> ReplicateEntry {
    ReplicateEntry { op: at, timestamp: Timestamp(at.index), kind: 1, payload: Bytes::from_static(b"x") }
}

/// A log up to 1.20 on disk only, then 2.21 to 2.30 in memory.
fn log() -> RaftLog {
    let mut log = RaftLog::new(op(1, 20));
    (21..=30).for_each(|index| log.append(entry(op(2, index))));
    log
}

fn peer() -> PeerProgress {
    PeerProgress::new(Peer::voter(Uuid([2; 16]), "host", 7050), 30)
}

fn response(last_received: OpId, agreed: OpId, last_committed: u64, mismatch: bool) -> UpdateResponse {
    let error = mismatch.then(|| UpdateError { kind: PrecedingMismatch, message: String::new() });
    let last_received_current_leader = agreed;
    UpdateResponse {
        responder: Uuid([2; 16]),
        term: 2,
        last_received,
        last_received_current_leader,
        last_committed,
        error,
    }
}

/// Returns the updates and log reads that the leader would send next.
fn next(peer: &mut PeerProgress, log: &RaftLog) -> (Vec<(OpId, usize)>, Vec<u64>) {
    let me = Peer::voter(Uuid([1; 16]), "me", 7050);
    let meta = ConsensusMeta::new(Uuid([7; 16]), crate::raft::RaftConfig::initial(vec![me.clone()]));
    let options = RaftOptions { batch_bytes_max: 4, inflight_max: 2, ..RaftOptions::default() };
    let context = UpdateContext {
        now: Instant(1),
        options: &options,
        log,
        meta: &meta,
        me: me.id,
        address: None,
        committed: 30,
        all_replicated: 0,
        safe: None,
    };
    let (mut sent, mut messages, mut reads) = (0, Vec::new(), Vec::new());
    context.fill(peer, &mut sent, &mut messages, &mut reads);
    let sent = messages.into_iter().filter_map(|(_, message)| match message {
        RaftMessage::Update(request) => Some((request.preceding, request.entries.len())),
        _ => None,
    });
    (sent.collect(), reads.into_iter().map(|read_entries| read_entries.from).collect())
}

#[test]
fn a_peer_behind_the_start_of_the_log_is_probed_halfway_down_until_nothing_is_left() {
    let (log, mut peer) = (log(), peer());
    let rejection = response(op(1, 28), OpId::MIN, 5, true);
    peer.reset_next_index(u64::MAX, &rejection, &log);
    assert_eq!(next(&mut peer, &log).1, [5], "its commit index, and the entries after it");
    peer.on_entries_gced(4, &log);
    assert!(peer.reading_from.is_some(), "the result of another read");
    peer.on_entries_gced(5, &log);
    let mut helped =
        PeerProgress { base: 20, gced_until: Some(5), ..PeerProgress::new(peer.peer.clone(), 30) };
    helped.reset_next_index(u64::MAX, &response(op(1, 28), OpId::MIN, 25, true), &log);
    assert_eq!((helped.base, helped.unrecoverable), (25, false), "another server caught it up");
    let mut tried = vec![peer.base];
    while !peer.unrecoverable {
        peer.inflight.clear();
        peer.reset_next_index(u64::MAX, &rejection, &log);
        tried.push(peer.base);
    }
    assert_eq!(tried, [20, 12, 8, 6, 6], "no later than its last entry of a term that the leader can share");
    assert_eq!(next(&mut peer, &log).1, Vec::<u64>::new(), "it cannot be caught up");
    peer.accepted(&response(op(2, 30), op(2, 30), 30, false), &log);
    assert!(!peer.unrecoverable && peer.matched == 30, "another server caught it up");
}

#[test]
fn the_last_entry_that_gc_deleted_can_be_shared_if_its_term_is_known() {
    let (log, mut peer) = (log(), peer());
    peer.accepted(&response(op(1, 19), op(1, 19), 19, false), &log);
    let rejection = response(op(1, 22), OpId::MIN, 19, true);
    peer.reset_next_index(u64::MAX, &rejection, &log);
    assert_eq!(next(&mut peer, &log).1, [20]);
    peer.on_entries_gced(20, &log);
    assert_eq!((peer.base, peer.unrecoverable), (20, false), "1.20 is known, 2.21 is in the log");
    peer.inflight.clear();
    assert_eq!(next(&mut peer, &log).0.first(), Some(&(op(1, 20), 4)));
    peer.inflight.clear();
    peer.reset_next_index(u64::MAX, &rejection, &log);
    assert!(peer.unrecoverable, "the peer does not have 1.20");
}

#[test]
fn a_rejection_of_an_earlier_update_says_nothing_about_a_later_probe() {
    let (log, mut peer) = (log(), peer());
    let rejection = response(op(1, 19), OpId::MIN, 18, true);
    peer.reset_next_index(1, &rejection, &log);
    assert_eq!(next(&mut peer, &log).1, [18]);
    peer.newest_sent = 2;
    peer.on_entries_gced(18, &log);
    assert_eq!((peer.base, peer.unrecoverable), (19, false), "the peer's last entry is still in the log");
    peer.reset_next_index(2, &rejection, &log);
    assert_eq!((peer.base, peer.unrecoverable), (19, false), "sent before that entry was tried");
    peer.reset_next_index(3, &rejection, &log);
    assert!(peer.unrecoverable, "the peer does not have that entry");
}

#[test]
fn shared_entries_are_not_sent_again() {
    let (log, mut peer) = (log(), peer());
    peer.reset_next_index(u64::MAX, &response(op(2, 24), OpId::MIN, 5, true), &log);
    assert_eq!(next(&mut peer, &log).0, [(op(2, 24), 4)], "one update, as it is not sure yet");
    peer.inflight.clear();
    peer.accepted(&response(op(2, 26), op(2, 26), 26, false), &log);
    assert_eq!((peer.matched, peer.next, peer.probing), (26, 29, false));
    peer.accepted(&response(op(2, 25), op(2, 25), 25, false), &log);
    assert_eq!(peer.matched, 26, "a response that was overtaken");
    peer.accepted(&response(op(3, 29), op(3, 29), 26, false), &log);
    assert_eq!(peer.matched, 26, "not an entry of this log");
    assert_eq!(next(&mut peer, &log).0, [(op(2, 28), 2)]);
    let rejection = response(op(1, 2), OpId::MIN, 2, true);
    peer.reset_next_index(peer.matched_after, &rejection, &log);
    assert_eq!((peer.base, peer.next), (26, 27), "the rejection may be older than the acknowledgement");
    peer.reset_next_index(peer.matched_after + 1, &rejection, &log);
    assert_eq!((peer.matched, peer.base, peer.next), (0, 2, 3), "acknowledged entries are gone from its log");
}

#[test]
fn updates_in_flight_are_few_and_full() {
    let (log, mut peer) = (log(), peer());
    peer.accepted(&response(op(2, 21), op(2, 21), 21, false), &log);
    (peer.base, peer.next) = (21, 22);
    assert_eq!(next(&mut peer, &log).0, [(op(2, 21), 4), (op(2, 25), 4)], "four bytes each, two at once");
    assert_eq!((peer.inflight.len(), peer.next), (2, 30));
    assert!(peer.on_response(1) && !peer.on_response(1), "each has one result");
    assert_eq!(next(&mut peer, &log).0, [(op(2, 29), 1)]);
}

/// Returns a peer that shares the entries up to 1.10. For it the log is being read from there.
fn reading_peer(log: &RaftLog) -> PeerProgress {
    let mut peer = peer();
    peer.reset_next_index(u64::MAX, &response(op(1, 10), OpId::MIN, 10, true), log);
    assert_eq!(next(&mut peer, log).1, [10], "with the entry before, whose term is not known");
    // The heartbeat that was sent instead has its response.
    peer.inflight.clear();
    peer
}

#[test]
fn entries_read_are_sent_only_if_they_match_the_request() {
    let (log, options) = (log(), RaftOptions::default());
    let entries =
        |range: std::ops::RangeInclusive<u64>| range.map(|index| entry(op(1, index))).collect::<Vec<_>>();
    let mut peer = reading_peer(&log);
    peer.on_entries_read(10, entries(10..=12), &log, Instant(1), &options);
    assert_eq!(next(&mut peer, &log).0, [(op(1, 10), 2)]);
    let hole = vec![entry(op(1, 10)), entry(op(1, 12))];
    for (from, found) in [(9, entries(9..=12)), (10, entries(11..=12)), (10, hole)] {
        let mut peer = reading_peer(&log);
        peer.on_entries_read(from, found, &log, Instant(1), &options);
        assert!(peer.read_entries.is_none(), "from {from}: not what was asked for");
    }
}

#[test]
fn a_read_without_entries_is_repeated_after_a_pause() {
    let (log, options) = (log(), RaftOptions::default());
    let mut peer = reading_peer(&log);
    peer.on_entries_read(9, Vec::new(), &log, Instant(1), &options);
    assert_eq!((peer.reading_from, peer.retry_at), (Some(10), Instant(0)), "the result of another read");
    peer.on_entries_read(10, Vec::new(), &log, Instant(1), &options);
    assert_eq!((peer.reading_from, peer.retry_at), (None, Instant(1).after(options.heartbeat_interval)));
    assert_eq!(next(&mut peer, &log), (Vec::new(), Vec::new()), "no other read at once");
    peer.retry_at = Instant(1);
    assert_eq!(next(&mut peer, &log).1, [10]);
}

#[test]
fn a_failing_peer_is_retried_with_backoff() {
    let (log, mut peer) = (log(), peer());
    let options = RaftOptions {
        heartbeat_interval: Duration::from_millis(100),
        backoff_max: Duration::from_millis(350),
        ..RaftOptions::default()
    };
    let wait = |peer: &mut PeerProgress| {
        peer.failed(Instant(0), &options);
        peer.retry_at.0 / 1_000_000
    };
    assert_eq!([0; 5].map(|_| wait(&mut peer)), [100, 200, 350, 350, 350]);
    (peer.retry_at, peer.failures) = (Instant(2), 5);
    assert_eq!(next(&mut peer, &log), (Vec::new(), Vec::new()), "not before its time");
    assert_eq!(peer.deadline(&options), peer.retry_at);
    peer.accepted(&response(op(2, 30), op(2, 30), 30, false), &log);
    assert_eq!(wait(&mut peer), 100, "it was well in between");
    let hasty = RaftOptions { follower_failed_after: Duration::from_millis(600), ..options };
    (0..5).for_each(|_| peer.failed(Instant(0), &hasty));
    assert_eq!(
        peer.retry_at.0 / 1_000_000,
        200,
        "three answers in the time after which silence is a failure"
    );
}

#[test]
fn nothing_is_due_while_all_slots_in_flight_are_taken() {
    let mut peer = peer();
    let options = RaftOptions { inflight_max: 2, heartbeat_slots: 0, ..RaftOptions::default() };
    assert_eq!(peer.deadline(&options), Instant(0), "nothing was sent to it yet");
    peer.last_sent = Some(Instant(7));
    peer.inflight = vec![1, 2, 3];
    assert_eq!(peer.deadline(&options), Instant(7).after(options.heartbeat_interval));
    peer.inflight = vec![1, 2, 3, 4];
    assert_eq!(peer.deadline(&options), Instant(u64::MAX), "a result will arrive");
    peer.on_replica_missing();
    assert_eq!(peer.deadline(&options), peer.retry_at, "a copy is to be asked for");
    peer.copy = CopyNeed::Asked;
    assert_eq!(peer.deadline(&options), Instant(u64::MAX));
}

#[test]
fn only_a_healthy_marked_learner_wants_promotion() {
    let wants = |change: fn(&mut PeerProgress)| {
        let mut peer = peer();
        (peer.peer.member, peer.peer.promote) = (MemberKind::NonVoter, true);
        change(&mut peer);
        peer.wants_promotion()
    };
    assert!(wants(|_| ()));
    assert!(!wants(|peer| peer.peer.member = MemberKind::Voter));
    assert!(!wants(|peer| peer.peer.promote = false));
    assert!(!wants(|peer| peer.unrecoverable = true));
    assert!(!wants(|peer| peer.broken = true));
}

#[test]
fn a_peer_without_a_replica_gets_one_copy_request() {
    let (log, mut peer) = (log(), peer());
    peer.on_replica_missing();
    assert_eq!(next(&mut peer, &log), (Vec::new(), Vec::new()));
    assert!(peer.copy == CopyNeed::Asked);
    assert_eq!(next(&mut peer, &log), (Vec::new(), Vec::new()), "no entries either, until it answers");
    assert!(peer.inflight.is_empty());
}

/// It answers each update, so silence never fails it, and no other server would be chosen for its replica.
#[test]
fn a_learner_whose_copies_fail_again_and_again_has_failed() {
    let (log, options) = (log(), RaftOptions::default());
    let copy_fails = |peer: &mut PeerProgress| {
        peer.copy_begun(true, Instant(5), &options);
        peer.on_replica_missing();
    };
    let after = |member: MemberKind, copies: u32| {
        let mut peer = peer();
        peer.peer.member = member;
        (0..copies).for_each(|_| copy_fails(&mut peer));
        peer
    };
    let health = |peer: &PeerProgress| peer.health(Instant(6), &options);
    assert_eq!(health(&after(MemberKind::NonVoter, 4)), PeerHealth::Healthy);
    let mut failed = after(MemberKind::NonVoter, 5);
    assert_eq!(health(&failed), PeerHealth::FailedUnrecoverable);
    assert_eq!(health(&after(MemberKind::Voter, 9)), PeerHealth::Healthy, "others depend on its vote");
    failed.accepted(&response(op(2, 30), op(2, 30), 30, false), &log);
    assert_eq!(health(&failed), PeerHealth::Healthy, "the sixth copy succeeded");
    copy_fails(&mut failed);
    assert_eq!(health(&failed), PeerHealth::Healthy, "the count begins again");
}

/// A heartbeat of a leader that knows nothing about its log is accepted by any peer.
#[test]
fn a_learner_that_log_gc_overtook_during_its_copy_is_caught_up_after_it() {
    let (log, options) = (log(), RaftOptions::default());
    let mut peer = PeerProgress::new(Peer::voter(Uuid([2; 16]), "host", 7050), 0);
    peer.peer.member = MemberKind::NonVoter;
    peer.on_replica_missing();
    peer.copy_begun(true, Instant(5), &options);
    peer.retry_at = Instant(0);
    assert_eq!(next(&mut peer, &log).1, [1]);
    peer.on_entries_gced(1, &log);
    assert!(peer.unrecoverable, "until its copy is complete");
    peer.accepted(&response(OpId::MIN, OpId::MIN, 0, false), &log);
    assert!(peer.unrecoverable, "it has nothing yet");
    peer.accepted(&response(op(2, 27), OpId::MIN, 25, false), &log);
    assert!(!peer.unrecoverable);
    peer.inflight.clear();
    assert_eq!(next(&mut peer, &log).0, [(op(2, 27), 3)]);
}

#[test]
fn a_refused_copy_request_is_no_failed_copy() {
    let options = RaftOptions::default();
    let mut peer = peer();
    peer.peer.member = MemberKind::NonVoter;
    peer.last_response = Some(Instant(5));
    for _ in 0..9 {
        peer.on_replica_missing();
        peer.copy_begun(false, Instant(5), &options);
    }
    assert_eq!(peer.health(Instant(6), &options), PeerHealth::Healthy);
}

#[test]
fn a_learner_is_caught_up_when_one_update_is_enough() {
    let (log, mut peer) = (log(), peer());
    let options = RaftOptions { batch_bytes_max: 4, ..RaftOptions::default() };
    assert!(!peer.is_caught_up(30, &log, &options), "nothing is known of it");
    peer.accepted(&response(op(2, 25), op(2, 25), 25, false), &log);
    assert!(!peer.is_caught_up(30, &log, &options), "five bytes are missing");
    assert!(peer.is_caught_up(29, &log, &options) && peer.is_caught_up(20, &log, &options));
    peer.on_replica_missing();
    assert!(!peer.is_caught_up(29, &log, &options) && peer.copy == CopyNeed::Wanted);
    peer.copy_begun(true, Instant(5), &options);
    assert!(peer.copy == CopyNeed::No && peer.last_response == Some(Instant(5)) && peer.failures == 0);
    peer.copy_begun(false, Instant(9), &options);
    assert!(peer.last_response == Some(Instant(5)) && peer.failures == 1);
}
