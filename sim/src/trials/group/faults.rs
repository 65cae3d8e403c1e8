//! Faults of a group trial.

use std::time::Duration;

use engine::error::Result;
use engine::ids::OpId;
use engine::raft::RaftEvent;
use engine::raft::interface::VoteRequest;
use engine::replica::{JobKind, Replica, ReplicaEvent, wal_dir};
use engine::tablet::flush::data_dir;
use engine::tablet::superblock::{DataState, Superblock};
use engine::time::Timestamp;

use super::ids::{TABLET, id_of};
use super::links::{Message, NO_LIFE};
use super::server::TrialServer;
use super::step::Fault;
use super::{GroupTrial, MEMBERS};
use crate::trials::rot;

/// Requests that a follower misses until the log of its leader begins after them.
const MISSED_REQUESTS: u64 = 12;
/// Most requests that reach one follower alone; rounds in which the others continue, and the time of each.
const STRANDED_REQUESTS: u64 = 4;
const STRANDED_ROUNDS: u32 = 12;
const STRANDED_ROUND: Duration = Duration::from_millis(20);
/// Operations by which a candidate may be ahead of what is committed.
const NEWER_OPS: u64 = 20;
/// Most disk operations before a late power cut.
const LATE_OPS_MAX: u64 = 12;

impl GroupTrial {
    pub(super) fn fault(&mut self, fault: Fault, server: usize) -> Result<()> {
        let other = self.any_server();
        let is_up = self.servers[server].is_up;
        match fault {
            Fault::PowerCut => {
                let server = self.busy_server(server);
                self.crash(server, true);
            }
            Fault::Kill if is_up => self.crash(server, false),
            Fault::LatePowerCut if is_up => {
                let ops = self.random.between(1, LATE_OPS_MAX);
                let own = &self.servers[server];
                let disk = if self.random.percent(50) { &own.wal_disk } else { &own.data_disk };
                disk.cut_power_at(ops);
            }
            Fault::Restart if !is_up => return self.restart(server),
            Fault::CutLink => self.links.cut(server, other),
            Fault::Isolate => self.isolate(),
            Fault::Outrun => return self.outrun(server),
            Fault::Strand => return self.strand(server),
            Fault::Readd => return self.readd(server),
            Fault::RepairLink => self.links.repair(false),
            Fault::RepairLinks => self.links.repair(true),
            Fault::Stall => self.servers[server].stalled = true,
            Fault::Unstall => self.servers[server].stalled = false,
            Fault::FillLog => self.fill_log(server),
            Fault::FreeLog => self.free_log(server),
            Fault::Rot if !is_up => self.rot(server),
            Fault::Elect => self.elect(server, other),
            Fault::Supplant => return self.supplant(server),
            Fault::StrayVote => {
                let voter = self.silent_server(server);
                self.send_stray_vote(voter, other);
            }
            Fault::StepDown => self.step_down(other),
            _ => {}
        }
        Ok(())
    }

    /// Cuts the leader's links to all others.
    fn isolate(&mut self) {
        let Some(leader) = self.leader() else { return };
        for other in (0..self.servers.len()).filter(|other| *other != leader) {
            self.cut_both(leader, other);
        }
    }

    /// Cuts off a follower until its leader's log does not have what it lacks.
    fn outrun(&mut self, server: usize) -> Result<()> {
        let Some(leader) = self.leader().filter(|leader| *leader != server) else { return Ok(()) };
        if self.servers.iter().any(|own| own.is_hindered()) {
            return Ok(());
        }
        for other in (0..self.servers.len()).filter(|other| *other != server) {
            self.cut_both(server, other);
        }
        for _ in 0..MISSED_REQUESTS {
            self.request();
            self.take_turns()?;
        }
        self.flush_and_gc(leader)
    }

    /// Lets the leader's last operations reach one follower alone, takes them from the leader, and lets the others
    /// continue without that follower, which gives up its leader meanwhile.
    fn strand(&mut self, follower: usize) -> Result<()> {
        let Some(leader) = self.leader().filter(|leader| *leader != follower) else { return Ok(()) };
        if self.servers.iter().any(|own| own.is_hindered()) {
            return Ok(());
        }
        self.servers[leader].stalled = true;
        let others: Vec<usize> = (0..self.servers.len()).filter(|other| *other != follower).collect();
        // The operation before them is everywhere, and the leader is not told so.
        others.iter().for_each(|other| self.links.cut(*other, leader));
        self.request();
        self.take_turns()?;
        others.iter().for_each(|other| self.cut_both(leader, *other));
        for _ in 0..self.random.between(1, STRANDED_REQUESTS) {
            self.request();
            self.take_turns()?;
        }
        self.servers[leader].stalled = false;
        self.crash(leader, true);
        self.links.repair(true);
        for other in 0..self.servers.len() {
            self.cut_both(follower, other);
        }
        self.restart(leader)?;
        for _ in 0..STRANDED_ROUNDS {
            self.pass(STRANDED_ROUND);
            self.take_turns()?;
            self.request();
        }
        Ok(())
    }

    pub(super) fn cut_both(&mut self, one: usize, other: usize) {
        self.links.cut(one, other);
        self.links.cut(other, one);
    }

    /// Lets a server take requests, flush their rows and remove the beginning of its log.
    pub(super) fn shorten_log(&mut self, server: usize) -> Result<()> {
        for _ in 0..MISSED_REQUESTS {
            self.request();
            self.take_turns()?;
        }
        self.flush_and_gc(server)
    }

    pub(super) fn flush_and_gc(&mut self, server: usize) -> Result<()> {
        if self.servers[server].running().is_some() {
            self.run_job(server, JobKind::FlushRows)?;
        }
        let retained = self.retained_from();
        if self.servers[server].waits_for_space() {
            return Ok(());
        }
        match &mut self.servers[server].open {
            Some((replica, wal)) => wal.gc(replica.log_keep_from().min(retained)).map(drop),
            None => Ok(()),
        }
    }

    /// Lets a server stand for election, or two at once.
    fn elect(&mut self, server: usize, other: usize) {
        let ignore_live_leader = self.random.percent(50);
        self.step(server, RaftEvent::Elect { ignore_live_leader });
        if self.random.percent(60) {
            self.step(other, RaftEvent::Elect { ignore_live_leader });
        }
    }

    /// Lets the leader serve the newest snapshot that it can, and another server lead at once. Clocks differ by more
    /// than the time in between, and no other server has to know that snapshot.
    fn supplant(&mut self, server: usize) -> Result<()> {
        // What a rotten leader cannot read says nothing about the other server.
        let sound = |leader: &usize| *leader != server && !self.servers[*leader].rotten;
        let Some(leader) = self.leader().filter(sound) else { return Ok(()) };
        let at = Timestamp::from_micros(self.now.as_micros() as u64);
        self.step(leader, ReplicaEvent::WantSnapshot { at });
        self.take_turns()?;
        self.read_newest(leader)?;
        self.isolate();
        self.step(server, RaftEvent::Elect { ignore_live_leader: true });
        self.take_turns()?;
        self.request();
        self.take_turns()
    }

    /// Sends a server the vote request of a candidate that has lost: it asks for the newest leader's term.
    fn send_stray_vote(&mut self, to: usize, from: usize) {
        let term = self.ledger.newest_term();
        if to == from || term == 0 {
            return;
        }
        let last_op = OpId { term, index: self.ledger.last().index + self.random.below(NEWER_OPS) };
        let request = VoteRequest {
            tablet: TABLET,
            candidate: id_of(from),
            dest: id_of(to),
            term,
            last_op,
            is_pre_vote: false,
            ignore_live_leader: true,
        };
        self.links.send(Message::Vote { from, life: NO_LIFE, to, request });
    }

    /// Returns one of the servers whose disk has something to write, now and then; else this one.
    fn busy_server(&mut self, server: usize) -> usize {
        let busy = |own: &&TrialServer| own.is_up && (own.meta.is_some() || !own.unwritten.is_empty());
        let busy: Vec<usize> = self.servers.iter().filter(busy).map(|own| own.number).collect();
        if busy.is_empty() || self.random.percent(40) { server } else { self.random.pick(&busy) }
    }

    /// Returns a server whose replica does not run, now and then; else this one.
    fn silent_server(&mut self, server: usize) -> usize {
        let silent = |own: &&TrialServer| own.is_up && own.open.is_none();
        let silent: Vec<usize> = self.servers.iter().filter(silent).map(|own| own.number).collect();
        if silent.is_empty() || self.random.percent(40) { server } else { self.random.pick(&silent) }
    }

    fn step_down(&mut self, to: usize) {
        let Some(leader) = self.leader() else { return };
        let (named, abrupt) = (self.random.percent(50), self.random.percent(30));
        let to = named.then(|| id_of(to));
        self.step(leader, RaftEvent::StepDown { ticket: 0, to, abrupt });
    }

    /// Ends a server's process; with a power cut what was not synced is lost, or any pages of it.
    pub(super) fn crash(&mut self, server: usize, power_cut: bool) {
        let targets = std::mem::take(&mut self.servers[server].reply_targets);
        targets.into_values().for_each(|target| self.links.send(target.lost(server)));
        let scattered = self.random.percent(50);
        self.servers[server].end(!power_cut, scattered);
    }

    /// Starts a server's process again.
    pub(super) fn restart(&mut self, server: usize) -> Result<()> {
        let now = self.reading(server);
        let started = self.servers[server].start(now);
        if let Err(error) = &started
            && error.is_no_space()
            && self.servers[server].is_full
        {
            // A node tries again once there is space.
            self.crash(server, false);
            return Ok(());
        }
        self.settle(server);
        let opened = self.servers[server].running().map(|replica| replica.last_op());
        self.note(format!("{server} starts: {started:?}, {opened:?}"));
        self.check_results(server);
        started
    }

    /// Checks that a server which starts has the results of all requests that it has applied and that may be sent
    /// again.
    fn check_results(&mut self, server: usize) {
        let own = &self.servers[server];
        let Some(applied) = own.running().map(|replica| replica.last_applied().index) else { return };
        let mut requests = self.open.iter().map(|open| open.number);
        let lost = requests.find(|number| {
            let is_applied = self.committed_at.get(number).is_some_and(|index| *index <= applied);
            is_applied && self.answers.contains_key(number) && !own.results.contains_key(number)
        });
        self.report(
            lost.map(|number| format!("server {server} starts without the result of request {number}")),
        );
    }

    /// Returns true if the group is whole without a server: no other one is damaged, all other voters are up to date,
    /// and none knows of a newer configuration.
    fn is_dispensable(&self, server: usize) -> bool {
        let Some(config) = self.ledger.newest_config() else { return false };
        let last = self.ledger.last();
        let mut others = self.servers.iter().filter(|other| other.number != server);
        let sound = |other: &TrialServer| !other.rotten && !other.failed && other.copy.is_none();
        let current = |other: &TrialServer| {
            let same = |replica: &Replica| {
                let status = replica.status(self.reading(other.number));
                replica.last_op() >= last && status.pending_config.is_none()
            };
            // What its disk has yet to write is lost with its power.
            other.unwritten.is_empty() && other.running().is_some_and(same)
        };
        config.voter_count() >= MEMBERS
            && others.all(|other| sound(other) && (!config.is_voter(id_of(other.number)) || current(other)))
    }

    /// Damages a file of a server that is down, if the group can do without it.
    fn rot(&mut self, server: usize) {
        let stored = Superblock::load(&self.servers[server].data_disk, TABLET);
        if !self.is_dispensable(server) || !stored.is_ok_and(|meta| meta.data_state == DataState::Ready) {
            return;
        }
        let own = &self.servers[server];
        let (disk, dir) = match self.random.below(4) {
            0 => (&own.data_disk, data_dir(TABLET)),
            1 => (&own.wal_disk, wal_dir(TABLET)),
            _ => (&own.data_disk, "consensus-meta".to_string()),
        };
        let damaged = rot::damage(&mut self.random, disk, &rot::whole_files(disk, &dir));
        self.servers[server].rotten |= damaged.is_some();
        self.note(format!("rot of {damaged:?}"));
    }
}
