//! Studies: the node's real code on modelled servers, with a cost model of CPU, link and disk.
//!
//! ```text
//! scale.rs       rows loaded by many sessions: rate by number of servers, and of tablets
//! devices.rs     insert, update and read by key: latency by disks and links
//! cores.rs       operations by key: rate by cores, from a model of its own (crate `cores-model`)
//! setup.rs       servers, links and clients of a point, and its results
//! run_point.rs   one point of a study: boots the servers of a `StudySetup`, runs its clients, counts
//! ```
//!
//! A server's processors are a queue that every message passes ([`crate::net::capacity`]), with the service time of a
//! real server. Its link is another queue, its disks a third ([`engine::disk::mem::DiskCost`]). Clients are never the
//! bottleneck. Each point has its own process, as every run has.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::output::outln;
pub use setup::StudyArgs;
use setup::{Study, StudyPoint, StudySetup};

mod cores;
mod devices;
#[cfg(madsim)]
mod run_point;
mod scale;
mod setup;

/// Runs the whole study: prints its page and writes it on request.
pub fn study(args: &StudyArgs) -> Result<bool> {
    let (mut setups, page): (_, fn(&StudyArgs, &[StudyPoint]) -> String) = match args.study {
        Study::Cores => return cores::study(args),
        Study::Scale => (scale::setups(args), scale::page),
        Study::Devices => (devices::setups(args), devices::page),
    };
    setups.truncate(args.points.unwrap_or(usize::MAX));
    let bar = indicatif::ProgressBar::new(setups.len() as u64);
    let points: Vec<StudyPoint> = bar.wrap_iter(setups.iter()).map(point).collect::<Result<_>>()?;
    let page = page(args, &points);
    outln!("{page}");
    if let Some(path) = &args.out {
        std::fs::write(path, page).with_context(|| format!("writing {}", path.display()))?;
    }
    match (args.study, &args.out) {
        (Study::Scale, Some(path)) => scale::draw(&path.with_extension(""), &points)?,
        (Study::Scale, None) if args.points.is_some() => scale::check(args, &points)?,
        _ => {}
    }
    Ok(true)
}

/// Runs one point in its own process.
fn point(setup: &StudySetup) -> Result<StudyPoint> {
    let words = ["study-point".to_string(), serde_json::to_string(setup)?];
    let program = std::env::current_exe().context("finding this program")?;
    let output = Command::new(program).args(words).stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "a point of the study failed: {setup:?}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[derive(Args)]
pub struct PointArgs {
    /// The setup as JSON
    setup: String,
}

/// Runs one point in this process and prints its result as JSON.
pub fn one_point(args: &PointArgs) -> Result<bool> {
    let setup: StudySetup = serde_json::from_str(&args.setup).context("the point's setup")?;
    let point = run_point(&setup)?;
    outln!("{}", serde_json::to_string(&point)?);
    // Dropping the world's tasks one by one would take long.
    std::process::exit(0);
}

#[cfg(madsim)]
fn run_point(setup: &StudySetup) -> Result<StudyPoint> {
    run_point::run_point(setup)
}

#[cfg(not(madsim))]
fn run_point(_: &StudySetup) -> Result<StudyPoint> {
    anyhow::bail!("this build has no madsim world: run it as `cargo sim`")
}
