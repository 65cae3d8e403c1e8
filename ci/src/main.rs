//! `cargo ci [word]`: everything a pull request must pass, each part by its word, and the words that repair.
//!
//! A word is a list of steps. Every step runs, even after one failed; each prints its seconds, and the last line
//! counts them. Without a word all the checks run. No check ever writes into the source tree: `fix` and `bless` do.
//!
//! Not here: what the steps check; each module says so for itself.

mod arrows;
mod bench;
mod code_mutants;
mod command;
mod counts;
mod coverage;
mod explore;
mod fuzz;
mod interop;
mod mutants;
mod overload;
/// The wire's messages, as the node has them.
#[allow(dead_code, clippy::all, rustdoc::all)]
#[rustfmt::skip]
#[path = "../../node/src/proto/mod.rs"]
mod pb;
mod profile;
mod programs;
mod proto;
mod sim;
mod spec;
mod steps;
mod tidy;
mod versus;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use command::cargo;
use steps::Steps;

/// Runs what a pull request needs (no word), or one part of it.
#[derive(Parser)]
#[command(name = "cargo ci", bin_name = "cargo ci")]
struct Args {
    #[command(subcommand)]
    word: Option<Word>,
}

#[derive(Subcommand)]
enum Word {
    /// Formatting, by rustfmt
    Fmt,
    /// Lints of all targets, warnings denied
    Clippy,
    /// Sizes, module docs, licence, generated sources, no package registry named
    Tidy,
    /// Which module may import which
    Arrows,
    /// Every test of the workspace
    Test,
    /// What threads share, in every order of their steps: loom, further than `cargo ci` goes
    Loom,
    /// The tests of unsafe code under Miri, which needs a nightly toolchain
    Miri,
    /// Searches for inputs that break the fuzz targets, which needs a nightly toolchain and cargo-fuzz
    Fuzz(fuzz::Options),
    /// Which lines the tests run, with bars for engine and wire, which needs cargo-llvm-cov
    Coverage(coverage::Options),
    /// Small faults planted in encodings, keys, MVCC and Raft, which tests must see; needs cargo-mutants
    CodeMutants(code_mutants::Options),
    /// The real kudu tool and the real Java client against nyala's servers
    Interop(interop::Options),
    /// Model-checks spec/ with TLC, its mutants, and the code's traces against it
    Spec(spec::Options),
    /// Seeds in both simulated worlds, every kept plan, and seeds run twice
    Sim,
    /// Instructions of the hot paths, by callgrind, compared with benches/COUNTS.toml
    Counts(counts::Options),
    /// Times the hot paths and more, and says what moved since the baseline
    Bench(bench::Options),
    /// A flame graph and a summary of allocations of a workload, in a folder under target
    Profile(profile::Options),
    /// Measures nyala beside real Kudu and writes the pages benches/VERSUS*.md
    Versus(versus::Options),
    /// More writes than a server can take, and a folder with the figures of that
    Overload(overload::Options),
    /// What upstream's harness starts under the name of `kudu`
    #[command(hide = true)]
    StandIn(interop::stand_in::Options),
    /// Repairs what can be repaired: generated sources, lints with a known fix, formatting
    Fix,
    /// Rewrites the expectations of transcript and expect tests to what the code says now; review the diff
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
        None | Some(Word::StandIn(_)) => checks(&root, &mut steps),
        Some(Word::Fmt) => fmt(&root, &mut steps),
        Some(Word::Clippy) => clippy(&root, &mut steps),
        Some(Word::Tidy) => tidy_steps(&root, &mut steps),
        Some(Word::Arrows) => steps.run("arrows", || arrows::check(&root)),
        Some(Word::Test) => test(&root, &mut steps),
        Some(Word::Loom) => steps.run("loom", || explore::loom(&root, true)),
        Some(Word::Miri) => steps.run("miri", || explore::miri(&root)),
        Some(Word::Fuzz(options)) => fuzz::run(&root, &options, &mut steps),
        Some(Word::Coverage(options)) => steps.run("coverage", || coverage::run(&root, &options)),
        Some(Word::CodeMutants(options)) => code_mutants::run(&root, &options, &mut steps),
        Some(Word::Interop(options)) => interop::run(&root, &options, &mut steps),
        Some(Word::Spec(options)) => spec::run(&root, &options, &mut steps),
        Some(Word::Sim) => sim::run(&root, &mut steps),
        Some(Word::Counts(options)) => steps.run("counts", || counts::run(&root, &options)),
        Some(Word::Bench(options)) => steps.run("bench", || bench::run(&root, &options)),
        Some(Word::Profile(options)) => steps.run("profile", || profile::run(&root, &options)),
        Some(Word::Versus(options)) => versus::run(&root, &options, &mut steps),
        Some(Word::Overload(options)) => steps.run("overload", || overload::run(&root, &options)),
        Some(Word::Fix) => fix(&root, &mut steps),
        Some(Word::Bless) => bless(&root, &mut steps),
    }
    steps.finish()
}

/// Its stdout belongs to the harness: no step is announced.
fn stand_in(options: &interop::stand_in::Options) -> ExitCode {
    match interop::stand_in::run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kudu (stand-in): {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's folder: of the tree that cargo was called in, as a `target` folder may have come from another one.
fn root() -> PathBuf {
    let ci = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&ci).parent().expect("ci lies in the workspace's folder").to_path_buf()
}

/// All that a pull request needs, cheapest first.
fn checks(root: &Path, steps: &mut Steps) {
    fmt(root, steps);
    tidy_steps(root, steps);
    steps.run("arrows", || arrows::check(root));
    clippy(root, steps);
    spec::smoke(root, steps);
    test(root, steps);
    steps.run("loom", || explore::loom(root, false));
    sim::run(root, steps);
    steps.run("counts", || counts::check(root));
    interop::run(root, &interop::Options::parse_from(["interop"]), steps);
}

fn fmt(root: &Path, steps: &mut Steps) {
    steps.run("fmt", || cargo(root, &["fmt", "--all", "--check"]));
}

fn clippy(root: &Path, steps: &mut Steps) {
    let words = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];
    steps.run("clippy", || cargo(root, &words));
}

fn tidy_steps(root: &Path, steps: &mut Steps) {
    steps.run("tidy", || tidy::check(root));
    steps.run("proto", || proto::check(root));
    steps.run("mutants", || mutants::check(root));
}

fn test(root: &Path, steps: &mut Steps) {
    steps.run("test", || cargo(root, &["test", "--quiet", "--workspace", "--no-fail-fast"]));
}

fn fix(root: &Path, steps: &mut Steps) {
    let clippy = ["clippy", "--workspace", "--all-targets", "--fix", "--allow-dirty", "--allow-staged"];
    steps.run("proto", || proto::write(root));
    steps.run("clippy --fix", || cargo(root, &clippy));
    steps.run("fmt", || cargo(root, &["fmt", "--all"]));
}

/// datadriven reads `REWRITE`, expect-test `UPDATE_EXPECT`, insta `INSTA_UPDATE`; each rewrites its own files.
/// Other tests are not run to success here, so a failure of theirs is no failure of blessing.
fn bless(root: &Path, steps: &mut Steps) {
    steps.run("bless", || {
        command::Run::cargo(root)
            .args(["test", "--quiet", "--workspace", "--no-fail-fast"])
            .env("REWRITE", "1")
            .env("UPDATE_EXPECT", "1")
            .env("INSTA_UPDATE", "always")
            .env("INSTA_FORCE_PASS", "1")
            .run()
    });
}
