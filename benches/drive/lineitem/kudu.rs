//! The steps over Kudu's wire protocol, with one client for nyala and real Kudu.

use std::time::Instant;

use benches::lineitem::Q1;
use engine::error::{Error, Result};
use engine::schema::row_ops::RowOpKind;
use futures_util::future::join_all;
use node::cli::lineitem::{TablePart, schema};
use node::cli::queries;
use nyala_client::{Client, ClientConfig, CreateTable, FlushMode, ScanSpec, SessionConfig, Table};
use nyala_common::env::os::{OsEnv, OsOptions};

use super::{BLOCK_ROWS, Began, Did, LOOKUPS, Options, PARTS, Step, expect, some_keys, truth};

const TABLE: &str = "lineitem";

pub(super) async fn step(options: &Options) -> Result<Did> {
    let env = OsEnv::new(&OsOptions::default()).map_err(|error| Error::io("look at this machine", &error))?;
    let masters: Vec<String> = options.at.split(',').map(str::to_string).collect();
    let client = Client::connect(env, ClientConfig::new(masters)).await?;
    if let Step::Load = options.step {
        return load(&client, options.scale).await;
    }
    let (table, truth) = (client.open_table(TABLE).await?, truth(options.scale)?);
    let began = Began::now();
    match options.step {
        Step::Load => unreachable!("it was done without looking at the truth"),
        Step::Count => {
            let rows = queries::count(&table).await?.value;
            expect("count", rows, truth.rows)?;
            Ok(began.step_result(rows))
        }
        Step::Scan => {
            let rows = scan(&table).await?;
            expect("scan", rows, truth.rows)?;
            Ok(began.step_result(rows))
        }
        Step::Select => {
            let forecast = queries::forecast(&table).await?.value;
            let done = began.step_result(truth.rows);
            expect("select", forecast.rows, truth.forecast.rows)?;
            if forecast != truth.forecast { Err(Error::corrupt("the revenue is wrong")) } else { Ok(done) }
        }
        Step::Find => {
            let mut times = Vec::new();
            for (order, line) in some_keys(&truth) {
                let began = Instant::now();
                let spec = ScanSpec { predicates: table.key_equals(&[order, line]), ..ScanSpec::default() };
                expect("find", read(&table, spec).await?, 1)?;
                times.push(began.elapsed());
            }
            Ok(began.found(LOOKUPS as u64, times))
        }
    }
}

async fn load(client: &Client, scale: f64) -> Result<Did> {
    let mut create = CreateTable::new(TABLE, schema()?).hash(&["l_orderkey"], PARTS as u32)?;
    create.replicas = Some(1);
    let table = client.create_table(&create).await?;
    let began = Began::now();
    let parts = (1..=PARTS).map(|part| {
        let table = table.clone();
        tokio::spawn(async move { load_part(&table, TablePart::new(scale, part, PARTS)?).await })
    });
    let mut rows = 0;
    for part in join_all(parts).await {
        rows += part.expect("a loader does not panic")?;
    }
    Ok(began.step_result(rows))
}

async fn load_part(table: &Table, mut part: TablePart) -> Result<u64> {
    let session = table.client().session(SessionConfig::new(FlushMode::AutoBackground));
    while let Some(block) = part.next(BLOCK_ROWS) {
        let rows = block.iter().flatten().next().map_or(0, |column| column.len()) as u64;
        let tags: Vec<u64> = (part.truth.rows - rows..part.truth.rows).collect();
        session.apply_columns(table, RowOpKind::Insert, &block, &tags).await?;
    }
    match session.flush().await.pop() {
        Some(failure) => Err(failure.error),
        None => Ok(part.truth.rows),
    }
}

/// Reads Q1's columns of all rows with one task per tablet; returns the number of rows.
async fn scan(table: &Table) -> Result<u64> {
    let spec =
        ScanSpec { columns: Some(Q1.iter().map(|name| name.to_string()).collect()), ..ScanSpec::default() };
    let tokens = table.scan_tokens(&spec).await?;
    let parts = tokens.into_iter().map(|token| {
        let table = table.clone();
        tokio::spawn(async move {
            let (mut scanner, mut rows) = (table.scan_token(&token)?, 0);
            while let Some(batch) = scanner.next_batch().await? {
                rows += std::hint::black_box(batch).num_rows() as u64;
            }
            Ok::<u64, Error>(rows)
        })
    });
    let mut rows = 0;
    for part in join_all(parts).await {
        rows += part.expect("a scan does not panic")?;
    }
    Ok(rows)
}

async fn read(table: &Table, spec: ScanSpec) -> Result<u64> {
    let (mut scanner, mut rows) = (table.scan(spec)?, 0);
    while let Some(batch) = scanner.next_batch().await? {
        rows += std::hint::black_box(batch).num_rows() as u64;
    }
    Ok(rows)
}
