//! Configurations, their majorities, and members that join and leave.

use super::*;

/// The leader's log adds d, which has a copy, as a voter at index 3.
fn with_a_fourth_voter() -> Cluster {
    let mut cluster = Cluster::usual();
    cluster.learn('d');
    let op = OpId { term: 1, index: 3 };
    cluster.post('a').last = op;
    let voters = ['a', 'b', 'c', 'd'].map(peer).to_vec();
    cluster.note('a', RaftAction::ConfigAppend { op, voters, learners: Vec::new(), cas: None });
    cluster.note('a', RaftAction::LeaderPersist { upto: op });
    cluster
}

#[test]
fn two_of_four_meet_every_majority() {
    let mut cluster = Cluster::usual();
    cluster.learn('d');
    let change = |cluster: &mut Cluster, index: u64, voters: &[char]| {
        let op = OpId { term: 1, index };
        cluster.post('a').last = op;
        let voters = voters.iter().map(|name| peer(*name)).collect();
        cluster.note('a', RaftAction::ConfigAppend { op, voters, learners: Vec::new(), cas: None });
        cluster.note('a', RaftAction::LeaderPersist { upto: op });
    };
    change(&mut cluster, 3, &['a', 'b', 'c', 'd']);
    cluster.follow('b', 'a', "1.2", "1.3").follow('c', 'a', "0.0", "1.3").commit('a', 3);
    cluster.append('a', 4, 12).follow('b', 'a', "1.3", "1.4");
    change(&mut cluster, 5, &['a', 'b', 'c']);
    cluster.commit('a', 4);
    assert!(cluster.violated().is_empty(), "{}", describe(&cluster));
    // One of four does not.
    cluster.append('a', 6, 13).commit('a', 4);
    cluster.post('b').last = op("1.3");
    cluster.post('b').commit = 3;
    cluster.note('b', RaftAction::Restart { vote: Some(peer('a')) });
    assert_eq!(cluster.violated(), ["AcknowledgedStays", "QuorumKeeps"], "{}", describe(&cluster));
}

#[test]
fn two_of_four_are_too_few_while_all_four_stay() {
    let mut cluster = with_a_fourth_voter();
    cluster.follow('b', 'a', "1.2", "1.3").follow('c', 'a', "0.0", "1.3").commit('a', 3);
    cluster.append('a', 4, 12).follow('b', 'a', "1.3", "1.4");
    assert!(cluster.violated().is_empty(), "{}", describe(&cluster));
    cluster.commit('a', 4);
    assert_eq!(cluster.violated(), ["CommitByMajority"], "{}", describe(&cluster));
}

#[test]
fn a_voter_of_a_living_tablet_is_not_deleted() {
    let mut cluster = Cluster::usual();
    cluster.checker.check_live_tablets(&[TABLET]);
    let gone = PostState { data: NotedDataState::Gone, last: OpId::MIN, commit: 0, ..*cluster.post('c') };
    *cluster.post('c') = gone;
    cluster.note('c', RaftAction::Delete);
    assert!(cluster.violated().is_empty(), "the tablet may have been dropped: {}", describe(&cluster));
    cluster.checker.check_live_tablets(&[TABLET]);
    assert_eq!(cluster.violated(), ["VotersStay"]);
}

#[test]
fn a_voter_tombstoned_by_an_outdated_request_is_rejected() {
    let ordered = |cas| {
        let mut cluster = Cluster::new();
        cluster.elect('a', 1, &['b']);
        let (op, voters) = (op("1.1"), ['a', 'b', 'c'].map(peer).to_vec());
        cluster.post('a').last = op;
        cluster.note('a', RaftAction::ConfigAppend { op, voters, learners: Vec::new(), cas: Some(0) });
        cluster.note('a', RaftAction::LeaderPersist { upto: op });
        cluster.follow('b', 'a', "0.0", "1.1");
        cluster.post('b').data = NotedDataState::Tombstoned;
        cluster.note('b', RaftAction::Tombstone { cas });
        cluster.checker.check_live_tablets(&[TABLET]);
        cluster.violated().contains(&"VotersStay")
    };
    assert!(ordered(None) && ordered(Some(0)));
    assert!(!ordered(Some(1)), "it knows no newer one");
}

#[test]
fn configurations_whose_majorities_need_not_meet_are_rejected() {
    let change = |voters: &[char], index: u64| {
        let mut cluster = Cluster::usual();
        cluster.learn('d').learn('e');
        let op = OpId { term: 1, index };
        cluster.post('a').last = op;
        let voters = voters.iter().map(|name| peer(*name)).collect();
        cluster.note('a', RaftAction::ConfigAppend { op, voters, learners: Vec::new(), cas: None });
        cluster
    };
    assert!(change(&['a', 'b', 'c', 'd'], 3).violated().is_empty());
    assert!(change(&['a', 'b'], 3).violated().is_empty());
    assert_eq!(change(&['a', 'd', 'e'], 3).violated(), ["QuorumsMeet"]);
    // A second one while the first is pending.
    let mut cluster = change(&['a', 'b', 'c', 'd'], 3);
    let op = OpId { term: 1, index: 4 };
    cluster.post('a').last = op;
    let voters = ['a', 'b', 'c', 'd', 'e'].map(peer).to_vec();
    cluster.note('a', RaftAction::ConfigAppend { op, voters, learners: Vec::new(), cas: None });
    assert_eq!(cluster.violated(), ["QuorumsMeet"]);
}

#[test]
fn a_change_before_anything_of_the_term_is_committed_is_rejected() {
    let voters = || ['a', 'b'].map(peer).to_vec();
    let change = |cluster: &mut Cluster, text: &str| {
        let action =
            RaftAction::ConfigAppend { op: op(text), voters: voters(), learners: Vec::new(), cas: None };
        cluster.post('a').last = op(text);
        cluster.note('a', action);
    };
    let mut cluster = Cluster::usual();
    change(&mut cluster, "1.3");
    assert!(cluster.violated().is_empty(), "{}", describe(&cluster));
    let mut cluster = Cluster::usual();
    cluster.elect('a', 2, &['b']);
    change(&mut cluster, "2.3");
    assert_eq!(cluster.violated(), ["ChangeInOwnTerm"], "{}", describe(&cluster));
}

#[test]
fn a_voter_without_a_log_is_rejected() {
    let mut cluster = Cluster::usual();
    let voters = ['a', 'b', 'c', 'd'].map(peer).to_vec();
    cluster.post('a').last = op("1.3");
    cluster.note('a', RaftAction::ConfigAppend { op: op("1.3"), voters, learners: Vec::new(), cas: None });
    assert_eq!(cluster.violated(), ["ChangeInOwnTerm"], "{}", describe(&cluster));
}

/// d is added, copied to, deleted and made a voter; returns true if that is reported.
fn reports_a_deleted_voter(followed: bool, evicted_between: bool) -> bool {
    let mut cluster = Cluster::usual();
    let change = |cluster: &mut Cluster, at: &str, voters: &[char], learners: &[char]| {
        cluster.post('a').last = op(at);
        let peers = |names: &[char]| names.iter().copied().map(peer).collect();
        let (voters, learners) = (peers(voters), peers(learners));
        cluster.note('a', RaftAction::ConfigAppend { op: op(at), voters, learners, cas: None });
    };
    change(&mut cluster, "1.3", &['a', 'b', 'c'], &['d']);
    cluster.learn('d');
    if followed {
        cluster.follow('d', 'a', "1.2", "1.3");
    }
    cluster.post('d').data = NotedDataState::Tombstoned;
    cluster.note('d', RaftAction::Tombstone { cas: None });
    if evicted_between {
        change(&mut cluster, "1.4", &['a', 'b', 'c'], &[]);
    }
    change(&mut cluster, "1.5", &['a', 'b', 'c', 'd'], &[]);
    cluster.violated().contains(&"ChangeInOwnTerm")
}

#[test]
fn a_voter_deleted_after_it_followed_is_accepted() {
    assert!(!reports_a_deleted_voter(true, false));
    assert!(reports_a_deleted_voter(false, false), "it never took entries");
    assert!(reports_a_deleted_voter(true, true), "it was evicted since");
}

#[test]
fn an_eviction_without_a_live_majority_is_rejected() {
    let second = 1_000_000_000;
    let taken_after = |seconds: u64, silent: &[char]| {
        let mut cluster = Cluster::usual();
        cluster.elect('a', 2, &['b']).append('a', 3, 12).follow('b', 'a', "1.2", "2.3").commit('a', 3);
        cluster.checker.set_silent(silent.iter().map(|name| (peer(*name), cluster.nanos)).collect());
        cluster.nanos += seconds * second;
        let voters = ['a', 'b'].map(peer).to_vec();
        cluster.post('a').last = op("2.4");
        cluster
            .note('a', RaftAction::ConfigAppend { op: op("2.4"), voters, learners: Vec::new(), cas: None });
        cluster.violated()
    };
    assert!(taken_after(9, &['c']).is_empty(), "the others are a majority");
    assert!(taken_after(2, &['b', 'c']).is_empty(), "they may come back");
    assert_eq!(taken_after(9, &['b', 'c']), ["LiveMajority"]);
}

/// The committed configuration in a replica's metadata may be older than the newest in its log.
#[test]
fn a_restart_with_an_outdated_configuration_is_rejected() {
    let restart = |told: u64| {
        let mut cluster = with_a_fourth_voter();
        cluster.follow('b', 'a', "1.2", "1.3");
        cluster.checker.opened(peer('b'), TABLET, told);
        cluster.note('b', RaftAction::Restart { vote: Some(peer('a')) });
        cluster
    };
    let (right, wrong) = (restart(3), restart(0));
    assert!(right.violated().is_empty(), "{}", describe(&right));
    assert_eq!(wrong.violated(), ["ConfigInLog"], "{}", describe(&wrong));
}

#[test]
fn members_of_a_change_without_a_majority_are_known() {
    let mut cluster = Cluster::usual();
    let change = |cluster: &mut Cluster, text: &str, learners: &[char]| {
        let (voters, learners) =
            (['a', 'b', 'c'].map(peer).to_vec(), learners.iter().copied().map(peer).collect());
        cluster.post('a').last = op(text);
        cluster.note('a', RaftAction::ConfigAppend { op: op(text), voters, learners, cas: None });
        cluster.note('a', RaftAction::LeaderPersist { upto: op(text) });
    };
    change(&mut cluster, "1.3", &['d']);
    assert!(cluster.checker.members_of_lost_changes().contains(&(TABLET, peer('d'))));
    cluster.follow('b', 'a', "1.2", "1.3").commit('a', 3);
    assert!(cluster.checker.members_of_lost_changes().is_empty());
    cluster.learn('e');
    assert!(
        cluster.checker.members_of_lost_changes().contains(&(TABLET, peer('e'))),
        "it was never a member"
    );
}
