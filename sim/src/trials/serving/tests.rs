//! Serving trials find nothing in sound servers and reach what they are for.

use super::*;

const SEEDS: u64 = 16;

#[test]
fn trials_of_sound_servers_find_nothing_and_reach_what_they_are_for() {
    let (mut failed, mut full, mut refused, mut moved, mut stayed, mut waits, mut reports) =
        (0, 0, 0, 0, 0, 0, 0);
    for seed in 0..SEEDS {
        let mut trial = ServingTrial::create(seed);
        trial.run();
        assert_eq!(trial.fleet.found, None, "seed {seed}");
        let steps = &trial.fleet.steps;
        let count = |has: fn(&str) -> bool| steps.iter().filter(|step| has(step)).count();
        failed += count(|step| step.contains("creation of") && step.contains("Input/output error"));
        full += count(|step| step.contains("creation of") && step.contains("too little space"));
        refused += count(|step| step.contains("rows of") && step.contains("too little space"));
        moved += count(|step| step.contains("deaf false: Ok(None)"));
        stayed += count(|step| step.contains("deaf true: Ok(None)"));
        waits += count(|step| step.contains("second reply: Ok") && step.contains("ahead Some"));
        reports +=
            trial.fleet.observer.marks().get("heartbeat: incremental report").copied().unwrap_or_default();
    }
    let counts = [failed, full, refused, moved, stayed, waits, reports as usize];
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}
