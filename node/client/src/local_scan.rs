//! Scans of tablets of this process; see [`local`](super::local).

use arrow_array::RecordBatch;
use engine::error::Result;
use engine::schema::row_block::ProjectedColumn;
use engine::tablet::scan::{ScanSpec as TabletScanSpec, SnapshotChoice};
use engine::time::Timestamp;

use super::arrow;
use super::local::LocalScan;
use super::scan::Scanner;
use super::scan_spec::ReadMode;

impl Scanner {
    /// Opens the current tablet in this process, if it is here. `None` if its server must be called.
    pub(super) async fn open_local(&mut self) -> Result<Option<Box<dyn LocalScan>>> {
        let Some(tablets) = self.table.client().config().local_tablets.clone() else { return Ok(None) };
        let (Some(open), Some(spec)) = (&self.open, self.local_spec()) else { return Ok(None) };
        if open.server.is_some() {
            return Ok(None);
        }
        tablets.open(&open.tablet.id, spec).await
    }

    /// Returns the scan of a tablet as the engine takes it. `None` if only a server can run it.
    fn local_spec(&self) -> Option<TabletScanSpec> {
        let before = match self.spec.read_mode {
            ReadMode::AtSnapshot(_) => Timestamp(self.snapshot?),
            ReadMode::Latest | ReadMode::YourWrites => return None,
        };
        if self.spec.fault_tolerant || self.spec.diff_from.is_some() || self.spec.aggregation.is_some() {
            return None;
        }
        let key = |key: &Vec<u8>| (!key.is_empty()).then(|| key.clone());
        Some(TabletScanSpec {
            predicates: self.spec.predicates.clone(),
            lower_key: key(&self.spec.keys.lower),
            upper_key: key(&self.spec.keys.upper),
            snapshot: SnapshotChoice::At(before),
            limit: self.rows_left,
            ..TabletScanSpec::latest(self.columns.iter().map(ProjectedColumn::from).collect())
        })
    }

    /// Returns the next rows of a tablet of this process; `None` at its end.
    pub(super) async fn next_local(&mut self, scan: &mut dyn LocalScan) -> Result<Option<RecordBatch>> {
        let Some(block) = scan.next_block().await? else {
            self.leave_tablet();
            return Ok(None);
        };
        let batch = arrow::batch_from_block(block, &self.columns, self.schema())?;
        self.last = self.open.as_ref().map(|open| open.tablet.clone());
        Ok(Some(self.limited(batch)))
    }
}
