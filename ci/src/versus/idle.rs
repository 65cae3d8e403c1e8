//! Cost of idle tablets: a thousand of them with three replicas each on three tablet servers.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::measure::Cpu;
use super::report::{Metric, Sample};
use super::round::Turn;

const WORKLOAD: &str = "1,000 idle tablets, 3 replicas";
const TABLES: usize = 20;
const TABLETS_PER_TABLE: usize = 50;
/// Time until elections and tablet reports are over.
const SETTLING: Duration = Duration::from_secs(20);
const WATCHED: Duration = Duration::from_secs(20);

/// Creates the tablets, waits until they are idle, and measures all servers.
pub(super) fn turn(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    // A thousand preallocated log segments would only fill the disk.
    let (cluster, _dir) = turn.cluster(1, 3, &["--log_preallocate_segments=false".to_string()])?;
    let masters = cluster.master_addresses();
    for number in 0..TABLES {
        turn.kudu(&["table", "create", &masters, &table(number)])?;
    }
    thread::sleep(SETTLING);
    let (before, began) = (Cpu::of(&cluster)?, Instant::now());
    thread::sleep(WATCHED);
    let percent = Cpu::of(&cluster)?.since(before) / began.elapsed().as_secs_f64() * 100.0;
    Ok(vec![turn.sample(WORKLOAD, Metric("% of a core, all servers", 1), percent)])
}

/// Returns a table's description for the tool.
fn table(number: usize) -> String {
    format!(
        r#"{{"table_name": "idle_{number}", "schema": {{"columns": [
            {{"column_name": "key", "column_type": "INT64", "is_nullable": false}}],
            "key_column_names": ["key"]}},
            "partition": {{"hash_partitions": [
                {{"columns": ["key"], "num_buckets": {TABLETS_PER_TABLE}, "seed": 0}}]}},
            "num_replicas": 3}}"#
    )
}
