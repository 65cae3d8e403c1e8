//! The effect of one fault: a plan runs with the fault and without it, and the two runs are compared.
//!
//! ```text
//! with      ──────────┬─ fault ─── e1 ── e3 ──►  verdict
//! without   ──────────┴─────────── e1 ── e2 ──►  verdict
//!            equal hashes               ▲ first event that differs, besides the fault's own
//! ```
//!
//! Draws of the worlds `madsim` and `turmoil` come from streams: an event that one run lacks shifts the later draws of
//! that stream. What the fault caused is therefore certain for the first event that differs only. The command says so.
//! Draws of the world `keyed` depend on nothing but their keys: what differs there was caused by the fault.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::Result;
use clap::Args;

use super::arguments;
use super::plan_source::PlanSource;
use super::run_process::RunJob;
use super::scratch_plans::ScratchPlans;
use crate::event_log::HashCheckpoints;
use crate::output::outln;
use crate::run::{RunOutcome, WorldKind};
use sim_plan::line_format::LineRecord;
use sim_plan::{Plan, TimedFault};

#[derive(Args)]
pub(super) struct WithoutArgs {
    #[command(flatten)]
    source: PlanSource,
    /// Number of the fault to leave out, from 1, in the order of the plan
    #[arg(long, value_parser = arguments::count)]
    fault: Option<usize>,
}

/// Events of each run that are compared first. The range grows until a difference is found.
const WINDOW: u64 = 4_096;
/// Events printed before the first one that differs.
const CONTEXT: usize = 5;
/// Kinds of events that are the injector's own work, or the world's.
const OWN_KINDS: [&str; 7] = ["fault", "world", "kill", "power cut", "restart", "hold", "release"];

/// Runs the plan with the fault and without it, and prints what differs.
pub(super) fn without(args: &WithoutArgs) -> Result<bool> {
    let plan = args.source.plan()?;
    let (number, smaller) = leave_out(&plan, args.fault)?;
    let plans = ScratchPlans::new(&std::env::temp_dir())?;
    let with = RunJob::new(args.source.clone());
    let without = plans.job("without", &smaller, &args.source.options)?;
    let (one, other) = (with.outcome()?, without.outcome()?);
    outln!("fault {number} of {}: {}", plan.faults.len(), plan.faults[number - 1].line());
    print_difference((&with, &one), (&without, &other))?;
    outln!("{:<28}{:>14}{:>14}", "", "with", "without");
    for (name, with, without) in counts_that_differ(&one, &other) {
        outln!("{name:<28}{with:>14}{without:>14}");
    }
    outln!("verdict with     {}", verdict(&one));
    outln!("verdict without  {}", verdict(&other));
    if plan.faults[number - 1].kind.kind().loses_durable_data() {
        outln!("note: scrubbers run only in plans with a fault that damages files: that may differ as well");
    }
    Ok(true)
}

/// Returns the number of the fault and the plan without it. An error names all faults of the plan.
fn leave_out(plan: &Plan, number: Option<usize>) -> Result<(usize, Plan)> {
    let Some(number) = number.filter(|number| *number <= plan.faults.len()) else {
        let faults: Vec<String> = (1..).zip(&plan.faults).map(numbered).collect();
        let given = number.map_or("none given".to_string(), |number| number.to_string());
        let message = match faults.is_empty() {
            true => format!("--fault: the plan has no fault ({given}); give another plan"),
            false => format!("--fault: give a number ({given}) of these:\n{}", faults.join("\n")),
        };
        return Err(arguments::wrong(message));
    };
    let mut smaller = plan.clone();
    smaller.faults.remove(number - 1);
    Ok((number, smaller))
}

fn numbered((number, fault): (usize, &TimedFault)) -> String {
    format!("{number:>4}  {}", fault.line())
}

/// Prints the first event that differs and is not the fault itself.
fn print_difference(
    (with, one): (&RunJob, &RunOutcome),
    (without, other): (&RunJob, &RunOutcome),
) -> Result<()> {
    if one.steps.is_empty() || other.steps.is_empty() {
        outln!("a run ended without an outcome: no events to compare");
        return Ok(());
    }
    let (steps, other_steps): (HashCheckpoints, HashCheckpoints) = (one.steps.parse()?, other.steps.parse()?);
    let Some(events) = steps.first_difference(&other_steps) else {
        outln!("the runs are equal, {} events: the fault did nothing", one.events);
        return Ok(());
    };
    let last = one.events.max(other.events);
    match find_parting(with, without, events, last)? {
        Some(parting) => parting.print(with.source.options.world),
        None => outln!("besides the fault's own events the runs are equal"),
    }
    Ok(())
}

/// Compares the events from the first range that differs on, in ranges that grow.
fn find_parting(with: &RunJob, without: &RunJob, events: Range<u64>, last: u64) -> Result<Option<Parting>> {
    let mut length = WINDOW.max(events.end - events.start);
    loop {
        let range = events.start..events.start + length;
        let is_end = range.end >= last;
        let lines = |job: &RunJob| -> Result<Vec<String>> {
            Ok(RunJob { events: Some(range.clone()), ..job.clone() }.run()?.lines)
        };
        let parting = parting(&lines(with)?, &lines(without)?, is_end);
        if parting.is_some() || is_end {
            return Ok(parting);
        }
        length *= 4;
    }
}

/// The first event that differs between two runs.
#[derive(Debug, PartialEq, Eq)]
struct Parting {
    /// Events of both runs before it.
    before: Vec<String>,
    /// `None` if the run ended before.
    with: Option<String>,
    without: Option<String>,
    /// True if the same event happens at another time: a draw has shifted, or something took longer.
    is_shift: bool,
}

impl Parting {
    fn print(&self, world: WorldKind) {
        let end = "the run has ended".to_string();
        outln!("first event that differs, besides the fault's own:");
        self.before.iter().for_each(|line| outln!("    {line}"));
        outln!("  with     {}", self.with.as_ref().unwrap_or(&end));
        outln!("  without  {}", self.without.as_ref().unwrap_or(&end));
        if world.draws_by_key() {
            return;
        }
        if self.is_shift {
            outln!(
                "note: the same event at another time: the fault delays it, or a draw has shifted before it"
            );
        }
        outln!(
            "note: draws come from streams, and they have shifted from this event on: what differs later may"
        );
        outln!("      be another draw instead of an effect of the fault");
    }
}

/// An event without its number and its hash, which depend on all events before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EventText<'a> {
    millis: &'a str,
    /// Host, kind and bytes.
    what: &'a str,
}

impl<'a> EventText<'a> {
    /// Parses a line of the event log: `#NUMBER MILLIS ms HOST KIND LENGTH bytes "TEXT" HASH`.
    fn of(line: &'a str) -> Option<EventText<'a>> {
        let (_number, rest) = line.split_once(' ')?;
        let (rest, _hash) = rest.rsplit_once(' ')?;
        let (millis, what) = rest.split_once(" ms ")?;
        Some(EventText { millis, what })
    }

    /// Parses the lines that are not about the fault itself.
    fn of_all(lines: &'a [String]) -> Vec<EventText<'a>> {
        lines.iter().filter_map(|line| EventText::of(line)).filter(|event| !event.is_own()).collect()
    }

    fn is_own(self) -> bool {
        let kind = self.what.split_once(' ').map_or("", |(_host, kind)| kind);
        OWN_KINDS.iter().any(|own| kind.strip_prefix(own).is_some_and(|rest| rest.starts_with(' ')))
    }

    fn line(self) -> String {
        format!("{} ms {}", self.millis, self.what)
    }
}

/// Returns the first difference of two lists of events. `is_end`: both lists reach the end of their runs.
fn parting(with: &[String], without: &[String], is_end: bool) -> Option<Parting> {
    let (one, other) = (EventText::of_all(with), EventText::of_all(without));
    let at = one.iter().zip(&other).position(|(one, other)| one != other);
    let shorter = one.len().min(other.len());
    let at = at.or_else(|| (is_end && one.len() != other.len()).then_some(shorter))?;
    let (with, without) = (one.get(at).copied(), other.get(at).copied());
    let before = one[at.saturating_sub(CONTEXT)..at].iter().map(|event| event.line()).collect();
    let is_shift = with.zip(without).is_some_and(|(with, without)| with.what == without.what);
    Some(Parting { before, with: with.map(EventText::line), without: without.map(EventText::line), is_shift })
}

/// Returns the counters that differ: their names, with the fault and without it.
fn counts_that_differ(one: &RunOutcome, other: &RunOutcome) -> Vec<(String, u64, u64)> {
    let fixed = |outcome: &RunOutcome| {
        let all = [
            ("events", outcome.events),
            ("simulated ms", outcome.simulated_ms),
            ("ops with a reply", outcome.answered),
            ("ops without a reply", outcome.unanswered),
            ("violations", outcome.failures.len() as u64),
        ];
        all.map(|(name, count)| (name.to_string(), count))
    };
    let of = |outcome: &RunOutcome| -> BTreeMap<String, u64> {
        let faults = outcome.fired.iter().map(|(name, count)| (format!("fault {name}"), *count));
        let marks = outcome.marks.iter().map(|(name, count)| (format!("mark {name}"), *count));
        fixed(outcome).into_iter().chain(faults).chain(marks).collect()
    };
    let (one, other) = (of(one), of(other));
    let names: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let count = |counts: &BTreeMap<String, u64>, name: &String| counts.get(name).copied().unwrap_or_default();
    let rows = names.into_iter().map(|name| (name.clone(), count(&one, name), count(&other, name)));
    rows.filter(|(_, one, other)| one != other).collect()
}

fn verdict(outcome: &RunOutcome) -> String {
    match outcome.failures.first() {
        None => "clean".to_string(),
        Some(failure) => {
            let first = failure.message.lines().next().unwrap_or_default();
            format!("{}: {first} ({} violations)", failure.oracle, outcome.failures.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::ViolationRecord;
    use sim_plan::{FaultProfile, PlanSize};

    fn lines(events: &[&str]) -> Vec<String> {
        let line = |(number, event)| format!("#{number} {event} 3 bytes \"a b\" {number:016x}");
        (7..).zip(events.iter()).map(line).collect()
    }

    #[test]
    fn the_first_event_that_differs_is_not_the_fault() {
        let with = lines(&[
            "1.0 ms t0 poll",
            "2.0 ms t1 fault",
            "2.0 ms t1 world",
            "3.0 ms t0 poll",
            "5.0 ms t1 fin",
        ]);
        let without = lines(&["1.0 ms t0 poll", "3.0 ms t0 poll", "4.0 ms t1 poll"]);
        let found = parting(&with, &without, false).expect("they differ");
        assert_eq!(found.before.len(), 2);
        assert_eq!(found.with.as_deref(), Some("5.0 ms t1 fin 3 bytes \"a b\""));
        assert_eq!(found.without.as_deref(), Some("4.0 ms t1 poll 3 bytes \"a b\""));
        assert!(!found.is_shift);
    }

    #[test]
    fn the_same_event_at_another_time_is_a_shift() {
        let found = parting(&lines(&["1.0 ms t0 poll"]), &lines(&["1.5 ms t0 poll"]), false);
        assert!(found.expect("they differ").is_shift);
    }

    #[test]
    fn a_run_that_ends_earlier_differs_only_at_its_end() {
        let (one, other) = (lines(&["1.0 ms t0 poll", "2.0 ms t0 poll"]), lines(&["1.0 ms t0 poll"]));
        assert_eq!(parting(&one, &other, false), None, "more events may follow");
        let found = parting(&one, &other, true).expect("they differ");
        assert_eq!((found.without, found.is_shift), (None, false));
        let only_fault = lines(&["1.0 ms t0 poll", "2.0 ms t0 fault"]);
        assert_eq!(parting(&only_fault, &other, true), None);
    }

    #[test]
    fn counters_and_verdicts_are_compared() {
        let failures = vec![ViolationRecord { oracle: "once".into(), message: "a\nb".into(), story: vec![] }];
        let fired = BTreeMap::from([("kill".to_string(), 2), ("pause".to_string(), 1)]);
        let one = RunOutcome { failures, fired, answered: 5, ..RunOutcome::default() };
        let fired = BTreeMap::from([("pause".to_string(), 1)]);
        let other = RunOutcome { fired, answered: 5, ..RunOutcome::default() };
        let expected = [("fault kill".to_string(), 2, 0), ("violations".to_string(), 1, 0)];
        assert_eq!(counts_that_differ(&one, &other), expected);
        assert_eq!((verdict(&one).as_str(), verdict(&other).as_str()), ("once: a (1 violations)", "clean"));
    }

    #[test]
    fn a_fault_that_the_plan_lacks_is_an_error_with_those_that_it_has() {
        let plan = (1..).map(|seed| Plan::generate(seed, FaultProfile::Crash, PlanSize::Smoke));
        let plan = plan.into_iter().find(|plan| plan.faults.len() == 3).expect("some seed has three");
        let (_, smaller) = leave_out(&plan, Some(2)).expect("it has three");
        assert_eq!(smaller.faults, [plan.faults[0].clone(), plan.faults[2].clone()]);
        for number in [None, Some(4)] {
            let error = leave_out(&plan, number).expect_err("no such fault");
            assert_eq!(arguments::exit_code(&error), 2);
            assert!(plan.faults.iter().all(|fault| error.to_string().contains(&fault.line())), "{error}");
        }
        let error = leave_out(&Plan { faults: Vec::new(), ..plan }, Some(1)).expect_err("no fault");
        assert!(error.to_string().contains("has no fault"), "{error}");
    }
}
