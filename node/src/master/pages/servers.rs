//! The pages `/tablet-servers`, `/masters`, `/dump-entities` and `/prometheus-sd`.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::catalog::{Catalog, HostPort, ReportedDataState, TableLifecycle, TabletLifecycle};
use engine::ids::PeerId;
use engine::time::ClockReading;
use serde_json::{Value, json};

use super::server_names::ServerNames;
use crate::server::pages::page::{PageBlock, PageCell, PageTable, Severity, WebPage, server_link};
use nyala_proto::kudu::HostPortPb;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::master::ListMastersResponsePb;

const MICROS_PER_SECOND: u64 = 1_000_000;

const TSERVER_COLUMNS: [(&str, &str); 9] = [
    ("id", "Id"),
    ("address", "Address"),
    ("state", "State"),
    ("heartbeat", "Last heartbeat"),
    ("replicas", "Replicas"),
    ("leaders", "Leaders"),
    ("location", "Location"),
    ("version", "Version"),
    ("started", "Started"),
];

/// Returns the list of tablet servers.
pub(super) fn tablet_servers(catalog: &Catalog, now: ClockReading) -> WebPage {
    let names = ServerNames::of(catalog, now);
    let replicas = count_replicas(catalog);
    let mut rows = PageTable::new(&TSERVER_COLUMNS);
    for server in names.0.values() {
        let (held, led) = replicas.get(&server.id).copied().unwrap_or_default();
        let state = match (server.alive, server.maintenance) {
            (false, _) => PageCell::State(Severity::Bad, "dead".to_owned()),
            (true, true) => PageCell::State(Severity::Warning, "maintenance".to_owned()),
            (true, false) => PageCell::State(Severity::Good, "live".to_owned()),
        };
        let started = server.registration.start_time.and_then(|seconds| u64::try_from(seconds).ok());
        rows.row(vec![
            server.id.to_string().into(),
            names.link(server.id, "/", ""),
            state,
            Duration::from_millis(server.millis_since_heartbeat).into(),
            held.into(),
            led.into(),
            server.location.into(),
            server.registration.software_version.clone().into(),
            started.map(|seconds| PageCell::WallTime(seconds.saturating_mul(MICROS_PER_SECOND))).into(),
        ]);
    }
    for server in catalog.absent_in_maintenance() {
        let mut row = vec![PageCell::Empty; TSERVER_COLUMNS.len()];
        row[0] = server.to_string().into();
        row[2] = PageCell::State(Severity::Warning, "maintenance, not registered".to_owned());
        rows.row(row);
    }
    let (alive, all) = (names.0.values().filter(|server| server.alive).count(), names.0.len());
    let page = WebPage::new("Tablet servers");
    let page = match alive == all && all > 0 {
        true => page.verdict(Severity::Good, format!("all {all} tablet servers are alive")),
        false => page.verdict(Severity::Warning, format!("{alive} of {all} tablet servers are alive")),
    };
    page.with(PageBlock::table("servers", "Tablet servers", rows))
}

/// Returns the numbers of replicas and of leaders by server.
fn count_replicas(catalog: &Catalog) -> BTreeMap<PeerId, (u64, u64)> {
    let mut counts: BTreeMap<PeerId, (u64, u64)> = BTreeMap::new();
    let tablets = catalog.tables().flat_map(|table| catalog.tablets(table.id).collect::<Vec<_>>());
    for tablet in tablets {
        let leader = tablet.record.consensus.leader;
        let kept =
            catalog.replicas(tablet.id).filter(|(_, replica)| replica.data != ReportedDataState::Tombstoned);
        for (server, _) in kept {
            let (replicas, leaders) = counts.entry(server).or_default();
            *replicas += 1;
            *leaders += u64::from(leader == Some(server));
        }
    }
    counts
}

/// Returns the list of masters.
pub(super) fn masters(masters: &ListMastersResponsePb) -> WebPage {
    let columns = [
        ("id", "Id"),
        ("address", "Address"),
        ("role", "Role"),
        ("version", "Version"),
        ("started", "Started"),
        ("cluster_id", "Cluster"),
        ("error", "Error"),
    ];
    let mut rows = PageTable::new(&columns);
    for master in &masters.masters {
        let id = master.instance_id.as_ref().map(|id| text(&id.permanent_uuid));
        let registration = master.registration.clone().unwrap_or_default();
        let address = registration.rpc_addresses.first().map(host_port).unwrap_or_default();
        let web =
            registration.http_addresses.first().and_then(|http| Some((http, u16::try_from(http.port).ok()?)));
        let address = match web {
            Some((http, port)) => server_link(registration.https_enabled(), &http.host, port, "/", address),
            None => address.into(),
        };
        let started = registration.start_time.and_then(|seconds| u64::try_from(seconds).ok());
        rows.row(vec![
            id.into(),
            address,
            role(master.role).into(),
            registration.software_version().into(),
            started.map(|seconds| PageCell::WallTime(seconds.saturating_mul(MICROS_PER_SECOND))).into(),
            master.cluster_id.clone().into(),
            master.error.as_ref().map(|error| error.message().to_owned()).into(),
        ]);
    }
    let failed = masters.masters.iter().filter(|master| master.error.is_some()).count();
    let leads = masters.masters.iter().any(|master| master.role == Some(Role::Leader as i32));
    let page = WebPage::new("Masters");
    let page = match (failed, leads, masters.masters.len() % 2) {
        (0, true, 1) => page.verdict(Severity::Good, "every master answers and one leads"),
        (0, true, _) => page
            .verdict(Severity::Warning, "an even number of masters survives no more failures than one less"),
        (_, false, _) => page.verdict(Severity::Bad, "no master leads"),
        (failed, true, _) => page.verdict(Severity::Warning, format!("{failed} masters do not answer")),
    };
    page.with(PageBlock::table("masters", "Masters", rows))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn host_port(address: &HostPortPb) -> String {
    format!("{}:{}", address.host, address.port)
}

fn role(number: Option<i32>) -> &'static str {
    let role = number.and_then(|number| Role::try_from(number).ok());
    role.map_or("UNKNOWN", |role| role.as_str_name())
}

fn addresses<'a>(list: impl Iterator<Item = &'a HostPort>, scheme: &str) -> Vec<String> {
    list.map(|address| format!("{scheme}{address}")).collect()
}

/// Returns the object of Kudu's page `/dump-entities`, which vendors' managers read.
pub(super) fn entities(catalog: &Catalog, now: ClockReading, masters: &ListMastersResponsePb) -> Value {
    let names = ServerNames::of(catalog, now);
    let tables: Vec<_> =
        catalog.tables().filter(|table| table.record.state == TableLifecycle::Running).collect();
    let mut tablets = Vec::new();
    for table in &tables {
        let running =
            catalog.tablets(table.id).filter(|tablet| tablet.record.state == TabletLifecycle::Running);
        for tablet in running {
            let consensus = &tablet.record.consensus;
            let replica = |peer: &engine::catalog::PeerRecord| {
                json!({
                    "type": if peer.voter { "VOTER" } else { "NON_VOTER" },
                    "server_uuid": peer.server.to_string(),
                    "addr": peer.address.to_string(),
                })
            };
            tablets.push(json!({
                "table_id": table.id.to_string(),
                "tablet_id": tablet.id.to_string(),
                "state": "RUNNING",
                "replicas": consensus.peers.iter().map(replica).collect::<Vec<_>>(),
                "leader": consensus.leader.map(|leader| leader.to_string()).unwrap_or_default(),
            }));
        }
    }
    let table = |table: &engine::catalog::TableEntry<'_>| {
        let (id, name) = (table.id.to_string(), &table.record.name);
        json!({ "table_id": id, "table_name": name, "state": "RUNNING" })
    };
    let server = |server: &engine::catalog::TserverEntry<'_>| {
        let registration = server.registration;
        json!({
            "uuid": server.id.to_string(),
            "rpc_addrs": addresses(registration.rpc.iter(), ""),
            "http_addrs": addresses(registration.http.iter(), scheme(registration.https_enabled)),
            "live": server.alive,
            "millis_since_heartbeat": server.millis_since_heartbeat,
            "version": registration.software_version,
            "start_time": registration.start_time,
        })
    };
    json!({
        "tables": tables.iter().map(table).collect::<Vec<_>>(),
        "tablets": tablets,
        "masters": masters.masters.iter().map(master_entity).collect::<Vec<_>>(),
        "tablet_servers": names.0.values().map(server).collect::<Vec<_>>(),
    })
}

fn scheme(https: bool) -> &'static str {
    if https { "https://" } else { "http://" }
}

/// Returns the address of a web port as a URL without a path.
pub(super) fn http_address(https: bool, address: &HostPortPb) -> String {
    format!("{}{}", scheme(https), host_port(address))
}

fn master_entity(master: &nyala_proto::kudu::ServerEntryPb) -> Value {
    let registration = master.registration.clone().unwrap_or_default();
    let http = |address: &HostPortPb| http_address(registration.https_enabled(), address);
    json!({
        "uuid": master.instance_id.as_ref().map(|id| text(&id.permanent_uuid)),
        "rpc_addrs": registration.rpc_addresses.iter().map(host_port).collect::<Vec<_>>(),
        "http_addrs": registration.http_addresses.iter().map(http).collect::<Vec<_>>(),
        "role": role(master.role),
        "version": registration.software_version(),
        "start_time": registration.start_time,
    })
}

/// Returns the targets of Prometheus' HTTP service discovery: the masters and the tablet servers, those that are down
/// too, because a target that is gone raises no alert.
pub(super) fn scrape_targets(catalog: &Catalog, now: ClockReading, masters: &ListMastersResponsePb) -> Value {
    let cluster = catalog.cluster_id().to_string();
    let group = |targets: Vec<String>, group: &str, location: &str, https: bool| {
        json!({ "targets": targets, "labels": {
            "group": group,
            "cluster_id": cluster,
            "location": location,
            "__scheme__": if https { "https" } else { "http" },
        }})
    };
    let mut groups = Vec::new();
    for master in &masters.masters {
        let Some(registration) = &master.registration else { continue };
        let targets = registration.http_addresses.iter().take(1).map(host_port).collect();
        groups.push(group(targets, "masters", "", registration.https_enabled()));
    }
    for server in catalog.servers(now.mono) {
        let targets = addresses(server.registration.http.iter().take(1), "");
        let location = server.location.unwrap_or_default();
        groups.push(group(targets, "tservers", location, server.registration.https_enabled));
    }
    Value::Array(groups)
}
