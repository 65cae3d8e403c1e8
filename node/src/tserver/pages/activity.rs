//! The pages `/scans`, `/transactions` and `/maintenance-manager`, and the directories on the overview.

use engine::replica::JobKind;
use engine::tablet::compaction_policy::WHOLE;

use crate::hosting::space::SpaceLevel;
use crate::hosting::tablet_entry::EntryState;
use crate::server::pages::page::{PageBlock, PageCell, PageLink, PageTable, Severity, WebPage, fact};
use crate::tserver::maintenance_log::{JobRecord, job_name};
use crate::tserver::scan_log::ScanState;
use crate::tserver::server::TabletServer;

fn tablet_link(id: engine::ids::TabletId) -> PageCell {
    PageCell::Link(PageLink::page("/tablet", &[("id", &id.to_string())]), id.to_string())
}

const SCAN_COLUMNS: [(&str, &str); 9] = [
    ("state", "State"),
    ("statement", "Scan"),
    ("tablet", "Tablet"),
    ("user", "User"),
    ("since", "Opened before"),
    ("time", "Time open"),
    ("round_trips", "Batches"),
    ("rows", "Rows returned"),
    ("bytes", "Bytes returned"),
];

/// Returns the open scans and the last ones that ended.
pub(super) fn scans(server: &TabletServer) -> WebPage {
    let now = server.env.now().mono;
    let mut table = PageTable::new(&SCAN_COLUMNS);
    let mut open = 0_usize;
    for scan in server.scan_log.all() {
        open += usize::from(scan.ended.is_none());
        let (severity, state) = match scan.state {
            ScanState::Active => (Severity::Good, "active"),
            // All rows are returned and the reply is under way.
            ScanState::Complete => (Severity::Neutral, "complete"),
            ScanState::Failed => (Severity::Bad, "failed"),
            ScanState::Closed => (Severity::Neutral, "closed"),
        };
        table.row(vec![
            PageCell::State(severity, state.to_owned()),
            scan.statement().into(),
            tablet_link(scan.tablet.id),
            scan.user.to_string().into(),
            now.since(scan.opened).into(),
            scan.ended.unwrap_or(now).since(scan.opened).into(),
            scan.round_trips.into(),
            scan.rows.into(),
            PageCell::Bytes(scan.bytes),
        ]);
    }
    let facts = vec![
        fact("open", "open scans", open),
        fact("expired", "scanners expired", server.metrics.scanners_expired()),
    ];
    WebPage::new("Scans").with(PageBlock::facts("counts", "", facts)).with(PageBlock::table(
        "scans",
        "Open scans and the last that ended; values are redacted",
        table,
    ))
}

/// Returns the operations in flight, by tablet.
pub(super) async fn operations(server: &TabletServer) -> WebPage {
    let columns = [
        ("tablet", "Tablet"),
        ("table", "Table"),
        ("bytes", "Bytes in flight"),
        ("operations", "Operations not committed"),
        ("committed", "Committed"),
        ("last", "Last"),
    ];
    let mut table = PageTable::new(&columns);
    for entry in server.tablets.all() {
        let EntryState::Running(replica) = entry.state() else { continue };
        let bytes = replica.pending_bytes();
        if bytes == 0 {
            continue;
        }
        let Ok(status) = replica.status_now().await else { continue };
        table.row(vec![
            tablet_link(entry.id),
            entry.table_name().into(),
            PageCell::Bytes(bytes as u64),
            status.last.index.saturating_sub(status.committed.index).into(),
            status.committed.to_string().into(),
            status.last.to_string().into(),
        ]);
    }
    WebPage::new("Operations in flight").with(PageBlock::table(
        "operations",
        "Tablets with operations in flight",
        table,
    ))
}

/// A job that a tablet could run, with what it would gain.
struct RegisteredJob {
    tablet: engine::ids::TabletId,
    name: &'static str,
    runnable: bool,
    ram_bytes: u64,
    log_bytes: u64,
    /// Lookups of a random key that are saved.
    gain: f64,
}

fn registered(server: &TabletServer) -> Vec<RegisteredJob> {
    let mut jobs = Vec::new();
    for entry in server.tablets.all() {
        let EntryState::Running(replica) = entry.state() else { continue };
        let (tablet, stats) = (replica.tablet(), replica.tablet().stats());
        let choice = tablet.choose_compaction();
        let job = |name, runnable, ram_bytes, log_bytes, gain| RegisteredJob {
            tablet: entry.id,
            name,
            runnable,
            ram_bytes,
            log_bytes,
            gain,
        };
        let anchors = tablet.log_anchors();
        jobs.push(job(
            job_name(&JobKind::FlushRows),
            anchors.rows.is_some(),
            stats.mrs_bytes,
            replica.log_bytes(),
            0.0,
        ));
        jobs.push(job("FlushDeltaMemStoresOp", !anchors.deltas.is_empty(), stats.dms_bytes, 0, 0.0));
        let gain = choice.as_ref().map_or(0.0, |choice| choice.gain as f64 / WHOLE as f64);
        jobs.push(job("CompactRowSetsOp", choice.is_some(), 0, 0, gain));
    }
    jobs
}

/// Returns the maintenance jobs: running, ended, and those that could run.
pub(super) fn maintenance(server: &TabletServer) -> WebPage {
    let now = server.env.now().mono;
    let running = server.maintenance_log.running();
    let mut done = PageTable::new(&[
        ("name", "Job"),
        ("tablet", "Tablet"),
        ("state", "State"),
        ("duration", "Duration"),
        ("since", "Began before"),
    ]);
    for job in running.iter().chain(&server.maintenance_log.ended()) {
        let JobRecord { tablet, name, began, ended } = job;
        let state = match ended {
            None => PageCell::State(Severity::Good, "running".to_owned()),
            Some((_, true)) => PageCell::State(Severity::Neutral, "done".to_owned()),
            Some((_, false)) => PageCell::State(Severity::Warning, "given up".to_owned()),
        };
        let until = ended.map_or(now, |(at, _)| at);
        let row = vec![
            (*name).into(),
            tablet_link(*tablet),
            state,
            until.since(*began).into(),
            now.since(*began).into(),
        ];
        done.row(row);
    }
    let jobs = registered(server);
    let mut table = PageTable::new(&[
        ("name", "Job"),
        ("tablet", "Tablet"),
        ("runnable", "Runnable"),
        ("ram_anchored", "Memory anchored"),
        ("logs_retained", "Log retained"),
        ("perf", "Lookups saved"),
    ]);
    let mut raw = String::new();
    for job in jobs {
        let runs = running.as_ref().is_some_and(|run| run.tablet == job.tablet && run.name == job.name);
        raw.push_str(&format!(
            "registered_operations {{\n  name: \"{}({})\"\n  running: {}\n  runnable: {}\n  ram_anchored_bytes: {}\n  \
             logs_retained_bytes: {}\n  perf_improvement: {}\n}}\n",
            job.name, job.tablet, u32::from(runs), job.runnable, job.ram_bytes, job.log_bytes, job.gain
        ));
        table.row(vec![
            job.name.into(),
            tablet_link(job.tablet),
            job.runnable.into(),
            PageCell::Bytes(job.ram_bytes),
            PageCell::Bytes(job.log_bytes),
            PageCell::Ratio(job.gain),
        ]);
    }
    WebPage {
        raw: Some(raw),
        ..WebPage::new("Maintenance")
            .with(PageBlock::table("jobs", "Running and last jobs", done))
            .with(PageBlock::table("registered", "Jobs of the tablets", table))
    }
}

/// Returns the free space of the directories.
pub(super) fn directories(server: &TabletServer) -> PageBlock {
    let columns = [
        ("path", "Directory"),
        ("state", "State"),
        ("free", "Free"),
        ("total", "Size"),
        ("reserved", "Reserve"),
    ];
    let mut table = PageTable::new(&columns);
    for (path, space) in server.tablets.space().all() {
        let state = match space.level {
            SpaceLevel::Plenty => PageCell::State(Severity::Good, "ok".to_owned()),
            SpaceLevel::Short => PageCell::State(Severity::Warning, "below the reserve".to_owned()),
            SpaceLevel::Critical => PageCell::State(Severity::Bad, "almost full".to_owned()),
        };
        let sizes = [space.free, space.total, space.reserved].map(PageCell::Bytes);
        table.row([path.into(), state].into_iter().chain(sizes).collect());
    }
    PageBlock::table("directories", "Directories", table)
}
