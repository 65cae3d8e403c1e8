//! A real master as the trial knows it: its life, its disturbances, and the servers that sent it heartbeats.

use std::collections::BTreeMap;

use bytes::Bytes;
use engine::ids::Uuid;
use engine::time::Instant;

use super::settings::{ALIVE, SETTLED};

/// The heartbeats of a server to a master in its present life.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contact {
    /// Time of the last heartbeat, with a reply or without.
    pub(super) sent: Instant,
    /// Life of the server that the master has accepted, and the times at which the first and the last heartbeat with a
    /// reply were sent.
    pub(super) accepted: Option<(i64, Instant, Instant)>,
}

#[derive(Debug, Default)]
pub(super) struct KnownMaster {
    /// Its id, once it was in a list.
    pub(super) id: Option<Bytes>,
    /// Number of its present life.
    pub(super) life: u64,
    pub(super) up: bool,
    /// True while it is cut off, and the time until which it was.
    pub(super) cut_off: bool,
    pub(super) cut_off_until: Instant,
    /// End of its last disturbance.
    pub(super) disturbed_until: Instant,
    pub(super) contacts: BTreeMap<Uuid, Contact>,
}

impl KnownMaster {
    /// Begins the next life, which knows no server. A heartbeat that was sent before may still arrive.
    pub(super) fn start(&mut self, now: Instant) {
        self.life += 1;
        (self.up, self.disturbed_until) = (true, now);
        self.contacts.values_mut().for_each(|contact| contact.accepted = None);
    }

    /// Returns true if it runs, is reached, and has recovered from what happened to it.
    pub(super) fn is_settled(&self, now: Instant) -> bool {
        self.up && !self.cut_off && now > self.disturbed_until.after(SETTLED)
    }

    /// Returns the servers that must be alive to it: they have registered some time ago, and sent a heartbeat lately.
    pub(super) fn alive(&self, now: Instant) -> impl Iterator<Item = Uuid> {
        let is_alive = move |contact: &Contact| {
            contact
                .accepted
                .is_some_and(|(_, first, last)| now.since(first) > SETTLED && now.since(last) < ALIVE)
        };
        self.contacts.iter().filter(move |(_, contact)| is_alive(contact)).map(|(server, _)| *server)
    }
}
