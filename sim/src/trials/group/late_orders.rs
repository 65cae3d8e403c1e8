//! Orders to delete a replica that come late: when its server is a member again, and perhaps does not know it yet.

use std::time::Duration;

use engine::error::Result;
use engine::raft::{ConfigChangePart, MemberKind, Peer, RaftStatus};

use super::ids::{id_of, peer_of};
use super::{GroupTrial, MEMBERS};

/// Requests that the member misses before it is added again.
const MISSED_REQUESTS: u64 = 6;
/// Most messages that arrive between the addition and the order to delete, and the percentage of those after the member
/// has been found again that are the last one.
const MESSAGES_MAX: u64 = 60;
const BEGUN_PERCENT: u64 = 25;
/// Most messages after that order, and the percentage of those that overtake all others.
const OVERTAKING_MAX: u64 = 14;
const NEWEST_PERCENT: u64 = 65;
/// Most time until the leader asks the member again, in milliseconds.
const ASKED_WITHIN: u64 = 25;

impl GroupTrial {
    /// Lets one of the orders to delete arrive once more, whether its server is a member by now or not.
    pub(super) fn delete_late(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let (server, cas) = self.late[self.random.below(self.late.len() as u64) as usize];
        if self.servers[server].is_up {
            let now = self.reading(server);
            self.act(server, |trial| trial.servers[server].delete(now, cas));
        }
    }

    /// Removes a member that is cut off and adds it again with its former replica, which an order deletes while the
    /// leader catches it up.
    pub(super) fn readd(&mut self, server: usize) -> Result<()> {
        let Some(leader) = self.leader().filter(|leader| *leader != server) else { return Ok(()) };
        if !self.servers[server].is_up || self.servers.iter().any(|own| own.is_hindered()) {
            return Ok(());
        }
        for other in (0..self.servers.len()).filter(|other| *other != server) {
            self.cut_both(server, other);
        }
        for _ in 0..MISSED_REQUESTS {
            self.request();
            self.take_turns()?;
        }
        let member = id_of(server);
        let Some(status) = self.status_of(leader) else { return Ok(()) };
        let is_spare = status.committed_config.voter_count() >= MEMBERS;
        if !is_spare || !self.are_up_to_date(leader, &status, Some(member)) {
            return Ok(());
        }
        self.order(leader, ConfigChangePart::Remove(member), None);
        self.take_turns()?;
        let Some(status) = self.status_of(leader) else { return Ok(()) };
        if status.committed_config.peer(member).is_some() {
            return Ok(());
        }
        self.late.push((server, status.committed_position));
        let learner = Peer { member: MemberKind::NonVoter, promote: true, ..peer_of(server) };
        self.order(leader, ConfigChangePart::Add(learner), None);
        self.links.repair(true);
        self.delete_within_catch_up(server)
    }

    pub(super) fn status_of(&self, server: usize) -> Option<RaftStatus> {
        self.servers[server].running().map(|replica| replica.status(self.reading(server)))
    }

    /// Lets some messages arrive, then the last order to delete at its server, and then those messages first that the
    /// leader and the server have sent last.
    fn delete_within_catch_up(&mut self, server: usize) -> Result<()> {
        let Some((_, cas)) = self.late.last().copied() else { return Ok(()) };
        for _ in 0..MESSAGES_MAX {
            let leader = self.leader();
            let is_caught_up = leader.and_then(|leader| self.matched(leader, id_of(server))) > Some(0);
            if is_caught_up && self.random.percent(BEGUN_PERCENT) {
                break;
            }
            self.move_message(false)?;
        }
        if self.servers[server].is_up {
            let (now, before) = (self.reading(server), self.servers[server].deleted);
            self.servers[server].delete(now, cas)?;
            let deleted = self.servers[server].deleted > before;
            self.note(format!("{server} is a member again, and its replica deleted: {deleted}"));
        }
        for _ in 0..self.random.below(OVERTAKING_MAX) {
            let newest = self.random.percent(NEWEST_PERCENT);
            self.move_message(newest)?;
        }
        Ok(())
    }

    /// Lets all disks write, and one message arrive, perhaps the newest one.
    fn move_message(&mut self, newest: bool) -> Result<()> {
        for at in 0..self.servers.len() {
            self.act(at, |trial| trial.write_effects(at));
        }
        let message = if newest { self.links.newest() } else { self.links.next(&mut self.random, true) };
        match message {
            Some(message) => self.deliver(message),
            None => {
                let millis = self.random.below(ASKED_WITHIN);
                self.pass(Duration::from_millis(millis));
                Ok(())
            }
        }
    }
}
