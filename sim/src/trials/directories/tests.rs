//! Directories trials find nothing in a sound server and reach what they are for.

use super::*;
use crate::trials::reached::{self, Situation};

const SEEDS: u64 = 6;
const SEEDS_MAX: u64 = 40;
const SITUATIONS: [Situation; 4] = [
    ("a directory is given up", &["a start with", "\"] lost: None"]),
    ("a directory that was given up is back", &["has files of this server"]),
    ("two disks change places", &["Exchange"]),
    ("a tablet of a lost directory is deleted", &["deletion of", "is_lost: true", "Ok(None)"]),
];

#[test]
fn trials_of_a_sound_server_find_nothing_and_reach_what_they_are_for() {
    reached::check(SEEDS..=SEEDS_MAX, &SITUATIONS, |seed| {
        let mut trial = DirectoriesTrial::create(seed);
        trial.run();
        assert_eq!(trial.fleet.found, None, "seed {seed}: {:#?}", trial.fleet.steps);
        trial.fleet.steps
    });
}
