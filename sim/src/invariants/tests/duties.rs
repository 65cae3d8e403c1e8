//! Duties of a replica: before it votes, leads or is deleted, and after a restart.

use super::*;

/// A leader with a committed configuration of the voters `voters` at index 3.
fn changed_to(voters: &[char], learners: &[char]) -> Cluster {
    let mut cluster = Cluster::usual();
    let peers = |names: &[char]| names.iter().map(|name| peer(*name)).collect::<Vec<_>>();
    let op = op("1.3");
    cluster.post('a').last = op;
    cluster.note(
        'a',
        RaftAction::ConfigAppend { op, voters: peers(voters), learners: peers(learners), cas: None },
    );
    cluster.note('a', RaftAction::LeaderPersist { upto: op });
    cluster.follow('b', 'a', "1.2", "1.3").follow('c', 'a', "0.0", "1.3").commit('a', 3);
    cluster.commit('b', 3).commit('c', 3);
    cluster
}

#[test]
fn a_member_without_a_vote_neither_stands_nor_leads() {
    let mut cluster = changed_to(&['a', 'b'], &['c']);
    cluster.note('b', RaftAction::StartPreElection { term: 2 });
    assert!(cluster.violated().is_empty(), "{}", describe(&cluster));
    cluster.note('c', RaftAction::StartPreElection { term: 2 });
    assert_eq!(cluster.violated(), ["OnlyVotersLead"]);
    // A leader may commit its own removal, and then steps down.
    let mut cluster = changed_to(&['b', 'c'], &[]);
    assert!(cluster.violated().is_empty(), "{}", describe(&cluster));
    cluster.append('a', 4, 14);
    assert_eq!(cluster.violated(), ["OnlyVotersLead"]);
}

#[test]
fn a_term_without_an_election_is_reported() {
    let mut cluster = Cluster::usual();
    cluster.note('c', RaftAction::MetaPersist { term: 1, vote: None });
    assert!(cluster.violated().is_empty(), "{}", describe(&cluster));
    cluster.note('c', RaftAction::MetaPersist { term: 2, vote: None });
    assert_eq!(cluster.violated(), ["TermsAreElected"]);
}

#[test]
fn a_blind_replica_does_not_vote_until_it_is_copied() {
    let grant = |cluster: &mut Cluster| {
        cluster.post('c').term = 2;
        cluster.note('c', RaftAction::GrantVote { candidate: peer('b'), term: 2 });
        cluster.violated().contains(&"NoBlindVote")
    };
    let blind = || {
        let mut cluster = Cluster::usual();
        cluster.follow('c', 'a', "0.0", "1.2");
        *cluster.post('c') =
            PostState { data: NotedDataState::Failed, last: OpId::MIN, ..*cluster.post('c') };
        cluster.note('c', RaftAction::FailOpen { vote: None });
        cluster.post('c').data = NotedDataState::Tombstoned;
        cluster.note('c', RaftAction::Tombstone { cas: None });
        cluster
    };
    assert!(!grant(&mut Cluster::usual()));
    assert!(grant(&mut blind()));
    let mut again = blind();
    again.note('c', RaftAction::Restart { vote: None });
    assert!(grant(&mut again), "a restart tells it nothing");
    let mut copied = blind();
    copied.learn('c');
    assert!(!grant(&mut copied));
}

#[test]
fn a_copy_over_a_replica_that_could_not_be_opened_has_nothing_to_remember() {
    let broken_off = |is_blind: bool| {
        let mut cluster = Cluster::usual();
        cluster.follow('c', 'a', "0.0", "1.2");
        let mut note = |data, last, action| {
            *cluster.post('c') = PostState { data, last, ..*cluster.post('c') };
            cluster.note('c', action);
        };
        note(NotedDataState::Tombstoned, op("1.2"), RaftAction::Tombstone { cas: None });
        if is_blind {
            note(NotedDataState::Failed, OpId::MIN, RaftAction::FailOpen { vote: None });
        }
        let at = if is_blind { OpId::MIN } else { op("1.2") };
        note(NotedDataState::Copying, at, RaftAction::CopyStart { source: peer('a'), term: 1 });
        note(NotedDataState::Tombstoned, OpId::MIN, RaftAction::Restart { vote: None });
        cluster.violated().contains(&"NoAmnesia")
    };
    assert!(broken_off(false));
    assert!(!broken_off(true));
}

#[test]
fn what_is_left_of_a_first_copy_may_vote() {
    let mut cluster = Cluster::usual();
    let (last, data) = (OpId::MIN, NotedDataState::Failed);
    cluster.posts.insert('d', PostState { term: 1, last, commit: 0, role: NotedRole::Follower, data });
    cluster.note('d', RaftAction::FailOpen { vote: None });
    cluster.post('d').data = NotedDataState::Tombstoned;
    cluster.note('d', RaftAction::Restart { vote: None });
    cluster.post('d').term = 2;
    cluster.note('d', RaftAction::GrantVote { candidate: peer('b'), term: 2 });
    assert!(!cluster.violated().contains(&"NoBlindVote"), "it never had an entry");
}

#[test]
fn a_first_copy_that_has_begun_may_vote_when_it_could_not_be_opened() {
    let mut cluster = Cluster::usual();
    let (last, data) = (OpId::MIN, NotedDataState::Copying);
    cluster.posts.insert('d', PostState { term: 1, last, commit: 0, role: NotedRole::Follower, data });
    cluster.note('d', RaftAction::CopyStart { source: peer('a'), term: 1 });
    cluster.post('d').data = NotedDataState::Failed;
    cluster.note('d', RaftAction::FailOpen { vote: None });
    cluster.post('d').data = NotedDataState::Tombstoned;
    cluster.note('d', RaftAction::Tombstone { cas: None });
    cluster.post('d').term = 2;
    cluster.note('d', RaftAction::GrantVote { candidate: peer('b'), term: 2 });
    assert!(!cluster.violated().contains(&"NoBlindVote"), "it never had an entry");
}

#[test]
fn a_revoked_request_deletes_nothing() {
    let deleted_by = |cas| {
        let mut cluster = changed_to(&['a', 'b'], &['c']);
        cluster.post('c').data = NotedDataState::Tombstoned;
        cluster.note('c', RaftAction::Tombstone { cas });
        cluster.violated().contains(&"NoStaleDelete")
    };
    assert!(deleted_by(Some(2)));
    assert!(!deleted_by(Some(3)) && !deleted_by(None));
}

#[test]
fn a_configuration_of_an_older_term_revokes_nothing() {
    let change = |cluster: &mut Cluster, name: char, at: &str, voters: &[char]| {
        let (op, voters) = (op(at), voters.iter().map(|name| peer(*name)).collect());
        cluster.post(name).last = op;
        cluster.note(name, RaftAction::ConfigAppend { op, voters, learners: Vec::new(), cas: None });
        cluster.note(name, RaftAction::LeaderPersist { upto: op });
    };
    let mut cluster = Cluster::usual();
    cluster.append('a', 3, 12);
    change(&mut cluster, 'a', "1.4", &['a', 'b']);
    cluster.elect('b', 2, &['c']);
    change(&mut cluster, 'b', "2.3", &['b', 'c']);
    cluster.follow('c', 'b', "0.0", "2.3").commit('b', 3);
    cluster.post('a').data = NotedDataState::Tombstoned;
    cluster.note('a', RaftAction::Tombstone { cas: Some(3) });
    assert!(!cluster.violated().contains(&"NoStaleDelete"), "{}", describe(&cluster));
}

#[test]
fn a_replica_that_restarts_has_what_it_noted_as_durable() {
    let lost = |excused: bool| {
        let mut cluster = Cluster::usual();
        cluster.follow('c', 'a', "0.0", "1.2");
        if excused {
            cluster.checker.excuse(peer('c'));
        }
        cluster.post('c').last = op("1.1");
        cluster.note('c', RaftAction::Restart { vote: None });
        cluster.violated().contains(&"AcknowledgedStays")
    };
    assert!(lost(false));
    assert!(!lost(true));
}

#[test]
fn a_replica_waits_an_election_timeout_before_it_stands() {
    let stands_after = |steps: u64, action: Option<RaftAction>| {
        let mut cluster = Cluster::usual();
        cluster.note('b', action.unwrap_or(RaftAction::StartPreElection { term: 2 }));
        (cluster.step, cluster.nanos) = (1, cluster.nanos + steps);
        cluster.note('b', RaftAction::StartPreElection { term: 3 });
        cluster.violated().contains(&"ElectionTimeoutKept")
    };
    let vote = || Some(RaftAction::GrantVote { candidate: peer('c'), term: 2 });
    let stood = || Some(RaftAction::StartElection { term: 2, asked: true });
    assert!(stands_after(100, None) && stands_after(100, vote()) && stands_after(100, stood()));
    assert!(!stands_after(1_000, None) && !stands_after(1_000, vote()) && !stands_after(1_000, stood()));
    let followed = || {
        let mut cluster = Cluster::usual();
        cluster.append('a', 3, 12);
        cluster.step = 1;
        cluster.follow('b', 'a', "1.2", "1.3");
        cluster
    };
    let mut cluster = followed();
    cluster.note('b', RaftAction::StartPreElection { term: 2 });
    assert_eq!(cluster.violated(), ["ElectionTimeoutKept"], "{}", describe(&cluster));
    // A restart tells nothing of a leader.
    let mut cluster = followed();
    cluster.note('b', RaftAction::Restart { vote: None }).note('b', RaftAction::StartPreElection { term: 2 });
    assert!(!cluster.violated().contains(&"ElectionTimeoutKept"), "{}", describe(&cluster));
}

/// b and c hold a number of pre-votes each, 500 ns apart.
fn pre_votes(cluster: &mut Cluster, rounds: u64, terms: [u64; 2]) {
    for _ in 0..rounds {
        cluster.note('b', RaftAction::StartPreElection { term: terms[0] });
        cluster.note('c', RaftAction::StartPreElection { term: terms[1] });
    }
}

#[test]
fn a_majority_that_never_gets_beyond_pre_votes_is_reported() {
    let far = 10_000_000_000;
    let stuck = |disturbed: Option<u64>, prepare: fn(&mut Cluster)| {
        let mut cluster = Cluster::usual();
        cluster.nanos += far;
        cluster.checker.set_disturbed(disturbed.map(|until| (peer('b'), until)).into_iter().collect());
        prepare(&mut cluster);
        cluster.violated().contains(&"MajorityElects")
    };
    assert!(stuck(None, |cluster| pre_votes(cluster, 5, [2, 4])));
    assert!(!stuck(None, |cluster| pre_votes(cluster, 4, [2, 4])));
    assert!(stuck(Some(far / 2), |cluster| pre_votes(cluster, 5, [2, 4])));
    assert!(!stuck(Some(far), |cluster| pre_votes(cluster, 5, [2, 4])), "b has just been disturbed");
    let one = |cluster: &mut Cluster| {
        for _ in 0..9 {
            cluster.note('c', RaftAction::StartPreElection { term: 2 });
        }
    };
    assert!(!stuck(None, one), "one of three is no majority");
    let led = |cluster: &mut Cluster| {
        pre_votes(cluster, 4, [2, 4]);
        cluster.follow('b', 'a', "1.1", "1.2");
        pre_votes(cluster, 4, [2, 4]);
    };
    assert!(!stuck(None, led), "a leader was there meanwhile");
    let storing = |cluster: &mut Cluster| {
        cluster.note('b', RaftAction::SeeTerm { term: 1 });
        pre_votes(cluster, 5, [2, 4]);
    };
    assert!(!stuck(None, storing), "b waits for its disk");
    let stored = |cluster: &mut Cluster| {
        cluster.note('b', RaftAction::SeeTerm { term: 1 });
        cluster.note('b', RaftAction::MetaPersist { term: 1, vote: None });
        pre_votes(cluster, 5, [2, 4]);
    };
    assert!(stuck(None, stored));
}

#[test]
fn a_failed_replica_that_restarts_as_a_tombstone_keeps_its_last_op() {
    let restarted = |last: &str| {
        let mut cluster = Cluster::usual();
        cluster.post('b').data = NotedDataState::Failed;
        cluster.note('b', RaftAction::Fail);
        *cluster.post('b') =
            PostState { data: NotedDataState::Tombstoned, last: op(last), ..*cluster.post('b') };
        cluster.note('b', RaftAction::Restart { vote: None });
        cluster.violated().contains(&"NoAmnesia")
    };
    assert!(!restarted("1.2"));
    assert!(restarted("0.0"));
}
