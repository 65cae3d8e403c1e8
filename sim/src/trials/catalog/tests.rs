//! Catalog trials find nothing in a sound catalog, reach what they are for, and report what is planted.

use super::*;

const SEEDS: u64 = 40;

#[test]
fn trials_of_a_sound_catalog_find_nothing_and_reach_what_they_are_for() {
    let mut sum = Reached::default();
    for seed in 0..SEEDS {
        let mut trial = CatalogTrial::create(seed).expect("an empty catalog");
        trial.run();
        assert_eq!(trial.found, None, "seed {seed}");
        let of = trial.reached;
        sum.done += of.done;
        sum.refused += of.refused;
        sum.fail_overs += of.fail_overs;
        sum.lost_turns += of.lost_turns;
        sum.lost_changes += of.lost_changes;
        sum.repairs += of.repairs;
        sum.removals += of.removals;
        sum.replacements += of.replacements;
    }
    let Reached { done, refused, fail_overs, lost_turns, lost_changes, repairs, removals, replacements } =
        sum;
    let reached = [done > 800, refused > 300, fail_overs > 100, lost_turns > 20, lost_changes > 5];
    assert!(reached.iter().all(|reached| *reached), "{sum:?}");
    assert!(repairs > 100 && removals > 40 && replacements > 5, "{sum:?}");
}
