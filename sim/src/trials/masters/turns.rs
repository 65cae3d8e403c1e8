//! Turns of the tablets' groups: elections, copies, promotions, health; and replicas that masters owe.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::ids::Uuid;
use engine::time::Instant;
use nyala_proto::kudu::consensus::health_report_pb::HealthStatus;

use super::group::{FIRST, Group};
use super::settings::{COPIED_AFTER, CREATED_WITHIN, FAILED};
use super::state::State;

/// Percentage of turns in which a group without a leader elects one.
const ELECTED: u64 = 30;
/// Time that a copy takes, and then the promotion.
const COPY: Duration = Duration::from_millis(300);

impl State {
    /// Lets each group do what is due.
    pub(super) fn turn(&mut self, now: Instant) {
        let mut groups = std::mem::take(&mut self.groups);
        let mut changed = Vec::new();
        for (id, group) in &mut groups {
            if self.turn_group(id, group, now) {
                changed.push(*id);
            }
            self.check_created(id, group, now);
        }
        self.groups = groups;
        changed.iter().for_each(|id| self.mark(id));
    }

    /// Returns true if there is something to report.
    fn turn_group(&mut self, id: &Uuid, group: &mut Group, now: Instant) -> bool {
        let live: Vec<Uuid> =
            group.voters().map(|voter| voter.id).filter(|voter| self.runs(*voter, id)).collect();
        if live.len() * 2 <= group.voters().count() {
            return false;
        }
        if !group.leader.is_some_and(|leader| live.contains(&leader)) {
            if !self.random.percent(ELECTED) {
                return false;
            }
            group.term += 1;
            group.leader = Some(self.random.pick(&live));
            group.health = self.health(id, group, now);
            return true;
        }
        let health = self.health(id, group, now);
        let is_new = health != group.health;
        group.health = health;
        self.copy(id, group, now) || is_new
    }

    fn health(&self, id: &Uuid, group: &Group, now: Instant) -> BTreeMap<Uuid, HealthStatus> {
        let absent = |server: Uuid| match self.server(server) {
            Some(server) if server.up => None,
            Some(server) => Some(server.since),
            None => self.gone.get(&server).copied(),
        };
        let of = |server: Uuid| match absent(server) {
            Some(since) if now.since(since) > FAILED => HealthStatus::Failed,
            None if self.runs(server, id) => HealthStatus::Healthy,
            _ => HealthStatus::Unknown,
        };
        group.members.iter().map(|member| (member.id, of(member.id))).collect()
    }

    /// Copies the tablet to a member, or promotes one; returns true if it did.
    fn copy(&mut self, id: &Uuid, group: &mut Group, now: Instant) -> bool {
        for member in &mut group.members {
            let age = now.since(member.added);
            let Some(server) = self.servers.iter_mut().find(|server| server.id() == member.id && server.up)
            else {
                continue;
            };
            let wait = if member.voter { COPIED_AFTER } else { COPY };
            if !server.runs(id) && age > wait {
                server.create(*id);
                return true;
            }
            if server.runs(id) && member.promote && age > COPY * 2 {
                (member.voter, member.promote) = (true, false);
                group.change();
                return true;
            }
        }
        false
    }

    /// Reports a first member without a replica that is owed by the master to which the tablet's first leader was
    /// reported: that master has led since before, and the server has been there for some time.
    fn check_created(&mut self, id: &Uuid, group: &Group, now: Instant) {
        let Some((leadership, (known_in, since))) = self.leadership.zip(group.known_in) else { return };
        // A leader of masters that loads a tablet does not know who never had a replica.
        let saw_it_come_up = group.requested > leadership.since;
        if leadership.number != known_in || now.since(since) < CREATED_WITHIN || !saw_it_come_up {
            return;
        }
        let ending = self.tables.known.get(&group.table).is_none_or(|table| table.ending);
        if ending || group.config_index != FIRST || !self.is_settled(now) {
            return;
        }
        let master = &self.masters[leadership.master];
        let is_owed = |server: Uuid| {
            let waits = self.server(server).is_some_and(|at| {
                at.up && !at.runs(id) && now.since(at.since.max(at.late_until)) > CREATED_WITHIN
            });
            waits && master.alive(now).any(|alive| alive == server)
        };
        if let Some(owed) = group.members.iter().find(|member| is_owed(member.id)) {
            let what = format!("tablet {id} runs, and its member {} is up and gets no replica", owed.id);
            self.report(what);
        }
    }
}
