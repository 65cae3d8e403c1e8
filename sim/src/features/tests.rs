//! What makes features equal, and what does not.

use engine::ids::{OpId, Uuid};
use engine::note::raft::{NotedDataState, NotedRole, PostState, RaftAction, RaftNote};

use super::*;
use crate::history::{CallOutcome, ClientRequest};
use crate::invariants::InvariantChecker;
use sim_plan::Host;

const TABLET: TabletId = Uuid([9; 16]);

/// A follower that persists a vote, an election and an entry of the leader; its peers by these bytes, terms from `base`.
fn election(names: [u8; 2], base: u64) -> RunFeatures {
    let [one, other] = names.map(|name| Uuid([name; 16]));
    let mut checker = InvariantChecker::new(true, Duration::ZERO);
    let mut collector = FeatureCollector::default();
    let mut note = |server, term, role, action| {
        let post = PostState { term, last: OpId::MIN, commit: 0, role, data: NotedDataState::Ready };
        let note = RaftNote { action, post };
        checker.check_note(server, TABLET, &note, term);
        let model = checker.model_of(TABLET).expect("it has a note");
        collector.note(server, TABLET, &note, model);
    };
    let create = RaftAction::Create { voters: vec![one, other], learners: Vec::new() };
    note(one, 0, NotedRole::Follower, create.clone());
    note(other, 0, NotedRole::Follower, create);
    note(one, base, NotedRole::Candidate, RaftAction::StartElection { term: base, asked: true });
    note(one, base, NotedRole::Candidate, RaftAction::MetaPersist { term: base, vote: Some(one) });
    note(other, base, NotedRole::Follower, RaftAction::MetaPersist { term: base, vote: Some(one) });
    note(one, base, NotedRole::Leader, RaftAction::BecomeLeader);
    collector.features()
}

#[test]
fn states_have_no_names_and_no_absolute_terms() {
    let features = election([1, 2], 1);
    assert!(features.axes[STATES].len() > 8 && features.axes[ORDER].len() > 2, "{features:?}");
    assert_eq!(election([1, 2], 1), features);
    assert_eq!(election([7, 3], 5), features);
}

#[test]
fn marks_differ_by_active_faults_and_doublings() {
    let reached = |times: u32, kinds: &[&'static str], now: u64| {
        let mut collector = FeatureCollector::default();
        let until = Some(Duration::from_secs(2));
        let one = |kind: &&'static str| Disturbance {
            hosts: vec![Host::Tserver(0)],
            kind,
            from: Duration::ZERO,
            to: until,
        };
        let all: Vec<Disturbance> = kinds.iter().map(one).collect();
        collector.set_active(&all, Duration::from_secs(now));
        (0..times).for_each(|_| collector.mark("log: rolled"));
        collector.features()
    };
    let calm = reached(1, &[], 0);
    assert_eq!(calm.axes[DISTURBANCE].len(), 1);
    assert_ne!(reached(1, &["kill"], 0), calm);
    assert_eq!(reached(1, &["kill"], 3), calm, "it has ended");
    assert_eq!(reached(1, &["kill", "pause"], 1).axes[DISTURBANCE].len(), 2);
    assert_eq!(reached(2, &[], 0), reached(3, &[], 0));
    assert_ne!(reached(3, &[], 0), reached(4, &[], 0));
}

#[test]
fn calls_differ_by_request_and_kind_of_answer() {
    let call = |text: &str, outcome| HistoryOp {
        client: 0,
        invoked: 0,
        returned: Some(1),
        after: 0,
        request: ClientRequest::Other(text.to_string()),
        outcome,
    };
    let found = |operations: &[HistoryOp]| RunFeatures::default().with_answers([], operations);
    let one = found(&[call("alter 1", CallOutcome::Done)]);
    assert_eq!(found(&[call("alter 2", CallOutcome::Done)]), one, "the table does not count");
    assert_ne!(found(&[call("alter 1", CallOutcome::Pending)]), one);
    assert_ne!(found(&[call("drop 1", CallOutcome::Done)]), one);
}
