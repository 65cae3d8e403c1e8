//! Location lookups over the wire, and a master's registration.

use expect_test::expect;

use super::*;
use nyala_common::rpc::RpcErrorCodePb;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::consensus::{GetConsensusStateRequestPb, GetConsensusStateResponsePb};

/// Returns the bucket and range key of column `k`.
fn key(bucket: u32, k: i32) -> Bytes {
    let range = (k as u32 ^ 0x8000_0000).to_be_bytes();
    Bytes::from([bucket.to_be_bytes(), range].concat())
}

fn locate(name: &str) -> GetTableLocationsRequestPb {
    GetTableLocationsRequestPb {
        table: by_name(name),
        intern_ts_infos_in_response: Some(true),
        ..Default::default()
    }
}

/// Returns the start keys of the tablets found, in hex, or the error.
fn starts(response: &GetTableLocationsResponsePb) -> String {
    if response.error.is_some() {
        return shown(&response.error);
    }
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let start = |tablet: &TabletLocationsPb| {
        hex(tablet.partition.as_ref().expect("a partition").partition_key_start())
    };
    response.tablet_locations.iter().map(start).collect::<Vec<_>>().join(" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn tablets_are_found_by_key() {
    let master = Fixture::start().await;
    master.heartbeat(SERVER, Vec::new()).await;
    master.create(&table("t")).await;
    let early: GetTableLocationsResponsePb = master.call("GetTableLocations", &locate("t")).await;
    let (early, _) =
        starts(&early).rsplit_once(' ').map(|(a, b)| (a.to_string(), b.to_string())).expect("an id");
    let tablets = master.tablet_ids("t").await;
    let reports = tablets.iter().map(|tablet| running(tablet, SERVER, 0)).collect();
    assert!(!master.heartbeat(SERVER, reports).await.needs_reregister());

    let by_parts =
        PartitionKeyPb { hash_key: Some(key(1, 25).slice(..4)), range_key: Some(key(1, 25).slice(4..)) };
    let requests = [
        ("all", locate("t")),
        (
            "in the second",
            GetTableLocationsRequestPb { partition_key_start: Some(key(0, 25)), ..locate("t") },
        ),
        ("in a gap", GetTableLocationsRequestPb { partition_key_start: Some(key(0, 15)), ..locate("t") }),
        ("by parts", GetTableLocationsRequestPb { key_start: Some(by_parts), ..locate("t") }),
        (
            "up to",
            GetTableLocationsRequestPb {
                partition_key_start: Some(key(0, 5)),
                partition_key_end: Some(key(0, 20)),
                ..locate("t")
            },
        ),
        ("one", GetTableLocationsRequestPb { max_returned_locations: Some(1), ..locate("t") }),
        ("none", GetTableLocationsRequestPb { max_returned_locations: Some(0), ..locate("t") }),
        (
            "backwards",
            GetTableLocationsRequestPb {
                partition_key_start: Some(key(1, 0)),
                partition_key_end: Some(key(0, 0)),
                ..locate("t")
            },
        ),
        ("elsewhere", locate("x")),
    ];
    let mut text = format!("too early: {early}\n");
    for (what, request) in &requests {
        let response: GetTableLocationsResponsePb = master.call("GetTableLocations", request).await;
        text.push_str(&format!("{what}: {}\n", starts(&response)));
        if response.error.is_none() {
            assert_eq!(response.ttl_millis, Some(300_000));
            assert_eq!(response.ts_infos.len(), 1, "each server once");
        }
    }
    expect![[r#"
        too early: TABLET_NOT_RUNNING + SERVICE_UNAVAILABLE: Tablet not running:
        all: 0000000080000000 0000000080000014 0000000180000000 0000000180000014
        in the second: 0000000080000014 0000000180000000 0000000180000014
        in a gap: 0000000080000000 0000000080000014 0000000180000000 0000000180000014
        by parts: 0000000180000014
        up to: 0000000080000000 0000000080000014
        one: 0000000080000000
        none: UNKNOWN_ERROR + INVALID_ARGUMENT: max_returned_locations must be greater than 0 if specified
        backwards: UNKNOWN_ERROR + INVALID_ARGUMENT: the start of the partition keys lies after their end
        elsewhere: TABLE_NOT_FOUND + NOT_FOUND: the table does not exist: table_name: "x"
    "#]]
    .assert_eq(&text);
}

#[tokio::test(flavor = "multi_thread")]
async fn locations_use_the_requested_form() {
    let master = Fixture::start().await;
    master.heartbeat(SERVER, Vec::new()).await;
    master.create(&table("t")).await;
    let tablets = master.tablet_ids("t").await;
    master.heartbeat(SERVER, tablets.iter().map(|tablet| running(tablet, SERVER, 0)).collect()).await;

    let interned: GetTableLocationsResponsePb = master.call("GetTableLocations", &locate("t")).await;
    let info = &interned.ts_infos[0];
    assert_eq!(info.permanent_uuid, id(SERVER));
    assert_eq!(info.rpc_addresses.len(), 1);
    for tablet in &interned.tablet_locations {
        assert_eq!(tablet.deprecated_stale, Some(false));
        assert!(tablet.deprecated_replicas.is_empty());
        assert_eq!(tablet.interned_replicas[0].role, Role::Leader as i32);
        assert_eq!(tablet.interned_replicas[0].ts_info_idx, 0);
    }
    let plain = GetTableLocationsRequestPb { intern_ts_infos_in_response: None, ..locate("t") };
    let plain: GetTableLocationsResponsePb = master.call("GetTableLocations", &plain).await;
    assert!(plain.ts_infos.is_empty());
    assert_eq!(plain.tablet_locations[0].deprecated_replicas[0].ts_info.permanent_uuid, id(SERVER));

    let mut asked = vec![tablets[2].clone(), id(Uuid([9; 16]))];
    asked.push(Bytes::from_static(b"nonsense"));
    let request = GetTabletLocationsRequestPb { tablet_ids: asked, ..Default::default() };
    let found: GetTabletLocationsResponsePb = master.call("GetTabletLocations", &request).await;
    assert_eq!(found.error, None);
    assert_eq!(found.tablet_locations.len(), 1);
    let unknown: Vec<_> =
        found.errors.iter().map(|error| error.status.message.clone().unwrap_or_default()).collect();
    assert_eq!(unknown, ["Unknown tablet 09090909090909090909090909090909", "Unknown tablet nonsense"]);

    let statistics: GetTableStatisticsResponsePb =
        master.call("GetTableStatistics", &GetTableStatisticsRequestPb { table: by_name("t") }).await;
    let metrics = master.master.common.metrics.snapshot();
    let named = |name: &str| metrics.server.samples.iter().any(|sample| sample.name() == name);
    assert!(named("catalog_tablet_servers"), "{metrics:?}");
    assert_eq!((statistics.on_disk_size, statistics.live_row_count), (Some(400), Some(28)));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_tablet_id_is_answered_once() {
    let master = Fixture::start().await;
    master.heartbeat(SERVER, Vec::new()).await;
    master.create(&table("t")).await;
    let tablets = master.tablet_ids("t").await;
    master.heartbeat(SERVER, tablets.iter().map(|tablet| running(tablet, SERVER, 0)).collect()).await;
    let capitals = Bytes::from(tablets[2].to_ascii_uppercase());
    let nonsense = Bytes::from_static(b"nonsense");
    let mut asked = vec![tablets[2].clone(), capitals, nonsense.clone(), tablets[0].clone(), nonsense];
    asked.extend(vec![tablets[2].clone(); 1_000]);
    let request = GetTabletLocationsRequestPb { tablet_ids: asked, ..Default::default() };
    let found: GetTabletLocationsResponsePb = master.call("GetTabletLocations", &request).await;
    let located: Vec<Bytes> = found.tablet_locations.iter().map(|tablet| tablet.tablet_id.clone()).collect();
    assert_eq!(located, [tablets[2].clone(), tablets[0].clone()]);
    assert_eq!(found.errors.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_reports_its_registration() {
    let master = Fixture::start().await;
    let connected: ConnectToMasterResponsePb = master
        .try_call(SERVICE, "ConnectToMaster", &ConnectToMasterRequestPb {}, &[3])
        .await
        .expect("CONNECT_TO_MASTER is supported");
    assert_eq!(connected.role, Some(Role::Leader as i32));
    assert_eq!(connected.master_addrs.len(), 1);
    assert_eq!(connected.master_addrs[0].port, u32::from(master.master.rpc_addr.port()));
    let masters: ListMastersResponsePb = master.call("ListMasters", &ListMastersRequestPb {}).await;
    assert_eq!(masters.masters[0].cluster_id, connected.cluster_id);
    let registered: GetMasterRegistrationResponsePb =
        master.call("GetMasterRegistration", &GetMasterRegistrationRequestPb {}).await;
    assert_eq!(registered.instance_id.permanent_uuid, id(master.master.uuid));

    let consensus = "kudu.consensus.ConsensusService";
    let mut request = GetConsensusStateRequestPb {
        dest_uuid: Some(id(master.master.uuid)),
        tablet_ids: vec![id(Uuid::ZERO)],
        report_health: None,
    };
    let state: GetConsensusStateResponsePb =
        master.try_call(consensus, "GetConsensusState", &request, &[]).await.expect("the call succeeds");
    let cstate = state.tablets[0].cstate.clone().expect("a state");
    assert_eq!(cstate.leader_uuid, Some(master.master.uuid.to_string()));
    assert_eq!(cstate.committed_config.peers.len(), 1);
    request.dest_uuid = Some(id(Uuid([5; 16])));
    let wrong: GetConsensusStateResponsePb =
        master.try_call(consensus, "GetConsensusState", &request, &[]).await.expect("the call succeeds");
    assert!(wrong.error.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn features_can_be_withheld() {
    let master = Fixture::with(|config| {
        config.support_connect_to_master = false;
        config.support_ignore_operations = false;
        config.support_range_hash = false;
        config.support_immutable_columns = false;
        config.support_auto_incrementing = false;
    })
    .await;
    for feature in [3, 5, 7, 8, 9, 10, 11, 12] {
        let refused: RpcError = master
            .try_call::<_, PingResponsePb>(SERVICE, "Ping", &PingRequestPb {}, &[1, 2, 4, feature])
            .await
            .expect_err("the feature is not there");
        match refused {
            RpcError::Remote { code, unsupported_features, .. } => {
                assert_eq!(code, RpcErrorCodePb::ErrorInvalidRequest);
                assert_eq!(unsupported_features, [feature]);
            }
            other => panic!("{other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tablet_servers_are_listed_with_their_state() {
    let master = Fixture::start().await;
    let unknown = master
        .call::<_, TsHeartbeatResponsePb>(
            "TSHeartbeat",
            &TsHeartbeatRequestPb {
                common: TsToMasterCommonPb {
                    ts_instance: NodeInstancePb { permanent_uuid: id(SERVER), instance_seqno: 1 },
                },
                ..Default::default()
            },
        )
        .await;
    assert!(unknown.needs_reregister() && unknown.leader_master());
    master.heartbeat(SERVER, Vec::new()).await;
    let change = ChangeTServerStateRequestPb {
        change: Some(TServerStateChangePb { uuid: Some(SERVER.to_string()), change: Some(1) }),
        handle_missing_tserver: None,
    };
    let changed: ChangeTServerStateResponsePb = master.call("ChangeTServerState", &change).await;
    assert_eq!(changed.error, None);
    let request = ListTabletServersRequestPb { include_states: Some(true) };
    let listed: ListTabletServersResponsePb = master.call("ListTabletServers", &request).await;
    assert_eq!(listed.servers.len(), 1);
    assert_eq!(listed.servers[0].state, Some(TServerStatePb::MaintenanceMode as i32));
    assert!(master.create_error(&table("t")).await == "ok", "it waits until the server may take it");
    let unregister = UnregisterTServerRequestPb { uuid: Some(SERVER.to_string()), ..Default::default() };
    let refused: UnregisterTServerResponsePb = master.call("UnregisterTServer", &unregister).await;
    assert!(shown(&refused.error).starts_with("UNKNOWN_ERROR + ILLEGAL_STATE"));
    let authz: RefreshAuthzCacheResponsePb =
        master.call("RefreshAuthzCache", &RefreshAuthzCacheRequestPb {}).await;
    assert!(shown(&authz.error).starts_with("UNKNOWN_ERROR + NOT_SUPPORTED"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tests_can_make_up_sizes() {
    let master = Fixture::start().await;
    master.heartbeat(SERVER, Vec::new()).await;
    master.create(&table("t")).await;
    let sizes = async || {
        let request = GetTableStatisticsRequestPb { table: by_name("t") };
        let statistics: GetTableStatisticsResponsePb = master.call("GetTableStatistics", &request).await;
        let tables: ListTablesResponsePb = master.call("ListTables", &ListTablesRequestPb::default()).await;
        (statistics.on_disk_size, statistics.live_row_count, tables.tables[0].live_row_count)
    };
    assert_eq!(sizes().await, (Some(0), None, None), "no tablet has reported");
    let flags = &master.master.common.flags;
    let set = |name, value| flags.change(name, value, false).expect("it changes at run time");
    set("on_disk_size_for_testing", "1024");
    set("live_row_count_for_testing", "100");
    assert_eq!(sizes().await, (Some(0), None, None), "the switch is off");
    set("mock_table_metrics_for_testing", "true");
    assert_eq!(sizes().await, (Some(1024), Some(100), Some(100)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_replication_factor_changes_at_run_time() {
    let master = Fixture::start().await;
    master.heartbeat(SERVER, Vec::new()).await;
    master.create(&table("t")).await;
    assert_eq!(master.schema("t").await.num_replicas, Some(1));
    master.master.common.flags.change("default_num_replicas", "3", false).expect("a runtime flag");
    let error = master.create_error(&table("u")).await;
    assert!(error.contains("requested replication factor 3"), "{error}");
    let named = CreateTableRequestPb { num_replicas: Some(1), ..table("u") };
    assert_eq!(master.create_error(&named).await, "ok", "a request's own number counts");
}
