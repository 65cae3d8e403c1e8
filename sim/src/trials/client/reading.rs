//! Reading of a scan's batches, with pauses and calls that keep the scanner alive.

use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, RecordBatch};
use nyala_client::Scanner;
use nyala_common::env::Env;
use sim_plan::RandomStream;

use super::rows::Row;
use super::verdicts::ScanReport;

/// Longest pause between two batches.
const PAUSE_US: u64 = 500_000;

/// Reads a scan to its end, or as many batches as the client's patience lets it.
pub(super) async fn read(
    env: &Env,
    random: &mut RandomStream,
    scanner: &mut Scanner,
    report: &mut ScanReport,
    patience: u64,
) {
    let mut batches = 0;
    while batches < patience {
        report.waited_since = env.now().mono.0;
        match scanner.next_batch().await {
            Ok(Some(batch)) => {
                report.count += batch.num_rows() as u64;
                report.rows.extend(rows_of(&batch));
            }
            end => {
                report.end = Some(end.map(|_| ()));
                return;
            }
        }
        batches += 1;
        if random.percent(15) {
            let pause = random.below(PAUSE_US);
            env.sleep(Duration::from_micros(pause)).await;
        }
        if random.percent(10) {
            // The next batch says whether the scanner is still there.
            drop(scanner.keep_alive().await);
        }
    }
}

/// Returns the rows of a batch of all columns; none of a batch that only counts.
fn rows_of(batch: &RecordBatch) -> Vec<(i64, Row)> {
    if batch.num_columns() < 3 {
        return Vec::new();
    }
    let (keys, numbers) =
        (batch.column(0).as_primitive::<Int64Type>(), batch.column(1).as_primitive::<Int64Type>());
    let texts = batch.column(2).as_string::<i32>();
    let row = |at: usize| {
        let number = numbers.is_valid(at).then(|| numbers.value(at));
        let text = texts.is_valid(at).then(|| texts.value(at).to_string());
        (keys.value(at), Row { number, text })
    };
    (0..batch.num_rows()).map(row).collect()
}
