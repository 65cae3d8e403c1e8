//! Calls of masters and tools to the made-up tablet servers, and whether they may be made.

use std::time::Duration;

use engine::ids::Uuid;
use engine::time::Instant;
use nyala_proto::kudu::AppStatusPb;
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::consensus::raft_peer_pb::MemberType;
use nyala_proto::kudu::consensus::{
    ChangeConfigRequestPb, ChangeConfigType, LeaderStepDownRequestPb, RaftPeerPb,
};
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::tablet_server_error_pb::Code;
use nyala_proto::kudu::tserver::{
    AlterSchemaRequestPb, CreateTabletRequestPb, DeleteTabletRequestPb, TabletServerErrorPb,
};

use super::group::{Group, Member};
use super::settings::location;
use super::state::State;

/// Age of a table up to which its placement is compared with the servers that are there.
const FRESH: Duration = Duration::from_secs(2);

pub(super) type Refused = Box<TabletServerErrorPb>;

pub(super) fn refused(code: Code, message: &str) -> Refused {
    let status = ErrorCode::IllegalState as i32;
    let status = AppStatusPb { code: status, message: Some(message.to_string()), posix_code: None };
    Box::new(TabletServerErrorPb { code: code as i32, status })
}

fn id_of(bytes: &[u8]) -> Result<Uuid, Refused> {
    Uuid::parse(bytes).map_err(|_| refused(Code::UnknownError, "that is no id"))
}

impl State {
    /// Refuses a call that is meant for another identity of the server.
    pub(super) fn check_destination(&self, server: usize, named: Option<&[u8]>) -> Result<Uuid, Refused> {
        let id = self.servers[server].id();
        match named {
            Some(named) if id_of(named)? != id => Err(refused(Code::WrongServerUuid, "another server")),
            _ => Ok(id),
        }
    }

    pub(super) fn create_tablet(
        &mut self,
        server: usize,
        request: &CreateTabletRequestPb,
        now: Instant,
    ) -> Result<(), Refused> {
        let id = self.check_destination(server, request.dest_uuid.as_deref())?;
        let tablet = id_of(&request.tablet_id)?;
        if self.servers[server].replicas.contains_key(&tablet) {
            return Err(refused(Code::TabletAlreadyExists, "the replica exists"));
        }
        if !self.groups.contains_key(&tablet) {
            let members = request.config.peers.iter().map(|peer| member(peer, now));
            let members = members.collect::<Result<Vec<_>, _>>()?;
            if let Err(what) = self.check_placement(&request.table_name, &members, now) {
                self.report(format!("tablet {tablet} of {}: {what}", request.table_name));
            }
            let table = String::from_utf8_lossy(&request.table_id).into_owned();
            let requested = self.tables.requested.get(&request.table_name).map_or(now, |of| of.sent);
            self.groups.insert(tablet, Group::new(table, requested, members));
        }
        if !self.groups[&tablet].has(id) {
            self.report(format!("{id} is to create {tablet}, of which it is no member"));
        }
        self.servers[server].create(tablet);
        Ok(())
    }

    /// Checks the members of a new tablet.
    fn check_placement(&self, table: &str, members: &[Member], now: Instant) -> Result<(), String> {
        let requested = self.tables.requested.get(table).ok_or("no client has requested the table")?;
        let mut ids: Vec<Uuid> = members.iter().map(|member| member.id).collect();
        ids.sort();
        ids.dedup();
        if ids.len() != requested.replicas || members.iter().any(|member| !member.voter) {
            return Err(format!("the members {members:?} are not {} voters", requested.replicas));
        }
        let refuses = |id: &Uuid| self.maintenance.get(id).is_some_and(|since| *since < requested.sent);
        if let Some(server) = ids.iter().find(|id| refuses(id)) {
            return Err(format!("{server} is in maintenance mode, and is to get a replica"));
        }
        let available = self.servers.iter().filter(|server| self.is_available(server, now));
        let mut free: Vec<&str> = available.map(|server| location(server.number)).collect();
        free.sort_unstable();
        free.dedup();
        let mut taken: Vec<&str> = ids.iter().filter_map(|id| self.place(*id)).collect();
        taken.sort_unstable();
        taken.dedup();
        // Servers that are available now were so when the table was created, lately.
        let is_fresh = now.since(requested.sent) < FRESH && self.maintenance_changed < requested.sent;
        if is_fresh && self.is_settled(now) && taken.len() < requested.replicas.min(free.len()) {
            return Err(format!("its replicas are in {taken:?}, though there are servers in {free:?}"));
        }
        Ok(())
    }

    /// Returns the location of an identity.
    pub(super) fn place(&self, id: Uuid) -> Option<&'static str> {
        self.servers.iter().find(|server| server.has_had(id)).map(|server| location(server.number))
    }

    pub(super) fn delete_tablet(
        &mut self,
        server: usize,
        request: &DeleteTabletRequestPb,
    ) -> Result<(), Refused> {
        let id = self.check_destination(server, request.dest_uuid.as_deref())?;
        let tablet = id_of(&request.tablet_id)?;
        if !self.servers[server].replicas.contains_key(&tablet) {
            return Err(refused(Code::TabletNotFound, "there is no replica"));
        }
        let group = &self.groups[&tablet];
        if request.cas_config_opid_index_less_or_equal.is_some_and(|index| index < group.config_index) {
            return Err(refused(Code::CasFailed, "the configuration is newer"));
        }
        let table = self.tables.known.get(&group.table);
        let ends = self.tables.gone.contains(&group.table) || table.is_some_and(|table| table.ending);
        let tombstone = request.delete_type() == TabletDataState::TabletDataTombstoned;
        if group.known_in.is_some() && !ends && (group.has(id) || !tombstone) {
            let reason = request.reason();
            let what = format!("{id} is to delete {tablet}, whose table is not dropped: {reason:?}");
            self.report(what);
        }
        self.servers[server].delete(tablet);
        Ok(())
    }

    /// Returns the group that the server leads, with its majority.
    fn led(&mut self, id: Uuid, tablet: Uuid) -> Result<&mut Group, Refused> {
        let group = self.groups.get(&tablet).filter(|_| self.runs(id, &tablet));
        let group = group.ok_or_else(|| refused(Code::TabletNotFound, "there is no replica"))?;
        let live = group.voters().filter(|voter| self.runs(voter.id, &tablet)).count();
        if group.leader != Some(id) || live * 2 <= group.voters().count() {
            return Err(refused(Code::NotTheLeader, "it does not lead"));
        }
        Ok(self.groups.get_mut(&tablet).expect("looked up above"))
    }

    pub(super) fn alter_schema(
        &mut self,
        server: usize,
        request: &AlterSchemaRequestPb,
    ) -> Result<(), Refused> {
        let id = self.check_destination(server, request.dest_uuid.as_deref())?;
        let tablet = id_of(&request.tablet_id)?;
        let group = self.led(id, tablet)?;
        if request.schema_version < group.version {
            return Err(refused(Code::TabletHasANewerSchema, "the schema is newer"));
        }
        group.version = request.schema_version;
        self.mark(&tablet);
        Ok(())
    }

    /// Changes the members of a tablet, in one configuration.
    pub(super) fn change_members(
        &mut self,
        id: Uuid,
        tablet: &[u8],
        cas: Option<i64>,
        changes: &[(ChangeConfigType, RaftPeerPb)],
        now: Instant,
    ) -> Result<(), Refused> {
        let tablet = id_of(tablet)?;
        let group = self.led(id, tablet)?;
        if cas.is_some_and(|index| index != group.config_index) {
            return Err(refused(Code::CasFailed, "the configuration is another one"));
        }
        let mut members = group.members.clone();
        for (kind, peer) in changes {
            change_member(&mut members, id, *kind, peer, now)?;
        }
        group.members = members;
        group.change();
        self.mark(&tablet);
        Ok(())
    }

    pub(super) fn change_config(
        &mut self,
        server: usize,
        request: &ChangeConfigRequestPb,
        now: Instant,
    ) -> Result<(), Refused> {
        let id = self.check_destination(server, request.dest_uuid.as_deref())?;
        let change = [(request.r#type(), request.server.clone().unwrap_or_default())];
        self.change_members(id, &request.tablet_id, request.cas_config_opid_index, &change, now)
    }

    pub(super) fn step_down(
        &mut self,
        server: usize,
        request: &LeaderStepDownRequestPb,
    ) -> Result<(), Refused> {
        let id = self.check_destination(server, request.dest_uuid.as_deref())?;
        let tablet = id_of(&request.tablet_id)?;
        let next = request.new_leader_uuid.as_deref().map(id_of).transpose()?;
        let next = next.filter(|next| self.runs(*next, &tablet));
        let group = self.led(id, tablet)?;
        let next = next.filter(|next| group.has_voter(*next));
        group.term += 1;
        group.leader = next;
        self.mark(&tablet);
        Ok(())
    }
}

fn member(peer: &RaftPeerPb, now: Instant) -> Result<Member, Refused> {
    let attrs = peer.attrs.unwrap_or_default();
    Ok(Member {
        id: id_of(peer.permanent_uuid.as_deref().unwrap_or_default())?,
        address: peer.last_known_addr.clone().unwrap_or_default(),
        voter: peer.member_type() == MemberType::Voter,
        promote: attrs.promote(),
        replace: attrs.replace(),
        added: now,
    })
}

fn change_member(
    members: &mut Vec<Member>,
    leader: Uuid,
    kind: ChangeConfigType,
    peer: &RaftPeerPb,
    now: Instant,
) -> Result<(), Refused> {
    let wrong = |what: &str| Err(refused(Code::InvalidConfig, what));
    let new = member(peer, now)?;
    let at = members.iter().position(|member| member.id == new.id);
    match (kind, at) {
        (ChangeConfigType::AddPeer, None) => members.push(new),
        (ChangeConfigType::AddPeer, Some(_)) => return wrong("it is a member"),
        (ChangeConfigType::RemovePeer, Some(_)) if new.id == leader => return wrong("it leads"),
        (ChangeConfigType::RemovePeer, Some(at)) => drop(members.remove(at)),
        (ChangeConfigType::ModifyPeer, Some(at)) => members[at].replace = new.replace,
        _ => return wrong("it is no member"),
    }
    Ok(())
}
