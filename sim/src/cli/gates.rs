//! Gates: conditions on all runs of a command together. A gate that closes fails the command though no run failed.

use sim_plan::FaultProfile;

use super::results::Results;

/// A gate that closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClosedGate {
    pub name: &'static str,
    pub message: String,
}

/// Returns the rows of a million checked facts that oracles may leave undecided in runs of a profile. Where disks fail,
/// more writes have no known outcome.
fn undecided_per_million(profile: FaultProfile) -> u64 {
    match profile {
        FaultProfile::Disk | FaultProfile::Swarm => 4,
        _ => 1,
    }
}

/// Returns the gates that closed. `every_fault_from`: the number of runs from which on each kind of fault must fire.
pub(super) fn closed(results: &Results, every_fault_from: usize) -> Vec<ClosedGate> {
    let gates = [every_fault(results, every_fault_from), undecided(results)];
    gates.into_iter().flatten().collect()
}

/// Closes if a kind of fault that the plans draw never fired.
fn every_fault(results: &Results, from: usize) -> Option<ClosedGate> {
    let (runs, silent) = (results.runs.len(), results.never_fired());
    let message = format!("{runs} runs, and these faults never fired: {}", silent.join("; "));
    (runs >= from && !silent.is_empty()).then_some(ClosedGate { name: "every-fault", message })
}

/// Closes if oracles gave up too many rows. The rows of a million are allowed to the first facts too.
fn undecided(results: &Results) -> Option<ClosedGate> {
    let profiles = results.runs.iter().map(|(source, _)| source.options.profile);
    let most = profiles.map(undecided_per_million).max().unwrap_or(1);
    let (undecided, checked) = (results.undecided(), results.checked());
    let allowed = (checked * most / 1_000_000).max(most);
    let message = format!("{undecided} rows of {checked} facts are undecided, {allowed} allowed");
    (undecided > allowed).then_some(ClosedGate { name: "undecided", message })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::{PlanSource, RunOptions};
    use crate::run::{RunOutcome, WorldKind};
    use sim_plan::PlanSize;

    fn results(profile: FaultProfile, checked: u64, undecided: u64) -> Results {
        let options = RunOptions { world: WorldKind::Madsim, profile, size: PlanSize::Smoke };
        let source = PlanSource { what: "1".to_string(), options };
        let outcome = RunOutcome { checked, undecided, ..RunOutcome::default() };
        Results { runs: vec![(source, outcome)], elapsed: Duration::ZERO }
    }

    fn names(results: &Results, every_fault_from: usize) -> Vec<&'static str> {
        closed(results, every_fault_from).into_iter().map(|gate| gate.name).collect()
    }

    #[test]
    fn a_fault_that_never_fired_closes_a_gate_from_enough_runs_on() {
        let memory = results(FaultProfile::Memory, 0, 0);
        assert_eq!((names(&memory, 2), names(&memory, 1)), (vec![], vec!["every-fault"]));
    }

    #[test]
    fn more_undecided_rows_than_one_in_a_million_close_a_gate() {
        let of = |checked, undecided| names(&results(FaultProfile::Calm, checked, undecided), 1);
        assert_eq!((of(900, 1), of(3_000_000, 3)), (vec![], vec![]));
        assert_eq!((of(900, 2), of(3_000_000, 4)), (vec!["undecided"], vec!["undecided"]));
        let of_disk = |undecided| names(&results(FaultProfile::Disk, 900, undecided), 2);
        assert_eq!((of_disk(4), of_disk(5)), (vec![], vec!["undecided"]));
    }
}
