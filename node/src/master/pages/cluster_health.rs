//! Health of the cluster as the catalog knows it from heartbeats and reports: the page `/check` and the overview.
//!
//! `nyala cluster check` asks every server itself; the page shows what the leading master acts on.

use std::collections::BTreeMap;

use engine::catalog::{
    Catalog, ReplicaState, ReportedDataState, TableEntry, TableLifecycle, TabletEntry, TabletLifecycle,
};
use engine::time::ClockReading;

use super::server_names::ServerNames;
use crate::server::pages::page::{PageBlock, PageCell, PageLink, PageTable, Severity, WebPage, fact};
use crate::server::pages::registry::OverviewPart;

/// Health of a tablet, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CatalogHealth {
    Healthy,
    /// No leader has reported yet.
    Creating,
    UnderReplicated,
    Leaderless,
    /// A majority of its voters does not run.
    Unavailable,
}

impl CatalogHealth {
    pub(super) fn name(self) -> &'static str {
        match self {
            CatalogHealth::Healthy => "healthy",
            CatalogHealth::Creating => "creating",
            CatalogHealth::UnderReplicated => "under-replicated",
            CatalogHealth::Leaderless => "leaderless",
            CatalogHealth::Unavailable => "unavailable",
        }
    }

    pub(super) fn severity(self) -> Severity {
        match self {
            CatalogHealth::Healthy => Severity::Good,
            CatalogHealth::Creating => Severity::Neutral,
            CatalogHealth::UnderReplicated => Severity::Warning,
            CatalogHealth::Leaderless | CatalogHealth::Unavailable => Severity::Bad,
        }
    }

    pub(super) fn cell(self) -> PageCell {
        PageCell::State(self.severity(), self.name().to_owned())
    }
}

/// Returns the health of a tablet and the reason if it is not healthy.
pub(super) fn tablet_health(
    catalog: &Catalog,
    names: &ServerNames<'_>,
    wanted: usize,
    tablet: TabletEntry<'_>,
) -> (CatalogHealth, String) {
    if tablet.record.state != TabletLifecycle::Running {
        return (CatalogHealth::Creating, tablet.record.message.clone());
    }
    let consensus = &tablet.record.consensus;
    let voters: Vec<_> = consensus.peers.iter().filter(|peer| peer.voter).collect();
    let states: BTreeMap<_, _> = catalog.replicas(tablet.id).collect();
    let runs = |peer: &&&engine::catalog::PeerRecord| {
        // A follower need not have reported since the master was elected: then its server's heartbeat counts.
        let replica = states.get(&peer.server);
        let usable = replica.is_none_or(|replica| {
            replica.data != ReportedDataState::Tombstoned && replica.state != ReplicaState::Failed
        });
        usable && names.is_alive(peer.server)
    };
    let running = voters.iter().filter(runs).count();
    let majority = voters.len() / 2 + 1;
    if running < majority {
        let reason = format!("{running} of {} voters run (majority {majority})", voters.len());
        return (CatalogHealth::Unavailable, reason);
    }
    match consensus.leader {
        None => (CatalogHealth::Leaderless, "no leader is known".to_owned()),
        Some(leader) if !names.is_alive(leader) => {
            (CatalogHealth::Leaderless, format!("its leader {leader} does not send heartbeats"))
        }
        Some(_) if running < wanted => {
            (CatalogHealth::UnderReplicated, format!("{running} replicas run (wanted {wanted})"))
        }
        Some(_) => (CatalogHealth::Healthy, String::new()),
    }
}

/// Returns the tables that are shown.
pub(super) fn live_tables(catalog: &Catalog) -> impl Iterator<Item = TableEntry<'_>> {
    catalog.tables().filter(|table| !matches!(table.record.state, TableLifecycle::Deleted { .. }))
}

/// Findings about a cluster, and its counts.
struct ClusterFindings {
    findings: Vec<(Severity, String)>,
    counts: BTreeMap<CatalogHealth, usize>,
    tablets: PageTable,
}

const TABLET_COLUMNS: [(&str, &str); 4] =
    [("tablet", "Tablet"), ("table", "Table"), ("health", "Health"), ("reason", "Reason")];

fn find(catalog: &Catalog, now: ClockReading) -> ClusterFindings {
    let names = ServerNames::of(catalog, now);
    let mut found = ClusterFindings {
        findings: Vec::new(),
        counts: BTreeMap::new(),
        tablets: PageTable::new(&TABLET_COLUMNS),
    };
    for table in live_tables(catalog) {
        let wanted = table.record.replicas.max(1) as usize;
        let mut worst = (CatalogHealth::Healthy, 0);
        for tablet in catalog.tablets(table.id) {
            let (health, reason) = tablet_health(catalog, &names, wanted, tablet);
            *found.counts.entry(health).or_default() += 1;
            if health == CatalogHealth::Healthy {
                continue;
            }
            worst = (worst.0.max(health), worst.1 + 1);
            let link = PageLink::page("/table", &[("id", &table.id.to_string())]);
            found.tablets.row(vec![
                tablet.id.to_string().into(),
                PageCell::Link(link, table.record.name.clone()),
                health.cell(),
                reason.into(),
            ]);
        }
        let (health, count) = worst;
        if health > CatalogHealth::Creating {
            let text = format!(
                "table {}: {count} tablets are not healthy (worst {})",
                table.record.name,
                health.name()
            );
            found.findings.push((health.severity(), text));
        }
    }
    let dead: Vec<_> = names.0.values().filter(|server| !server.alive).collect();
    for server in &dead {
        let seconds = server.millis_since_heartbeat / 1000;
        let text = format!("tablet server {}: no heartbeat for {seconds} s", server.id);
        found.findings.push((Severity::Warning, text));
    }
    if names.0.len() == dead.len() {
        found.findings.push((Severity::Bad, "tablet servers: none is alive".to_owned()));
    }
    found.findings.sort_by_key(|(severity, _)| std::cmp::Reverse(*severity));
    found
}

fn counts_block(catalog: &Catalog, now: ClockReading, found: &ClusterFindings) -> PageBlock {
    let counts = catalog.counts(now.mono);
    let of = |health| found.counts.get(&health).copied().unwrap_or(0);
    PageBlock::facts(
        "cluster",
        "Cluster",
        vec![
            fact("id", "cluster id", catalog.cluster_id().to_string()),
            fact("servers_alive", "tablet servers alive", counts.servers_alive),
            fact("servers", "tablet servers known", counts.servers),
            fact("tables", "tables", counts.tables),
            fact("tablets", "tablets", counts.tablets),
            fact("healthy", "tablets healthy", of(CatalogHealth::Healthy)),
            fact("creating", "tablets being created", of(CatalogHealth::Creating)),
            fact("under_replicated", "tablets under-replicated", of(CatalogHealth::UnderReplicated)),
            fact("leaderless", "tablets without a leader", of(CatalogHealth::Leaderless)),
            fact("unavailable", "tablets unavailable", of(CatalogHealth::Unavailable)),
            fact("requests", "requests to tablet servers", counts.requests),
            fact("skew", "replica skew", counts.replica_skew),
        ],
    )
}

/// Returns the page `/check`.
pub(super) fn page(catalog: &Catalog, now: ClockReading) -> WebPage {
    let found = find(catalog, now);
    let counts = counts_block(catalog, now, &found);
    let mut table = PageTable::new(&[("state", "State"), ("text", "Finding")]);
    for (severity, text) in &found.findings {
        table.row(vec![PageCell::State(*severity, severity.name().to_owned()), text.clone().into()]);
    }
    let page = WebPage::new("Check");
    let page = match found.findings.first() {
        Some((severity, text)) => page.verdict(*severity, text.clone()),
        None => page.verdict(Severity::Good, "healthy"),
    };
    page.with(counts).with(PageBlock::table("findings", "Findings", table)).with(PageBlock::table(
        "tablets",
        "Tablets that are not healthy",
        found.tablets,
    ))
}

/// Returns the overview's part.
pub(super) fn overview(catalog: &Catalog, now: ClockReading) -> OverviewPart {
    let found = find(catalog, now);
    let blocks = vec![counts_block(catalog, now, &found)];
    OverviewPart { findings: found.findings, blocks }
}
