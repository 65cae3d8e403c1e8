//! `nyala demo`: starts a cluster, loads TPC-H lineitem over the wire, runs queries and checks their results against
//! the loaded data.

use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use engine::error::{Error, ErrorKind, Result};
use engine::schema::row_ops::RowOpKind;
use engine::time::Instant;
use futures_util::future::join_all;

use super::exit::{ExitError, until_interrupted};
use super::lineitem::{self, ExpectedTotals, TablePart};
use super::options::{option, text};
use super::output::{ProgressUnit, print, progress, table as text_table};
use super::queries::{self, PricingSummary, in_task};
use crate::server::cluster::{Cluster, ClusterConfig};
use crate::server::flags::Flags;
use nyala_client::definitions;
use nyala_client::{Client, ClientConfig, CreateTable, FlushMode, ScanSpec, SessionConfig, Table};
use nyala_common::env::{BoxFuture, Env};
use nyala_common::number_text::{bytes, grouped};

const TABLE: &str = "lineitem";
/// Comment by which a later demo recognizes the table.
const COMMENT: &str = "TPC-H, created by nyala demo";
/// Rows generated and applied at once.
const BLOCK_ROWS: usize = 4096;
/// Tasks that generate and load.
const LOADERS: i32 = 2;
const BUCKETS: u32 = 4;
/// Permissions that files of the demo's servers do not get: the default of the flag `umask`.
pub(super) const UMASK: u32 = 0o077;
const LOOKUPS: usize = 1000;

pub struct Demo {
    scale: f64,
    dir: String,
    tablet_servers: usize,
    masters: Option<Vec<String>>,
    keep: bool,
    log_sync: bool,
}

pub(super) fn command() -> Command {
    Command::new("demo")
        .about("Start a cluster, load TPC-H data, run queries, print timings")
        .arg(
            option("scale", "FACTOR", "TPC-H scale factor; 1 is 6 million rows")
                .default_value("0.1")
                .value_parser(value_parser!(f64)),
        )
        .arg(option("dir", "DIR", "Directory of the cluster's data").default_value("nyala-demo"))
        .arg(
            option("tablet-servers", "N", "Number of tablet servers")
                .default_value("3")
                .value_parser(value_parser!(u64).range(1..=50)),
        )
        .arg(option(
            "masters",
            "HOST:PORT,...",
            "Use this running cluster instead of starting one; it must not have a table lineitem",
        ))
        .arg(Arg::new("keep").long("keep").action(ArgAction::SetTrue).help("Keep the table at the end"))
        .arg(
            option("log-sync", "BOOL", "Sync writes to disk before they are acknowledged")
                .default_value("true")
                .value_parser(value_parser!(bool)),
        )
}

/// Returns the demo in `matches` of [`command`].
pub(super) fn parse(matches: &ArgMatches) -> Demo {
    Demo {
        scale: *matches.get_one("scale").expect("it has a default"),
        dir: text(matches, "dir").expect("it has a default").to_string(),
        tablet_servers: *matches.get_one::<u64>("tablet-servers").expect("it has a default") as usize,
        masters: text(matches, "masters").map(definitions::names),
        keep: matches.get_flag("keep"),
        log_sync: *matches.get_one("log-sync").expect("it has a default"),
    }
}

/// A finished step: name, rows, seconds, bytes, remarks.
struct DemoStep {
    name: &'static str,
    rows: u64,
    time: Duration,
    bytes: u64,
    remark: String,
}

impl Demo {
    pub async fn run(self, env: &Env, mut stop: BoxFuture<'static, ()>) -> Result<(), ExitError> {
        if !(self.scale > 0.0 && self.scale <= 1000.0) {
            return Err(ExitError::usage(Error::invalid("--scale: must be above 0 and at most 1000")));
        }
        let mut cluster = None;
        let masters = match &self.masters {
            Some(masters) => masters.clone(),
            None => {
                let Some(started) = self.start(env, &mut stop).await? else { return interrupted().await };
                let addresses = started.master_addresses();
                print(&format!(
                    "cluster: {} tablet servers, master at {}\n",
                    self.tablet_servers, addresses[0]
                ));
                cluster = Some(started);
                addresses
            }
        };
        let done = until_interrupted(stop, async { Ok(self.play(env, masters).await?) }).await;
        if let Some(cluster) = &mut cluster {
            cluster.shutdown().await;
        }
        done
    }

    /// Starts a cluster. Returns `None` if `stop` is ready first.
    async fn start(
        &self,
        env: &Env,
        stop: &mut BoxFuture<'static, ()>,
    ) -> Result<Option<Cluster>, ExitError> {
        let flags = Flags::new();
        flags.set("log_sync", if self.log_sync { "true" } else { "false" })?;
        let config = ClusterConfig::on_loopback(self.dir.clone(), self.tablet_servers, flags);
        Cluster::start_unless(env, &config, stop).await.map_err(ExitError::start)
    }

    async fn play(&self, env: &Env, masters: Vec<String>) -> Result<()> {
        let client = Client::connect(env.clone(), ClientConfig::new(masters)).await?;
        self.wait_for_servers(&client).await?;
        let table = self.create(&client).await?;
        let mut steps = Vec::new();
        let (load, truth) = self.load(&table).await?;
        steps.push(load);
        let pricing = query(&table, &truth, &mut steps).await?;
        steps.push(look_up(&table, &truth).await?);
        print(&report(&steps));
        print(&format!("\nQ1, pricing summary\n{}", show(&pricing)));
        // Another user may have dropped the table, and created one of the same name.
        if !self.keep && client.open_table(TABLE).await?.id() == table.id() {
            client.delete_table(TABLE).await?;
        }
        Ok(())
    }

    /// Creates the table. One of this name that exists is replaced only if an earlier demo left it in the demo's own
    /// cluster; fails with `AlreadyPresent` otherwise.
    async fn create(&self, client: &Client) -> Result<Table> {
        let mut create = CreateTable::new(TABLE, lineitem::schema()?).hash(&["l_orderkey"], BUCKETS)?;
        create.comment = Some(COMMENT.to_string());
        match client.create_table(&create).await {
            Err(error) if error.kind == ErrorKind::AlreadyPresent => {}
            done => return done,
        }
        let is_ours = self.masters.is_none() && client.open_table(TABLE).await?.comment() == COMMENT;
        if !is_ours {
            return Err(Error::already_present(format!(
                "table {TABLE} exists, and its rows may be needed; rename it (nyala table rename) or drop it (nyala \
                 table drop) first"
            )));
        }
        client.delete_table(TABLE).await?;
        client.create_table(&create).await
    }

    /// Waits for the tablet servers of a new cluster to register with its master.
    async fn wait_for_servers(&self, client: &Client) -> Result<()> {
        if self.masters.is_some() {
            return Ok(());
        }
        let deadline = client.env().now().mono.after(client.config().operation_timeout);
        let mut backoff = nyala_client::backoff::Backoff::new(deadline);
        loop {
            let known = client.tablet_servers().await?;
            if known >= self.tablet_servers {
                return Ok(());
            }
            let waiting = Error::not_ready(format!("{known} of {} have reported", self.tablet_servers));
            backoff.failed(client.env(), "waiting for the tablet servers", waiting).await?;
        }
    }

    async fn load(&self, table: &Table) -> Result<(DemoStep, ExpectedTotals)> {
        let env = table.client().env().clone();
        let began = env.now().mono;
        // An order has four lines on average.
        let bar = progress((self.scale * 6_000_000.0) as u64, ProgressUnit::Rows);
        let loaders = (1..=LOADERS).map(|part| {
            let (table, bar, scale) = (table.clone(), bar.clone(), self.scale);
            in_task(env.clone(), async move {
                load_part(&table, TablePart::new(scale, part, LOADERS)?, bar).await
            })
        });
        let mut truth = ExpectedTotals::default();
        for part in join_all(loaders).await {
            truth.merge(part?);
        }
        bar.finish_and_clear();
        let step = step(&env, "load", truth.rows, began, truth.bytes, String::new());
        Ok((step, truth))
    }
}

/// Ends as a command does whose work a signal interrupts.
async fn interrupted() -> Result<(), ExitError> {
    until_interrupted(Box::pin(std::future::ready(())), std::future::pending()).await
}

async fn load_part(
    table: &Table,
    mut part: TablePart,
    bar: indicatif::ProgressBar,
) -> Result<ExpectedTotals> {
    let env = table.client().env().clone();
    let session = table.client().session(SessionConfig::new(FlushMode::AutoBackground));
    while let Some(block) = env.run(|| part.next(BLOCK_ROWS)).await {
        let rows = block.iter().flatten().next().map_or(0, |column| column.len());
        let tags: Vec<u64> = (part.truth.rows - rows as u64..part.truth.rows).collect();
        session.apply_columns(table, RowOpKind::Insert, &block, &tags).await?;
        bar.inc(rows as u64);
        if let Some(failure) = session.take_failures().pop() {
            return Err(failure.error.context(format!("loading row {}", failure.tag)));
        }
    }
    match session.flush().await.pop() {
        Some(failure) => Err(failure.error.context(format!("loading row {}", failure.tag))),
        None => Ok(part.truth),
    }
}

fn step(env: &Env, name: &'static str, rows: u64, began: Instant, bytes: u64, remark: String) -> DemoStep {
    DemoStep { name, rows, time: env.now().mono.since(began), bytes, remark }
}

/// Runs the queries; returns an error if a result differs from the loaded data.
async fn query(table: &Table, truth: &ExpectedTotals, steps: &mut Vec<DemoStep>) -> Result<PricingSummary> {
    let env = table.client().env();
    let wrong = |what: &str, got: String, want: String| {
        Error::corrupt(format!("{what}: the result {got} differs from the loaded rows' {want}"))
    };
    let began = env.now().mono;
    let count = queries::count(table).await?;
    if count.value != truth.rows {
        return Err(wrong("count", count.value.to_string(), truth.rows.to_string()));
    }
    steps.push(step(env, "count(*)", count.rows, began, count.bytes, String::new()));
    let began = env.now().mono;
    let pricing = queries::pricing(table).await?;
    if pricing.value != truth.pricing {
        return Err(wrong("Q1", show(&pricing.value), show(&truth.pricing)));
    }
    steps.push(step(env, "Q1 pricing summary", pricing.rows, began, pricing.bytes, "as loaded".to_string()));
    let began = env.now().mono;
    let forecast = queries::forecast(table).await?;
    if forecast.value != truth.forecast {
        return Err(wrong("Q6", format!("{:?}", forecast.value), format!("{:?}", truth.forecast)));
    }
    let revenue = format!("as loaded; revenue {}", money(forecast.value.revenue, 4));
    steps.push(step(env, "Q6 revenue forecast", forecast.rows, began, forecast.bytes, revenue));
    Ok(pricing.value)
}

/// Reads single rows by key, one after the other.
async fn look_up(table: &Table, truth: &ExpectedTotals) -> Result<DemoStep> {
    let env = table.client().env();
    let began = env.now().mono;
    let (mut size, mut times) = (0, Vec::with_capacity(LOOKUPS));
    for _ in 0..LOOKUPS {
        let at = (env.rng.next_u64() % truth.keys.len().max(1) as u64) as usize;
        let Some((order, line)) = truth.keys.get(at) else { break };
        let from = env.now().mono;
        let spec = ScanSpec { predicates: table.key_equals(&[order, line]), ..ScanSpec::default() };
        let mut scanner = table.scan(spec)?;
        let mut rows = 0;
        while let Some(batch) = scanner.next_batch().await? {
            rows += batch.num_rows();
        }
        if rows != 1 {
            let order = i64::from_le_bytes(*order);
            return Err(Error::corrupt(format!("looking up a line of order {order} gave {rows} rows")));
        }
        size += scanner.bytes();
        times.push(env.now().mono.since(from));
    }
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default().as_micros();
    let remark = format!("one by one: median {} us, 99 of 100 within {} us", at(50), at(99));
    Ok(step(env, "key lookups", times.len() as u64, began, size, remark))
}

fn report(steps: &[DemoStep]) -> String {
    let row = |step: &DemoStep| {
        let seconds = step.time.as_secs_f64();
        let rate = grouped((step.rows as f64 / seconds.max(1e-9)) as u64);
        let (rows, size) = (grouped(step.rows), bytes(step.bytes));
        vec![step.name.to_string(), rows, format!("{seconds:.3}"), rate, size, step.remark.clone()]
    };
    let header = ["step", "rows>", "seconds>", "rows/s>", "bytes>", ""];
    format!("\n{}", text_table(&header, steps.iter().map(row)))
}

/// Formats a sum with `scale` decimal places, rounded to the cent.
fn money(value: i128, scale: u32) -> String {
    let cents = value / 10i128.pow(scale - 2);
    format!("{}.{:02}", cents / 100, cents % 100)
}

fn show(pricing: &PricingSummary) -> String {
    let row = |((flag, status), group): (&(String, String), &queries::PricingGroup)| {
        let average = |sum: i128| money(sum / i128::from(group.rows.max(1)), 2);
        vec![
            flag.clone(),
            status.clone(),
            money(group.quantity, 2),
            money(group.price, 2),
            money(group.discounted, 4),
            money(group.charge, 6),
            average(group.quantity),
            average(group.price),
            average(group.discount),
            grouped(group.rows),
        ]
    };
    let header = [
        "flag",
        "status",
        "quantity>",
        "price>",
        "discounted>",
        "charge>",
        "avg qty>",
        "avg price>",
        "avg disc>",
        "rows>",
    ];
    text_table(&header, pricing.groups.iter().map(row))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use engine::disk::Disk;
    use nyala_common::env::mem_net;
    use nyala_common::env::testing::{MemDisks, SteadyClock};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_demo_that_is_interrupted_starts_no_further_server() {
        let (env, disks) = (mem_net::env(), MemDisks::default());
        let clock = Arc::new(SteadyClock(env.clock.clone()));
        let env = Env { disks: Arc::new(disks.clone()), clock, ..env };
        let arguments = ["demo", "--dir", "demo", "--tablet-servers", "1"];
        let demo = parse(&command().try_get_matches_from(arguments).expect("valid arguments"));
        let ended = demo.run(&env, Box::pin(std::future::ready(()))).await.expect_err("interrupted");
        assert_eq!((ended.code, ended.message.as_str()), (130, "interrupted"));
        let is_empty = |dir: &str| disks.disk(dir).list("").expect("the root").is_empty();
        assert!(!is_empty("demo/master-1/wal"), "the start of a server is not dropped halfway");
        assert!(is_empty("demo/tserver-1/wal"));
    }
}
