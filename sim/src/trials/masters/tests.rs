//! Masters trials find nothing in sound masters and reach what they are for.

use super::*;
use crate::trials::reached::{self, Situation};

const SITUATIONS: [Situation; 23] = [
    ("a failover", &["leads after master"]),
    ("a master that is cut off", &["is cut off"]),
    ("a master that steps down", &["is to step down", "Ok(None)"]),
    ("a slow disk", &["times as slow"]),
    ("a table that is created", &["creation of", "Done"]),
    ("too few servers", &["creation of", "not enough live tablet servers"]),
    ("a creation without a reply", &["creation of", "Unknown"]),
    ("a user without a right", &["allowed false", "Unauthorized action"]),
    ("a table that is renamed", &["renaming of", "Done"]),
    ("a table that is altered", &["change of", "Done"]),
    ("a table that is dropped", &["deletion of", "Done"]),
    ("a token that is accepted", &["a token, forged: false", "accepted"]),
    ("a forged token", &["a token, forged: true"]),
    ("a new server", &["loses its disks: true"]),
    ("creations while a server is down", &["is down while tables are created"]),
    ("a server that drains", &["drains by"]),
    ("a token with some rights", &["the schema of", "Some(true)", "Some(false)"]),
    ("a schema that is refused", &["the schema of", "is refused"]),
    ("a user from whom a table is hidden", &["lists", "and some are hidden"]),
    ("statistics that are refused", &["the statistics of", "is refused"]),
    ("all keys for a new server", &["token keys", "settled true"]),
    ("a server that is unregistered", &["is unregistered", "leads again"]),
    ("tablets that are hidden", &["tablets of", "are located: false"]),
];

#[test]
fn trials_of_sound_masters_find_nothing_and_reach_what_they_are_for() {
    reached::check(6..=60, &SITUATIONS, |seed| {
        let mut trial = MastersTrial::create(seed);
        trial.run();
        let mut state = trial.state.lock();
        assert_eq!(state.found, None, "seed {seed}");
        std::mem::take(&mut state.steps)
    });
}
