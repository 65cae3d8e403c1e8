use prost::Message;

use super::*;

fn uuid(n: u8) -> Uuid {
    Uuid([n; 16])
}

fn op(term: u64, index: u64) -> OpId {
    OpId { term, index }
}

fn entry(index: u64, kind: u8, payload: &[u8]) -> ReplicateEntry {
    let timestamp = Timestamp(1000 + index);
    ReplicateEntry { op: op(3, index), timestamp, kind, payload: Bytes::copy_from_slice(payload) }
}

fn update() -> UpdateRequest {
    UpdateRequest {
        tablet: uuid(9),
        caller: uuid(1),
        dest: uuid(2),
        term: 3,
        sent: 0,
        preceding: op(2, 6),
        entries: vec![
            entry(7, kind::WRITE, b"small"),
            entry(8, kind::WRITE, &[5; INLINE_BYTES_MAX + 1]),
            entry(9, kind::CONFIG, b""),
        ],
        committed: 5,
        all_replicated: 4,
        safe_time: Some(Timestamp(77)),
    }
}

/// Encodes and decodes a message, as the receiver gets it.
fn sent<M: Message + Default>(message: &M) -> M {
    M::decode(Bytes::from(message.encode_to_vec())).expect("it was just encoded")
}

#[test]
fn updates_survive_the_wire() {
    let (pb, sidecars) = update_to_pb(update());
    assert_eq!(sidecars.len(), 1, "only the large entry is beside the message");
    assert_eq!(update_from_pb(sent(&pb), &sidecars), Ok(update()));
    let heartbeat = UpdateRequest { entries: vec![], safe_time: None, ..update() };
    let (pb, sidecars) = update_to_pb(heartbeat.clone());
    assert_eq!(update_from_pb(sent(&pb), &sidecars), Ok(heartbeat));
    assert!(pb.encoded_len() < 150, "{} bytes a heartbeat", pb.encoded_len());
}

#[test]
fn payloads_are_not_copied_on_arrival() {
    let (pb, sidecars) = update_to_pb(update());
    let message = Bytes::from(pb.encode_to_vec());
    let arrived = ConsensusRequestPb::decode(message.clone()).expect("it was just encoded");
    let request = update_from_pb(arrived, &sidecars).expect("it is well formed");
    let within = |bytes: &Bytes| message.as_ptr_range().contains(&bytes.as_ptr());
    assert!(within(&request.entries[0].payload));
    assert_eq!(request.entries[1].payload.as_ptr(), sidecars[0].as_ptr());
}

#[test]
fn errors_of_bad_updates_name_the_fault() {
    let error = |change: fn(&mut ConsensusRequestPb)| {
        let (mut pb, sidecars) = update_to_pb(update());
        change(&mut pb);
        update_from_pb(pb, &sidecars).expect_err("it is wrong").message
    };
    let errors = [
        error(|pb| pb.tablet_id = "no id".to_string()),
        error(|pb| pb.caller_uuid = Bytes::from_static(b"")),
        error(|pb| pb.dest_uuid = None),
        error(|pb| pb.caller_term = -1),
        error(|pb| pb.preceding_id = Some(OpIdPb { term: 0, index: i64::MIN })),
        error(|pb| pb.committed_index = Some(-5)),
        error(|pb| pb.ops[1].record_sidecar = Some(1)),
        error(|pb| pb.ops[1].record_sidecar = None),
        error(|pb| pb.ops[1].record = Some(Bytes::from_static(b"both"))),
        error(|pb| pb.ops[0].record_kind = Some(256)),
        error(|pb| pb.ops[0].record_kind = None),
        error(|pb| pb.ops[2].id.index = -9),
    ];
    expect_test::expect![[r#"
        tablet_id: id "no id": not 32 hex digits
        caller_uuid: id "": not 32 hex digits
        dest_uuid: id "": not 32 hex digits
        caller_term is -1, below zero
        an index is -9223372036854775808, below zero
        committed_index is -5, below zero
        operation 3.8 refers to sidecar 1 of 1
        operation 3.8 must have either a record or a sidecar
        operation 3.8 must have either a record or a sidecar
        operation 3.7 has no valid record kind
        operation 3.7 has no valid record kind
        an index is -9, below zero"#]]
    .assert_eq(&errors.join(
        "
",
    ));
}

fn response(error: Option<UpdateErrorKind>) -> UpdateResponse {
    UpdateResponse {
        responder: uuid(2),
        term: 3,
        last_received: op(3, 9),
        last_received_current_leader: op(2, 6),
        last_committed: 5,
        error: error.map(|kind| UpdateError { kind, message: "why".to_string() }),
    }
}

#[test]
fn update_responses_survive_the_wire() {
    let kinds = [
        UpdateErrorKind::InvalidTerm,
        UpdateErrorKind::PrecedingMismatch,
        UpdateErrorKind::CannotPrepare,
        UpdateErrorKind::TabletNotFound,
        UpdateErrorKind::TabletNotRunning,
        UpdateErrorKind::TabletFailed,
        UpdateErrorKind::WrongUuid,
        UpdateErrorKind::Invalid,
    ];
    for kind in kinds.into_iter().map(Some).chain([None]) {
        let pb = sent(&update_response_to_pb(&response(kind)));
        assert_eq!(update_response_from_pb(&pb, uuid(7)), Ok(response(kind)));
    }
}

#[test]
fn a_server_without_the_tablet_replies_with_its_own_id() {
    let error = TabletError::new(TabletErrorCode::TabletNotFound, ErrorCode::NotFound, "gone");
    let pb = sent(&update_refused(uuid(2), &error));
    let refusal = UpdateResponse::refusal(uuid(2), 0, UpdateErrorKind::TabletNotFound, "gone".to_string());
    assert_eq!(update_response_from_pb(&pb, uuid(2)), Ok(refusal));
    assert!(update_response_from_pb(&ConsensusResponsePb::default(), uuid(2)).is_err());
}

#[test]
fn votes_survive_the_wire() {
    for (is_pre_vote, ignore_live_leader) in [(false, false), (true, false), (false, true)] {
        let request = VoteRequest {
            tablet: uuid(9),
            candidate: uuid(1),
            dest: uuid(2),
            term: 8,
            last_op: op(7, 100),
            is_pre_vote,
            ignore_live_leader,
        };
        assert_eq!(vote_from_pb(&sent(&vote_to_pb(&request))), Ok(request));
    }
    let kinds = [
        VoteErrorKind::InvalidTerm,
        VoteErrorKind::LastOpIdTooOld,
        VoteErrorKind::AlreadyVoted,
        VoteErrorKind::LeaderIsAlive,
        VoteErrorKind::LastOpIdUnknown,
        VoteErrorKind::TabletNotFound,
        VoteErrorKind::WrongUuid,
        VoteErrorKind::Invalid,
    ];
    for kind in kinds.into_iter().map(Some).chain([None]) {
        let error = kind.map(|kind| VoteError { kind, message: "why".to_string() });
        let response = VoteResponse { responder: uuid(2), term: 8, granted: error.is_none(), error };
        let pb = sent(&vote_response_to_pb(&response));
        assert_eq!(vote_response_from_pb(&pb, uuid(7)), Ok(response));
    }
}

#[test]
fn a_vote_with_an_error_is_not_granted() {
    let error = ConsensusErrorPb { code: 99, status: app_status(ErrorCode::IllegalState, "odd") };
    let pb = VoteResponsePb { vote_granted: Some(true), consensus_error: Some(error), ..Default::default() };
    let response = vote_response_from_pb(&pb, uuid(2)).expect("it can be read");
    assert!(!response.granted);
}

fn config() -> RaftConfig {
    let mut peers: Vec<Peer> = (1..=3).map(|n| Peer::voter(uuid(n), format!("host{n}"), 7050)).collect();
    peers[2] = Peer { member: MemberKind::NonVoter, promote: true, ..peers[2].clone() };
    peers[1].replace = true;
    RaftConfig { opid_index: Some(12), peers }
}

#[test]
fn configurations_survive_the_wire() {
    assert_eq!(config_from_pb(&sent(&config_to_pb(&config()))), Ok(config()));
    let initial = RaftConfig { opid_index: None, ..config() };
    let pb = config_to_pb(&initial);
    assert_eq!((pb.opid_index(), config_from_pb(&pb)), (-1, Ok(initial)));
}

#[test]
fn errors_of_bad_configurations_name_the_fault() {
    let error = |change: fn(&mut RaftConfigPb)| {
        let mut pb = config_to_pb(&config());
        change(&mut pb);
        config_from_pb(&pb).expect_err("it is wrong").message
    };
    let errors = [
        error(|pb| pb.peers[0].permanent_uuid = None),
        error(|pb| pb.peers[0].member_type = Some(999)),
        error(|pb| pb.peers[0].last_known_addr = Some(HostPortPb { host: "h".to_string(), port: 65_536 })),
        error(|pb| pb.peers = vec![pb.peers[0].clone(); PEERS_MAX + 1]),
    ];
    expect_test::expect![[r#"
        a member's permanent_uuid: id "": not 32 hex digits
        invalid member type (999)
        invalid port of a member (65536)
        too many members in a configuration (33, limit 32)"#]]
    .assert_eq(&errors.join(
        "
",
    ));
}

#[test]
fn changes_sent_by_the_tools_are_decoded() {
    let peer = RaftPeerPb { permanent_uuid: Some(id_bytes(&uuid(4))), ..Default::default() };
    let part = |kind: ChangeConfigType, peer: &RaftPeerPb| change_part(Some(kind as i32), Some(peer));
    assert_eq!(part(ChangeConfigType::RemovePeer, &peer), Ok(ConfigChangePart::Remove(uuid(4))));
    assert!(part(ChangeConfigType::AddPeer, &peer).is_err(), "neither a voter nor a non-voter");
    let voter = RaftPeerPb { member_type: Some(1), ..peer.clone() };
    let added = Peer { port: 0, ..Peer::voter(uuid(4), "", 1) };
    assert_eq!(part(ChangeConfigType::AddPeer, &voter), Ok(ConfigChangePart::Add(added)));
    let attrs = Some(RaftPeerAttrsPb { promote: None, replace: Some(true) });
    let modify = part(ChangeConfigType::ModifyPeer, &RaftPeerPb { attrs, ..peer.clone() });
    let expected = ConfigChangePart::Modify { id: uuid(4), member: None, promote: None, replace: Some(true) };
    assert_eq!(modify, Ok(expected));
    assert!(change_part(Some(0), Some(&peer)).is_err());
    assert!(change_part(None, Some(&peer)).is_err());
    assert!(change_part(Some(1), None).is_err());
    assert!(change([], Some(3)).is_err(), "a change of nothing");
}

proptest::proptest! {
    #[test]
    fn arbitrary_messages_do_not_panic(bytes in proptest::collection::vec(0u8.., 0..200)) {
        let bytes = Bytes::from(bytes);
        if let Ok(pb) = ConsensusRequestPb::decode(bytes.clone()) {
            let _ = update_from_pb(pb, &[]);
        }
        if let Ok(pb) = ConsensusResponsePb::decode(bytes.clone()) {
            let _ = update_response_from_pb(&pb, uuid(1));
        }
        if let Ok(pb) = VoteRequestPb::decode(bytes.clone()) {
            let _ = vote_from_pb(&pb);
        }
        if let Ok(pb) = RaftConfigPb::decode(bytes) {
            let _ = config_from_pb(&pb);
        }
    }
}
