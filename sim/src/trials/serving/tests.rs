//! Serving trials find nothing in sound servers and reach what they are for.

use super::*;

/// Least number of trials, and the number by which all that they are for has been reached.
const SEEDS_MIN: u64 = 16;
const SEEDS_MAX: u64 = 64;
/// Lines of a story, by what they reach: all words of a line.
const REACHED: [(&str, &[&str]); 8] = [
    ("creations fail", &["creation of", "Input/output error"]),
    ("creations are refused", &["creation of", "too little space"]),
    ("writes are refused", &["rows of", "too little space"]),
    ("writes are throttled", &["two writes of", "are pending for this tablet"]),
    ("batches wait for memory", &["a batch with", "NotNow"]),
    ("leadership moves", &["deaf false: Ok(None)"]),
    ("leadership stays", &["deaf true: Ok(None)"]),
    ("replies wait", &["second reply: Ok", "ahead Some"]),
];

#[test]
fn trials_of_sound_servers_find_nothing_and_reach_what_they_are_for() {
    let (mut reached, mut reports) = (std::collections::BTreeSet::new(), 0);
    for seed in 0..SEEDS_MAX {
        let mut trial = ServingTrial::create(seed);
        trial.run();
        assert_eq!(trial.fleet.found, None, "seed {seed}");
        for step in &trial.fleet.steps {
            let met = REACHED.iter().filter(|(_, words)| words.iter().all(|word| step.contains(word)));
            reached.extend(met.map(|(what, _)| *what));
        }
        reports +=
            trial.fleet.observer.marks().get("heartbeat: incremental report").copied().unwrap_or_default();
        if seed + 1 >= SEEDS_MIN && reached.len() == REACHED.len() {
            break;
        }
    }
    assert_eq!(reached.len(), REACHED.len(), "only {reached:?}");
    assert!(reports > 0, "no incremental report");
}
