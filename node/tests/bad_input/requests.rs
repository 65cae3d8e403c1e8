//! Well-formed but invalid requests: rows of the wrong schema, unknown tablets and scanners.

use engine::ids::Uuid;
use engine::schema::row_ops::ClientCell;
use expect_test::expect;
use nyala_client::tables::AlterStep;
use nyala_proto::kudu::master::{
    GetTableSchemaRequestPb, GetTableSchemaResponsePb, GetTabletLocationsRequestPb,
    GetTabletLocationsResponsePb, MasterErrorPb,
};
use nyala_proto::kudu::tserver::{
    ChecksumRequestPb, ChecksumResponsePb, ScannerKeepAliveRequestPb, ScannerKeepAliveResponsePb,
    SplitKeyRangeRequestPb, SplitKeyRangeResponsePb,
};

use super::connections::varint;
use super::*;

/// Returns the failed rows with their errors.
fn refused(response: &WriteResponsePb) -> String {
    assert_eq!(response.error, None);
    let line = |row: &nyala_proto::kudu::tserver::write_response_pb::PerRowErrorPb| {
        let status = ErrorCode::try_from(row.error.code).unwrap().as_str_name();
        format!("row {}: {status}: {}\n", row.row_index, row.error.message())
    };
    response.per_row_errors.iter().map(line).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_with_another_schema_are_rejected() {
    let world = World::start(&[]).await;
    world.still_served().await;
    let (k, n, small) = (77i32.to_le_bytes(), 1i64.to_le_bytes(), 1i16.to_le_bytes());
    let row = [ClientCell::Value(&k), ClientCell::Null, ClientCell::Value(&n)];
    let old = insert(&world.tablet, &schema(), &[&row]);
    let columns = |change: &dyn Fn(&mut Vec<ColumnSchema>)| {
        let mut columns = schema().columns().to_vec();
        change(&mut columns);
        Schema::new(columns, 1).unwrap()
    };
    let narrow = columns(&|columns| columns[2].ty = DataType::Int16);
    let narrow = insert(
        &world.tablet,
        &narrow,
        &[&[ClientCell::Value(&k), ClientCell::Null, ClientCell::Value(&small)]],
    );
    let nullable = columns(&|columns| columns[2].nullable = true);
    let nullable = insert(&world.tablet, &nullable, &[&row]);
    let short = columns(&|columns| drop(columns.pop()));
    let short = insert(&world.tablet, &short, &[&row[..2]]);
    let more = columns(&|columns| columns.push(ColumnSchema::new(3, "w", DataType::Int64)));
    let more = insert(&world.tablet, &more, &[&[row[0], row[1], row[2], ClientCell::Value(&n)]]);
    let mut errors = String::new();
    for request in [&narrow, &nullable, &short, &more] {
        errors += &format!("{}\n", describe_error(&world.write(request).await.error));
    }
    let mut added = ColumnSchema::new(3, "w", DataType::Int64);
    added.read_default = Some(vec![0; 8]);
    let renamed = AlterStep::RenameColumn { from: "n".to_string(), to: "m".to_string() };
    let steps = [renamed, AlterStep::AddColumn(added)];
    let table = world.client.alter_table(&world.table, &steps, None).await.unwrap();
    errors += "after it was altered\n";
    errors += &format!("{}\n", describe_error(&world.write(&old).await.error));
    let now = insert(&world.tablet, table.schema(), &[&[row[0], row[1], row[2], ClientCell::Value(&n)]]);
    let scan = open(new_scan(&world.tablet, &["k", "n"]));
    errors += &describe_error(&world.call::<_, ScanResponsePb>("Scan", &scan).await.message.error);
    expect![[r#"
        MISMATCHED_SCHEMA + INVALID_ARGUMENT: The column 'n' must have type INT64 NOT NULL found INT16 NOT NULL
        MISMATCHED_SCHEMA + INVALID_ARGUMENT: The column 'n' must have type INT64 NOT NULL found INT64 NULLABLE
        MISMATCHED_SCHEMA + INVALID_ARGUMENT: Client missing required column: n INT64 NOT NULL
        MISMATCHED_SCHEMA + INVALID_ARGUMENT: Client provided column w INT64 NOT NULL not present in tablet
        after it was altered
        MISMATCHED_SCHEMA + INVALID_ARGUMENT: Client provided column n INT64 NOT NULL not present in tablet
        MISMATCHED_SCHEMA + INVALID_ARGUMENT: Some columns are not present in the current schema: n
    "#]].assert_eq(&(errors + "\n"));
    let written = world.write(&now).await;
    assert_eq!((written.error, written.per_row_errors), (None, vec![]), "who knows the schema may write");
    assert_eq!(world.count().await, 2, "nothing else was written");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_rows_fail_alone() {
    let world = World::start(&[]).await;
    let keys: Vec<[u8; 4]> = (100i32..110).map(i32::to_le_bytes).collect();
    let n = 1i64.to_le_bytes();
    let (largest, larger) = (vec![b'x'; 65_536], vec![b'x'; 65_537]);
    let number = ClientCell::Value(&n);
    let rows: [&[ClientCell<'_>]; 6] = [
        &[ClientCell::Unset, ClientCell::Null, number],
        &[ClientCell::Null, ClientCell::Null, number],
        &[ClientCell::Value(&keys[0]), ClientCell::Null, ClientCell::Unset],
        &[ClientCell::Value(&keys[1]), ClientCell::Null, ClientCell::Null],
        &[ClientCell::Value(&keys[2]), ClientCell::Value(&largest), number],
        &[ClientCell::Value(&keys[3]), ClientCell::Value(&larger), number],
    ];
    let mut errors = refused(&world.write(&insert(&world.tablet, &schema(), &rows)).await);
    let texts = Schema::new(vec![ColumnSchema::new(0, "k", DataType::String)], 1).unwrap();
    let table = create(&world.client, "texts", texts.clone()).await;
    let tablet = only_tablet(&world.env, &world.cluster, &table).await;
    let rows: [&[ClientCell<'_>]; 2] =
        [&[ClientCell::Value(&largest[..16_384])], &[ClientCell::Value(&largest[..16_385])]];
    errors += "long keys\n";
    errors += &refused(&world.write(&insert(&tablet, &texts, &rows)).await);
    expect![[r#"
        row 0: INVALID_ARGUMENT: No value provided for required column: k INT32 NOT NULL
        row 1: INVALID_ARGUMENT: NULL values not allowed for column: k INT32 NOT NULL
        row 2: INVALID_ARGUMENT: No value provided for required column: n INT64 NOT NULL
        row 3: INVALID_ARGUMENT: NULL values not allowed for column: n INT64 NOT NULL
        row 5: INVALID_ARGUMENT: value too large for column 'v' (65537 bytes, maximum is 65536 bytes)
        long keys
        row 1: INVALID_ARGUMENT: encoded primary key too large (16385 bytes, maximum is 16384 bytes)
    "#]]
    .assert_eq(&errors);
    world.rows.fetch_add(1, Ordering::Relaxed);
    world.still_served().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cells_that_share_their_bytes_are_rejected() {
    let world = World::start(&[]).await;
    let (keys, n) = ([100i32, 101].map(i32::to_le_bytes), 1i64.to_le_bytes());
    let row = |at: usize| [ClientCell::Value(&keys[at]), ClientCell::Value(b"abc"), ClientCell::Value(&n)];
    let mut write = insert(&world.tablet, &schema(), &[&row(0), &row(1)]);
    let ops = write.row_operations.as_mut().unwrap();
    let mut rows = ops.rows.as_ref().unwrap().to_vec();
    // Kind, two bitmaps and the key precede the offset of the text; the second row's becomes that of the first one.
    let offset = rows.len() / 2 + 3 + 4;
    assert_eq!(rows[offset..offset + 8], 3u64.to_le_bytes());
    rows[offset..offset + 8].fill(0);
    ops.rows = Some(rows.into());
    ops.indirect_data = Some(Bytes::from_static(b"abc"));
    expect![[r#"
        MISMATCHED_SCHEMA + INVALID_ARGUMENT: indirect data: the cells of the rows up to row 1 share bytes (6 bytes of cells in 3 bytes); send the bytes of each cell separately
    "#]]
    .assert_eq(&(describe_error(&world.write(&write).await.error) + "\n"));
    world.still_served().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_tablets_and_tables_are_reported() {
    let world = World::start(&[]).await;
    let mut errors = Vec::new();
    for id in
        [Bytes::from_static(b"0123456789abcdef0123456789abcdef"), Bytes::from_static(b"\xffno"), Bytes::new()]
    {
        let write = insert(&id, &schema(), &[]);
        errors.push(describe_error(&world.write(&write).await.error));
        let new = new_scan(&id, &["k"]);
        errors.push(describe_error(
            &world.call::<_, ScanResponsePb>("Scan", &open(new.clone())).await.message.error,
        ));
        let sum = ChecksumRequestPb { new_request: Some(new), ..Default::default() };
        errors
            .push(describe_error(&world.call::<_, ChecksumResponsePb>("Checksum", &sum).await.message.error));
        let split = SplitKeyRangeRequestPb { tablet_id: id.clone(), ..Default::default() };
        let split = world.call::<_, SplitKeyRangeResponsePb>("SplitKeyRange", &split).await;
        errors.push(describe_error(&split.message.error));
        errors.extend(master_errors(&world, &id).await);
    }
    expect![[r#"
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: 0123456789abcdef0123456789abcdef
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: 0123456789abcdef0123456789abcdef
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: 0123456789abcdef0123456789abcdef
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: 0123456789abcdef0123456789abcdef
        ok, 0 found Unknown tablet 0123456789abcdef0123456789abcdef
        TABLE_NOT_FOUND: the table does not exist: table_id: "0123456789abcdef0123456789abcdef"
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: �no
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: �no
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: �no
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: �no
        ok, 0 found Unknown tablet �no
        TABLE_NOT_FOUND: the table does not exist: table_id: "\377no"
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: 
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: 
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: 
        TABLET_NOT_FOUND + NOT_FOUND: Tablet not found: 
        ok, 0 found Unknown tablet 
        TABLE_NOT_FOUND: the table does not exist: table_id: ""
    "#]]
    .assert_eq(&(errors.join("\n") + "\n"));
    world.still_served().await;
    world.stop().await;
}

async fn master_errors(world: &World, id: &Bytes) -> [String; 2] {
    let master = connect(&world.env, world.master()).await;
    let (until, options) = (soon(&world.env), CallOptions::default());
    let shown = |error: &Option<MasterErrorPb>| match error {
        Some(error) => format!("{}: {}", error.code().as_str_name(), error.status.message()),
        None => "ok".to_string(),
    };
    let tablets = GetTabletLocationsRequestPb { tablet_ids: vec![id.clone()], ..Default::default() };
    let tablets: RpcResponse<GetTabletLocationsResponsePb> =
        master.call(MASTER, "GetTabletLocations", &tablets, until, &options).await.unwrap();
    let tablets = tablets.message;
    let each = tablets.errors.iter().map(|error| error.status.message().to_string());
    let found = tablets.tablet_locations.len();
    let first = format!("{}, {found} found {}", shown(&tablets.error), each.collect::<Vec<_>>().join(", "));
    let table = TableIdentifierPb { table_id: Some(id.clone()), table_name: None };
    let table: RpcResponse<GetTableSchemaResponsePb> = master
        .call(MASTER, "GetTableSchema", &GetTableSchemaRequestPb { table }, until, &options)
        .await
        .unwrap();
    [first, shown(&table.message.error)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_and_unknown_scanners_are_reported() {
    let world = World::start(&[("scanner_ttl_ms", "1"), ("scanner_gc_check_interval_us", "1000")]).await;
    world.still_served().await;
    let opening = ScanRequestPb { batch_size_bytes: Some(0), ..open(new_scan(&world.tablet, &["k"])) };
    let opened: ScanResponsePb = world.call("Scan", &opening).await.message;
    let expired = opened.scanner_id.expect("it was only opened");
    world.env.sleep(Duration::from_millis(5)).await;
    let hex = String::from_utf8_lossy(&expired).into_owned();
    let never = Bytes::from(Uuid([9; 16]).to_string());
    let mut errors = Vec::new();
    for id in [expired, never, Bytes::from_static(b"\xffnonsense"), Bytes::new()] {
        let next = ScanRequestPb { scanner_id: Some(id.clone()), call_seq_id: Some(1), ..Default::default() };
        errors.push(describe_error(&world.call::<_, ScanResponsePb>("Scan", &next).await.message.error));
        let alive = ScannerKeepAliveRequestPb { scanner_id: id };
        let alive: RpcResponse<ScannerKeepAliveResponsePb> = world.call("ScannerKeepAlive", &alive).await;
        errors.push(describe_error(&alive.message.error));
    }
    errors.dedup();
    expect![[r#"
        SCANNER_EXPIRED + NOT_FOUND: Scanner EXPIRED not found (it may have expired)
        SCANNER_EXPIRED + NOT_FOUND: Scanner 09090909090909090909090909090909 not found (it may have expired)
        SCANNER_EXPIRED + NOT_FOUND: Scanner with an ill-formed id not found
    "#]]
    .assert_eq(&(errors.join("\n") + "\n").replace(&hex, "EXPIRED"));
    world.still_served().await;
    world.stop().await;
}

/// Returns an encoded field of a message, with a number below 16.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &varint(content.len()), content].concat()
}

/// Returns these many empty elements of a field.
fn empty(number: u8, elements: usize) -> Vec<u8> {
    field(number, b"").repeat(elements)
}

/// Returns requests with these many elements, which take two bytes each here and hundreds once they are decoded.
fn long_lists(elements: usize) -> [(&'static str, &'static str, Vec<u8>); 9] {
    let tablet = || field(1, b"t");
    let scan = |list: Vec<u8>| field(2, &[tablet(), list].concat());
    [
        (MASTER, "AlterTable", [field(1, b""), empty(2, elements)].concat()),
        (MASTER, "CreateTable", [field(1, b"t"), field(2, &empty(1, elements))].concat()),
        (MASTER, "GetTabletLocations", empty(1, elements)),
        (TABLETS, "Scan", scan(empty(4, elements))),
        (TABLETS, "Scan", scan(empty(13, elements))),
        (TABLETS, "Scan", scan(field(13, &field(5, &empty(1, elements))))),
        (TABLETS, "Checksum", field(1, &empty(4, elements))),
        (TABLETS, "SplitKeyRange", [tablet(), empty(5, elements)].concat()),
        (TABLETS, "Write", [tablet(), field(2, &empty(1, elements))].concat()),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_empty_elements_are_not_decoded() {
    let world = World::start(&[]).await;
    let mut master = Raw::negotiated(&world.env, world.master()).await;
    let mut tserver = Raw::negotiated(&world.env, world.tserver()).await;
    let mut replies = Vec::new();
    for (service, method, body) in long_lists(1_000_001) {
        let server = if service == MASTER { &mut master } else { &mut tserver };
        replies.push(server.call(service, method, &[], &body).await);
    }
    replies.push(master.call(MASTER, "GetTabletLocations", &[], &empty(1, 10_001)).await);
    let reason = |reply: &String| reply.strip_prefix("ERROR_INVALID_REQUEST: ").unwrap_or(reply).to_string();
    let reasons: Vec<String> = replies.iter().map(reason).collect();
    expect![[r#"
        AlterTable: too many elements in alter_schema_steps (limit 10000); send fewer at a time
        CreateTable: too many elements in schema.columns (limit 10000); send fewer at a time
        GetTabletLocations: the request is too long (2000002 bytes, limit 1048576); send less at a time
        Scan: too many elements in projected_columns (limit 10000); send fewer at a time
        Scan: too many elements in column_predicates (limit 10000); send fewer at a time
        Scan: too many elements in column_predicates.in_list.values (limit 1000000); send fewer at a time
        Checksum: too many elements in projected_columns (limit 10000); send fewer at a time
        SplitKeyRange: too many elements in columns (limit 10000); send fewer at a time
        Write: too many elements in schema.columns (limit 10000); send fewer at a time
        GetTabletLocations: too many elements in tablet_ids (limit 10000); send fewer at a time
    "#]]
    .assert_eq(&(reasons.join("\n") + "\n"));
    for (service, method, body) in long_lists(10_000) {
        let server = if service == MASTER { &mut master } else { &mut tserver };
        assert_eq!(server.call(service, method, &[], &body).await, "ok", "{method} with long lists");
    }
    world.still_served().await;
    world.stop().await;
}
