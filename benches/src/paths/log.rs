//! The write-ahead log, and a Raft core as leader and as follower.

use std::sync::Arc;

use bytes::Bytes;
use engine::disk::mem::MemDisk;
use engine::ids::{OpId, PeerId, Uuid};
use engine::raft::interface::{LogChange, UpdateRequest, UpdateResponse, VoteRequest, VoteResponse, kind};
use engine::raft::{
    BootState, ConsensusMeta, Peer, Raft, RaftConfig, RaftEffects, RaftEvent, RaftMessage, RaftOptions,
    TimestampSource,
};
use engine::time::{ClockReading, Timestamp};
use engine::wal::{LogEntry, ReplicateEntry, Wal, WalConfig};

use super::hot_path::{Run, WorkloadSize};
use crate::mix;

pub(super) const ENTRY_COUNT: u64 = 200;
const PAYLOAD_BYTES: usize = 1024;
/// Entries of one batch or of one update.
const BATCH: usize = 10;
pub(super) const BYTES: WorkloadSize = WorkloadSize::Bytes(ENTRY_COUNT * PAYLOAD_BYTES as u64);
pub(super) const ENTRIES: WorkloadSize = WorkloadSize::Rows(ENTRY_COUNT);
const TABLET: Uuid = Uuid([7; 16]);

fn payload(number: u64) -> Bytes {
    (0..PAYLOAD_BYTES as u64 / 8).flat_map(|word| mix(number << 8 | word).to_le_bytes()).collect()
}

/// Returns entries of one term, from index 1.
fn entries() -> Vec<ReplicateEntry> {
    let entry = |index| ReplicateEntry {
        op: OpId { term: 1, index },
        timestamp: Timestamp(index),
        kind: kind::WRITE,
        payload: payload(index),
    };
    (1..=ENTRY_COUNT).map(entry).collect()
}

/// Appends batches, each synced; the disk is in memory.
pub(super) fn append() -> Run {
    let config = WalConfig { segment_bytes_max: 64 << 20, preallocate: false, compress: true };
    let mut wal = Wal::create(Arc::new(MemDisk::new(1)), "wal", config).expect("the disk is empty");
    let entries: Vec<LogEntry> = entries().into_iter().map(LogEntry::Replicate).collect();
    Box::new(move || {
        for batch in entries.chunks(BATCH) {
            wal.append(batch).expect("the disk does not fail");
            wal.sync().expect("the disk does not fail");
        }
    })
}

fn id(number: u8) -> PeerId {
    Uuid([number; 16])
}

/// A timestamp source that counts up.
struct Counter(u64);

impl TimestampSource for Counter {
    fn begin(&mut self) -> Timestamp {
        self.take()
    }

    fn take(&mut self) -> Timestamp {
        self.0 += 1;
        Timestamp(self.0)
    }

    fn pass(&mut self, seen: Timestamp) {
        self.0 = self.0.max(seen.0);
    }
}

/// The first of three replicas, whose disk and peers complete every request at once.
struct Member {
    raft: Raft,
    clock: Counter,
    out: RaftEffects,
}

impl Member {
    fn new() -> Member {
        let peers = (1..=3).map(|number| Peer::voter(id(number), format!("host{number}"), 7050)).collect();
        let boot = BootState {
            me: id(1),
            address: None,
            meta: ConsensusMeta::new(TABLET, RaftConfig::initial(peers)),
            meta_stored: true,
            elected: None,
            fresh: true,
            committed: OpId::MIN,
            committed_at: Timestamp::MIN,
            pending: Vec::new(),
            seed: 1,
        };
        let raft = Raft::new(RaftOptions::default(), boot);
        let mut member = Member { raft, clock: Counter(0), out: RaftEffects::default() };
        member.raft.start(ClockReading::default(), &mut member.clock, &mut member.out);
        member
    }

    fn step(&mut self, event: RaftEvent) {
        self.raft.step(ClockReading::default(), event, &mut self.clock, &mut self.out);
    }

    /// Executes effects until none is left.
    fn settle(&mut self) {
        loop {
            self.out.notes.clear();
            self.out.replies.clear();
            let appended = self.out.log.drain(..).next_back();
            if let Some(LogChange::Append { entry, .. }) = appended {
                self.step(RaftEvent::Persisted(entry.op));
            } else if let Some((number, _)) = self.out.meta.take() {
                self.step(RaftEvent::MetaPersisted(number));
            } else if let Some((peer, message)) = self.out.messages.pop() {
                self.answer(peer.id, message);
            } else {
                return;
            }
        }
    }

    fn answer(&mut self, peer: PeerId, message: RaftMessage) {
        match message {
            RaftMessage::Update(request) | RaftMessage::Heartbeat(request) => {
                let (sent, last) = (request.sent, request.last());
                let response = UpdateResponse {
                    responder: peer,
                    term: request.term,
                    last_received: last,
                    last_received_current_leader: last,
                    last_committed: request.committed,
                    error: None,
                };
                self.step(RaftEvent::Updated { peer, sent, result: Ok(response) });
            }
            RaftMessage::Vote(VoteRequest { term, is_pre_vote, .. }) => {
                let response = VoteResponse { responder: peer, term, granted: true, error: None };
                self.step(RaftEvent::Voted { peer, term, is_pre_vote, result: Ok(response) });
            }
            other => panic!("nothing of the kind is asked for: {other:?}"),
        }
    }
}

/// Proposes and commits one entry at a time: sent to two peers, made durable, acknowledged by all.
pub(super) fn lead() -> Run {
    let mut member = Member::new();
    member.step(RaftEvent::Elect { ignore_live_leader: true });
    member.settle();
    assert!(member.raft.is_caught_up_leader());
    let payload = payload(0);
    Box::new(move || {
        for _ in 0..ENTRY_COUNT {
            let Member { raft, clock, out } = &mut member;
            raft.propose(kind::WRITE, payload.clone(), clock, out).expect("it leads");
            raft.send_pending_updates(ClockReading::default(), out);
            member.settle();
        }
        assert_eq!(member.raft.committed(), member.raft.last());
    })
}

/// Handles updates of a leader: makes them durable and replies; each commits the previous one.
pub(super) fn follow() -> Run {
    let mut member = Member::new();
    let entries = entries();
    let request = |(some, sent): (&[ReplicateEntry], u64)| {
        let before = some[0].op.index - 1;
        UpdateRequest {
            tablet: TABLET,
            caller: id(2),
            dest: id(1),
            term: 1,
            sent,
            preceding: if before == 0 { OpId::MIN } else { OpId { term: 1, index: before } },
            entries: some.to_vec(),
            committed: before,
            all_replicated: before,
            safe_time: Some(some[0].timestamp),
        }
    };
    let mut requests: Vec<UpdateRequest> = entries.chunks(BATCH).zip(1..).map(request).collect();
    Box::new(move || {
        for (request, ticket) in requests.drain(..).zip(1..) {
            member.step(RaftEvent::Update { ticket, request });
            member.settle();
        }
        assert_eq!(member.raft.durable(), ENTRY_COUNT);
    })
}
