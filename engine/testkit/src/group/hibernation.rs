//! Events of a hibernated core: a check that they do nothing but move clocks, and a queue that defers them.

use engine::note::raft::RaftAction;
use engine::raft::interface::UpdateResponse;
use engine::raft::{Raft, RaftEffects, RaftEvent, RaftReply};
use engine::time::ClockReading;

/// Events that a server defers while its core is hibernated.
#[derive(Default)]
pub struct DeferredEvents {
    /// True if the server defers events.
    pub defers: bool,
    pub queue: Vec<(ClockReading, RaftEvent, Idle)>,
    /// Number of events that a hibernated core need not process.
    pub seen: u64,
}

/// An event that a hibernated core need not process.
pub enum Idle {
    Heartbeat(UpdateResponse),
    Answer,
}

impl Idle {
    pub fn of(raft: &Raft, event: &RaftEvent) -> Option<Idle> {
        let hibernation = raft.hibernation()?;
        match event {
            RaftEvent::Update { request, .. } => hibernation.heartbeat_reply(request).map(Idle::Heartbeat),
            event => hibernation.is_expected_reply(event).then_some(Idle::Answer),
        }
    }

    /// Checks that the event had no effect outside the core.
    pub fn check(&self, output: &RaftEffects) {
        let RaftEffects { log, meta, messages, replies, read_log, notes, status_changed, marks } = output;
        assert!(
            log.is_empty()
                && meta.is_none()
                && messages.is_empty()
                && read_log.is_empty()
                && marks.is_empty(),
            "{output:?}"
        );
        assert!(!status_changed, "{output:?}");
        assert!(
            notes.iter().all(|note| matches!(note.action, RaftAction::SafeTimeAdvance { .. })),
            "{notes:?}"
        );
        match (self, &replies[..]) {
            (Idle::Heartbeat(expected), [(_, RaftReply::Update(reply))]) => assert_eq!(reply, expected),
            (Idle::Answer, []) => {}
            _ => panic!("{replies:?}"),
        }
    }
}
