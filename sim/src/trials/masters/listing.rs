//! Requests that only read: lists of tables and servers, and locations.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::ids::Uuid;
use nyala_proto::kudu::HostPortPb;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::master::list_tablet_servers_response_pb::Entry;
use nyala_proto::kudu::master::master_error_pb::Code;
use nyala_proto::kudu::master::{
    GetTableLocationsRequestPb, GetTableLocationsResponsePb, IsCreateTableDoneRequestPb,
    IsCreateTableDoneResponsePb, ListTablesRequestPb, ListTablesResponsePb, ListTabletServersRequestPb,
    ListTabletServersResponsePb, TServerStatePb, TabletLocationsPb, TsInfoPb,
};
use prost::Message;

use super::ddl::text;
use super::known_master::KnownMaster;
use super::registrations::check_entry;
use super::rights::Wish;
use super::script::{Answer, Script, by_id};
use super::settings::{LOCATIONS_TTL_MILLIS, TRUSTED};
use super::state::Leadership;
use crate::trials::fleet::address_pb;
use crate::wire::client::MasterReply;

/// Time after a disturbance in which a deposed master may not have noticed yet, and shows what was before.
const STALE: Duration = Duration::from_millis(1_500);
/// Percentage of lists of servers without their states.
const WITHOUT_STATES: u64 = 20;
/// Error of the time since a heartbeat at a master that was loading its catalog when it came, and of the network.
const AGE_ERROR_MILLIS: u128 = 4_000;

/// A tablet as a master locates it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Located {
    pub(super) tablet: Uuid,
    pub(super) voters: BTreeSet<Uuid>,
    pub(super) leader: Option<Uuid>,
}

impl Script {
    /// Returns true if a master may show what was before, since another one leads.
    fn may_be_stale(&self) -> bool {
        let (state, now) = (self.state.lock(), self.links.now());
        let recent = |master: &KnownMaster| master.cut_off || now < master.disturbed_until.after(STALE);
        state.masters.iter().any(recent)
    }

    /// Makes a request that only reads. The answer of a master that may show what was before counts as none.
    pub(super) async fn ask_fresh<Q: Message, R: MasterReply>(
        &mut self,
        user: &str,
        method: &str,
        request: &Q,
    ) -> Answer<R> {
        let stale = self.may_be_stale();
        let answer = self.ask(user, method, request).await;
        if stale || self.may_be_stale() { Answer::Unknown } else { answer }
    }

    /// Checks that a user gets the reply to a request that only reads a table if the user may; returns the reply.
    pub(super) fn check_read<R>(
        &self,
        what: &str,
        allowed: bool,
        answer: Answer<R>,
    ) -> Result<Option<R>, String> {
        match answer {
            Answer::Done { .. } if !allowed => Err(format!("{what} is read without a right")),
            Answer::Done { reply, .. } => Ok(Some(reply)),
            Answer::Refused { error, .. } => match self.check_right(what, allowed, &error)? {
                true => {
                    self.note(format!("{what} is refused"));
                    Ok(None)
                }
                false => Err(format!("{what}: {error:?}")),
            },
            Answer::NotNow | Answer::Unknown => Ok(None),
        }
    }

    pub(super) async fn list_tables(&mut self) -> Result<(), String> {
        let stale = self.may_be_stale();
        let request = ListTablesRequestPb::default();
        let answer: Answer<ListTablesResponsePb> = self.ask(TRUSTED, "ListTables", &request).await;
        match answer {
            Answer::Done { reply, .. } if !stale && !self.may_be_stale() => {
                let listed: BTreeMap<String, String> =
                    reply.tables.into_iter().map(|table| (text(&table.id), table.name)).collect();
                self.state.lock().tables.compare(&listed)
            }
            Answer::Refused { error, .. } => Err(format!("ListTables: {error:?}")),
            _ => Ok(()),
        }
    }

    pub(super) async fn list_servers(&mut self) -> Result<(), String> {
        let states = !self.random.percent(WITHOUT_STATES);
        let request = ListTabletServersRequestPb { include_states: states.then_some(true) };
        let answer: Answer<ListTabletServersResponsePb> =
            self.ask(TRUSTED, "ListTabletServers", &request).await;
        match answer {
            Answer::Done { master, reply } => self.check_servers(master, &reply.servers, states),
            Answer::Refused { error, .. } => Err(format!("ListTabletServers: {error:?}")),
            _ => Ok(()),
        }
    }

    fn check_servers(&self, master: usize, listed: &[Entry], states: bool) -> Result<(), String> {
        let (state, now) = (self.state.lock(), self.links.now());
        let known = &state.masters[master];
        let id = |entry: &Entry| Uuid::parse(&entry.instance_id.permanent_uuid);
        for alive in known.alive(now) {
            let entry = listed.iter().find(|entry| id(entry) == Ok(alive));
            let Some(entry) = entry.filter(|entry| entry.registration.is_some()) else {
                return Err(format!("master {master} does not list {alive}, which it knows: {listed:?}"));
            };
            let Some((life, _, last)) = known.contacts[&alive].accepted else { continue };
            // The catalog has what came since this master is known to lead.
            let leads = |of: Leadership| (of.master, of.life) == (master, known.life) && of.since < last;
            if state.leadership.is_some_and(leads) && entry.instance_id.instance_seqno < life {
                return Err(format!("{alive} is in life {life}, which is known, and is listed as {entry:?}"));
            }
            if entry.location.as_deref() != state.place(alive) {
                return Err(format!("the location of {alive} is {:?}", entry.location));
            }
            let age = now.since(last).as_millis() + AGE_ERROR_MILLIS;
            if entry.millis_since_heartbeat().max(0) as u128 > age {
                return Err(format!("{alive}: {entry:?}, though its heartbeat came {age} ms ago at most"));
            }
        }
        let mut ids = BTreeSet::new();
        for entry in listed {
            let server = id(entry).map_err(|error| error.to_string())?;
            check_entry(&state, entry, server, states)?;
            if !ids.insert(server) {
                return Err(format!("{server} is listed twice: {listed:?}"));
            }
            let is_kept = entry.state() == TServerStatePb::MaintenanceMode;
            if !known.contacts.contains_key(&server) && !is_kept {
                return Err(format!("master {master} lists {server}, which has never told it of itself"));
            }
            let wanted = state.maintenance.contains_key(&server);
            if states && is_kept != wanted && !state.unsure.contains(&server) && state.is_settled(now) {
                return Err(format!("{server} is in maintenance mode: {is_kept}, not {wanted}"));
            }
        }
        Ok(())
    }

    /// Locates a table that is known.
    pub(super) async fn locate_any(&mut self) -> Result<(), String> {
        let Some((id, name, of)) = self.draw_table() else { return Ok(()) };
        let user = self.draw_user();
        let allowed = self.allows(user, &name, &of.owner, &Wish::See);
        let answer = self.ask_created(user, &id).await;
        if let Answer::Refused { error, .. } = &answer {
            let what = format!("IsCreateTableDone of {name} by {user}");
            return self.check_right(&what, allowed, error).map(drop);
        }
        if matches!(answer, Answer::Done { .. }) && !allowed {
            return Err(format!("{user} is told of {name} of {} without a right", of.owner));
        }
        self.take_created(&id, answer)?;
        self.locate(&id).await.map(drop)
    }

    pub(super) async fn ask_created(&mut self, user: &str, id: &str) -> Answer<IsCreateTableDoneResponsePb> {
        let request = IsCreateTableDoneRequestPb { table: by_id(id) };
        self.ask(user, "IsCreateTableDone", &request).await
    }

    /// Takes the answer whether all tablets of a table run. Once they do, no answer denies it.
    pub(super) fn take_created(
        &self,
        id: &str,
        answer: Answer<IsCreateTableDoneResponsePb>,
    ) -> Result<(), String> {
        let Answer::Done { reply, .. } = answer else { return Ok(()) };
        let mut state = self.state.lock();
        let Some(table) = state.tables.known.get_mut(id) else { return Ok(()) };
        let was_done = std::mem::replace(&mut table.done, reply.done());
        match was_done && !reply.done() {
            true => Err(format!("{:?} was created, and is not any more", table.names)),
            false => Ok(()),
        }
    }

    /// Returns the tablets of a table; `None` if they are not known now.
    pub(super) async fn locate(&mut self, id: &str) -> Result<Option<Vec<Located>>, String> {
        let request = GetTableLocationsRequestPb {
            table: by_id(id),
            intern_ts_infos_in_response: Some(true),
            max_returned_locations: Some(1_000),
            ..Default::default()
        };
        let answer: Answer<GetTableLocationsResponsePb> =
            self.ask(TRUSTED, "GetTableLocations", &request).await;
        let table = self.state.lock().tables.known.get(id).cloned();
        let Some(table) = table else { return Ok(None) };
        match answer {
            Answer::Done { reply, .. } => {
                let located =
                    self.check_locations(id, &reply).map_err(|what| format!("{:?}: {what}", table.names))?;
                match located.len() == table.of.tablets {
                    true => Ok(Some(located)),
                    false => Err(format!("{:?} has {} tablets: {reply:?}", table.names, located.len())),
                }
            }
            Answer::Refused { error, .. } if error.code() == Code::TabletNotRunning && !table.done => {
                Ok(None)
            }
            Answer::Refused { .. } if table.ending => Ok(None),
            Answer::Refused { error, .. } => Err(format!("locations of {:?}: {error:?}", table.names)),
            _ => Ok(None),
        }
    }

    fn check_locations(
        &self,
        table: &str,
        reply: &GetTableLocationsResponsePb,
    ) -> Result<Vec<Located>, String> {
        let state = self.state.lock();
        if reply.ttl_millis != Some(LOCATIONS_TTL_MILLIS) {
            return Err(format!("locations are valid for {:?} ms", reply.ttl_millis));
        }
        let addresses: Vec<HostPortPb> = (0..state.servers.len()).map(address_pb).collect();
        for info in &reply.ts_infos {
            let id = Uuid::parse(&info.permanent_uuid).map_err(|error| error.to_string())?;
            let number = addresses.iter().position(|at| info.rpc_addresses == [at.clone()]);
            if !number.is_some_and(|number| state.servers[number].has_had(id)) {
                return Err(format!("no server has id and address of {info:?}"));
            }
            if info.location.is_some() && info.location.as_deref() != state.place(id) {
                return Err(format!("the location of {id} is {:?}", info.location));
            }
        }
        let is_of_table =
            |located: &Located| state.groups.get(&located.tablet).is_some_and(|group| group.table == table);
        let located = reply.tablet_locations.iter().map(|tablet| located(tablet, &reply.ts_infos));
        let located: Vec<Located> = located.collect::<Result<_, _>>()?;
        match located.iter().find(|located| !is_of_table(located)) {
            Some(other) => Err(format!("{other:?} is no tablet of it")),
            None => Ok(located),
        }
    }
}

/// Returns a tablet of a reply that has voters only, as the default filter wants; its replicas name servers by their
/// positions in the list.
pub(super) fn located(pb: &TabletLocationsPb, infos: &[TsInfoPb]) -> Result<Located, String> {
    let tablet = Uuid::parse(&pb.tablet_id).map_err(|error| error.to_string())?;
    let (mut voters, mut leader) = (BTreeSet::new(), None);
    for replica in &pb.interned_replicas {
        let info = infos.get(replica.ts_info_idx as usize).ok_or("a replica without a server")?;
        let id = Uuid::parse(&info.permanent_uuid).map_err(|error| error.to_string())?;
        if !matches!(replica.role(), Role::Leader | Role::Follower) {
            return Err(format!("{tablet} has {id}, which is no voter: {pb:?}"));
        }
        let is_new = voters.insert(id);
        let leads = replica.role() == Role::Leader;
        if !is_new || leads && leader.replace(id).is_some() {
            return Err(format!("{tablet} has a server or a leader twice: {pb:?}"));
        }
    }
    if !pb.deprecated_replicas.is_empty() {
        return Err(format!("{tablet} has replicas in the form that was not asked for: {pb:?}"));
    }
    Ok(Located { tablet, voters, leader })
}

#[cfg(test)]
mod tests {
    use nyala_common::wire::schema::id_bytes;
    use nyala_proto::kudu::master::tablet_locations_pb::InternedReplicaPb;

    use super::*;

    #[test]
    fn learners_and_second_leaders_are_rejected() {
        let servers = [Uuid([1; 16]), Uuid([2; 16])];
        let info = |id: &Uuid| TsInfoPb { permanent_uuid: id_bytes(id), ..TsInfoPb::default() };
        let infos: Vec<TsInfoPb> = servers.iter().map(info).collect();
        let check = |roles: [Role; 2]| {
            let replica = |(at, role): (usize, Role)| InternedReplicaPb {
                ts_info_idx: at as u32,
                role: role as i32,
                dimension_label: None,
            };
            let pb = TabletLocationsPb {
                tablet_id: id_bytes(&Uuid([7; 16])),
                interned_replicas: roles.into_iter().enumerate().map(replica).collect(),
                ..TabletLocationsPb::default()
            };
            located(&pb, &infos).map(|located| (located.voters.len(), located.leader))
        };
        assert_eq!(check([Role::Follower, Role::Leader]), Ok((2, Some(servers[1]))));
        assert!(check([Role::Leader, Role::Learner]).is_err() && check([Role::Leader; 2]).is_err());
        assert!(check([Role::NonParticipant, Role::Follower]).is_err());
    }
}
