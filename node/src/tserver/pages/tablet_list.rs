//! The page `/tablets`.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::raft::Role;

use crate::hosting::tablet_entry::{EntryState, TabletEntry};
use crate::server::pages::page::{
    PageBlock, PageCell, PageFact, PageLink, PageTable, Severity, WebPage, fact,
};
use crate::tserver::server::TabletServer;

const COLUMNS: [(&str, &str); 10] = [
    ("table", "Table"),
    ("tablet", "Tablet"),
    ("partition", "Partition"),
    ("state", "State"),
    ("role", "Role"),
    ("term", "Term"),
    ("live_rows", "Rows"),
    ("on_disk_size", "On disk"),
    ("memory", "Memory"),
    ("error", "Last error"),
];

/// Returns the list of tablets, tombstones apart.
pub(super) fn page(server: &TabletServer) -> WebPage {
    let (mut tablets, mut tombstones) = (PageTable::new(&COLUMNS), PageTable::new(&COLUMNS));
    let mut failed = 0;
    for entry in server.tablets.all() {
        let is_tombstone = matches!(entry.state(), EntryState::Tombstoned(_));
        failed += usize::from(entry.failure().is_some());
        let table = if is_tombstone { &mut tombstones } else { &mut tablets };
        table.row(row(&entry));
    }
    let page = WebPage::new("Tablets");
    let page = match failed {
        0 => page.verdict(Severity::Good, "no tablet has failed"),
        failed => page.verdict(Severity::Bad, format!("{failed} tablets have failed")),
    };
    page.with(counts(server)).with(PageBlock::table("tablets", "Tablets", tablets)).with(PageBlock::table(
        "tombstones",
        "Tombstones",
        tombstones,
    ))
}

fn row(entry: &TabletEntry) -> Vec<PageCell> {
    let state = entry.state();
    let (role, term, memory) = match &state {
        EntryState::Running(replica) => {
            let status = replica.status();
            let memory = PageCell::Bytes(replica.tablet().stats().memory_bytes);
            (role_cell(status.role), PageCell::Count(status.term), memory)
        }
        _ => (PageCell::Empty, PageCell::Empty, PageCell::Empty),
    };
    let sizes = entry.sizes();
    let link = PageLink::page("/tablet", &[("id", &entry.id.to_string())]);
    vec![
        entry.table_name().into(),
        PageCell::Link(link, entry.id.to_string()),
        partition(entry).into(),
        state_cell(entry),
        role,
        term,
        sizes.map(|sizes| sizes.live_rows).into(),
        sizes.map(|sizes| PageCell::Bytes(sizes.disk_bytes)).into(),
        memory,
        entry.failure().map(|error| error.to_string()).into(),
    ]
}

pub(super) fn role_cell(role: Role) -> PageCell {
    match role {
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Learner => "learner",
        Role::NonParticipant => "no member",
    }
    .into()
}

/// Returns the state of a tablet.
pub(super) fn state_cell(entry: &TabletEntry) -> PageCell {
    let severity = match (entry.state(), entry.failure()) {
        (_, Some(_)) => Severity::Bad,
        (EntryState::Running(_), None) => Severity::Good,
        _ => Severity::Neutral,
    };
    PageCell::State(severity, entry.state_pb().as_str_name().to_lowercase())
}

/// Returns the partition of a tablet, as its hash buckets and its range.
pub(super) fn partition(entry: &TabletEntry) -> String {
    let meta = &entry.meta;
    let buckets = meta.partition.hash_buckets.iter();
    let mut parts: Vec<String> = buckets.map(|bucket| format!("HASH bucket {bucket}")).collect();
    if !meta.partition_schema.range_columns.is_empty() {
        let schema = entry.tablet().map_or_else(|| Arc::new(meta.schema.clone()), |tablet| tablet.schema());
        parts.push(format!("RANGE {}", meta.partition_schema.show_bounds(&schema, &meta.partition.range())));
    }
    parts.join(", ")
}

/// Returns the numbers of tablets by state.
pub(super) fn counts(server: &TabletServer) -> PageBlock {
    let mut states: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut leaders, mut leaderless) = (0_u64, 0_u64);
    for entry in server.tablets.all() {
        *states.entry(state_name(&entry)).or_default() += 1;
        if let EntryState::Running(replica) = entry.state() {
            let status = replica.status();
            leaders += u64::from(status.role == Role::Leader);
            leaderless += u64::from(status.leader.is_none());
        }
    }
    let mut facts: Vec<PageFact> = states.into_iter().map(|(name, count)| fact(name, name, count)).collect();
    facts.push(fact("leaders", "leaders", leaders));
    facts.push(fact("leaderless", "without a known leader", leaderless));
    PageBlock::facts("counts", "Tablets by state", facts)
}

fn state_name(entry: &TabletEntry) -> &'static str {
    match entry.state() {
        EntryState::Running(replica) if replica.failure().is_some() => "failed",
        EntryState::Running(_) => "running",
        EntryState::Bootstrapping => "bootstrapping",
        EntryState::Failed(_) => "failed",
        EntryState::Stopping => "stopping",
        EntryState::Copying => "copying",
        EntryState::Tombstoned(_) => "tombstoned",
        EntryState::Stopped => "stopped",
    }
}
