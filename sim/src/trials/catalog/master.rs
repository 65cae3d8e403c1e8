//! A leading master: its catalog, the events that wait for a turn, and all that it must know.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::catalog::{Catalog, CatalogEvent, Heartbeat, ReportedHealth, TaskKey};
use engine::ids::{PeerId, TabletId};

use super::creations::Creations;
use super::ddl::Ddl;
use super::encode;
use super::messages::SentBeat;
use super::settings::CALLER;

/// A request that waits for its turn or its reply.
#[derive(Debug)]
pub(super) enum Waiter {
    Client(Box<Ddl>),
    Beat(SentBeat),
}

/// The leading master.
pub(super) struct Master {
    pub(super) number: usize,
    pub(super) generation: u64,
    /// Time at which it began to lead.
    pub(super) since: Duration,
    pub(super) catalog: Catalog,
    pub(super) inbox: Vec<CatalogEvent>,
    pub(super) waiting: BTreeMap<u64, Waiter>,
    next_ticket: u64,
    /// Registered servers.
    pub(super) registered: BTreeMap<PeerId, RegisteredServer>,
    /// Calls without a response.
    pub(super) open: BTreeSet<TaskKey>,
    pub(super) creations: Creations,
    /// The last report of each tablet's newest leader.
    pub(super) reports: BTreeMap<TabletId, LeaderReport>,
}

/// A registered server, as its master must know it.
#[derive(Debug, Clone)]
pub(super) struct RegisteredServer {
    pub(super) instance: i64,
    /// Time of its last heartbeat.
    pub(super) at: Duration,
    pub(super) takes_replicas: bool,
    pub(super) location: Option<String>,
    /// True if a full report has arrived since its registration.
    pub(super) reported: bool,
    /// Number of its last report.
    pub(super) last_report: Option<i32>,
}

impl RegisteredServer {
    pub(super) fn new(instance: i64, at: Duration, location: Option<String>) -> RegisteredServer {
        RegisteredServer { instance, at, takes_replicas: true, location, reported: false, last_report: None }
    }
}

/// The last report of the leader of the newest term of which the leading master has received a report.
#[derive(Debug, Clone)]
pub(super) struct LeaderReport {
    pub(super) term: i64,
    pub(super) leader: PeerId,
    pub(super) health: BTreeMap<PeerId, ReportedHealth>,
    /// Time since which this leader could be asked for the change that it needs, and has not been.
    pub(super) unasked_since: Option<Duration>,
}

/// A master that leads no longer and has not noticed: it works until it has something to store.
pub(super) struct DeposedMaster {
    pub(super) generation: u64,
    pub(super) catalog: Catalog,
}

impl Master {
    pub(super) fn new(number: usize, generation: u64, since: Duration, catalog: Catalog) -> Master {
        Master {
            number,
            generation,
            since,
            catalog,
            inbox: Vec::new(),
            waiting: BTreeMap::new(),
            next_ticket: 0,
            registered: BTreeMap::new(),
            open: BTreeSet::new(),
            creations: Creations::default(),
            reports: BTreeMap::new(),
        }
    }

    fn ticket(&mut self, waiter: Waiter) -> u64 {
        self.next_ticket += 1;
        self.waiting.insert(self.next_ticket, waiter);
        self.next_ticket
    }

    pub(super) fn take_request(&mut self, ddl: Ddl) {
        let command = encode::command(&ddl);
        let ticket = self.ticket(Waiter::Client(Box::new(ddl)));
        self.inbox.push(CatalogEvent::Command { ticket, caller: CALLER.to_string(), command });
    }

    pub(super) fn take_heartbeat(&mut self, heartbeat: Box<Heartbeat>, up_to: u64) {
        let (server, instance) = (heartbeat.server, heartbeat.instance);
        let reports = heartbeat.report.is_some();
        let ticket = self.ticket(Waiter::Beat(SentBeat { server, instance, reports, up_to }));
        self.inbox.push(CatalogEvent::Heartbeat { ticket, heartbeat });
    }

    pub(super) fn take_answer(&mut self, task: TaskKey, result: Result<(), engine::error::Error>) {
        self.inbox.push(CatalogEvent::Answered { task, result });
    }

    /// Returns true for a server with a recent heartbeat.
    pub(super) fn is_live(&self, now: Duration, silence_max: Duration, server: PeerId) -> bool {
        self.registered.get(&server).is_some_and(|known| now - known.at <= silence_max)
    }
}
