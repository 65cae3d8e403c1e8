//! The faults that a mutant needs: those without which the same plan does not kill it.
//!
//! One kind of fault after the other is removed from the plan and stays out if the mutant is still killed. Each
//! remaining kind is needed in this plan; another plan may kill the mutant by other means.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;

use sim_plan::{FinalRestart, Plan};

/// A word for a standing fault, and the function that removes it from a plan.
type Standing = (&'static str, fn(&mut Plan));

/// Faults of a plan besides its timed ones.
const STANDING: [Standing; 6] = [
    ("ending", |plan| plan.ending = FinalRestart::Stay),
    ("clocks", |plan| plan.clocks.clear()),
    ("segments-lost", |plan| plan.network.loss_per_mille = 0),
    ("late-segments", |plan| {
        plan.network.latency = plan.network.latency.min(LOOPBACK);
        plan.network.jitter = Duration::ZERO;
    }),
    ("slow-disks", |plan| {
        plan.devices.op = plan.devices.op.min(QUICK);
        plan.devices.sync = plan.devices.sync.min(QUICK);
    }),
    ("little-memory", |plan| plan.cluster.memory = plan.cluster.memory.max(1 << 30)),
];
/// Latency of a segment between processes of one machine.
const LOOPBACK: Duration = Duration::from_micros(30);
/// Latency of an operation and of a sync on an NVMe device.
const QUICK: Duration = Duration::from_micros(60);

/// Returns the kinds of faults that `plan` needs, in the order of their words. `caught` returns true if the mutant is
/// killed in a plan, and none if there is no time to find out: then nothing is returned either.
pub(super) fn needs(
    plan: &Plan,
    mut caught: impl FnMut(&Plan) -> Result<Option<bool>>,
) -> Result<Option<Vec<String>>> {
    let words: BTreeSet<&str> = plan.faults.iter().map(|fault| fault.kind.word()).collect();
    let (mut left, mut needed) = (plan.clone(), Vec::new());
    let mut quiet = plan.clone();
    quiet.faults.clear();
    if words.len() > 1 {
        match caught(&quiet)? {
            Some(true) => left = quiet,
            Some(false) => {}
            None => return Ok(None),
        }
    }
    for word in words {
        let mut without = left.clone();
        without.faults.retain(|fault| fault.kind.word() != word);
        if !try_without(word, without, &mut left, &mut needed, &mut caught)? {
            return Ok(None);
        }
    }
    for (word, take_out) in STANDING {
        let mut without = left.clone();
        take_out(&mut without);
        if !try_without(word, without, &mut left, &mut needed, &mut caught)? {
            return Ok(None);
        }
    }
    needed.sort_unstable();
    Ok(Some(needed))
}

/// Tries a plan without one kind of fault; false if there is no time for that.
fn try_without(
    word: &str,
    without: Plan,
    left: &mut Plan,
    needed: &mut Vec<String>,
    caught: &mut impl FnMut(&Plan) -> Result<Option<bool>>,
) -> Result<bool> {
    if without == *left {
        return Ok(true);
    }
    match caught(&without)? {
        Some(true) => *left = without,
        Some(false) => needed.push(word.to_string()),
        None => return Ok(false),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim_plan::{FaultProfile, PlanSize};

    /// Returns a plan with several kinds of faults and skewed clocks.
    fn plan() -> Plan {
        let plans = (1..).map(|seed| Plan::generate(seed, FaultProfile::Swarm, PlanSize::Full));
        let words = |plan: &Plan| plan.faults.iter().map(|fault| fault.kind.word()).collect::<BTreeSet<_>>();
        let wanted = |plan: &Plan| words(plan).len() > 2 && !plan.clocks.is_empty();
        plans.into_iter().find(wanted).expect("there are many plans")
    }

    #[test]
    fn faults_without_which_a_mutant_survives_are_needed() {
        let plan = plan();
        let first = plan.faults[0].kind.word();
        let seen = |plan: &Plan| {
            let there = plan.faults.iter().any(|fault| fault.kind.word() == first);
            Ok(Some(there && !plan.clocks.is_empty()))
        };
        let mut expected = vec!["clocks".to_string(), first.to_string()];
        expected.sort_unstable();
        assert_eq!(needs(&plan, seen).expect("no run can fail"), Some(expected));
        assert_eq!(needs(&plan, |_| Ok(Some(true))).expect("no run can fail"), Some(Vec::new()));
    }

    #[test]
    fn nothing_is_said_about_needs_if_there_is_no_time() {
        let mut runs = 0;
        let one_run = |_: &Plan| {
            runs += 1;
            Ok((runs == 1).then_some(false))
        };
        assert_eq!(needs(&plan(), one_run).expect("no run can fail"), None);
        assert_eq!(runs, 2);
    }
}
