//! Places of a synchronous insert at which spans may begin or end, with spans switched off.
//!
//! `cargo ci counts` checks that they take at most 1 % of `raft.lead` with the same number of operations. That is a
//! part of an insert only, without sockets, tasks, rows and the log, so the share is too large rather than too small.

use std::hint::black_box;

use nyala_common::spans::{SpanOrigin, SpanRecorder};

use super::hot_path::Run;
use super::log::ENTRY_COUNT;

/// Replicas besides the leader's.
const FOLLOWERS: usize = 2;

/// Passes the places in the calls of the client, of the leader and of each follower.
pub(super) fn off() -> Run {
    let recorder = SpanRecorder::default();
    Box::new(move || {
        for _ in 0..ENTRY_COUNT {
            let spans = black_box(&recorder);
            // The client's call.
            assert!(spans.begin(black_box(SpanOrigin::Root)).is_none());
            // The leader's call: its begin, and its end.
            assert!(spans.root().is_none());
            assert!(!spans.is_on());
            for _ in 0..FOLLOWERS {
                // The message to the follower: whether its operations are sampled, and the call.
                assert!(!black_box(&recorder).is_on());
                assert!(spans.begin(black_box(SpanOrigin::None)).is_none());
                // The follower's call: no span of the caller, and its end.
                assert!(black_box(None).and_then(|parent| spans.child(parent)).is_none());
                assert!(!black_box(&recorder).is_on());
            }
        }
    })
}
