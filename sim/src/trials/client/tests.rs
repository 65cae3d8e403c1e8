//! Client trials find nothing in a sound client.

use super::*;

const SEEDS: u64 = 12;

#[test]
fn trials_of_a_sound_client_find_nothing() {
    for seed in 0..SEEDS {
        let mut trial = ClientTrial::create(seed);
        trial.run();
        let cluster = trial.cluster.lock();
        assert_eq!(cluster.found, None, "seed {seed}: {}", cluster.steps.join("\n"));
        assert!(cluster.ops.len() > 100, "{} ops", cluster.ops.len());
    }
}
