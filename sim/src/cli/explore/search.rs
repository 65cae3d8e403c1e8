//! The search: which run comes next, and what is learnt from one that has ended.

use std::collections::BTreeMap;

use anyhow::Result;
use sim_plan::fault_weights::addable;
use sim_plan::mutate::{Mutation, MutationInput};
use sim_plan::{FaultKind, FaultProfile, Plan, PlanSize, RandomStream};

use super::aims::Aims;
use super::arms::Arms;
use super::corpus::{Corpus, name_of};
use super::curve::Curve;
use crate::cli::plan_source::{PlanSource, RunOptions};
use crate::cli::results;
use crate::cli::run_process::ChildOutput;
use crate::output::outln;
use crate::run::{RunOutcome, WorldKind};

/// Runs after which the corpus is saved.
const SAVE_EVERY: u64 = 500;
/// CPU time without anything new from children after which an exhausted search ends.
const BARREN_MS: u64 = 20 * 60 * 1_000;
/// Draws of a mutation that changes something.
const TRIES: u32 = 8;

/// Settings of a search.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub world: WorldKind,
    pub profiles: Vec<FaultProfile>,
    pub sizes: Vec<PlanSize>,
    /// The first fresh seed.
    pub first_seed: u64,
    /// Seed of the search's own draws.
    pub seed: u64,
    /// True for fresh seeds by hand-set weights only: the search that guidance is compared with.
    pub plain: bool,
}

/// Origin of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Origin {
    Fresh(FaultProfile, PlanSize),
    /// `kind`: the kind that was added.
    Child {
        parent: String,
        mutation: Mutation,
        kind: Option<FaultKind>,
    },
}

/// A run to make.
pub(super) struct Task {
    pub number: u64,
    pub origin: Origin,
    pub plan: Plan,
    pub options: RunOptions,
}

impl Task {
    pub(super) fn is_child(&self) -> bool {
        matches!(self.origin, Origin::Child { .. })
    }

    /// Returns the origin as text, for a comment in the plan.
    fn origin_text(&self) -> String {
        match &self.origin {
            Origin::Fresh(profile, size) => {
                format!("seed {} --profile {} --size {}", self.plan.seed, profile.word(), size.word())
            }
            Origin::Child { parent, mutation, kind } => {
                let kind = kind.map_or(String::new(), |kind| format!(" {}", kind.word()));
                format!("parent {parent} by {}{kind}", mutation.word())
            }
        }
    }
}

/// Numbers of a campaign.
#[derive(Debug, Default)]
struct Tally {
    fresh: u64,
    children: u64,
    fresh_failed: u64,
    failed: u64,
    /// Runs by children that added a feature.
    gains: u64,
    fresh_cpu_ms: u64,
    child_cpu_ms: u64,
    /// CPU time when a child last added a feature.
    gained_at_ms: u64,
}

impl Tally {
    fn cpu_ms(&self) -> u64 {
        self.fresh_cpu_ms + self.child_cpu_ms
    }
}

/// A search and all that it has learnt.
pub(super) struct Search {
    settings: Settings,
    random: RandomStream,
    corpus: Corpus,
    shapes: Arms<(FaultProfile, PlanSize)>,
    mutations: Arms<Mutation>,
    kinds: Arms<FaultKind>,
    aims: Aims,
    curve: Curve,
    begun: u64,
    next_seed: u64,
    tally: Tally,
}

impl Search {
    pub(super) fn new(settings: Settings, corpus: Corpus) -> Search {
        let known = corpus.weights().clone();
        let pairs = settings.profiles.iter().flat_map(|profile| {
            settings.sizes.iter().map(move |size| ((*profile, *size), hand_weight(*profile, *size)))
        });
        let shape = |(profile, size): (FaultProfile, PlanSize)| format!("{} {}", profile.word(), size.word());
        let shapes = Arms::new(pairs, shape, &known);
        let each = Mutation::ALL.iter().map(|mutation| (*mutation, 1));
        Search {
            random: RandomStream::new(settings.seed, "explore"),
            shapes,
            mutations: Arms::new(each, |mutation: Mutation| format!("mutation {}", mutation.word()), &known),
            kinds: Arms::new(addable(), |kind: FaultKind| format!("kind {}", kind.word()), &known),
            aims: Aims::default(),
            curve: Curve::default(),
            begun: 0,
            next_seed: settings.first_seed,
            tally: Tally::default(),
            corpus,
            settings,
        }
    }

    /// Returns the next run. Fresh seeds and children have half of the CPU time each: a fresh seed has trials, too, and
    /// costs as much as several children.
    pub(super) fn next(&mut self) -> Task {
        self.begun += 1;
        let child = self.tally.child_cpu_ms < self.tally.fresh_cpu_ms && !self.settings.plain;
        match child.then(|| self.child()).flatten() {
            Some((origin, plan)) => self.task(origin, plan, FaultProfile::Swarm, PlanSize::Full),
            None => self.fresh(),
        }
    }

    fn task(&self, origin: Origin, plan: Plan, profile: FaultProfile, size: PlanSize) -> Task {
        let options = RunOptions { world: self.settings.world, profile, size };
        Task { number: self.begun, origin, plan, options }
    }

    fn fresh(&mut self) -> Task {
        let (profile, size) = match self.settings.plain {
            true => self.shapes.by_weight(&mut self.random),
            false => self.shapes.choose(&mut self.random),
        };
        let plan = Plan::generate(self.next_seed, profile, size);
        self.next_seed += 1;
        self.task(Origin::Fresh(profile, size), plan, profile, size)
    }

    /// Returns a child of a plan of the corpus, if there is one.
    fn child(&mut self) -> Option<(Origin, Plan)> {
        let (parent, plan) = self.corpus.draw(&mut self.random)?;
        let (_, donor) = self.corpus.draw(&mut self.random)?;
        let triggers = self.aims.weights();
        for _ in 0..TRIES {
            let mutation = self.mutations.choose(&mut self.random);
            let kind = self.kinds.choose(&mut self.random);
            let input = MutationInput { mutation, kind, donor: &donor, triggers: &triggers };
            if let Some(child) = plan.mutated(&mut self.random, &input) {
                let kind = (mutation == Mutation::FaultIn).then_some(kind);
                return Some((Origin::Child { parent, mutation, kind }, child));
            }
        }
        None
    }

    /// Learns from a run that has ended.
    pub(super) fn finish(&mut self, task: &Task, output: &ChildOutput) -> Result<()> {
        let outcome = &output.outcome;
        let new = self.corpus.count(&output.features);
        self.learn(task, new.len(), outcome.cpu_ms);
        self.aims.add(&outcome.marks);
        if !task.is_child() {
            self.curve.add(&output.features);
        }
        if !outcome.failures.is_empty() {
            self.report_failure(task, outcome)?;
        } else if !new.is_empty() && !self.settings.plain {
            self.corpus.keep(&task.plan, &task.origin_text(), outcome.cpu_ms, new)?;
        }
        if self.runs().is_multiple_of(SAVE_EVERY) { self.save() } else { Ok(()) }
    }

    fn learn(&mut self, task: &Task, new: usize, cpu_ms: u64) {
        let cpu_s = cpu_ms as f64 / 1e3;
        match &task.origin {
            Origin::Fresh(profile, size) => {
                self.tally.fresh += 1;
                self.tally.fresh_cpu_ms += cpu_ms;
                self.shapes.learn((*profile, *size), new, cpu_s);
            }
            Origin::Child { mutation, kind, .. } => {
                self.tally.children += 1;
                self.tally.child_cpu_ms += cpu_ms;
                self.mutations.learn(*mutation, new, cpu_s);
                if let Some(kind) = kind {
                    self.kinds.learn(*kind, new, cpu_s);
                }
                if new > 0 {
                    self.tally.gains += 1;
                    self.tally.gained_at_ms = self.tally.cpu_ms();
                }
            }
        }
    }

    /// Keeps the plan of a failed run, and prints the violations with the command that repeats them.
    fn report_failure(&mut self, task: &Task, outcome: &RunOutcome) -> Result<()> {
        self.tally.failed += 1;
        let path = self.corpus.keep_failed(&task.plan, &task.origin_text())?;
        let kept = path.display().to_string();
        let what = match task.is_child() {
            true => kept,
            false => {
                self.tally.fresh_failed += 1;
                outln!("plan {kept}");
                task.plan.seed.to_string()
            }
        };
        results::print_failures(outcome, &PlanSource { what, options: task.options.clone() });
        Ok(())
    }

    /// Returns true if neither fresh seeds nor the corpus are likely to show anything new.
    pub(super) fn is_over(&self) -> bool {
        let barren = self.tally.cpu_ms().saturating_sub(self.tally.gained_at_ms) >= BARREN_MS;
        barren && !self.settings.plain && self.curve.is_exhausted()
    }

    pub(super) fn failed(&self) -> u64 {
        self.tally.failed
    }

    pub(super) fn runs(&self) -> u64 {
        self.tally.fresh + self.tally.children
    }

    /// Saves the corpus with the learnt weights, and the curve.
    pub(super) fn save(&mut self) -> Result<()> {
        let records = self.shapes.records().chain(self.mutations.records()).chain(self.kinds.records());
        let mut weights: BTreeMap<_, _> = self.corpus.weights().clone();
        weights.extend(records);
        self.corpus.save(weights)?;
        self.curve.write(self.corpus.dir())
    }

    pub(super) fn print(&self) {
        let Tally { fresh, children, failed, gains, .. } = self.tally;
        let cpu = self.tally.cpu_ms() as f64 / 1e3;
        outln!("runs        {}, {failed} failed; {fresh} fresh seeds, {children} children", self.runs());
        outln!("CPU         {cpu:.1} s, {:.2} s a run", cpu / self.runs().max(1) as f64);
        outln!("corpus      {} plans; {gains} children showed something new", self.corpus.len());
        self.curve.print(self.tally.fresh_failed);
    }

    /// Returns the name of a run's scratch plan.
    pub(super) fn scratch_name(task: &Task) -> String {
        format!("{}-{}", task.number, name_of(&task.plan))
    }
}

/// Returns the hand-set weight of a profile and a size: small plans reach most for their time, and calm ones little.
fn hand_weight(profile: FaultProfile, size: PlanSize) -> u32 {
    let by_profile = if profile == FaultProfile::Calm { 1 } else { 2 };
    let by_size = if size == PlanSize::Smoke { 3 } else { 1 };
    by_profile * by_size
}
