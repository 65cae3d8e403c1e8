//! Statements end at their limit of time, and with them their scanners.

use std::time::Duration;

use arrow_flight::FlightInfo;
use arrow_flight::error::FlightError;
use datafusion::arrow::array::RecordBatch;
use futures_util::TryStreamExt;
use nyala_sql::serve::ServeConfig;
use tokio_postgres::SimpleQueryMessage;

use super::bed::{Bed, block_on, until};
use super::{flight, postgres};

/// Reads more rows than a limit of one millisecond permits.
const LONG: &str = "SELECT k, pad FROM big";

#[test]
fn statements_end_at_their_limit_of_time() {
    block_on(async {
        let bed = Bed::start().await;
        bed.fill_big().await;
        a_client_sets_its_limit(&bed).await;
        a_startup_message_sets_a_limit(&bed).await;
        a_server_has_a_limit(&bed).await;
        bed.stop().await;
    });
}

async fn a_client_sets_its_limit(bed: &Bed) {
    let server = bed.serve(ServeConfig::default()).await;
    let client = postgres::connect(&postgres::config(&server)).await.expect("a client");
    client.batch_execute("SET statement_timeout = '1ms'").await.expect("a setting");
    for _ in 0..2 {
        let ended = client.batch_execute(LONG).await.expect_err("more than the limit");
        assert_eq!(postgres::code(&ended), "57014", "{ended}");
        until(bed, "the scan of a statement that took too long is closed", |open| open == 0).await;
    }
    client.batch_execute("RESET statement_timeout").await.expect("no limit");
    client.batch_execute("SELECT count(*) FROM big").await.expect("an answer");
    let refused = client.batch_execute("SET statement_timeout = -1").await.expect_err("a negative time");
    assert_eq!(postgres::code(&refused), "22023", "{refused}");
    server.stop().await;
}

async fn a_startup_message_sets_a_limit(bed: &Bed) {
    let server = bed.serve(ServeConfig::default()).await;
    let mut config = postgres::config(&server);
    let client = postgres::connect(config.options("-c statement_timeout=1")).await.expect("a client");
    let ended = client.batch_execute(LONG).await.expect_err("more than the limit");
    assert_eq!(postgres::code(&ended), "57014", "{ended}");
    let refused = postgres::connect(config.options("-c geqo=off")).await.expect_err("an unknown setting");
    assert_eq!(postgres::code(&refused), "0A000", "{refused}");
    server.stop().await;
}

async fn a_server_has_a_limit(bed: &Bed) {
    let limit = Some(Duration::from_millis(1));
    let server = bed.serve(ServeConfig { statement_timeout: limit, ..flight::flight_config() }).await;
    let client = postgres::connect(&postgres::config(&server)).await.expect("a client");
    let shown = client.simple_query("SHOW statement_timeout").await.expect("a setting");
    let row = shown.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    assert_eq!(row, Some("1ms"));
    client.batch_execute("SET statement_timeout = 0; SELECT count(*) FROM big").await.expect("no limit");

    let mut client = flight::connect(&server).await;
    // Each call has a limit, also the one that only describes the result.
    let ended = match client.execute(LONG.to_string(), None).await {
        Ok(info) => read(&mut client, info).await.map_err(flight::message),
        Err(error) => Err(flight::message(error)),
    };
    let ended = ended.expect_err("more than the limit");
    assert!(ended.contains("(statement_timeout) (SQLSTATE 57014)"), "{ended}");
    until(bed, "the scan of a statement that took too long is closed", |open| open == 0).await;
    server.stop().await;
}

/// Returns the number of rows of a result.
async fn read(client: &mut flight::FlightClient, info: FlightInfo) -> Result<usize, FlightError> {
    let batches: Vec<RecordBatch> = flight::fetch(client, info).await?.try_collect().await?;
    Ok(batches.iter().map(RecordBatch::num_rows).sum())
}
