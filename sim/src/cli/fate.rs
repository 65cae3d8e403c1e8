//! The time at which a verdict was decided: the shortest beginning of a failing plan that still fails.
//!
//! ```text
//! faults   1 2 3 4 | 5 6 7      the first 4 are enough, the first 3 are not: fault 4 decided it
//! ops      1 … 31 | 32 … 80     of each client, with these faults only
//! ```
//!
//! A plan whose last faults are left out runs equally until the first of them begins: nothing before is drawn again.
//! The search is a bisection, so it finds one border between failing and clean, and there may be others.

use anyhow::Result;
use clap::Args;

use super::arguments;
use super::plan_source::PlanSource;
use super::run_process::RunJob;
use super::scratch_plans::ScratchPlans;
use crate::output::outln;
use sim_plan::Plan;
use sim_plan::line_format::LineRecord;

#[derive(Args)]
pub(super) struct FatedArgs {
    #[command(flatten)]
    source: PlanSource,
}

/// Finds the fault and the op by which the verdict was decided.
pub(super) fn fated(args: &FatedArgs) -> Result<bool> {
    let plan = args.source.plan()?;
    let first = RunJob::new(args.source.clone()).outcome()?;
    let Some(failure) = first.failures.first() else {
        let message =
            format!("{}: does not fail, so nothing was decided; give a failing run", args.source.what);
        return Err(arguments::wrong(message));
    };
    outln!("{}: {}", failure.oracle, failure.message.lines().next().unwrap_or_default());
    let plans = ScratchPlans::new(&std::env::temp_dir())?;
    let mut runs = 1;
    let mut fails = |plan: &Plan| -> Result<bool> {
        runs += 1;
        let outcome = plans.job("fated", plan, &args.source.options)?.outcome()?;
        Ok(outcome.failures.iter().any(|other| other.oracle == failure.oracle))
    };
    let faults = shortest(plan.faults.len(), |count| fails(&with_first_faults(&plan, count)))?;
    let few = with_first_faults(&plan, faults);
    let ops = shortest(longest_client(&few), |count| fails(&with_first_ops(&few, count)))?;
    faults_report(&plan, faults).iter().chain(&ops_report(&few, ops)).for_each(|line| outln!("{line}"));
    outln!("{runs} runs. A bisection finds one border.");
    if !args.source.options.world.draws_by_key() {
        outln!(
            "Faults are left out from the end: runs are equal until the first of these begins. After that, and"
        );
        outln!("where ops are left out, draws shift: draws come from streams.");
    }
    Ok(true)
}

/// Returns a count from 0 to `all` with which the plan fails, and with one less does not. With `all` it fails.
fn shortest(all: usize, mut fails: impl FnMut(usize) -> Result<bool>) -> Result<usize> {
    if all == 0 || fails(0)? {
        return Ok(0);
    }
    let (mut clean, mut failing) = (0, all);
    while failing - clean > 1 {
        let middle = clean.midpoint(failing);
        if fails(middle)? { failing = middle } else { clean = middle }
    }
    Ok(failing)
}

fn with_first_faults(plan: &Plan, count: usize) -> Plan {
    let mut plan = plan.clone();
    plan.faults.truncate(count);
    plan
}

/// Returns the plan with this many ops of each client.
fn with_first_ops(plan: &Plan, count: usize) -> Plan {
    let mut plan = plan.clone();
    plan.clients.iter_mut().for_each(|client| client.ops.truncate(count));
    plan
}

/// Returns the number of ops of the client that has most.
fn longest_client(plan: &Plan) -> usize {
    plan.clients.iter().map(|client| client.ops.len()).max().unwrap_or_default()
}

fn faults_report(plan: &Plan, enough: usize) -> Vec<String> {
    let all = plan.faults.len();
    let Some(last) = enough.checked_sub(1) else {
        return vec![format!("faults  none of {all} is needed: the plan fails without any")];
    };
    let after = plan.faults.get(enough).map_or("the end".to_string(), |next| format!("{:?}", next.at));
    vec![
        format!("faults  of {all} the first {enough} are enough, the first {last} are not"),
        format!("        fault {enough}: {}", plan.faults[last].line()),
        format!(
            "        decided after {:?}; the next fault, at {after}, is not needed",
            plan.faults[last].at
        ),
    ]
}

fn ops_report(plan: &Plan, enough: usize) -> Vec<String> {
    let all = longest_client(plan);
    let Some(last) = enough.checked_sub(1) else {
        return vec![format!("ops     none of {all} of each client is needed")];
    };
    let first =
        format!("ops     of {all} of each client the first {enough} are enough, the first {last} are not");
    let ops = plan.clients.iter().filter_map(|client| {
        let op = client.ops.get(last)?;
        Some(format!("        op {enough} of c{}: {}", client.setup.number, op.line()))
    });
    std::iter::once(first).chain(ops).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim_plan::{FaultProfile, PlanSize};

    fn plan() -> Plan {
        let plans = (1..).map(|seed| Plan::generate(seed, FaultProfile::Crash, PlanSize::Smoke));
        plans.into_iter().find(|plan| plan.faults.len() > 3).expect("many seeds have some")
    }

    #[test]
    fn a_border_between_clean_and_failing_is_found() {
        for border in 0..=20 {
            let mut runs = 0;
            let found = shortest(20, |count| {
                runs += 1;
                Ok(count >= border)
            });
            assert_eq!(found.expect("no run can fail"), border);
            assert!(runs <= 7, "{runs} runs for {border}");
        }
        assert_eq!(shortest(0, |_| panic!("nothing to leave out")).expect("no run"), 0);
    }

    #[test]
    fn with_several_borders_one_of_them_is_found() {
        let fails = |count: usize| (3..6).contains(&count) || count > 12;
        let found = shortest(20, |count| Ok(fails(count))).expect("no run can fail");
        assert!(fails(found) && !fails(found - 1), "{found}");
    }

    #[test]
    fn plans_begin_as_the_whole_plan() {
        let plan = plan();
        let few = with_first_ops(&with_first_faults(&plan, 2), 3);
        assert_eq!(few.faults, plan.faults[..2]);
        assert_eq!(longest_client(&few), 3);
        let begins = few.clients.iter().zip(&plan.clients).all(|(few, all)| all.ops.starts_with(&few.ops));
        assert!(begins);
        assert_eq!((few.limit, few.quiet), (plan.limit, plan.quiet), "settings stay");
    }

    #[test]
    fn reports_name_the_last_fault_and_the_last_ops() {
        let plan = plan();
        let text = faults_report(&plan, 2).join("\n");
        assert!(text.contains("the first 2 are enough, the first 1 are not"), "{text}");
        assert!(text.contains(&plan.faults[1].line()), "{text}");
        assert!(faults_report(&plan, 0)[0].contains("none of"));
        assert!(ops_report(&plan, 1).join("\n").contains("op 1 of c0: "));
        assert!(ops_report(&plan, 0)[0].contains("none of"));
    }
}
