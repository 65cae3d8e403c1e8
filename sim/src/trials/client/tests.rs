//! Client trials find nothing in a sound client, reach what they are for, and report what is wrong.

use super::*;

const SEEDS: u64 = 40;

#[test]
fn trials_of_a_sound_client_find_nothing_and_reach_what_they_are_for() {
    let (mut changes, mut lost_replies, mut conditions) = (0, 0, [0; 6]);
    let (mut shared, mut discarded) = (0, 0);
    for seed in 0..SEEDS {
        let mut trial = ClientTrial::create(seed);
        trial.run();
        let cluster = trial.cluster.lock();
        assert_eq!(cluster.found, None, "seed {seed}: {}", cluster.steps.join("\n"));
        assert!(cluster.ops.len() > 100, "{} ops", cluster.ops.len());
        let count = |has: &dyn Fn(&str) -> bool| cluster.steps.iter().filter(|step| has(step)).count();
        shared += count(&|step| step.contains("share a session"));
        discarded += count(&|step| step.contains("discards its rows"));
        changes += count(&|step| step.contains("change") && step.ends_with(": ok"));
        // Made by a request whose reply was lost, and refused when it came again.
        lost_replies += cluster.ops.iter().filter(|op| op.is_changed && op.is_refused).count();
        let names = ["Busy", "Silent", "Slow", "Deaf", "Starting", "Down"];
        for (sum, name) in conditions.iter_mut().zip(names) {
            *sum += count(&|step| step.contains(name));
        }
    }
    let reached = [changes > 40, lost_replies > 0, conditions.iter().all(|count| *count > 40)];
    assert_eq!(reached, [true; 3], "{changes} {lost_replies} {conditions:?}");
    assert!(shared > 100 && discarded > 20, "{shared} {discarded}");
}

#[test]
fn an_operation_that_does_not_end_is_reported() {
    let mut cluster = Cluster::new(1);
    let (one, other) = (cluster.begin_op(1, 0), cluster.begin_op(2, 0));
    cluster.end_op(one, 3);
    cluster.end_op(other, 4);
    cluster.check_pending();
    assert_eq!(cluster.found, None);
    cluster.begin_op(5, 0);
    cluster.check_pending();
    assert!(cluster.found.is_some_and(|what| what.contains("has not ended")));
}

#[test]
fn a_row_that_nothing_wrote_is_reported() {
    let mut trial = ClientTrial::create(1);
    trial.run();
    let mut cluster = trial.cluster.lock();
    let op = cluster.begin_op(1, 0);
    let request = verdicts::ScanRequest {
        op,
        lower: 0,
        upper: tablets::KEYS,
        least: None,
        limit: None,
        is_snapshot: false,
        is_fault_tolerant: false,
        counts_only: false,
    };
    let row = rows::Row { number: Some(-7), text: None };
    let report = verdicts::ScanReport { rows: vec![(3, row)], count: 1, ..Default::default() };
    cluster.conclude_scan(&request, &report, 2);
    assert!(cluster.found.as_ref().is_some_and(|what| what.contains("is none of")), "{:?}", cluster.found);
}
