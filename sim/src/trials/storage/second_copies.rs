//! Rows that are deleted and inserted again after the ancient history mark has passed their deletion: a
//! second row of the key is flushed, and a restart finds two of them on the disk.

use engine::error::Result;
use engine::replica::JobKind;
use sim_plan::client_ops::WriteKind;

use super::Trial;
use crate::history::HybridStamp;
use crate::model::{RowCells, draws};

/// Most rows that are inserted again at once.
const ROWS: u64 = 3;

impl Trial {
    pub(super) fn insert_again(&mut self) -> Result<()> {
        self.job(JobKind::FlushRows)?;
        let keys = self.live_keys();
        self.write_kind(WriteKind::Delete, &keys)?;
        self.raise_mark(self.replica.committed_at() + 1)?;
        if self.random.percent(40) {
            self.jobs(JobKind::FlushDeltas)?;
        }
        self.write_kind(WriteKind::Insert, &keys)?;
        if self.random.percent(80) {
            self.job(JobKind::FlushRows)?;
        }
        let change = self.random.pick(&[WriteKind::Update, WriteKind::Upsert, WriteKind::Delete]);
        self.write_kind(change, &keys)?;
        if self.random.percent(40) {
            self.jobs(JobKind::FlushDeltas)?;
        }
        match self.random.below(3) {
            0 => Ok(()),
            1 => self.cut_power(),
            _ => self.restart(),
        }
    }

    /// Returns the keys of some live rows.
    fn live_keys(&mut self) -> Vec<RowCells> {
        let mut live = self.rows.live(HybridStamp::MAX);
        let keys = self.table.shape.key_columns().len();
        let count = self.random.between(1, ROWS).min(live.len() as u64);
        let mut some = Vec::new();
        for _ in 0..count {
            let mut row = live.swap_remove(self.random.below(live.len() as u64) as usize);
            row.retain(|number, _| usize::from(*number) < keys);
            some.push(row);
        }
        some
    }

    /// Writes rows of these keys, by operations of one kind.
    fn write_kind(&mut self, kind: WriteKind, keys: &[RowCells]) -> Result<()> {
        let shape = self.newest_shape();
        let random = &mut self.random;
        let write = |key: &RowCells| {
            let mut row = draws::row(random, &shape, kind);
            row.cells.extend(key.clone());
            row
        };
        let rows = keys.iter().map(write).collect();
        self.append_drawn(rows);
        let sync = self.random.percent(60);
        self.commit(sync)
    }
}
