//! Progress of a server's start, for the page `/startup`, which is there before the server is.

use engine::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::time::Duration;

use engine::time::Instant;
use serde_json::{Map, Value, json};

use super::page::{PageBlock, PageCell, PageTable, Severity, WebPage, fact};
use crate::dirs::ServerKind;

/// Steps of a start, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StartupStep {
    /// Flags and the clock.
    Init,
    /// Directories, their instance files and superblocks.
    ReadDirectories,
    /// A tablet server's tablets, or a master's catalog.
    StartTablets,
    StartRpc,
}

const STEPS: [StartupStep; 4] =
    [StartupStep::Init, StartupStep::ReadDirectories, StartupStep::StartTablets, StartupStep::StartRpc];

#[derive(Debug, Clone, Copy)]
struct StepTimes {
    began: Instant,
    ended: Option<Instant>,
}

/// Progress of a start in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartupSummary {
    pub steps_left: u64,
    /// Time since the begin of the start, or of the whole start.
    pub time: Duration,
}

/// Counts of tablets that are open and of all.
type TabletCounts = Box<dyn Fn() -> (usize, usize) + Send + Sync>;

/// Progress of a start.
#[derive(Default)]
pub struct StartupProgress {
    steps: Mutex<BTreeMap<StartupStep, StepTimes>>,
    tablets: Mutex<Option<TabletCounts>>,
}

impl StartupProgress {
    fn steps(&self) -> MutexGuard<'_, BTreeMap<StartupStep, StepTimes>> {
        self.steps.lock()
    }

    pub fn begin(&self, step: StartupStep, now: Instant) {
        self.steps().entry(step).or_insert(StepTimes { began: now, ended: None });
    }

    /// Ends a step, which may not have begun.
    pub fn end(&self, step: StartupStep, now: Instant) {
        let mut steps = self.steps();
        let times = steps.entry(step).or_insert(StepTimes { began: now, ended: None });
        times.ended.get_or_insert(now);
    }

    /// Ends a step and begins another.
    pub fn advance(&self, from: StartupStep, to: StartupStep, now: Instant) {
        self.end(from, now);
        self.begin(to, now);
    }

    /// Sets the source of the number of opened tablets.
    pub fn count_tablets(&self, counts: impl Fn() -> (usize, usize) + Send + Sync + 'static) {
        *self.tablets.lock() = Some(Box::new(counts));
    }

    fn tablets(&self) -> Option<(usize, usize)> {
        self.tablets.lock().as_ref().map(|counts| counts())
    }

    /// Returns percent done and the time of a step.
    fn state(&self, step: StartupStep, now: Instant) -> (usize, Duration) {
        let times = self.steps().get(&step).copied();
        let Some(StepTimes { began, ended }) = times else { return (0, Duration::ZERO) };
        let time = ended.unwrap_or(now).since(began);
        let percent = match (ended, step, self.tablets()) {
            (_, StartupStep::StartTablets, Some((open, all))) => (open * 100).checked_div(all).unwrap_or(100),
            (Some(_), _, _) => 100,
            (None, _, _) => 0,
        };
        (percent, time)
    }

    /// Returns the progress in numbers.
    pub fn summary(&self, now: Instant) -> StartupSummary {
        let steps = self.steps();
        let left =
            STEPS.iter().filter(|step| steps.get(step).is_none_or(|times| times.ended.is_none())).count();
        let began = steps.values().map(|times| times.began).min();
        let ended = steps.values().filter_map(|times| times.ended).max().filter(|_| left == 0);
        let time = began.map_or(Duration::ZERO, |began| ended.unwrap_or(now).since(began));
        StartupSummary { steps_left: left as u64, time }
    }

    /// Returns the object that Kudu's page `/startup` has without its template.
    pub fn to_json(&self, kind: ServerKind, now: Instant) -> Value {
        let mut object = Map::new();
        let mut put = |name: &str, (percent, time): (usize, Duration)| {
            object.insert(format!("{name}_status"), json!(percent));
            object.insert(format!("{name}_time"), json!(format!("{:.3}s", time.as_secs_f64())));
        };
        put("init", self.state(StartupStep::Init, now));
        let read = self.state(StartupStep::ReadDirectories, now);
        for name in ["read_filesystem", "read_instance_metadatafiles", "read_data_directories"] {
            put(name, read);
        }
        let tablets = self.state(StartupStep::StartTablets, now);
        put(tablets_name(kind), tablets);
        put("start_rpc_server", self.state(StartupStep::StartRpc, now));
        let (processed, total) = self.tablets().unwrap_or_default();
        object.insert("tablets_processed".to_owned(), json!(processed));
        object.insert("tablets_total".to_owned(), json!(total));
        object.insert("is_tablet_server".to_owned(), json!(kind == ServerKind::TabletServer));
        object.insert("is_master_server".to_owned(), json!(kind == ServerKind::Master));
        Value::Object(object)
    }

    /// Returns the page.
    pub fn page(&self, kind: ServerKind, now: Instant) -> WebPage {
        let mut table =
            PageTable::new(&[("step", "Step"), ("state", "State"), ("percent", "%"), ("time", "Time")]);
        let mut all_done = true;
        for step in STEPS {
            let (percent, time) = self.state(step, now);
            let begun = self.steps().contains_key(&step);
            all_done &= percent == 100;
            let state = match (percent, begun) {
                (100, _) => PageCell::State(Severity::Good, "done".to_owned()),
                (_, true) => PageCell::State(Severity::Neutral, "running".to_owned()),
                (_, false) => PageCell::Empty,
            };
            table.row(vec![step_name(step, kind).into(), state, percent.into(), time.into()]);
        }
        let page = match all_done {
            true => WebPage::new("Startup").verdict(Severity::Good, "the server has started"),
            false => WebPage::new("Startup").verdict(Severity::Neutral, "the server is starting"),
        };
        let page = page.with(PageBlock::table("steps", "Steps", table));
        match self.tablets() {
            None => page,
            Some((open, all)) => page.with(PageBlock::facts(
                "tablets",
                "Tablets",
                vec![fact("processed", "opened", open), fact("total", "all", all)],
            )),
        }
    }
}

fn tablets_name(kind: ServerKind) -> &'static str {
    match kind {
        ServerKind::Master => "initialize_master_catalog",
        ServerKind::TabletServer => "start_tablets",
    }
}

fn step_name(step: StartupStep, kind: ServerKind) -> &'static str {
    match (step, kind) {
        (StartupStep::Init, _) => "initialise",
        (StartupStep::ReadDirectories, _) => "read directories",
        (StartupStep::StartTablets, ServerKind::Master) => "open the catalog",
        (StartupStep::StartTablets, ServerKind::TabletServer) => "open tablets",
        (StartupStep::StartRpc, _) => "serve calls",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_start_ends_with_its_last_step() {
        let progress = StartupProgress::default();
        let summary = |at: u64| progress.summary(Instant(at));
        assert_eq!(summary(5), StartupSummary { steps_left: 4, time: Duration::ZERO });
        progress.begin(StartupStep::Init, Instant(10));
        assert_eq!(summary(30), StartupSummary { steps_left: 4, time: Duration::from_nanos(20) });
        for (at, step) in (40..).zip(STEPS) {
            progress.end(step, Instant(at));
        }
        assert_eq!(summary(90), StartupSummary { steps_left: 0, time: Duration::from_nanos(33) });
    }
}
