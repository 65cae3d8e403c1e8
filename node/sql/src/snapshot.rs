//! Snapshot of a statement: one timestamp for all tablets of all its tables. Options of its reads and plans.

use datafusion::common::{DataFusionError, Result};
use nyala_client::{ReadMode, ScanSpec, Table};
use tokio::sync::OnceCell;

use super::error::external;

/// Snapshot timestamp of a statement. The first table that is read fixes it, unless the statement does.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    timestamp: OnceCell<u64>,
}

impl Snapshot {
    /// Creates a snapshot at a given time.
    pub(crate) fn at(timestamp: u64) -> Snapshot {
        Snapshot { timestamp: OnceCell::new_with(Some(timestamp)) }
    }

    /// Returns the timestamp. A server chooses it, so that the clock of this machine does not count. `None` if the
    /// table has no tablet.
    pub(crate) async fn timestamp(&self, table: &Table) -> Result<Option<u64>> {
        match self.timestamp.get_or_try_init(|| choose(table)).await {
            Ok(timestamp) => Ok(Some(*timestamp)),
            Err(Unchosen::NoTablet) => Ok(None),
            Err(Unchosen::Failed(error)) => Err(error),
        }
    }
}

/// Reason for having no timestamp.
enum Unchosen {
    NoTablet,
    Failed(DataFusionError),
}

async fn choose(table: &Table) -> std::result::Result<u64, Unchosen> {
    let failed = |error| Unchosen::Failed(external(table.name(), error));
    let read_mode = ReadMode::AtSnapshot(None);
    let spec = ScanSpec { columns: Some(Vec::new()), limit: Some(1), read_mode, ..ScanSpec::default() };
    let mut scanner = table.scan(spec).map_err(failed)?;
    scanner.next_batch().await.map_err(failed)?;
    let chosen = scanner.snapshot().ok_or(Unchosen::NoTablet)?;
    // The state is the one before the timestamp, and includes what this client has seen.
    let seen = table.client().observed_timestamp().map_or(0, |seen| seen + 1);
    Ok(chosen.max(seen))
}

/// Options of the reads of a statement.
#[derive(Debug, Default)]
pub(crate) struct ReadOptions {
    pub(crate) snapshot: Snapshot,
    /// True if a scan continues at another replica when a server is lost.
    pub(crate) fault_tolerant: bool,
}

/// Options of the plans of a statement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanOptions {
    /// Number of partitions that plans aim at; by default the number of processors.
    pub(crate) partitions: Option<usize>,
    /// True if tablet servers aggregate.
    pub(crate) server_aggregation: bool,
}

impl Default for PlanOptions {
    fn default() -> PlanOptions {
        PlanOptions { partitions: None, server_aggregation: true }
    }
}
