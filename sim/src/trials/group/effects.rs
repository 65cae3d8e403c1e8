//! Effects of a replica's steps: messages and replies, log writes, and what they say about the group's history.

use std::io;

use engine::error::{Error, Result};
use engine::ids::OpId;
use engine::raft::interface::{UpdateErrorKind, UpdateResponse};
use engine::raft::{RaftEvent, RaftMessage, RaftReply};
use engine::replica::{LogWrite, ReplicaEvent, consensus_meta_store};
use engine::wal::LogEntry;

use super::GroupTrial;
use super::ids::{id_of, server_of};
use super::links::{Asked, Message, ReplyTarget};
use super::published::PublishedStatus;
use crate::trigger::EIO;

/// Percentage of reads of a log that fail once.
const READ_FAILS_PERCENT: u64 = 3;

impl GroupTrial {
    /// Gives an event to a server's replica and takes its effects.
    pub(super) fn step(&mut self, server: usize, event: impl Into<ReplicaEvent>) {
        let now = self.reading(server);
        self.servers[server].step(now, event);
        self.settle(server);
    }

    /// Takes the effects of a server's steps: all but what its disk has to do.
    pub(super) fn settle(&mut self, server: usize) {
        let out = std::mem::take(&mut self.servers[server].out);
        self.publish(server, out.status_changed);
        for write in &out.log {
            self.record(write);
        }
        let own = &mut self.servers[server];
        own.unwritten.extend(out.log);
        own.meta = out.meta.or(own.meta.take());
        own.reads.extend(out.read_log);
        own.results.extend(out.completed.into_iter().map(|(request, _, result)| (request.seq, result)));
        for (peer, message) in out.messages {
            self.send(server, server_of(peer.id), message);
        }
        for (ticket, reply) in out.replies {
            self.reply(server, ticket, reply);
        }
        for done in out.done {
            self.answered(server, done);
        }
        self.check_group_state(server);
    }

    /// Publishes the status of a replica if its step says that it `has_changed`; else it must be the published one.
    pub(super) fn publish(&mut self, server: usize, has_changed: bool) {
        let now = self.reading(server);
        let own = &mut self.servers[server];
        let Some(replica) = own.running() else { return };
        let status = PublishedStatus::of(replica.status(now));
        let published = own.published.replace(status.clone());
        if let Some(old) = published.filter(|old| *old != status && !has_changed) {
            self.report(Some(format!("server {server} is {status:?}, and has published {old:?}")));
        }
    }

    /// Records a change of a replica's log.
    fn record(&mut self, write: &LogWrite) {
        match write {
            LogWrite::Append(LogEntry::Replicate(entry)) => {
                let wrong = self.ledger.append(entry);
                self.report(wrong);
            }
            LogWrite::Append(LogEntry::Commit(commit)) => {
                match self.ledger.commit(commit.op, &commit.payload) {
                    Ok(Some(entry)) => {
                        self.check_membership(&entry);
                        self.commit(&entry);
                    }
                    Ok(None) => {}
                    Err(wrong) => self.report(Some(wrong)),
                }
            }
            LogWrite::Truncate(_) => {}
        }
    }

    fn send(&mut self, from: usize, to: usize, message: RaftMessage) {
        let life = self.servers[from].life;
        self.links.send(match message {
            RaftMessage::Update(request) | RaftMessage::Heartbeat(request) => {
                Message::Update { from, life, to, request }
            }
            RaftMessage::Vote(request) => Message::Vote { from, life, to, request },
            RaftMessage::RunElection => Message::RunElection { from, to },
            RaftMessage::StartCopy { source, term } => Message::StartCopy { from, life, to, source, term },
        });
    }

    fn reply(&mut self, server: usize, ticket: u64, reply: RaftReply) {
        let Some(target) = self.servers[server].reply_targets.remove(&ticket) else { return };
        let peer = id_of(server);
        let event = match (target.request, reply) {
            (Asked::Update { sent }, RaftReply::Update(response)) => {
                if response.error.is_none() {
                    let own = &mut self.servers[server];
                    own.acknowledged = own.acknowledged.max(response.last_received_current_leader.index);
                }
                RaftEvent::Updated { peer, sent, result: Ok(response) }
            }
            (Asked::Vote { term, is_pre_vote }, RaftReply::Vote(response)) => {
                if response.granted && !is_pre_vote {
                    let wrong = self.ledger.vote(peer, term, id_of(target.from));
                    self.report(wrong);
                }
                RaftEvent::Voted { peer, term, is_pre_vote, result: Ok(response) }
            }
            _ => return,
        };
        self.links.send(Message::Reply { to: target.from, life: target.life, event });
    }

    /// Checks what a replica says of its group.
    fn check_group_state(&mut self, server: usize) {
        let now = self.reading(server);
        let Some(replica) = self.servers[server].running() else { return };
        let status = replica.status(now);
        let mut wrong = self.ledger.check_config(&status.committed_config, status.committed.index);
        if replica.is_leader() {
            wrong = wrong.or_else(|| self.ledger.lead(id_of(server), status.term));
            // The next reader expects all that was acknowledged.
            let (applied, is_newest) =
                (replica.last_applied().index, self.ledger.newest_term() == status.term);
            let lacks =
                is_newest && applied < self.acknowledged_until && replica.tablet().mvcc().is_caught_up();
            let until = self.acknowledged_until;
            wrong = wrong.or_else(|| {
                lacks.then(|| format!("it leads and has applied {applied}, but {until} is acknowledged"))
            });
        }
        self.report(wrong.map(|what| format!("server {server}: {what}")));
    }

    /// Delivers a message.
    pub(super) fn deliver(&mut self, message: Message) -> Result<()> {
        let (_, to) = message.ends();
        if !self.servers[to].is_up {
            message.unanswered().into_iter().for_each(|lost| self.links.send(lost));
            return Ok(());
        }
        match message {
            Message::Reply { life, event, .. } => {
                if self.servers[to].life == life {
                    self.take_reply(to, event);
                }
                Ok(())
            }
            Message::RunElection { .. } => {
                self.step(to, RaftEvent::Elect { ignore_live_leader: true });
                Ok(())
            }
            Message::StartCopy { from, life, source, term, .. } => {
                let result = self.servers[to].order_copy(server_of(source.id), term);
                let event = RaftEvent::CopyStarted { peer: id_of(to), result };
                self.links.send(Message::Reply { to: from, life, event });
                Ok(())
            }
            message => self.ask(to, message),
        }
    }

    /// Delivers an update or a vote request.
    fn ask(&mut self, to: usize, message: Message) -> Result<()> {
        let is_open = self.servers[to].open.is_some();
        let peer = id_of(to);
        match message {
            Message::Update { from, life, request, .. } if is_open => {
                let asked = Asked::Update { sent: request.sent };
                let ticket = self.ticket(to, ReplyTarget { from, life, request: asked });
                self.take_update(to, ticket, request);
            }
            Message::Update { from, life, request, .. } => {
                let response = UpdateResponse::refusal(peer, 0, self.refusal(to), "no replica".to_string());
                let event = RaftEvent::Updated { peer, sent: request.sent, result: Ok(response) };
                self.links.send(Message::Reply { to: from, life, event });
            }
            Message::Vote { from, life, request, .. } if is_open => {
                let asked = Asked::Vote { term: request.term, is_pre_vote: request.is_pre_vote };
                let ticket = self.ticket(to, ReplyTarget { from, life, request: asked });
                self.step(to, RaftEvent::Vote { ticket, request });
            }
            Message::Vote { from, life, request, .. } => {
                let (term, is_pre_vote) = (request.term, request.is_pre_vote);
                let result = self.servers[to].stored_vote(&request);
                if self.servers[to].lost_power() {
                    return Ok(());
                }
                if result.as_ref().is_ok_and(|vote| vote.granted && !is_pre_vote) {
                    let unknown = self.servers[to].known_last.is_none();
                    let amnesiac = format!("server {to} votes without knowing the end of its log");
                    self.report(unknown.then_some(amnesiac));
                    let wrong = self.ledger.vote(peer, term, id_of(from));
                    self.report(wrong);
                }
                let event = RaftEvent::Voted { peer, term, is_pre_vote, result };
                self.links.send(Message::Reply { to: from, life, event });
            }
            _ => {}
        }
        Ok(())
    }

    fn refusal(&self, server: usize) -> UpdateErrorKind {
        match &self.servers[server] {
            own if own.copy.is_some() => UpdateErrorKind::TabletNotRunning,
            own if own.failed => UpdateErrorKind::TabletFailed,
            _ => UpdateErrorKind::TabletNotFound,
        }
    }

    fn ticket(&mut self, server: usize, target: ReplyTarget) -> u64 {
        let own = &mut self.servers[server];
        own.tickets += 1;
        own.reply_targets.insert(own.tickets, target);
        own.tickets
    }

    /// Lets a server's disk do what waits for it.
    pub(super) fn write_effects(&mut self, server: usize) -> Result<()> {
        let now = self.reading(server);
        let own = &mut self.servers[server];
        if let Some((replica, _)) = &mut own.open {
            replica.flush(now, &mut own.out);
        }
        self.settle(server);
        let own = &mut self.servers[server];
        if let Some((number, meta)) = own.meta.take() {
            consensus_meta_store::store(&own.data_disk, &meta)?;
            self.step(server, RaftEvent::MetaPersisted(number));
        }
        if self.servers[server].stalled { Ok(()) } else { self.write_log(server) }
    }

    fn write_log(&mut self, server: usize) -> Result<()> {
        if let Some(last) = self.servers[server].write_and_sync()? {
            self.persisted(server, last);
        }
        self.read_log(server);
        Ok(())
    }

    /// Reads what members lack; a read may fail once.
    fn read_log(&mut self, server: usize) {
        for read in std::mem::take(&mut self.servers[server].reads) {
            if self.servers[server].open.is_none() {
                break;
            }
            let fails = self.faults && self.random.percent(READ_FAILS_PERCENT);
            let failed = || Error::io("read the log", &io::Error::from_raw_os_error(EIO));
            let result = if fails { Err(failed()) } else { self.servers[server].read_back(&read) };
            self.step(server, RaftEvent::LogRead { peer: read.peer, from: read.from, result });
        }
    }

    /// Makes all of a server's log durable, also outcomes, for which no reply waits. False if its device has no space.
    pub(super) fn sync_log(&mut self, server: usize) -> Result<bool> {
        self.write_effects(server)?;
        let own = &mut self.servers[server];
        if own.waits_for_space() {
            return Ok(false);
        }
        own.open.as_mut().map_or(Ok(()), |(_, wal)| wal.sync()).map(|()| true)
    }

    /// Tells a replica that its log is durable up to an operation.
    pub(super) fn persisted(&mut self, server: usize, last: OpId) {
        if last != OpId::MIN {
            self.step(server, RaftEvent::Persisted(last));
        }
    }
}
