//! `cargo ci interop`: upstream's clients against nyala.
//!
//! ```text
//!   packages.rs   fetches them            tool.rs          the real kudu tool's commands
//!   daemon.rs     one server process      java.rs          our program on the real Java client
//!   cluster.rs    several daemons         proxies.rs       links between servers, delayed and cut
//!   security.rs   encryption required      nemesis/         faults under load, replicated
//!   clients.rs    Spark and other clients
//!   rpc.rs        one call to a server    mini_cluster.rs  `kudu test mini_cluster` for upstream's harness
//!   upstream.rs   their own tests         report.rs        results of those
//!   runbooks/     node/RUNBOOKS.md        small_disk.rs    a disk that can be filled
//!   soak/         `cargo ci soak`         faketime.rs      a clock that is wrong
//!   upgrade/      `cargo ci upgrade`
//!   java_writer.rs a program that writes  ksck.rs          the real check of a cluster
//!   kdc.rs        a Kerberos realm         oidc.rs          an issuer of JSON Web Tokens
//! ```
//!
//! With `--server kudu` the same checks run against the real servers: all expectations hold there too. `record` runs
//! upstream's tests against both; its report has a column for each.

mod clients;
pub(crate) mod cluster;
pub(crate) mod daemon;
mod faketime;
mod java;
mod java_writer;
pub(crate) mod kdc;
mod ksck;
pub(crate) mod mini_cluster;
mod nemesis;
mod oidc;
pub(crate) mod packages;
mod proxies;
mod report;
pub(crate) mod rpc;
mod runbooks;
mod security;
mod small_disk;
pub(crate) mod soak;
mod tool;
pub(crate) mod upgrade;
mod upstream;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};

use crate::command::{CommandLine, cargo, target_dir};
use crate::nyala_up::NyalaUp;
use crate::steps::Steps;
use crate::tools;
use cluster::{Cluster, ClusterPlan};
use daemon::ServerKind;
use nemesis::NemesisFaults;
use packages::{Packages, kudu_env, kudu_program};

#[derive(Parser)]
pub(crate) struct InteropOptions {
    /// The parts to run; those of a pull request if none is named
    parts: Vec<Part>,
    /// Make of the servers: nyala by default, both for record. With record, a server that is not named keeps its
    /// column from its last run
    #[arg(long, value_enum)]
    server: Option<ServerChoice>,
    /// Path of a built nyala program
    #[arg(long, value_name = "PROGRAM")]
    nyala: Option<PathBuf>,
    /// With upstream or record: only these classes
    #[arg(long, value_name = "NAME")]
    class: Vec<String>,
    /// With upstream or record: at most this many masters, where the tests ask for three
    #[arg(long, default_value_t = 3)]
    masters_max: usize,
    /// With secure-nemesis: only the faults of a pull request
    #[arg(long)]
    short: bool,
    /// With record: write the page from each class's last run and run nothing
    #[arg(long)]
    last: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The real kudu tool
    Tool,
    /// Our program on the real Java client
    Java,
    /// The real kudu tool where encryption is required
    Security,
    /// A replicated cluster under load, with faults
    Nemesis,
    /// The same where encryption and tickets are required
    SecureNemesis,
    /// The commands of node/RUNBOOKS.md, after the failures that they are for
    Runbooks,
    /// Upstream's own tests that must pass
    Upstream,
    /// A Spark application on upstream's connector
    Spark,
    /// Upstream's own tests of that connector; only if named
    SparkUpstream,
    /// SQL of Flink; only if named
    Flink,
    /// Pipelines of Beam; only if named
    Beam,
    /// SQL of Trino; only if named
    Trino,
    /// Routes of Camel; only if named
    Camel,
    /// The processor of NiFi; only if named
    Nifi,
    /// Java clients back to 1.9; only if named
    OldClients,
    /// All of upstream's own tests, against nyala and real Kudu, and the compatibility page; only if named
    Record,
}

impl InteropOptions {
    /// Returns true if a part of a pull request is to run.
    fn wants(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }
}

/// Clients that run at night, or if they are named.
const OTHER_CLIENTS: [(Part, &[clients::ClientJob]); 6] = [
    (Part::Flink, clients::FLINK),
    (Part::Beam, clients::BEAM),
    (Part::Trino, clients::TRINO),
    (Part::Camel, clients::CAMEL),
    (Part::Nifi, clients::NIFI),
    (Part::OldClients, clients::OLD_CLIENTS),
];

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServerChoice {
    Nyala,
    /// Real Kudu, as the reference
    Kudu,
}

/// Context of every part.
struct Interop {
    root: PathBuf,
    target: PathBuf,
    packages: Packages,
    server: ServerKind,
}

impl Interop {
    fn real(&self) -> ServerKind {
        real(&self.packages)
    }
}

/// Runs the parts, each as separate steps.
pub(crate) fn run(root: &Path, options: &InteropOptions, steps: &mut Steps) {
    let mut prepared = None;
    steps.run("interop: packages and programs", || {
        prepared = Some(prepare(root, options)?);
        Ok(())
    });
    let Some(context) = prepared else { return };
    // The packages first: both sides ask for them.
    tools::try_kerberos();
    // Upstream's tests wait more than they compute, and last longer than everything else.
    let upstream = |steps: &mut Steps| upstream_parts(&context, options, steps);
    steps.run_beside(upstream, |steps| own_parts(&context, options, steps));
    let mut client = |jobs| clients::run(root, &context.target, &context.server, jobs, steps);
    if options.wants(Part::Spark) {
        client(clients::SPARK);
    }
    let named = OTHER_CLIENTS.iter().filter(|(part, _)| options.parts.contains(part));
    named.for_each(|(_, jobs)| client(jobs));
    if options.parts.contains(&Part::Record) {
        record(&context, options, steps);
    }
}

/// Runs our own checks with upstream's programs.
fn own_parts(context: &Interop, options: &InteropOptions, steps: &mut Steps) {
    let Interop { root, target, packages, server } = context;
    if options.wants(Part::Tool) || options.wants(Part::Java) {
        on_one_cluster(context, options.wants(Part::Tool), options.wants(Part::Java), steps);
    }
    if options.wants(Part::Security) {
        security::check_all(target, packages, server, steps);
        if tools::try_kerberos() {
            security::check_kerberos(target, packages, server, steps);
        }
    }
    if options.wants(Part::Nemesis) {
        nemesis::run(root, target, packages, server, steps);
    }
    if options.wants(Part::SecureNemesis) && tools::try_kerberos() {
        let short = options.short || options.parts.is_empty();
        let faults = if short { NemesisFaults::Short } else { NemesisFaults::All };
        nemesis::run_secure(root, target, packages, server, faults, steps);
    }
    if options.wants(Part::Runbooks) {
        runbooks::run(root, target, server, steps);
    }
}

/// Runs upstream's own tests.
fn upstream_parts(context: &Interop, options: &InteropOptions, steps: &mut Steps) {
    if options.wants(Part::Upstream) {
        upstream(context, options, (of_java, upstream::JAVA_CLASSES), steps);
    }
    if options.parts.contains(&Part::SparkUpstream) {
        upstream(context, options, (of_spark, upstream::SPARK_CLASSES), steps);
    }
}

fn prepare(root: &Path, options: &InteropOptions) -> Result<Interop> {
    let target = target_dir()?.join("interop");
    let packages = Packages::fetch(root, &target)?;
    let server =
        server(root, options.server.unwrap_or(ServerChoice::Nyala), options.nyala.as_deref(), &packages)?;
    Ok(Interop { root: root.to_path_buf(), target, packages, server })
}

/// Returns the servers to start; builds nyala if no program was given.
pub(crate) fn server(
    root: &Path,
    which: ServerChoice,
    nyala: Option<&Path>,
    packages: &Packages,
) -> Result<ServerKind> {
    if which == ServerChoice::Kudu {
        return Ok(real(packages));
    }
    self::nyala(root, nyala)
}

/// Builds nyala's servers in the processor time that steps beside it leave.
pub(crate) fn build_in_idle_time(root: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    CommandLine::new("nice").dir(root).args(["-n", "15"]).args([cargo]).args(build_words()).run()
}

/// Returns cargo's arguments that build the program.
fn build_words() -> Vec<&'static str> {
    [&["build", "--quiet", "--release", "--package", "node"], tools::kerberos_feature()].concat()
}

/// Returns nyala's servers: this program, or one that is built now.
pub(crate) fn nyala(root: &Path, program: Option<&Path>) -> Result<ServerKind> {
    if let Some(program) = program {
        return Ok(ServerKind::Nyala(program.to_path_buf()));
    }
    cargo(root, &build_words())?;
    Ok(ServerKind::Nyala(target_dir()?.join("release/nyala")))
}

/// Returns the servers of the real package.
fn real(packages: &Packages) -> ServerKind {
    ServerKind::Kudu(kudu_program(&packages.kudu()), kudu_env(&packages.kudu()).to_vec())
}

/// A cluster under test: nyala's from `nyala up`, or real Kudu's processes.
enum Started {
    Up(NyalaUp),
    Processes(Cluster),
}

impl Started {
    fn start(server: &ServerKind, dir: &Path) -> Result<Started> {
        match server {
            ServerKind::Nyala(program) => Ok(Started::Up(NyalaUp::start(program, dir)?)),
            ServerKind::Kudu(..) => {
                let plan = ClusterPlan { masters: 1, tablet_servers: 3, ..ClusterPlan::default() };
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

/// Runs tool and Java program against one fresh cluster.
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

/// Runs the classes of a suite that must pass, or the named ones.
fn upstream(context: &Interop, options: &InteropOptions, suite: (Prepare, &str), steps: &mut Steps) {
    let Some((suite, classes)) = prepare_suite(context, suite, steps) else { return };
    let Some(harness) = harness(context, &context.server, options.masters_max, steps) else { return };
    let named = !options.class.is_empty();
    let has_kerberos = tools::try_kerberos();
    let required = |expected: &upstream::TestClass| expected.required && (has_kerberos || !expected.kerberos);
    let judged = chosen(classes, options).filter(|(_, expected)| named || required(expected));
    let step = |(class, expected): (String, upstream::TestClass)| {
        let (suite, harness) = (&suite, &harness);
        let work = {
            let class = class.clone();
            move || suite.run(harness, &class, &expected.known)?.check(&expected)
        };
        (format!("upstream: {class}"), work)
    };
    // They wait more than they compute.
    steps.run_side_by_side(3, judged.map(step).collect());
}

/// Runs all of upstream's classes, or the named ones, against nyala and real Kudu, one after another. Others keep the
/// results of their last run. Failing tests are recorded and fail no step.
fn record(context: &Interop, options: &InteropOptions, steps: &mut Steps) {
    let java = (of_java as Prepare, upstream::JAVA_CLASSES);
    let Some((suite, classes)) = prepare_suite(context, java, steps) else { return };
    let nyala = match &context.server {
        ServerKind::Nyala(_) => context.server.clone(),
        // Its last results are read, and it is not run.
        ServerKind::Kudu(..) => ServerKind::Nyala(options.nyala.clone().unwrap_or_default()),
    };
    let sides = [(ServerChoice::Nyala, &nyala), (ServerChoice::Kudu, &context.real())];
    let mut harnesses = Vec::new();
    for (which, server) in sides {
        let Some(harness) = harness(context, server, options.masters_max, steps) else { return };
        let fresh = !options.last && options.server.is_none_or(|only| only == which);
        harnesses.push((harness, fresh));
    }
    let mut rows = Vec::new();
    for (class, expected) in classes {
        let named = options.class.is_empty() || options.class.contains(&class);
        let mut runs = harnesses.iter().map(|(harness, fresh)| match *fresh && named {
            true => run_class(&suite, harness, &class, steps),
            false => suite.last(harness, &class),
        });
        let (Some(nyala), Some(kudu)) = (runs.next(), runs.next()) else { continue };
        rows.push(report::ReportRow { class, expected, nyala, kudu });
    }
    steps.run("upstream: the page", || report::write(&context.root, &setting(options.masters_max), &rows));
}

fn run_class(
    suite: &upstream::Suite,
    harness: &upstream::Harness,
    class: &str,
    steps: &mut Steps,
) -> Result<upstream::ClassRun> {
    let mut ran = None;
    steps.run(&format!("upstream: {class} against {}", harness.name), || {
        let run = suite.run(harness, class, &BTreeMap::new())?;
        println!("{} of {} tests passed", run.passed(), run.outcomes.len());
        ran = Some(run);
        Ok(())
    });
    ran.context("it could not be run")
}

type Classes = BTreeMap<String, upstream::TestClass>;

fn chosen(classes: Classes, options: &InteropOptions) -> impl Iterator<Item = (String, upstream::TestClass)> {
    let named = |class: &String| options.class.is_empty() || options.class.contains(class);
    classes.into_iter().filter(move |(class, _)| named(class))
}

/// Function that prepares a suite.
type Prepare = fn(&Interop) -> Result<upstream::Suite>;

fn of_java(context: &Interop) -> Result<upstream::Suite> {
    upstream::Suite::of_java(&context.root, &context.target, &context.packages)
}

fn of_spark(context: &Interop) -> Result<upstream::Suite> {
    upstream::Suite::of_spark(&context.root, &context.target)
}

fn prepare_suite(
    context: &Interop,
    (prepare, classes): (Prepare, &str),
    steps: &mut Steps,
) -> Option<(upstream::Suite, Classes)> {
    let mut prepared = None;
    steps.run("upstream: compile its tests", || {
        prepared = Some((prepare(context)?, upstream::classes(&context.root, classes)?));
        Ok(())
    });
    prepared
}

fn harness(
    context: &Interop,
    server: &ServerKind,
    masters_max: usize,
    steps: &mut Steps,
) -> Option<upstream::Harness> {
    let name = server.name();
    let bin_dir = context.target.join(format!("bin-{name}"));
    let mut installed = None;
    steps.run(&format!("upstream: a program called kudu for {name}"), || {
        mini_cluster::install(&bin_dir, server, &context.packages.kudu(), masters_max)?;
        installed = Some(upstream::Harness { name, bin_dir });
        Ok(())
    });
    installed
}

/// Returns the report's line on how the clusters differ from those that the tests asked for.
fn setting(masters_max: usize) -> String {
    if masters_max < 3 {
        return format!("Tests that ask for three masters get {masters_max} of nyala's.");
    }
    "Clusters are as the tests ask for them.".to_owned()
}
