//! `cargo ci versus`: nyala and real Kudu under the same load, in the same run, turn by turn.
//!
//! Each turn starts on fresh directories, with the real `kudu` tool as the client. The log's sync is off for both, then
//! on for both. A B A B …: whatever else the machine does falls on both alike.
//!
//! ```text
//!   single.rs      one replica: the default load, two million rows with their scan, a table scan
//!   replicated.rs  three replicas: a load, a master's failover, a tablet copied to a server that has none
//!   measure.rs     processes and folders → CPU, memory, bytes; the tool's output → rows and seconds
//!   page.rs        samples → medians, spreads, a page under benches/
//! ```

mod measure;
mod page;
mod replicated;
mod single;

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};

use crate::command::Output;
use crate::interop::cluster::{Cluster, Plan};
use crate::interop::daemon::Server;
use crate::interop::packages::Packages;
use crate::interop::{Which, server, target_dir};
use crate::steps::Steps;
use page::{Cell, Measure, Page, Sample};

#[derive(Parser)]
pub struct Options {
    /// The parts to measure, each with a page of its own; all of them if none is named
    parts: Vec<Part>,
    /// Turns of each server per setting
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// A nyala program that is already built
    #[arg(long, value_name = "PROGRAM")]
    nyala: Option<PathBuf>,
    /// Print the tables only, leave the pages alone
    #[arg(long)]
    dry: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// One replica
    Single,
    /// Three replicas
    Replicated,
}

impl Part {
    fn page(self) -> Page {
        match self {
            Part::Single => single::PAGE,
            Part::Replicated => replicated::PAGE,
        }
    }

    fn turn(self, turn: &Turn<'_>) -> Result<Vec<Sample>> {
        match self {
            Part::Single => single::turn(turn),
            Part::Replicated => replicated::turn(turn),
        }
    }
}

/// Measures and writes the pages.
pub fn run(root: &Path, options: &Options, steps: &mut Steps) {
    let mut prepared = None;
    steps.run("versus: packages and programs", || {
        prepared = Some(prepare(root, options)?);
        Ok(())
    });
    let Some(prepared) = prepared else { return };
    for part in [Part::Single, Part::Replicated] {
        if options.parts.is_empty() || options.parts.contains(&part) {
            measure(root, options, part, &prepared, steps);
        }
    }
}

fn measure(root: &Path, options: &Options, part: Part, prepared: &Prepared, steps: &mut Steps) {
    let mut samples = Vec::new();
    for round in 0..options.rounds {
        for log_sync in [false, true] {
            for server in [&prepared.nyala, &prepared.kudu] {
                let name = server.name();
                let sync = if log_sync { "on" } else { "off" };
                steps.run(&format!("versus: round {}, {name}, log sync {sync}", round + 1), || {
                    let Prepared { packages, target, .. } = prepared;
                    samples.extend(part.turn(&Turn { packages, server, log_sync, target })?);
                    Ok(())
                });
            }
        }
    }
    let page = part.page();
    steps.run(&format!("versus: {}", page.path), || {
        ensure!(!samples.is_empty(), "nothing was measured");
        page.write(root, &samples, options.rounds, options.dry)
    });
}

struct Prepared {
    packages: Packages,
    nyala: Server,
    kudu: Server,
    target: PathBuf,
}

fn prepare(root: &Path, options: &Options) -> Result<Prepared> {
    let target = target_dir()?;
    let packages = Packages::fetch(root, &target.join("interop"))?;
    let nyala = server(root, Which::Nyala, options.nyala.as_deref(), &packages)?;
    let kudu = server(root, Which::Kudu, None, &packages)?;
    Ok(Prepared { packages, nyala, kudu, target })
}

/// One server's turn.
struct Turn<'a> {
    packages: &'a Packages,
    server: &'a Server,
    log_sync: bool,
    target: &'a Path,
}

impl Turn<'_> {
    /// A fresh cluster and where its files are.
    fn cluster(&self, masters: usize, tablet_servers: usize) -> Result<(Cluster, tempfile::TempDir)> {
        let dir = tempfile::tempdir_in(self.target)?;
        let sync = match self.server {
            Server::Nyala(_) => format!("--log_sync={}", self.log_sync),
            Server::Kudu(..) => format!("--log_force_fsync_all={}", self.log_sync),
        };
        let plan = Plan { masters, tablet_servers, tserver_gflags: vec![sync], ..Plan::default() };
        Ok((Cluster::started(self.server.clone(), dir.path(), &plan)?, dir))
    }

    /// Runs a command of the tool that has to end well.
    fn kudu(&self, words: &[&str]) -> Result<String> {
        let Output { success, stdout, stderr } = self.packages.kudu_tool().args(words).output()?;
        ensure!(success, "kudu {}: {stderr}", words.join(" "));
        Ok(stdout)
    }

    fn sample(&self, workload: &'static str, measure: Measure, value: f64) -> Sample {
        let cell = Cell { workload, log_sync: self.log_sync, measure, server: self.server.name() };
        Sample { cell, value }
    }
}
