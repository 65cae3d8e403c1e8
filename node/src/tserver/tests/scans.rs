use super::*;
use crate::tserver::scan_request::{NewScan, RequestedScan};
use crate::tserver::table_access::TableAccess;
use crate::tserver::{scan, scan_error, scan_spec};
use nyala_common::rpc::RpcErrorCodePb;
use nyala_proto::kudu::column_predicate_pb::{self, Range};
use nyala_proto::kudu::security::{ColumnPrivilegePb, TablePrivilegePb};
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::{
    AlterSchemaRequestPb, AlterSchemaResponsePb, ChecksumRequestPb, ChecksumResponsePb,
    DeleteTabletRequestPb, DeleteTabletResponsePb, ScannerKeepAliveRequestPb, ScannerKeepAliveResponsePb,
};
use nyala_proto::kudu::{ColumnPredicatePb, OrderMode, ReadMode, TableExtraConfigPb};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn requested(new: &NewScan) -> RequestedScan<'_> {
    RequestedScan { new, access: &TableAccess::Full, method: "Scan" }
}

async fn three_rows(fixture: &Fixture) {
    fixture.create_tablet().await;
    let full = Op { n: Some(Some(7)), ..insert(1, "one") };
    let nulls = Op { v: Some(None), n: Some(None), ..op(RowOpKind::Insert, 2) };
    let written = fixture.write(&[full, nulls, insert(3, "three")]).await;
    assert_eq!(written.per_row_errors, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_layouts() {
    let fixture = Fixture::start().await;
    three_rows(&fixture).await;
    let RpcResponse { message, sidecars } = fixture.scan(&open(new_scan(&["key", "v", "n"]))).await;
    assert_eq!(message.has_more_results, Some(false));
    assert_eq!(message.scanner_id, None);
    assert_eq!(message.data.expect("rows").num_rows(), 3);
    assert_eq!(message.snap_timestamp, None, "READ_LATEST has none");
    assert!(message.propagated_timestamp.is_some());
    let shown: Vec<String> = sidecars.iter().map(|bytes| hex(bytes)).collect();
    expect_test::expect![[r#"
        010000000000000000000000030000000000000007000000000000000002000000000000000000000000000000000000000000000000000000060300000003000000000000000500000000000000000000000000000004
        6f6e657468726565
    "#]].assert_eq(&(shown.join("\n") + "\n"));
    let columnar = NewScanRequestPb { row_format_flags: Some(2), ..new_scan(&["key", "v", "n"]) };
    let RpcResponse { message, sidecars } = fixture.scan(&open(columnar)).await;
    assert_eq!(message.data, None, "columnar scans must not carry rows");
    assert_eq!(message.columnar_data.expect("columns").num_rows(), 3);
    let shown: Vec<String> = sidecars.iter().map(|bytes| hex(bytes)).collect();
    expect_test::expect![[r#"
        010000000200000003000000
        00000000030000000300000008000000
        6f6e657468726565
        05
        070000000000000000000000000000000000000000000000
        01
    "#]]
    .assert_eq(&(shown.join("\n") + "\n"));
    let RpcResponse { message, sidecars } = fixture.scan(&open(new_scan(&[]))).await;
    assert_eq!(message.data.expect("a count").num_rows(), 3);
    assert_eq!(sidecars.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_reads_the_columns_that_its_tablet_has_after_the_wait_for_its_snapshot() {
    let fixture = Fixture::start().await;
    three_rows(&fixture).await;
    let server = &fixture.running.server;
    let replica = server.tablets.get(TABLET).expect("it was made").running().expect("it runs");
    let bind = |new: &NewScanRequestPb| {
        let columns = replica.tablet().schema();
        (scan_spec::parse(new, &columns).expect("the tablet has these columns"), columns)
    };
    let (replaced, dropped) = (new_scan(&["key", "n"]), new_scan(&["key", "im"]));
    let (of_replaced, of_dropped) = (bind(&replaced), bind(&dropped));
    let renamed = of_replaced.clone();
    let (replaced, dropped) = (NewScan::decoded(replaced), NewScan::decoded(dropped));
    // Both scans wait. Meanwhile column n is dropped, another of its name is added, and it is written.
    let mut columns = schema().columns()[..2].to_vec();
    columns.push(ColumnSchema::new(4, "n", DataType::Int64).nullable());
    let altered = Schema::new(columns, 1).expect("a valid schema");
    let alter = AlterSchemaRequestPb {
        dest_uuid: None,
        tablet_id: schema::id_bytes(&TABLET),
        schema: schema::schema_to_pb(&altered),
        schema_version: 2,
        new_table_name: None,
        new_extra_config: None,
        nyala_attributes: Default::default(),
    };
    let done: AlterSchemaResponsePb = fixture.admin("AlterSchema", &alter).await;
    assert_eq!(done.error, None);
    let row = Op { n: Some(Some(9)), ..insert(4, "four") };
    let written: WriteResponsePb = fixture.client("Write", &write_request(&altered, &[row])).await;
    assert_eq!((written.error, written.per_row_errors), (None, vec![]));
    let (_, mut scan) = scan::start(server, None, &replica, requested(&replaced), None, of_replaced)
        .await
        .expect("n is there again");
    let mut values = Vec::new();
    while let Some(block) = scan.next_block().expect("readable files") {
        values.extend((0..block.rows).map(|row| block.columns[1].cell(row).map(<[u8]>::to_vec)));
    }
    values.sort();
    assert_eq!(values, [None, None, None, Some(9_i64.to_le_bytes().to_vec())]);
    let refused = scan::start(server, None, &replica, requested(&dropped), None, of_dropped).await.err();
    assert!(matches!(refused, Some(scan_error::ScanError::Tablet(_))), "{refused:?}");
    // The right to read the column that was dropped is no right to read the one that has its name now.
    let may_read = |ids: &[i32]| {
        let read = ColumnPrivilegePb { scan_privilege: Some(true) };
        let column_privileges = ids.iter().map(|id| (*id, read)).collect();
        TableAccess::Limited(TablePrivilegePb { column_privileges, ..TablePrivilegePb::default() })
    };
    for (ids, allowed) in [([0, 2], false), ([0, 4], true)] {
        let asked = RequestedScan { access: &may_read(&ids), ..requested(&replaced) };
        let started = scan::start(server, None, &replica, asked, None, renamed.clone()).await;
        assert_eq!(started.is_ok(), allowed, "{ids:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn predicates_bounds_and_limits() {
    let fixture = Fixture::start().await;
    three_rows(&fixture).await;
    let range = |lower: i32, upper: i32| ColumnPredicatePb {
        column: Some("key".to_string()),
        predicate: Some(column_predicate_pb::Predicate::Range(Range {
            lower: Some(Bytes::copy_from_slice(&lower.to_le_bytes())),
            upper: Some(Bytes::copy_from_slice(&upper.to_le_bytes())),
        })),
    };
    let predicate = NewScanRequestPb { column_predicates: vec![range(2, 3)], ..new_scan(&["key"]) };
    assert_eq!(fixture.keys(predicate).await, [2]);
    let key = |key: u8| Some(Bytes::copy_from_slice(&[0x80, 0, 0, key]));
    let from = NewScanRequestPb { start_primary_key: key(2), ..new_scan(&["key"]) };
    assert_eq!(fixture.keys(from).await, [2, 3]);
    let to = NewScanRequestPb { stop_primary_key: key(2), ..new_scan(&["key"]) };
    assert_eq!(fixture.keys(to).await, [1]);
    let after = NewScanRequestPb { last_primary_key: key(2), ..new_scan(&["key"]) };
    assert_eq!(fixture.keys(after).await, [3]);
    let limited = NewScanRequestPb { limit: Some(2), ..new_scan(&["key"]) };
    assert_eq!(fixture.keys(limited).await, [1, 2]);
}

/// Upstream's C++ client fails a reply with an offset for no cell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_columnar_reply_without_rows_has_empty_sidecars() {
    let fixture = Fixture::start().await;
    three_rows(&fixture).await;
    let value = Some(Bytes::from_static(b"of no row"));
    let predicate = Some(column_predicate_pb::Predicate::Equality(column_predicate_pb::Equality { value }));
    let predicate = ColumnPredicatePb { column: Some("v".to_string()), predicate };
    let columnar = NewScanRequestPb { row_format_flags: Some(2), ..new_scan(&["key", "v"]) };
    let new = NewScanRequestPb { column_predicates: vec![predicate], ..columnar };
    let RpcResponse { message, sidecars } = fixture.scan(&open(new)).await;
    assert_eq!((message.error.clone(), message.has_more_results()), (None, false));
    assert_eq!(message.columnar_data.expect("columns").num_rows(), 0);
    let sizes: Vec<usize> = sidecars.iter().map(Bytes::len).collect();
    assert_eq!(sizes, [0; 4], "key, offsets, texts, bitmap");
}

/// Returns the number of rows of each reply of a scan whose replies have one block.
async fn rows_of_replies(fixture: &Fixture, new: NewScanRequestPb) -> Vec<i32> {
    let batch_size_bytes = Some(1);
    let mut request = ScanRequestPb { batch_size_bytes, ..open(new) };
    let mut rows = Vec::new();
    for seq in 1.. {
        let reply = fixture.scan(&request).await.message;
        assert_eq!(reply.error, None);
        rows.push(reply.data.as_ref().map_or(0, |rows| rows.num_rows()));
        if !reply.has_more_results() {
            return rows;
        }
        let (scanner_id, call_seq_id) = (reply.scanner_id.or(request.scanner_id), Some(seq));
        request = ScanRequestPb { scanner_id, call_seq_id, batch_size_bytes, ..Default::default() };
    }
    unreachable!("a scan ends")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reply_that_reaches_the_limit_is_the_last() {
    let fixture = Fixture::start().await;
    fixture.create_tablet().await;
    let rows: Vec<Op<'_>> = (0..300).map(|key| insert(key, "text")).collect();
    assert_eq!(fixture.write(&rows).await.per_row_errors, []);
    let of_limit = |limit| NewScanRequestPb { limit: Some(limit), ..new_scan(&["key"]) };
    assert_eq!(rows_of_replies(&fixture, of_limit(3)).await, [3]);
    assert_eq!(rows_of_replies(&fixture, of_limit(128)).await, [128]);
    assert_eq!(rows_of_replies(&fixture, of_limit(130)).await, [128, 2]);
    assert_eq!(rows_of_replies(&fixture, of_limit(1_000)).await.iter().sum::<i32>(), 300);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_scan_requests() {
    let fixture = Fixture::start().await;
    three_rows(&fixture).await;
    let error_of = async |change: &dyn Fn(&mut NewScanRequestPb)| {
        let mut new = new_scan(&["key", "v"]);
        change(&mut new);
        error_text(&fixture.scan(&open(new)).await.message.error)
    };
    let ordered = Some(OrderMode::Ordered as i32);
    let at_snapshot = Some(ReadMode::ReadAtSnapshot as i32);
    let some_key = || Some(Bytes::from_static(&[0x80, 0, 0, 1]));
    let errors = [
        error_of(&|new| new.tablet_id = schema::id_bytes(&TABLE)).await,
        error_of(&|new| new.projected_columns[1].name = "w".to_string()).await,
        error_of(&|new| new.projected_columns[1].is_nullable = Some(false)).await,
        error_of(&|new| new.projected_columns[1].r#type = DataType::Int8 as i32).await,
        error_of(&|new| new.projected_columns[1].id = Some(1)).await,
        error_of(&|new| new.projected_columns[1] = new.projected_columns[0].clone()).await,
        error_of(&|new| new.projected_columns[1].r#type = DataType::IsDeleted as i32).await,
        error_of(&|new| new.order_mode = ordered).await,
        error_of(&|new| new.row_format_flags = Some(3)).await,
        error_of(&|new| {
            (new.start_primary_key, new.last_primary_key) = (some_key(), some_key());
        })
        .await,
        error_of(&|new| new.start_primary_key = Some(Bytes::from_static(b"x"))).await,
        error_of(&|new| {
            let column = Some("nope".to_string());
            new.column_predicates = vec![ColumnPredicatePb { column, predicate: None }];
        })
        .await,
        error_of(&|new| (new.read_mode, new.snap_timestamp) = (at_snapshot, Some(u64::MAX >> 1))).await,
        error_of(&|new| (new.read_mode, new.snap_timestamp) = (at_snapshot, Some(1))).await,
    ];
    expect_test::expect![[r#"
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd
        MISMATCHED_SCHEMA + INVALID_ARGUMENT: Some columns are not present in the current schema: w
        MISMATCHED_SCHEMA + INVALID_ARGUMENT: The column 'v' must have type STRING NULLABLE found STRING NOT NULL
        MISMATCHED_SCHEMA + INVALID_ARGUMENT: The column 'v' must have type STRING NULLABLE found INT8 NULLABLE
        INVALID_SCHEMA + INVALID_ARGUMENT: column "v" carries an id: a request's schema must not have column ids
        INVALID_SCHEMA + INVALID_ARGUMENT: the projection names column "key" twice
        INVALID_SCAN_SPEC + INVALID_ARGUMENT: column "v": only a diff scan has an IS_DELETED column
        INVALID_SCAN_SPEC + INVALID_ARGUMENT: an ordered scan has to be a snapshot scan (READ_AT_SNAPSHOT)
        INVALID_SCAN_SPEC + INVALID_ARGUMENT: padded timestamps and the columnar layout do not go together
        INVALID_SCAN_SPEC + INVALID_ARGUMENT: a scan can begin at start_primary_key or after last_primary_key, not both
        INVALID_SCAN_SPEC + INVALID_ARGUMENT: a primary key bound of the scan: not an encoded key: 0 of 1 columns and 1 bytes left over
        INVALID_SCAN_SPEC + INVALID_ARGUMENT: unknown column in predicate: "nope"
        INVALID_SNAPSHOT + INVALID_ARGUMENT: cannot verify timestamp: timestamp TIME is TIME us ahead of this server's clock, more than the 10000000 us allowed; check the clocks of the client and of the servers
        INVALID_SNAPSHOT + INVALID_ARGUMENT: snapshot scan end timestamp is earlier than the ancient history mark. Consider increasing the value of the configuration parameter --tablet_history_max_age_sec. Snapshot timestamp: 0.1 Ancient History Mark: TIME (604800 s of history are kept)
    "#]].assert_eq(&(errors.join("\n") + "\n"));
    let both = ScanRequestPb { scanner_id: Some(schema::id_bytes(&TABLE)), ..open(new_scan(&[])) };
    for request in [both, ScanRequestPb::default()] {
        let answer: Result<RpcResponse<ScanResponsePb>, _> =
            fixture.call(CLIENT_SERVICE, "Scan", &request, CallOptions::default()).await;
        let Err(RpcError::Remote { code, .. }) = answer else { panic!("it should be rejected") };
        assert_eq!(code, RpcErrorCodePb::ErrorApplication);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_negative_age_of_history_keeps_all_of_it() {
    let fixture = Fixture::with(|config| config.history_max_age_s = 0).await;
    let forever = TableExtraConfigPb { history_max_age_sec: Some(-1), ..Default::default() };
    let request =
        CreateTabletRequestPb { extra_config: Some(forever), ..create_request(&fixture, &schema()) };
    let created: CreateTabletResponsePb = fixture.admin("CreateTablet", &request).await;
    assert_eq!(created.error, None);
    fixture.settled(TABLET).await;
    let read_mode = Some(ReadMode::ReadAtSnapshot as i32);
    let ancient = NewScanRequestPb { read_mode, snap_timestamp: Some(1), ..new_scan(&["key"]) };
    assert_eq!(fixture.keys(ancient).await, [0; 0]);
}

/// The time of a batch is over at once, and each read examines 8192 rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_replies_in_time_while_it_finds_no_row() {
    const ROWS: i32 = 9_000;
    let fixture = Fixture::with(|config| config.scan_batch_time_ms = 0).await;
    fixture.create_tablet().await;
    for first in (0..ROWS).step_by(1_000) {
        let text = |key| if key == ROWS - 1 { "last" } else { "other" };
        let rows: Vec<Op<'_>> = (first..first + 1_000).map(|key| insert(key, text(key))).collect();
        assert_eq!(fixture.write(&rows).await.per_row_errors, []);
    }
    let value = Some(Bytes::from_static(b"last"));
    let predicate = Some(column_predicate_pb::Predicate::Equality(column_predicate_pb::Equality { value }));
    let predicate = ColumnPredicatePb { column: Some("v".to_string()), predicate };
    let new = NewScanRequestPb { column_predicates: vec![predicate], ..new_scan(&["key"]) };
    let batch_size_bytes = Some(1_000);
    let mut reply = fixture.scan(&ScanRequestPb { batch_size_bytes, ..open(new) }).await.message;
    let scanner_id = reply.scanner_id.clone();
    let rows_of = |reply: &ScanResponsePb| reply.data.as_ref().map_or(0, |rows| rows.num_rows());
    assert_eq!((reply.error.clone(), rows_of(&reply), reply.has_more_results()), (None, 0, true));
    let (mut call, mut rows) = (0, 0);
    while reply.has_more_results() {
        call += 1;
        let (scanner_id, call_seq_id) = (scanner_id.clone(), Some(call));
        let next = ScanRequestPb { scanner_id, call_seq_id, batch_size_bytes, ..Default::default() };
        reply = fixture.scan(&next).await.message;
        rows += rows_of(&reply);
    }
    assert_eq!((reply.error, rows), (None, 1));
}

/// A client that scans a dropped range can scan it to the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scanner_outlives_its_tablet() {
    let fixture = Fixture::start().await;
    three_rows(&fixture).await;
    let opened = ScanRequestPb { batch_size_bytes: Some(0), ..open(new_scan(&["key"])) };
    let scanner_id = fixture.scan(&opened).await.message.scanner_id;
    let delete = DeleteTabletRequestPb {
        tablet_id: schema::id_bytes(&TABLET),
        delete_type: Some(TabletDataState::TabletDataDeleted as i32),
        ..Default::default()
    };
    let deleted: DeleteTabletResponsePb = fixture.admin("DeleteTablet", &delete).await;
    assert_eq!(deleted.error, None);
    let next = ScanRequestPb { scanner_id, call_seq_id: Some(1), ..Default::default() };
    let batch = fixture.scan(&next).await.message;
    assert_eq!(batch.data.expect("rows").num_rows(), 3);
    let error = fixture.scan(&open(new_scan(&["key"]))).await.message.error;
    assert_eq!(
        error_text(&error),
        "TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: abababababababababababababababab"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scanners_continue_in_sequence_and_expire() {
    let fixture = Fixture::start().await;
    three_rows(&fixture).await;
    let opened = async || {
        let request = ScanRequestPb { batch_size_bytes: Some(0), ..open(new_scan(&["key"])) };
        let message = fixture.scan(&request).await.message;
        assert_eq!((message.has_more_results, &message.data), (Some(true), &None));
        message.scanner_id.expect("a scanner")
    };
    let next = |id: &Bytes, seq| {
        let scanner_id = Some(id.clone());
        ScanRequestPb { scanner_id, call_seq_id: Some(seq), ..Default::default() }
    };
    let id = opened().await;
    let alive = |id: &Bytes| ScannerKeepAliveRequestPb { scanner_id: id.clone() };
    let kept: ScannerKeepAliveResponsePb = fixture.client("ScannerKeepAlive", &alive(&id)).await;
    assert_eq!(kept.error, None);
    let first = ScanRequestPb { batch_size_bytes: Some(1), ..next(&id, 1) };
    let batch = fixture.scan(&first).await;
    assert_eq!(batch.message.data.expect("rows").num_rows(), 3);
    assert_eq!((batch.message.has_more_results, batch.message.scanner_id), (Some(true), None));
    let mut errors = vec![error_text(&fixture.scan(&first).await.message.error)];
    errors.push(error_text(&fixture.scan(&next(&id, 2)).await.message.error));
    let gone: ScannerKeepAliveResponsePb = fixture.client("ScannerKeepAlive", &alive(&id)).await;
    errors.push(error_text(&gone.error));
    let hex = std::str::from_utf8(&id).expect("an id in hex");
    expect_test::expect![[r#"
        INVALID_SCAN_CALL_SEQ_ID + INVALID_ARGUMENT: Invalid call sequence ID: 2 was expected; the scanner is closed
        SCANNER_EXPIRED + NOT_FOUND: Scanner ID not found (it may have expired)
        SCANNER_EXPIRED + NOT_FOUND: Scanner ID not found (it may have expired)
    "#]].assert_eq(&(errors.join("\n") + "\n").replace(hex, "ID"));
    let id = opened().await;
    for _ in 0..2 {
        let close = ScanRequestPb { close_scanner: Some(true), batch_size_bytes: Some(0), ..next(&id, 99) };
        assert_eq!(fixture.scan(&close).await.message.error, None, "closing twice is fine");
    }
    assert!(fixture.running.server.scanners().is_empty());
    let id = opened().await;
    let bob = Proxy::new(fixture.env.clone(), fixture.running.rpc_addr, "bob");
    let deadline = fixture.env.now().mono.after(Duration::from_secs(20));
    let request = next(&id, 1);
    let stolen =
        bob.call::<_, ScanResponsePb>(CLIENT_SERVICE, "Scan", &request, deadline, CallOptions::default());
    let Err(RpcError::Remote { code, .. }) = stolen.await else { panic!("bob should be rejected") };
    assert_eq!(code, RpcErrorCodePb::FatalUnauthorized);
    assert_eq!(fixture.scan(&next(&id, 1)).await.message.error, None, "and ann continues");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_are_complete_and_repeatable() {
    let fixture = Fixture::start().await;
    fixture.create_tablet().await;
    let first = fixture.write(&[insert(1, "a")]).await;
    let at_snapshot = |at: Option<u64>| NewScanRequestPb {
        read_mode: Some(ReadMode::ReadAtSnapshot as i32),
        order_mode: Some(OrderMode::Ordered as i32),
        snap_timestamp: at,
        ..new_scan(&["key"])
    };
    let opened = fixture.scan(&open(at_snapshot(None))).await.message;
    let chosen = opened.snap_timestamp.expect("a client must be told");
    assert!(chosen > first.timestamp());
    assert_eq!(opened.last_primary_key.as_deref(), Some(&[0x80, 0, 0, 1][..]));
    let second = fixture.write(&[insert(2, "b"), op(RowOpKind::Delete, 1)]).await;
    assert!(second.timestamp() > chosen, "nothing is ever written below a snapshot that was read");
    assert_eq!(fixture.keys(at_snapshot(Some(chosen))).await, [1]);
    assert_eq!(fixture.keys(at_snapshot(Some(first.timestamp()))).await, Vec::<i32>::new());
    let yours = NewScanRequestPb {
        read_mode: Some(ReadMode::ReadYourWrites as i32),
        propagated_timestamp: second.timestamp,
        ..new_scan(&["key"])
    };
    let error_text =
        fixture.scan(&open(yours.clone())).await.message.snap_timestamp.expect("a client must be told");
    assert!(error_text > second.timestamp());
    assert_eq!(fixture.keys(yours).await, [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_diff_scan_returns_changed_rows() {
    let fixture = Fixture::start().await;
    three_rows(&fixture).await;
    let from = fixture.write(&[]).await.timestamp();
    let update = Op { n: Some(Some(9)), ..op(RowOpKind::Update, 3) };
    fixture.write(&[op(RowOpKind::Delete, 1), update, insert(4, "x")]).await;
    fixture.write(&[insert(5, "y")]).await;
    let to = fixture.write(&[op(RowOpKind::Delete, 5)]).await.timestamp() + 1;
    let mut projected_columns = columns(&["key", "n"]);
    projected_columns.push(ColumnSchemaPb {
        name: "is_deleted".to_string(),
        r#type: DataType::IsDeleted as i32,
        read_default_value: Some(Bytes::from_static(&[0])),
        ..Default::default()
    });
    let diff = NewScanRequestPb {
        projected_columns,
        read_mode: Some(ReadMode::ReadAtSnapshot as i32),
        order_mode: Some(OrderMode::Ordered as i32),
        snap_start_timestamp: Some(from),
        snap_timestamp: Some(to),
        ..new_scan(&[])
    };
    let RpcResponse { message, sidecars } = fixture.scan(&open(diff)).await;
    assert_eq!(message.error, None);
    let rows: Vec<(u8, u8)> = sidecars[0].chunks(4 + 8 + 1 + 1).map(|row| (row[0], row[12])).collect();
    assert_eq!(rows, [(1, 1), (3, 0), (4, 0)], "keys and whether they are deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checksums_add_up() {
    let fixture = Fixture::start().await;
    three_rows(&fixture).await;
    let request = ChecksumRequestPb { new_request: Some(new_scan(&["key", "v"])), ..Default::default() };
    let whole: ChecksumResponsePb = fixture.client("Checksum", &request).await;
    assert_eq!((whole.has_more_results, whole.rows_checksummed), (Some(false), Some(3)));
    assert_ne!(whole.checksum, Some(0));
}

/// A checksum needs no right to read the rows that it is made of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scanner_of_checksums_gives_no_rows() {
    let fixture = Fixture::start().await;
    fixture.create_tablet().await;
    let rows: Vec<Op<'_>> = (0..500).map(|key| insert(key, "text")).collect();
    assert_eq!(fixture.write(&rows).await.per_row_errors, []);
    let (new_request, batch_size_bytes) = (Some(new_scan(&["key", "v"])), Some(1));
    let request = ChecksumRequestPb { new_request, batch_size_bytes, ..Default::default() };
    let begun: ChecksumResponsePb = fixture.client("Checksum", &request).await;
    assert_eq!(begun.has_more_results, Some(true));
    let next = ScanRequestPb { scanner_id: begun.scanner_id, call_seq_id: Some(1), ..Default::default() };
    let RpcResponse { message, sidecars } = fixture.scan(&next).await;
    assert!(error_text(&message.error).starts_with("SCANNER_EXPIRED"), "{:?}", message.error);
    assert!(sidecars.is_empty());
}
