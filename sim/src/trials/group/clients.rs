//! Clients of a group trial: writes that are sent until they are answered, and the masters' alterations.

use engine::error::ErrorKind;
use engine::raft::kind;
use engine::replica::log_payload::{LoggedOp, request_of};
use engine::replica::{Op, OpReply, OpResult, Replica, ReplicaEvent, RequestId};
use engine::schema::row_ops::RowError;
use engine::wal::ReplicateEntry;

use super::GroupTrial;
use super::open_request::OpenRequest;
use super::server::TrialServer;
use crate::model::RowAnswer;
use crate::trials::scans::TrialTable;
use crate::trials::{draw, shape};

/// Most requests at once.
const OPEN_MAX: usize = 4;
/// Percentage of replies that are lost: the request is sent again, perhaps after restarts and to others.
const LOST_REPLY_PERCENT: u64 = 15;
/// Percentage of alterations that new requests wait for.
const WAITING_PERCENT: u64 = 30;
/// Percentage of requests that are sent to any server, not to the leader.
const ANY_SERVER_PERCENT: u64 = 15;

impl GroupTrial {
    /// Sends a request: one without a reply, or a new one.
    pub(super) fn request(&mut self) {
        self.propose_late();
        let may_begin = self.alteration.is_none() && !self.alteration_waits;
        let begins = self.faults && may_begin && self.open.len() < OPEN_MAX;
        if begins && (self.open.is_empty() || self.random.percent(60)) {
            self.begin_request();
        }
        if self.open.is_empty() {
            return;
        }
        let at = self.random.below(self.open.len() as u64) as usize;
        let server = match self.leader() {
            Some(leader) if !self.random.percent(ANY_SERVER_PERCENT) => leader,
            _ => self.any_server(),
        };
        if self.servers[server].running().is_some() {
            self.send_request(at, server);
        }
    }

    /// Returns the first operation that logs keep for its request: it is committed, and may be sent again. A node keeps
    /// more operations than clients have requests in flight.
    pub(super) fn retained_from(&self) -> u64 {
        let open = self.open.iter().filter_map(|open| self.committed_at.get(&open.number));
        open.copied().min().unwrap_or(u64::MAX)
    }

    pub(super) fn begin_request(&mut self) {
        let table = self.tables.last().expect("there is a first version");
        let count = self.random.between(1, 6);
        let rows = draw::rows(&mut self.random, &table.shape, &self.rows, count);
        let op = shape::write_op(&table.shape, &table.schema, &rows);
        let number = self.requests.len() as i64;
        self.requests.insert(number, rows);
        self.open.push(OpenRequest { number, op, attempts: Vec::new() });
    }

    fn send_request(&mut self, at: usize, server: usize) {
        let first_incomplete = self.open.iter().map(|open| open.number).min().unwrap_or(0);
        let own = &mut self.servers[server];
        let open = &mut self.open[at];
        // A node lets a second attempt wait for the first one.
        if open.attempts.iter().any(|(to, life, _)| (*to, *life) == (server, own.life)) {
            return;
        }
        if let Some(result) = own.results.get(&open.number).cloned() {
            return self.acknowledged(at, result);
        }
        own.tickets += 1;
        let ticket = own.tickets;
        open.attempts.push((server, own.life, ticket));
        let attempt = open.attempts.len() as i64;
        let request = RequestId { client: b"trial".to_vec(), seq: open.number, first_incomplete, attempt };
        let op = open.op.clone();
        self.propose(server, (ticket, op, request));
    }

    /// Takes a reply to a proposal.
    pub(super) fn answered(&mut self, server: usize, done: OpReply) {
        let attempt = (server, self.servers[server].life, done.ticket);
        let Some(at) = self.open.iter().position(|open| open.attempts.contains(&attempt)) else { return };
        match done.result {
            Ok(result) => {
                let number = self.open[at].number;
                self.servers[server].results.insert(number, result.clone());
                if self.faults && self.random.percent(LOST_REPLY_PERCENT) {
                    self.open[at].attempts.retain(|other| *other != attempt);
                    return;
                }
                self.acknowledged(at, result);
            }
            Err(error) => {
                self.open[at].attempts.retain(|other| *other != attempt);
                use ErrorKind::{Aborted, NotLeader, NotReady, Throttled};
                let own = &self.servers[server];
                // What a new or a former leader knows of the schema may be older than the client's.
                let status = |replica: &Replica| replica.status(self.reading(server));
                let terms = self.servers.iter().filter_map(TrialServer::replica).map(|own| status(own).term);
                let newest = terms.max();
                let behind = own.replica().is_some_and(|replica| {
                    let (status, caught_up) = (status(replica), replica.tablet().mvcc().is_caught_up());
                    !caught_up || !status.is_quorum_active || Some(status.term) < newest
                });
                let expected = matches!(error.kind, NotLeader | NotReady | Aborted | Throttled);
                if !expected && !behind && !own.rotten && !own.lost_power() {
                    self.report(Some(format!("server {server} rejects a write: {error}")));
                }
            }
        }
    }

    fn acknowledged(&mut self, at: usize, result: OpResult) {
        let number = self.open.remove(at).number;
        let index = self.committed_at.get(&number).copied().unwrap_or_default();
        self.acknowledged_until = self.acknowledged_until.max(index);
        self.note(format!("request {number} is answered: {result:?}"));
        let wrong = match result {
            OpResult::Write { errors, .. } => self.wrong_answer(number, &errors),
            other => Some(format!("a write is answered with {other:?}")),
        };
        self.report(wrong);
    }

    /// Compares an acknowledged request with the model.
    fn wrong_answer(&self, number: i64, errors: &[(u32, RowError)]) -> Option<String> {
        let Some(answers) = self.answers.get(&number) else {
            return Some(format!("request {number} is acknowledged, but not committed"));
        };
        let wrong = answers.iter().enumerate().find(|(row, answers)| {
            let failed = errors.iter().any(|(at, _)| *at as usize == *row);
            let may_succeed =
                answers.iter().any(|answer| matches!(answer, RowAnswer::Done | RowAnswer::Ignored));
            let may_fail =
                answers.iter().any(|answer| !matches!(answer, RowAnswer::Done | RowAnswer::Ignored));
            if failed { !may_fail } else { !may_succeed }
        });
        let (row, answers) = wrong?;
        Some(format!("row {row} of request {number} is answered with {errors:?}, the model has {answers:?}"))
    }

    /// Applies an operation that is committed for the first time to the model.
    pub(super) fn commit(&mut self, entry: &ReplicateEntry) {
        match entry.kind {
            kind::WRITE => self.commit_write(entry),
            kind::ALTER => self.commit_alteration(entry),
            _ => {}
        }
    }

    fn commit_write(&mut self, entry: &ReplicateEntry) {
        let number = request_of(entry.kind, &entry.payload).map_or(-1, |request| request.seq);
        let Some(rows) = self.requests.get(&number) else {
            return self.report(Some(format!("operation {} is no client's", entry.op)));
        };
        let shape = &self.tables.last().expect("there is a first version").shape;
        let answers = self.rows.apply(shape, rows, entry.timestamp.0);
        let shown = format!("{} at {}: request {number}, {rows:?}", entry.op, entry.timestamp.0);
        if self.answers.insert(number, answers).is_some() {
            self.report(Some(format!("request {number} takes effect again as {}", entry.op)));
        }
        self.committed_at.insert(number, entry.op.index);
        self.note(shown);
    }

    fn commit_alteration(&mut self, entry: &ReplicateEntry) {
        let Ok(LoggedOp { op: Op::AlterSchema { version, .. }, .. }) =
            LoggedOp::decode(entry.kind, &entry.payload)
        else {
            return self.report(Some(format!("operation {} is no alteration", entry.op)));
        };
        // A late order changes nothing.
        if version as usize == self.tables.len()
            && let Some((_, shape)) = self.alteration.take()
        {
            match TrialTable::of(shape) {
                Ok(table) => self.tables.push(table),
                Err(error) => self.report(Some(error.to_string())),
            }
        }
    }

    /// Orders an alteration: a new one, the one that is not committed yet, or an old one again.
    pub(super) fn alter(&mut self) {
        // Rows are encoded for one version of the table: requests without a reply end first.
        if self.alteration.is_none() && self.faults {
            self.alteration_waits = !self.open.is_empty() && self.random.percent(WAITING_PERCENT);
            if self.open.is_empty() {
                self.begin_alteration();
            }
        }
        let again = self.faults && !self.orders.is_empty() && self.random.percent(30);
        let op = match &self.alteration {
            _ if again => self.orders[self.random.below(self.orders.len() as u64) as usize].clone(),
            Some((op, _)) => op.clone(),
            None => return,
        };
        let Some(server) = self.leader() else { return };
        self.servers[server].tickets += 1;
        let ticket = self.servers[server].tickets;
        self.step(server, ReplicaEvent::Propose { ticket, op, request: None });
    }

    fn begin_alteration(&mut self) {
        let shape = self.table().shape.clone();
        let Some(altered) = draw::alteration(&mut self.random, &shape, &mut self.next_column) else { return };
        match shape::schema_of(&altered) {
            Ok(schema) => {
                let op = shape::alter_op(schema, self.tables.len() as u32, "trial");
                self.orders.push(op.clone());
                self.alteration = Some((op, altered));
            }
            Err(error) => self.report(Some(error.to_string())),
        }
    }
}
