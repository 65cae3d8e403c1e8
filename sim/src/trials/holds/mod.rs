//! A trial of holds on history: readers of old snapshots, masters that lead in turn, and servers that drop history.
//!
//! ```text
//!   reader ── hold at T, again each second ──► leading master ── list, may be late or lost ──► tablet server
//!     │                                           │ fails; another one leads                      │ restarts
//!     └─ while it is held, no server's mark of ancient history passes T ◄─────────────────────────┘
//! ```
//!
//! The code of masters and servers is the real one, without calls and disks: a trial of minutes takes a millisecond.
//! Clocks of masters and servers err.
//!
//! *Not here:* the garbage collection that follows the mark, and scans at the snapshot.

mod master;
mod reader;
mod server;
mod settings;

use node::master::HistoryHolds;
use sim_plan::RandomStream;

use self::master::Master;
use self::reader::Reader;
use self::server::Server;
use self::settings::{AGE, LEASE, LIMITS, SKEW, TABLES, clock, table_of};
use crate::oracle::Violation;

/// Name of this oracle.
const NAME: &str = "holds trial";

/// Lines that a violation's story ends with.
const STORY: usize = 20;
const MASTERS: usize = 3;
const SERVERS: usize = 3;
const READERS: usize = 4;
/// Seconds of a trial, before its quiet end and in it.
const SECONDS: u64 = 240;
const END_SECONDS: u64 = 30;
/// Longest delay of a list in seconds.
const DELAY: u64 = 3;
/// Percentage of seconds in which the leader fails, another master is elected, and a server restarts.
const FAIL: u64 = 5;
const ELECT: u64 = 25;
const RESTART: u64 = 1;

struct HoldsTrial {
    random: RandomStream,
    /// Seconds since the beginning.
    now: u64,
    masters: Vec<Master>,
    /// The master that was elected last, unless it has failed.
    leader: Option<usize>,
    servers: Vec<Server>,
    readers: Vec<Reader>,
    story: Vec<String>,
}

/// Runs the trial of a seed; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let mut trial = HoldsTrial::create(seed);
    let what = trial.play().err()?;
    Some(Violation::new(NAME, format!("seed {seed}: {what}")).with_end_of(trial.story, STORY))
}

impl HoldsTrial {
    fn create(seed: u64) -> HoldsTrial {
        let mut random = RandomStream::new(seed, "holds trial");
        let mut master =
            || Master { holds: HistoryHolds::new(LIMITS), error: random.within(SKEW), believes: false };
        let masters = (0..MASTERS).map(|_| master()).collect();
        let servers = (0..SERVERS).map(|_| Server::new(random.within(SKEW))).collect();
        let readers = (0..READERS).map(Reader::new).collect();
        HoldsTrial { random, now: 0, masters, leader: None, servers, readers, story: Vec::new() }
    }

    fn play(&mut self) -> Result<(), String> {
        for _ in 0..SECONDS {
            self.change_masters();
            self.change_readers()?;
            self.send_lists();
            self.restart_servers();
            self.deliver()?;
            self.check_readers()?;
            self.now += 1;
        }
        self.end()
    }

    fn note(&mut self, what: String) {
        self.story.push(format!("{} s: {what}", self.now));
    }

    /// Lets the leader fail, or another master lead. One that has failed leads until it notices.
    fn change_masters(&mut self) {
        for master in 0..MASTERS {
            if self.leader != Some(master) && self.masters[master].believes && self.random.percent(ELECT) {
                self.masters[master].holds.end_leadership();
                self.masters[master].believes = false;
            }
        }
        match self.leader {
            Some(leader) if self.random.percent(FAIL) => {
                self.leader = None;
                self.note(format!("master {leader} fails"));
            }
            None if self.random.percent(ELECT) => self.elect(),
            _ => {}
        }
    }

    fn elect(&mut self) {
        let master = self.random.below(MASTERS as u64) as usize;
        let now = clock(self.now, self.masters[master].error);
        self.masters[master].holds.begin_leadership(now.mono);
        self.masters[master].believes = true;
        self.leader = Some(master);
        self.note(format!("master {master} leads"));
    }

    /// Sends the lists of every master that believes to lead.
    fn send_lists(&mut self) {
        for number in 0..MASTERS {
            let master = &self.masters[number];
            let now = clock(self.now, master.error);
            let Some(list) = master.holds.list(now, self.leader == Some(number)) else { continue };
            for server in &mut self.servers {
                if self.random.percent(80) {
                    server.send(self.now + self.random.below(DELAY + 1), list.clone());
                }
            }
        }
    }

    fn restart_servers(&mut self) {
        for number in 0..SERVERS {
            if self.random.percent(RESTART) {
                self.servers[number].restart();
                self.note(format!("server {number} restarts"));
            }
        }
    }

    fn deliver(&mut self) -> Result<(), String> {
        self.servers.iter_mut().try_for_each(|server| server.deliver(self.now))
    }

    /// Lets readers begin and end, and hold their snapshots again.
    fn change_readers(&mut self) -> Result<(), String> {
        for number in 0..READERS {
            let leading = self.leader.map(|leader| &self.masters[leader]);
            let told = self.readers[number].step(&mut self.random, self.now, leading)?;
            if let Some(told) = told {
                self.note(format!("reader {number} {told}"));
            }
        }
        Ok(())
    }

    /// No server drops what a reader holds.
    fn check_readers(&self) -> Result<(), String> {
        for (number, reader) in self.readers.iter().enumerate() {
            let Some((table, snapshot)) = reader.held() else { continue };
            for (at, server) in self.servers.iter().enumerate() {
                let mark = server.dropped(table);
                if mark > snapshot {
                    return Err(format!(
                        "server {at} drops history up to {mark}, reader {number} holds {snapshot}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Once no reader is left, a master that leads lets each server drop all history that is old enough.
    fn end(&mut self) -> Result<(), String> {
        self.readers.iter_mut().for_each(Reader::fail);
        if self.leader.is_none() {
            self.elect();
        }
        for _ in 0..END_SECONDS {
            self.send_lists();
            self.now += 1;
            self.deliver()?;
        }
        let oldest = clock(self.now - AGE - 2 * SKEW - 2 * DELAY - LEASE, 0).wall.micros;
        for (number, server) in self.servers.iter().enumerate() {
            for table in (0..TABLES).map(table_of) {
                let mark = server.mark(self.now, table);
                if mark.micros() < oldest {
                    return Err(format!(
                        "server {number} keeps history of {table} from {mark} on, without a hold"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
