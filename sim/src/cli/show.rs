//! The timeline of a run: one HTML file with all events, host by host.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use super::plan_source::PlanSource;
use super::results;
use super::run_process::{ChildOutput, EventRecord, RunJob, SeriesRecord};
use crate::output::outln;
use crate::run::RunOutcome;

#[derive(Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    source: PlanSource,
    /// The file to write [default: sim-SEED.html]
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The data for the page's script.
#[derive(Serialize)]
struct Data<'a> {
    what: &'a str,
    plan: &'a str,
    replay: String,
    outcome: &'a RunOutcome,
    timeline: &'a [EventRecord],
    curves: &'a [SeriesRecord],
}

const PAGE: &str = include_str!("show.html");
/// Placeholder of the data in [`PAGE`].
const SLOT: &str = "/*DATA*/null";

/// Runs the plan and writes its timeline.
pub(super) fn show(args: &ShowArgs) -> Result<bool> {
    let plan = args.source.plan()?;
    let job = RunJob { timeline: true, ..RunJob::new(args.source.clone()) };
    let ChildOutput { outcome, timeline, curves, .. } = job.run()?;
    let path = args.out.clone().unwrap_or_else(|| format!("sim-{}.html", plan.seed).into());
    let text = plan.to_string();
    let replay = format!("cargo sim replay {}", args.source.words().join(" "));
    let (what, plan, outcome_of) = (&args.source.what, &text, &outcome);
    let data = Data { what, plan, replay, outcome: outcome_of, timeline: &timeline, curves: &curves };
    // Nothing in a script may look like its end.
    let json = serde_json::to_string(&data)?.replace("</", "<\\/");
    std::fs::write(&path, PAGE.replace(SLOT, &json))
        .with_context(|| format!("writing {}", path.display()))?;
    results::print_failures(&outcome, &args.source);
    outln!("{} timeline events: open {}", timeline.len(), path.display());
    Ok(true)
}
