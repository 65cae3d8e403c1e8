//! Hosting trials find nothing in sound servers and reach what they are for.

use super::*;

const SEEDS: u64 = 16;

#[test]
fn trials_of_sound_servers_find_nothing_and_reach_what_they_are_for() {
    let (mut deletions, mut refusals, mut orders, mut rots, mut failures, mut given_up) = (0, 0, 0, 0, 0, 0);
    let mut starts = 0;
    for seed in 0..SEEDS {
        let mut trial = HostingTrial::create(seed);
        trial.run();
        assert_eq!(trial.fleet.found, None, "seed {seed}");
        let count = |has: fn(&str) -> bool| trial.fleet.steps.iter().filter(|step| has(step)).count();
        deletions += count(|step| step.contains("deletion at") && step.ends_with("Ok(())"));
        refusals += count(|step| step.contains("is newer than"));
        orders += count(|step| step.contains("from operator: Ok(None)"));
        rots += count(|step| step.contains("rot of Some"));
        starts += count(|step| step.contains("operations of the start of"));
        failures += count(|step| step.contains("Input/output error"));
        given_up += trial.fleet.observer.marks().get("tablet copy: given up").copied().unwrap_or_default();
    }
    let reached = [deletions > 60, refusals > 5, orders > 0, rots > 0, failures > 2, given_up > 2];
    assert_eq!(reached, [true; 6], "{deletions} {refusals} {orders} {rots} {failures} {given_up}");
    assert!(starts > 2, "{starts}");
}
