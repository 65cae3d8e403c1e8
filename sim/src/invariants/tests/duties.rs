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
