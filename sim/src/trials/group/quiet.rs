//! The quiet end of a group trial: without faults the group must become whole, and all replicas equal.

use std::time::Duration;

use engine::error::Result;
use engine::replica::tombstone::may_delete;

use super::ids::id_of;
use super::{GroupTrial, MEMBERS};
use crate::trials::scans;

/// Rounds until which the group is whole again: some seconds.
const ROUNDS: u64 = 700;
const ROUND: Duration = Duration::from_millis(10);
/// Most messages of a round.
const MESSAGES: u64 = 3_000;
/// Steps of a copy in a round.
const COPY_STEPS: u64 = 20;

impl GroupTrial {
    /// Ends all faults, waits until the group is whole, and compares its replicas.
    pub(super) fn end(&mut self) {
        self.faults = false;
        self.links.repair(true);
        for server in 0..self.servers.len() {
            for disk in [&self.servers[server].wal_disk, &self.servers[server].data_disk] {
                disk.end_faults();
            }
            self.servers[server].stalled = false;
            self.free_log(server);
            if !self.servers[server].is_up {
                self.act(server, |trial| trial.restart(server));
            }
        }
        if !self.settles("without faults") {
            return;
        }
        if self.transfer_leadership() && !self.settles("after a transfer") {
            return;
        }
        if self.give_last_orders() && self.meet_disaster() {
            self.settles("after a disaster");
        }
    }

    /// Waits until the group is whole, and compares its replicas; false if something is wrong.
    pub(super) fn settles(&mut self, when: &str) -> bool {
        for _ in 0..ROUNDS {
            self.round();
            if self.found.is_some() {
                return false;
            }
            if self.is_settled() {
                self.compare();
                return self.found.is_none();
            }
        }
        let what = self.show_group();
        self.report(Some(format!("the group is not whole again {when}: {what}")));
        false
    }

    pub(super) fn round(&mut self) {
        self.pass(ROUND);
        for _ in 0..MESSAGES {
            for server in 0..self.servers.len() {
                self.act(server, |trial| trial.write_effects(server));
            }
            let Some(message) = self.links.next(&mut self.random, false) else { break };
            let (_, to) = message.ends();
            self.act(to, |trial| trial.deliver(message));
        }
        for server in 0..self.servers.len() {
            for _ in 0..COPY_STEPS {
                self.act(server, |trial| trial.step_copy(server));
            }
        }
        self.request();
        self.alter();
        self.operate();
    }

    fn is_settled(&self) -> bool {
        let Some(leader) = self.leader() else { return false };
        let last = self.ledger.last();
        let whole = self.servers[leader].running().is_some_and(|replica| {
            let status = replica.status(self.reading(leader));
            let applied = |server: usize| {
                let member = status.committed_config.peer(id_of(server)).is_some();
                let running = self.servers[server].running();
                match running {
                    Some(replica) if member => replica.last_applied() == last && replica.last_op() == last,
                    // An order may not know that its newer configuration will never be committed.
                    Some(replica) => {
                        let known = replica.status(self.reading(server)).active_position;
                        !may_delete(known, Some(status.committed_position))
                    }
                    None => !member && self.servers[server].copy.is_none() && !self.servers[server].failed,
                }
            };
            self.is_whole(&status) && (0..self.servers.len()).all(applied)
        });
        whole && self.open.is_empty() && self.alteration.is_none()
    }

    /// Compares what all replicas have with the model.
    pub(super) fn compare(&mut self) {
        for server in 0..self.servers.len() {
            self.act(server, |trial| trial.compare_replica(server));
        }
    }

    fn compare_replica(&mut self, server: usize) -> Result<()> {
        let last = self.ledger.last();
        let current = self.servers[server].running().filter(|replica| replica.last_applied() == last);
        let Some(replica) = current else { return Ok(()) };
        let tablet = replica.tablet().clone();
        let end = self.ledger_end();
        let (table, random) = (self.tables.last().expect("there is a first version"), &mut self.random);
        let call = scans::whole(&table.shape, end, true);
        let wrong = table.check(random, &tablet, &self.rows, &call)?;
        let mut wrong = wrong.or_else(|| scans::wrong_count(&tablet, &self.rows));
        if *tablet.schema() != table.schema {
            wrong.get_or_insert(format!("the schema is {:?} instead of {:?}", tablet.schema(), table.schema));
        }
        self.report(wrong.map(|what| format!("server {server} in the end: {what}")));
        Ok(())
    }

    /// Returns the first timestamp behind the committed operations.
    pub(super) fn ledger_end(&self) -> u64 {
        let last = self.ledger.last().index;
        self.ledger.at(last).map_or(1, |entry| entry.timestamp.0 + 1)
    }

    pub(super) fn show_group(&self) -> String {
        let show = |server: &super::TrialServer| {
            let replica = server.replica().map(|replica| replica.status(self.reading(server.number)));
            let copying = if server.copy.is_some() { ", copying" } else { "" };
            let failed = if server.failed { ", failed" } else { "" };
            let rotten = if server.rotten { ", rotten" } else { "" };
            format!("{}: {replica:?}{copying}{failed}{rotten}", server.number)
        };
        let servers: Vec<String> = self.servers.iter().map(show).collect();
        let open = self.open.len();
        format!("{open} requests open of {MEMBERS} members; {}", servers.join("; "))
    }
}
