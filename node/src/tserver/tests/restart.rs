use super::*;

async fn write_as(fixture: &Fixture, seq: i64, ops: &[Op<'_>]) -> Vec<u8> {
    let options = CallOptions { features: Vec::new(), request_id: Some(request_id(seq)) };
    let request = write_request(&schema(), ops);
    let answer = fixture.call::<_, WriteResponsePb>(CLIENT_SERVICE, "Write", &request, options).await;
    answer.expect("the call succeeds").message.encode_to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_rows_survive_a_restart() {
    let mut fixture = Fixture::start().await;
    fixture.create_tablet().await;
    fixture.write(&[insert(1, "a"), insert(2, "b"), insert(3, "c")]).await;
    fixture.write(&[op(RowOpKind::Delete, 2), insert(4, "d")]).await;
    fixture.restart().await;
    assert_eq!(fixture.keys(new_scan(&["key"])).await, [1, 3, 4]);
    let uuid = fixture.running.server.uuid();
    fixture.restart().await;
    assert_eq!(fixture.running.server.uuid(), uuid, "a server keeps its id");
    let late = fixture.write(&[insert(3, "again"), insert(5, "e")]).await;
    assert_eq!(late.per_row_errors.len(), 1);
    assert_eq!(fixture.keys(new_scan(&["key"])).await, [1, 3, 4, 5]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_gets_the_first_reply_byte_by_byte() {
    for log_sync in [true, false] {
        let change =
            if log_sync { |_: &mut TserverConfig| {} } else { |c: &mut TserverConfig| c.log_sync = false };
        let mut fixture = Fixture::with(change).await;
        fixture.create_tablet().await;
        let ops = [insert(1, "a"), insert(1, "twice"), op(RowOpKind::DeleteIgnore, 7)];
        let first = write_as(&fixture, 0, &ops).await;
        assert_eq!(write_as(&fixture, 0, &ops).await, first);
        fixture.restart().await;
        assert_eq!(write_as(&fixture, 0, &ops).await, first, "also from the log");
        let next = write_as(&fixture, 1, &ops).await;
        assert_ne!(next, first, "another request runs");
        assert_eq!(fixture.keys(new_scan(&["key"])).await, [1]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_belong_to_one_running_server() {
    let fixture = Fixture::start().await;
    let path = |name: &str| fixture.dir.path().join(name).to_str().expect("UTF-8").to_string();
    let addr = "127.0.0.1:0".parse().expect("an address");
    let error = async |wal: &str, data: &str| {
        let config = TserverConfig::new(addr, path(wal), vec![path(data)]);
        let failed = super::super::run(fixture.env.clone(), config).await.err().expect("refused");
        failed.message.replace(&path(""), "")
    };
    expect_test::expect![[
        r#"the directory wal is in use by another process; stop that one or choose another directory"#
    ]]
    .assert_eq(&error("wal", "data").await);
    fixture.running.shutdown().await;
    let uuid = fixture.running.server.uuid().to_string();
    let told = error("wal2", "data").await.replace(&uuid, "UUID");
    expect_test::expect![
        "the WAL directory wal2 is empty, but data belongs to server UUID, whose WAL must be somewhere else"
    ]
    .assert_eq(&told);
}
