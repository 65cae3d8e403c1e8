//! The quiet end of a trial: without faults every request is done, every tablet whole, and nothing is left elsewhere.

use std::time::Duration;

use engine::ids::{PeerId, TableId, TabletId};

use super::CatalogTrial;
use super::ddl::Ddl;
use super::group::{Group, Replica, ReplicaMode, short};
use super::model::{ModelTable, TableState};

/// Time between two looks.
pub(super) const ROUND: Duration = Duration::from_secs(1);
/// Rounds until which all must be done.
const ROUNDS: usize = 200;
/// Least time of masters to remember deleted tablets that is longer than a late order takes.
const MEMORY_MIN: Duration = Duration::from_secs(30);

impl CatalogTrial {
    pub(super) fn end(&mut self) {
        self.note("the quiet end");
        self.faults = false;
        self.deposed = None;
        let ids: Vec<PeerId> = self.servers.keys().copied().collect();
        for id in ids {
            self.restart(id);
            if let Some(server) = self.servers.get_mut(&id) {
                (server.takes_replicas, server.cut_off_until) = (true, self.now);
            }
        }
        // The requests that wait come first.
        self.turn();
        self.add_servers();
        for server in self.model.maintenance.clone() {
            self.master.take_request(Ddl::Maintenance { server, enter: false, allow_missing: true });
        }
        self.turn();
        self.settle("without faults");
        if self.found.is_none() {
            // The next master has all that was acknowledged.
            self.fail_over("the end", false);
            self.settle("after the last fail-over");
        }
        if self.found.is_none() {
            self.check_rebuilt();
            self.check_expired();
        }
    }

    /// Adds servers until every tablet can have all its replicas.
    fn add_servers(&mut self) {
        let wanted =
            self.model.tables.values().map(|table| table.replicas as usize).max().unwrap_or_default();
        for number in self.servers.len()..wanted {
            self.boot_another(number);
        }
    }

    /// Lets time pass until all is done.
    pub(super) fn settle(&mut self, when: &str) {
        let mut last = Ok(());
        for _ in 0..ROUNDS {
            self.pass(ROUND);
            self.clear_marks();
            last = self.check_settled();
            if self.found.is_some() || last.is_ok() {
                return;
            }
        }
        self.check(last.map_err(|what| format!("{when}, {what}")));
    }

    /// Lets an operator withdraw marks for replacement where no other server is.
    fn clear_marks(&mut self) {
        let servers = self.servers.len();
        let tablets: Vec<TabletId> = self.groups.keys().copied().collect();
        for tablet in tablets {
            let group = &self.groups[&tablet];
            let marked = group.members().iter().position(|member| member.replace);
            let at = marked.filter(|_| group.pending.is_none() && group.members().len() >= servers);
            at.into_iter().for_each(|at| self.change_mark(tablet, at, false));
        }
    }

    fn check_settled(&self) -> Result<(), String> {
        for (id, table) in &self.model.tables {
            self.check_table(*id, table)?;
        }
        for server in self.servers.values() {
            for (tablet, replica) in &server.replicas {
                self.check_listed(server.id, *tablet, replica)?;
            }
        }
        let counts = self.master.catalog.counts(self.reading().mono);
        if counts.requests > 0 || counts.tablets_not_running + counts.tablets_under_replicated > 0 {
            return Err(format!("calls stay open: {counts:?}"));
        }
        Ok(())
    }

    fn check_table(&self, id: TableId, table: &ModelTable) -> Result<(), String> {
        let name = &table.name;
        if let TableState::SoftDeleted { purge_at } = table.state
            && purge_at + 2 * ROUND < self.now
        {
            return Err(format!("the table {name} is not purged"));
        }
        let by_id = engine::catalog::TableRef::by_id(id);
        let altered = self.master.catalog.is_altered(&by_id);
        if !altered.is_ok_and(|(_, done)| done) {
            return Err(format!("the alteration of {name} is not done"));
        }
        table.tablets.values().try_for_each(|tablet| self.check_whole(tablet.id, table.replicas as usize))
    }

    /// Checks that a tablet has its voters with equal replicas, and no learner.
    fn check_whole(&self, id: TabletId, wanted: usize) -> Result<(), String> {
        let tablet = short(&id);
        let group = self.groups.get(&id).ok_or_else(|| format!("{tablet} was never created"))?;
        let is_good =
            |server: PeerId| self.running(server, id).is_some_and(|replica| replica.has == group.len);
        let good = group.members().iter().filter(|member| member.voter && !member.replace);
        let good = good.filter(|member| is_good(member.server)).count();
        if good != wanted || group.members().len() != wanted || group.pending.is_some() {
            let (members, report) = (group.members(), self.master.reports.get(&id));
            return Err(format!("{tablet} has {good} good voters, not {wanted}, of {members:?}: {report:?}"));
        }
        Ok(())
    }

    /// Checks that a replica belongs where it is.
    fn check_listed(&self, server: PeerId, id: TabletId, replica: &Replica) -> Result<(), String> {
        let tablet = short(&id);
        // A copy that began for a configuration that was lost knows the newest one, and stays until the next.
        let group = self.groups.get(&id);
        let listed = group
            .is_some_and(|group| group.is_member(server) || group.config_at(replica.has).0 == group.index());
        if self.model.tablet(id).is_none() && self.may_be_unknown(server, id, replica, group) {
            return Ok(());
        }
        if self.model.tablet(id).is_none() {
            return Err(format!("{server} has a replica of {tablet}, which has ended: {replica:?}"));
        }
        if !listed && replica.mode != ReplicaMode::Tombstone {
            return Err(format!("{server} has a replica of {tablet} and is no member: {replica:?}"));
        }
        Ok(())
    }

    /// Returns true if masters that soon forget deleted tablets may not know a replica of one: an order to create it
    /// came late, and a lone one led with an entry a term, or the server was no member at the end. Or the server was
    /// unregistered after the tablet's end, or it got the replica from a member that was.
    fn may_be_unknown(&self, server: PeerId, id: TabletId, replica: &Replica, group: Option<&Group>) -> bool {
        let has_had = |other: PeerId| other == server || group.is_some_and(|group| group.has_named(other));
        if self.model.forgotten.iter().any(|(other, tablet)| *tablet == id && has_had(*other)) {
            return true;
        }
        let is_new = replica.has as i128 <= i128::from(replica.term).max(1);
        let is_member = group.is_some_and(|group| group.is_member(server));
        self.config.deleted_metadata_kept < MEMORY_MIN && (is_new || !is_member)
    }
}
