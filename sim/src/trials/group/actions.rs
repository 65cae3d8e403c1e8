//! Steps of a group trial that are no fault: messages, disks, time, jobs, reads.

use std::time::Duration;

use engine::error::Result;
use engine::replica::{JobKind, JobStep, ReplicaEvent};
use engine::tablet::rowset::RowSetId;
use engine::time::Timestamp;

use super::GroupTrial;
use super::ids::id_of;
use super::step::{self, Step};
use crate::trials::scans;

/// Most time that passes in a step, in milliseconds.
const PASS_MILLIS: u64 = 12;
/// Messages that arrive in a step in which nothing goes wrong.
const TURNS: u64 = 12;
/// Drawn scans of a read.
const SCANS: u64 = 2;
/// Percentage of a job's steps after which the process is killed, and after which a message arrives.
const KILL_PERCENT: u64 = 2;
const MESSAGE_PERCENT: u64 = 20;
/// Percentage of log GC that does not wait for members which lack entries.
const IMPATIENT_PERCENT: u64 = 40;

impl GroupTrial {
    pub(super) fn take_step(&mut self) {
        let step = step::draw(&mut self.random);
        let server = self.any_server();
        self.steps.push(format!("{step:?} at {server}"));
        self.act(server, |trial| trial.execute(step, server));
    }

    /// Does something at a server, and takes what comes of it: a crash, a damaged file, or an error that is a mistake.
    pub(super) fn act(&mut self, server: usize, work: impl FnOnce(&mut GroupTrial) -> Result<()>) {
        let done = work(self);
        let lost: Vec<usize> = (0..self.servers.len()).filter(|at| self.servers[*at].lost_power()).collect();
        for at in &lost {
            self.crash(*at, true);
        }
        if let (Err(error), true) = (done, lost.is_empty()) {
            self.failed(server, &error.to_string());
        }
        for at in 0..self.servers.len() {
            let failure = self.servers[at].replica().and_then(|replica| replica.failure().cloned());
            if let Some(error) = failure.filter(|_| !self.servers[at].rotten) {
                self.report(Some(format!("server {at}: {error}")));
            }
        }
    }

    /// Handles an error of a server's replica: it fails if a file was damaged.
    pub(super) fn failed(&mut self, server: usize, error: &str) {
        let own = &mut self.servers[server];
        if own.rotten {
            own.close();
            own.copy = None;
            own.failed = true;
        } else {
            self.report(Some(format!("server {server}: {error}")));
        }
    }

    fn execute(&mut self, step: Step, server: usize) -> Result<()> {
        let runs = self.servers[server].running().is_some();
        match step {
            Step::Deliver => match self.links.next(&mut self.random, true) {
                Some(message) => self.deliver(message),
                None => Ok(()),
            },
            Step::Turns => self.take_turns(),
            Step::Effects if self.servers[server].is_up => self.write_effects(server),
            Step::Copy => self.step_some_copy(),
            Step::Job if runs => self.job(server),
            Step::LogGc if runs => self.gc(server),
            Step::Read if runs => self.read(server),
            Step::Fault(fault) => self.fault(fault, server),
            step => {
                self.execute_elsewhere(step, server);
                Ok(())
            }
        }
    }

    /// Takes a step of one of the copies in progress.
    fn step_some_copy(&mut self) -> Result<()> {
        let copies = self.servers.iter().filter(|server| server.is_up && server.copy.is_some());
        let sinks: Vec<usize> = copies.map(|server| server.number).collect();
        if sinks.is_empty() {
            return Ok(());
        }
        let sink = self.random.pick(&sinks);
        self.act(sink, |trial| trial.step_copy(sink));
        Ok(())
    }

    /// Lets all disks do what waits for them, and messages arrive in order.
    pub(super) fn take_turns(&mut self) -> Result<()> {
        for _ in 0..TURNS {
            for server in 0..self.servers.len() {
                self.act(server, |trial| trial.write_effects(server));
            }
            let Some(message) = self.links.next(&mut self.random, false) else { break };
            let (_, to) = message.ends();
            self.act(to, |trial| trial.deliver(message));
        }
        Ok(())
    }

    fn execute_elsewhere(&mut self, step: Step, server: usize) {
        match step {
            Step::Time => {
                let millis = self.random.below(PASS_MILLIS);
                self.pass(Duration::from_millis(millis));
            }
            Step::Request => self.request(),
            Step::Alter => self.alter(),
            Step::Forget => self.forget(server),
            Step::WantSnapshot => {
                let at = Timestamp::from_micros(self.now.as_micros() as u64);
                self.step(server, ReplicaEvent::WantSnapshot { at });
            }
            Step::Operate => self.operate(),
            Step::LateDelete => self.delete_late(),
            _ => {}
        }
    }

    /// Lets time pass; servers whose deadline has come are told.
    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        for server in 0..self.servers.len() {
            let now = self.reading(server);
            if self.servers[server].running().is_some() {
                self.servers[server].tick(now);
                self.settle(server);
            }
        }
    }

    fn gc(&mut self, server: usize) -> Result<()> {
        // With a damaged replica the group needs all others.
        let damaged = self.servers.iter().any(|server| server.rotten || server.failed);
        let impatient = !damaged && self.random.percent(IMPATIENT_PERCENT);
        let retained = self.retained_from();
        self.check_wanted_log(server);
        if self.servers[server].waits_for_space() {
            return Ok(());
        }
        let Some((replica, wal)) = &mut self.servers[server].open else { return Ok(()) };
        let needed = replica.log_keep_from().min(retained);
        let keep = if impatient { needed } else { needed.min(replica.log_wanted_from()) };
        wal.gc(keep).map(drop)
    }

    /// Checks that a leader wants what any member lacks of its log, learners included.
    fn check_wanted_log(&mut self, server: usize) {
        let Some(replica) = self.servers[server].running().filter(|replica| replica.is_leader()) else {
            return;
        };
        let peers = replica.status(self.reading(server)).peers;
        let least = peers.iter().filter(|peer| peer.id != id_of(server)).min_by_key(|peer| peer.matched);
        let wanted = replica.log_wanted_from();
        let wrong = least.filter(|peer| wanted > peer.matched).map(|peer| {
            format!(
                "leader {server} wants its log from {wanted} on, and {:?} has it up to {}",
                peer.id, peer.matched
            )
        });
        self.report(wrong);
    }

    /// Raises the ancient history mark of a server.
    fn forget(&mut self, server: usize) {
        let Some(replica) = self.servers[server].running() else { return };
        let last = replica.tablet().mvcc().last_applied().0.max(self.mark);
        self.mark = self.random.between(self.mark, last);
        replica.tablet().raise_history_mark(Timestamp(self.mark));
        self.servers[server].mark = self.mark;
    }

    fn job(&mut self, server: usize) -> Result<()> {
        if self.servers[server].stalled {
            return Ok(());
        }
        self.draw_job(server).map_or(Ok(()), |kind| self.run_job(server, kind))
    }

    /// Runs a job to its end, unless the replica ends before.
    pub(super) fn run_job(&mut self, server: usize, kind: JobKind) -> Result<()> {
        self.note(format!("{kind:?}"));
        let life = self.servers[server].life;
        let Some((replica, _)) = &mut self.servers[server].open else { return Ok(()) };
        let Some(mut job) = replica.start_job(kind)? else { return Ok(()) };
        loop {
            match job.step()? {
                JobStep::More => {}
                JobStep::SyncLog => {
                    if !self.sync_log(server)? {
                        self.give_up(server, job);
                        return Ok(());
                    }
                }
                JobStep::Turn => {
                    let own = &mut self.servers[server];
                    let Some((replica, _)) = &mut own.open else { return Ok(()) };
                    replica.job_turn(&mut job, &mut own.out)?;
                    self.settle(server);
                }
                JobStep::Done => break,
            }
            if self.is_disturbed(server, life)? {
                return Ok(());
            }
        }
        let own = &mut self.servers[server];
        if let Some((replica, _)) = &mut own.open {
            replica.end_job(job, None, &mut own.out);
        }
        self.settle(server);
        Ok(())
    }

    /// Lets something happen between two steps of a job; returns true if the replica has ended.
    fn is_disturbed(&mut self, server: usize, life: u64) -> Result<bool> {
        if self.faults && self.random.percent(KILL_PERCENT) {
            self.crash(server, false);
            return Ok(true);
        }
        if self.random.percent(MESSAGE_PERCENT)
            && let Some(message) = self.links.next(&mut self.random, self.faults)
        {
            self.deliver(message)?;
        }
        let own = &self.servers[server];
        Ok(own.life != life || own.running().is_none() || own.lost_power())
    }

    fn draw_job(&mut self, server: usize) -> Option<JobKind> {
        let tablet = self.servers[server].running()?.tablet().clone();
        let all: Vec<RowSetId> = tablet.state().disk.iter().map(|rowset| rowset.meta().id).collect();
        let random = &mut self.random;
        if all.is_empty() || random.percent(40) {
            return Some(if random.percent(80) { JobKind::FlushRows } else { JobKind::Checkpoint });
        }
        let one = random.pick(&all);
        Some(match random.below(4) {
            0 => JobKind::FlushDeltas(one),
            1 => JobKind::MajorDeltaCompaction(one),
            2 => JobKind::MinorDeltaCompaction(one),
            _ => JobKind::Compact(all.into_iter().filter(|id| *id == one || random.percent(60)).collect()),
        })
    }

    /// Reads snapshots that a replica calls complete, and compares them with the model.
    pub(super) fn read(&mut self, server: usize) -> Result<()> {
        if self.random.percent(50) {
            return self.read_newest(server);
        }
        // A reader names any time that the server's clock has passed.
        let now = self.reading(server);
        let at = self.servers[server].clock.now(now.wall);
        let before = Timestamp(self.random.between(self.mark, at.0));
        self.read_before(server, before)
    }

    /// Reads the newest snapshot that a replica calls complete.
    pub(super) fn read_newest(&mut self, server: usize) -> Result<()> {
        let now = self.reading(server);
        let own = &mut self.servers[server];
        let at = own.clock.now(now.wall);
        let Some(safe) = own.running().map(|replica| replica.tablet().mvcc().safe_time(at)) else {
            return Ok(());
        };
        self.read_before(server, safe.next())
    }

    fn read_before(&mut self, server: usize, before: Timestamp) -> Result<()> {
        let Some(tablet) = self.servers[server].running().map(|replica| replica.tablet().clone()) else {
            return Ok(());
        };
        if before.0 <= self.mark || !tablet.mvcc().all_applied_before(before) {
            return Ok(());
        }
        self.ledger.serve(before);
        let Some(table) = self.tables.get(tablet.schema_version() as usize) else {
            let version = tablet.schema_version();
            self.report(Some(format!(
                "server {server} has schema version {version}, which is not committed"
            )));
            return Ok(());
        };
        let (random, span) = (&mut self.random, (self.mark, before.0));
        let mut calls: Vec<_> =
            (0..SCANS).map(|_| scans::draw(random, &table.shape, &self.rows, span)).collect();
        calls.push(scans::whole(&table.shape, before.0, random.percent(50)));
        for call in &calls {
            if let Some(wrong) = table.check(random, &tablet, &self.rows, call)? {
                self.found.get_or_insert(format!("server {server}: {wrong}"));
            }
        }
        Ok(())
    }
}
