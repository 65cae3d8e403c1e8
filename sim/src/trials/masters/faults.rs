//! The faults of a masters trial: masters that fail, are cut off or have slow disks; servers that are late or down.

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use engine::time::Instant;

use super::MastersTrial;
use super::fault_end::FaultEnd;
use super::outage::Outage;
use super::settings::{IDENTITIES, MASTERS, SERVERS, master};
use crate::cluster::WAL_DIR;
use crate::net::rules::LinkEffect;
use crate::trials::fleet::host;
use crate::world::{LinkRule, World};

/// Longest time of each fault, in milliseconds, and of the pause between two.
const DOWN_MILLIS: u64 = 3_000;
const CUT_OFF_MILLIS: u64 = 4_000;
const SLOW_MILLIS: u64 = 6_000;
const SERVER_DOWN_MILLIS: u64 = 6_000;
const LATE_MILLIS: u64 = 3_000;
/// Shortest time for which servers are late, and longest one if all masters fail.
const SOON_MILLIS: u64 = 200;
const SILENT_MILLIS: u64 = 4_500;
const PAUSE_MILLIS: u64 = 1_800;
/// Percentage of servers that go down and come back without their disks.
const WIPED: u64 = 15;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    KillMaster,
    CutPower,
    /// The leading master fails in either way.
    FailLeader,
    CutOff,
    CutOffLeader,
    SlowDisks,
    StopServer,
    LateServer,
    /// All servers are late at once.
    LateServers,
    None,
    /// All masters fail, and servers are late for longer: the next leader knows none of them at first.
    FailMasters,
}

impl MastersTrial {
    /// Returns the number of the leading master, or of any.
    fn leader(&mut self) -> usize {
        let leader = self.state.lock().leadership.map(|of| of.master);
        leader.unwrap_or_else(|| self.random.below(MASTERS as u64) as usize)
    }

    /// Begins a fault; returns the pause until the next one.
    pub(super) fn begin_fault(&mut self) -> Duration {
        let fault = self.random.weighted(&[
            (Fault::KillMaster, 2),
            (Fault::CutPower, 2),
            (Fault::FailLeader, 5),
            (Fault::CutOff, 1),
            (Fault::CutOffLeader, 3),
            (Fault::SlowDisks, 5),
            (Fault::StopServer, 6),
            (Fault::LateServer, 3),
            (Fault::LateServers, 2),
            (Fault::None, 4),
            (Fault::FailMasters, 1),
        ]);
        let (number, power) = (self.random.below(MASTERS as u64) as usize, self.random.percent(50));
        match fault {
            Fault::KillMaster => self.fail_master(number, false),
            Fault::CutPower => self.fail_master(number, true),
            Fault::FailLeader => {
                let leader = self.leader();
                self.fail_master(leader, power);
            }
            Fault::CutOff => self.cut_off(number),
            Fault::CutOffLeader => {
                let leader = self.leader();
                self.cut_off(leader);
            }
            Fault::SlowDisks => self.slow_disks(),
            Fault::StopServer => self.stop_server(),
            Fault::LateServer => {
                let server = self.random.below(SERVERS as u64) as usize;
                self.delay(server..server + 1, SOON_MILLIS..=LATE_MILLIS);
            }
            Fault::LateServers => self.delay(0..SERVERS, SOON_MILLIS..=LATE_MILLIS),
            Fault::None => {}
            Fault::FailMasters => {
                (0..MASTERS).for_each(|number| self.fail_master(number, power));
                self.delay(0..SERVERS, DOWN_MILLIS..=SILENT_MILLIS);
            }
        }
        Duration::from_millis(self.random.below(PAUSE_MILLIS))
    }

    fn later(&mut self, millis: u64, end: FaultEnd) {
        let span = Duration::from_millis(self.random.between(100, millis));
        self.ends.push((self.world.now() + span, end));
    }

    fn now(&self) -> Instant {
        self.world.mono()
    }

    fn note(&mut self, what: String) {
        let at = self.now();
        self.state.lock().note(format!("{:.3} s: {what}", at.0 as f64 / 1e9));
    }

    fn fail_master(&mut self, number: usize, power: bool) {
        if !std::mem::replace(&mut self.state.lock().masters[number].up, false) {
            return;
        }
        self.depose(number);
        let name = master(number).name();
        if power {
            self.world.cut_power(&name);
        } else {
            self.world.kill(&name);
        }
        self.note(format!("master {number} fails, power {power}"));
        self.later(DOWN_MILLIS, FaultEnd::StartMaster(number));
    }

    /// Records that a master that cannot be reached does not lead.
    fn depose(&mut self, number: usize) {
        let now = self.now();
        let mut state = self.state.lock();
        let life = state.masters[number].life;
        state.on_role(number, life, false, now);
    }

    fn cut_off(&mut self, number: usize) {
        if std::mem::replace(&mut self.state.lock().masters[number].cut_off, true) {
            return;
        }
        self.depose(number);
        let name = Some(master(number).name());
        let rules = [(name.clone(), None), (None, name)];
        let rules =
            rules.map(|(from, to)| self.world.add_rule(LinkRule { from, to, effect: LinkEffect::Block }));
        self.note(format!("master {number} is cut off"));
        self.later(CUT_OFF_MILLIS, FaultEnd::Reconnect(number, rules.to_vec()));
    }

    fn slow_disks(&mut self) {
        let factor = self.random.pick(&[20, 60, 200]);
        for number in 0..MASTERS {
            self.world.machine(&master(number).name()).slow_disk(WAL_DIR, factor);
        }
        self.disturb_all();
        self.is_slow = true;
        self.note(format!("the masters' disks are {factor} times as slow"));
        self.later(SLOW_MILLIS, FaultEnd::FastDisks);
    }

    fn disturb_all(&mut self) {
        let now = self.now();
        self.state.lock().masters.iter_mut().for_each(|master| master.disturbed_until = now);
    }

    fn stop_server(&mut self) {
        let server = self.random.below(SERVERS as u64) as usize;
        let wiped = self.random.percent(WIPED);
        if !self.state.lock().servers[server].up {
            return;
        }
        self.world.kill(&host(server).name());
        let now = self.now();
        let mut state = self.state.lock();
        state.servers[server].stop(now);
        let wiped = wiped && state.servers[server].identity + 1 < IDENTITIES && state.can_lose(server);
        if wiped {
            let old = state.servers[server].id();
            state.gone.insert(old, now);
            state.servers[server].wipe();
        }
        drop(state);
        self.note(format!("server {server} stops, and loses its disks: {wiped}"));
        self.later(SERVER_DOWN_MILLIS, FaultEnd::StartServer(server));
    }

    /// Stops or starts the server that the script asks for.
    pub(super) fn serve_outage(&mut self) {
        let outage = self.state.lock().outage;
        match outage {
            Some(Outage::Begins(server)) => {
                self.world.kill(&host(server).name());
                let now = self.now();
                let mut state = self.state.lock();
                state.servers[server].stop(now);
                state.outage = Some(Outage::Lasts);
            }
            Some(Outage::Ends(server)) => {
                self.state.lock().outage = None;
                self.world.restart(&host(server).name());
            }
            Some(Outage::Lasts) | None => {}
        }
    }

    /// Lets servers send their next heartbeats late, by some milliseconds.
    fn delay(&mut self, servers: Range<usize>, millis: RangeInclusive<u64>) {
        let late = self.random.between(*millis.start(), *millis.end());
        let until = self.now().after(Duration::from_millis(late));
        let mut state = self.state.lock();
        servers.clone().for_each(|server| state.servers[server].late_until = until);
        drop(state);
        self.note(format!("servers {servers:?} are late"));
    }

    /// Ends the faults that are due, or all of them.
    pub(super) fn end_faults(&mut self, all: bool) {
        let now = self.world.now();
        let (due, left) = std::mem::take(&mut self.ends).into_iter().partition(|(at, _)| all || *at <= now);
        self.ends = left;
        for (_, end) in due {
            self.end_fault(end);
        }
        let now = self.now();
        let is_slow = self.is_slow;
        let mut state = self.state.lock();
        if state.masters.iter().filter(|master| master.up && !master.cut_off).count() <= MASTERS / 2 {
            state.minority_until = now;
        }
        for master in &mut state.masters {
            if is_slow || !master.up || master.cut_off {
                master.disturbed_until = now;
            }
            if master.cut_off {
                master.cut_off_until = now;
            }
        }
    }

    fn end_fault(&mut self, end: FaultEnd) {
        match end {
            FaultEnd::StartMaster(number) => {
                let now = self.now();
                self.state.lock().masters[number].start(now);
                self.world.restart(&master(number).name());
                self.note(format!("master {number} starts"));
            }
            FaultEnd::Reconnect(number, rules) => {
                rules.into_iter().for_each(|rule| self.world.remove_rule(rule));
                let now = self.now();
                let mut state = self.state.lock();
                state.masters[number].cut_off = false;
                state.masters[number].disturbed_until = now;
            }
            FaultEnd::FastDisks => {
                for number in 0..MASTERS {
                    self.world.machine(&master(number).name()).slow_disk(WAL_DIR, 1);
                }
                self.is_slow = false;
                self.disturb_all();
            }
            FaultEnd::StartServer(server) => self.world.restart(&host(server).name()),
        }
    }
}
