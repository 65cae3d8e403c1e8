//! The real tool's check of a cluster, which compares the rows of all replicas.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::packages::Packages;

const HEALED_TIMEOUT: Duration = Duration::from_secs(300);

/// Waits until every tablet has its replicas, and they hold the same rows.
pub(super) fn until_clean(packages: &Packages, masters: &str) -> Result<()> {
    let start = Instant::now();
    loop {
        let output = packages.kudu_tool().args(["cluster", "ksck", masters, "--checksum_scan"]).output()?;
        if output.success {
            println!("    ksck finds nothing after {} s", start.elapsed().as_secs());
            return Ok(());
        }
        let said = format!("{}\n{}", output.stdout, output.stderr);
        ensure!(start.elapsed() < HEALED_TIMEOUT, "ksck still finds:\n{said}");
        thread::sleep(Duration::from_secs(2));
    }
}
