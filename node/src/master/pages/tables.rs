//! The pages `/tables` and `/table`.

use std::collections::BTreeMap;

use engine::catalog::{Catalog, TableEntry, TableLifecycle, TableRef, TabletEntry, TabletLifecycle};
use engine::ids::{PeerId, TableId};
use engine::schema::Schema;
use engine::time::ClockReading;

use super::cluster_health::{CatalogHealth, live_tables, tablet_health};
use super::server_names::ServerNames;
use crate::server::pages::page::{PageBlock, PageCell, PageLink, PageTable, Severity, WebPage, fact};

fn state(table: TableEntry<'_>) -> PageCell {
    match table.record.state {
        TableLifecycle::Running if table.record.applied_schema.is_some() => {
            PageCell::State(Severity::Neutral, "altering".to_owned())
        }
        TableLifecycle::Running => PageCell::State(Severity::Good, "running".to_owned()),
        TableLifecycle::SoftDeleted { .. } => PageCell::State(Severity::Warning, "soft deleted".to_owned()),
        TableLifecycle::Deleted { .. } => PageCell::State(Severity::Neutral, "deleted".to_owned()),
    }
}

/// Returns the worst health of a table's tablets.
fn worst_health(catalog: &Catalog, names: &ServerNames<'_>, table: TableEntry<'_>) -> CatalogHealth {
    let wanted = table.record.replicas.max(1) as usize;
    let health = |tablet| tablet_health(catalog, names, wanted, tablet).0;
    catalog.tablets(table.id).map(health).max().unwrap_or(CatalogHealth::Healthy)
}

const LIST_COLUMNS: [(&str, &str); 11] = [
    ("name", "Name"),
    ("health", "Health"),
    ("state", "State"),
    ("tablets", "Tablets"),
    ("replicas", "Replicas"),
    ("live_rows", "Rows"),
    ("on_disk_size", "On disk"),
    ("owner", "Owner"),
    ("created", "Created"),
    ("altered", "Altered"),
    ("id", "Id"),
];

/// Returns the list of tables.
pub(super) fn list(catalog: &Catalog, now: ClockReading) -> WebPage {
    let names = ServerNames::of(catalog, now);
    let mut rows = PageTable::new(&LIST_COLUMNS);
    for table in live_tables(catalog) {
        let (id, record) = (table.id.to_string(), table.record);
        let statistics = catalog.statistics(&TableRef::by_id(table.id)).unwrap_or_default();
        rows.row(vec![
            PageCell::Link(PageLink::page("/table", &[("id", &id)]), record.name.clone()),
            worst_health(catalog, &names, table).cell(),
            state(table),
            catalog.tablets(table.id).count().into(),
            (record.replicas.max(0) as u64).into(),
            statistics.live_rows.into(),
            PageCell::Bytes(statistics.disk_bytes),
            record.owner.clone().into(),
            PageCell::WallTime(record.created),
            PageCell::WallTime(record.altered),
            id.into(),
        ]);
    }
    WebPage::new("Tables").with(PageBlock::table("tables", "Tables", rows))
}

/// Returns the page of a table.
pub(super) fn one(catalog: &Catalog, now: ClockReading, id: TableId) -> Option<WebPage> {
    let table = catalog.tables().find(|table| table.id == id)?;
    let names = ServerNames::of(catalog, now);
    let health = worst_health(catalog, &names, table);
    let verdict = match health {
        CatalogHealth::Healthy => "every tablet is healthy".to_owned(),
        other => format!("at least one tablet is {}", other.name()),
    };
    Some(
        WebPage::new(table.record.name.clone())
            .verdict(health.severity(), verdict)
            .with(facts(catalog, table))
            .with(schema_block(table.schema()))
            .with(PageBlock::text("partitioning", "Partitioning", partitioning(table)))
            .with(tablets_block(catalog, &names, table))
            .with(replicas_block(catalog, &names, table)),
    )
}

fn facts(catalog: &Catalog, table: TableEntry<'_>) -> PageBlock {
    let record = table.record;
    let statistics = catalog.statistics(&TableRef::by_id(table.id)).unwrap_or_default();
    let extra = record.extra.to_map();
    let extra: Vec<PageCell> = extra.iter().map(|(name, value)| format!("{name}={value}").into()).collect();
    PageBlock::facts(
        "table",
        "",
        vec![
            fact("id", "id", table.id.to_string()),
            fact("state", "state", state(table)),
            fact("owner", "owner", record.owner.clone()),
            fact("comment", "comment", record.comment.clone()),
            fact("version", "schema version", u64::from(record.version)),
            fact("columns", "columns", table.schema().columns().len()),
            fact("replicas", "replicas wanted", record.replicas.max(0) as u64),
            fact("tablets", "tablets", catalog.tablets(table.id).count()),
            fact("live_rows", "rows", statistics.live_rows),
            fact("on_disk_size", "on disk, of leaders", PageCell::Bytes(statistics.disk_bytes)),
            fact("created", "created", PageCell::WallTime(record.created)),
            fact("altered", "altered", PageCell::WallTime(record.altered)),
            fact("extra_configs", "extra configuration", PageCell::List(extra)),
        ],
    )
}

/// Returns the columns of a schema.
fn schema_block(schema: &Schema) -> PageBlock {
    let columns = [
        ("name", "Column"),
        ("id", "Id"),
        ("key", "Key"),
        ("type", "Type"),
        ("encoding", "Encoding"),
        ("compression", "Compression"),
        ("defaults", "Defaults"),
        ("comment", "Comment"),
    ];
    let mut table = PageTable::new(&columns);
    for (at, column) in schema.columns().iter().enumerate() {
        let nullable = if column.nullable { " NULLABLE" } else { " NOT NULL" };
        // Values are not shown: they may be cells.
        let defaults = [("read", &column.read_default), ("write", &column.write_default)];
        let set = defaults.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| (*name).into());
        table.row(vec![
            column.name.clone().into(),
            u64::from(column.id.0).into(),
            (at < schema.num_key_columns()).into(),
            format!("{}{nullable}", column.ty.name()).into(),
            column.encoding.name().into(),
            format!("{:?}", column.compression).to_uppercase().into(),
            PageCell::List(set.collect()),
            column.comment.clone().into(),
        ]);
    }
    PageBlock::table("schema", "Schema", table)
}

fn partitioning(table: TableEntry<'_>) -> String {
    let lines = table.record.partition_schema.show(table.schema());
    if lines.is_empty() { "none: one tablet".to_owned() } else { lines.join("\n") }
}

/// Returns the partition of a tablet, as its hash buckets and its range.
fn partition(table: TableEntry<'_>, tablet: TabletEntry<'_>) -> String {
    let partition = &tablet.record.partition;
    let mut parts: Vec<String> =
        partition.hash_buckets.iter().map(|bucket| format!("HASH bucket {bucket}")).collect();
    let schema = &table.record.partition_schema;
    if !schema.range_columns.is_empty() {
        parts.push(format!("RANGE {}", schema.show_bounds(table.schema(), &partition.range())));
    }
    parts.join(", ")
}

fn lifecycle(state: TabletLifecycle) -> &'static str {
    match state {
        TabletLifecycle::Preparing => "preparing",
        TabletLifecycle::Creating => "creating",
        TabletLifecycle::Running => "running",
        TabletLifecycle::Replaced => "replaced",
        TabletLifecycle::Deleted => "deleted",
    }
}

fn tablets_block(catalog: &Catalog, names: &ServerNames<'_>, table: TableEntry<'_>) -> PageBlock {
    let columns = [
        ("id", "Tablet"),
        ("partition", "Partition"),
        ("health", "Health"),
        ("reason", "Reason"),
        ("state", "State"),
        ("live_rows", "Rows"),
        ("on_disk_size", "On disk"),
        ("peers", "Replicas, the leader first"),
    ];
    let mut rows = PageTable::new(&columns);
    let wanted = table.record.replicas.max(1) as usize;
    for tablet in catalog.tablets(table.id) {
        let (health, reason) = tablet_health(catalog, names, wanted, tablet);
        let consensus = &tablet.record.consensus;
        let of_leader = |(server, replica): (PeerId, &engine::catalog::ReportedTablet)| {
            replica.stats.filter(|_| Some(server) == consensus.leader)
        };
        let stats = catalog.replicas(tablet.id).find_map(of_leader);
        rows.row(vec![
            tablet.id.to_string().into(),
            partition(table, tablet).into(),
            health.cell(),
            reason.into(),
            lifecycle(tablet.record.state).into(),
            stats.and_then(|stats| stats.live_rows).into(),
            stats.map(|stats| PageCell::Bytes(stats.disk_bytes)).into(),
            peers(names, tablet),
        ]);
    }
    PageBlock::table("tablets", "Tablets", rows)
}

fn peers(names: &ServerNames<'_>, tablet: TabletEntry<'_>) -> PageCell {
    let consensus = &tablet.record.consensus;
    let mut peers: Vec<_> = consensus.peers.iter().collect();
    peers.sort_by_key(|peer| (Some(peer.server) != consensus.leader, peer.server));
    let path = format!("/tablet?id={}", tablet.id);
    let cell = |peer: &&engine::catalog::PeerRecord| {
        let leads = Some(peer.server) == consensus.leader;
        let note = match (leads, peer.voter) {
            (true, _) => " (leader)",
            (false, true) => "",
            (false, false) => " (learner)",
        };
        names.link(peer.server, &path, note)
    };
    PageCell::List(peers.iter().map(cell).collect())
}

fn replicas_block(catalog: &Catalog, names: &ServerNames<'_>, table: TableEntry<'_>) -> PageBlock {
    let mut counts: BTreeMap<PeerId, (u64, u64)> = names.0.keys().map(|server| (*server, (0, 0))).collect();
    for tablet in catalog.tablets(table.id) {
        let consensus = &tablet.record.consensus;
        for peer in &consensus.peers {
            let (replicas, leaders) = counts.entry(peer.server).or_default();
            *replicas += 1;
            *leaders += u64::from(consensus.leader == Some(peer.server));
        }
    }
    let mut rows =
        PageTable::new(&[("server", "Tablet server"), ("replicas", "Replicas"), ("leaders", "Leaders")]);
    for (server, (replicas, leaders)) in counts {
        rows.row(vec![names.link(server, "/tablets", ""), replicas.into(), leaders.into()]);
    }
    PageBlock::table("servers", "Replicas by server", rows)
}
