//! Servers of a quiet cluster are listed as they are: masters list each tablet server that runs with its start and its
//! registration, and each master that runs without an error. One master leads, and tells the cluster that clients learn
//! as they connect.

use std::collections::BTreeSet;

use nyala_proto::kudu::{NodeInstancePb, ServerRegistrationPb};

use super::Violation;

/// Name of this oracle.
pub const NAME: &str = "registrations";

/// Identity and addresses of a server since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registration {
    /// Id of the server.
    pub id: String,
    /// Number of its start.
    pub start: i64,
    /// Addresses, version, start time and format levels.
    pub text: String,
}

/// A tablet server as masters list it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedTserver {
    pub registration: Registration,
    /// True if the entry has the state for maintenance.
    pub has_state: bool,
}

/// A master as the leading one lists it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedMaster {
    pub registration: Registration,
    pub leads: bool,
    pub cluster: Option<String>,
    pub error: Option<String>,
}

/// Masters as the leading one lists them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MasterList {
    pub masters: Vec<ListedMaster>,
    /// Cluster that the leader tells clients which connect; `None` if it did not reply, or leads no more.
    pub cluster: Option<String>,
}

impl Registration {
    /// Returns what a server says of itself, or masters of it.
    pub fn of(instance: &NodeInstancePb, registration: Option<&ServerRegistrationPb>) -> Registration {
        Registration {
            id: String::from_utf8_lossy(&instance.permanent_uuid).into_owned(),
            start: instance.instance_seqno,
            text: registration.map(|registration| format!("{registration:?}")).unwrap_or_default(),
        }
    }
}

/// Reports tablet servers that run and are not listed as they have registered, and states that were not asked for.
pub fn check_tservers(listed: &[ListedTserver], running: &[Registration]) -> Vec<Violation> {
    let unlike = running.iter().filter_map(|own| {
        let told = listed.iter().map(|server| &server.registration);
        difference(own, &told.filter(|told| told.id == own.id).collect::<Vec<_>>())
    });
    let with_state = listed.iter().filter(|server| server.has_state);
    let with_state = with_state.map(|server| format!("a state was not asked for: {server:?}"));
    let what = unlike.chain(with_state);
    what.map(|what| Violation::new(NAME, format!("list of tablet servers: {what}"))).collect()
}

fn difference(own: &Registration, told: &[&Registration]) -> Option<String> {
    (told != [own]).then(|| format!("a server runs as {own:?} and is listed as {told:?}"))
}

/// Reports a list without exactly one leader, masters that run and are not listed as they are, and several clusters.
/// A master that is not listed may have been removed, or replaced after the loss of its disk.
pub fn check_masters(list: &MasterList, running: &[Registration]) -> Vec<Violation> {
    let masters = &list.masters;
    let mut faults: Vec<String> = running.iter().filter_map(|own| master_fault(masters, own)).collect();
    let leaders = masters.iter().filter(|master| master.leads);
    if leaders.count() != 1 {
        faults.push(format!("not one master leads: {masters:?}"));
    }
    let told: BTreeSet<&String> = masters.iter().filter_map(|master| master.cluster.as_ref()).collect();
    if list.cluster.as_ref().is_some_and(|cluster| told != BTreeSet::from([cluster])) {
        let cluster = &list.cluster;
        faults.push(format!("its leader tells clients the cluster {cluster:?}, and masters {told:?}"));
    }
    faults.into_iter().map(|what| Violation::new(NAME, format!("list of masters: {what}"))).collect()
}

fn master_fault(masters: &[ListedMaster], own: &Registration) -> Option<String> {
    let found: Vec<&ListedMaster> = masters.iter().filter(|told| told.registration.id == own.id).collect();
    match found[..] {
        [] => None,
        [told] if told.error.is_none() && told.registration == *own => None,
        _ => Some(format!("a master runs as {own:?} and is listed as {found:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(id: &str) -> Registration {
        Registration { id: id.to_string(), start: 7, text: format!("{id}:1") }
    }

    #[test]
    fn tablet_servers_are_listed_as_they_registered() {
        let found = |change: fn(&mut Vec<ListedTserver>)| {
            let entry = |id| ListedTserver { registration: server(id), has_state: false };
            let mut listed = vec![entry("a"), entry("gone")];
            change(&mut listed);
            check_tservers(&listed, &[server("a")]).len()
        };
        assert_eq!(found(|_| {}), 0);
        assert_eq!(found(|listed| listed[0].registration.start = 6), 1);
        assert_eq!(found(|listed| listed[0].registration.text.clear()), 1);
        assert_eq!(found(|listed| listed.push(listed[0].clone())), 1);
        assert_eq!(found(|listed| listed.clear()), 1);
        assert_eq!(found(|listed| listed[1].has_state = true), 1);
        assert_eq!(found(|listed| listed[1].registration.start = 6), 0, "it does not run");
    }

    #[test]
    fn masters_are_listed_as_they_are_and_one_leads() {
        let found = |change: fn(&mut MasterList)| {
            let entry = |id| ListedMaster { registration: server(id), ..ListedMaster::default() };
            let cluster = Some("c".to_string());
            let leader = ListedMaster { leads: true, cluster: cluster.clone(), ..entry("a") };
            let mut list = MasterList { masters: vec![leader, entry("b")], cluster };
            change(&mut list);
            check_masters(&list, &[server("a"), server("b")]).len()
        };
        assert_eq!(found(|_| {}), 0);
        assert_eq!(found(|list| drop(list.masters.pop())), 0, "it was removed");
        assert_eq!(found(|list| list.masters[1].error = Some("timed out".to_string())), 1);
        assert_eq!(found(|list| list.masters[1].registration.start = 6), 1);
        assert_eq!(found(|list| list.masters.push(list.masters[1].clone())), 1);
        assert_eq!(found(|list| list.masters[0].leads = false), 1);
        assert_eq!(found(|list| list.masters[1].leads = true), 1);
        assert_eq!(found(|list| list.masters[1].cluster = Some("d".to_string())), 1);
        assert_eq!(found(|list| list.masters[0].cluster = None), 1);
        assert_eq!(found(|list| list.cluster = None), 0, "it did not reply");
    }
}
