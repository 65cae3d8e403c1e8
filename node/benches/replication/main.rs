//! Replication between real processes: time without a leader, latency of writes while a disk stalls ([`stall`]), and
//! the cost of idle tablets.
//!
//! Run with `cargo bench -p node --bench replication`; `-- failover`, `-- stall` and `-- idle 200` run one part, the
//! last with 200 tablets. It takes some minutes and prints its results.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the program is looked at from outside"
)]

#[path = "../../tests/common/mod.rs"]
#[allow(dead_code, reason = "these servers are started one by one")]
mod common;
#[path = "../../tests/servers/mod.rs"]
mod servers;
mod stall;

use std::process::Child;
use std::time::Duration;

use engine::ids::Uuid;
use servers::{Servers, TABLET};

/// Measures from the death of a leader to the first write that the next leader accepts.
async fn failovers(settings: &[&str], count: usize, calm: Duration) {
    let mut servers = Servers::start(settings).await;
    servers.create(TABLET).await;
    let (mut key, mut times) = (0, Vec::new());
    for _ in 0..count {
        servers.insert(TABLET, key).await;
        key += 1;
        servers.env.sleep(calm).await;
        let leader = servers.leader(TABLET).await;
        let began = std::time::Instant::now();
        servers.kill(leader);
        servers.insert(TABLET, key).await;
        times.push(began.elapsed().as_millis());
        key += 1;
        servers.run(leader);
        servers.uuid(leader).await;
    }
    times.sort_unstable();
    println!("{settings:?}: median {} ms of {times:?}", times[times.len() / 2]);
}

/// Returns the CPU time of the servers.
fn cpu(servers: &Servers) -> Duration {
    let ticks = |child: &Child| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    // The kernel counts in ticks of 10 ms.
    Duration::from_millis(servers.children.iter().flatten().map(ticks).sum::<u64>() * 10)
}

/// Measures the CPU time of servers with idle tablets.
async fn idle(count: u16) {
    let servers = Servers::start(&["--log-preallocate-segments=false"]).await;
    let tablet = |number: u16| {
        let mut id = [3; 16];
        id[..2].copy_from_slice(&number.to_be_bytes());
        Uuid(id)
    };
    for number in 0..count {
        servers.create(tablet(number)).await;
    }
    for number in 0..count {
        servers.leader(tablet(number)).await;
    }
    servers.env.sleep(Duration::from_secs(20)).await;
    let (before, began) = (cpu(&servers), std::time::Instant::now());
    servers.env.sleep(Duration::from_secs(30)).await;
    let used = cpu(&servers) - before;
    let share = used.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0;
    println!("{count} idle tablets on three servers: {share:.1} % of a core, all three together");
}

fn main() {
    // cargo adds `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let wants = |part: &str| words.is_empty() || words[0] == part;
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    runtime.block_on(async {
        if wants("failover") {
            failovers(&["--raft-profile=fast"], 25, Duration::from_millis(500)).await;
            failovers(&[], 15, Duration::from_secs(2)).await;
        }
        if wants("stall") {
            stall::measure().await;
        }
        if wants("idle") {
            let count = words.get(1).map_or(1_000, |count| count.parse().expect("a number of tablets"));
            idle(count).await;
        }
    });
}
