//! Configurations, their majorities, and those who join and leave.

use super::*;

/// The leader has d, which has a copy, as a voter from index 3 on, in its own log so far.
fn with_a_fourth_voter() -> Cluster {
    let mut cluster = Cluster::usual();
    cluster.learn('d');
    let op = OpId { term: 1, index: 3 };
    cluster.post('a').last = op;
    let voters = ['a', 'b', 'c', 'd'].map(peer).to_vec();
    cluster.note('a', Action::ConfigAppend { op, voters, learners: Vec::new(), cas: None });
    cluster.note('a', Action::LeaderPersist { upto: op });
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
        cluster.note('a', Action::ConfigAppend { op, voters, learners: Vec::new(), cas: None });
        cluster.note('a', Action::LeaderPersist { upto: op });
    };
    change(&mut cluster, 3, &['a', 'b', 'c', 'd']);
    cluster.follow('b', 'a', "1.2", "1.3").follow('c', 'a', "0.0", "1.3").commit('a', 3);
    cluster.append('a', 4, 12).follow('b', 'a', "1.3", "1.4");
    change(&mut cluster, 5, &['a', 'b', 'c']);
    cluster.commit('a', 4);
    assert!(cluster.objections().is_empty(), "{}", said(&cluster));
    // One of four does not.
    cluster.append('a', 6, 13).commit('a', 4);
    cluster.post('b').last = op("1.3");
    cluster.post('b').commit = 3;
    cluster.note('b', Action::Restart { vote: Some(peer('a')) });
    assert_eq!(cluster.objections(), ["QuorumKeeps"], "{}", said(&cluster));
}

#[test]
fn two_of_four_are_too_few_while_all_four_stay() {
    let mut cluster = with_a_fourth_voter();
    cluster.follow('b', 'a', "1.2", "1.3").follow('c', 'a', "0.0", "1.3").commit('a', 3);
    cluster.append('a', 4, 12).follow('b', 'a', "1.3", "1.4");
    assert!(cluster.objections().is_empty(), "{}", said(&cluster));
    cluster.commit('a', 4);
    assert_eq!(cluster.objections(), ["CommitByMajority"], "{}", said(&cluster));
}

#[test]
fn a_voter_of_a_living_tablet_is_not_deleted() {
    let mut cluster = Cluster::usual();
    cluster.dog.alive(&[TABLET]);
    let gone = Post { data: DataState::Gone, last: OpId::MIN, commit: 0, ..*cluster.post('c') };
    *cluster.post('c') = gone;
    cluster.note('c', Action::Delete);
    assert!(cluster.objections().is_empty(), "the tablet may have been dropped: {}", said(&cluster));
    cluster.dog.alive(&[TABLET]);
    assert_eq!(cluster.objections(), ["VotersStay"]);
}

#[test]
fn a_voter_that_is_tombstoned_by_an_order_older_than_its_configuration_is_objected_to() {
    let ordered = |cas| {
        let mut cluster = Cluster::new();
        cluster.elect('a', 1, &['b']);
        let (op, voters) = (op("1.1"), ['a', 'b', 'c'].map(peer).to_vec());
        cluster.post('a').last = op;
        cluster.note('a', Action::ConfigAppend { op, voters, learners: Vec::new(), cas: Some(0) });
        cluster.note('a', Action::LeaderPersist { upto: op });
        cluster.follow('b', 'a', "0.0", "1.1");
        cluster.post('b').data = DataState::Tombstoned;
        cluster.note('b', Action::Tombstone { cas });
        cluster.dog.alive(&[TABLET]);
        cluster.objections().contains(&"VotersStay")
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
        cluster.note('a', Action::ConfigAppend { op, voters, learners: Vec::new(), cas: None });
        cluster
    };
    assert!(change(&['a', 'b', 'c', 'd'], 3).objections().is_empty());
    assert!(change(&['a', 'b'], 3).objections().is_empty());
    assert_eq!(change(&['a', 'd', 'e'], 3).objections(), ["QuorumsMeet"]);
    // A second one while the first is pending.
    let mut cluster = change(&['a', 'b', 'c', 'd'], 3);
    let op = OpId { term: 1, index: 4 };
    cluster.post('a').last = op;
    let voters = ['a', 'b', 'c', 'd', 'e'].map(peer).to_vec();
    cluster.note('a', Action::ConfigAppend { op, voters, learners: Vec::new(), cas: None });
    assert_eq!(cluster.objections(), ["QuorumsMeet"]);
}

#[test]
fn a_change_before_anything_of_the_term_is_committed_is_rejected() {
    let voters = || ['a', 'b'].map(peer).to_vec();
    let change = |cluster: &mut Cluster, text: &str| {
        let action = Action::ConfigAppend { op: op(text), voters: voters(), learners: Vec::new(), cas: None };
        cluster.post('a').last = op(text);
        cluster.note('a', action);
    };
    let mut cluster = Cluster::usual();
    change(&mut cluster, "1.3");
    assert!(cluster.objections().is_empty(), "{}", said(&cluster));
    let mut cluster = Cluster::usual();
    cluster.elect('a', 2, &['b']);
    change(&mut cluster, "2.3");
    assert_eq!(cluster.objections(), ["ChangeInOwnTerm"], "{}", said(&cluster));
}

#[test]
fn a_voter_without_a_log_is_rejected() {
    let mut cluster = Cluster::usual();
    let voters = ['a', 'b', 'c', 'd'].map(peer).to_vec();
    cluster.post('a').last = op("1.3");
    cluster.note('a', Action::ConfigAppend { op: op("1.3"), voters, learners: Vec::new(), cas: None });
    assert_eq!(cluster.objections(), ["ChangeInOwnTerm"], "{}", said(&cluster));
}

/// d is added, copied to, deleted and made a voter; whether that is objected to.
fn objects_to_a_deleted_voter(followed: bool, evicted_between: bool) -> bool {
    let mut cluster = Cluster::usual();
    let change = |cluster: &mut Cluster, at: &str, voters: &[char], learners: &[char]| {
        cluster.post('a').last = op(at);
        let peers = |names: &[char]| names.iter().copied().map(peer).collect();
        let (voters, learners) = (peers(voters), peers(learners));
        cluster.note('a', Action::ConfigAppend { op: op(at), voters, learners, cas: None });
    };
    change(&mut cluster, "1.3", &['a', 'b', 'c'], &['d']);
    cluster.learn('d');
    if followed {
        cluster.follow('d', 'a', "1.2", "1.3");
    }
    cluster.post('d').data = DataState::Tombstoned;
    cluster.note('d', Action::Tombstone { cas: None });
    if evicted_between {
        change(&mut cluster, "1.4", &['a', 'b', 'c'], &[]);
    }
    change(&mut cluster, "1.5", &['a', 'b', 'c', 'd'], &[]);
    cluster.objections().contains(&"ChangeInOwnTerm")
}

#[test]
fn who_is_deleted_after_it_followed_is_made_a_voter_as_the_leader_does_not_know() {
    assert!(!objects_to_a_deleted_voter(true, false));
    assert!(objects_to_a_deleted_voter(false, false), "it never took anything");
    assert!(objects_to_a_deleted_voter(true, true), "it was taken out since");
}

#[test]
fn a_voter_taken_away_while_most_of_the_others_are_silent_is_rejected() {
    let second = 1_000_000_000;
    let taken_after = |seconds: u64, silent: &[char]| {
        let mut cluster = Cluster::usual();
        cluster.elect('a', 2, &['b']).append('a', 3, 12).follow('b', 'a', "1.2", "2.3").commit('a', 3);
        cluster.dog.silent(silent.iter().map(|name| (peer(*name), cluster.nanos)).collect());
        cluster.nanos += seconds * second;
        let voters = ['a', 'b'].map(peer).to_vec();
        cluster.post('a').last = op("2.4");
        cluster.note('a', Action::ConfigAppend { op: op("2.4"), voters, learners: Vec::new(), cas: None });
        cluster.objections()
    };
    assert!(taken_after(9, &['c']).is_empty(), "the others can agree");
    assert!(taken_after(2, &['b', 'c']).is_empty(), "they may be heard again");
    assert_eq!(taken_after(9, &['b', 'c']), ["LivingMajority"]);
}

/// Who comes back knows as committed what it stored beside its log, which may be older than what the log holds.
#[test]
fn who_comes_back_by_a_configuration_older_than_its_logs_is_rejected() {
    let restart = |told: u64| {
        let mut cluster = with_a_fourth_voter();
        cluster.follow('b', 'a', "1.2", "1.3");
        cluster.dog.opened(peer('b'), TABLET, told);
        cluster.note('b', Action::Restart { vote: Some(peer('a')) });
        cluster
    };
    let (right, wrong) = (restart(3), restart(0));
    assert!(right.objections().is_empty(), "{}", said(&right));
    assert_eq!(wrong.objections(), ["ConfigInLog"], "{}", said(&wrong));
}
