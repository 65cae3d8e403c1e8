//! Hosting trials find nothing in sound servers, and take every step.

use super::step::Step;
use super::*;

const SEEDS: u64 = 6;

#[test]
fn trials_of_sound_servers_find_nothing() {
    for seed in 0..SEEDS {
        assert_eq!(run(seed), None);
    }
}

#[test]
fn a_trial_takes_every_step() {
    let random = &mut RandomStream::new(1, "test");
    let steps: Vec<Step> = (0..500).map(|_| step::draw(random)).collect();
    for step in [Step::Evict, Step::LateDelete, Step::CopyFromNone, Step::BreakCopy, Step::Rot] {
        assert!(steps.contains(&step), "{step:?}");
    }
}
