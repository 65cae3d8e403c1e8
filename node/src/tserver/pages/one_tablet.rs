//! The pages of one tablet: `/tablet`, its rowset layout, its consensus and its log anchors.

use engine::raft::RaftStatus;
use engine::raft::{MemberKind, PeerHealth};
use engine::tablet::Tablet;

use super::tablet_list::{partition, role_cell, state_cell};
use crate::hosting::replica::ReplicaHandle;
use crate::hosting::tablet_entry::{EntryState, TabletEntry};
use crate::server::pages::page::{
    BlockContent, PageBlock, PageCell, PageLink, PageTable, RowsetBar, RowsetPicture, Severity, WebPage, fact,
};
use crate::tserver::server::TabletServer;

/// Returns everything about a tablet.
pub(super) async fn page(server: &TabletServer, entry: &TabletEntry) -> WebPage {
    let id = entry.id.to_string();
    let mut page = WebPage::new(format!("Tablet {id}"));
    page = match (entry.failure(), entry.state()) {
        (Some(error), _) => page.verdict(Severity::Bad, format!("failed: {error}")),
        (None, EntryState::Running(_)) => page.verdict(Severity::Good, "running"),
        (None, _) => page.verdict(Severity::Neutral, "not running"),
    };
    let link = |path, text: &str| PageCell::Link(PageLink::page(path, &[("id", &id)]), text.to_owned());
    let pages = vec![
        link("/tablet-rowsetlayout-svg", "rowset layout"),
        link("/tablet-consensus-status", "consensus"),
        link("/log-anchors", "log anchors"),
    ];
    page = page.with(PageBlock::facts(
        "tablet",
        "",
        vec![
            fact("table", "table", entry.table_name()),
            fact("table_id", "table id", entry.meta.table.to_string()),
            fact("partition", "partition", partition(entry)),
            fact("state", "state", state_cell(entry)),
            fact("schema_version", "schema version", u64::from(entry.schema_version())),
            fact("data_dir", "data directory", entry.data_dir.path.clone()),
            fact("pages", "pages", PageCell::List(pages)),
        ],
    ));
    let EntryState::Running(replica) = entry.state() else { return page };
    let tablet = replica.tablet();
    page.blocks.push(sizes(&replica));
    page.blocks.extend(raft(server, &replica).await);
    page.blocks.push(time(server, entry, tablet));
    page.blocks.push(anchor_block(tablet));
    page.blocks.extend(rowsets(tablet));
    page.blocks.push(schema(tablet));
    page
}

fn sizes(replica: &ReplicaHandle) -> PageBlock {
    let stats = replica.tablet().stats();
    PageBlock::facts(
        "sizes",
        "Sizes",
        vec![
            fact("live_rows", "rows", stats.live_rows),
            fact("on_disk_size", "on disk", PageCell::Bytes(replica.disk_size())),
            fact("on_disk_data_size", "data files", PageCell::Bytes(stats.disk_bytes)),
            fact("log_size", "log", PageCell::Bytes(replica.log_bytes())),
            fact("memrowset_size", "MemRowSets", PageCell::Bytes(stats.mrs_bytes)),
            fact("deltamemstore_size", "DeltaMemStores", PageCell::Bytes(stats.dms_bytes)),
            fact("memory", "memory", PageCell::Bytes(stats.memory_bytes)),
            fact("pending", "operations in flight", PageCell::Bytes(replica.pending_bytes() as u64)),
        ],
    )
}

/// Returns role, members and progress of the replica.
async fn raft(server: &TabletServer, replica: &ReplicaHandle) -> Vec<PageBlock> {
    match replica.status_now().await {
        Ok(status) => raft_blocks(server, &status),
        Err(error) => vec![PageBlock::text("raft_error", "Raft", error.to_string())],
    }
}

fn raft_blocks(server: &TabletServer, status: &RaftStatus) -> Vec<PageBlock> {
    let facts = PageBlock::facts(
        "raft",
        "Raft",
        vec![
            fact("role", "role", role_cell(status.role)),
            fact("term", "term", status.term),
            fact("leader", "leader", status.leader.map(|leader| leader.to_string())),
            fact("committed", "committed", status.committed.to_string()),
            fact("last", "last operation", status.last.to_string()),
            fact("change", "configuration change in flight", status.pending_config.is_some()),
            fact("transferring", "leadership transfer", status.transferring),
        ],
    );
    let columns = [
        ("id", "Member"),
        ("address", "Address"),
        ("member", "Member kind"),
        ("health", "Health"),
        ("lag", "Operations behind"),
        ("silent", "Last response"),
    ];
    let mut members = PageTable::new(&columns);
    for peer in &status.active_config().peers {
        let progress = status.peers.iter().find(|progress| progress.id == peer.id);
        let me = peer.id == server.uuid();
        let health = match progress.map(|progress| progress.health) {
            Some(PeerHealth::Healthy) => PageCell::State(Severity::Good, "healthy".to_owned()),
            Some(PeerHealth::Failed | PeerHealth::FailedUnrecoverable) => {
                PageCell::State(Severity::Bad, "failed".to_owned())
            }
            Some(PeerHealth::Unknown) => PageCell::State(Severity::Neutral, "unknown".to_owned()),
            None if me => "this replica".into(),
            None => PageCell::Empty,
        };
        members.row(vec![
            peer.id.to_string().into(),
            format!("{}:{}", peer.host, peer.port).into(),
            if peer.member == MemberKind::Voter { "voter" } else { "learner" }.into(),
            health,
            progress.map(|progress| status.last.index.saturating_sub(progress.matched)).into(),
            progress.and_then(|progress| progress.silent).into(),
        ]);
    }
    vec![facts, PageBlock::table("members", "Members", members)]
}

fn time(server: &TabletServer, entry: &TabletEntry, tablet: &Tablet) -> PageBlock {
    let now = server.clock.peek();
    let held = server.held_history.oldest(entry.meta.table).map(|at| PageCell::WallTime(at.micros()));
    let safe = tablet.mvcc().safe_time(now);
    let behind = std::time::Duration::from_micros(now.micros().saturating_sub(safe.micros()));
    PageBlock::facts(
        "mvcc",
        "Snapshots",
        vec![
            fact("safe_time", "safe time", PageCell::WallTime(safe.micros())),
            fact("safe_time_lag", "safe time behind the clock", behind),
            fact("history", "oldest snapshot", PageCell::WallTime(tablet.history_mark().micros())),
            fact("held", "oldest snapshot that a reader holds", held),
        ],
    )
}

fn anchor_block(tablet: &Tablet) -> PageBlock {
    let anchors = tablet.log_anchors();
    let mut table = PageTable::new(&[("owner", "Needed by"), ("index", "First operation")]);
    if let Some(rows) = anchors.rows {
        table.row(vec!["MemRowSets".into(), rows.into()]);
    }
    for (rowset, index) in &anchors.deltas {
        table.row(vec![format!("deltas of rowset {rowset}").into(), (*index).into()]);
    }
    PageBlock::table("anchors", "Log anchors", table)
}

/// Returns the picture and the list of the rowsets.
fn rowsets(tablet: &Tablet) -> Vec<PageBlock> {
    let (places, height) = tablet.rowset_places();
    let choice = tablet.choose_compaction();
    let chosen = |id| choice.as_ref().is_some_and(|choice| choice.rowsets.contains(&id));
    let bar = |place: &engine::tablet::compaction_policy::RowsetPlace| RowsetBar {
        rowset: place.meta.id,
        low: place.low,
        high: place.high,
        rows: place.meta.rows.into(),
        bytes: place.meta.bytes,
        delta_files: place.meta.delta_files.len(),
        chosen: chosen(place.meta.id),
    };
    let bars: Vec<RowsetBar> = places.iter().map(bar).collect();
    let mut sizes: Vec<u64> = bars.iter().map(|bar| bar.bytes).collect();
    sizes.sort_unstable();
    let quantile = |percent: usize| {
        sizes.get((sizes.len().saturating_sub(1)) * percent / 100).map(|b| PageCell::Bytes(*b))
    };
    let summary = PageBlock::facts(
        "layout",
        "Rowsets",
        vec![
            fact("count", "DiskRowSets", bars.len()),
            fact("height", "average height", PageCell::Ratio(height)),
            fact("smallest", "smallest", quantile(0)),
            fact("median", "median", quantile(50)),
            fact("largest", "largest", quantile(100)),
            fact(
                "next",
                "rowsets of the next compaction",
                choice.as_ref().map(|choice| choice.rowsets.len()),
            ),
        ],
    );
    let columns = [
        ("rowset", "Rowset"),
        ("rows", "Rows"),
        ("live_rows", "Live rows"),
        ("bytes", "Bytes"),
        ("delta_files", "Delta files"),
        ("from", "From"),
        ("to", "To"),
        ("chosen", "Compacted next"),
    ];
    let mut table = PageTable::new(&columns);
    for (place, bar) in places.iter().zip(&bars) {
        table.row(vec![
            bar.rowset.into(),
            bar.rows.into(),
            place.meta.live_rows.into(),
            PageCell::Bytes(bar.bytes),
            bar.delta_files.into(),
            PageCell::Ratio(bar.low),
            PageCell::Ratio(bar.high),
            bar.chosen.into(),
        ]);
    }
    let picture = PageBlock {
        id: "picture",
        heading: "By key, one bar a rowset; the pile over a key is what a lookup asks".to_owned(),
        content: BlockContent::Picture(RowsetPicture { bars }),
    };
    vec![summary, picture, PageBlock::table("rowsets", "DiskRowSets", table)]
}

fn schema(tablet: &Tablet) -> PageBlock {
    let schema = tablet.schema();
    let mut table = PageTable::new(&[
        ("name", "Column"),
        ("id", "Id"),
        ("type", "Type"),
        ("key", "Key"),
        ("nullable", "Nullable"),
    ]);
    for (at, column) in schema.columns().iter().enumerate() {
        table.row(vec![
            column.name.clone().into(),
            u64::from(column.id.0).into(),
            column.ty.name().into(),
            (at < schema.num_key_columns()).into(),
            column.nullable.into(),
        ]);
    }
    PageBlock::table("schema", "Schema", table)
}

/// Returns the page with the picture of the rowsets.
pub(super) fn layout(tablet: &Tablet) -> WebPage {
    let page = WebPage::new(format!("Rowset layout of {}", tablet.tablet));
    rowsets(tablet).into_iter().fold(page, WebPage::with)
}

/// Returns the page with the state of Raft.
pub(super) async fn consensus(server: &TabletServer, entry: &TabletEntry) -> WebPage {
    let page = WebPage::new(format!("Consensus of {}", entry.id));
    let EntryState::Running(replica) = entry.state() else { return page };
    raft(server, &replica).await.into_iter().fold(page, WebPage::with)
}

/// Returns the page with what holds the log.
pub(super) fn anchors(tablet: &Tablet) -> WebPage {
    WebPage::new(format!("Log anchors of {}", tablet.tablet)).with(anchor_block(tablet))
}
