//! `cargo ci [command]`: the checks of a pull request, each of them alone, and the commands that fix and bless.
//!
//! ```text
//!   cargo ci            fmt · tidy · arrows · clippy · test beside the program's build, spec (smoke) and python ·
//!                       sim, loom and counts beside a soak of eight minutes · interop
//!   cargo ci WORD       one of these, or a longer one: miri fuzz coverage code-mutants bench profile versus overload
//!   cargo ci fix|bless  the only ones that write into the source tree by default
//! ```
//!
//! A command is a list of steps. Every step runs, also after a failed one; each prints its seconds, and the last line
//! counts them.
//!
//! *Not here:* the checks themselves; see the module of each.

mod alerts;
mod arrows;
mod axe;
mod bench;
mod chart;
mod code_mutants;
mod command;
mod concurrency;
mod counts;
mod coverage;
mod fuzz;
mod interop;
mod lean;
mod mutant_patches;
mod nyala_up;
mod overload;
mod package;
mod pages;
mod profile;
mod proto;
mod python;
mod readme;
mod sim;
mod site;
mod spec;
mod steps;
mod test_cluster;
mod tidy;
mod tools;
mod versus;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use command::{CommandLine, Compiler, cargo};
use steps::Steps;

/// Checks a change as a pull request does (no command), or runs one part of that
#[derive(Parser)]
#[command(name = "cargo ci", bin_name = "cargo ci", args_conflicts_with_subcommands = true)]
struct Args {
    /// Delete what a part of the whole run has built as soon as no later part needs it
    #[arg(long)]
    lean: bool,
    #[command(subcommand)]
    word: Option<Word>,
}

#[derive(Subcommand)]
enum Word {
    /// Check formatting, lints, unit tests and a few seeds, for use between edits
    Quick,
    /// Build the API documentation, warnings denied
    Doc,
    /// Run every shell block of README.md
    Readme,
    /// Check formatting with rustfmt
    Fmt,
    /// Lint all targets with clippy, warnings denied
    Clippy,
    /// Check sizes, module docs, words, names, cited paths, licence, generated sources and mutant patches
    Tidy(tidy::TidyOptions),
    /// Check module dependencies and import cycles
    #[command(alias = "layers")]
    Arrows,
    /// Run every test of the workspace
    Test,
    /// Explore interleavings of concurrent code with loom, further than `cargo ci` does
    Loom,
    /// Run the tests of unsafe code under Miri; needs a nightly toolchain
    Miri,
    /// Search for crash inputs of the fuzz targets; needs a nightly toolchain and cargo-fuzz
    Fuzz(fuzz::FuzzOptions),
    /// Measure line coverage, with thresholds for engine and wire; needs cargo-llvm-cov
    Coverage(coverage::CoverageOptions),
    /// Run mutants of encodings, keys, MVCC and Raft, which tests must kill; needs cargo-mutants
    CodeMutants(code_mutants::CodeMutantOptions),
    /// Build the Debian package and try it in a fresh system
    Package(package::PackageOptions),
    /// Test the Python package against a cluster
    Python(python::PythonOptions),
    /// Run the real kudu tool and Java client against nyala's servers
    Interop(interop::InteropOptions),
    /// Run a cluster for hours under load, with faults drawn at random; nothing may be lost
    Soak(interop::soak::SoakOptions),
    /// Upgrade a cluster from an older program under load, go back, upgrade and finalize
    Upgrade(interop::upgrade::UpgradeOptions),
    /// Model-check spec/ with TLC, run its mutants, and check the code's traces against it
    Spec(spec::SpecOptions),
    /// Run seeds in both simulated worlds, every kept plan, and the determinism check
    Sim,
    /// Count instructions of the hot paths with callgrind and compare with benches/COUNTS.toml
    Counts(counts::CountsOptions),
    /// Time hot paths and tablets, and print changes since the baseline
    Bench(bench::BenchOptions),
    /// Profile a workload: a flame graph and a summary of allocations, or contention by site, in a folder under target
    Profile(profile::ProfileOptions),
    /// Measure nyala beside real Kudu and write the reports benches/VERSUS*.md
    Versus(versus::VersusOptions),
    /// Write more than a server can take, and chart throughput, latency and memory
    Overload(overload::OverloadOptions),
    /// Load the web pages in headless Chromium, keep screenshots, check accessibility; needs chromium and npm
    Pages(pages::PageOptions),
    /// Check and test the alerts, also by a real Prometheus that scrapes a cluster; needs prometheus
    Alerts,
    /// Check the Helm chart and the manifests made from it against the schemas; needs helm and Python
    Chart(chart::ChartOptions),
    /// Build the documentation site in target/site and check its links; needs mdbook
    Site,
    /// Replacement for the `kudu` program in upstream's harness
    #[command(hide = true)]
    StandIn(interop::mini_cluster::MiniClusterOptions),
    /// Fix what can be fixed automatically: generated sources, lints, formatting
    Fix,
    /// Rewrite the expectations of transcript and snapshot tests; review the diff
    Bless,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Word::StandIn(options)) = &args.word {
        return stand_in(options);
    }
    let root = root();
    let mut steps = Steps::default();
    match args.word {
        None | Some(Word::StandIn(_)) => checks(&root, &lean::Lean(args.lean), &mut steps),
        Some(Word::Quick) => quick(&root, &mut steps),
        Some(Word::Doc) => doc(&root, &["--workspace"], &mut steps),
        Some(Word::Readme) => steps.run("readme", || readme::check(&root)),
        Some(Word::Fmt) => fmt(&root, &mut steps),
        Some(Word::Clippy) => clippy(&root, &mut steps),
        Some(Word::Tidy(options)) => tidy_steps(&root, &options, &mut steps),
        Some(Word::Arrows) => steps.run("arrows", || arrows::check(&root)),
        Some(Word::Test) => test(&root, Compiler::Rustc, &mut steps),
        Some(Word::Loom) => steps.run("loom", || concurrency::loom(&root, true)),
        Some(Word::Miri) => steps.run("miri", || concurrency::miri(&root)),
        Some(Word::Fuzz(options)) => fuzz::run(&root, &options, &mut steps),
        Some(Word::Coverage(options)) => steps.run("coverage", || coverage::run(&root, &options)),
        Some(Word::CodeMutants(options)) => code_mutants::run(&root, &options, &mut steps),
        Some(Word::Interop(options)) => interop::run(&root, &options, &mut steps),
        Some(Word::Soak(options)) => interop::soak::run(&root, &options, &mut steps),
        Some(Word::Upgrade(options)) => interop::upgrade::run(&root, &options, &mut steps),
        Some(Word::Spec(options)) => spec::run(&root, &options, &mut steps),
        Some(Word::Sim) => sim::run(&root, &mut steps),
        Some(Word::Counts(options)) => steps.run("counts", || counts::run(&root, &options)),
        Some(Word::Bench(options)) => steps.run("bench", || bench::run(&root, &options)),
        Some(Word::Package(options)) => package::run(&root, &options, &mut steps),
        Some(Word::Python(options)) => python::run(&root, &options, Compiler::Rustc, &mut steps),
        Some(Word::Profile(options)) => steps.run("profile", || profile::run(&root, &options)),
        Some(Word::Versus(options)) => versus::run(&root, &options, &mut steps),
        Some(Word::Overload(options)) => steps.run("overload", || overload::run(&root, &options)),
        Some(Word::Pages(options)) => pages::run(&root, &options, &mut steps),
        Some(Word::Chart(options)) => chart::run(&root, &options, &mut steps),
        Some(Word::Site) => site::run(&root, &mut steps),
        Some(Word::Alerts) => alerts::run(&root, &mut steps),
        Some(Word::Fix) => fix(&root, &mut steps),
        Some(Word::Bless) => bless(&root, &mut steps),
    }
    steps.finish()
}

/// Runs the replacement for `kudu`. Its stdout belongs to the harness: no step is announced.
fn stand_in(options: &interop::mini_cluster::MiniClusterOptions) -> ExitCode {
    match interop::mini_cluster::run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kudu (mini cluster): {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the workspace's folder: that of the calling cargo, as a `target` folder may have come from another tree.
fn root() -> PathBuf {
    let ci = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&ci).parent().expect("ci is in the workspace's folder").to_path_buf()
}

/// Runs all checks of a pull request, cheapest first.
fn checks(root: &Path, lean: &lean::Lean, steps: &mut Steps) {
    fmt(root, steps);
    tidy_steps(root, &tidy::TidyOptions::default(), steps);
    steps.run("arrows", || arrows::check(root));
    lint_and_build(root, steps);
    // The whole workspace's would check every library once more: `cargo ci doc` is a job of its own.
    doc(root, &["--package", "engine", "--package", "sim-plan"], steps);
    // Tests wait for processes and timers half of their time.
    let beside = |steps: &mut Steps| {
        steps.run("program", || interop::build_in_idle_time(root));
        spec::smoke(root, steps);
        python::run(root, &python::PythonOptions::default(), Compiler::Clippy, steps);
    };
    steps.run_beside(beside, |steps| test(root, Compiler::Clippy, steps));
    lean.drop_builds(&["debug"], steps);
    // Beside the soak: what takes minutes and does not depend on the machine's load.
    let soak = interop::soak::background::start(root, steps);
    sim::run(root, steps);
    lean.drop_builds(&["sim"], steps);
    steps.run("loom", || concurrency::loom(root, false));
    lean.drop_builds(&["loom/debug"], steps);
    steps.run("counts", || counts::check(root));
    if let Some(soak) = soak {
        soak.collect(steps);
    }
    interop::run(root, &interop::InteropOptions::parse_from(["interop"]), steps);
    steps.run("readme", || readme::check(root));
}

/// Runs the checks that find most mistakes within minutes: no integration tests, no real clients, few seeds.
fn quick(root: &Path, steps: &mut Steps) {
    fmt(root, steps);
    tidy_steps(root, &tidy::TidyOptions::default(), steps);
    steps.run("arrows", || arrows::check(root));
    clippy(root, steps);
    steps.run("unit tests", || cargo(root, &["test", "--quiet", "--workspace", "--lib", "--no-fail-fast"]));
    sim::quick(root, steps);
}

fn doc(root: &Path, packages: &[&str], steps: &mut Steps) {
    steps.run("doc", || {
        CommandLine::cargo(root)
            .args(["doc", "--quiet", "--no-deps"])
            .args(packages)
            .env("RUSTDOCFLAGS", "-D warnings")
            .run()
    });
}

fn fmt(root: &Path, steps: &mut Steps) {
    steps.run("fmt", || cargo(root, &["fmt", "--all", "--check"]));
}

fn clippy(root: &Path, steps: &mut Steps) {
    let words = ["clippy", "--quiet", "--workspace", "--all-targets"];
    let words = [&words, tools::kerberos_feature(), &["--", "-D", "warnings"]].concat();
    steps.run("clippy", || cargo(root, &words));
}

/// Lints all targets, and leaves the build that the tests run: a check alone would compile every library once more.
fn lint_and_build(root: &Path, steps: &mut Steps) {
    // The packages first: all is built with Kerberos if they are there.
    tools::try_kerberos();
    let words = ["build", "--quiet", "--workspace", "--all-targets"];
    let words = [&words, tools::kerberos_feature()].concat();
    steps.run("clippy", || Compiler::Clippy.cargo(root, &words));
}

fn tidy_steps(root: &Path, options: &tidy::TidyOptions, steps: &mut Steps) {
    steps.run("tidy", || tidy::run(root, options));
    steps.run("proto", || proto::check(root));
    steps.run("mutants", || mutant_patches::check(root));
}

fn test(root: &Path, compiler: Compiler, steps: &mut Steps) {
    // The packages first: the tests are built with Kerberos if they are there.
    tools::try_kerberos();
    let words = ["test", "--quiet", "--workspace", "--no-fail-fast"];
    steps.run("test", || compiler.cargo(root, &[&words, tools::kerberos_feature()].concat()));
}

fn fix(root: &Path, steps: &mut Steps) {
    let clippy = ["clippy", "--workspace", "--all-targets", "--fix", "--allow-dirty", "--allow-staged"];
    steps.run("proto", || proto::write(root));
    steps.run("clippy --fix", || cargo(root, &clippy));
    steps.run("fmt", || cargo(root, &["fmt", "--all"]));
}

/// Rewrites expectations: datadriven reads `REWRITE`, expect-test `UPDATE_EXPECT`, insta `INSTA_UPDATE`. Failures of
/// other tests do not fail the step.
fn bless(root: &Path, steps: &mut Steps) {
    steps.run("bless", || {
        command::CommandLine::cargo(root)
            .args(["test", "--quiet", "--workspace", "--no-fail-fast"])
            .args(tools::kerberos_feature())
            .env("REWRITE", "1")
            .env("UPDATE_EXPECT", "1")
            .env("INSTA_UPDATE", "always")
            .env("INSTA_FORCE_PASS", "1")
            .run()
    });
}
