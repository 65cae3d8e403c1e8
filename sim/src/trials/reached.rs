//! Situations that trials of sound code must come to: without them they would check nothing.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// A situation, and words that are in one line of the story of a trial that comes to it.
pub(super) type Situation = (&'static str, &'static [&'static str]);

/// Runs trials of the seeds from 0 on: at least the first number of them, and until all situations were met, at most
/// the second. `story` runs one, and returns its story.
pub(super) fn check(
    numbers: RangeInclusive<u64>,
    situations: &[Situation],
    mut story: impl FnMut(u64) -> Vec<String>,
) {
    let mut met = BTreeSet::new();
    for seed in 0..*numbers.end() {
        for line in story(seed) {
            let of_line = situations.iter().filter(|(_, words)| words.iter().all(|word| line.contains(word)));
            met.extend(of_line.map(|(what, _)| *what));
        }
        if seed + 1 >= *numbers.start() && met.len() == situations.len() {
            return;
        }
    }
    let missing: Vec<&str> =
        situations.iter().map(|(what, _)| *what).filter(|what| !met.contains(what)).collect();
    panic!("trials never come to {missing:?}");
}
