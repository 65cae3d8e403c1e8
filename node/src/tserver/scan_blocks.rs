//! Blocks of a scan, read until a batch is full or its time is up.
//!
//! The engine ends a read after a bounded number of rows, also without a result. So the time of a batch is limited for
//! a scan that matches no rows, too.

use std::time::Duration;

use engine::error::Error;
use engine::tablet::scan::Scan;
use engine::time::Instant;
use nyala_common::env::Env;

use super::server::TabletServer;

/// Outcome of reading one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockOutcome {
    /// The scan is at its end.
    End,
    /// The batch is full.
    Full,
    /// The block had rows.
    Rows,
    /// No row passed among those that one read examines.
    NoRows,
}

impl BlockOutcome {
    /// Returns the outcome of a read: the number of its rows, or `None` at the end of the scan.
    pub(super) fn of(rows: Option<usize>, is_full: bool) -> BlockOutcome {
        match rows {
            None => BlockOutcome::End,
            Some(_) if is_full => BlockOutcome::Full,
            Some(0) => BlockOutcome::NoRows,
            Some(_) => BlockOutcome::Rows,
        }
    }
}

/// Lets `read` read blocks until it has enough, time is up, or none are left. Returns true if there may be more.
pub(super) async fn each_block(
    server: &TabletServer,
    scan: &mut Scan,
    mut read: impl FnMut(&mut Scan) -> Result<BlockOutcome, Error> + Send,
) -> Result<bool, Error> {
    let env = &server.env;
    let delay = server.runtime_flags.batch_delay();
    if !delay.is_zero() {
        env.sleep(delay).await;
    }
    let mut timer = BatchTimer::new(env, Duration::from_millis(server.config.scan_batch_time_ms));
    if scan.reads_few() {
        // The few rows may be behind many deleted ones. Then the rest is no brief work.
        let few = env.run_brief(|| read_few(scan, &mut read, &mut timer)).await?;
        if let Some(has_more) = few {
            return Ok(has_more && !scan.is_finished());
        }
    }
    timer.start();
    let read_all = || {
        loop {
            match read(scan)? {
                BlockOutcome::End => return Ok(false),
                BlockOutcome::Full => return Ok(true),
                BlockOutcome::Rows | BlockOutcome::NoRows if timer.is_over() => return Ok(true),
                BlockOutcome::Rows | BlockOutcome::NoRows => {}
            }
        }
    };
    let has_more: Result<bool, Error> = env.run(read_all).await;
    Ok(has_more? && !scan.is_finished())
}

/// Reads blocks until one has no rows, which gives `None`, or the batch ends. A read by key ends before it looks at the
/// clock.
fn read_few(
    scan: &mut Scan,
    read: &mut impl FnMut(&mut Scan) -> Result<BlockOutcome, Error>,
    timer: &mut BatchTimer<'_>,
) -> Result<Option<bool>, Error> {
    let mut is_first = true;
    loop {
        match read(scan)? {
            BlockOutcome::End => return Ok(Some(false)),
            BlockOutcome::Full => return Ok(Some(true)),
            BlockOutcome::NoRows => return Ok(None),
            BlockOutcome::Rows if !std::mem::replace(&mut is_first, false) && timer.is_over() => {
                return Ok(Some(true));
            }
            BlockOutcome::Rows => {}
        }
    }
}

/// Time limit of a batch.
struct BatchTimer<'a> {
    env: &'a Env,
    limit: Duration,
    /// Set at the start.
    until: Option<Instant>,
}

impl BatchTimer<'_> {
    fn new(env: &Env, limit: Duration) -> BatchTimer<'_> {
        BatchTimer { env, limit, until: None }
    }

    /// Starts the timer unless it runs.
    fn start(&mut self) {
        if self.until.is_none() {
            self.until = Some(self.env.now().mono.after(self.limit));
        }
    }

    /// Returns true if the time is up. It begins now if it has not.
    fn is_over(&mut self) -> bool {
        let now = self.env.now().mono;
        now >= *self.until.get_or_insert_with(|| now.after(self.limit))
    }
}
