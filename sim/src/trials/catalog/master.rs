//! Masters: turns of the catalog as the masters' loop takes them, and fail-overs.
//!
//! Order: the writes of a turn are stored all together before any of its calls and replies leave. A master that fails
//! in between is followed by one that loads the committed rows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::catalog::{
    Catalog, CatalogEffects, CatalogEvent, CatalogResult, CommandReply, EventResult, Heartbeat,
    SystemRowWrite, TaskKey,
};
use engine::ids::{PeerId, TabletId};

use super::ddl::{Ddl, Situation};
use super::encode;
use super::heartbeats::SentBeat;
use super::orders::LeaderReport;
use super::{CatalogTrial, MASTERS};

/// Percentage of events that wait for the next one before a turn takes them.
const BATCHED: u64 = 15;
/// Turns in a thousand with events, within which the master fails before its writes are stored, or after.
const LOST_PER_MILLE: u64 = 4;
const KEPT_PER_MILLE: u64 = 4;
/// Percentage of fail-overs after which the deposed master works until it notices.
const UNNOTICED: u64 = 50;
/// Percentage of tablet servers that the next master has heard of.
const KNOWN: u64 = 85;

/// A request that waits for its turn or its reply.
#[derive(Debug)]
enum Waiter {
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
    inbox: Vec<CatalogEvent>,
    waiting: BTreeMap<u64, Waiter>,
    next_ticket: u64,
    /// Registered servers.
    pub(super) heard: BTreeMap<PeerId, HeardServer>,
    /// Calls without a response.
    pub(super) open: BTreeSet<TaskKey>,
    /// The last report of each tablet's newest leader.
    pub(super) reports: BTreeMap<TabletId, LeaderReport>,
}

/// A registered server, as its master must know it.
#[derive(Debug, Clone)]
pub(super) struct HeardServer {
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

impl HeardServer {
    pub(super) fn new(instance: i64, at: Duration, location: Option<String>) -> HeardServer {
        HeardServer { instance, at, takes_replicas: true, location, reported: false, last_report: None }
    }
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
            heard: BTreeMap::new(),
            open: BTreeSet::new(),
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
        self.inbox.push(CatalogEvent::Command { ticket, caller: "trial".to_string(), command });
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
        self.heard.get(&server).is_some_and(|heard| now - heard.at <= silence_max)
    }
}

impl CatalogTrial {
    /// Returns true if the leading master has heard from a server lately.
    pub(super) fn is_live(&self, server: PeerId) -> bool {
        self.master.is_live(self.now, self.config.server_unresponsive_after, server)
    }

    /// Takes a turn, or lets the events wait for the next one.
    pub(super) fn turn_perhaps(&mut self) {
        if !self.random.percent(BATCHED) {
            self.turn();
        }
    }

    /// Processes all events that have arrived.
    pub(super) fn turn(&mut self) {
        let events = std::mem::take(&mut self.master.inbox);
        let risk = if self.faults && !events.is_empty() { self.random.below(1_000) } else { 1_000 };
        let before = (risk < LOST_PER_MILLE).then(|| self.model.clone());
        let mut out = CatalogEffects::default();
        if events.is_empty() {
            self.step_catalog(CatalogEvent::Tick, &mut out);
        }
        for event in events {
            self.step_catalog(event, &mut out);
        }
        if let Some(before) = before {
            self.model = before;
            self.reached.lost_turns += 1;
            return self.fail_over("the writes of a turn are lost", false);
        }
        self.store(std::mem::take(&mut out.writes));
        if risk < LOST_PER_MILLE + KEPT_PER_MILLE {
            return self.fail_over("the replies of a turn are lost", false);
        }
        self.release(out);
    }

    fn store(&mut self, writes: Vec<SystemRowWrite>) {
        for write in writes {
            match write.metadata {
                Some(metadata) => self.rows.insert(write.key, metadata),
                None => self.rows.remove(&write.key),
            };
        }
    }

    /// Processes an event and compares its effect with the model.
    fn step_catalog(&mut self, event: CatalogEvent, out: &mut CatalogEffects) {
        let (now, writes, requests) = (self.reading(), out.writes.len(), out.requests.len());
        let ticket = match &event {
            CatalogEvent::Command { ticket, .. } => Some(*ticket),
            CatalogEvent::Heartbeat { heartbeat, .. } => {
                self.before_heartbeat(heartbeat);
                None
            }
            CatalogEvent::Answered { task, .. } => {
                self.master.open.remove(task);
                None
            }
            CatalogEvent::Tick => None,
        };
        let expected = ticket.and_then(|ticket| match self.master.waiting.get(&ticket) {
            Some(Waiter::Client(ddl)) => Some((ddl.clone(), self.expect(ddl))),
            _ => None,
        });
        self.master.catalog.step(now, event, out);
        if let Some((ddl, expected)) = expected
            && let Some(EventResult::Command(result)) = out.replies.last().map(|reply| &reply.result)
        {
            let result = result.clone();
            self.compare_reply(&ddl, expected, &result);
        }
        if out.writes.len() > writes {
            self.observe();
        }
        for request in &out.requests[requests..] {
            self.check_order(request);
            self.master.open.insert(request.task);
        }
        out.notes.drain(..).for_each(|note| self.note(format!("    {note}")));
    }

    /// Returns the outcome of a request in the model.
    fn expect(&self, ddl: &Ddl) -> super::ddl::Expected {
        let live = |server: &PeerId| (*server, self.is_live(*server));
        let servers: BTreeMap<PeerId, bool> = self.master.heard.keys().map(live).collect();
        self.model.expect(ddl, &Situation { now: self.now, config: &self.config, servers: &servers })
    }

    fn compare_reply(
        &mut self,
        ddl: &Ddl,
        expected: super::ddl::Expected,
        result: &CatalogResult<CommandReply>,
    ) {
        let shown = match result {
            Ok(reply) => format!("{reply:?}"),
            Err(error) => error.to_string(),
        };
        self.note(format!("{ddl:?}: {shown}"));
        match (expected, result) {
            (Ok(change), Ok(reply)) => self.apply_change(ddl, change, reply),
            (Err(refusals), Err(error)) => {
                self.reached.refused += 1;
                let got = super::model::Refusal::of(error.code as i32, error.error.kind);
                if !refusals.contains(&got) {
                    self.report(format!("{ddl:?} is refused by {shown}, not by one of {refusals:?}"));
                }
            }
            (Ok(_), Err(_)) => self.report(format!("{ddl:?} must succeed, and is refused: {shown}")),
            (Err(refusals), Ok(_)) => {
                self.report(format!("{ddl:?} must be refused by one of {refusals:?}, and got {shown}"));
            }
        }
    }

    /// Loads the catalog of the next master from the committed rows. The deposed one may work for a while, if it
    /// `lives`: one whose turn was lost has ended.
    pub(super) fn fail_over(&mut self, why: &str, lives: bool) {
        self.note(format!("fail-over: {why}"));
        self.reached.fail_overs += 1;
        let generation = self.master.generation + 1;
        let number = (self.master.number + self.random.between(0, MASTERS as u64 - 1) as usize) % MASTERS;
        let seed = [self.random.next_u64(), generation];
        let loaded = Catalog::load(self.config.clone(), seed, self.reading(), self.rows.clone());
        let mut catalog = match loaded {
            Ok(catalog) => catalog,
            Err(error) => return self.report(format!("the committed rows cannot be loaded: {error}")),
        };
        let mut heard = BTreeMap::new();
        for contact in self.contacts.values() {
            if !self.faults || self.random.percent(KNOWN) {
                let at = Duration::from_nanos(contact.last_heartbeat.0);
                let (instance, location) = (contact.instance, contact.location.clone());
                let known = HeardServer::new(instance, at, location);
                heard.insert(contact.id, known);
                catalog.import_contact(contact.clone());
            }
        }
        let next = Master { heard, ..Master::new(number, generation, self.now, catalog) };
        let deposed = std::mem::replace(&mut self.master, next);
        let deposed = DeposedMaster { generation: deposed.generation, catalog: deposed.catalog };
        self.deposed = Some(deposed).filter(|_| lives && self.random.percent(UNNOTICED));
        self.observe();
        self.turn();
    }

    /// Lets replies and calls leave after their turn's writes are stored.
    fn release(&mut self, out: CatalogEffects) {
        for reply in out.replies {
            match (self.master.waiting.remove(&reply.ticket), reply.result) {
                (Some(Waiter::Beat(beat)), EventResult::Heartbeat(reply)) => {
                    self.on_beat_reply(&beat, &reply)
                }
                (Some(Waiter::Client(_)), EventResult::Command(_)) => {}
                _ => self.report("a reply to no request".to_string()),
            }
        }
        for request in out.requests {
            self.send(request, self.master.generation);
        }
    }

    /// Lets the deposed master work once, until it has something to store.
    pub(super) fn turn_of_deposed(&mut self, event: CatalogEvent) {
        let Some(mut deposed) = self.deposed.take() else { return };
        let mut out = CatalogEffects::default();
        deposed.catalog.step(self.reading(), event, &mut out);
        if out.writes.is_empty() {
            for request in out.requests {
                self.check_late_order(&request);
                self.send(request, deposed.generation);
            }
            self.deposed = Some(deposed);
        }
    }
}
