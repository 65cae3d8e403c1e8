//! Views of the scrubber for operators: the page `/scrub`, metrics, and a health check.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::progress::{FindingOutcome, FinishedPass, ScrubProgress};
use super::{ScrubConfig, Scrubber};
use crate::server::ServerContext;
use crate::server::health::{CheckResult, HealthCheck};
use crate::server::pages::page::{PageBlock, PageCell, PageTable, Severity, WebPage, fact};
use nyala_common::metrics::{MetricSnapshot, table};

/// Registers page, metrics and check of a server's scrubber; only the page if there is none.
pub fn register(common: &ServerContext, scrubber: Option<&Arc<Scrubber>>) {
    let of_page = scrubber.cloned();
    let source = move |_| {
        let page = of_page.as_deref().map_or_else(no_scrubber, page);
        Box::pin(async move { Ok(page.into()) }) as _
    };
    common.pages.register("/scrub", Some("Scrubber"), Arc::new(source));
    let Some(scrubber) = scrubber else { return };
    let of_metrics = scrubber.clone();
    common.metrics.register(move |out: &mut MetricSnapshot| collect(&of_metrics, out));
    let of_check = scrubber.clone();
    common.checks.register(move |checks| checks.push(check(&of_check.progress())));
}

fn no_scrubber() -> WebPage {
    WebPage::new("Scrubber")
        .verdict(Severity::Neutral, "off: this server was started with scrub_interval_sec 0")
}

fn collect(scrubber: &Scrubber, out: &mut MetricSnapshot) {
    let counts = &scrubber.counts;
    let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
    out.server.counter(&table::SCRUB_FILES_CHECKED, get(&counts.files));
    out.server.counter(&table::SCRUB_READ, get(&counts.bytes));
    out.server.counter(&table::SCRUB_FILES_DAMAGED, get(&counts.damaged));
    out.server.counter(&table::SCRUB_PASSES, get(&counts.passes));
    let age = |pass: FinishedPass| scrubber.wall_micros().saturating_sub(pass.began) / 1_000_000;
    // Without a finished pass there is no age.
    if let Some(age) = scrubber.progress().last.map(age) {
        out.server.gauge(&table::SCRUB_LAST_PASS_AGE, age);
    }
}

/// Returns the check that no damage waits for an operator.
fn check(progress: &ScrubProgress) -> HealthCheck {
    let all = progress.all_findings();
    let open: Vec<_> = all.iter().filter(|found| found.outcome == FindingOutcome::Reported).collect();
    let result = match open.first() {
        None => CheckResult::Ok("no damaged file waits for an operator".to_string()),
        Some(first) => {
            let (count, file, error) = (open.len(), &first.file, &first.error);
            CheckResult::Warning(format!("{count} damaged files, the first {file}: {error}; see /scrub"))
        }
    };
    HealthCheck::new("scrub", result)
}

fn page(scrubber: &Scrubber) -> WebPage {
    let progress = scrubber.progress();
    let config = ScrubConfig {
        interval: scrubber.interval(),
        bytes_per_second: scrubber.flags.bytes_per_second.load(Ordering::Relaxed),
    };
    let (severity, verdict) = verdict(&progress, config);
    let tablets = *scrubber.tablets.lock();
    WebPage::new("Scrubber")
        .verdict(severity, verdict)
        .with(running(&progress, tablets))
        .with(PageBlock::facts(
            "settings",
            "Settings",
            vec![
                fact("interval", "interval between passes", config.interval),
                fact("rate", "bytes per second", PageCell::Bytes(config.bytes_per_second)),
            ],
        ))
        .with(last(&progress))
        .with(PageBlock::table("findings", "Damaged files of this pass and the last", findings(&progress)))
}

fn verdict(progress: &ScrubProgress, config: ScrubConfig) -> (Severity, &'static str) {
    let found = progress.all_findings();
    match found.iter().any(|found| found.outcome == FindingOutcome::Reported) {
        true => (Severity::Bad, "damaged files wait for an operator"),
        false if !found.is_empty() => (Severity::Warning, "damage was found and handled"),
        false if config.interval.is_zero() => (Severity::Neutral, "off"),
        false => (Severity::Good, "no damage found"),
    }
}

fn running(progress: &ScrubProgress, (done, all): (usize, usize)) -> PageBlock {
    let mut facts = vec![fact("running", "a pass is running", progress.began.is_some())];
    if let Some(began) = progress.began {
        facts.extend([
            fact("began", "begun", PageCell::WallTime(began)),
            fact("tablets_done", "tablets checked", done),
            fact("tablets", "tablets", all),
            fact("files", "files checked", progress.files),
            fact("bytes", "bytes checked", PageCell::Bytes(progress.bytes)),
        ]);
    }
    PageBlock::facts("pass", "This pass", facts)
}

fn last(progress: &ScrubProgress) -> PageBlock {
    let facts = match &progress.last {
        None => vec![fact("finished", "a pass has finished", false)],
        Some(pass) => vec![
            fact("finished", "a pass has finished", true),
            fact("began", "begun", PageCell::WallTime(pass.began)),
            fact("ended", "ended", PageCell::WallTime(pass.ended)),
            fact("files", "files checked", pass.files),
            fact("bytes", "bytes checked", PageCell::Bytes(pass.bytes)),
            fact("damaged", "damaged files", pass.findings.len()),
        ],
    };
    PageBlock::facts("last", "Last pass", facts)
}

fn findings(progress: &ScrubProgress) -> PageTable {
    let columns =
        [("at", "Found"), ("file", "File"), ("tablet", "Tablet"), ("outcome", "Outcome"), ("error", "Error")];
    let mut rows = PageTable::new(&columns);
    for found in progress.all_findings() {
        let severity = match found.outcome {
            FindingOutcome::Reported => Severity::Bad,
            FindingOutcome::ReplicaFailed | FindingOutcome::Repaired => Severity::Warning,
        };
        rows.row(vec![
            PageCell::WallTime(found.at),
            found.file.into(),
            found.tablet.into(),
            PageCell::State(severity, found.outcome.name().to_owned()),
            found.error.into(),
        ]);
    }
    rows
}
