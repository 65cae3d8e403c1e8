//! Lists of a quiet cluster: a tablet server lists each replica that runs there, with its role and its size, and
//! masters list each tablet server that runs, at its address and with a recent heartbeat.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Violation;

const NAME: &str = "server lists";

/// A replica as its server lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldReplica {
    /// Bytes on disk.
    pub bytes: Option<u64>,
    pub runs: bool,
    pub leads: bool,
}

/// Replicas that servers list, by host and tablet. A server that did not reply has no list.
pub type ServerLists = BTreeMap<String, BTreeMap<String, ToldReplica>>;

/// A tablet server as masters list it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldServer {
    pub host: String,
    /// Time since its last heartbeat.
    pub silent_for: Duration,
}

/// Tablet servers that masters list, by id.
pub type ToldServers = BTreeMap<String, ToldServer>;

/// A tablet server that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningHost {
    pub host: String,
    pub id: String,
    /// True for replicas that lead, by tablet.
    pub replicas: BTreeMap<String, bool>,
}

/// Returns the sizes that servers list, by host and tablet.
pub fn sizes(lists: &ServerLists) -> BTreeMap<(String, String), u64> {
    let each = lists.iter().flat_map(|(host, tablets)| tablets.iter().map(move |of| (host, of)));
    let sizes = each.filter_map(|(host, (tablet, told))| Some(((host.clone(), tablet.clone()), told.bytes?)));
    sizes.collect()
}

/// Reports replicas that their servers do not list as they are. `must_reply`: true if no call to a server that runs
/// may be without a reply.
pub fn check_replicas(lists: &ServerLists, running: &[RunningHost], must_reply: bool) -> Vec<Violation> {
    running.iter().flat_map(|server| list_faults(lists, server, must_reply)).collect()
}

fn list_faults(lists: &ServerLists, server: &RunningHost, must_reply: bool) -> Vec<Violation> {
    let host = &server.host;
    let Some(list) = lists.get(host) else {
        let silent = must_reply.then(|| Violation::new(NAME, format!("{host} runs and lists no tablets")));
        return silent.into_iter().collect();
    };
    let differs = server.replicas.iter().filter_map(|(tablet, leads)| {
        let told = list.get(tablet);
        let is_right = told.is_some_and(|told| told.runs && told.leads == *leads && told.bytes.is_some());
        let what = || format!("tablet {tablet} runs at {host}, leads: {leads}, and is listed as {told:?}");
        (!is_right).then(what)
    });
    differs.map(|what| Violation::new(NAME, what)).collect()
}

/// Reports tablet servers that masters do not list as they are. `silence_max`: longest time between two heartbeats.
pub fn check_servers(told: &ToldServers, running: &[RunningHost], silence_max: Duration) -> Vec<Violation> {
    let differs = running.iter().filter_map(|server| {
        let RunningHost { host, id, .. } = server;
        let told = told.get(id);
        let is_right = told.is_some_and(|told| told.host == *host && told.silent_for <= silence_max);
        (!is_right).then(|| format!("{host} runs as {id}, and masters list it as {told:?}"))
    });
    differs.map(|what| Violation::new(NAME, what)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running() -> RunningHost {
        let replicas = BTreeMap::from([("a".to_string(), true), ("b".to_string(), false)]);
        RunningHost { host: "t0".to_string(), id: "0f".to_string(), replicas }
    }

    fn told(leads: bool) -> ToldReplica {
        ToldReplica { bytes: Some(7), runs: true, leads }
    }

    fn found(tablet: &str, told_instead: Option<ToldReplica>) -> usize {
        let mut list = BTreeMap::from([("a".to_string(), told(true)), ("b".to_string(), told(false))]);
        list.insert("gone".to_string(), ToldReplica { bytes: None, runs: false, leads: false });
        list.remove(tablet);
        list.extend(told_instead.map(|told| (tablet.to_string(), told)));
        check_replicas(&ServerLists::from([("t0".to_string(), list)]), &[running()], true).len()
    }

    #[test]
    fn a_replica_that_is_not_listed_as_it_is_is_reported() {
        assert_eq!(found("a", Some(told(true))) + found("gone", None), 0);
        assert_eq!(found("b", None), 1);
        let stopped = ToldReplica { runs: false, ..told(true) };
        let without_size = ToldReplica { bytes: None, ..told(true) };
        for wrong in [told(false), stopped, without_size] {
            assert_eq!(found("a", Some(wrong)), 1);
        }
    }

    #[test]
    fn a_server_without_a_list_is_reported_if_all_calls_have_replies() {
        let none = ServerLists::new();
        assert_eq!(check_replicas(&none, &[running()], true).len(), 1);
        assert_eq!(check_replicas(&none, &[running()], false), []);
        assert_eq!(check_replicas(&none, &[], true), []);
    }

    #[test]
    fn sizes_are_those_of_the_lists() {
        let without = ToldReplica { bytes: None, ..told(false) };
        let list = BTreeMap::from([("a".to_string(), told(false)), ("b".to_string(), without)]);
        let wanted = BTreeMap::from([(("t0".to_string(), "a".to_string()), 7)]);
        assert_eq!(sizes(&ServerLists::from([("t0".to_string(), list)])), wanted);
    }

    #[test]
    fn a_server_that_masters_do_not_list_as_it_is_is_reported() {
        let found = |id: &str, host: &str, silent: u64| {
            let told = ToldServer { host: host.to_string(), silent_for: Duration::from_secs(silent) };
            let told = ToldServers::from([(id.to_string(), told)]);
            check_servers(&told, &[running()], Duration::from_secs(5)).len()
        };
        assert_eq!(found("0f", "t0", 5), 0);
        assert_eq!((found("0e", "t0", 1), found("0f", "t1", 1), found("0f", "t0", 6)), (1, 1, 1));
    }
}
