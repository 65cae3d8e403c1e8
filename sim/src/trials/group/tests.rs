//! Group trials find nothing in a sound engine, reach what they are for, and report acknowledged rows that are missing.

use sim_plan::client_ops::WriteKind;

use super::*;
use crate::model::draws;
use crate::trials::reached::{self, Situation};

const SEEDS: u64 = 12;
/// Most trials until all situations were met.
const SEEDS_MAX: u64 = 120;
const SITUATIONS: [Situation; 12] = [
    ("a member loses its former replica as it is caught up", &["is a member again", "deleted: true"]),
    ("a leader is told of that", &["is told that"]),
    ("writes of a log wait for space", &["has space again", "writes have waited"]),
    ("a learner gets its mark for promotion", &["Modify", "member: None", "Some(true), replace: None"]),
    ("a voter is demoted while another is dead", &["the demotion of one of two other voters"]),
    ("a settled group is to lose one of two living voters", &["the demotion of", "beside dead"]),
    (
        "a learner that has everything is marked",
        &["which has everything", "promote: None, replace: Some(true)"],
    ),
    (
        "it is marked for promotion, and nothing else happens",
        &["which has everything", "promote: Some(true), replace: None"],
    ),
    ("a lost replica's responses come late", &["is gone, and its leader is told: true", "come late"]),
    (
        "a leader loses its power after an undone append",
        &["loses its power after writes of its log have waited: true"],
    ),
    ("numbered rows", &["numbered: true"]),
    ("a replica with few replies gets a proposal late", &["gets a proposal of request", "late"]),
];
/// Rows of which one has an effect, whatever rows there are.
const ROWS: usize = 20;

/// Returns a trial of a seed at its end.
fn ended(seed: u64) -> GroupTrial {
    let mut trial = GroupTrial::create(seed).expect("new replicas");
    trial.run();
    trial
}

#[test]
fn trials_of_a_sound_engine_find_nothing_and_reach_what_they_are_for() {
    let (mut elections, mut changes, mut copies, mut alterations, mut requests) = (0, 0, 0, 0, 0);
    for seed in 0..SEEDS {
        let trial = ended(seed);
        assert_eq!(trial.found, None, "seed {seed}");
        elections += trial.ledger.elections();
        changes += trial.ledger.changes();
        copies += trial.copied;
        alterations += trial.tables.len() - 1;
        requests += trial.answers.len();
    }
    let reached = [elections > 20, changes > 20, copies > 10, alterations > 2, requests > 300];
    assert_eq!(reached, [true; 5], "{elections} {changes} {copies} {alterations} {requests}");
}

#[test]
fn a_write_that_replicas_lack_is_reported() {
    let mut trial = ended(1);
    let at = trial.ledger_end();
    let shape = trial.table().shape.clone();
    let row = |_| draws::row(&mut trial.random, &shape, WriteKind::Upsert);
    let rows: Vec<_> = (0..ROWS).map(row).collect();
    trial.rows.apply(&shape, &rows, at - 1);
    trial.compare();
    assert!(trial.found.is_some());
}

#[test]
fn trials_come_to_late_orders_full_logs_and_careless_operators() {
    reached::check(1..=SEEDS_MAX, &SITUATIONS, |seed| {
        let trial = ended(seed);
        assert_eq!(trial.found, None, "seed {seed}");
        trial.steps
    });
}
