//! The plan that a command runs: a seed or a file, and the world to run it in.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use super::arguments;
use crate::run::WorldKind;
use sim_plan::{FaultProfile, Plan, PlanSize};

/// A plan and the world to run it in.
#[derive(Args, Debug, Clone)]
pub(crate) struct PlanSource {
    /// A seed, or the path of a plan
    #[arg(value_parser = arguments::some_text())]
    pub what: String,
    #[command(flatten)]
    pub options: RunOptions,
}

/// Options for generating and running plans.
#[derive(Args, Debug, Clone)]
pub(crate) struct RunOptions {
    /// The world to run in
    #[arg(long, default_value = "madsim", value_parser = arguments::one_of::<WorldKind>())]
    pub world: WorldKind,
    /// Faults to draw from
    #[arg(long, default_value = "swarm", value_parser = arguments::one_of::<FaultProfile>())]
    pub profile: FaultProfile,
    /// Size of plans
    #[arg(long, default_value = "full", value_parser = arguments::one_of::<PlanSize>())]
    pub size: PlanSize,
}

/// World, and kinds of plans that a search draws from.
#[derive(Args, Debug, Clone)]
pub(crate) struct SearchedPlans {
    /// The world to run in
    #[arg(long, default_value = "madsim", value_parser = arguments::one_of::<WorldKind>())]
    pub world: WorldKind,
    /// Profiles of plans, separated by commas
    #[arg(long, value_delimiter = ',', value_parser = arguments::one_of::<FaultProfile>(),
          default_value = "swarm,crash,disk,network,copy,memory,clock,calm,tables")]
    pub profile: Vec<FaultProfile>,
    /// Sizes of plans, separated by commas
    #[arg(long, default_value = "smoke,full", value_delimiter = ',',
          value_parser = arguments::one_of::<PlanSize>())]
    pub size: Vec<PlanSize>,
}

impl PlanSource {
    /// Returns the plan, generated or read.
    pub(crate) fn plan(&self) -> Result<Plan> {
        match self.what.parse() {
            Ok(seed) => Ok(self.options.plan(seed)),
            Err(_) => read_plan(&PathBuf::from(&self.what)),
        }
    }

    /// Returns the base name of this run's files: world, profile, size and seed, or the plan's file name.
    pub(crate) fn file_name(&self) -> String {
        let RunOptions { world, profile, size } = &self.options;
        let what = match self.what.parse::<u64>() {
            Ok(seed) => format!("{}-{}-{seed}", profile.word(), size.word()),
            Err(_) => Path::new(&self.what).file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        };
        format!("{}-{what}", world.word())
    }

    /// Returns the arguments that name this plan on a command line.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = vec![self.what.clone()];
        words.extend(self.options.words());
        words
    }
}

impl RunOptions {
    pub(crate) fn plan(&self, seed: u64) -> Plan {
        Plan::generate(seed, self.profile, self.size)
    }

    pub(crate) fn words(&self) -> Vec<String> {
        let pairs = [
            ("--world", self.world.word()),
            ("--profile", self.profile.word()),
            ("--size", self.size.word()),
        ];
        pairs.iter().flat_map(|(name, value)| [name.to_string(), value.to_string()]).collect()
    }
}

pub(crate) fn read_plan(path: &Path) -> Result<Plan> {
    let name = path.display();
    if !path.is_file() {
        return Err(arguments::wrong(format!("{name}: neither a seed nor a file; give one of them")));
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("reading the plan {name}"))?;
    text.parse().map_err(|error| arguments::wrong(format!("{name}: {error}")))
}

/// Prints as much of the plan as the reader takes: `head`, for one, closes the pipe early.
pub(crate) fn print_plan(plan: &Plan) -> Result<bool> {
    match std::io::stdout().lock().write_all(plan.to_string().as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("printing the plan")
        }
        _ => Ok(true),
    }
}
