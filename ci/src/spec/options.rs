//! Options of the checks of the specs.

use std::path::PathBuf;

use anyhow::Result;

/// Steps of one randomized Raft test: about 600 events.
pub(super) const RANDOM_GROUP_STEPS: u64 = 12_000;

/// Checks to run; by default the smoke and the full models, and the traces in `spec/traces`.
#[derive(clap::Args)]
pub(crate) struct SpecOptions {
    /// Only the small models and the traces kept in spec/traces
    #[arg(long)]
    pub(super) smoke: bool,
    /// The spec mutants: each must be rejected by the property named for it
    #[arg(long)]
    pub(super) mutants: bool,
    /// Random behaviours of the deep models
    #[arg(long)]
    pub(super) deep: bool,
    /// Time for all walks of the deep models together, in minutes
    #[arg(long, default_value_t = 10)]
    pub(super) minutes: u64,
    /// Traces of this many seeds of the simulator, faults on
    #[arg(long, value_name = "N")]
    pub(super) traces: Option<u64>,
    /// With --traces: fault profiles, as for `cargo sim run --profile`; each gets its share of the seeds
    #[arg(long, value_delimiter = ',', default_value = "swarm,disk")]
    pub(super) profile: Vec<String>,
    /// With --traces: size of the runs, as for `cargo sim run --size`
    #[arg(long, default_value = "full")]
    pub(super) size: String,
    /// Traces of this many seeds of the randomized Raft tests, faults on
    #[arg(long, value_name = "N")]
    pub(super) random_groups: Option<u64>,
    /// Drive the code along behaviours of the models and counterexamples of the spec mutants
    #[arg(long)]
    pub(super) directed: bool,
    /// With --directed: random behaviours of each model
    #[arg(long, default_value_t = 25)]
    pub(super) walks: u64,
    /// Code mutants of sim/mutants, which trace checking must kill
    #[arg(long, alias = "code-mutants")]
    pub(super) planted: bool,
    /// The trace files in this folder, or this file
    #[arg(long, value_name = "PATH")]
    pub(super) trace_files: Option<PathBuf>,
    /// With --mutants, --directed and --planted: only those with this text in the name of model, guard, property or
    /// file
    #[arg(long, value_name = "TEXT")]
    pub(super) only: Option<String>,
    /// TLC's threads
    #[arg(long, default_value_t = 2)]
    pub(super) workers: u32,
    /// The first seed of --traces, --random-groups and --deep
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Write the results into the tables of spec/README.md
    #[arg(long)]
    pub(super) write: bool,
}

impl SpecOptions {
    pub(super) fn chooses(&self) -> bool {
        let traces = self.traces.is_some() || self.random_groups.is_some() || self.trace_files.is_some();
        self.smoke || self.mutants || self.deep || self.directed || self.planted || traces
    }
}

/// Returns the path of an example: beside this program, which the same cargo built.
pub(super) fn example(name: &str) -> Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("examples").join(name))
}
