//! Registrations: what lists of masters and of tablet servers say about each of them.
//!
//! - A list of masters has each master of the configuration once, with its address, its id and the cluster's id. Once
//!   nothing has disturbed masters for some time, each replies, and one of them leads at most.
//! - The entry of a tablet server is what one of its lives has registered, and has a state only if the request asks.

use std::collections::BTreeSet;

use engine::ids::Uuid;
use engine::time::Instant;
use nyala_proto::kudu::ServerEntryPb;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::master::list_tablet_servers_response_pb::Entry;
use nyala_proto::kudu::master::{ListMastersRequestPb, ListMastersResponsePb};

use super::script::{Answer, Script};
use super::server;
use super::settings::{MASTERS, SETTLED, TRUSTED, master_address};
use super::state::State;

/// Lists in a row that have two leaders, which no change of leadership explains.
const DOUBLED_MAX: u32 = 2;

impl Script {
    /// Lists the masters.
    pub(super) async fn list_masters(&mut self) -> Result<(), String> {
        let began = self.links.now();
        let answer: Answer<ListMastersResponsePb> =
            self.ask(TRUSTED, "ListMasters", &ListMastersRequestPb {}).await;
        let reply = match answer {
            Answer::Done { reply, .. } => reply,
            Answer::Refused { error, .. } => return Err(format!("ListMasters: {error:?}")),
            Answer::NotNow | Answer::Unknown => return Ok(()),
        };
        // A master that has started or lost its leadership needs some time.
        let earlier = Instant(began.0.saturating_sub(SETTLED.as_nanos() as u64));
        let leaders = {
            let mut state = self.state.lock();
            let calm = state.is_settled(earlier) && self.transferred < earlier;
            let leaders = check_masters(&mut state, &reply.masters, calm)?;
            if calm { leaders } else { 0 }
        };
        self.doubled = if leaders > 1 { self.doubled + 1 } else { 0 };
        match self.doubled < DOUBLED_MAX {
            true => Ok(()),
            false => Err(format!("{leaders} masters lead: {:?}", reply.masters)),
        }
    }
}

/// Checks a list of masters; returns the number of those that lead. Calm masters all reply.
fn check_masters(state: &mut State, entries: &[ServerEntryPb], calm: bool) -> Result<usize, String> {
    let mut ids = BTreeSet::new();
    for entry in entries {
        let registered = entry.registration.iter().flat_map(|registration| &registration.rpc_addresses);
        let at: Vec<String> = registered.map(|at| format!("{}:{}", at.host, at.port)).collect();
        let number = (0..MASTERS).find(|number| at == [master_address(*number)]);
        let number = number.ok_or_else(|| format!("no master is at {at:?}: {entry:?}"))?;
        let id = entry.instance_id.as_ref().map(|of| of.permanent_uuid.clone()).unwrap_or_default();
        if *state.masters[number].id.get_or_insert_with(|| id.clone()) != id || !ids.insert(id) {
            return Err(format!("master {number} has another id, or that of another: {entry:?}"));
        }
        if let Some(cluster) = &entry.cluster_id
            && *state.cluster.get_or_insert_with(|| cluster.clone()) != *cluster
        {
            return Err(format!("the cluster is {:?}, not that of {entry:?}", state.cluster));
        }
        let is_voter = entry.role == Some(Role::Leader as i32) || entry.role == Some(Role::Follower as i32);
        if calm && (entry.error.is_some() || !is_voter) {
            return Err(format!("master {number} is settled, and is listed as {entry:?}"));
        }
    }
    match ids.len() == MASTERS {
        true => Ok(entries.iter().filter(|entry| entry.role == Some(Role::Leader as i32)).count()),
        false => Err(format!("{} masters are listed: {entries:?}", ids.len())),
    }
}

/// Checks the registration of a tablet server in a list, with states or without.
pub(super) fn check_entry(state: &State, entry: &Entry, id: Uuid, states: bool) -> Result<(), String> {
    let Some(server) = state.servers.iter().find(|server| server.has_had(id)) else {
        return Err(format!("there is no server {id}: {entry:?}"));
    };
    if entry.state.is_some() != states {
        return Err(format!("the list has states: {states}, and {id} is {entry:?}"));
    }
    let life = entry.instance_id.instance_seqno;
    let Some(registration) = &entry.registration else {
        // One in maintenance mode that the master does not know.
        return if states && life == 0 {
            Ok(())
        } else {
            Err(format!("{id} has no registration: {entry:?}"))
        };
    };
    let wanted = server::registration(server.number, life);
    match (1..=server.life).contains(&life) && *registration == wanted {
        true => Ok(()),
        false => Err(format!("{id}, in life {}, is {entry:?}, not {wanted:?}", server.life)),
    }
}

#[cfg(test)]
mod tests {
    use nyala_proto::kudu::master::TServerStatePb;
    use nyala_proto::kudu::{AppStatusPb, HostPortPb, NodeInstancePb, ServerRegistrationPb};
    use sim_plan::RandomStream;

    use super::*;

    fn state() -> State {
        State::new(RandomStream::new(1, "registrations"), None)
    }

    fn master(number: usize, id: &'static str, role: Role) -> ServerEntryPb {
        let address = master_address(number);
        let (host, port) = address.split_once(':').expect("an address has a port");
        let at = HostPortPb { host: host.to_string(), port: port.parse().expect("a port") };
        ServerEntryPb {
            instance_id: Some(NodeInstancePb { permanent_uuid: id.into(), instance_seqno: 5 }),
            registration: Some(ServerRegistrationPb { rpc_addresses: vec![at], ..Default::default() }),
            role: Some(role as i32),
            cluster_id: Some("c".to_string()),
            ..ServerEntryPb::default()
        }
    }

    fn all() -> Vec<ServerEntryPb> {
        let role = |number| if number == 0 { Role::Leader } else { Role::Follower };
        ["a", "b", "c"].into_iter().enumerate().map(|(number, id)| master(number, id, role(number))).collect()
    }

    #[test]
    fn each_master_is_listed_once_by_its_address_and_its_id() {
        let mut known = state();
        assert_eq!(check_masters(&mut known, &all(), true), Ok(1));
        let mut check = |change: &dyn Fn(&mut Vec<ServerEntryPb>), calm| {
            let mut list = all();
            change(&mut list);
            check_masters(&mut known, &list, calm).ok()
        };
        assert_eq!(check(&|list| list[1].role = Some(Role::Leader as i32), true), Some(2));
        assert_eq!(check(&|list| drop(list.pop()), false), None);
        assert_eq!(check(&|list| list[2] = list[1].clone(), false), None);
        assert_eq!(check(&|list| list[2] = master(2, "d", Role::Follower), false), None);
        assert_eq!(check(&|list| list[2] = master(1, "c", Role::Follower), false), None);
        assert_eq!(check(&|list| list[2].cluster_id = Some("d".to_string()), false), None);
        let error = |list: &mut Vec<ServerEntryPb>| {
            (list[2].error, list[2].role) = (Some(AppStatusPb::default()), None);
        };
        assert_eq!((check(&error, false), check(&error, true)), (Some(1), None));
    }

    #[test]
    fn a_server_is_listed_as_one_of_its_lives_has_registered() {
        let mut known = state();
        known.servers[2].life = 3;
        let id = known.servers[2].id();
        let entry = |life, state: Option<TServerStatePb>| Entry {
            instance_id: NodeInstancePb { permanent_uuid: id.to_string().into(), instance_seqno: life },
            registration: Some(server::registration(2, life)),
            state: state.map(|state| state as i32),
            ..Entry::default()
        };
        let check = |entry: &Entry, states| check_entry(&known, entry, id, states).is_ok();
        assert!(check(&entry(2, None), false) && check(&entry(3, Some(TServerStatePb::None)), true));
        assert!(!check(&entry(4, None), false), "it has not begun");
        assert!(!check(&entry(2, None), true) && !check(&entry(2, Some(TServerStatePb::None)), false));
        let older = Entry { registration: Some(server::registration(2, 1)), ..entry(2, None) };
        assert!(!check(&older, false));
        let unknown =
            |life| Entry { registration: None, ..entry(life, Some(TServerStatePb::MaintenanceMode)) };
        assert!(check(&unknown(0), true) && !check(&unknown(2), true));
    }
}
