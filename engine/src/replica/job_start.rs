//! Start of a maintenance job: its work by its kind.

use std::sync::Arc;

use super::applier::TabletApplier;
use super::delta_jobs::{DeltaCompactionJob, DeltaFlush};
use super::job_work::{JobKind, JobWork};
use super::rowset_jobs::{Checkpoint, Compaction, RowsFlush};
use crate::disk::Disk;
use crate::error::Result;

/// Starts a job's work; `None` if there is nothing for it to do.
pub(super) fn start(
    kind: &JobKind,
    data: &Arc<dyn Disk>,
    applier: &mut TabletApplier,
) -> Result<Option<Box<dyn JobWork>>> {
    Ok(match kind {
        JobKind::FlushRows => boxed(RowsFlush::start(data, applier)),
        JobKind::FlushDeltas(id) => boxed(DeltaFlush::start(*id, applier)?),
        JobKind::Compact(ids) => boxed(Compaction::start(ids, data, applier)?),
        JobKind::MajorDeltaCompaction(id) => boxed(DeltaCompactionJob::major(*id, data, applier)?),
        JobKind::MinorDeltaCompaction(id) => boxed(DeltaCompactionJob::minor(*id, data, applier)?),
        JobKind::Checkpoint => boxed(Some(Checkpoint)),
    })
}

fn boxed<W: JobWork + 'static>(work: Option<W>) -> Option<Box<dyn JobWork>> {
    work.map(|work| Box::new(work) as Box<dyn JobWork>)
}
