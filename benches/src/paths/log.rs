//! The write-ahead log, and a group's core as it leads and as it follows.

use std::sync::Arc;

use bytes::Bytes;
use engine::disk::mem::MemDisk;
use engine::ids::{OpId, PeerId, Uuid};
use engine::raft::message::{LogChange, UpdateRequest, UpdateResponse, VoteRequest, VoteResponse, kind};
use engine::raft::{Boot, Clock, Config, ConsensusMeta, Event, Message, Output, Peer, Raft, RaftOptions};
use engine::time::{Now, Timestamp};
use engine::wal::{Entry, Replicate, Wal, WalConfig};

use super::{Amount, Run};
use crate::mix;

const ENTRY_COUNT: u64 = 200;
const PAYLOAD_BYTES: usize = 1024;
/// Entries of one batch, or of one update.
const BATCH: usize = 10;
pub const BYTES: Amount = Amount::Bytes(ENTRY_COUNT * PAYLOAD_BYTES as u64);
pub const ENTRIES: Amount = Amount::Rows(ENTRY_COUNT);
const TABLET: Uuid = Uuid([7; 16]);

fn payload(number: u64) -> Bytes {
    (0..PAYLOAD_BYTES as u64 / 8).flat_map(|word| mix(number << 8 | word).to_le_bytes()).collect()
}

/// Entries of one term, from index 1.
fn entries() -> Vec<Replicate> {
    let entry = |index| Replicate {
        op: OpId { term: 1, index },
        timestamp: Timestamp(index),
        kind: kind::WRITE,
        payload: payload(index),
    };
    (1..=ENTRY_COUNT).map(entry).collect()
}

/// Batches, each synced; the disk is in memory.
pub fn append() -> Run {
    let config = WalConfig { segment_bytes_max: 64 << 20, preallocate: false, compress: true };
    let mut wal = Wal::create(Arc::new(MemDisk::new(1)), "wal", config).expect("the disk is empty");
    let entries: Vec<Entry> = entries().into_iter().map(Entry::Replicate).collect();
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

/// Counts up.
struct Counter(u64);

impl Clock for Counter {
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

/// The first of three replicas, whose disk and peers do at once what it asks of them.
struct Member {
    raft: Raft,
    clock: Counter,
    out: Output,
}

impl Member {
    fn new() -> Member {
        let peers = (1..=3).map(|number| Peer::voter(id(number), format!("host{number}"), 7050)).collect();
        let boot = Boot {
            me: id(1),
            meta: ConsensusMeta::new(TABLET, Config::initial(peers)),
            elected: None,
            fresh: true,
            committed: OpId::MIN,
            committed_at: Timestamp::MIN,
            pending: Vec::new(),
            seed: 1,
        };
        let raft = Raft::new(RaftOptions::default(), boot);
        let mut member = Member { raft, clock: Counter(0), out: Output::default() };
        member.raft.start(Now::default(), &mut member.clock, &mut member.out);
        member
    }

    fn step(&mut self, event: Event) {
        self.raft.step(Now::default(), event, &mut self.clock, &mut self.out);
    }

    /// Does what steps want done until nothing is left.
    fn settle(&mut self) {
        loop {
            self.out.notes.clear();
            self.out.replies.clear();
            let appended = self.out.log.drain(..).next_back();
            if let Some(LogChange::Append { entry, .. }) = appended {
                self.step(Event::Persisted(entry.op));
            } else if let Some((number, _)) = self.out.meta.take() {
                self.step(Event::MetaPersisted(number));
            } else if let Some((peer, message)) = self.out.messages.pop() {
                self.answer(peer.id, message);
            } else {
                return;
            }
        }
    }

    fn answer(&mut self, peer: PeerId, message: Message) {
        match message {
            Message::Update(request) | Message::Heartbeat(request) => {
                let (sent, last) = (request.sent, request.last());
                let response = UpdateResponse {
                    responder: peer,
                    term: request.term,
                    last_received: last,
                    last_received_current_leader: last,
                    last_committed: request.committed,
                    error: None,
                };
                self.step(Event::Updated { peer, sent, result: Ok(response) });
            }
            Message::Vote(VoteRequest { term, pre_election, .. }) => {
                let response = VoteResponse { responder: peer, term, granted: true, error: None };
                self.step(Event::Voted { peer, term, pre_election, result: Ok(response) });
            }
            other => panic!("nothing of the kind is asked for: {other:?}"),
        }
    }
}

/// From proposal to commit, one at a time: sent to two peers, made durable, acknowledged by all.
pub fn lead() -> Run {
    let mut member = Member::new();
    member.step(Event::Elect { ignore_live_leader: true });
    member.settle();
    assert!(member.raft.is_caught_up_leader());
    let payload = payload(0);
    Box::new(move || {
        for _ in 0..ENTRY_COUNT {
            let Member { raft, clock, out } = &mut member;
            raft.propose(kind::WRITE, payload.clone(), clock, out).expect("it leads");
            raft.pump(Now::default(), out);
            member.settle();
        }
        assert_eq!(member.raft.committed(), member.raft.last());
    })
}

/// Updates of a leader, made durable and answered; each commits what came before.
pub fn follow() -> Run {
    let mut member = Member::new();
    let entries = entries();
    let request = |(some, sent): (&[Replicate], u64)| {
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
            member.step(Event::Update { ticket, request });
            member.settle();
        }
        assert_eq!(member.raft.durable(), ENTRY_COUNT);
    })
}
