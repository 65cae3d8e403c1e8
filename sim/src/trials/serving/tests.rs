//! Serving trials find nothing in sound servers and reach what they are for.

use super::*;
use crate::trials::reached::{self, Situation};

const SITUATIONS: [Situation; 20] = [
    ("creations fail", &["creation of", "Input/output error"]),
    ("creations are refused", &["creation of", "too little space"]),
    ("writes are refused", &["rows of", "too little space"]),
    ("writes are throttled", &["two writes of", "are pending for this tablet"]),
    ("batches wait for memory", &["a batch with", "NotNow"]),
    ("leadership moves", &["deaf false: Ok(None)"]),
    ("leadership leaves servers that run short", &["which is short: Some("]),
    ("servers that lead again run short again", &["runs short once more"]),
    ("leadership stays", &["deaf true: Ok(None)"]),
    ("replies wait", &["second reply: Ok", "ahead Some"]),
    ("a clock is read between two writes", &["clock of", " 5 timestamps"]),
    ("a flag is shown as changed", &["scanner_inject_latency_on_each_batch_ms of", "is shown, value 25"]),
    ("a flag is at its default", &["scanner_inject_latency_on_each_batch_ms of", "is shown, value 0"]),
    ("a flag is refused", &["scanner_ttl_ms of", "is refused"]),
    ("a batch is limited", &["limited batch", "has more: true"]),
    ("a replica is created again", &["Create of", ", true: Ok(Some"]),
    ("a deletion is stale", &["DeleteStale of", ", true: Ok(Some"]),
    ("an alteration is old", &["AlterBack of", ", true: Ok(Some"]),
    ("an alteration is repeated", &["AlterAgain of", ", true: Ok(None)"]),
    ("a scanner is kept alive", &["a scanner of", "is kept alive by"]),
];

#[test]
fn trials_of_sound_servers_find_nothing_and_reach_what_they_are_for() {
    let mut reports = 0;
    reached::check(16..=64, &SITUATIONS, |seed| {
        let mut trial = ServingTrial::create(seed);
        trial.run();
        assert_eq!(trial.fleet.found, None, "seed {seed}");
        reports +=
            trial.fleet.observer.marks().get("heartbeat: incremental report").copied().unwrap_or_default();
        trial.fleet.steps
    });
    assert!(reports > 0, "no incremental report");
}
