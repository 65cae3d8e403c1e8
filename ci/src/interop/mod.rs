//! `cargo ci interop`: nyala judged by clients that we did not write.
//!
//! ```text
//!   packages.rs   fetches them            tool.rs      the real kudu tool's commands
//!   daemon.rs     one server process      java.rs      our program on the real Java client
//!   cluster.rs    several of them
//!   up.rs         nyala up
//!   rpc.rs        one call to a server    stand_in.rs  `kudu test mini_cluster` for upstream's harness
//!                 upstream.rs  upstream's own tests     page.rs  what became of them
//! ```
//!
//! With `--server kudu` the same checks run against the real servers: what is expected here holds there.

pub mod cluster;
pub mod daemon;
mod java;
pub mod packages;
mod page;
mod rpc;
pub mod stand_in;
mod tool;
mod up;
mod upstream;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};

use crate::command::cargo;
use crate::steps::Steps;
use cluster::{Cluster, Plan};
use daemon::Server;
use packages::{Packages, kudu_env, kudu_program};
use up::Up;

#[derive(Parser)]
pub struct Options {
    /// The parts to run; all of them if none is named
    parts: Vec<Part>,
    /// Whose servers to judge
    #[arg(long, value_enum, default_value = "nyala")]
    server: Which,
    /// A nyala program that is already built
    #[arg(long, value_name = "PROGRAM")]
    nyala: Option<PathBuf>,
    /// With upstream or record: only these classes
    #[arg(long, value_name = "NAME")]
    class: Vec<String>,
    /// With upstream or record: at most this many masters, where the tests ask for three
    #[arg(long, default_value_t = 1)]
    masters_max: usize,
    /// With record: write the page from what each class's last run left, and run nothing
    #[arg(long)]
    last: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The real kudu tool
    Tool,
    /// Our program on the real Java client
    Java,
    /// Upstream's own tests that are to pass
    Upstream,
    /// Upstream's own tests, all of them, and the compatibility page; only if it is named
    Record,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Which {
    Nyala,
    /// Real Kudu, as the reference
    Kudu,
}

/// What every part needs.
struct Interop {
    root: PathBuf,
    target: PathBuf,
    packages: Packages,
    server: Server,
}

/// Runs the parts, each as its own steps.
pub fn run(root: &Path, options: &Options, steps: &mut Steps) {
    let mut prepared = None;
    steps.run("interop: packages and programs", || {
        prepared = Some(prepare(root, options)?);
        Ok(())
    });
    let Some(context) = prepared else { return };
    let wanted = |part: Part| options.parts.is_empty() || options.parts.contains(&part);
    if wanted(Part::Tool) || wanted(Part::Java) {
        on_one_cluster(&context, wanted(Part::Tool), wanted(Part::Java), steps);
    }
    if wanted(Part::Upstream) {
        upstream(&context, options, steps, false);
    }
    if options.parts.contains(&Part::Record) {
        upstream(&context, options, steps, true);
    }
}

fn prepare(root: &Path, options: &Options) -> Result<Interop> {
    let target = target_dir()?.join("interop");
    let packages = Packages::fetch(root, &target)?;
    let server = server(root, options.server, options.nyala.as_deref(), &packages)?;
    Ok(Interop { root: root.to_path_buf(), target, packages, server })
}

/// The servers to start; nyala is built if its program was not given.
pub fn server(root: &Path, which: Which, nyala: Option<&Path>, packages: &Packages) -> Result<Server> {
    if which == Which::Kudu {
        return Ok(Server::Kudu(kudu_program(&packages.kudu()), kudu_env(&packages.kudu()).to_vec()));
    }
    if let Some(program) = nyala {
        return Ok(Server::Nyala(program.to_path_buf()));
    }
    cargo(root, &["build", "--quiet", "--release", "--package", "node"])?;
    Ok(Server::Nyala(target_dir()?.join("release/nyala")))
}

/// Cargo's target folder: this program lies in its `debug`.
pub fn target_dir() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.parent().and_then(Path::parent).context("this program lies in no target folder")?;
    Ok(target.to_path_buf())
}

/// A cluster to judge: nyala's as `nyala up` makes it, or processes of the real one.
enum Started {
    Up(Up),
    Processes(Cluster),
}

impl Started {
    fn start(server: &Server, dir: &Path) -> Result<Started> {
        match server {
            Server::Nyala(program) => Ok(Started::Up(Up::start(program, dir)?)),
            Server::Kudu(..) => {
                let plan = Plan { masters: 1, tablet_servers: 3, ..Plan::default() };
                Ok(Started::Processes(Cluster::started(server.clone(), dir, &plan)?))
            }
        }
    }

    fn masters(&self) -> String {
        match self {
            Started::Up(up) => up.masters.clone(),
            Started::Processes(cluster) => cluster.master_addresses(),
        }
    }

    fn stop(self) -> Result<()> {
        match self {
            Started::Up(up) => up.stop(),
            Started::Processes(mut cluster) => {
                cluster.kill_all();
                Ok(())
            }
        }
    }
}

/// The tool and our program share a freshly started cluster.
fn on_one_cluster(context: &Interop, tool: bool, java: bool, steps: &mut Steps) {
    let mut started = None;
    steps.run(&format!("interop: start {}", context.server.name()), || {
        let dir = tempfile::tempdir_in(&context.target)?;
        started = Some((Started::start(&context.server, dir.path())?, dir));
        Ok(())
    });
    let Some((cluster, _dir)) = started else { return };
    let masters = cluster.masters();
    if tool {
        tool::check_all(&context.packages, &masters, steps);
    }
    if java {
        steps.run("java client", || java::check(&context.root, &context.target, &context.packages, &masters));
    }
    steps.run("interop: stop", || cluster.stop());
}

/// Upstream's classes: the required ones checked, or all of them recorded.
fn upstream(context: &Interop, options: &Options, steps: &mut Steps, record: bool) {
    let mut compiled = None;
    steps.run("upstream: compile its tests", || {
        compiled = Some((suite(context, options.masters_max)?, upstream::classes(&context.root)?));
        Ok(())
    });
    let Some((suite, classes)) = compiled else { return };
    let named = |class: &String| options.class.is_empty() || options.class.contains(class);
    let mut rows = Vec::new();
    for (class, expected) in classes.into_iter().filter(|(class, _)| named(class)) {
        if !(record || expected.required || !options.class.is_empty()) {
            continue;
        }
        let run = match options.last {
            true => suite.last(&class),
            false => run_class(&suite, &class, &expected, record, steps),
        };
        rows.push(page::Row { class, expected, run });
    }
    if record {
        steps.run("upstream: the page", || {
            page::write(&context.root, context.server.name(), &setting(options.masters_max), &rows)
        });
    }
}

/// Runs a class as a step; when it is only recorded, failing tests are no failure of the step.
fn run_class(
    suite: &upstream::Suite<'_>,
    class: &str,
    expected: &upstream::Class,
    record: bool,
    steps: &mut Steps,
) -> Result<upstream::ClassRun> {
    let mut ran = None;
    steps.run(&format!("upstream: {class}"), || {
        let run = suite.run(class)?;
        let verdict = if record { Ok(()) } else { run.check(expected) };
        ran = Some(run);
        verdict
    });
    ran.context("it could not be run")
}

fn suite(context: &Interop, masters_max: usize) -> Result<upstream::Suite<'_>> {
    let bin = context.target.join("bin");
    stand_in::install(&bin, &context.server, &context.packages.kudu(), masters_max)?;
    upstream::Suite::compile(&context.root, &context.target, &context.packages, bin)
}

/// What the page says of how the clusters differ from what the tests asked for.
fn setting(masters_max: usize) -> String {
    if masters_max < 3 {
        return format!(
            "Tests that ask for three masters get {masters_max}, and tables one replica by default."
        );
    }
    "Clusters are as the tests ask for them.".to_owned()
}
