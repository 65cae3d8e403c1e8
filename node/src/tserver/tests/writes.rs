use super::*;
use nyala_common::rpc::RpcErrorCodePb;
use nyala_proto::kudu::tserver::write_response_pb::PerRowErrorPb;

/// Formats row errors and counts of a write's response.
fn shown(response: &WriteResponsePb) -> String {
    assert_eq!(response.error, None);
    assert!(response.timestamp.is_some());
    let row = |row: &PerRowErrorPb| {
        let status = app_status_pb::ErrorCode::try_from(row.error.code).expect("a known status");
        let message = row.error.message.as_deref().unwrap_or_default();
        format!("row {}: {} {message}\n", row.row_index, status.as_str_name())
    };
    let rows: String = response.per_row_errors.iter().map(row).collect();
    let counts = response.resource_metrics.as_ref().expect("counts");
    let counted = [
        ("inserts", counts.successful_inserts),
        ("upserts", counts.successful_upserts),
        ("updates", counts.successful_updates),
        ("deletes", counts.successful_deletes),
        ("insert ignores", counts.insert_ignore_errors),
        ("upsert ignores", counts.upsert_ignore_errors),
        ("update ignores", counts.update_ignore_errors),
        ("delete ignores", counts.delete_ignore_errors),
    ];
    let counted: Vec<String> = counted
        .iter()
        .filter(|(_, count)| count.expect("every count is told") > 0)
        .map(|(name, count)| format!("{name} {}", count.unwrap_or_default()))
        .collect();
    format!("{rows}{}\n", counted.join(", "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_row_operation() {
    let fixture = Fixture::start().await;
    fixture.create_tablet().await;
    let set_v = |kind, key| Op { v: Some(Some("x")), ..op(kind, key) };
    let set_im = |kind, key| Op { v: Some(Some("x")), im: Some(5), ..op(kind, key) };
    let first = [insert(1, "a"), insert(2, "b"), insert(1, "again"), set_im(RowOpKind::Upsert, 3)];
    let second = [
        set_v(RowOpKind::InsertIgnore, 1),
        set_v(RowOpKind::InsertIgnore, 4),
        set_v(RowOpKind::Update, 1),
        set_v(RowOpKind::Update, 9),
        set_v(RowOpKind::UpdateIgnore, 9),
        op(RowOpKind::Delete, 2),
        op(RowOpKind::Delete, 2),
        op(RowOpKind::DeleteIgnore, 2),
        set_v(RowOpKind::Upsert, 1),
    ];
    let third = [
        set_im(RowOpKind::Update, 3),
        set_im(RowOpKind::Upsert, 3),
        set_im(RowOpKind::UpdateIgnore, 3),
        set_im(RowOpKind::UpsertIgnore, 3),
        op(RowOpKind::Update, 1),
    ];
    let mut error_text = String::new();
    for ops in [&first[..], &second, &third, &[]] {
        error_text += &format!("{}\n", shown(&fixture.write(ops).await));
    }
    expect_test::expect![[r#"
        row 2: ALREADY_PRESENT key already present
        inserts 2, upserts 1

        row 3: NOT_FOUND key not found
        row 6: NOT_FOUND key not found
        inserts 1, upserts 1, updates 1, deletes 1, insert ignores 1, update ignores 1, delete ignores 1

        row 0: IMMUTABLE UPDATE not allowed for immutable column: im INT32 NULLABLE IMMUTABLE
        row 1: IMMUTABLE UPDATE not allowed for immutable column: im INT32 NULLABLE IMMUTABLE
        row 4: INVALID_ARGUMENT No fields updated, key is: (int32 key=<redacted>)
        upserts 1, updates 1, upsert ignores 1, update ignores 1



    "#]]
    .assert_eq(&error_text);
    assert_eq!(fixture.keys(new_scan(&["key"])).await, [1, 3, 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_that_reject_a_whole_write() {
    let fixture = Fixture::start().await;
    fixture.create_tablet().await;
    let good = write_request(&schema(), &[insert(1, "a")]);
    let error_of = async |change: &dyn Fn(&mut WriteRequestPb)| {
        let mut request = good.clone();
        change(&mut request);
        let response: WriteResponsePb = fixture.client("Write", &request).await;
        error_text(&response.error)
    };
    let column = |request: &mut WriteRequestPb, i: usize, change: fn(&mut ColumnSchemaPb)| {
        change(&mut request.schema.as_mut().expect("a schema").columns[i]);
    };
    let rows = |request: &mut WriteRequestPb, rows: &'static [u8]| {
        request.row_operations.as_mut().expect("rows").rows = Some(Bytes::from_static(rows));
    };
    let errors = [
        error_of(&|request| request.tablet_id = schema::id_bytes(&TABLE)).await,
        error_of(&|request| request.tablet_id = Bytes::from_static(b"nonsense")).await,
        error_of(&|request| column(request, 1, |column| column.name = "w".to_string())).await,
        error_of(&|request| column(request, 1, |column| column.r#type = DataType::Int8 as i32)).await,
        error_of(&|request| column(request, 1, |column| column.id = Some(1))).await,
        error_of(&|request| rows(request, b"\x01\x01")).await,
        error_of(&|request| rows(request, b"\x63\x01\x00\0\0\0\0")).await,
        error_of(&|request| rows(request, b"\x01\x03\x00\0\0\0\0\xff\xff\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"))
            .await,
        error_of(&|request| request.propagated_timestamp = Some(u64::MAX >> 1)).await,
        error_of(&|request| request.txn_id = Some(1)).await,
    ];
    expect_test::expect![[r#"
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: nonsense
        MISMATCHED_SCHEMA + INVALID_ARGUMENT: Client provided column w STRING NULLABLE not present in tablet
        MISMATCHED_SCHEMA + INVALID_ARGUMENT: The column 'v' must have type STRING NULLABLE found INT8 NULLABLE
        INVALID_SCHEMA + INVALID_ARGUMENT: column "v" carries an id: a request's schema must not have column ids
        MISMATCHED_SCHEMA + CORRUPTION: row operations end 1 bytes too early
        MISMATCHED_SCHEMA + NOT_SUPPORTED: row operation type 99 is not a write
        MISMATCHED_SCHEMA + CORRUPTION: a cell at 65535 of 1 bytes lies outside the 1 bytes of indirect data
        UNKNOWN_ERROR + INVALID_ARGUMENT: timestamp TIME is TIME us ahead of this server's clock, more than the 10000000 us allowed; check the clocks of the client and of the servers
        UNKNOWN_ERROR + NOT_SUPPORTED: multi-row transactions are not supported
    "#]].assert_eq(&(errors.join("\n") + "\n"));
    assert_eq!(fixture.keys(new_scan(&["key"])).await, Vec::<i32>::new(), "nothing was written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_without_its_required_fields_is_rejected() {
    let fixture = Fixture::start().await;
    let answer: Result<RpcResponse<WriteResponsePb>, _> = fixture
        .call(CLIENT_SERVICE, "Write", &nyala_proto::kudu::tserver::PingRequestPb {}, CallOptions::default())
        .await;
    let Err(RpcError::Remote { code, .. }) = answer else { panic!("it should be rejected") };
    assert_eq!(code, RpcErrorCodePb::ErrorInvalidRequest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_at_once() {
    let fixture = Fixture::with(|config| config.log_sync = false).await;
    fixture.create_tablet().await;
    let requests: Vec<_> = (0..50).map(|key| write_request(&schema(), &[insert(key, "v")])).collect();
    let calls = requests.iter().map(|request| fixture.client::<_, WriteResponsePb>("Write", request));
    let responses = futures_util::future::join_all(calls).await;
    assert!(responses.iter().all(|response| response.error.is_none() && response.per_row_errors.is_empty()));
    let mut timestamps: Vec<_> = responses.iter().map(|response| response.timestamp()).collect();
    timestamps.sort();
    timestamps.dedup();
    assert_eq!(timestamps.len(), 50, "every operation has its own timestamp");
    let mut keys = fixture.keys(new_scan(&["key"])).await;
    keys.sort();
    assert_eq!(keys, (0..50).collect::<Vec<_>>());
}
