//! Hosting trials find nothing in sound servers and reach what they are for.

use super::*;
use crate::trials::reached::{self, Situation};

const SEEDS: u64 = 16;
/// Most trials until all situations were met.
const SEEDS_MAX: u64 = 60;
const SITUATIONS: [Situation; 11] = [
    ("a learner is marked late", &["a learner that was marked", "is a voter: true"]),
    ("heartbeats reach a slow replica", &["whose log is slow", "Ok("]),
    ("a log is cut within a long copy", &["long copy", "Voter after", "log cut true"]),
    ("a copy in progress needs a log", &["after a copy in progress", "it needs them: true"]),
    ("a copy that has ended needs a log", &["after a copy that has ended well", "it needs them: true"]),
    ("a follower gets an operation for which its memory has no space", &["a large write", "Ok(None)"]),
    ("operations are truncated", &["had operations: reserved were"]),
    ("a replica opens on a full device", &["restarts with 0 bytes", "true, then true"]),
    ("a disk operation fails", &["Input/output error"]),
    ("an order to copy from where no server is", &["from operator", "no response in time"]),
    ("a deletion meets an addition", &["deletion after", "of what knows Some"]),
];

#[test]
fn trials_come_to_long_copies_truncations_little_memory_and_full_devices() {
    reached::check(1..=SEEDS_MAX, &SITUATIONS, |seed| {
        let mut trial = HostingTrial::create(seed);
        trial.run();
        assert_eq!(trial.fleet.found, None, "seed {seed}");
        trial.fleet.steps
    });
}

#[test]
fn trials_of_sound_servers_find_nothing_and_reach_what_they_are_for() {
    let (mut deletions, mut refusals, mut rots, mut given_up) = (0, 0, 0, 0);
    let mut starts = 0;
    for seed in 0..SEEDS {
        let mut trial = HostingTrial::create(seed);
        trial.run();
        assert_eq!(trial.fleet.found, None, "seed {seed}");
        let count = |has: fn(&str) -> bool| trial.fleet.steps.iter().filter(|step| has(step)).count();
        deletions += count(|step| step.contains("deletion at") && step.ends_with("Ok(())"));
        refusals += count(|step| step.contains("is newer than"));
        rots += count(|step| step.contains("rot of Some"));
        starts += count(|step| step.contains("operations of the start of"));
        given_up += trial.fleet.observer.marks().get("tablet copy: given up").copied().unwrap_or_default();
    }
    let reached = [deletions > 60, refusals > 5, rots > 0, given_up > 2];
    assert_eq!(reached, [true; 4], "{deletions} {refusals} {rots} {given_up}");
    assert!(starts > 0, "{starts}");
}
