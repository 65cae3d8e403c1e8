//! Hosted trials find nothing in a sound server, reach what they are for, and report a model that differs.

use super::scrubbing::TabletFileKind;
use super::*;
use crate::trials::reached::{self, Situation};
use crate::world::World;

const SITUATIONS: [Situation; 19] = [
    ("a request again at the same process", &["the same request after nothing"]),
    ("a request again after a kill", &["the same request after kill"]),
    ("a request again after a power cut", &["the same request after power cut"]),
    ("a job that fails with an input/output error", &["fails with 5, in a job: true"]),
    ("a job that fails for want of space", &["fails with 28, in a job: true"]),
    ("a page that a scan cannot read", &["scan: Some", "Input/output error", "replica failed: true"]),
    ("columns that the table does not take any more", &["does not take is refused"]),
    ("a scan", &["rows are read"]),
    ("a scan that resumes after the empty key", &["rows after row 0", "an empty key: true"]),
    ("a scan that waits for an alteration", &["an alteration while a scan waits", "rows at"]),
    ("an alteration", &["is in force"]),
    ("compactions that are disabled", &["is in force", "disable_compaction: Some(true)"]),
    ("a kill within a pass of the scrubber", &["within a pass: true"]),
    ("a replica that does not open after rot", &["rot of", "the replica has failed"]),
    ("rot that the scrubber finds", &["rot of", "the scrubber's check names it"]),
    ("rot of a superblock", &["rot of tablet-meta/", ": the "]),
    ("rot of consensus metadata", &["rot of consensus-meta/", ": the "]),
    ("rot of rows", &["rot of data/", ": the "]),
    ("rot of a log", &["rot of wals/", ": the "]),
];

fn created(seed: u64) -> HostedTrial {
    HostedTrial::create(seed, RandomStream::new(seed, "test"))
}

#[test]
fn trials_of_a_sound_server_find_nothing_and_reach_what_they_are_for() {
    reached::check(6..=60, &SITUATIONS, |seed| {
        let mut trial = created(seed);
        trial.run();
        assert_eq!(trial.fleet.found, None, "seed {seed}");
        std::mem::take(&mut trial.fleet.steps)
    });
}

/// Returns a trial whose table has rows.
fn written(seed: u64) -> HostedTrial {
    let mut trial = created(seed);
    trial.fleet.boot(cluster::tserver_config, BEGINNING);
    trial.create_tablet();
    trial.fleet.pass(BEGINNING);
    while trial.rows.live(HybridStamp::MAX).is_empty() {
        trial.write();
    }
    trial
}

#[test]
fn rows_that_only_the_server_has_are_reported() {
    let mut trial = written(1);
    trial.check();
    assert_eq!(trial.fleet.found, None);
    trial.rows = TrialRows::default();
    trial.check();
    assert!(trial.fleet.found.is_some());
}

/// The server has no scrubber, and its replica does not read the file again.
#[test]
fn rot_that_nothing_finds_is_reported() {
    let mut trial = written(3);
    let rotten = trial.damage(TabletFileKind::ConsensusMeta).expect("each tablet has the file");
    trial.check_rot(&rotten);
    assert!(trial.fleet.found.is_some_and(|what| what.contains("is not found")));
}

/// Nothing maintains the replica of a server whose process is suspended.
#[test]
fn rows_that_stay_in_memory_are_reported() {
    let mut trial = written(2);
    trial.check_upkeep();
    assert_eq!(trial.fleet.found, None);
    let replica = trial.fleet.replica(SERVER, TABLET).expect("it runs");
    while replica.tablet().state().active.rows() == 0 {
        trial.write();
    }
    trial.fleet.world.pause(&fleet::host(SERVER).name());
    trial.check_upkeep();
    assert!(trial.fleet.found.is_some_and(|what| what.contains("in memory alone")));
}
