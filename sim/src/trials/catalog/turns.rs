//! Turns of the catalog as the masters' loop takes them, and fail-overs.
//!
//! Order: the writes of a turn are stored all together before any of its calls and replies leave. A master that fails
//! in between is followed by one that loads the committed rows.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::catalog::{
    Catalog, CatalogEffects, CatalogEvent, CatalogResult, CommandReply, EventResult, SystemRowWrite,
    TserverContact,
};
use engine::ids::PeerId;

use super::CatalogTrial;
use super::ddl::{Ddl, Expected, Situation};
use super::master::{DeposedMaster, Master, RegisteredServer, Waiter};
use super::model::Refusal;
use super::settings::MASTERS;

/// Percentage of events that wait for the next one before a turn takes them.
const BATCHED: u64 = 15;
/// Turns per mille, of those with events, within which the master fails before its writes are stored, or after.
const LOST_PER_MILLE: u64 = 4;
const KEPT_PER_MILLE: u64 = 4;
/// Percentage of fail-overs after which the deposed master works until it notices.
const UNNOTICED: u64 = 50;
/// Percentage of tablet servers whose registration the next master has received.
const KNOWN: u64 = 85;

impl CatalogTrial {
    /// Returns true if the leading master has received a heartbeat of a server lately.
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
            CatalogEvent::Answered { task, result } => {
                self.master.open.remove(task);
                self.master.creations.on_answer(*task, result, self.now);
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
            self.master.creations.on_request(request.task);
        }
        out.notes.drain(..).for_each(|note| self.note(format!("    {note}")));
    }

    /// Returns the outcome of a request in the model.
    fn expect(&self, ddl: &Ddl) -> Expected {
        let live = |server: &PeerId| (*server, self.is_live(*server));
        let servers: BTreeMap<PeerId, bool> = self.master.registered.keys().map(live).collect();
        self.model.expect(ddl, &Situation { now: self.now, config: &self.config, servers: &servers })
    }

    fn compare_reply(&mut self, ddl: &Ddl, expected: Expected, result: &CatalogResult<CommandReply>) {
        let shown = match result {
            Ok(reply) => format!("{reply:?}"),
            Err(error) => error.to_string(),
        };
        self.note(format!("{ddl:?}: {shown}"));
        match (expected, result) {
            (Ok(change), Ok(reply)) => self.apply_change(ddl, change, reply),
            (Err(refusals), Err(error)) => {
                self.reached.refused += 1;
                let got = Refusal::of(error.code as i32, error.error.kind);
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
        let mut registered = BTreeMap::new();
        for contact in self.contacts.values() {
            if !self.faults || self.random.percent(KNOWN) {
                let at = Duration::from_nanos(contact.last_heartbeat.0);
                let (instance, location) = (contact.instance, contact.location.clone());
                let known = RegisteredServer::new(instance, at, location);
                registered.insert(contact.id, known);
                let last_report = self.last_reports.get(&(number, contact.id, instance)).copied().flatten();
                catalog.import_contact(TserverContact { last_report, ..contact.clone() });
            }
        }
        let mut next = Master::new(number, generation, self.now, catalog);
        next.registered = registered;
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
