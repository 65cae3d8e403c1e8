//! The page of a run: one HTML file with all that happened, host by host.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use super::child::{Curve, Heard, Job, Shown};
use super::{Which, results};
use crate::run::Outcome;

#[derive(Args)]
pub struct ShowArgs {
    #[command(flatten)]
    which: Which,
    /// The file to write [default: sim-SEED.html]
    #[arg(long)]
    out: Option<PathBuf>,
}

/// What the page's script reads.
#[derive(Serialize)]
struct Data<'a> {
    what: &'a str,
    plan: &'a str,
    replay: String,
    outcome: &'a Outcome,
    moments: &'a [Shown],
    curves: &'a [Curve],
}

const PAGE: &str = include_str!("show.html");
/// Where the data go, in [`PAGE`].
const SLOT: &str = "/*DATA*/null";

/// Runs the plan and writes its page.
pub fn show(args: &ShowArgs) -> Result<bool> {
    let plan = args.which.plan()?;
    let job = Job { moments: true, ..Job::new(args.which.clone()) };
    let Heard { outcome, moments, curves, .. } = job.hear()?;
    let path = args.out.clone().unwrap_or_else(|| format!("sim-{}.html", plan.seed).into());
    let text = plan.to_string();
    let replay = format!("cargo sim replay {}", args.which.words().join(" "));
    let (what, plan, outcome_of) = (&args.which.what, &text, &outcome);
    let data = Data { what, plan, replay, outcome: outcome_of, moments: &moments, curves: &curves };
    // Nothing in a script may look like its end.
    let json = serde_json::to_string(&data)?.replace("</", "<\\/");
    std::fs::write(&path, PAGE.replace(SLOT, &json))
        .with_context(|| format!("writing {}", path.display()))?;
    results::print_failures(&outcome, &args.which);
    println!("{} moments: open {}", moments.len(), path.display());
    Ok(true)
}
