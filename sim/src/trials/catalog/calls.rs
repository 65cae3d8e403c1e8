//! Calls of masters to the made-up servers: their fates, and how a server carries them out.

use std::time::Duration;

use engine::catalog::{MembershipChange, PeerRecord, TaskKey, TserverCall, TserverRequest};
use engine::error::Error;
use engine::ids::{PeerId, TabletId};

use super::CatalogTrial;
use super::agenda::Occasion;
use super::definition::Definition;
use super::group::{Group, Member, Pending, Replica, ReplicaMode, short};
use super::messages::SentCall;

/// Most milliseconds that a call and its response take.
const SOON_MILLIS: u64 = 30;
/// Time after which a call without a response is given up.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Most milliseconds until a call arrives that was given up.
const LATE_MILLIS: u64 = 25_000;

/// Result of a call, if it is known at once.
type Outcome = Option<Result<(), Error>>;

impl CatalogTrial {
    /// Sends a call: it arrives soon, or late, twice or never.
    pub(super) fn send(&mut self, request: TserverRequest, generation: u64) {
        if let TserverCall::CreateTablet(call) = &request.call
            && !self.groups.contains_key(&request.task.tablet)
        {
            self.groups.insert(request.task.tablet, Group::new(call));
            self.agenda.add(self.now, Occasion::GroupTurn(request.task.tablet));
        }
        let (task, now) = (request.task, self.now);
        let fate = if self.faults { self.random.below(100) } else { 99 };
        let soon = now + Duration::from_millis(self.random.below(SOON_MILLIS));
        let late = now + TIMEOUT + Duration::from_millis(self.random.below(LATE_MILLIS));
        let at = self.server_at(&request.address).and_then(|id| self.servers.get(&id));
        let instance = at.map_or(0, |server| server.instance);
        let awaited = SentCall { request, generation, instance, awaited: true };
        let given_up = SentCall { awaited: false, ..awaited.clone() };
        let calls = match fate {
            0..4 => vec![],
            4..9 => vec![(late, given_up)],
            9..13 => vec![(soon, given_up)],
            13..16 => vec![(soon, awaited), (late, given_up)],
            _ => vec![(soon, awaited)],
        };
        if !calls.iter().any(|(_, call)| call.awaited) {
            self.answer(now + TIMEOUT, generation, task, Err(Error::not_ready("timeout")));
        }
        calls.into_iter().for_each(|(at, call)| self.agenda.add(at, Occasion::CallArrives(call)));
    }

    fn answer(&mut self, at: Duration, generation: u64, task: TaskKey, result: Result<(), Error>) {
        self.agenda.add(at, Occasion::Answer { generation, task, result });
    }

    /// Lets the response to a call reach the master that made it, if it still works.
    pub(super) fn on_answer(&mut self, generation: u64, task: TaskKey, result: Result<(), Error>) {
        let deposed = self.deposed.as_ref().map(|deposed| deposed.generation);
        if generation == self.master.generation {
            self.master.take_answer(task, result);
            self.turn_perhaps();
        } else if deposed == Some(generation) {
            self.turn_of_deposed(engine::catalog::CatalogEvent::Answered { task, result });
        }
    }

    /// Lets a server carry out a call.
    pub(super) fn on_call(&mut self, call: SentCall) {
        let SentCall { request, generation, instance, awaited } = call;
        let task = request.task;
        let outcome = match self.server_at(&request.address).and_then(|id| self.servers.get(&id)) {
            Some(server)
                if !server.up
                    || self.now < server.cut_off_until
                    || !awaited && server.instance != instance =>
            {
                Some(Err(Error::not_ready("no connection")))
            }
            Some(server) if server.id == task.server => self.carry_out(&request, generation, awaited),
            Some(_) => Some(Err(wrong_server(&request.call))),
            None => Some(Err(Error::not_ready("no connection"))),
        };
        let shown = outcome.as_ref().map(|outcome| outcome.as_ref().map_err(|error| &error.message));
        self.note(format!("{task}, {}: {shown:?}", shown_call(&request.call)));
        if let Some(result) = outcome.filter(|_| awaited) {
            let at = self.now + Duration::from_millis(self.random.below(SOON_MILLIS));
            self.answer(at, generation, task, result);
        }
    }

    fn carry_out(&mut self, request: &TserverRequest, generation: u64, awaited: bool) -> Outcome {
        let task = request.task;
        match &request.call {
            TserverCall::CreateTablet(_) => Some(self.create_replica(task)),
            TserverCall::AlterSchema { version, schema, table_name, extra, attributes } => {
                let definition = Definition::new(table_name, schema, extra, attributes);
                Some(self.alter_replica(task, *version, definition))
            }
            TserverCall::DeleteTablet { tombstone, config_index_max, .. } => {
                Some(self.delete_replica(task, *tombstone, *config_index_max))
            }
            TserverCall::ChangeConfig { config_index, change } => {
                let asked = Some((generation, task)).filter(|_| awaited);
                match self.begin_change(task, *config_index, change, asked) {
                    Ok(done) => done.then_some(Ok(())),
                    Err(error) => Some(Err(error)),
                }
            }
        }
    }

    fn create_replica(&mut self, task: TaskKey) -> Result<(), Error> {
        let Some(server) = self.servers.get_mut(&task.server) else { return Err(Error::not_ready("")) };
        if server.deleted.contains(&task.tablet) {
            return Err(Error::not_found("deleted for good"));
        }
        match server.replicas.get(&task.tablet).map(|replica| replica.mode) {
            Some(ReplicaMode::Copying(_)) => return Err(Error::not_ready("being worked on")),
            Some(_) => return Err(Error::already_present("it exists")),
            None => {}
        }
        server.replicas.insert(task.tablet, Replica::new(ReplicaMode::Running));
        self.mark_changed(task.server, task.tablet);
        Ok(())
    }

    fn alter_replica(&mut self, task: TaskKey, version: u32, definition: Definition) -> Result<(), Error> {
        self.find_replica(task)?;
        if !self.leads(task.server, task.tablet) {
            return Err(Error::not_ready("not the leader"));
        }
        if self.groups[&task.tablet].version() >= version {
            return Ok(());
        }
        if !self.can_commit(task.tablet) {
            return Err(Error::not_ready("no majority"));
        }
        let group = self.groups.get_mut(&task.tablet).expect("it has a leader");
        group.commit_version(version, definition);
        self.acknowledge(task.tablet);
        Ok(())
    }

    fn find_replica(&self, task: TaskKey) -> Result<&Replica, Error> {
        let replica = self.servers.get(&task.server).and_then(|server| server.replicas.get(&task.tablet));
        replica.ok_or_else(|| Error::not_found("no such tablet"))
    }

    fn delete_replica(&mut self, task: TaskKey, tombstone: bool, index: Option<i64>) -> Result<(), Error> {
        let (id, tablet) = (task.server, task.tablet);
        let found = self.find_replica(task).map(|replica| (replica.mode, replica.has));
        let Some(server) = self.servers.get_mut(&id) else { return Err(Error::not_ready("")) };
        let (mode, has) = match found {
            Ok(found) => found,
            Err(error) => {
                server.deleted.extend((!tombstone).then_some(tablet));
                return Err(error);
            }
        };
        let known = self.groups[&tablet].config_at(has).0;
        if matches!(mode, ReplicaMode::Copying(_)) {
            return Err(Error::not_ready("being copied"));
        }
        if index.is_some_and(|index| known > index) {
            return Err(Error::aborted(format!("it knows the configuration {known}")));
        }
        if !tombstone {
            server.replicas.remove(&tablet);
            server.deleted.insert(tablet);
        } else if let Some(replica) = server.replicas.get_mut(&tablet) {
            (replica.mode, replica.leader) = (ReplicaMode::Tombstone, None);
            self.reached.removals += 1;
        }
        self.check_still_needed(id, tablet);
        self.mark_changed(id, tablet);
        Ok(())
    }

    /// Checks a deletion that was carried out: the tablet has ended, or the server is no voter.
    fn check_still_needed(&mut self, server: PeerId, tablet: TabletId) {
        let live = self.model.tablet(tablet).is_some();
        if live && self.groups[&tablet].is_voter(server) {
            let what = format!("{server} was ordered to delete {}, of which it is a voter", short(&tablet));
            self.report(what);
        }
    }

    /// Begins a change that a leader is asked for. Returns true if it is done at once; the reply to another follows
    /// when it is committed.
    fn begin_change(
        &mut self,
        task: TaskKey,
        index: i64,
        change: &MembershipChange,
        asked: Option<(u64, TaskKey)>,
    ) -> Result<bool, Error> {
        let (server, tablet) = (task.server, task.tablet);
        self.find_replica(task)?;
        if !self.leads(server, tablet) {
            return Err(Error::not_ready("not the leader"));
        }
        if let MembershipChange::HandOver(next) = change {
            return self.transfer(tablet, *next).map(|()| true);
        }
        let group = &self.groups[&tablet];
        if group.pending.is_some() {
            return Err(Error::not_ready("another change is pending"));
        }
        if group.index() != index {
            return Err(Error::aborted("the configuration is another"));
        }
        let members = changed(group.members(), change)?;
        let evicts_voter = members.iter().filter(|member| member.voter).count()
            < group.members().iter().filter(|member| member.voter).count();
        if members.iter().all(|member| member.server != server) {
            return Err(Error::not_ready("the leader stays"));
        }
        if evicts_voter && !self.has_majority(tablet, &members) {
            return Err(Error::not_ready("too few live voters"));
        }
        self.begin_pending(tablet, Pending { members, asked });
        Ok(false)
    }

    /// Lets a leader accept a configuration.
    pub(super) fn begin_pending(&mut self, tablet: TabletId, pending: Pending) {
        let Some(group) = self.groups.get_mut(&tablet) else { return };
        group.pending = Some(pending);
    }

    /// Lets the call that asked for the accepted configuration end without its outcome.
    pub(super) fn refuse_asker(&mut self, tablet: TabletId) {
        let pending = self.groups.get_mut(&tablet).and_then(|group| group.pending.as_mut());
        if let Some((generation, task)) = pending.and_then(|pending| pending.asked.take()) {
            self.answer(self.now, generation, task, Err(Error::not_ready("the leader was deposed")));
        }
    }

    /// Ends the accepted configuration: it is committed, or lost with its leader.
    pub(super) fn end_pending(&mut self, tablet: TabletId, committed: bool) {
        let Some(group) = self.groups.get_mut(&tablet) else { return };
        let Some(pending) = group.pending.take() else { return };
        if committed {
            group.commit_config(pending.members);
            self.acknowledge(tablet);
        } else {
            self.reached.lost_changes += 1;
        }
        if let Some((generation, task)) = pending.asked {
            let result = if committed { Ok(()) } else { Err(Error::not_ready("the leader was deposed")) };
            let at = self.now + Duration::from_millis(self.random.below(SOON_MILLIS));
            self.answer(at, generation, task, result);
        }
    }
}

fn changed(members: &[Member], change: &MembershipChange) -> Result<Vec<Member>, Error> {
    let mut next = members.to_vec();
    match change {
        MembershipChange::Add(peer) if members.iter().any(|member| member.server == peer.server) => {
            return Err(Error::not_ready("it is a member"));
        }
        MembershipChange::Add(peer) => next.push(member_of(peer)),
        MembershipChange::Evict(server) => {
            next.retain(|member| member.server != *server);
            if next.len() == members.len() {
                return Err(Error::not_ready("it is no member"));
            }
        }
        MembershipChange::HandOver(_) => {}
    }
    Ok(next)
}

fn member_of(peer: &PeerRecord) -> Member {
    Member {
        server: peer.server,
        address: peer.address.clone(),
        voter: peer.voter,
        promote: peer.promote,
        replace: peer.replace,
    }
}

/// Returns the error of a server at whose address another one was.
fn wrong_server(call: &TserverCall) -> Error {
    match call {
        TserverCall::DeleteTablet { .. } => Error::not_found("another server"),
        _ => Error::not_ready("another server"),
    }
}

fn shown_call(call: &TserverCall) -> String {
    match call {
        TserverCall::CreateTablet(_) => "create".to_string(),
        TserverCall::AlterSchema { version, .. } => format!("alter to {version}"),
        TserverCall::DeleteTablet { tombstone, config_index_max, .. } => {
            format!("delete, tombstone {tombstone}, {config_index_max:?}")
        }
        TserverCall::ChangeConfig { config_index, change } => format!("at {config_index}: {change}"),
    }
}
