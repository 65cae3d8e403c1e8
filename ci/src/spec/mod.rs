//! `cargo ci spec`: the models of `spec`, the spec mutants, and the code's traces.
//!
//! Every model must hold, every mutant must be killed by the property named for it, and the spec must allow every
//! trace. TLC does the work; here it is fetched, configured and its output read.

mod code_mutant_traces;
mod directed;
mod model;
mod options;
mod report;
mod spec_mutants;
mod tla;
mod tlc;
mod trace;
mod trace_checking;
mod traces;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::steps::Steps;
use model::{Model, Size};
use options::RANDOM_GROUP_STEPS;
pub(crate) use options::SpecOptions;
use report::{ModelRow, MutantRow};
use spec_mutants::SpecMutant;
use tlc::{RandomWalk, Tlc, TlcOutcome, TlcVerdict};
use traces::{kept_traces, random_group_traces, sim_traces, trace_files};

/// Steps of one random behaviour in the deep models.
const WALK_DEPTH: u32 = 120;

/// Runs the checks of every pull request.
pub(crate) fn smoke(root: &Path, steps: &mut Steps) {
    steps.run("spec", || {
        let tlc = Tlc::fetch(root, 2)?;
        models(root, &tlc, Size::Smoke).map(|_| ())?;
        kept_traces(root, &tlc)
    });
}

pub(crate) fn run(root: &Path, options: &SpecOptions, steps: &mut Steps) {
    let tlc = match Tlc::fetch(root, options.workers) {
        Ok(tlc) => tlc,
        Err(error) => return steps.run("TLC", || Err(error)),
    };
    if options.smoke || !options.chooses() {
        let sizes = if options.smoke { vec![Size::Smoke] } else { vec![Size::Smoke, Size::Full] };
        steps.run("models", || {
            let rows =
                sizes.iter().map(|size| models(root, &tlc, *size)).collect::<Result<Vec<_>>>()?.concat();
            if options.write { report::write(root, "models", &report::models(&rows)) } else { Ok(()) }
        });
        steps.run("traces", || kept_traces(root, &tlc));
    }
    if options.mutants {
        steps.run("mutants", || {
            let rows = mutants(root, &tlc, options.only.as_deref())?;
            if options.write { report::write(root, "mutants", &report::mutants(&rows)) } else { Ok(()) }
        });
    }
    if options.deep {
        steps.run("deep", || deep(root, &tlc, options));
    }
    if options.directed {
        let (seed, walks, only) = (options.seed, options.walks, options.only.as_deref());
        steps.run("directed", || directed::run(root, &tlc, seed, walks, only, options.write));
    }
    if options.planted {
        let only = options.only.as_deref();
        steps.run("planted", || code_mutant_traces::run(root, &tlc, only, RANDOM_GROUP_STEPS, options.write));
    }
    if let Some(count) = options.traces {
        steps.run("traces", || sim_traces(root, &tlc, options, count));
    }
    if let Some(count) = options.random_groups {
        steps.run("random groups", || random_group_traces(root, &tlc, options.seed, count));
    }
    if let Some(path) = &options.trace_files {
        steps.run("traces", || trace_files(root, &tlc, path));
    }
}

/// Checks the models of one size; the first violated one is the error.
fn models(root: &Path, tlc: &Tlc, size: Size) -> Result<Vec<ModelRow>> {
    let all = Model::all(&root.join("spec"))?;
    let listed = SpecMutant::parse_all(&fs::read_to_string(root.join("spec/mutants.txt"))?)?;
    spec_mutants::every_property_bites(&all, &listed)?;
    let mut rows = Vec::new();
    for model in all.iter().filter(|model| model.size == size) {
        let run = tlc.folder(&root.join("spec"), &model.name)?;
        let outcome = tlc.check(&run, &model.module, model.config())?;
        ensure!(
            outcome.verdict == TlcVerdict::Holds,
            "{} does not hold: {}",
            model.name,
            complaint(&outcome)
        );
        let row = ModelRow { model: model.clone(), outcome };
        println!("{}", row.line());
        rows.push(row);
    }
    Ok(rows)
}

/// Returns the verdict with the behaviour that led to it.
fn complaint(outcome: &TlcOutcome) -> String {
    let behaviour = outcome.output.find("Error: The behavior up to this point is:");
    format!("{:?}\n{}", outcome.verdict, behaviour.map_or("", |at| &outcome.output[at..]))
}

fn mutants(root: &Path, tlc: &Tlc, only: Option<&str>) -> Result<Vec<MutantRow>> {
    let spec = root.join("spec");
    let models = Model::all(&spec)?;
    let mutants = SpecMutant::parse_all(&fs::read_to_string(spec.join("mutants.txt"))?)?;
    spec_mutants::every_property_bites(&models, &mutants)?;
    let mut rows = Vec::new();
    let mut survived = Vec::new();
    for mutant in mutants.into_iter().filter(|mutant| only.is_none_or(|text| mutant.is_about(text))) {
        let (module, config) = mutant.config(&models)?;
        let run = tlc.folder(&spec, &format!("{}-{}-{}", mutant.model, mutant.guard, mutant.property))?;
        let outcome = tlc.check(&run, &module, &config)?;
        let rejected = match &outcome.verdict {
            TlcVerdict::Violated(name) => name.is_empty() || *name == mutant.property,
            TlcVerdict::Broken(error) => bail!("{} without {}: {error}", mutant.model, mutant.guard),
            TlcVerdict::Holds | TlcVerdict::OutOfTime => false,
        };
        if !rejected {
            survived.push(format!("{} without {} keeps {}", mutant.model, mutant.guard, mutant.property));
        }
        let row = MutantRow { mutant, outcome, rejected };
        println!("{}", row.line());
        rows.push(row);
    }
    ensure!(survived.is_empty(), "not rejected: {}", survived.join("; "));
    Ok(rows)
}

/// Walks in each deep model for its share of the time.
fn deep(root: &Path, tlc: &Tlc, options: &SpecOptions) -> Result<()> {
    let models = Model::all(&root.join("spec"))?;
    let deep: Vec<&Model> = models.iter().filter(|model| model.size == Size::Deep).collect();
    let share = Duration::from_secs(options.minutes * 60) / u32::try_from(deep.len().max(1))?;
    for model in deep {
        let run = tlc.folder(&root.join("spec"), &model.name)?;
        let (seed, behaviours) = (options.seed, i32::MAX as u64);
        let walk = RandomWalk { depth: WALK_DEPTH, seed, behaviours, keep: false, time: share };
        let outcome = tlc.simulate(&run, &model.module, model.config(), &walk)?;
        match outcome.verdict {
            TlcVerdict::OutOfTime | TlcVerdict::Holds => {
                println!("{}: seed {}, {}", model.name, options.seed, report::walked(&outcome));
            }
            _ => bail!("{}, seed {}: {}", model.name, options.seed, complaint(&outcome)),
        }
    }
    Ok(())
}
