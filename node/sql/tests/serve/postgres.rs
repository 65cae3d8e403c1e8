//! The Postgres protocol in front of an embedded cluster, with tokio-postgres as the client.

use std::sync::Arc;

use bytes::BytesMut;
use futures_util::{StreamExt, pin_mut};
use nyala_sql::serve::{ClusterAccess, Passwords, ServeConfig, SqlServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Config, NoTls, SimpleQueryMessage};

use super::bed::{Bed, CREATE_HALF, LOOKS_MAX, block_on, flood, open_scanners, until};

pub(crate) fn config(server: &SqlServer) -> Config {
    let mut config = Config::new();
    config.host("127.0.0.1").port(server.address().port()).user("ann").dbname("nyala");
    config
}

pub(crate) async fn connect(config: &Config) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(async move {
        // The end of the connection shows in the client's calls.
        let _ = connection.await;
    });
    Ok(client)
}

/// Sends a cancel request and waits until the server has served it: it closes the connection then. The library does
/// not wait, so that its request may cancel a statement that is sent later.
async fn cancel_and_wait(server: &SqlServer, client: &tokio_postgres::Client) {
    let (near, mut far) = tokio::io::duplex(1024);
    client.cancel_token().cancel_query_raw(near, NoTls).await.expect("a request");
    let mut request = Vec::new();
    far.read_to_end(&mut request).await.expect("its bytes");
    let mut socket = TcpStream::connect(server.address()).await.expect("a server");
    socket.write_all(&request).await.expect("a connection");
    assert_eq!(socket.read_to_end(&mut request).await.expect("an end"), 0, "no answer but the end");
}

pub(crate) fn code(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("none", |code| code.code())
}

#[test]
fn clients_of_the_postgres_protocol_are_served() {
    block_on(async {
        let bed = Bed::start().await;
        let server = bed.serve(ServeConfig::default()).await;
        let client = connect(&config(&server)).await.expect("a trusted client");
        every_type_is_mapped(&client).await;
        simple_queries_hold_several_statements(&client).await;
        parameters_have_the_types_of_their_columns(&client).await;
        results_have_the_types_that_were_described(&client).await;
        a_number_without_a_point_stays_a_decimal(&client).await;
        errors_have_states(&client).await;
        transactions_are_no_more_than_they_say(&client).await;
        a_portal_runs_its_statement_once(&server, &client).await;
        portals_return_rows_in_parts(client).await;
        server.stop().await;
        scans_are_cancelled_on_the_servers(&bed).await;
        a_server_that_stops_leaves_no_half_filled_table(&bed).await;
        limits_and_passwords_hold(&bed).await;
        silent_connections_lock_no_client_out(&bed).await;
        servers_aggregate_unless_switched_off(&bed).await;
        a_statement_beyond_the_memory_fails_alone(&bed).await;
        prepared_statements_have_limits(&bed).await;
        bed.stop().await;
    });
}

async fn every_type_is_mapped(client: &tokio_postgres::Client) {
    client
        .batch_execute(
            "CREATE TABLE types (k BIGINT PRIMARY KEY, i8 TINYINT, i16 SMALLINT, i32 INT, b BOOLEAN, f REAL, d DOUBLE,
               s VARCHAR, v VARCHAR(5), y BYTEA, n DECIMAL(38, 10), day DATE, at TIMESTAMP)
             PARTITION BY HASH (k) PARTITIONS 2;
             INSERT INTO types VALUES
               (1, -128, -32768, -2147483648, true, 1.5, -0.1, 'text', 'ééééé', X'00ff',
                1234567890123456789012345678.0123456789, '2026-02-28', '1999-12-31T23:59:59.999999Z'),
               (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        )
        .await
        .expect("a table with two rows");
    let statement = client.prepare("SELECT * FROM types ORDER BY k").await.expect("a query");
    let types: Vec<Type> = statement.columns().iter().map(|column| column.type_().clone()).collect();
    let wanted = [
        Type::INT8,
        Type::INT2,
        Type::INT2,
        Type::INT4,
        Type::BOOL,
        Type::FLOAT4,
        Type::FLOAT8,
        Type::TEXT,
        Type::TEXT,
        Type::BYTEA,
        Type::NUMERIC,
        Type::DATE,
        Type::TIMESTAMPTZ,
    ];
    assert_eq!(types, wanted);
    let rows = client.query(&statement, &[]).await.expect("rows in binary form");
    let row = &rows[0];
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i16>(1), row.get::<_, i32>(3)), (1, -128, i32::MIN));
    assert_eq!((row.get::<_, bool>(4), row.get::<_, f32>(5), row.get::<_, f64>(6)), (true, 1.5, -0.1));
    assert_eq!((row.get::<_, &str>(8), row.get::<_, &[u8]>(9)), ("ééééé", &b"\x00\xff"[..]));
    let at: std::time::SystemTime = row.get(12);
    let since = at.duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    assert_eq!(since.as_micros(), 946_684_799_999_999);
    assert!(
        (1..13).all(|at| rows[1].try_get::<_, Option<i64>>(at).is_err()
            || rows[1].get::<_, Option<i64>>(at).is_none())
    );
    // Numbers and dates in text form.
    let messages =
        client.simple_query("SELECT n, day, at, y, v FROM types WHERE k = 1").await.expect("a row");
    let row = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let row = row.expect("one row");
    let texts: Vec<&str> = (0..5).filter_map(|at| row.get(at)).collect();
    assert_eq!(
        texts,
        [
            "1234567890123456789012345678.0123456789",
            "2026-02-28",
            "1999-12-31 23:59:59.999999+00",
            "\\x00ff",
            "ééééé"
        ]
    );
}

async fn simple_queries_hold_several_statements(client: &tokio_postgres::Client) {
    let messages = client
        .simple_query(
            "CREATE TABLE s (k INT PRIMARY KEY, v INT) PARTITION BY HASH (k) PARTITIONS 2;
             INSERT INTO s VALUES (1, 10), (2, 20); SELECT k FROM s ORDER BY k; UPDATE s SET v = 0 WHERE k = 1",
        )
        .await
        .expect("statements that succeed");
    let counts: Vec<u64> = messages
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::CommandComplete(count) => Some(*count),
            _ => None,
        })
        .collect();
    assert_eq!(counts, [0, 2, 2, 1]);
    // A failure ends the query, but not what ran before it.
    let error = client.simple_query("DELETE FROM s WHERE k = 2; SELECT * FROM nothere; DELETE FROM s").await;
    assert_eq!(code(&error.expect_err("a missing table")), "42P01");
    let left = client.query_one("SELECT COUNT(*) FROM s", &[]).await.expect("a count");
    assert_eq!(left.get::<_, i64>(0), 1);
}

async fn parameters_have_the_types_of_their_columns(client: &tokio_postgres::Client) {
    let types = |statement: &tokio_postgres::Statement| statement.params().to_vec();
    let insert =
        client.prepare("INSERT INTO types (k, s, n, at) VALUES ($1, $2, 1.5, $3)").await.expect("a write");
    assert_eq!(types(&insert), [Type::INT8, Type::TEXT, Type::TIMESTAMPTZ]);
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_micros(1_769_860_800_000_001);
    let written = client.execute(&insert, &[&9_i64, &"it's", &at]).await.expect("one row");
    assert_eq!(written, 1);
    let select = client
        .prepare("SELECT k, s, at FROM types WHERE k = $1 AND s = $2 AND at >= $3 LIMIT $4")
        .await
        .expect("a query");
    assert_eq!(types(&select), [Type::INT8, Type::TEXT, Type::TIMESTAMPTZ, Type::INT8]);
    let row = client.query_one(&select, &[&9_i64, &"it's", &at, &1_i64]).await.expect("the row");
    assert_eq!(row.get::<_, std::time::SystemTime>(2), at);
    let update = client.prepare("UPDATE types SET i32 = $1, s = $2 WHERE k = $3").await.expect("a write");
    assert_eq!(types(&update), [Type::INT4, Type::TEXT, Type::INT8]);
    let updated = client.execute(&update, &[&-5_i32, &None::<&str>, &9_i64]).await.expect("one row");
    assert_eq!(updated, 1);
    let row = client.query_one("SELECT i32, s FROM types WHERE k = $1", &[&9_i64]).await.expect("the row");
    assert_eq!((row.get::<_, i32>(0), row.get::<_, Option<&str>>(1)), (-5, None));
    let deleted = client.execute("DELETE FROM types WHERE k IN ($1, $2)", &[&9_i64, &77_i64]).await;
    assert_eq!(deleted.expect("one row"), 1);
}

async fn results_have_the_types_that_were_described(client: &tokio_postgres::Client) {
    let types = |statement: &tokio_postgres::Statement| {
        let columns = statement.columns().iter().map(|column| column.type_().clone());
        columns.chain(statement.params().to_vec()).collect::<Vec<_>>()
    };
    // The first part alone is an integer.
    let of_one = "SELECT CASE WHEN k > 1 THEN 0 ELSE d END AS c FROM types ORDER BY k";
    let of_two = "SELECT 0 AS c FROM types WHERE k = 1 UNION ALL SELECT d FROM types WHERE k = 1 ORDER BY c";
    for (sql, values) in [(of_one, [-0.1, 0.0]), (of_two, [-0.1, 0.0])] {
        let statement = client.prepare(sql).await.expect(sql);
        assert_eq!(types(&statement), [Type::FLOAT8], "{sql}");
        let rows = client.query(&statement, &[]).await.expect(sql);
        assert_eq!([rows[0].get::<_, f64>(0), rows[1].get(0)], values, "{sql}");
    }
    let sum = "SELECT i32 + $1 AS n FROM types WHERE k = 1";
    let statement = client.prepare(sum).await.expect("a query");
    assert_eq!(types(&statement), [Type::INT4, Type::INT4]);
    let row = client.query_one(&statement, &[&5_i32]).await.expect("the row");
    assert_eq!(row.get::<_, i32>(0), i32::MIN + 5);
    let statement = client.prepare_typed(sum, &[Type::INT8]).await.expect("a query");
    assert_eq!(types(&statement), [Type::INT8, Type::INT8]);
    let row = client.query_one(&statement, &[&-5_i64]).await.expect("the row");
    assert_eq!(row.get::<_, i64>(0), i64::from(i32::MIN) - 5);
    // NULL has the type of its parameter, too.
    let first =
        client.prepare_typed("SELECT coalesce($1, i32) AS n FROM types WHERE k = 1", &[Type::INT8]).await;
    let row = client.query_one(&first.expect("a query"), &[&None::<i64>]).await.expect("the row");
    assert_eq!(row.get::<_, i64>(0), i64::from(i32::MIN));

    let limited = client.prepare_typed("SELECT k FROM types ORDER BY k LIMIT $1", &[Type::INT4]).await;
    let rows = client.query(&limited.expect("a query"), &[&1_i32]).await.expect("a row");
    assert_eq!(rows.len(), 1);
    // The server still evaluates a condition with an integer.
    let plan = client.prepare_typed("EXPLAIN SELECT k FROM s WHERE k = $1", &[Type::INT4]).await;
    let plan = client.query(&plan.expect("a plan"), &[&1_i32]).await.expect("a plan");
    let lines: Vec<&str> = plan.iter().flat_map(|row| [row.get(0), row.get(1)]).collect();
    assert!(lines.join("\n").contains("columns=[k], filters=[k = Int32(1)]"), "{lines:?}");
}

/// A NUMERIC in the binary form of the protocol.
#[derive(Debug)]
struct BinaryNumeric([u8; 10]);

impl ToSql for BinaryNumeric {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::NUMERIC
    }

    to_sql_checked!();
}

async fn a_number_without_a_point_stays_a_decimal(client: &tokio_postgres::Client) {
    // One group of four digits, without digits after the point.
    let one = BinaryNumeric([0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
    let statement = client.prepare_typed("SELECT $1 AS n", &[Type::NUMERIC]).await.expect("a query");
    assert_eq!(*statement.columns()[0].type_(), Type::NUMERIC);
    let sum = "SELECT CAST($1 + 9223372036854775807 AS VARCHAR) AS text";
    let statement = client.prepare_typed(sum, &[Type::NUMERIC]).await.expect("a query");
    let row = client.query_one(&statement, &[&one]).await.expect("a sum beyond BIGINT");
    assert_eq!(row.get::<_, &str>(0), "9223372036854775808");
    let row = client.query_one(&statement, &[&None::<BinaryNumeric>]).await.expect("a row");
    assert_eq!(row.get::<_, Option<&str>>(0), None);
    let compared = client.prepare("SELECT k FROM types WHERE n > $1").await.expect("a query");
    assert_eq!(compared.params(), [Type::NUMERIC]);
    assert_eq!(client.query_one(&compared, &[&one]).await.expect("a row").get::<_, i64>(0), 1);
    let limited = client.prepare_typed("SELECT k FROM types LIMIT $1", &[Type::NUMERIC]).await;
    let rows = client.query(&limited.expect("a query"), &[&one]).await.expect("a row");
    assert_eq!(rows.len(), 1);
}

async fn errors_have_states(client: &tokio_postgres::Client) {
    let cases = [
        ("SELEC 1", "42601"),
        ("SELECT * FROM nothere", "42P01"),
        ("SELECT nothere FROM types", "42703"),
        ("INSERT INTO types (k) VALUES (1)", "23505"),
        ("CREATE TABLE types (k INT PRIMARY KEY)", "42P07"),
        ("SELECT 1 / 0", "22012"),
        ("INSERT INTO types (k, i8) VALUES (60, 300)", "22003"),
        ("UPDATE types SET i32 = i32 - 1 WHERE k = 1", "22003"),
        ("SELECT CAST(i32 AS TINYINT) FROM types WHERE k = 1", "22003"),
        ("SELECT i32 + i32 FROM types WHERE k = 1", "22003"),
        ("VACUUM types", "0A000"),
        ("COPY types TO '/tmp/never.csv'", "42501"),
        ("SET lock_timeout = 5", "0A000"),
        ("SHOW nothing_known", "42704"),
        ("SELECT $1", "none"),
    ];
    for (sql, state) in cases {
        let result = client.query(sql, &[]).await;
        assert_eq!(code(&result.expect_err(sql)), state, "{sql}");
    }
    assert!(!std::path::Path::new("/tmp/never.csv").exists());
    // Blocks read, and do not write.
    client.batch_execute("BEGIN; SELECT 1").await.expect("a block");
    let error = client.batch_execute("INSERT INTO types (k) VALUES (50)").await.expect_err("a write");
    assert_eq!(code(&error), "25006");
    let error = client.batch_execute("SELECT 1").await.expect_err("a failed block");
    assert_eq!(code(&error), "25P02");
    client.batch_execute("ROLLBACK; SET application_name = 'test'; SELECT 1").await.expect("no block");
    let shown = client.query_one("SHOW transaction_isolation", &[]).await.expect("a setting");
    assert_eq!(shown.get::<_, &str>(0), "read committed");
}

async fn transactions_are_no_more_than_they_say(client: &tokio_postgres::Client) {
    let refused = [
        "BEGIN ISOLATION LEVEL SERIALIZABLE",
        "START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
        "BEGIN IMMEDIATE",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET TRANSACTION READ ONLY",
        "SET TRANSACTION SNAPSHOT '00000003-0000001B-1'",
        "COMMIT AND CHAIN",
        "ROLLBACK AND CHAIN",
    ];
    for sql in refused {
        assert_eq!(code(&client.batch_execute(sql).await.expect_err(sql)), "0A000", "{sql}");
    }
    // Statements of drivers by default, and of those that ask for what there is.
    let accepted = [
        "BEGIN; COMMIT",
        "begin; ROLLBACK",
        "BEGIN TRANSACTION; END",
        "START TRANSACTION; COMMIT AND NO CHAIN",
        "BEGIN READ WRITE; ROLLBACK",
        "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SELECT 1; COMMIT",
        "BEGIN; SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ ONLY; COMMIT",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
    ];
    for sql in accepted {
        client.batch_execute(sql).await.expect(sql);
    }
}

/// A table of CREATE TABLE AS is there with all its rows, or not at all.
async fn a_cancelled_create_leaves_no_table(bed: &Bed, client: &tokio_postgres::Client) {
    let cancel = async {
        while bed.client.open_table("half").await.is_err() {}
        client.cancel_token().cancel_query(NoTls).await.expect("a request");
    };
    let (created, ()) = tokio::join!(client.batch_execute(CREATE_HALF), cancel);
    assert_eq!(code(&created.expect_err("the statement was cancelled")), "57014");
    until_dropped(bed, "half").await;
}

async fn a_server_that_stops_leaves_no_half_filled_table(bed: &Bed) {
    let program = bed.start_program(ServeConfig::default()).await;
    let client = connect(&config(&program.server)).await.expect("a client");
    let created = program.end_during(bed, client.batch_execute(CREATE_HALF)).await;
    assert_eq!(code(&created.expect_err("the server stops")), "57P01", "the client knows why");
}

async fn until_dropped(bed: &Bed, table: &str) {
    for _ in 0..LOOKS_MAX {
        if bed.client.open_table(table).await.is_err() {
            return;
        }
    }
    panic!("table {table} is still there");
}

/// Returns a message of the protocol.
fn message(ty: u8, body: &[u8]) -> Vec<u8> {
    [&[ty][..], &(4 + body.len() as u32).to_be_bytes(), body].concat()
}

/// Sends a request, and returns the kinds of the messages until the server is ready for another.
async fn kinds_of_reply(socket: &mut TcpStream, request: &[u8]) -> String {
    socket.write_all(request).await.expect("an open connection");
    let mut kinds = String::new();
    while !kinds.ends_with('Z') {
        let kind = socket.read_u8().await.expect("a reply");
        let len = socket.read_u32().await.expect("a reply");
        let mut body = vec![0; len as usize - 4];
        socket.read_exact(&mut body).await.expect("a reply");
        kinds.push(char::from(kind));
    }
    kinds
}

async fn a_portal_runs_its_statement_once(server: &SqlServer, client: &tokio_postgres::Client) {
    let mut socket = TcpStream::connect(server.address()).await.expect("a server");
    let startup = [&[0_u8, 3, 0, 0][..], b"user\0ann\0database\0nyala\0\0"].concat();
    let startup = [&(4 + startup.len() as u32).to_be_bytes()[..], &startup].concat();
    assert!(kinds_of_reply(&mut socket, &startup).await.starts_with('R'), "the client is let in");
    let prepared = |sql: &str| {
        let parse = message(b'P', format!("\0{sql}\0\0\0").as_bytes());
        [parse, message(b'B', &[0; 8])].concat()
    };
    let execute = |rows_max: i32| message(b'E', &[&[0_u8][..], &rows_max.to_be_bytes()].concat());
    let sync = message(b'S', b"");

    let update = prepared("UPDATE s SET v = v + 1 WHERE k = 1");
    let request = [update, execute(1), execute(1), execute(0), sync.clone()].concat();
    assert_eq!(kinds_of_reply(&mut socket, &request).await, "12CCCZ");
    let row = client.query_one("SELECT v FROM s WHERE k = 1", &[]).await.expect("the row");
    assert_eq!(row.get::<_, i32>(0), 1, "the second and third time it has ended");

    // Limits of which no memory is reserved, and one that is none.
    for rows_max in [i32::MAX, i32::MIN] {
        let request = [prepared("SELECT k FROM types"), execute(rows_max), sync.clone()].concat();
        assert_eq!(kinds_of_reply(&mut socket, &request).await, "12DDCZ");
    }
    let parts = [execute(1), execute(1), execute(1), execute(1), sync].concat();
    let request = [prepared("SELECT k FROM types"), parts].concat();
    assert_eq!(kinds_of_reply(&mut socket, &request).await, "12DsDsCCZ");
}

async fn portals_return_rows_in_parts(mut client: tokio_postgres::Client) {
    let transaction = client.transaction().await.expect("a block");
    let portal = transaction.bind("SELECT k FROM types ORDER BY k", &[]).await.expect("a portal");
    let first = transaction.query_portal(&portal, 1).await.expect("a row");
    let second = transaction.query_portal(&portal, 5).await.expect("the rest");
    assert_eq!((first[0].get::<_, i64>(0), second.len()), (1, 1));
    transaction.commit().await.expect("the end of a block");
}

async fn scans_are_cancelled_on_the_servers(bed: &Bed) {
    let server = bed.serve(ServeConfig::default()).await;
    let client = connect(&config(&server)).await.expect("a client");
    bed.fill_big().await;

    // A reader that stops after the first row leaves the scanners open: the rest waits for it.
    let rows = client.query_raw("SELECT k, pad FROM big", Vec::<i64>::new()).await.expect("rows");
    pin_mut!(rows);
    rows.next().await.expect("a row").expect("a row");
    assert!(
        open_scanners(bed).await > 0,
        "the scan is complete before its rows are read; make the table bigger"
    );
    client.cancel_token().cancel_query(NoTls).await.expect("a request");
    let mut last = None;
    while let Some(row) = rows.next().await {
        last = row.err();
    }
    assert_eq!(code(&last.expect("the scan was cancelled")), "57014");
    until(bed, "a cancelled scan is closed", |open| open == 0).await;
    // The connection is usable, and a late cancel request has nothing to cancel.
    cancel_and_wait(&server, &client).await;
    client.batch_execute("SELECT 1").await.expect("an answer");
    a_cancelled_create_leaves_no_table(bed, &client).await;

    // A connection that ends takes its scanners with it. The library's own close would read the rest first.
    let (leaving, connection) = config(&server).connect(NoTls).await.expect("a client");
    let connection = tokio::spawn(connection);
    let rows = leaving.query_raw("SELECT k, pad FROM big", Vec::<i64>::new()).await.expect("rows");
    let mut rows = Box::pin(rows);
    rows.next().await.expect("a row").expect("a row");
    assert!(open_scanners(bed).await > 0, "the scan is complete before its rows are read");
    connection.abort();
    until(bed, "the scan of a client that left is closed", |open| open == 0).await;
    // The other one was idle.
    until(bed, "only one connection is left", |_| server.connections() == 1).await;
    drop(client);
    until(bed, "the connection is closed", |_| server.connections() == 0).await;
    server.stop().await;
}

async fn limits_and_passwords_hold(bed: &Bed) {
    let env = bed.client.env();
    let open = ServeConfig { listen: ([0, 0, 0, 0], 0).into(), ..ServeConfig::default() };
    let refused =
        SqlServer::start(ClusterAccess::OneUser(bed.client.clone()), open).await.err().expect("no passwords");
    assert!(refused.to_string().starts_with("--listen 0.0.0.0:0: other hosts could connect"), "{refused}");

    let passwords = Passwords::parse(env, "ann:secret\n").expect("a good file");
    let limited = ServeConfig {
        connections_max: 1,
        message_bytes_max: 10_000,
        passwords: Some(Arc::new(passwords)),
        ..ServeConfig::default()
    };
    let server = bed.serve(limited).await;
    for password in ["", "wrong"] {
        let error = connect(config(&server).password(password)).await.expect_err("a wrong password");
        assert_eq!(code(&error), "28P01");
        until(bed, "the connection is closed", |_| server.connections() == 0).await;
    }
    let error = connect(config(&server).user("eve").password("secret")).await.expect_err("no such user");
    assert_eq!(code(&error), "28P01");
    until(bed, "the connection is closed", |_| server.connections() == 0).await;

    let client = connect(config(&server).password("secret")).await.expect("the right password");
    let error = connect(config(&server).password("secret")).await.expect_err("a second client");
    assert_eq!(code(&error), "53300");
    client.batch_execute("SELECT 1").await.expect("an answer");
    let long = format!("SELECT '{}'", "x".repeat(10_000));
    client.batch_execute(&long).await.expect_err("a message that is too long");
    until(bed, "the connection is closed", |_| server.connections() == 0).await;
    connect(config(&server).password("secret")).await.expect("a free place");
    server.stop().await;
}

async fn silent_connections_lock_no_client_out(bed: &Bed) {
    let server = bed.serve(ServeConfig { connections_max: 2, ..ServeConfig::default() }).await;
    let early = connect(&config(&server)).await.expect("a client");
    let silent = flood(server.address(), b"").await;
    let late = connect(&config(&server)).await.expect("a client");
    let more = flood(server.address(), b"").await;
    for client in [&early, &late] {
        client.batch_execute("SELECT 1").await.expect("clients that were let in stay");
    }
    let error = connect(&config(&server)).await.expect_err("a third client");
    assert_eq!(code(&error), "53300");
    drop((early, late, silent, more));
    until(bed, "the connections are closed", |_| server.connections() == 0).await;
    server.stop().await;
}

async fn servers_aggregate_unless_switched_off(bed: &Bed) {
    for (server_aggregation, node) in [(true, "TabletAggregateExec"), (false, "TabletScanExec")] {
        let server = bed.serve(ServeConfig { server_aggregation, ..ServeConfig::default() }).await;
        let client = connect(&config(&server)).await.expect("a client");
        let plan = client.query("EXPLAIN SELECT COUNT(*) FROM types", &[]).await.expect("a plan");
        let lines: Vec<&str> = plan.iter().flat_map(|row| [row.get(0), row.get(1)]).collect();
        assert!(lines.join("\n").contains(node), "{node} is not in {lines:?}");
        server.stop().await;
    }
}

async fn a_statement_beyond_the_memory_fails_alone(bed: &Bed) {
    let server = bed.serve(ServeConfig { memory_bytes_max: Some(1 << 20), ..ServeConfig::default() }).await;
    let client = connect(&config(&server)).await.expect("a client");
    let sort = "WITH r(v) AS (VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9), (10)) \
                SELECT a.v * b.v AS value FROM r AS a, r AS b, r AS c, r AS d, r AS e, r AS f ORDER BY value";
    let error = client.simple_query(sort).await.expect_err("8 MB of rows to sort in 1 MiB");
    assert_eq!(code(&error), "53200");
    client.simple_query("SELECT 1").await.expect("an answer");
    server.stop().await;
}

async fn prepared_statements_have_limits(bed: &Bed) {
    let server = bed.serve(ServeConfig { message_bytes_max: 10_000, ..ServeConfig::default() }).await;
    let client = connect(&config(&server)).await.expect("a client");
    let long = format!("SELECT '{}' AS text", "x".repeat(9_000));
    let mut statements = Vec::new();
    for _ in 0..4 {
        statements.push(client.prepare(&long).await.expect("36,000 bytes together"));
    }
    let error = client.prepare(&long).await.expect_err("more than four messages");
    assert_eq!(code(&error), "53000");
    let other = connect(&config(&server)).await.expect("a client");
    other.prepare(&long).await.expect("the limit is that of a connection");
    statements.pop();
    statements.push(client.prepare(&long).await.expect("one is closed"));
    client.prepare(&long).await.expect_err("more than four messages");
    client.batch_execute("DISCARD ALL").await.expect("an answer");
    client.prepare(&long).await.expect("all are closed");
    let empty = client.prepare("").await.expect("no statement");
    assert_eq!(client.execute(&empty, &[]).await.expect("nothing runs"), 0);
    server.stop().await;
}
