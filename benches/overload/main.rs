//! More writes than a server can take: YCSB's rows, and the server's behaviour over time.
//!
//! ```text
//! clients ── rows of 1 KB ──▶ 1 master, 1 tablet server of this process, little memory, a real disk
//!                                 │ sampled twice a second
//!                                 ▼
//!    report folder: throughput, latency, memory, rejections, bytes written, lookups per row, each as SVG; and a page
//! ```
//!
//! Run with `cargo ci overload`. After two thirds of the time the memory budget shrinks by a third. The run fails if
//! tracked memory passes the limit for another reason, or if writes stall.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the server is looked at from outside, by a clock of the outside"
)]

mod load;
mod report;
mod sampler;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use benches::cluster;
use engine::error::Result;
use nyala_client::{Client, ClientConfig, CreateTable};
use nyala_common::env::MemoryBudget;
use nyala_common::env::os::{OsEnv, OsOptions};

use load::Load;
use sampler::{OverloadSample, OverloadSampler};

/// Flags as in the YCSB study: acknowledged once in the log, synced by the operating system.
const SETTINGS: &[(&str, &str)] = &[("log_sync", "false")];

/// Options of the run.
pub struct Options {
    pub seconds: u64,
    pub memory_mib: u64,
    pub clients: usize,
    /// Rows of one write.
    pub batch: usize,
    pub out: PathBuf,
}

/// Memory budget of the server, which this program sets.
struct Budget(AtomicU64);

impl MemoryBudget for Budget {
    fn limit_bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn options() -> Options {
    let mut options =
        Options { seconds: 60, memory_mib: 192, clients: 16, batch: 20, out: "target/overload".into() };
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_else(|| panic!("{word} wants a value"));
        let number = || value.parse().unwrap_or_else(|_| panic!("{word} wants a number, not {value}"));
        match word.as_str() {
            "--seconds" => options.seconds = number(),
            "--memory-mib" => options.memory_mib = number(),
            "--clients" => options.clients = number() as usize,
            "--batch" => options.batch = number() as usize,
            "--out" => options.out = value.clone().into(),
            _ => panic!("{word} is not known: --seconds, --memory-mib, --clients, --batch, --out"),
        }
    }
    options
}

fn main() {
    let options = options();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let samples = runtime.block_on(run(&options)).expect("the servers serve");
    report::report(&options, &samples).expect("the report can be written");
    let failures = check_samples(&options, &samples);
    failures.iter().for_each(|failure| println!("FAILED: {failure}"));
    std::process::exit(i32::from(!failures.is_empty()));
}

async fn run(options: &Options) -> Result<Vec<OverloadSample>> {
    let place = tempfile::tempdir_in("target").or_else(|_| tempfile::tempdir()).expect("a folder");
    let budget = Arc::new(Budget(AtomicU64::new(options.memory_mib << 20)));
    let mut env = OsEnv::new(&OsOptions::default()).expect("there is entropy");
    env.memory = budget.clone();
    let mut cluster = cluster::start(&env, place.path().to_str().expect("a plain path"), SETTINGS).await?;
    let client = Client::connect(env.clone(), ClientConfig::new(cluster.master_addresses())).await?;
    let create = CreateTable::new("usertable", benches::ycsb::schema()).hash(&["key"], 4)?;
    let table = client.create_table(&create).await?;
    let load = Load::start(&table, options.clients, options.batch);
    let web = cluster.tablet_servers()[0].web_addr().expect("it has a web port");
    let mut looker = OverloadSampler::new(web, load.counts());
    let mut samples = Vec::new();
    let looks = options.seconds * 1000 / sampler::EVERY.as_millis() as u64;
    for number in 0..looks {
        if number == looks * 2 / 3 {
            budget.0.store((options.memory_mib << 20) / 3 * 2, Ordering::Relaxed);
        }
        env.sleep(sampler::EVERY).await;
        samples.push(looker.look(budget.limit_bytes()));
    }
    load.stop(&env).await;
    cluster.shutdown().await;
    Ok(samples)
}

/// Time allowed for the first rows, and for releasing memory after the budget shrank.
const GRACE: Duration = Duration::from_secs(2);
/// Longest time without any row.
const STANDSTILL: Duration = Duration::from_secs(2);

/// Returns the failures; none if overload degrades smoothly.
fn check_samples(options: &Options, samples: &[OverloadSample]) -> Vec<String> {
    let mut failures = Vec::new();
    let (mut idle, mut longest) = (Duration::ZERO, Duration::ZERO);
    for sample in samples.iter().filter(|sample| sample.at > GRACE) {
        idle = if sample.rows == 0 { idle + sampler::EVERY } else { Duration::ZERO };
        longest = longest.max(idle);
    }
    println!("longest time without a row: {} ms", longest.as_millis());
    if longest > STANDSTILL {
        failures.push(format!("no row was written for {} ms", longest.as_millis()));
    }
    let full = options.memory_mib << 20;
    if let Some(over) = samples.iter().find(|sample| sample.tracked > full.min(sample.most)) {
        failures
            .push(format!("{} bytes were tracked at {:?}, more than {}", over.tracked, over.at, over.most));
    }
    failures
}
