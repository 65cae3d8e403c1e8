//! Trials of holds find nothing in sound code, and see a mark that passes a hold.

use engine::time::Timestamp;

use super::*;
use crate::trials::reached::{self, Situation};

const SITUATIONS: [Situation; 6] = [
    ("a fail-over", &["master", "leads"]),
    ("a restart", &["server", "restarts"]),
    ("a hold", &["holds its snapshot"]),
    ("a release", &["reader", "ends"]),
    ("a reader that reads for too long", &["has read for too long"]),
    ("a hold that comes too late", &["begins too late"]),
];

#[test]
fn trials_of_sound_code_find_nothing_and_reach_what_they_are_for() {
    reached::check(100..=400, &SITUATIONS, |seed| {
        let mut trial = HoldsTrial::create(seed);
        assert_eq!(trial.play(), Ok(()), "seed {seed}");
        trial.story
    });
}

#[test]
fn a_mark_beyond_a_snapshot_is_found() {
    let mut trial = HoldsTrial::create(1);
    let mut list = Vec::new();
    while !trial.readers.iter().any(|reader| reader.held().is_some()) {
        trial.change_masters();
        trial.change_readers().expect("readers may hold");
        trial.now += 1;
    }
    assert_eq!(trial.check_readers(), Ok(()), "no list, so nothing is dropped");
    // A complete list without holds, long after.
    list.push(nyala_proto::kudu::master::NyalaHistoryHoldsPb {
        as_of_micros: Some(clock(trial.now + 100, 0).wall.micros),
        holds: Vec::new(),
    });
    trial.servers[0].send(0, list.remove(0));
    trial.servers[0].deliver(trial.now + 100).expect("a legal list");
    let found = trial.check_readers().expect_err("history is gone");
    assert!(found.starts_with("server 0 drops history"), "{found}");
    assert_eq!(trial.servers[1].dropped(table_of(0)), Timestamp::default());
}
