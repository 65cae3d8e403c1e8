//! Blocks of a scan, read until a batch is full or its time is up.

use std::time::Duration;

use engine::error::Error;
use engine::tablet::scan::Scan;
use engine::time::Instant;
use nyala_common::env::Env;

use super::server::TabletServer;

/// Result of reading one block.
pub(super) struct BlockRead {
    /// False at the end of the scan.
    pub has_block: bool,
    pub is_enough: bool,
}

/// Lets `read` read blocks until it has enough, time is up, or none are left. Returns true if there may be more.
pub(super) async fn each_block(
    server: &TabletServer,
    scan: &mut Scan,
    mut read: impl FnMut(&mut Scan) -> Result<BlockRead, Error> + Send,
) -> Result<bool, Error> {
    let env = &server.env;
    let delay = server.runtime_flags.batch_delay();
    if !delay.is_zero() {
        env.sleep(delay).await;
    }
    let reads_few = scan.reads_few();
    let limit = Duration::from_millis(server.config.scan_batch_time_ms);
    let mut until = (!reads_few).then(|| env.now().mono.after(limit));
    let read_all = || {
        // A read by key ends before it looks at the clock. The first rows of a range may be behind many deleted ones.
        let mut is_first = reads_few;
        loop {
            let BlockRead { has_block, is_enough } = read(scan)?;
            if !has_block {
                return Ok(false);
            }
            let is_unchecked = std::mem::replace(&mut is_first, false);
            if is_enough || !is_unchecked && is_over(env, &mut until, limit) {
                return Ok(true);
            }
        }
    };
    if reads_few { env.run_brief(read_all).await } else { env.run(read_all).await }
}

/// Returns true if the time is up. It begins now if it has not.
fn is_over(env: &Env, until: &mut Option<Instant>, limit: Duration) -> bool {
    let now = env.now().mono;
    now >= *until.get_or_insert_with(|| now.after(limit))
}
