use super::*;
use nyala_common::rpc::RpcErrorCodePb;
use nyala_proto::kudu::consensus::{
    GetConsensusStateRequestPb, GetConsensusStateResponsePb, GetLastOpIdRequestPb, GetLastOpIdResponsePb,
    LeaderStepDownRequestPb, LeaderStepDownResponsePb,
};
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::{
    AlterSchemaRequestPb, AlterSchemaResponsePb, DeleteTabletRequestPb, DeleteTabletResponsePb,
    ListTabletsRequestPb, ListTabletsResponsePb, QuiesceTabletServerRequestPb, QuiesceTabletServerResponsePb,
};

pub(super) fn delete_request(how: TabletDataState) -> DeleteTabletRequestPb {
    let tablet_id = schema::id_bytes(&TABLET);
    DeleteTabletRequestPb { tablet_id, delete_type: Some(how as i32), ..Default::default() }
}

async fn listed(fixture: &Fixture) -> Vec<String> {
    let list: ListTabletsResponsePb = fixture.client("ListTablets", &ListTabletsRequestPb::default()).await;
    let line = |tablet: &nyala_proto::kudu::tserver::list_tablets_response_pb::StatusAndSchemaPb| {
        let status = &tablet.tablet_status;
        let (state, data) = (status.state().as_str_name(), status.tablet_data_state().as_str_name());
        let columns = tablet.schema.as_ref().map_or(0, |schema| schema.columns.len());
        format!("{} {state} {data} columns={columns} version={}", status.table_name, tablet.schema_version())
    };
    list.status_and_schema.iter().map(line).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tablet_is_created_altered_and_deleted() {
    let mut fixture = Fixture::start().await;
    fixture.create_tablet().await;
    let again: CreateTabletResponsePb =
        fixture.admin("CreateTablet", &create_request(&fixture, &schema())).await;
    let mut lines = vec![error_text(&again.error)];
    let mut elsewhere = create_request(&fixture, &schema());
    elsewhere.dest_uuid = Some(schema::id_bytes(&TABLE));
    let answer: CreateTabletResponsePb = fixture.admin("CreateTablet", &elsewhere).await;
    lines.push(error_text(&answer.error).replace(&fixture.running.server.uuid().to_string(), "UUID"));
    lines.extend(listed(&fixture).await);
    fixture.write(&[insert(1, "a")]).await;
    let deleted: DeleteTabletResponsePb =
        fixture.admin("DeleteTablet", &delete_request(TabletDataState::TabletDataTombstoned)).await;
    assert_eq!(deleted.error, None);
    lines.extend(listed(&fixture).await);
    lines.push(error_text(&fixture.write(&[insert(2, "b")]).await.error));
    fixture.restart().await;
    lines.extend(listed(&fixture).await);
    let last = GetLastOpIdRequestPb { tablet_id: schema::id_bytes(&TABLET), ..Default::default() };
    let answer = fixture.call(CONSENSUS_SERVICE, "GetLastOpId", &last, CallOptions::default()).await;
    let last: GetLastOpIdResponsePb = answer.expect("the call succeeds").message;
    lines.push(format!("tombstone remembers {:?}", last.opid.map(|op| (op.term, op.index))));
    let deleted: DeleteTabletResponsePb =
        fixture.admin("DeleteTablet", &delete_request(TabletDataState::TabletDataDeleted)).await;
    assert_eq!(deleted.error, None);
    assert_eq!(listed(&fixture).await, Vec::<String>::new());
    let deleted: DeleteTabletResponsePb =
        fixture.admin("DeleteTablet", &delete_request(TabletDataState::TabletDataDeleted)).await;
    lines.push(error_text(&deleted.error));
    let late: CreateTabletResponsePb =
        fixture.admin("CreateTablet", &create_request(&fixture, &schema())).await;
    lines.push(error_text(&late.error));
    // Requests in flight end with the connections.
    fixture.restart().await;
    fixture.create_tablet().await;
    assert_eq!(fixture.keys(new_scan(&["key"])).await, Vec::<i32>::new(), "nothing is left of the old one");
    expect_test::expect![[r#"
        TABLET_ALREADY_EXISTS + ALREADY_PRESENT: Tablet already exists: abababababababababababababababab
        WRONG_SERVER_UUID + INVALID_ARGUMENT: this is server UUID, not cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd
        t RUNNING TABLET_DATA_READY columns=4 version=0
        t STOPPED TABLET_DATA_TOMBSTONED columns=4 version=0
        TABLET_NOT_FOUND + ILLEGAL_STATE: Tablet abababababababababababababababab is tombstoned: its data was deleted here
        t STOPPED TABLET_DATA_TOMBSTONED columns=4 version=0
        tombstone remembers Some((1, 2))
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: abababababababababababababababab
        TABLET_NOT_FOUND + NOT_FOUND: Tablet abababababababababababababababab was deleted here for good, as its table was dropped
    "#]].assert_eq(&(lines.join("\n") + "\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemas_change_under_concurrent_writes() {
    let mut fixture = Fixture::start().await;
    fixture.create_tablet().await;
    fixture.write(&[insert(1, "a")]).await;
    let mut columns = schema().columns().to_vec();
    columns.push(ColumnSchema::new(4, "new", DataType::Int8).nullable());
    columns.remove(3);
    let altered = Schema::new(columns, 1).expect("a valid schema");
    let request = |schema: &Schema, version| AlterSchemaRequestPb {
        dest_uuid: None,
        tablet_id: schema::id_bytes(&TABLET),
        schema: schema::schema_to_pb(schema),
        schema_version: version,
        new_table_name: Some("renamed".to_string()),
        new_extra_config: None,
        nyala_attributes: Default::default(),
    };
    let alter = async |fixture: &Fixture, schema: &Schema, version| {
        let response: AlterSchemaResponsePb = fixture.admin("AlterSchema", &request(schema, version)).await;
        response
    };
    let first = alter(&fixture, &altered, 2).await;
    assert_eq!((first.error.is_none(), first.timestamp.is_some()), (true, true));
    assert_eq!(alter(&fixture, &altered, 2).await.error, None, "a master may repeat itself");
    let mut lines = vec![error_text(&alter(&fixture, &schema(), 2).await.error)];
    lines.push(error_text(&alter(&fixture, &schema(), 1).await.error));
    lines.push(error_text(&fixture.write(&[insert(2, "b")]).await.error));
    let known = Schema::new(schema().columns()[..3].to_vec(), 1).expect("a valid schema");
    let written: WriteResponsePb = fixture.client("Write", &write_request(&known, &[insert(2, "b")])).await;
    assert_eq!((written.error, written.per_row_errors.len()), (None, 0));
    for _ in 0..2 {
        lines.extend(listed(&fixture).await);
        assert_eq!(fixture.keys(new_scan(&["key"])).await, [1, 2]);
        fixture.restart().await;
    }
    expect_test::expect![[r#"
        MISMATCHED_SCHEMA + INVALID_ARGUMENT: the tablet has another schema of version 2
        TABLET_HAS_A_NEWER_SCHEMA + INVALID_ARGUMENT: the tablet has schema version 2 already, 1 is older
        MISMATCHED_SCHEMA + INVALID_ARGUMENT: Client provided column im INT32 NULLABLE IMMUTABLE not present in tablet
        renamed RUNNING TABLET_DATA_READY columns=4 version=2
        renamed RUNNING TABLET_DATA_READY columns=4 version=2
    "#]].assert_eq(&(lines.join("\n") + "\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiescing_server_rejects_new_scans() {
    let fixture = Fixture::start().await;
    fixture.create_tablet().await;
    let options = || CallOptions { features: vec![3], ..CallOptions::default() };
    let quiesce = async |quiesce| {
        let request = QuiesceTabletServerRequestPb { quiesce, return_stats: Some(true) };
        let answer = fixture.call(ADMIN_SERVICE, "Quiesce", &request, options()).await;
        let response: QuiesceTabletServerResponsePb = answer.expect("the call succeeds").message;
        (response.is_quiescing(), response.num_leaders(), response.num_active_scanners())
    };
    assert_eq!(quiesce(None).await, (false, 1, 0));
    assert_eq!(quiesce(Some(true)).await, (true, 1, 0));
    let refused = fixture.scan(&open(new_scan(&["key"]))).await.message;
    let expected = "TABLET_NOT_RUNNING + SERVICE_UNAVAILABLE: Tablet server is quiescing";
    assert_eq!(error_text(&refused.error), expected);
    assert_eq!(quiesce(Some(false)).await, (false, 1, 0));
    assert_eq!(fixture.scan(&open(new_scan(&["key"]))).await.message.error, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consensus_of_one() {
    let fixture = Fixture::start().await;
    fixture.create_tablet().await;
    let uuid = fixture.running.server.uuid().to_string();
    let all = GetConsensusStateRequestPb::default();
    let answer = fixture.call(CONSENSUS_SERVICE, "GetConsensusState", &all, CallOptions::default()).await;
    let states: GetConsensusStateResponsePb = answer.expect("the call succeeds").message;
    let state = states.tablets[0].cstate.as_ref().expect("a state");
    assert_eq!(state.leader_uuid.as_deref(), Some(uuid.as_str()));
    assert_eq!(state.committed_config.peers.len(), 1);
    let step_down = LeaderStepDownRequestPb { tablet_id: schema::id_bytes(&TABLET), ..Default::default() };
    let answer = fixture.call(CONSENSUS_SERVICE, "LeaderStepDown", &step_down, CallOptions::default()).await;
    let refused: LeaderStepDownResponsePb = answer.expect("the call succeeds").message;
    let expected = "UNKNOWN_ERROR + ILLEGAL_STATE: this replica is the only voter: no other can lead";
    assert_eq!(error_text(&refused.error), expected);
    let mut wrong = all.clone();
    wrong.dest_uuid = Some(schema::id_bytes(&TABLE));
    let answer = fixture.call(CONSENSUS_SERVICE, "GetConsensusState", &wrong, CallOptions::default()).await;
    let refused: GetConsensusStateResponsePb = answer.expect("the call succeeds").message;
    assert!(error_text(&refused.error).starts_with("WRONG_SERVER_UUID + INVALID_ARGUMENT"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_methods_and_features_are_rejected() {
    let fixture = Fixture::start().await;
    let all = ListTabletsRequestPb::default();
    let code = async |method: &str, features: Vec<u32>| {
        let options = CallOptions { features, ..CallOptions::default() };
        match fixture.call::<_, ListTabletsResponsePb>(CLIENT_SERVICE, method, &all, options).await {
            Err(RpcError::Remote { code, unsupported_features, .. }) => (code, unsupported_features),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(code("Dance", vec![]).await, (RpcErrorCodePb::ErrorNoSuchMethod, vec![]));
    assert_eq!(code("ListTablets", vec![1, 4, 99]).await, (RpcErrorCodePb::ErrorInvalidRequest, vec![4, 99]));
}
