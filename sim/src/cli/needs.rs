//! Which faults of a plan a planted bug needs to be seen: those without which the same plan passes.
//!
//! One kind of fault after the other is taken out of the plan, and stays out if the bug is caught without it. What is
//! left is needed, each kind of it: another plan may show the bug by other means.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;

use crate::plan::{Ending, Plan};

/// A word for what is wrong, and how to take it out of a plan.
type Standing = (&'static str, fn(&mut Plan));

/// What may be wrong in a plan beside its timed faults.
const STANDING: [Standing; 6] = [
    ("ending", |plan| plan.ending = Ending::Stay),
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
/// What a segment takes between processes of one machine.
const LOOPBACK: Duration = Duration::from_micros(30);
/// What an operation and a sync of an NVMe device take.
const QUICK: Duration = Duration::from_micros(60);

/// The kinds of faults that `plan` needs, in the order of their words; `caught` says whether the bug is caught in a
/// plan.
pub fn needs(plan: &Plan, mut caught: impl FnMut(&Plan) -> Result<bool>) -> Result<Vec<String>> {
    let words: BTreeSet<&str> = plan.faults.iter().map(|fault| fault.kind.word()).collect();
    let (mut left, mut needed) = (plan.clone(), Vec::new());
    let mut quiet = plan.clone();
    quiet.faults.clear();
    if words.len() > 1 && caught(&quiet)? {
        left = quiet;
    }
    for word in words {
        let mut without = left.clone();
        without.faults.retain(|fault| fault.kind.word() != word);
        try_without(word, without, &mut left, &mut needed, &mut caught)?;
    }
    for (word, take_out) in STANDING {
        let mut without = left.clone();
        take_out(&mut without);
        try_without(word, without, &mut left, &mut needed, &mut caught)?;
    }
    needed.sort_unstable();
    Ok(needed)
}

fn try_without(
    word: &str,
    without: Plan,
    left: &mut Plan,
    needed: &mut Vec<String>,
    caught: &mut impl FnMut(&Plan) -> Result<bool>,
) -> Result<()> {
    if without == *left {
        return Ok(());
    }
    if caught(&without)? {
        *left = without;
    } else {
        needed.push(word.to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Profile, Size};

    /// A plan with several kinds of faults, and clocks that err.
    fn plan() -> Plan {
        let plans = (1..).map(|seed| Plan::generate(seed, Profile::Swarm, Size::Full));
        let words = |plan: &Plan| plan.faults.iter().map(|fault| fault.kind.word()).collect::<BTreeSet<_>>();
        let wanted = |plan: &Plan| words(plan).len() > 2 && !plan.clocks.is_empty();
        plans.into_iter().find(wanted).expect("there are many plans")
    }

    #[test]
    fn what_a_bug_is_not_seen_without_is_needed() {
        let plan = plan();
        let first = plan.faults[0].kind.word();
        let seen = |plan: &Plan| {
            let there = plan.faults.iter().any(|fault| fault.kind.word() == first);
            Ok(there && !plan.clocks.is_empty())
        };
        let mut expected = vec!["clocks".to_string(), first.to_string()];
        expected.sort_unstable();
        assert_eq!(needs(&plan, seen).expect("no run can fail"), expected);
        assert_eq!(needs(&plan, |_| Ok(true)).expect("no run can fail"), Vec::<String>::new());
    }
}
