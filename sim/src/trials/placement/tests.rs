//! Placement trials find nothing in a sound placement, reach what they are for, and reject wrong choices.

use super::*;

const SEEDS: u64 = 30;

#[test]
fn trials_of_a_sound_placement_find_nothing_and_reach_what_they_are_for() {
    let mut sum = Reached::default();
    for seed in 0..SEEDS {
        assert_eq!(run(seed).map(|found| found.message), None);
        let random = &mut RandomStream::new(seed, "more clusters");
        let mut trial = PlacementTrial::create(random);
        trial.play(random).expect("sound");
        let Reached { moves, drains, located_drains, spread } = trial.reached;
        sum.moves += moves;
        sum.drains += drains;
        sum.located_drains += located_drains;
        sum.spread += spread;
    }
    let Reached { moves, drains, located_drains, spread } = sum;
    assert!(moves > 15 && drains > 10 && located_drains > 5 && spread > 3, "{sum:?}");
}

/// Returns three servers in three locations and a fourth beside the first one, with a tablet on a server that is
/// drained.
fn drained() -> (Cluster, Vec<ReplicaMove>) {
    let servers =
        ["/a", "/b", "/c", "/a"].into_iter().zip(0..).map(|(at, number)| (server(number), at.to_string()));
    let on = vec![server(0), server(1), server(9)];
    let tablets = vec![TabletVoters { id: tablet(0), table: "t".to_string(), servers: on }];
    let cluster = Cluster { servers: servers.collect(), tablets };
    let all = cluster.moves(|from| from == server(9));
    (cluster, all)
}

#[test]
fn a_drain_that_finds_no_target_or_a_worse_one_is_rejected() {
    let (cluster, all) = drained();
    assert_eq!(all.len(), 2);
    let to = |number: u64| ReplicaMove { tablet: tablet(0), from: server(9), to: server(number) };
    assert_eq!(check_choice(&cluster, &all, Some(to(2))), Ok(()));
    assert!(check_choice(&cluster, &all, None).is_err());
    assert!(check_choice(&cluster, &all, Some(to(3))).is_err(), "a majority in /a");
    assert!(check_choice(&cluster, &all, Some(to(1))).is_err(), "it has the tablet");
    assert_eq!(check_choice(&cluster, &[], None), Ok(()));
}
