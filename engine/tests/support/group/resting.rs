//! What comes for a core at rest: looked at whether it does nothing but move clocks, and kept if its server keeps.

use engine::note::raft::Action;
use engine::raft::message::UpdateResponse;
use engine::raft::{Event, Output, Raft, Reply};
use engine::time::Now;

/// What a server keeps for its core while that rests.
#[derive(Default)]
pub struct Resting {
    /// Whether it keeps anything.
    pub keeps: bool,
    pub kept: Vec<(Now, Event, Idle)>,
    /// How often something came that a core at rest need not see.
    pub seen: u64,
}

/// What a core at rest need not see.
pub enum Idle {
    Heartbeat(UpdateResponse),
    Answer,
}

impl Idle {
    pub fn of(raft: &Raft, event: &Event) -> Option<Idle> {
        let rest = raft.rest()?;
        match event {
            Event::Update { request, .. } => rest.answer(request).map(Idle::Heartbeat),
            event => rest.expects(event).then_some(Idle::Answer),
        }
    }

    /// Nothing came of it that anybody but the core would see.
    pub fn check(&self, output: &Output) {
        let Output { log, meta, messages, replies, read_log, notes, status_changed, marks } = output;
        assert!(
            log.is_empty()
                && meta.is_none()
                && messages.is_empty()
                && read_log.is_empty()
                && marks.is_empty(),
            "{output:?}"
        );
        assert!(!status_changed, "{output:?}");
        assert!(notes.iter().all(|note| matches!(note.action, Action::SafeTimeAdvance { .. })), "{notes:?}");
        match (self, &replies[..]) {
            (Idle::Heartbeat(answer), [(_, Reply::Update(reply))]) => assert_eq!(reply, answer),
            (Idle::Answer, []) => {}
            _ => panic!("{replies:?}"),
        }
    }
}
