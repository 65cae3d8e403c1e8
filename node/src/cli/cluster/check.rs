//! `nyala cluster check`: the health of masters, tablet servers, tablets and tables.
//!
//! ```text
//! tablet   UNAVAILABLE         no majority runs, or there is no leader: writes wait
//!          CONSENSUS_MISMATCH  replicas or masters know another configuration or leader
//!          UNDER_REPLICATED    fewer replicas run than wanted
//!          RECOVERING          the same, and a new replica is on its way
//!          HEALTHY
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use engine::ids::{OpId, PeerId, TabletId};
use nyala_client::replica_admin::TabletReplicas;
use serde::Serialize;

use super::maintenance_check;
use super::observe::{Observation, ObservedServer, ObservedTable, VoterState};
use crate::cli::output::table as text_table;

/// Health of a tablet, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum TabletHealth {
    Healthy,
    Recovering,
    UnderReplicated,
    ConsensusMismatch,
    Unavailable,
}

const HEALTHS: [(TabletHealth, &str); 5] = [
    (TabletHealth::Healthy, "HEALTHY"),
    (TabletHealth::Recovering, "RECOVERING"),
    (TabletHealth::UnderReplicated, "UNDER_REPLICATED"),
    (TabletHealth::ConsensusMismatch, "CONSENSUS_MISMATCH"),
    (TabletHealth::Unavailable, "UNAVAILABLE"),
];

impl TabletHealth {
    fn name(self) -> &'static str {
        HEALTHS.iter().find(|(health, _)| *health == self).map_or("", |(_, name)| name)
    }
}

#[derive(Debug, Serialize)]
pub(super) struct CheckedServer {
    id: String,
    address: String,
    state: String,
    version: String,
    replicas: usize,
    leaders: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct CheckedReplica {
    server: String,
    address: String,
    state: String,
    role: &'static str,
    term: Option<i64>,
    /// Last operation of the log, as term and index; only of a running voter of a tablet without a majority.
    last_op: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct CheckedTablet {
    id: String,
    health: TabletHealth,
    reason: String,
    replicas: Vec<CheckedReplica>,
}

#[derive(Debug, Serialize)]
pub(super) struct CheckedTable {
    name: String,
    replicas: usize,
    health: TabletHealth,
    tablets: usize,
    /// Tablets that are not healthy.
    unhealthy: Vec<CheckedTablet>,
}

/// Result of a check. Errors make the command fail, warnings do not.
#[derive(Debug, Serialize)]
pub(super) struct ClusterReport {
    masters: Vec<CheckedServer>,
    tablet_servers: Vec<CheckedServer>,
    tables: Vec<CheckedTable>,
    pub errors: Vec<String>,
    warnings: Vec<String>,
}

/// Evaluates an observation. That the servers of `known_down` do not reply is a warning.
pub(super) fn check(seen: &Observation, known_down: &BTreeSet<PeerId>) -> ClusterReport {
    let mut report = ClusterReport {
        masters: Vec::new(),
        tablet_servers: Vec::new(),
        tables: seen.tables.iter().map(|table| check_table(seen, table)).collect(),
        errors: Vec::new(),
        warnings: Vec::new(),
    };
    check_masters(seen, &mut report);
    check_unlisted_masters(seen, &mut report);
    check_servers(seen, known_down, &mut report);
    check_versions(seen, &mut report);
    check_strays(seen, &mut report);
    report.warnings.extend(maintenance_check::warnings(seen));
    for table in &report.tables {
        if let Some(worst) = table.unhealthy.iter().max_by_key(|tablet| tablet.health) {
            let (bad, all) = (table.unhealthy.len(), table.tablets);
            let (name, worst) = (&table.name, worst.health.name());
            report
                .errors
                .push(format!("table {name}: {bad} of {all} tablets are not healthy (worst {worst})"));
        }
    }
    report
}

fn check_masters(seen: &Observation, report: &mut ClusterReport) {
    for (master, status) in &seen.masters {
        let id = master.id.map_or_else(|| "?".to_string(), |id| id.to_string());
        let state = match status {
            Err(_) => "UNREACHABLE",
            Ok(_) if master.leader => "LEADER",
            Ok(_) if master.voter => "FOLLOWER",
            Ok(_) => "LEARNER",
        };
        match status {
            Err(error) => report.errors.push(format!("master {id} {}: no reply ({error})", master.address)),
            Ok(_) if !master.voter => report.errors.push(format!(
                "master {id} {}: it has no vote; a new master gets one when it has caught up",
                master.address
            )),
            Ok(_) => {}
        }
        let version = status.as_ref().map(|status| status.version.clone()).unwrap_or_default();
        let (address, state) = (master.address.clone(), state.to_string());
        report.masters.push(CheckedServer { id, address, state, version, replicas: 0, leaders: 0 });
    }
    if !seen.masters.iter().any(|(master, _)| master.leader) {
        report.errors.push("masters: none leads".to_string());
    }
    if seen.masters.len().is_multiple_of(2) {
        let masters = seen.masters.len();
        let hint = "an even number survives no more failures than one less";
        report.warnings.push(format!("masters: {masters} in number; {hint}"));
    }
}

/// Finds masters that the command line names and the leader does not list.
fn check_unlisted_masters(seen: &Observation, report: &mut ClusterReport) {
    for (address, status) in &seen.unlisted_masters {
        report.errors.push(match status {
            Ok(status) => format!(
                "master {} {address}: it is not one of the masters that the leader lists; leave it out of --masters, \
                 or start it with empty directories: it joins",
                status.id
            ),
            Err(error) => format!(
                "master {address}: it is not one of the masters that the leader lists, and gives no reply ({error})"
            ),
        });
    }
}

/// Age of the last heartbeat, sent once a second, from which masters do without a server.
const HEARTBEAT_AGE_MAX: Duration = Duration::from_secs(15);

fn is_silent(server: &ObservedServer) -> bool {
    server.info.silent_for > HEARTBEAT_AGE_MAX
}

fn check_servers(seen: &Observation, known_down: &BTreeSet<PeerId>, report: &mut ClusterReport) {
    for server in &seen.servers {
        let (id, address) = (server.info.id, server.address());
        let quiescing = server.quiescing.is_some_and(|status| status.quiescing);
        let state = match &server.status {
            Err(_) => "UNREACHABLE",
            Ok(status) if status.id != id => "OTHER SERVER",
            Ok(_) if is_silent(server) => "NO HEARTBEAT",
            Ok(_) if server.info.maintenance => "MAINTENANCE",
            Ok(_) if quiescing => "QUIESCING",
            Ok(_) => "HEALTHY",
        };
        match &server.status {
            Err(_) if known_down.contains(&id) => {
                let name = server.name();
                report.warnings.push(format!("tablet server {name}: down, as the command line says"));
            }
            Err(error) => report.errors.push(format!("tablet server {}: no reply ({error})", server.name())),
            Ok(status) if status.id != id => {
                let other = status.id;
                report.errors.push(format!("tablet server {id} {address}: another server replies ({other})"));
            }
            Ok(_) if is_silent(server) => report.errors.push(format!(
                "tablet server {id} {address}: replies, but the masters have had no heartbeat for {} s: they refuse it \
                 or it does not reach them (its log and the masters' /readyz say why)",
                server.info.silent_for.as_secs()
            )),
            Ok(_) => {}
        }
        for replica in server.replicas.values().filter(|replica| replica.state == "FAILED") {
            let (tablet, why) = (replica.tablet, &replica.message);
            report.errors.push(format!("tablet server {id} {address}: tablet {tablet} failed ({why})"));
        }
        report.tablet_servers.push(CheckedServer {
            id: id.to_string(),
            address,
            state: state.to_string(),
            version: server.status.as_ref().map(|status| status.version.clone()).unwrap_or_default(),
            replicas: server.count_replicas(),
            leaders: server.quiescing.map_or(0, |status| status.leaders),
        });
    }
    if seen.servers.is_empty() {
        report.errors.push("tablet servers: none is registered".to_string());
    }
}

fn check_versions(seen: &Observation, report: &mut ClusterReport) {
    let of_masters = seen.masters.iter().map(|(_, status)| status);
    let all = of_masters.chain(seen.servers.iter().map(|server| &server.status));
    let versions: BTreeSet<&str> = all.flatten().map(|status| status.version.as_str()).collect();
    if versions.len() > 1 {
        let versions: Vec<&str> = versions.into_iter().collect();
        report.warnings.push(format!("versions differ: {}", versions.join(", ")));
    }
}

/// Finds replicas of tablets that the masters do not know.
fn check_strays(seen: &Observation, report: &mut ClusterReport) {
    let known: BTreeSet<TabletId> =
        seen.tables.iter().flat_map(|table| &table.tablets).map(|tablet| tablet.id).collect();
    for server in &seen.servers {
        let stray = |tablet: &&TabletId| !known.contains(tablet) && !server.replicas[*tablet].tombstoned;
        let strays = server.replicas.keys().filter(stray).count();
        if strays > 0 {
            let (id, address) = (server.info.id, server.address());
            report.warnings.push(format!(
                "tablet server {id} {address}: {strays} replicas of dropped or unknown tablets"
            ));
        }
    }
}

fn check_table(seen: &Observation, table: &ObservedTable) -> CheckedTable {
    let checked = table.tablets.iter().map(|tablet| check_tablet(seen, table.wanted, tablet));
    let unhealthy: Vec<CheckedTablet> =
        checked.filter(|tablet| tablet.health != TabletHealth::Healthy).collect();
    let health = unhealthy.iter().map(|tablet| tablet.health).max().unwrap_or(TabletHealth::Healthy);
    let (name, replicas, tablets) = (table.name.clone(), table.wanted, table.tablets.len());
    CheckedTable { name, replicas, health, tablets, unhealthy }
}

fn check_tablet(seen: &Observation, wanted: usize, tablet: &TabletReplicas) -> CheckedTablet {
    let replica = |replica: &nyala_client::replica_admin::ReplicaInfo| {
        let server = seen.server(replica.server);
        let raft = server.and_then(|server| server.raft.get(&tablet.id));
        let local = server.and_then(|server| server.replicas.get(&tablet.id));
        let replies = server.is_some_and(|server| server.status.is_ok());
        let state = match local {
            Some(local) => local.state,
            None if replies => "MISSING",
            None => "UNREACHABLE",
        };
        let leads = raft.is_some_and(|raft| raft.leader == Some(replica.server));
        CheckedReplica {
            server: replica.server.to_string(),
            address: replica.address.clone(),
            state: state.to_string(),
            role: if leads {
                "LEADER"
            } else if replica.voter {
                "VOTER"
            } else {
                "LEARNER"
            },
            term: raft.map(|raft| raft.term),
            last_op: seen.last_ops.get(&(tablet.id, replica.server)).map(OpId::to_string),
        }
    };
    let (health, reason) = health_of(seen, wanted, tablet);
    let replicas = tablet.replicas.iter().map(replica).collect();
    CheckedTablet { id: tablet.id.to_string(), health, reason, replicas }
}

fn health_of(seen: &Observation, wanted: usize, tablet: &TabletReplicas) -> (TabletHealth, String) {
    let observed = seen.voters(tablet);
    if !observed.has_majority() {
        return (TabletHealth::Unavailable, observed.to_string());
    }
    let VoterState { all: voters, running } = observed;
    let raft = |server: PeerId| seen.server(server).and_then(|server| server.raft.get(&tablet.id));
    let leads = |server: &PeerId| raft(*server).is_some_and(|state| state.leader == Some(*server));
    let newest =
        running.iter().copied().filter(leads).max_by_key(|server| raft(*server).map(|state| state.term));
    let Some(leader) = newest.and_then(raft) else {
        return (TabletHealth::Unavailable, "no running voter leads".to_string());
    };
    let differs = |server: &&PeerId| {
        raft(**server).is_none_or(|state| state.leader != leader.leader || state.voters != leader.voters)
    };
    if let Some(server) = running.iter().find(differs) {
        return (TabletHealth::ConsensusMismatch, format!("server {server} knows another leader or voters"));
    }
    if leader.voters != voters {
        return (
            TabletHealth::ConsensusMismatch,
            "the masters know other voters than the leader".to_string(),
        );
    }
    if running.len() == wanted && voters.len() == wanted {
        return (TabletHealth::Healthy, String::new());
    }
    let text = format!("{} replicas run (wanted {wanted})", running.len());
    let recovering = !leader.learners.is_empty() || leader.pending || voters.len() > wanted;
    (if recovering { TabletHealth::Recovering } else { TabletHealth::UnderReplicated }, text)
}

impl ClusterReport {
    pub(super) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("the report holds only what JSON can write") + "\n"
    }

    pub(super) fn to_text(&self) -> String {
        let servers = |list: &[CheckedServer]| {
            let row = |server: &CheckedServer| {
                let CheckedServer { id, address, state, version, replicas, leaders } = server;
                let (id, address) = (id.clone(), address.clone());
                vec![id, address, state.clone(), version.clone(), replicas.to_string(), leaders.to_string()]
            };
            list.iter().map(row).collect::<Vec<_>>()
        };
        let masters = servers(&self.masters).into_iter().map(|mut row| {
            row.truncate(4);
            row
        });
        let mut text = text_table(&["master", "address", "state", "version"], masters);
        let header = ["tablet server", "address", "state", "version", "replicas>", "leaders>"];
        text.push_str(&format!("\n{}", text_table(&header, servers(&self.tablet_servers))));
        let row = |table: &CheckedTable| {
            let healthy = table.tablets - table.unhealthy.len();
            let (name, health) = (table.name.clone(), table.health.name().to_string());
            vec![name, health, table.replicas.to_string(), table.tablets.to_string(), healthy.to_string()]
        };
        if !self.tables.is_empty() {
            let header = ["table", "health", "replicas>", "tablets>", "healthy>"];
            text.push_str(&format!("\n{}", text_table(&header, self.tables.iter().map(row))));
        }
        for table in &self.tables {
            table.unhealthy.iter().for_each(|tablet| text.push_str(&tablet_text(&table.name, tablet)));
        }
        text.push('\n');
        self.warnings.iter().for_each(|warning| text.push_str(&format!("warning: {warning}\n")));
        self.errors.iter().for_each(|error| text.push_str(&format!("error: {error}\n")));
        if self.errors.is_empty() {
            text.push_str("OK\n");
        }
        text
    }

    /// Returns the number of tablets by health.
    #[cfg(test)]
    fn counts(&self) -> std::collections::BTreeMap<&'static str, usize> {
        let mut counts = std::collections::BTreeMap::new();
        for tablet in self.tables.iter().flat_map(|table| &table.unhealthy) {
            *counts.entry(tablet.health.name()).or_default() += 1;
        }
        counts
    }
}

fn tablet_text(table: &str, tablet: &CheckedTablet) -> String {
    let CheckedTablet { id, health, reason, replicas } = tablet;
    let mut text = format!("\ntablet {id} of table {table}: {} ({reason})\n", health.name());
    for CheckedReplica { server, address, state, role, term, last_op } in replicas {
        let term = term.map_or_else(String::new, |term| format!(", term {term}"));
        let last = last_op.as_ref().map_or_else(String::new, |last| format!(", last operation {last}"));
        text.push_str(&format!("  {server} {address}: {state}, {role}{term}{last}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use engine::ids::Uuid;
    use nyala_client::cluster_admin::{MasterInfo, QuiescingStatus, RaftState, ServerStatus};

    use super::*;
    use crate::cli::cluster::observed_cluster::{TABLET, id, replicas, server, status, table};

    /// Three servers with one tablet, led by the first.
    fn healthy() -> Observation {
        let server = |n: u8| {
            let raft = RaftState {
                tablet: TABLET,
                term: 2,
                leader: Some(id(1)),
                config_index: 1,
                pending: false,
                voters: vec![id(1), id(2), id(3)],
                learners: Vec::new(),
            };
            let leaders = u64::from(n == 1);
            ObservedServer {
                quiescing: Some(QuiescingStatus { quiescing: false, leaders, scanners: 0 }),
                replicas: replicas(),
                raft: BTreeMap::from([(TABLET, raft)]),
                ..server(n)
            }
        };
        let address = "m:7051".to_string();
        let master =
            MasterInfo { id: Some(id(9)), address, https: false, leader: true, voter: true, error: None };
        Observation {
            masters: vec![(master, status(9))],
            unlisted_masters: Vec::new(),
            servers: (1..=3).map(server).collect(),
            tables: vec![table(3, 3)],
            kept: Vec::new(),
            last_ops: BTreeMap::new(),
        }
    }

    #[test]
    fn a_healthy_cluster_is_ok() {
        insta::assert_snapshot!(check(&healthy(), &BTreeSet::new()).to_text(), @r#"
         master                            address  state   version
         09090909090909090909090909090909  m:7051   LEADER  nyala 1

         tablet server                     address    state    version  replicas  leaders
         01010101010101010101010101010101  ts-1:7050  HEALTHY  nyala 1         1        1
         02020202020202020202020202020202  ts-2:7050  HEALTHY  nyala 1         1        0
         03030303030303030303030303030303  ts-3:7050  HEALTHY  nyala 1         1        0

         table  health   replicas  tablets  healthy
         t      HEALTHY         3        1        1

        OK
        "#);
    }

    #[test]
    fn a_server_that_masters_do_not_hear_is_an_error() {
        let mut silent = healthy();
        silent.servers[1].info.silent_for = Duration::from_secs(16);
        let report = check(&silent, &BTreeSet::new());
        assert_eq!(report.tablet_servers[1].state, "NO HEARTBEAT");
        let [error] = &report.errors[..] else { panic!("{:?}", report.errors) };
        assert!(
            error.contains("ts-2:7050: replies, but the masters have had no heartbeat for 16 s"),
            "{error}"
        );
        silent.servers[1].info.silent_for = HEARTBEAT_AGE_MAX;
        assert!(check(&silent, &BTreeSet::new()).errors.is_empty());
    }

    #[test]
    fn masters_without_a_vote_and_masters_that_are_not_listed_are_errors() {
        let mut seen = healthy();
        let (leader, status) = seen.masters[0].clone();
        let other = |n: u8, error: Option<&str>| {
            let (address, error) = (format!("m-{n}:7051"), error.map(str::to_string));
            let status = status.clone().map(|status| ServerStatus { id: id(n), ..status });
            let info = MasterInfo { id: Some(id(n)), address, leader: false, voter: false, ..leader.clone() };
            let reply = error.clone().map_or(status, Err);
            (MasterInfo { voter: error.is_some(), error, ..info }, reply)
        };
        seen.masters.extend([other(10, None), other(11, Some("timed out"))]);
        let away = ServerStatus { id: id(12), version: "nyala 1".to_string(), web: Vec::new() };
        seen.unlisted_masters =
            vec![("m-12:7051".to_string(), Ok(away)), ("m-13:7051".to_string(), Err("refused".to_string()))];
        let report = check(&seen, &BTreeSet::new());
        let states: Vec<&str> = report.masters.iter().map(|master| master.state.as_str()).collect();
        assert_eq!(states, ["LEADER", "LEARNER", "UNREACHABLE"]);
        insta::assert_snapshot!(report.errors.join("\n"), @r"
        master 0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a m-10:7051: it has no vote; a new master gets one when it has caught up
        master 0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b m-11:7051: no reply (timed out)
        master 0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c m-12:7051: it is not one of the masters that the leader lists; leave it out of --masters, or start it with empty directories: it joins
        master m-13:7051: it is not one of the masters that the leader lists, and gives no reply (refused)
        ");
    }

    #[test]
    fn each_fault_is_found() {
        let gone = |seen: &mut Observation, n: usize| {
            seen.servers[n].status = Err("timed out".to_string());
            seen.servers[n].replicas.clear();
            seen.servers[n].raft.clear();
        };
        let mut one_down = healthy();
        gone(&mut one_down, 2);
        insta::assert_snapshot!(check(&one_down, &BTreeSet::new()).to_text(), @r#"
         master                            address  state   version
         09090909090909090909090909090909  m:7051   LEADER  nyala 1

         tablet server                     address    state        version  replicas  leaders
         01010101010101010101010101010101  ts-1:7050  HEALTHY      nyala 1         1        1
         02020202020202020202020202020202  ts-2:7050  HEALTHY      nyala 1         1        0
         03030303030303030303030303030303  ts-3:7050  UNREACHABLE                  0        0

         table  health            replicas  tablets  healthy
         t      UNDER_REPLICATED         3        1        0

        tablet eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee of table t: UNDER_REPLICATED (2 replicas run (wanted 3))
          01010101010101010101010101010101 ts-1:7050: RUNNING, LEADER, term 2
          02020202020202020202020202020202 ts-2:7050: RUNNING, VOTER, term 2
          03030303030303030303030303030303 ts-3:7050: UNREACHABLE, VOTER

        error: tablet server 03030303030303030303030303030303 ts-3:7050: no reply (timed out)
        error: table t: 1 of 1 tablets are not healthy (worst UNDER_REPLICATED)
        "#);
        let mut two_down = healthy();
        gone(&mut two_down, 1);
        gone(&mut two_down, 2);
        let known = check(&one_down, &BTreeSet::from([id(3)]));
        assert_eq!((known.errors.len(), known.warnings.len()), (1, 1), "{}", known.to_text());
        assert_eq!(check(&two_down, &BTreeSet::new()).counts(), BTreeMap::from([("UNAVAILABLE", 1)]));
        let mut leaderless = healthy();
        for server in &mut leaderless.servers {
            server.raft.get_mut(&TABLET).expect("it has one").leader = None;
        }
        assert_eq!(check(&leaderless, &BTreeSet::new()).counts(), BTreeMap::from([("UNAVAILABLE", 1)]));
        let mut mismatch = healthy();
        mismatch.servers[2].raft.get_mut(&TABLET).expect("it has one").voters = vec![id(1), id(2)];
        assert_eq!(check(&mismatch, &BTreeSet::new()).counts(), BTreeMap::from([("CONSENSUS_MISMATCH", 1)]));
        let mut behind = healthy();
        behind.tables[0].tablets[0].replicas.pop();
        assert_eq!(check(&behind, &BTreeSet::new()).counts(), BTreeMap::from([("CONSENSUS_MISMATCH", 1)]));
        let mut recovering = healthy();
        gone(&mut recovering, 2);
        for server in &mut recovering.servers[..2] {
            server.raft.get_mut(&TABLET).expect("it has one").learners = vec![id(4)];
        }
        assert_eq!(check(&recovering, &BTreeSet::new()).counts(), BTreeMap::from([("RECOVERING", 1)]));
    }

    /// A cluster with a tablet of each health; of the last two, one has no majority and one no leader.
    fn each_health() -> Observation {
        let tablet = |n: u8| Uuid([0xe0 + n; 16]);
        let mut seen = healthy();
        for server in &mut seen.servers {
            let (replica, raft) = (server.replicas[&TABLET].clone(), server.raft[&TABLET].clone());
            server.replicas = (1..=6).map(|n| (tablet(n), replica.clone())).collect();
            server.raft = (1..=6).map(|n| (tablet(n), raft.clone())).collect();
        }
        let replicas = seen.tables[0].tablets.remove(0).replicas;
        let of = |n: u8| TabletReplicas { id: tablet(n), replicas: replicas.clone() };
        seen.tables[0].tablets = (1..=6).map(of).collect();
        let mut lose = |server: usize, n: u8| {
            let replica = seen.servers[server].replicas.get_mut(&tablet(n)).expect("it has one");
            (replica.state, replica.running) = ("FAILED", false);
        };
        [(2, 2), (2, 3), (0, 5), (1, 5)].into_iter().for_each(|(server, n)| lose(server, n));
        for server in &mut seen.servers {
            server.raft.get_mut(&tablet(2)).expect("it has one").learners = vec![id(4)];
            server.raft.get_mut(&tablet(6)).expect("it has one").leader = None;
        }
        seen.servers[1].raft.get_mut(&tablet(4)).expect("it has one").leader = None;
        seen.last_ops.insert((tablet(5), id(3)), OpId { term: 2, index: 17 });
        seen
    }

    /// Returns tablets and servers that the runbook for a lost majority chooses from the text of a check.
    #[allow(clippy::disallowed_methods, reason = "the runbook's commands read files")]
    fn chosen_by_the_runbook(check: &str) -> String {
        let page = include_str!("../../../RUNBOOKS.md");
        let (_, section) = page.split_once("\n## Lost majority\n").expect("a section");
        let (_, commands) = section.split_once("> check.txt || true\n").expect("the check");
        let (commands, _) = commands.split_once("while read").expect("a loop over what was chosen");
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(dir.path().join("check.txt"), check).expect("an empty directory");
        let ran = std::process::Command::new("sh").args(["-c", commands]).current_dir(dir.path()).output();
        let output = ran.expect("a shell");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        std::fs::read_to_string(dir.path().join("left.txt")).expect("the commands write it")
    }

    #[test]
    fn the_runbook_chooses_only_tablets_without_a_majority() {
        let text = check(&each_health(), &BTreeSet::new()).to_text();
        let tablets: String = text
            .lines()
            .filter(|line| line.starts_with("tablet e"))
            .map(|line| format!("{line}\n"))
            .collect();
        insta::assert_snapshot!(tablets, @r#"
        tablet e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2 of table t: RECOVERING (2 replicas run (wanted 3))
        tablet e3e3e3e3e3e3e3e3e3e3e3e3e3e3e3e3 of table t: UNDER_REPLICATED (2 replicas run (wanted 3))
        tablet e4e4e4e4e4e4e4e4e4e4e4e4e4e4e4e4 of table t: CONSENSUS_MISMATCH (server 02020202020202020202020202020202 knows another leader or voters)
        tablet e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5 of table t: UNAVAILABLE (1 of 3 voters run (majority 2))
        tablet e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6e6 of table t: UNAVAILABLE (no running voter leads)
        "#);
        let left =
            "03030303030303030303030303030303 ts-3:7050: RUNNING, VOTER, term 2, last operation 2.17\n";
        assert!(text.contains(left), "{text}");
        assert_eq!(chosen_by_the_runbook(&text), format!("{} {}\n", Uuid([0xe5; 16]), id(3)));
    }

    #[test]
    fn the_runbook_chooses_by_term_and_then_by_index() {
        let mut text = "tablet t1 of table t: UNAVAILABLE (2 of 5 voters run (majority 3))\n".to_string();
        for (server, term, last) in [("a", 9, "2.100"), ("b", 3, "3.9"), ("c", 3, "3.17"), ("d", 3, "3.2")] {
            text.push_str(&format!(
                "  {server} h:7050: RUNNING, VOTER, term {term}, last operation {last}\n"
            ));
        }
        text.push_str("  e h:7050: RUNNING, LEARNER, term 9\n  f h:7050: UNREACHABLE, VOTER\n");
        assert_eq!(chosen_by_the_runbook(&text), "t1 c\n");
        assert_eq!(chosen_by_the_runbook("OK\n"), "");
    }

    #[test]
    fn servers_and_strays_are_reported() {
        let mut seen = healthy();
        seen.tables.clear();
        seen.servers[0].status =
            Ok(ServerStatus { id: id(7), version: "nyala 2".to_string(), web: Vec::new() });
        let replica = seen.servers[1].replicas.get_mut(&TABLET).expect("it has one");
        (replica.state, replica.running, replica.message) = ("FAILED", false, "disk full".to_string());
        seen.servers[2].info.maintenance = true;
        seen.masters[0].0.leader = false;
        let report = check(&seen, &BTreeSet::new());
        insta::assert_snapshot!([report.errors, report.warnings].concat().join("\n"), @r#"
        masters: none leads
        tablet server 01010101010101010101010101010101 ts-1:7050: another server replies (07070707070707070707070707070707)
        tablet server 02020202020202020202020202020202 ts-2:7050: tablet eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee failed (disk full)
        versions differ: nyala 1, nyala 2
        tablet server 01010101010101010101010101010101 ts-1:7050: 1 replicas of dropped or unknown tablets
        tablet server 02020202020202020202020202020202 ts-2:7050: 1 replicas of dropped or unknown tablets
        tablet server 03030303030303030303030303030303 ts-3:7050: 1 replicas of dropped or unknown tablets
        tablet server 03030303030303030303030303030303 ts-3:7050: in maintenance mode: it gets no new replicas, and those there are not replaced; once the work on it has ended: nyala cluster maintenance 03030303030303030303030303030303 off
        "#);
    }
}
