//! Events of a trial in the order of their times.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::catalog::{Heartbeat, TaskKey};
use engine::error::Error;
use engine::ids::{PeerId, TabletId};

use super::messages::SentCall;

/// An event of a trial.
#[derive(Debug)]
pub(super) enum Occasion {
    /// A server sends a heartbeat because of a change.
    Beat(PeerId),
    /// A heartbeat of a server's present life is due.
    RegularBeat(PeerId, i64),
    /// A heartbeat reaches the masters; the number is acknowledged with its reply.
    BeatArrives { heartbeat: Box<Heartbeat>, master: usize, up_to: u64 },
    /// A call reaches a server.
    CallArrives(SentCall),
    /// The response to a call reaches the master that made it.
    Answer { generation: u64, task: TaskKey, result: Result<(), Error> },
    /// The replicas of a tablet work.
    GroupTurn(TabletId),
}

/// Occasions to come; those of one time in the order of their making.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    occasions: BTreeMap<(Duration, u64), Occasion>,
    next: u64,
}

impl Agenda {
    pub(super) fn add(&mut self, at: Duration, occasion: Occasion) {
        self.next += 1;
        self.occasions.insert((at, self.next), occasion);
    }

    /// Time of the first occasion.
    pub(super) fn first(&self) -> Option<Duration> {
        self.occasions.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn take(&mut self) -> Option<Occasion> {
        self.occasions.pop_first().map(|(_, occasion)| occasion)
    }
}
