//! The overview at `/`: a verdict first, then what it rests on.

use engine::time::Instant;

use super::page::{PageBlock, PageCell, PageTable, Severity, WebPage, fact};
use crate::server::health::{CheckResult, HealthCheck};
use crate::server::logging;
use crate::server::{ServerContext, VERSION};

/// Warnings and errors of the log that the overview shows.
const EVENTS_MAX: usize = 20;

/// Returns the overview of a server.
pub async fn overview(common: &ServerContext, now: Instant) -> WebPage {
    let mut checks = vec![common.status.check()];
    checks.extend(common.checks.checks());
    let mut findings: Vec<(Severity, String)> = checks.iter().filter_map(finding).collect();
    let mut blocks = vec![server_block(common, now), checks_block(&checks)];
    for part in common.pages.overview().await {
        findings.extend(part.findings);
        blocks.extend(part.blocks);
    }
    blocks.push(events_block());
    let title = format!("{} overview", common.kind.name());
    // The first of the worst findings.
    let worst = findings.iter().map(|(severity, _)| *severity).max();
    let verdict = worst.and_then(|worst| findings.iter().find(|(severity, _)| *severity == worst));
    let mut page = match verdict {
        Some((severity, text)) => WebPage::new(title).verdict(*severity, text.clone()),
        None => WebPage::new(title).verdict(Severity::Good, "healthy"),
    };
    if findings.len() > 1 {
        let mut table = PageTable::new(&[("state", "State"), ("text", "Finding")]);
        for (severity, text) in findings {
            table.row(vec![PageCell::State(severity, severity.name().to_owned()), text.into()]);
        }
        page = page.with(PageBlock::table("findings", "Findings", table));
    }
    page.blocks.extend(blocks);
    page
}

fn finding(check: &HealthCheck) -> Option<(Severity, String)> {
    let (severity, text) = match &check.result {
        CheckResult::Ok(_) => return None,
        CheckResult::Warning(text) => (Severity::Warning, text),
        CheckResult::Failed(text) => (Severity::Bad, text),
    };
    Some((severity, format!("{}: {text}", check.name)))
}

fn server_block(common: &ServerContext, now: Instant) -> PageBlock {
    let usage = common.memory.usage();
    PageBlock::facts(
        "server",
        "This server",
        vec![
            fact("uuid", "id", common.status.uuid().to_string()),
            fact("version", "version", VERSION),
            fact("rpc", "RPC addresses", common.status.rpc_addresses().join(", ")),
            fact("started", "started", PageCell::WallTime(common.status.started_micros())),
            fact("uptime", "uptime", now.since(common.status.started())),
            fact("memory", "tracked memory", PageCell::Bytes(usage.bytes)),
            fact("memory_limit", "memory limit", usage.limit.map(PageCell::Bytes)),
        ],
    )
}

fn checks_block(checks: &[HealthCheck]) -> PageBlock {
    let mut table = PageTable::new(&[("name", "Check"), ("state", "State"), ("detail", "Detail")]);
    for check in checks {
        let severity = match &check.result {
            CheckResult::Ok(_) => Severity::Good,
            CheckResult::Warning(_) => Severity::Warning,
            CheckResult::Failed(_) => Severity::Bad,
        };
        let (state, detail) = check.parts();
        table.row(vec![check.name.into(), PageCell::State(severity, state.to_owned()), detail.into()]);
    }
    PageBlock::table("checks", "Checks", table)
}

fn events_block() -> PageBlock {
    let lines = logging::recent(tracing::Level::WARN, "");
    let from = lines.len().saturating_sub(EVENTS_MAX);
    PageBlock::text("events", "Latest warnings and errors", lines[from..].concat())
}
