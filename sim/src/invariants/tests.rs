use engine::ids::{OpId, Uuid};
use engine::note::raft::{Action, DataState, Post, RaftNote, Role};
use engine::time::Timestamp;

use super::*;

mod members;
mod reads;

const PATIENCE: Duration = Duration::from_nanos(1_000);
const TABLET: Uuid = Uuid([9; 16]);

fn peer(name: char) -> PeerId {
    Uuid([name as u8; 16])
}

fn op(text: &str) -> OpId {
    let (term, index) = text.split_once('.').expect("TERM.INDEX");
    OpId { term: term.parse().expect("a term"), index: index.parse().expect("an index") }
}

/// Replicas whose states the notes carry on.
struct Cluster {
    dog: Watchdog,
    posts: BTreeMap<char, Post>,
    nanos: u64,
    /// The time between two notes.
    step: u64,
}

impl Cluster {
    fn new() -> Cluster {
        let dog = Watchdog::new(true, PATIENCE).giving_up_after(Duration::from_secs(3));
        let mut cluster = Cluster { dog, posts: BTreeMap::new(), nanos: 0, step: 1_000 };
        let voters: Vec<PeerId> = ['a', 'b', 'c'].map(peer).to_vec();
        for name in ['a', 'b', 'c'] {
            let last = OpId::MIN;
            let post = Post { term: 0, last, commit: 0, role: Role::Follower, data: DataState::Ready };
            cluster.posts.insert(name, post);
            cluster.note(name, Action::Create { voters: voters.clone(), learners: Vec::new() });
        }
        cluster
    }

    fn post(&mut self, name: char) -> &mut Post {
        self.posts.get_mut(&name).expect("a, b or c")
    }

    fn note(&mut self, name: char, action: Action) -> &mut Cluster {
        let note = RaftNote { action, post: self.posts[&name] };
        self.nanos += self.step;
        self.dog.see(peer(name), TABLET, &note, self.nanos);
        self
    }

    /// `name` is elected in `term` by the votes of `voters`.
    fn elect(&mut self, name: char, term: u64, voters: &[char]) -> &mut Cluster {
        self.note(name, Action::StartPreElection { term });
        for voter in voters {
            self.note(*voter, Action::GrantPreVote { candidate: peer(name), term });
        }
        self.post(name).term = term;
        self.note(name, Action::StartElection { term, asked: false });
        self.note(name, Action::MetaPersist { term, vote: Some(peer(name)) });
        for voter in voters {
            self.post(*voter).term = term;
            self.post(*voter).role = Role::Follower;
            self.note(*voter, Action::GrantVote { candidate: peer(name), term });
            self.note(*voter, Action::MetaPersist { term, vote: Some(peer(name)) });
        }
        self.post(name).role = Role::Leader;
        self.note(name, Action::BecomeLeader)
    }

    /// The leader appends an entry at a time.
    fn append(&mut self, name: char, index: u64, at: u64) -> &mut Cluster {
        let op = OpId { term: self.post(name).term, index };
        self.post(name).last = op;
        self.note(name, Action::ClientAppend { op, timestamp: Timestamp(at) });
        self.note(name, Action::LeaderPersist { upto: op })
    }

    fn follow(&mut self, name: char, leader: char, prev: &str, upto: &str) -> &mut Cluster {
        let (prev, upto) = (op(prev), op(upto));
        let term = self.post(leader).term;
        self.post(name).term = term;
        self.post(name).last = upto;
        self.note(name, Action::FollowerAppend { leader: peer(leader), prev, upto });
        self.note(name, Action::FollowerPersist { upto })
    }

    /// `name` got a copy of what the leader a has committed.
    fn learn(&mut self, name: char) -> &mut Cluster {
        let (last, data) = (OpId::MIN, DataState::Copying);
        self.posts.insert(name, Post { term: 1, last, commit: 0, role: Role::Follower, data });
        self.note('a', Action::CopyOpen { sink: peer(name), upto: op("1.2") });
        self.note(name, Action::CopyStart { source: peer('a'), term: 1 });
        self.post(name).data = DataState::Ready;
        self.post(name).last = op("1.2");
        self.note(name, Action::CopyFinish)
    }

    fn commit(&mut self, name: char, index: u64) -> &mut Cluster {
        self.post(name).commit = index;
        let leads = self.post(name).role == Role::Leader;
        self.note(name, if leads { Action::AdvanceCommit } else { Action::FollowerCommit })
    }

    /// A leader with two entries, committed by a and b.
    fn usual() -> Cluster {
        let mut cluster = Cluster::new();
        cluster.elect('a', 1, &['b']).append('a', 1, 10).follow('b', 'a', "0.0", "1.1").commit('a', 1);
        cluster.append('a', 2, 11).follow('b', 'a', "1.1", "1.2").commit('a', 2).commit('b', 2);
        cluster
    }

    fn objections(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.dog.findings().iter().map(|finding| finding.oracle).collect();
        names.dedup();
        names
    }
}

fn said(cluster: &Cluster) -> String {
    cluster.dog.findings().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_is_right_is_not_objected_to() {
    let mut cluster = Cluster::usual();
    cluster.follow('c', 'a', "0.0", "1.2").commit('c', 2);
    cluster.append('a', 3, 12);
    // a is cut off, c leads and writes over what a alone has.
    cluster.elect('c', 2, &['b']).append('c', 3, 13).follow('b', 'c', "1.2", "2.3").commit('c', 3);
    cluster.post('a').role = Role::Follower;
    cluster.post('a').term = 2;
    cluster.note('a', Action::SeeTerm { term: 2 });
    cluster.post('a').last = op("1.2");
    cluster.note('a', Action::AbortPending { leader: peer('c'), after: 2 });
    cluster.follow('a', 'c', "1.2", "2.3").commit('a', 3);
    cluster.note('a', Action::SafeTimeAdvance { safe: Timestamp(13) });
    // A crash takes what b never synced, and b has forgotten what was committed.
    cluster.append('c', 4, 14);
    cluster.post('b').last = op("2.4");
    let (leader, prev, upto) = (peer('c'), op("2.3"), op("2.4"));
    cluster.note('b', Action::FollowerAppend { leader, prev, upto });
    cluster.post('b').last = op("2.3");
    cluster.post('b').commit = 0;
    cluster.note('b', Action::Restart { vote: Some(peer('c')) });
    assert!(cluster.objections().is_empty(), "{}", said(&cluster));
    assert!(cluster.dog.events() > 20);
}

/// The leader a, cut off with an entry of its own, is made to follow c, and crashes; `durable` is whether it could
/// store what c sent.
fn cut_and_crash(durable: bool) -> Cluster {
    let mut cluster = Cluster::usual();
    cluster.follow('c', 'a', "0.0", "1.2").commit('c', 2).append('a', 3, 12);
    cluster.elect('c', 2, &['b']).append('c', 3, 13).follow('b', 'c', "1.2", "2.3").commit('c', 3);
    (cluster.post('a').role, cluster.post('a').term) = (Role::Follower, 2);
    cluster.note('a', Action::SeeTerm { term: 2 });
    cluster.post('a').last = op("1.2");
    cluster.note('a', Action::AbortPending { leader: peer('c'), after: 2 });
    cluster.post('a').last = op("2.3");
    let (leader, prev, upto) = (peer('c'), op("1.2"), op("2.3"));
    cluster.note('a', Action::FollowerAppend { leader, prev, upto });
    if durable {
        cluster.note('a', Action::FollowerPersist { upto });
    }
    (cluster.post('a').term, cluster.post('a').last) = (1, op("1.3"));
    cluster.note('a', Action::Restart { vote: Some(peer('a')) });
    cluster
}

#[test]
fn a_crash_takes_a_cut_of_the_log_back_until_it_is_durable() {
    let cluster = cut_and_crash(false);
    assert!(cluster.objections().is_empty(), "{}", said(&cluster));
    let cluster = cut_and_crash(true);
    assert!(cluster.objections().contains(&"LogMatching"), "{}", said(&cluster));
}

#[test]
fn standing_for_election_without_having_asked_is_rejected() {
    let stand = |asked: bool, would_vote: &[char]| {
        let mut cluster = Cluster::usual();
        let (candidate, term) = (peer('b'), 2);
        cluster.note('b', Action::StartPreElection { term });
        for voter in would_vote {
            cluster.note(*voter, Action::GrantPreVote { candidate, term });
        }
        cluster.post('b').term = term;
        cluster.note('b', Action::StartElection { term, asked });
        cluster.objections()
    };
    assert_eq!(stand(false, &[]), ["AskedFirst"]);
    assert_eq!(stand(false, &['c']), [""; 0]);
    assert_eq!(stand(true, &[]), [""; 0], "an operator need not wait");
}

#[test]
fn a_second_vote_is_rejected() {
    let mut cluster = Cluster::usual();
    cluster.elect('c', 2, &['b']);
    cluster.note('b', Action::GrantVote { candidate: peer('a'), term: 2 });
    assert_eq!(
        cluster.objections(),
        ["ElectionRestriction", "LeaderCompleteness", "OneVotePerTerm"],
        "{}",
        said(&cluster)
    );
    let mut cluster = Cluster::usual();
    cluster.note('b', Action::Restart { vote: None });
    assert_eq!(cluster.objections(), ["OneVotePerTerm"]);
    // A vote that was not durable was never given.
    let mut cluster = Cluster::usual();
    cluster.post('b').term = 2;
    cluster.note('b', Action::GrantVote { candidate: peer('a'), term: 2 });
    cluster.post('b').commit = 0;
    cluster.note('b', Action::Restart { vote: None });
    cluster.note('b', Action::GrantVote { candidate: peer('c'), term: 2 });
    assert!(cluster.objections().is_empty(), "{}", said(&cluster));
}

/// c, which follows the leader of term 2 with one entry, is asked by a, which has two of term 1 and is cut off.
fn asked_by_the_longer_log(pre_election: bool) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.elect('a', 1, &['b']).append('a', 1, 10).append('a', 2, 11);
    cluster.elect('b', 2, &['c']).append('b', 1, 12).follow('c', 'b', "0.0", "2.1");
    cluster.post('a').role = Role::Follower;
    let (candidate, term) = (peer('a'), 3);
    if pre_election {
        cluster.note('a', Action::StartPreElection { term });
        cluster.note('c', Action::GrantPreVote { candidate, term });
    } else {
        cluster.post('a').term = term;
        cluster.note('a', Action::StartElection { term, asked: true });
        cluster.note('c', Action::GrantVote { candidate, term });
    }
    cluster
}

#[test]
fn a_vote_for_a_log_that_is_behind_is_rejected() {
    for pre_election in [true, false] {
        let cluster = asked_by_the_longer_log(pre_election);
        assert_eq!(cluster.objections(), ["ElectionRestriction"], "{}", said(&cluster));
    }
    // What the voter has of term 2 was never durable.
    let mut cluster = Cluster::new();
    cluster.elect('a', 1, &['b']).append('a', 1, 10).elect('b', 2, &['c']).append('b', 1, 12);
    let (leader, prev, upto) = (peer('b'), op("0.0"), op("2.1"));
    cluster.post('c').last = upto;
    cluster.note('c', Action::FollowerAppend { leader, prev, upto });
    cluster.note('a', Action::StartPreElection { term: 3 });
    cluster.note('c', Action::GrantPreVote { candidate: peer('a'), term: 3 });
    assert!(cluster.objections().is_empty(), "{}", said(&cluster));
}

#[test]
fn a_tablet_that_is_created_after_all_were_deleted_is_another_one() {
    let again = |deleted: &[char]| {
        let mut cluster = Cluster::usual();
        for name in deleted {
            let gone =
                Post { data: DataState::Gone, last: OpId::MIN, commit: 0, term: 0, role: Role::Follower };
            *cluster.post(*name) = gone;
            cluster.note(*name, Action::Delete);
        }
        cluster.post('a').data = DataState::Ready;
        cluster.note('a', Action::Create { voters: vec![peer('a')], learners: Vec::new() });
        cluster.elect('a', 1, &[]).append('a', 1, 20).append('a', 2, 21).commit('a', 2);
        cluster.dog.alive(&[TABLET]);
        cluster
    };
    let cluster = again(&['a', 'b', 'c']);
    assert_eq!(cluster.objections(), ["VotersStay"], "{}", said(&cluster));
    assert!(again(&['a', 'b']).objections().contains(&"AppliedAgree"));
}

#[test]
fn a_copy_that_nobody_needs_is_rejected() {
    let copied = |entries: u64, source: char| {
        let mut cluster = Cluster::usual();
        cluster.learn('d').follow('c', 'a', "0.0", "1.2").commit('c', 2);
        for index in 3..3 + entries {
            cluster.append('a', index, 20 + index);
        }
        cluster.post('c').data = DataState::Copying;
        cluster.note('c', Action::CopyStart { source: peer(source), term: 1 });
        cluster.objections()
    };
    assert_eq!(copied(1, 'a'), ["NeededCopy"]);
    assert_eq!(copied(6, 'a'), [""; 0], "it lacks a good deal");
    assert_eq!(copied(0, 'd'), [""; 0], "nobody knows where its log begins");
}

#[test]
fn a_second_leader_is_rejected() {
    let mut cluster = Cluster::usual();
    cluster.post('b').term = 1;
    cluster.post('b').role = Role::Leader;
    cluster.note('b', Action::BecomeLeader);
    // Nor has anybody voted for it.
    assert_eq!(cluster.objections(), ["OneLeaderPerTerm", "ElectedByVotes"]);
}

#[test]
fn a_log_that_is_not_its_leaders_is_rejected() {
    let mut cluster = Cluster::usual();
    // c has nothing, and yet takes what comes after the first entry.
    cluster.follow('c', 'a', "1.1", "1.2");
    assert_eq!(cluster.objections(), ["LogMatching"]);
    let mut cluster = Cluster::usual();
    // The old tail was kept after a conflict.
    cluster.append('a', 3, 12).elect('b', 2, &['c']);
    cluster.follow('a', 'b', "1.2", "1.2");
    cluster.post('a').last = op("1.3");
    cluster.follow('a', 'b', "1.3", "1.3");
    assert!(cluster.objections().contains(&"LogMatching"));
}

#[test]
fn a_leader_without_a_committed_entry_is_rejected() {
    let mut cluster = Cluster::usual();
    cluster.elect('c', 2, &['b']);
    assert_eq!(cluster.objections(), ["ElectionRestriction", "LeaderCompleteness"]);
}

#[test]
fn two_entries_committed_at_one_index_are_rejected() {
    let mut cluster = Cluster::usual();
    cluster.elect('c', 2, &['b']).append('c', 1, 20).commit('c', 1);
    assert!(cluster.objections().contains(&"StateMachineSafety"), "{}", said(&cluster));
}

#[test]
fn a_committed_entry_that_is_cut_off_is_rejected() {
    let mut cluster = Cluster::usual();
    cluster.post('b').last = op("1.1");
    cluster.post('b').commit = 1;
    cluster.note('b', Action::AbortPending { leader: peer('c'), after: 1 });
    let names = cluster.objections();
    for name in ["NoCommittedTruncation", "CommitWithinLog", "QuorumKeeps"] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
}

#[test]
fn a_commit_beyond_the_log_is_rejected() {
    let mut cluster = Cluster::usual();
    cluster.commit('b', 3);
    assert_eq!(cluster.objections(), ["CommitWithinLog"]);
}

#[test]
fn timestamps_that_go_back_are_rejected() {
    let mut cluster = Cluster::usual();
    cluster.append('a', 3, 11);
    assert_eq!(cluster.objections(), ["AppliedAgree"]);
}

#[test]
fn an_entry_that_too_few_hold_is_rejected() {
    // Counted, but only the leader's is durable.
    let mut cluster = Cluster::usual();
    cluster.append('a', 3, 12);
    cluster.post('b').last = op("1.3");
    let (prev, upto) = (op("1.2"), op("1.3"));
    cluster.note('b', Action::FollowerAppend { leader: peer('a'), prev, upto });
    cluster.commit('a', 3);
    assert_eq!(cluster.objections(), ["QuorumKeeps", "CommitByMajority"]);
    // Two forget what was synced.
    let forget = |excused: bool| {
        let mut cluster = Cluster::usual();
        if excused {
            cluster.dog.excuse(peer('b'));
        }
        cluster.post('b').last = op("1.1");
        cluster.post('b').commit = 0;
        cluster.note('b', Action::Restart { vote: Some(peer('a')) });
        cluster.objections().len()
    };
    assert_eq!((forget(false), forget(true)), (1, 0));
}

#[test]
fn a_dropped_tablet_has_lost_nothing() {
    let mut cluster = Cluster::usual();
    let gone = Post { data: DataState::Gone, last: OpId::MIN, commit: 0, ..*cluster.post('a') };
    for name in ['a', 'b'] {
        *cluster.post(name) = gone;
        cluster.note(name, Action::Delete);
    }
    // c was down meanwhile, and is the last to be deleted.
    cluster.note('c', Action::Restart { vote: None });
    assert!(cluster.objections().is_empty(), "{}", said(&cluster));
    // c has not heard of it, and copies what it has to a; nothing is lost if that is given up.
    cluster.note('c', Action::CopyOpen { sink: peer('a'), upto: op("1.1") });
    cluster.post('a').data = DataState::Copying;
    cluster.note('a', Action::CopyStart { source: peer('c'), term: 1 });
    cluster.note('c', Action::Restart { vote: None });
    cluster.post('a').data = DataState::Tombstoned;
    cluster.note('a', Action::CopyAbort);
    cluster.note('c', Action::Restart { vote: None });
    assert!(cluster.objections().is_empty(), "{}", said(&cluster));
}

#[test]
fn a_copy_that_a_crash_kept_from_its_note_is_a_copy() {
    let mut cluster = Cluster::usual();
    cluster.note('a', Action::CopyOpen { sink: peer('c'), upto: op("1.2") });
    cluster.post('c').data = DataState::Copying;
    cluster.note('c', Action::CopyStart { source: peer('a'), term: 1 });
    cluster.post('c').data = DataState::Ready;
    cluster.post('c').last = op("1.2");
    cluster.note('c', Action::Restart { vote: None });
    assert!(cluster.objections().is_empty(), "{}", said(&cluster));
}

#[test]
fn a_tombstone_replaced_from_the_past_is_rejected() {
    let tombstone = || {
        let mut cluster = Cluster::usual();
        cluster.elect('b', 3, &['c']).append('b', 3, 20).follow('c', 'b', "0.0", "3.3");
        cluster.post('c').data = DataState::Tombstoned;
        cluster.note('c', Action::Tombstone { cas: None });
        cluster
    };
    let mut cluster = tombstone();
    cluster.post('c').data = DataState::Copying;
    cluster.note('c', Action::CopyStart { source: peer('a'), term: 1 });
    assert_eq!(cluster.objections(), ["NoRevival"]);
    let mut cluster = tombstone();
    cluster.note('a', Action::CopyOpen { sink: peer('c'), upto: op("1.2") });
    cluster.post('c').data = DataState::Copying;
    cluster.note('c', Action::CopyStart { source: peer('a'), term: 3 });
    cluster.post('c').data = DataState::Ready;
    cluster.post('c').last = op("1.2");
    cluster.note('c', Action::CopyFinish);
    assert_eq!(cluster.objections(), ["NoRevival"]);
}

#[test]
fn a_tombstone_that_forgets_the_log_is_rejected() {
    let tombstone = |last: &str, later: &str| {
        let mut cluster = Cluster::usual();
        (cluster.post('b').data, cluster.post('b').last) = (DataState::Tombstoned, op(last));
        cluster.note('b', Action::Tombstone { cas: None });
        cluster.post('b').last = op(later);
        cluster.note('b', Action::Restart { vote: None });
        cluster.objections()
    };
    assert!(!tombstone("1.2", "1.2").contains(&"NoAmnesia"));
    assert!(tombstone("0.0", "0.0").contains(&"NoAmnesia"));
    assert!(tombstone("1.2", "0.0").contains(&"NoAmnesia"));
}

#[test]
fn a_tombstone_keeps_its_vote_and_a_deleted_replica_forgets_it() {
    let copied_after = |removal: Action, data: DataState| {
        let mut cluster = Cluster::usual();
        cluster.post('b').data = data;
        cluster.note('b', removal);
        cluster.note('a', Action::CopyOpen { sink: peer('b'), upto: op("1.2") });
        cluster.post('b').data = DataState::Copying;
        cluster.note('b', Action::CopyStart { source: peer('a'), term: 1 });
        cluster.post('b').data = DataState::Ready;
        cluster.note('b', Action::CopyFinish);
        cluster.note('b', Action::Restart { vote: None });
        cluster.objections()
    };
    assert!(copied_after(Action::Delete, DataState::Gone).is_empty());
    assert_eq!(copied_after(Action::Tombstone { cas: None }, DataState::Tombstoned), ["OneVotePerTerm"]);
}

#[test]
fn a_copy_that_is_no_prefix_is_rejected() {
    let copy = |last: &str| {
        let mut cluster = Cluster::usual();
        cluster.post('c').data = DataState::Tombstoned;
        cluster.note('c', Action::Tombstone { cas: None });
        cluster.note('a', Action::CopyOpen { sink: peer('c'), upto: op("1.2") });
        cluster.post('c').data = DataState::Copying;
        cluster.note('c', Action::CopyStart { source: peer('a'), term: 1 });
        cluster.post('c').data = DataState::Ready;
        cluster.post('c').last = op(last);
        cluster.note('c', Action::CopyFinish);
        cluster.objections()
    };
    assert!(copy("1.2").is_empty());
    assert!(copy("1.1").is_empty());
    assert_eq!(copy("1.3"), ["CopyIsPrefix"]);
}

#[test]
fn a_vote_while_the_leader_lives_is_rejected() {
    let vote_of = |stood: bool, step: u64, asked: bool| {
        let mut cluster = Cluster::usual();
        cluster.step = step;
        if stood {
            cluster.note('b', Action::StartPreElection { term: 2 });
        }
        cluster.append('a', 3, 12).follow('b', 'a', "1.2", "1.3");
        cluster.note('c', Action::StartElection { term: 2, asked });
        cluster.note('b', Action::GrantVote { candidate: peer('c'), term: 2 });
        cluster.objections().contains(&"LeaderUndisturbed")
    };
    let vote = |step, asked| vote_of(false, step, asked);
    assert!(vote(10, false));
    assert!(!vote_of(true, 10, false), "an answer to its own request may have ended the leader's term");
    // The leader asked for it, or has not been heard of for long.
    assert!(!vote(10, true) && !vote(1_000, false));
}

#[test]
fn a_leader_whose_voters_have_not_stored_their_votes_is_rejected() {
    let elected = |stored: bool| {
        let mut cluster = Cluster::usual();
        for name in ['b', 'c'] {
            cluster.post(name).term = 2;
        }
        cluster.note('b', Action::StartElection { term: 2, asked: true });
        cluster.note('b', Action::MetaPersist { term: 2, vote: Some(peer('b')) });
        cluster.note('c', Action::GrantVote { candidate: peer('b'), term: 2 });
        if stored {
            cluster.note('c', Action::MetaPersist { term: 2, vote: Some(peer('b')) });
        }
        cluster.post('b').role = Role::Leader;
        cluster.note('b', Action::BecomeLeader);
        cluster.objections()
    };
    assert!(elected(true).is_empty());
    assert_eq!(elected(false), ["ElectedByVotes"]);
}

#[test]
fn a_vote_of_a_term_that_its_voter_has_left_is_as_good_as_stored() {
    let mut cluster = Cluster::usual();
    for name in ['b', 'c'] {
        cluster.post(name).term = 2;
    }
    cluster.note('b', Action::StartElection { term: 2, asked: true });
    cluster.note('b', Action::MetaPersist { term: 2, vote: Some(peer('b')) });
    cluster.note('c', Action::GrantVote { candidate: peer('b'), term: 2 });
    cluster.post('c').term = 3;
    cluster.note('c', Action::SeeTerm { term: 3 });
    cluster.note('c', Action::MetaPersist { term: 3, vote: None });
    cluster.post('b').role = Role::Leader;
    cluster.note('b', Action::BecomeLeader);
    assert!(cluster.objections().is_empty(), "{}", said(&cluster));
}
