//! Messages between the members of a group: misdirected ones, votes, and replies of tombstones.

use super::*;

#[tokio::test(start_paused = true)]
async fn misdirected_messages_change_nothing() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    group.write(leader, &[insert(1, "a")]).await;
    let follower = others(&ALL, leader)[0];
    let term = group.status(follower).expect("it runs").term;
    let uuid = |number| schema::id_bytes(&group.uuid(number));
    let stranger = Uuid([0xee; 16]);
    let update = ConsensusRequestPb {
        dest_uuid: Some(uuid(follower)),
        tablet_id: TABLET.to_string(),
        caller_uuid: uuid(leader),
        caller_term: term as i64,
        ..Default::default()
    };
    let wrongs = [
        ConsensusRequestPb { dest_uuid: Some(schema::id_bytes(&stranger)), ..update.clone() },
        ConsensusRequestPb { dest_uuid: None, ..update.clone() },
        ConsensusRequestPb { tablet_id: stranger.to_string(), ..update.clone() },
        ConsensusRequestPb { tablet_id: "../wal".to_string(), ..update.clone() },
        ConsensusRequestPb { caller_term: i64::MIN, ..update.clone() },
        ConsensusRequestPb { caller_term: term as i64 - 1, ..update.clone() },
        ConsensusRequestPb { caller_uuid: uuid(others(&ALL, leader)[1]), ..update.clone() },
        ConsensusRequestPb { safe_timestamp: Some(u64::MAX), ..update.clone() },
        ConsensusRequestPb { preceding_id: Some(OpIdPb { term: 77, index: 1 }), ..update.clone() },
        ConsensusRequestPb { committed_index: Some(i64::MAX), ..update.clone() },
        ConsensusRequestPb { ops: vec![operation(9, 1_000), operation(9, 5)], ..update.clone() },
    ];
    let mut lines = Vec::new();
    for wrong in wrongs {
        let answer: ConsensusResponsePb =
            group.call(follower, CONSENSUS_SERVICE, "UpdateConsensus", &wrong).await;
        lines.push(refusal(&group, &answer));
    }
    let batch =
        HeartbeatsRequestPb { dest_uuid: Some(schema::id_bytes(&stranger)), updates: vec![update.clone()] };
    let answer: HeartbeatsResponsePb = group.call(follower, CONSENSUS_SERVICE, "Heartbeats", &batch).await;
    lines.push(shown(&group, &error_text(&answer.error)));
    let unknown = ConsensusRequestPb { tablet_id: stranger.to_string(), ..update.clone() };
    let batch = HeartbeatsRequestPb { dest_uuid: None, updates: vec![unknown, update] };
    let answer: HeartbeatsResponsePb = group.call(follower, CONSENSUS_SERVICE, "Heartbeats", &batch).await;
    lines.extend(answer.responses.iter().map(|answer| refusal(&group, answer)));
    expect_test::expect![[r#"
        WRONG_SERVER_UUID + INVALID_ARGUMENT: this is server SERVER, not eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee
        UNKNOWN_ERROR + INVALID_ARGUMENT: dest_uuid: id "": not 32 hex digits
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: ../wal
        UNKNOWN_ERROR + INVALID_ARGUMENT: caller_term is TIME below zero
        INVALID_TERM: the caller leads term 0, but this is term 1
        UNKNOWN_ERROR + INVALID_ARGUMENT: term 1 is led by SERVER, not by SERVER
        UNKNOWN_ERROR + INVALID_ARGUMENT: timestamp TIME is TIME us ahead of this server's clock, more than the 10000000 us allowed; check the clocks of the client and of the servers
        taken
        taken
        UNKNOWN_ERROR + INVALID_ARGUMENT: operation 9.1000 cannot follow 0.0 in term 1
        WRONG_SERVER_UUID + INVALID_ARGUMENT: this is server SERVER, not eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee
        taken"#]].assert_eq(&lines.join("\n"));
    group.env.sleep(Duration::from_secs(5)).await;
    assert_eq!(group.agreed(&ALL), Some(leader), "no replica started an election");
    let written = group.write(leader, &[insert(2, "b")]).await;
    assert_eq!(group.keys(follower, snapshot_scan(written.timestamp() + 1)).await, [1, 2]);
}

fn operation(term: i64, index: i64) -> ReplicateMsg {
    ReplicateMsg {
        id: OpIdPb { term, index },
        timestamp: 5,
        record_kind: Some(1),
        record: Some(Bytes::from_static(b"nonsense")),
        ..Default::default()
    }
}

/// Replaces ids by names.
fn shown(group: &Group, text: &str) -> String {
    let named = |text: String, number: usize| text.replace(&group.uuid(number).to_string(), "SERVER");
    ALL.into_iter().fold(text.to_string(), named)
}

fn refusal(group: &Group, answer: &ConsensusResponsePb) -> String {
    let consensus = answer.status.as_ref().and_then(|status| status.error.as_ref());
    match (&answer.error, consensus) {
        (error @ Some(_), _) => shown(group, &error_text(error)),
        (None, Some(error)) => {
            let code = error.code().as_str_name();
            shown(group, &format!("{code}: {}", error.status.message()))
        }
        (None, None) => "taken".to_string(),
    }
}

#[tokio::test(start_paused = true)]
async fn votes_are_granted_only_to_members_of_the_group() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    let follower = others(&ALL, leader)[0];
    let uuid = |number| schema::id_bytes(&group.uuid(number));
    let request = VoteRequestPb {
        dest_uuid: Some(uuid(follower)),
        tablet_id: TABLET.to_string(),
        candidate_uuid: uuid(others(&ALL, leader)[1]),
        candidate_term: 99,
        candidate_status: ConsensusStatusPb {
            last_received: OpIdPb { term: 98, index: 1_000 },
            ..Default::default()
        },
        ..Default::default()
    };
    let stranger = schema::id_bytes(&Uuid([0xee; 16]));
    let wrongs = [
        VoteRequestPb { dest_uuid: Some(stranger.clone()), ..request.clone() },
        VoteRequestPb { tablet_id: Uuid([0xee; 16]).to_string(), ..request.clone() },
        VoteRequestPb { candidate_term: -1, ..request.clone() },
        request.clone(),
        VoteRequestPb { is_pre_election: Some(true), ..request.clone() },
        VoteRequestPb { candidate_term: 0, ignore_live_leader: Some(true), ..request.clone() },
    ];
    let mut lines = Vec::new();
    for wrong in wrongs {
        let answer: VoteResponsePb =
            group.call(follower, CONSENSUS_SERVICE, "RequestConsensusVote", &wrong).await;
        assert!(!answer.vote_granted());
        let code =
            |error: &ConsensusErrorPb| format!("{}: {}", error.code().as_str_name(), error.status.message());
        let error_text = answer.consensus_error.as_ref().map_or_else(|| error_text(&answer.error), code);
        lines.push(shown(&group, &error_text));
    }
    expect_test::expect![[r#"
        WRONG_SERVER_UUID + INVALID_ARGUMENT: this is server SERVER, not eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee
        UNKNOWN_ERROR + INVALID_ARGUMENT: candidate_term is -1, below zero
        LEADER_IS_ALIVE: a leader of term 1 is alive
        LEADER_IS_ALIVE: a leader of term 1 is alive
        INVALID_TERM: candidate SERVER asks for term 0, but this is term 1"#]]
    .assert_eq(&lines.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn tombstones_vote_by_their_persisted_vote() {
    let group = Group::start(3).await;
    group.create(&ALL).await;
    let leader = group.leader(&ALL).await;
    let [gone, other] = others(&ALL, leader)[..] else { panic!("two followers") };
    group.write(leader, &[insert(1, "a")]).await;
    group.caught_up(gone, leader).await;
    group.caught_up(other, leader).await;
    // The leader cannot reach the tombstone to have it copied.
    group.wires.cut(leader);
    group.wires.cut(other);
    let request = DeleteTabletRequestPb {
        dest_uuid: None,
        tablet_id: schema::id_bytes(&TABLET),
        delete_type: Some(TabletDataState::TabletDataTombstoned as i32),
        ..Default::default()
    };
    let deleted: DeleteTabletResponsePb = group.call(gone, ADMIN_SERVICE, "DeleteTablet", &request).await;
    assert_eq!(deleted.error, None);
    let vote = |term: i64, index: i64| VoteRequestPb {
        dest_uuid: None,
        tablet_id: TABLET.to_string(),
        candidate_uuid: schema::id_bytes(&group.uuid(other)),
        candidate_term: term,
        candidate_status: ConsensusStatusPb {
            last_received: OpIdPb { term: 1, index },
            ..Default::default()
        },
        ..Default::default()
    };
    let ask = async |term, index| {
        let mut request = vote(term, index);
        request.dest_uuid = Some(schema::id_bytes(&group.uuid(gone)));
        let answer: VoteResponsePb =
            group.call(gone, CONSENSUS_SERVICE, "RequestConsensusVote", &request).await;
        answer.vote_granted()
    };
    assert!(!ask(50, 0).await, "the candidate has less than the tombstone had");
    assert!(!ask(49, 1_000).await, "the term before is over");
    assert!(ask(200, 1_000).await);
    assert!(ask(200, 1_000).await, "the same reply again");
    // One voter of three is unreachable, one is a tombstone: its vote makes the majority, and its copy the replica.
    group.wires.join(other);
    group
        .until("the other follower to lead", |group| {
            let status = group.status(other).expect("it runs");
            status.role == Role::Leader && status.term > 200
        })
        .await;
    group.caught_up(gone, other).await;
    let written = group.write(other, &[insert(2, "b")]).await;
    assert_eq!(group.keys(gone, snapshot_scan(written.timestamp() + 1)).await, [1, 2]);
}
