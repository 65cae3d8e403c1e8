//! Properties of the pure parts of the RPC layer: no panic, no lost call, no second execution.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use engine::time::Instant;
use nyala_common::rpc::frame::{self, Frame, FrameReader, sidecar_offsets, split_body};
use nyala_common::rpc::negotiate::{ClientNegotiation, NegotiationStep, ServerNegotiation};
use nyala_common::rpc::result_tracker::{CachedReply, RequestAdmission, ResultTracker};
use nyala_common::rpc::service_queue::{Admission, CallQueue, NextCall};
use nyala_common::sidecars::Sidecars;
use nyala_proto::kudu::rpc::{NegotiatePb, RequestHeader, RequestIdPb, ResponseHeader};
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;

/// A reply as written and as read.
#[derive(Debug, Clone)]
struct Reply {
    call_id: i32,
    message: Vec<u8>,
    sidecars: Vec<Vec<u8>>,
}

fn reply() -> impl Strategy<Value = Reply> {
    let bytes = || prop_oneof![4 => vec(any::<u8>(), 0..20), 1 => vec(any::<u8>(), 0..9_000)];
    (any::<i32>(), bytes(), vec(bytes(), 0..4)).prop_map(|(call_id, message, sidecars)| Reply {
        call_id,
        message,
        sidecars,
    })
}

fn write(reply: &Reply, out: &mut BytesMut) {
    let sidecars: Vec<Bytes> = reply.sidecars.iter().cloned().map(Bytes::from).collect();
    let sidecar_offsets =
        sidecar_offsets(reply.message.len(), &sidecars.clone().into()).expect("small sidecars fit");
    let header = ResponseHeader { call_id: reply.call_id, is_error: None, sidecar_offsets };
    let total = reply.message.len() + sidecars.iter().map(Bytes::len).sum::<usize>();
    frame::put_head(&header, total, out);
    out.extend_from_slice(&reply.message);
    sidecars.iter().for_each(|sidecar| out.extend_from_slice(sidecar));
}

fn read(frame: Frame) -> Reply {
    let header = ResponseHeader::decode(frame.header).expect("the header that was written");
    let (message, sidecars) = split_body(frame.body, &header.sidecar_offsets).expect("its own offsets");
    let sidecars = sidecars.iter().map(|sidecar| sidecar.to_vec()).collect();
    Reply { call_id: header.call_id, message: message.to_vec(), sidecars }
}

/// Feeds `bytes` in pieces of these lengths, repeated in a cycle. Stops at the first error.
fn feed(reader: &mut FrameReader, bytes: &[u8], pieces: &[usize], mut on_frame: impl FnMut(Frame)) -> bool {
    let mut rest = bytes;
    for piece in pieces.iter().cycle() {
        let (now, later) = rest.split_at((*piece).min(rest.len()));
        rest = later;
        let space = reader.space();
        let free_bytes = space.capacity() - space.len();
        assert!(free_bytes > 0 && free_bytes <= bytes.len() * 2 + (64 << 10), "{free_bytes} bytes of space");
        space.extend_from_slice(now);
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => on_frame(frame),
                Ok(None) => break,
                Err(_) => return false,
            }
        }
        if rest.is_empty() {
            return true;
        }
    }
    true
}

proptest! {
    #[test]
    fn frames_arrive_as_they_were_sent(replies in vec(reply(), 0..12), pieces in vec(1usize..5_000, 1..6)) {
        let mut bytes = BytesMut::new();
        replies.iter().for_each(|reply| write(reply, &mut bytes));
        let mut arrived = Vec::new();
        let mut reader = FrameReader::new(1 << 20);
        prop_assert!(feed(&mut reader, &bytes, &pieces, |frame| arrived.push(read(frame))));
        prop_assert!(!reader.is_mid_frame());
        prop_assert_eq!(format!("{:?}", arrived), format!("{:?}", replies));
    }

    #[test]
    fn no_bytes_upset_the_frame_reader(
        replies in vec(reply(), 0..3),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        tail in vec(any::<u8>(), 0..40),
        pieces in vec(1usize..200, 1..4),
    ) {
        let mut bytes = BytesMut::new();
        replies.iter().for_each(|reply| write(reply, &mut bytes));
        bytes.extend_from_slice(&tail);
        for (at, mask) in flips {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] ^= mask;
            }
        }
        feed(&mut FrameReader::new(1 << 20), &bytes, &pieces, |frame| {
            let offsets = ResponseHeader::decode(frame.header).unwrap_or_default().sidecar_offsets;
            let _ = split_body(frame.body, &offsets);
        });
    }

    #[test]
    fn no_offsets_upset_the_splitting_of_a_body(body in vec(any::<u8>(), 0..50), offsets in vec(any::<u32>(), 0..5)) {
        let _ = split_body(body.into(), &offsets);
    }

    #[test]
    fn only_a_proper_handshake_gets_in(frames in vec(negotiation_frame(), 0..6)) {
        let mut server = ServerNegotiation::new(true);
        let mut steps = Vec::new();
        for (call_id, step, frame) in frames {
            match server.on_frame(&frame) {
                NegotiationStep::Continue(_) => steps.push((call_id, step)),
                NegotiationStep::Done { user, .. } => {
                    prop_assert_eq!(user, "root");
                    prop_assert_eq!(&steps, &[(-33, 1), (-33, 2)]);
                    prop_assert_eq!(call_id, -3);
                    break;
                }
                NegotiationStep::Failed { send, .. } => {
                    prop_assert!(!send.is_empty());
                    break;
                }
                NegotiationStep::StartTls { .. } => prop_assert!(false, "this server has no TLS"),
            }
        }
    }

    #[test]
    fn no_frame_upsets_a_negotiation(header in vec(any::<u8>(), 0..30), body in vec(any::<u8>(), 0..60)) {
        let frame = Frame { header: header.into(), body: body.into() };
        let _ = ServerNegotiation::new(true).on_frame(&frame);
        let _ = ClientNegotiation::new("root").on_frame(&frame);
    }

    #[test]
    fn tracked_requests_run_once(events in vec(tracked_event(), 0..60)) {
        check_tracker(&events)?;
    }

    #[test]
    fn the_queue_keeps_its_bounds_and_its_order(
        concurrency in 1usize..4,
        length in 0usize..5,
        events in vec(prop_oneof![3 => any::<Option<u8>>().prop_map(Some), 2 => Just(None)], 0..60),
    ) {
        check_queue(concurrency, length, &events)?;
    }
}

/// Frames of a negotiation, in any order, mostly well-formed.
fn negotiation_frame() -> impl Strategy<Value = (i32, i32, Frame)> {
    let call_id = prop_oneof![8 => Just(-33), 4 => Just(-3), 1 => any::<i32>()];
    let step = prop_oneof![4 => Just(1), 4 => Just(2), 1 => any::<i32>()];
    let token = prop_oneof![3 => Just("\0root\0"), 1 => Just(""), 1 => Just("root")];
    let mechanism = prop_oneof![4 => Just("PLAIN"), 1 => Just("GSSAPI")];
    (call_id, step, token, mechanism).prop_map(|(call_id, step, token, mechanism)| {
        let mechanism =
            nyala_proto::kudu::rpc::negotiate_pb::SaslMechanism { mechanism: mechanism.to_string() };
        let message = NegotiatePb {
            step,
            token: Some(token.into()),
            sasl_mechanisms: vec![mechanism],
            ..Default::default()
        };
        let header = RequestHeader { call_id, ..Default::default() }.encode_to_vec().into();
        let body = if call_id == -3 { Bytes::new() } else { message.encode_to_vec().into() };
        (call_id, step, Frame { header, body })
    })
}

#[derive(Debug, Clone)]
enum Tracked {
    Begin { seq_no: i64, first_incomplete: i64 },
    Complete { seq_no: i64 },
    Fail { seq_no: i64 },
    Restore { seq_no: i64 },
}

fn tracked_event() -> impl Strategy<Value = Tracked> {
    let seq_no = || 0i64..8;
    prop_oneof![
        4 => (seq_no(), seq_no()).prop_map(|(a, b)| Tracked::Begin { seq_no: a.max(b), first_incomplete: a.min(b) }),
        2 => seq_no().prop_map(|seq_no| Tracked::Complete { seq_no }),
        1 => seq_no().prop_map(|seq_no| Tracked::Fail { seq_no }),
        1 => seq_no().prop_map(|seq_no| Tracked::Restore { seq_no }),
    ]
}

/// One client. A request is identified by its number; its reply is the count of the execution.
fn check_tracker(events: &[Tracked]) -> Result<(), TestCaseError> {
    let mut tracker = ResultTracker::new(Duration::from_secs(600), Duration::from_secs(3_600));
    let mut running: Vec<i64> = Vec::new();
    let mut took_effect: Vec<i64> = Vec::new();
    let mut waiting = 0;
    let id = |seq_no, first| RequestIdPb {
        client_id: "c".to_string(),
        seq_no,
        first_incomplete_seq_no: first,
        attempt_no: 0,
    };
    let reply = |seq_no: i64| CachedReply { body: seq_no.to_string().into(), sidecars: Sidecars::default() };
    for event in events {
        match *event {
            Tracked::Begin { seq_no, first_incomplete } => {
                match tracker.begin(&id(seq_no, first_incomplete), Instant(0), ()) {
                    RequestAdmission::Execute(()) => {
                        prop_assert!(!running.contains(&seq_no), "{seq_no} runs already");
                        prop_assert!(!took_effect.contains(&seq_no), "{seq_no} ran already");
                        running.push(seq_no);
                    }
                    RequestAdmission::Attached => {
                        prop_assert!(running.contains(&seq_no));
                        waiting += 1;
                    }
                    RequestAdmission::Repeat((), remembered) => {
                        prop_assert!(took_effect.contains(&seq_no));
                        prop_assert_eq!(remembered, reply(seq_no));
                    }
                    RequestAdmission::Stale(()) => {}
                }
            }
            Tracked::Complete { seq_no } if running.contains(&seq_no) => {
                running.retain(|&other| other != seq_no);
                took_effect.push(seq_no);
                waiting -= tracker.complete(&id(seq_no, 0), reply(seq_no), Instant(0)).len();
            }
            Tracked::Fail { seq_no } if running.contains(&seq_no) => {
                running.retain(|&other| other != seq_no);
                waiting -= tracker.fail(&id(seq_no, 0)).len();
            }
            Tracked::Restore { seq_no } if !running.contains(&seq_no) => {
                took_effect.push(seq_no);
                waiting -= tracker.restore(&id(seq_no, i64::MIN), reply(seq_no), Instant(0)).len();
            }
            _ => {}
        }
    }
    for seq_no in running {
        waiting -= tracker.fail(&id(seq_no, 0)).len();
    }
    prop_assert_eq!(waiting, 0, "all waiters get a reply");
    tracker.expire(Instant(u64::MAX));
    prop_assert_eq!((tracker.counts(), tracker.bytes()), ((0, 0), 0), "dropped entries use no memory");
    Ok(())
}

/// Compares the queue with a model. `Some(deadline)` admits a call, `Some(None)` one without a deadline; `None` frees a
/// slot.
fn check_queue(
    concurrency: usize,
    length: usize,
    events: &[Option<Option<u8>>],
) -> Result<(), TestCaseError> {
    let mut queue = CallQueue::new(concurrency, length);
    let mut model: Vec<(u64, usize)> = Vec::new();
    let mut running = 0;
    for (number, event) in events.iter().enumerate() {
        match event {
            Some(deadline) => {
                let deadline = deadline.map(|deadline| Instant(deadline.into()));
                let priority = (deadline.map_or(u64::MAX, |deadline| deadline.0), number);
                let admission = queue.admit(deadline, number);
                if running < concurrency {
                    running += 1;
                    prop_assert_eq!(admission, Admission::Run(number));
                    continue;
                }
                model.push(priority);
                model.sort();
                let expected = match (model.len() > length).then(|| model.pop()).flatten() {
                    None => Admission::Queued,
                    Some((_, last)) if last == number => Admission::Rejected(number),
                    Some((_, last)) => Admission::QueuedInsteadOf(last),
                };
                prop_assert_eq!(admission, expected);
            }
            None if running > 0 => {
                let next = queue.next(Instant(0));
                if model.is_empty() {
                    running -= 1;
                    prop_assert_eq!(next, NextCall::Idle);
                } else {
                    prop_assert_eq!(next, NextCall::Run(model.remove(0).1));
                }
            }
            None => {}
        }
        prop_assert_eq!((queue.running(), queue.waiting()), (running, model.len()));
    }
    Ok(())
}
