use engine::ids::{OpId, Uuid};
use engine::note::raft::{NotedDataState, NotedRole, PostState, RaftAction, RaftNote};
use engine::raft::kind;
use engine::time::Timestamp;

use super::*;

mod duties;
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

/// Replicas whose states the notes continue.
struct Cluster {
    checker: InvariantChecker,
    posts: BTreeMap<char, PostState>,
    nanos: u64,
    /// Nanoseconds between two notes.
    step: u64,
}

impl Cluster {
    fn new() -> Cluster {
        let checker = InvariantChecker::new(true, PATIENCE).evicting_after(Duration::from_secs(3));
        let mut cluster = Cluster { checker, posts: BTreeMap::new(), nanos: 0, step: 1_000 };
        let voters: Vec<PeerId> = ['a', 'b', 'c'].map(peer).to_vec();
        for name in ['a', 'b', 'c'] {
            let last = OpId::MIN;
            let post = PostState {
                term: 0,
                last,
                commit: 0,
                role: NotedRole::Follower,
                data: NotedDataState::Ready,
            };
            cluster.posts.insert(name, post);
            cluster.note(name, RaftAction::Create { voters: voters.clone(), learners: Vec::new() });
        }
        cluster
    }

    fn post(&mut self, name: char) -> &mut PostState {
        self.posts.get_mut(&name).expect("a, b or c")
    }

    fn note(&mut self, name: char, action: RaftAction) -> &mut Cluster {
        let note = RaftNote { action, post: self.posts[&name] };
        self.nanos += self.step;
        self.checker.check_note(peer(name), TABLET, &note, self.nanos);
        self
    }

    /// `name` is elected in `term` by the votes of `voters`.
    fn elect(&mut self, name: char, term: u64, voters: &[char]) -> &mut Cluster {
        self.note(name, RaftAction::StartPreElection { term });
        for voter in voters {
            self.note(*voter, RaftAction::GrantPreVote { candidate: peer(name), term });
        }
        self.post(name).term = term;
        self.note(name, RaftAction::StartElection { term, asked: false });
        self.note(name, RaftAction::MetaPersist { term, vote: Some(peer(name)) });
        for voter in voters {
            self.post(*voter).term = term;
            self.post(*voter).role = NotedRole::Follower;
            self.note(*voter, RaftAction::GrantVote { candidate: peer(name), term });
            self.note(*voter, RaftAction::MetaPersist { term, vote: Some(peer(name)) });
        }
        self.post(name).role = NotedRole::Leader;
        self.note(name, RaftAction::BecomeLeader)
    }

    /// The leader appends one entry.
    fn append(&mut self, name: char, index: u64, at: u64) -> &mut Cluster {
        let op = OpId { term: self.post(name).term, index };
        self.post(name).last = op;
        self.note(name, RaftAction::ClientAppend { op, timestamp: Timestamp(at), kind: kind::WRITE });
        self.note(name, RaftAction::LeaderPersist { upto: op })
    }

    fn follow(&mut self, name: char, leader: char, prev: &str, upto: &str) -> &mut Cluster {
        let (prev, upto) = (op(prev), op(upto));
        let term = self.post(leader).term;
        self.post(name).term = term;
        self.post(name).last = upto;
        self.note(name, RaftAction::FollowerAppend { leader: peer(leader), prev, upto });
        self.note(name, RaftAction::FollowerPersist { upto })
    }

    /// `name` receives a copy of what the leader a has committed.
    fn learn(&mut self, name: char) -> &mut Cluster {
        let (last, data) = (OpId::MIN, NotedDataState::Copying);
        self.posts.insert(name, PostState { term: 1, last, commit: 0, role: NotedRole::Follower, data });
        self.note('a', RaftAction::CopyOpen { sink: peer(name), upto: op("1.2") });
        self.note(name, RaftAction::CopyStart { source: peer('a'), term: 1 });
        self.post(name).data = NotedDataState::Ready;
        self.post(name).last = op("1.2");
        self.note(name, RaftAction::CopyFinish)
    }

    fn commit(&mut self, name: char, index: u64) -> &mut Cluster {
        self.post(name).commit = index;
        let leads = self.post(name).role == NotedRole::Leader;
        self.note(name, if leads { RaftAction::AdvanceCommit } else { RaftAction::FollowerCommit })
    }

    /// A leader with two entries, committed by a and b.
    fn usual() -> Cluster {
        let mut cluster = Cluster::new();
        cluster.elect('a', 1, &['b']).append('a', 1, 10).follow('b', 'a', "0.0", "1.1").commit('a', 1);
        cluster.append('a', 2, 11).follow('b', 'a', "1.1", "1.2").commit('a', 2).commit('b', 2);
        cluster
    }

    fn violated(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.checker.violations().iter().map(|violation| violation.oracle).collect();
        names.dedup();
        names
    }
}

fn describe(cluster: &Cluster) -> String {
    cluster.checker.violations().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_correct_run_has_no_violations() {
    let mut cluster = Cluster::usual();
    cluster.follow('c', 'a', "0.0", "1.2").commit('c', 2);
    cluster.append('a', 3, 12);
    // a is cut off, c leads and overwrites what a alone has.
    cluster.elect('c', 2, &['b']).append('c', 3, 13).follow('b', 'c', "1.2", "2.3").commit('c', 3);
    cluster.post('a').role = NotedRole::Follower;
    cluster.post('a').term = 2;
    cluster.note('a', RaftAction::SeeTerm { term: 2 });
    cluster.post('a').last = op("1.2");
    cluster.note('a', RaftAction::AbortPending { leader: peer('c'), after: 2 });
    cluster.follow('a', 'c', "1.2", "2.3").commit('a', 3);
    cluster.note('a', RaftAction::SafeTimeAdvance { safe: Timestamp(13) });
    // A crash takes what b never synced, and b has forgotten its commit index.
    cluster.append('c', 4, 14);
    cluster.post('b').last = op("2.4");
    let (leader, prev, upto) = (peer('c'), op("2.3"), op("2.4"));
    cluster.note('b', RaftAction::FollowerAppend { leader, prev, upto });
    cluster.post('b').last = op("2.3");
    cluster.post('b').commit = 0;
    cluster.note('b', RaftAction::Restart { vote: Some(peer('c')) });
    assert!(cluster.violated().is_empty(), "{}", describe(&cluster));
    assert!(cluster.checker.events() > 20);
}

/// The leader a, cut off with an entry of its own, follows c and crashes; `durable`: true if it stored what c sent.
fn cut_and_crash(durable: bool) -> Cluster {
    let mut cluster = Cluster::usual();
    cluster.follow('c', 'a', "0.0", "1.2").commit('c', 2).append('a', 3, 12);
    cluster.elect('c', 2, &['b']).append('c', 3, 13).follow('b', 'c', "1.2", "2.3").commit('c', 3);
    (cluster.post('a').role, cluster.post('a').term) = (NotedRole::Follower, 2);
    cluster.note('a', RaftAction::SeeTerm { term: 2 });
    cluster.post('a').last = op("1.2");
    cluster.note('a', RaftAction::AbortPending { leader: peer('c'), after: 2 });
    cluster.post('a').last = op("2.3");
    let (leader, prev, upto) = (peer('c'), op("1.2"), op("2.3"));
    cluster.note('a', RaftAction::FollowerAppend { leader, prev, upto });
    if durable {
        cluster.note('a', RaftAction::FollowerPersist { upto });
    }
    (cluster.post('a').term, cluster.post('a').last) = (1, op("1.3"));
    cluster.note('a', RaftAction::Restart { vote: Some(peer('a')) });
    cluster
}

#[test]
fn a_crash_undoes_a_truncation_until_it_is_durable() {
    let cluster = cut_and_crash(false);
    assert!(cluster.violated().is_empty(), "{}", describe(&cluster));
    let cluster = cut_and_crash(true);
    assert!(cluster.violated().contains(&"LogMatching"), "{}", describe(&cluster));
}

#[test]
fn an_election_without_pre_votes_is_rejected() {
    let stand = |asked: bool, would_vote: &[char]| {
        let mut cluster = Cluster::usual();
        let (candidate, term) = (peer('b'), 2);
        cluster.note('b', RaftAction::StartPreElection { term });
        for voter in would_vote {
            cluster.note(*voter, RaftAction::GrantPreVote { candidate, term });
        }
        cluster.post('b').term = term;
        cluster.note('b', RaftAction::StartElection { term, asked });
        cluster.violated()
    };
    assert_eq!(stand(false, &[]), ["PreVoteFirst"]);
    assert_eq!(stand(false, &['c']), [""; 0]);
    assert_eq!(stand(true, &[]), [""; 0], "an operator need not wait");
}

#[test]
fn a_second_vote_is_rejected() {
    let mut cluster = Cluster::usual();
    cluster.elect('c', 2, &['b']);
    cluster.note('b', RaftAction::GrantVote { candidate: peer('a'), term: 2 });
    assert_eq!(
        cluster.violated(),
        ["ElectionRestriction", "LeaderCompleteness", "OneVotePerTerm"],
        "{}",
        describe(&cluster)
    );
    let mut cluster = Cluster::usual();
    cluster.note('b', RaftAction::Restart { vote: None });
    assert_eq!(cluster.violated(), ["OneVotePerTerm"]);
    // A vote that was not durable was never given.
    let mut cluster = Cluster::usual();
    cluster.post('b').term = 2;
    cluster.note('b', RaftAction::GrantVote { candidate: peer('a'), term: 2 });
    cluster.post('b').commit = 0;
    cluster.note('b', RaftAction::Restart { vote: None });
    cluster.note('b', RaftAction::GrantVote { candidate: peer('c'), term: 2 });
    assert!(cluster.violated().is_empty(), "{}", describe(&cluster));
}

/// c follows the leader of term 2 with one entry; a, which has two of term 1 and is cut off, requests its vote.
fn asked_by_the_longer_log(is_pre_vote: bool) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.elect('a', 1, &['b']).append('a', 1, 10).append('a', 2, 11);
    cluster.elect('b', 2, &['c']).append('b', 1, 12).follow('c', 'b', "0.0", "2.1");
    cluster.post('a').role = NotedRole::Follower;
    let (candidate, term) = (peer('a'), 3);
    if is_pre_vote {
        cluster.note('a', RaftAction::StartPreElection { term });
        cluster.note('c', RaftAction::GrantPreVote { candidate, term });
    } else {
        cluster.post('a').term = term;
        cluster.note('a', RaftAction::StartElection { term, asked: true });
        cluster.note('c', RaftAction::GrantVote { candidate, term });
    }
    cluster
}

#[test]
fn a_vote_for_a_log_that_is_behind_is_rejected() {
    for is_pre_vote in [true, false] {
        let cluster = asked_by_the_longer_log(is_pre_vote);
        assert_eq!(cluster.violated(), ["ElectionRestriction"], "{}", describe(&cluster));
    }
    // The voter's entries of term 2 were never durable.
    let mut cluster = Cluster::new();
    cluster.elect('a', 1, &['b']).append('a', 1, 10).elect('b', 2, &['c']).append('b', 1, 12);
    let (leader, prev, upto) = (peer('b'), op("0.0"), op("2.1"));
    cluster.post('c').last = upto;
    cluster.note('c', RaftAction::FollowerAppend { leader, prev, upto });
    cluster.note('a', RaftAction::StartPreElection { term: 3 });
    cluster.note('c', RaftAction::GrantPreVote { candidate: peer('a'), term: 3 });
    assert!(cluster.violated().is_empty(), "{}", describe(&cluster));
}

#[test]
fn a_tablet_that_is_created_after_all_were_deleted_is_another_one() {
    let again = |deleted: &[char]| {
        let mut cluster = Cluster::usual();
        for name in deleted {
            let gone = PostState {
                data: NotedDataState::Gone,
                last: OpId::MIN,
                commit: 0,
                term: 0,
                role: NotedRole::Follower,
            };
            *cluster.post(*name) = gone;
            cluster.note(*name, RaftAction::Delete);
        }
        cluster.post('a').data = NotedDataState::Ready;
        cluster.note('a', RaftAction::Create { voters: vec![peer('a')], learners: Vec::new() });
        cluster.elect('a', 1, &[]).append('a', 1, 20).append('a', 2, 21).commit('a', 2);
        cluster.checker.check_live_tablets(&[TABLET]);
        cluster
    };
    let cluster = again(&['a', 'b', 'c']);
    assert_eq!(cluster.violated(), ["VotersStay"], "{}", describe(&cluster));
    assert!(again(&['a', 'b']).violated().contains(&"AppliedAgree"));
}

#[test]
fn an_unnecessary_copy_is_rejected() {
    let copied = |entries: u64, source: char| {
        let mut cluster = Cluster::usual();
        cluster.learn('d').follow('c', 'a', "0.0", "1.2").commit('c', 2);
        for index in 3..3 + entries {
            cluster.append('a', index, 20 + index);
        }
        cluster.post('c').data = NotedDataState::Copying;
        cluster.note('c', RaftAction::CopyStart { source: peer(source), term: 1 });
        cluster.violated()
    };
    assert_eq!(copied(1, 'a'), ["NecessaryCopy"]);
    assert_eq!(copied(6, 'a'), [""; 0], "it lacks many entries");
    assert_eq!(copied(0, 'd'), [""; 0], "the start of its log is unknown");
}

#[test]
fn a_second_leader_is_rejected() {
    let mut cluster = Cluster::usual();
    cluster.post('b').term = 1;
    cluster.post('b').role = NotedRole::Leader;
    cluster.note('b', RaftAction::BecomeLeader);
    // Nor has any voter voted for it.
    assert_eq!(cluster.violated(), ["OneLeaderPerTerm", "ElectedByVotes"]);
}

#[test]
fn a_log_that_is_not_its_leaders_is_rejected() {
    let mut cluster = Cluster::usual();
    // c has nothing, and yet takes what comes after the first entry.
    cluster.follow('c', 'a', "1.1", "1.2");
    assert_eq!(cluster.violated(), ["LogMatching"]);
    let mut cluster = Cluster::usual();
    // The old tail was retained after a conflict.
    cluster.append('a', 3, 12).elect('b', 2, &['c']);
    cluster.follow('a', 'b', "1.2", "1.2");
    cluster.post('a').last = op("1.3");
    cluster.follow('a', 'b', "1.3", "1.3");
    assert!(cluster.violated().contains(&"LogMatching"));
}

#[test]
fn a_leader_without_a_committed_entry_is_rejected() {
    let mut cluster = Cluster::usual();
    cluster.elect('c', 2, &['b']);
    assert_eq!(cluster.violated(), ["ElectionRestriction", "LeaderCompleteness"]);
}

#[test]
fn two_entries_committed_at_one_index_are_rejected() {
    let mut cluster = Cluster::usual();
    cluster.elect('c', 2, &['b']).append('c', 1, 20).commit('c', 1);
    assert!(cluster.violated().contains(&"StateMachineSafety"), "{}", describe(&cluster));
}

#[test]
fn a_truncated_committed_entry_is_rejected() {
    let mut cluster = Cluster::usual();
    cluster.post('b').last = op("1.1");
    cluster.post('b').commit = 1;
    cluster.note('b', RaftAction::AbortPending { leader: peer('c'), after: 1 });
    let names = cluster.violated();
    for name in ["NoCommittedTruncation", "CommitWithinLog", "QuorumKeeps"] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
}

#[test]
fn a_commit_beyond_the_log_is_rejected() {
    let mut cluster = Cluster::usual();
    cluster.commit('b', 3);
    assert_eq!(cluster.violated(), ["CommitWithinLog"]);
}

#[test]
fn timestamps_that_go_back_are_rejected() {
    let mut cluster = Cluster::usual();
    cluster.append('a', 3, 11);
    assert_eq!(cluster.violated(), ["AppliedAgree"]);
}

#[test]
fn an_entry_that_too_few_hold_is_rejected() {
    // Counted, but only the leader's is durable.
    let mut cluster = Cluster::usual();
    cluster.append('a', 3, 12);
    cluster.post('b').last = op("1.3");
    let (prev, upto) = (op("1.2"), op("1.3"));
    cluster.note('b', RaftAction::FollowerAppend { leader: peer('a'), prev, upto });
    cluster.commit('a', 3);
    assert_eq!(cluster.violated(), ["QuorumKeeps", "CommitByMajority"]);
    // Two forget what was synced.
    let forget = |excused: bool| {
        let mut cluster = Cluster::usual();
        if excused {
            cluster.checker.excuse(peer('b'));
        }
        cluster.post('b').last = op("1.1");
        cluster.post('b').commit = 0;
        cluster.note('b', RaftAction::Restart { vote: Some(peer('a')) });
        cluster.violated()
    };
    assert_eq!(forget(false), ["AcknowledgedStays", "QuorumKeeps"]);
    assert_eq!(forget(true), [""; 0]);
}

#[test]
fn a_dropped_tablet_has_lost_nothing() {
    let mut cluster = Cluster::usual();
    let gone = PostState { data: NotedDataState::Gone, last: OpId::MIN, commit: 0, ..*cluster.post('a') };
    for name in ['a', 'b'] {
        *cluster.post(name) = gone;
        cluster.note(name, RaftAction::Delete);
    }
    // c was down meanwhile, and is the last to be deleted.
    cluster.note('c', RaftAction::Restart { vote: None });
    assert!(cluster.violated().is_empty(), "{}", describe(&cluster));
    // c has not learned of it, and copies what it has to a; nothing is lost if that is aborted.
    cluster.note('c', RaftAction::CopyOpen { sink: peer('a'), upto: op("1.1") });
    cluster.post('a').data = NotedDataState::Copying;
    cluster.note('a', RaftAction::CopyStart { source: peer('c'), term: 1 });
    cluster.note('c', RaftAction::Restart { vote: None });
    cluster.post('a').data = NotedDataState::Tombstoned;
    cluster.note('a', RaftAction::CopyAbort);
    cluster.note('c', RaftAction::Restart { vote: None });
    assert!(cluster.violated().is_empty(), "{}", describe(&cluster));
}

#[test]
fn a_copy_that_a_crash_kept_from_its_note_is_a_copy() {
    let mut cluster = Cluster::usual();
    cluster.note('a', RaftAction::CopyOpen { sink: peer('c'), upto: op("1.2") });
    cluster.post('c').data = NotedDataState::Copying;
    cluster.note('c', RaftAction::CopyStart { source: peer('a'), term: 1 });
    cluster.post('c').data = NotedDataState::Ready;
    cluster.post('c').last = op("1.2");
    cluster.note('c', RaftAction::Restart { vote: None });
    assert!(cluster.violated().is_empty(), "{}", describe(&cluster));
}

#[test]
fn a_tombstone_replaced_from_the_past_is_rejected() {
    let tombstone = || {
        let mut cluster = Cluster::usual();
        cluster.elect('b', 3, &['c']).append('b', 3, 20).follow('c', 'b', "0.0", "3.3");
        cluster.post('c').data = NotedDataState::Tombstoned;
        cluster.note('c', RaftAction::Tombstone { cas: None });
        cluster
    };
    let mut cluster = tombstone();
    cluster.post('c').data = NotedDataState::Copying;
    cluster.note('c', RaftAction::CopyStart { source: peer('a'), term: 1 });
    assert_eq!(cluster.violated(), ["NoRevival"]);
    let mut cluster = tombstone();
    cluster.note('a', RaftAction::CopyOpen { sink: peer('c'), upto: op("1.2") });
    cluster.post('c').data = NotedDataState::Copying;
    cluster.note('c', RaftAction::CopyStart { source: peer('a'), term: 3 });
    cluster.post('c').data = NotedDataState::Ready;
    cluster.post('c').last = op("1.2");
    cluster.note('c', RaftAction::CopyFinish);
    assert_eq!(cluster.violated(), ["NoRevival"]);
}

#[test]
fn a_tombstone_that_forgets_the_log_is_rejected() {
    let tombstone = |last: &str, later: &str| {
        let mut cluster = Cluster::usual();
        (cluster.post('b').data, cluster.post('b').last) = (NotedDataState::Tombstoned, op(last));
        cluster.note('b', RaftAction::Tombstone { cas: None });
        cluster.post('b').last = op(later);
        cluster.note('b', RaftAction::Restart { vote: None });
        cluster.violated()
    };
    assert!(!tombstone("1.2", "1.2").contains(&"NoAmnesia"));
    assert!(tombstone("0.0", "0.0").contains(&"NoAmnesia"));
    assert!(tombstone("1.2", "0.0").contains(&"NoAmnesia"));
}

#[test]
fn a_tombstone_keeps_its_vote_and_a_deleted_replica_forgets_it() {
    let copied_after = |removal: RaftAction, data: NotedDataState| {
        let mut cluster = Cluster::usual();
        cluster.post('b').data = data;
        cluster.note('b', removal);
        cluster.note('a', RaftAction::CopyOpen { sink: peer('b'), upto: op("1.2") });
        cluster.post('b').data = NotedDataState::Copying;
        cluster.note('b', RaftAction::CopyStart { source: peer('a'), term: 1 });
        cluster.post('b').data = NotedDataState::Ready;
        cluster.note('b', RaftAction::CopyFinish);
        cluster.note('b', RaftAction::Restart { vote: None });
        cluster.violated()
    };
    assert!(copied_after(RaftAction::Delete, NotedDataState::Gone).is_empty());
    assert_eq!(
        copied_after(RaftAction::Tombstone { cas: None }, NotedDataState::Tombstoned),
        ["OneVotePerTerm"]
    );
}

#[test]
fn a_vote_that_a_failed_replica_could_not_store_was_never_given() {
    let votes_again = |stored: bool| {
        let mut cluster = Cluster::usual();
        cluster.post('b').term = 2;
        cluster.note('b', RaftAction::GrantVote { candidate: peer('a'), term: 2 });
        if stored {
            cluster.note('b', RaftAction::MetaPersist { term: 2, vote: Some(peer('a')) });
        }
        cluster.post('b').data = NotedDataState::Failed;
        cluster.note('b', RaftAction::Fail);
        cluster.note('b', RaftAction::GrantVote { candidate: peer('c'), term: 2 });
        cluster.violated().contains(&"OneVotePerTerm")
    };
    assert_eq!([true, false].map(votes_again), [true, false]);
}

#[test]
fn a_copy_may_vote_for_its_leader_and_for_no_other_server() {
    let votes_again = |vote: char| {
        let mut cluster = Cluster::usual();
        cluster.post('b').data = NotedDataState::Tombstoned;
        cluster.note('b', RaftAction::Tombstone { cas: None });
        cluster.post('b').data = NotedDataState::Copying;
        cluster.note('b', RaftAction::CopyStart { source: peer('c'), term: 1 });
        cluster.note('b', RaftAction::Restart { vote: Some(peer(vote)) });
        cluster.violated().contains(&"OneVotePerTerm")
    };
    assert_eq!(['a', 'c', 'd'].map(votes_again), [false, false, true]);
}

#[test]
fn a_copy_that_is_no_prefix_is_rejected() {
    let copy = |last: &str| {
        let mut cluster = Cluster::usual();
        cluster.post('c').data = NotedDataState::Tombstoned;
        cluster.note('c', RaftAction::Tombstone { cas: None });
        cluster.note('a', RaftAction::CopyOpen { sink: peer('c'), upto: op("1.2") });
        cluster.post('c').data = NotedDataState::Copying;
        cluster.note('c', RaftAction::CopyStart { source: peer('a'), term: 1 });
        cluster.post('c').data = NotedDataState::Ready;
        cluster.post('c').last = op(last);
        cluster.note('c', RaftAction::CopyFinish);
        cluster.violated()
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
            cluster.note('b', RaftAction::StartPreElection { term: 2 });
        }
        cluster.append('a', 3, 12).follow('b', 'a', "1.2", "1.3");
        cluster.note('c', RaftAction::StartElection { term: 2, asked });
        cluster.note('b', RaftAction::GrantVote { candidate: peer('c'), term: 2 });
        cluster.violated().contains(&"LeaderUndisturbed")
    };
    let vote = |step, asked| vote_of(false, step, asked);
    assert!(vote(10, false));
    assert!(!vote_of(true, 10, false), "an answer to its own request may have ended the leader's term");
    // The leader requested it, or has been silent for long.
    assert!(!vote(10, true) && !vote(1_000, false));
}

#[test]
fn a_leader_whose_voters_have_not_stored_their_votes_is_rejected() {
    let elected = |stored: bool| {
        let mut cluster = Cluster::usual();
        for name in ['b', 'c'] {
            cluster.post(name).term = 2;
        }
        cluster.note('b', RaftAction::StartElection { term: 2, asked: true });
        cluster.note('b', RaftAction::MetaPersist { term: 2, vote: Some(peer('b')) });
        cluster.note('c', RaftAction::GrantVote { candidate: peer('b'), term: 2 });
        if stored {
            cluster.note('c', RaftAction::MetaPersist { term: 2, vote: Some(peer('b')) });
        }
        cluster.post('b').role = NotedRole::Leader;
        cluster.note('b', RaftAction::BecomeLeader);
        cluster.violated()
    };
    assert!(elected(true).is_empty());
    assert_eq!(elected(false), ["ElectedByVotes"]);
}

#[test]
fn a_vote_counts_as_durable_once_its_voter_stored_a_later_term() {
    let mut cluster = Cluster::usual();
    for name in ['b', 'c'] {
        cluster.post(name).term = 2;
    }
    cluster.note('b', RaftAction::StartElection { term: 2, asked: true });
    cluster.note('b', RaftAction::MetaPersist { term: 2, vote: Some(peer('b')) });
    cluster.note('c', RaftAction::GrantVote { candidate: peer('b'), term: 2 });
    cluster.note('a', RaftAction::StartElection { term: 3, asked: true });
    cluster.post('c').term = 3;
    cluster.note('c', RaftAction::SeeTerm { term: 3 });
    cluster.note('c', RaftAction::MetaPersist { term: 3, vote: None });
    cluster.post('b').role = NotedRole::Leader;
    cluster.note('b', RaftAction::BecomeLeader);
    assert!(cluster.violated().is_empty(), "{}", describe(&cluster));
}
