//! Blocks of a scan, read until a batch is full or its time is up.

use std::time::Duration;

use engine::error::Error;
use engine::tablet::scan::Scan;

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
    // A scan of a few rows ends before its time is up.
    let until =
        (!reads_few).then(|| env.now().mono.after(Duration::from_millis(server.config.scan_batch_time_ms)));
    let read_all = || {
        loop {
            let BlockRead { has_block, is_enough } = read(scan)?;
            if !has_block {
                return Ok(false);
            }
            if is_enough || until.is_some_and(|until| env.now().mono >= until) {
                return Ok(true);
            }
        }
    };
    if reads_few { env.run_brief(read_all).await } else { env.run(read_all).await }
}
