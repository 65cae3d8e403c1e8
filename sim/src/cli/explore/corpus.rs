//! The corpus: plans that showed something new, in a folder.
//!
//! ```text
//! DIR/plans/NAME.plan   a plan as text, with a comment on its origin
//! DIR/index.jsonl       one line for each plan: its cost, and the features that no earlier run had
//! DIR/state.json        the number of runs that had each feature; learnt weights
//! DIR/failed/NAME.plan  plans of failed runs
//! DIR/curve.tsv         the discovery curve of the last campaign
//! ```
//!
//! Energy of a plan: the sum of 1 / (runs that have the feature) over its features, by CPU second. It falls as other
//! runs reach what it reached.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sim_plan::{Plan, RandomStream};

use super::arms::{Record, fraction};
use crate::features::RunFeatures;

/// Most plans of a corpus; those with the least energy go.
const PLANS_MAX: usize = 2_000;
/// Draws after which energies are computed again.
const STALE_AFTER: u32 = 64;
/// Least cost of a run in CPU seconds, so that a run of no measurable time has no boundless energy.
const COST_MIN_S: f64 = 0.01;

/// A plan of the corpus.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub name: String,
    pub cpu_ms: u64,
    /// Features that no earlier run had.
    pub features: Vec<u64>,
}

/// Knowledge of a corpus besides its plans.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    /// Number of runs that had each feature.
    runs_with: BTreeMap<u64, u32>,
    weights: BTreeMap<String, Record>,
}

/// A corpus, as far as it is in memory. Plans are read when they are needed.
pub(super) struct Corpus {
    dir: PathBuf,
    entries: Vec<Entry>,
    state: State,
    energies: Vec<f64>,
    draws_left: u32,
}

impl Corpus {
    /// Opens the corpus in a folder, which is created if missing. Plans that this version cannot read are left out.
    pub(super) fn open(dir: &Path) -> Result<Corpus> {
        for folder in ["plans", "failed"] {
            let path = dir.join(folder);
            fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        }
        let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_default();
        let lines = read("index.jsonl");
        let entries = lines.lines().filter_map(|line| serde_json::from_str::<Entry>(line).ok());
        let entries = entries.filter(|entry| plan(dir, &entry.name).is_some()).collect();
        // A state that is missing or of another version is learnt again.
        let state = serde_json::from_str(&read("state.json")).unwrap_or_default();
        Ok(Corpus { dir: dir.to_path_buf(), entries, state, energies: Vec::new(), draws_left: 0 })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns what earlier campaigns learnt.
    pub(super) fn weights(&self) -> &BTreeMap<String, Record> {
        &self.state.weights
    }

    /// Counts a run; returns the features that no earlier run had.
    pub(super) fn count(&mut self, features: &RunFeatures) -> Vec<u64> {
        let mut new = Vec::new();
        for feature in features.iter() {
            let runs = self.state.runs_with.entry(feature).or_default();
            *runs = runs.saturating_add(1);
            if *runs == 1 {
                new.push(feature);
            }
        }
        new
    }

    /// Keeps a plan. `origin`: where it is from, for people.
    pub(super) fn keep(&mut self, plan: &Plan, origin: &str, cpu_ms: u64, features: Vec<u64>) -> Result<()> {
        let name = name_of(plan);
        let path = path(&self.dir, &name);
        let text = format!("# {origin}\n{plan}");
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        if self.entries.iter().all(|entry| entry.name != name) {
            let entry = Entry { name, cpu_ms, features };
            self.energies.push(self.energy(&entry));
            self.entries.push(entry);
        }
        Ok(())
    }

    /// Writes the plan of a failed run and returns its path.
    pub(super) fn keep_failed(&self, plan: &Plan, origin: &str) -> Result<PathBuf> {
        let path = self.dir.join("failed").join(format!("{}.plan", name_of(plan)));
        let text = format!("# {origin}\n{plan}");
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Draws a plan by energy, with its name; `None` if the corpus is empty.
    pub(super) fn draw(&mut self, random: &mut RandomStream) -> Option<(String, Plan)> {
        if self.draws_left == 0 {
            self.energies = self.entries.iter().map(|entry| self.energy(entry)).collect();
            self.draws_left = STALE_AFTER;
        }
        self.draws_left -= 1;
        let mut left = fraction(random) * self.energies.iter().sum::<f64>();
        let at = self.energies.iter().position(|energy| {
            left -= energy;
            left <= 0.0
        });
        let entry = self.entries.get(at.unwrap_or(0))?;
        Some((entry.name.clone(), plan(&self.dir, &entry.name)?))
    }

    fn energy(&self, entry: &Entry) -> f64 {
        let runs = |feature| self.state.runs_with.get(feature).copied().unwrap_or(1).max(1);
        let rare: f64 = entry.features.iter().map(|feature| 1.0 / f64::from(runs(feature))).sum();
        rare / (entry.cpu_ms as f64 / 1e3).max(COST_MIN_S)
    }

    /// Writes index and state; the plans with the least energy go if there are too many.
    pub(super) fn save(&mut self, weights: BTreeMap<String, Record>) -> Result<()> {
        let rate = |entry: Entry| (self.energy(&entry), entry);
        let mut rated: Vec<(f64, Entry)> = self.entries.iter().cloned().map(rate).collect();
        rated.sort_by(|one, other| other.0.total_cmp(&one.0));
        for (_, gone) in rated.iter().skip(PLANS_MAX) {
            // A plan that is there without a line in the index does no harm.
            let _gone = fs::remove_file(path(&self.dir, &gone.name));
        }
        rated.truncate(PLANS_MAX);
        self.entries = rated.into_iter().map(|(_, entry)| entry).collect();
        (self.draws_left, self.state.weights) = (0, weights);
        let lines: Result<Vec<String>, _> = self.entries.iter().map(serde_json::to_string).collect();
        self.replace("index.jsonl", &(lines?.join("\n") + "\n"))?;
        self.replace("state.json", &serde_json::to_string(&self.state)?)
    }

    /// Replaces a file at once: an interruption leaves the old one or the new one.
    fn replace(&self, name: &str, text: &str) -> Result<()> {
        let (path, new) = (self.dir.join(name), self.dir.join(format!("{name}.new")));
        fs::write(&new, text).with_context(|| format!("writing {}", new.display()))?;
        fs::rename(&new, &path).with_context(|| format!("replacing {}", path.display()))
    }
}

fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join("plans").join(format!("{name}.plan"))
}

/// Reads a plan of the corpus, if this version can.
fn plan(dir: &Path, name: &str) -> Option<Plan> {
    fs::read_to_string(path(dir, name)).ok()?.parse().ok()
}

/// Returns a plan's name: the hash of its text.
pub(super) fn name_of(plan: &Plan) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(plan.to_string().as_bytes());
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::STATES;
    use sim_plan::{FaultProfile, PlanSize};

    fn seeded(seed: u64) -> Plan {
        Plan::generate(seed, FaultProfile::Calm, PlanSize::Smoke)
    }

    fn run(features: &[u64]) -> RunFeatures {
        let mut run = RunFeatures::default();
        run.axes[STATES].extend(features);
        run
    }

    fn draws(corpus: &mut Corpus, of: u64) -> usize {
        let mut random = RandomStream::new(1, "draws");
        let drawn =
            (0..200).filter_map(|_| corpus.draw(&mut random)).filter(|(_, drawn)| *drawn == seeded(of));
        drawn.count()
    }

    #[test]
    fn plans_with_rare_features_and_little_cost_are_drawn_most() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut corpus = Corpus::open(dir.path()).expect("a new corpus");
        assert!(corpus.draw(&mut RandomStream::new(1, "draws")).is_none());
        for (seed, features, cpu_ms) in [(1, [1, 2], 100), (2, [2, 3], 100), (3, [4, 5], 10_000)] {
            let new = corpus.count(&run(&features));
            corpus.keep(&seeded(seed), "a seed", cpu_ms, new).expect("it is written");
        }
        assert_eq!(corpus.entries[1].features, [3], "another run had feature 2");
        assert!(draws(&mut corpus, 1) > draws(&mut corpus, 2));
        assert!(draws(&mut corpus, 3) < 20, "it costs a hundred times as much");
        (0..50).for_each(|_| drop(corpus.count(&run(&[1, 2]))));
        corpus.draws_left = 0;
        assert!(draws(&mut corpus, 1) < draws(&mut corpus, 2), "what it reached is common now");
    }

    #[test]
    fn a_corpus_is_there_after_it_was_saved() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut corpus = Corpus::open(dir.path()).expect("a new corpus");
        let new = corpus.count(&run(&[1]));
        corpus.keep(&seeded(1), "seed 1", 10, new).expect("it is written");
        corpus.keep(&seeded(2), "seed 2", 10, vec![7]).expect("it is written");
        let weights = BTreeMap::from([("calm smoke".to_string(), Record::default())]);
        corpus.save(weights.clone()).expect("it is written");
        fs::write(path(dir.path(), &name_of(&seeded(2))), "seed x\n").expect("a plan of another version");
        let mut again = Corpus::open(dir.path()).expect("a corpus");
        assert_eq!((again.len(), again.weights()), (1, &weights));
        assert_eq!(again.count(&run(&[1, 2])), [2], "feature 1 is known");
        let path = again.keep_failed(&seeded(3), "seed 3").expect("it is written");
        let text = fs::read_to_string(path).expect("a plan");
        assert!(text.starts_with("# seed 3\n") && text.parse::<Plan>() == Ok(seeded(3)));
    }
}
