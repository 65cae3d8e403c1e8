//! Maintenance under pressure: the policy chooses job after job, until memory is free or nothing needs the
//! log.
//!
//! ```text
//!   state of the tablet ──► policy: memory is short, or the log too long ──► job ──► state ──► … ──► nothing is left
//! ```

use engine::error::{Error, Result};
use engine::replica::JobKind;
use engine::replica::maintenance_policy::{MaintenanceInput, choose};
use engine::tablet::{LogAnchors, Tablet};

use super::Trial;

/// Most jobs until all is free: more than a tablet of a trial has stores in memory.
const JOBS_MAX: usize = 1_000;

impl Trial {
    /// Runs what the policy chooses while memory is short. Each time it must be the flush that frees the
    /// most, until no row and no change is left in memory.
    pub(super) fn free_memory(&mut self) -> Result<()> {
        for _ in 0..JOBS_MAX {
            let view = self.view()?;
            let Some(most) = stores(&view).into_iter().map(|(_, bytes, _)| bytes).max() else {
                return unflushed(self.replica.tablet()?).map_or(Ok(()), |what| Err(Error::corrupt(what)));
            };
            let chosen = self.chosen(&view, true)?;
            match store_of(&view, chosen.as_ref()) {
                Some((kind, bytes, _)) if bytes == most => self.run_due(kind)?,
                _ => return Err(unwise("memory is short", &view, chosen.as_ref())),
            }
        }
        Err(Error::corrupt(format!("memory is not free after {JOBS_MAX} flushes")))
    }

    /// Runs what the policy chooses while the log is too long: the flush of what needs its oldest operation,
    /// and at last a checkpoint. Then the log has one segment, if all of its operations are applied.
    pub(super) fn free_log(&mut self) -> Result<()> {
        for _ in 0..JOBS_MAX {
            let view = self.view()?;
            let long = MaintenanceInput { log_bytes: u64::MAX, log_held_bytes: u64::MAX, ..view };
            let chosen = self.chosen(&long, false)?;
            let oldest = stores(&long).into_iter().map(|(_, _, from)| from).min();
            match (oldest, store_of(&long, chosen.as_ref())) {
                (None, None) if chosen == Some(JobKind::Checkpoint) => {
                    self.run_due(JobKind::Checkpoint)?;
                    return self.check_log();
                }
                // Frozen rows come first.
                (Some(_), Some((JobKind::FlushRows, ..))) if long.frozen => {
                    self.run_due(JobKind::FlushRows)?;
                }
                (Some(oldest), Some((kind, _, from))) if from == oldest && !long.frozen => {
                    self.run_due(kind)?;
                }
                _ => return Err(unwise("the log is too long", &long, chosen.as_ref())),
            }
        }
        Err(Error::corrupt(format!("the log is needed after {JOBS_MAX} jobs")))
    }

    fn chosen(&self, view: &MaintenanceInput, memory_short: bool) -> Result<Option<JobKind>> {
        let config = self.replica.tablet()?.config();
        let chosen = choose(std::slice::from_ref(view), config, memory_short);
        Ok(chosen.map(|(_, kind)| kind))
    }

    fn run_due(&mut self, kind: JobKind) -> Result<()> {
        let name = format!("{kind:?}");
        match self.job_alone(kind)? {
            true => Ok(()),
            false => Err(Error::corrupt(format!("{name} finds nothing to do, although it is due"))),
        }
    }

    /// Removes the log that nothing needs, and returns what is left of it as an error.
    fn check_log(&mut self) -> Result<()> {
        let (needed, applied, last) = self.replica.log_needs()?;
        if needed != applied + 1 {
            let what = format!("the log is needed from {needed} on, although all up to {applied} is flushed");
            return Err(Error::corrupt(what));
        }
        self.replica.gc()?;
        let segments = self.replica.log_files().iter().filter(|file| file.ends_with(".wal")).count();
        // Operations that are not applied may begin in an older segment.
        if last == applied && segments > 1 {
            let what = format!("{segments} segments of the log are left, although nothing needs it");
            return Err(Error::corrupt(what));
        }
        Ok(())
    }

    /// Returns the state of the tablet, as the policy knows it.
    fn view(&self) -> Result<MaintenanceInput> {
        Ok(MaintenanceInput::of_stores(self.replica.tablet()?))
    }
}

/// Returns what is in memory, or needs the log, of a tablet whose stores are all flushed.
pub(super) fn unflushed(tablet: &Tablet) -> Option<String> {
    let state = tablet.state();
    let rows: u64 = state.frozen.iter().chain([&state.active]).map(|rows| rows.rows()).sum();
    let deltas: usize = state.disk.iter().map(|rowset| rowset.dms_len()).sum();
    if rows > 0 || deltas > 0 {
        return Some(format!("{rows} rows and {deltas} deltas are in memory alone"));
    }
    let anchors = tablet.log_anchors();
    (anchors != LogAnchors::default()).then(|| format!("the log is still anchored: {anchors:?}"))
}

/// A store in memory: its flush, its bytes, and the first operation that it needs.
type Store = (JobKind, u64, u64);

fn stores(view: &MaintenanceInput) -> Vec<Store> {
    let rows = view.rows_age.map(|_| (JobKind::FlushRows, view.rows_bytes, view.rows_from));
    let deltas = view.deltas.iter();
    let deltas = deltas.map(|deltas| (JobKind::FlushDeltas(deltas.rowset), deltas.bytes, deltas.from));
    rows.into_iter().chain(deltas).collect()
}

/// Returns the store that a job flushes.
fn store_of(view: &MaintenanceInput, chosen: Option<&JobKind>) -> Option<Store> {
    stores(view).into_iter().find(|(kind, ..)| Some(kind) == chosen)
}

fn unwise(why: &str, view: &MaintenanceInput, chosen: Option<&JobKind>) -> Error {
    Error::corrupt(format!("{why}, and the policy chooses {chosen:?}: {view:?}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::replica::maintenance_policy::DeltaInput;

    use super::*;

    #[test]
    fn the_store_of_a_job_is_the_one_that_it_flushes() {
        let deltas = DeltaInput { rowset: 7, bytes: 50, age: Duration::ZERO, from: 3 };
        let view = MaintenanceInput {
            rows_bytes: 90,
            rows_age: Some(Duration::ZERO),
            rows_from: 4,
            deltas: vec![deltas],
            ..MaintenanceInput::default()
        };
        let store = |kind: &JobKind| store_of(&view, Some(kind));
        assert_eq!(store(&JobKind::FlushDeltas(7)), Some((JobKind::FlushDeltas(7), 50, 3)));
        assert_eq!(store(&JobKind::FlushRows), Some((JobKind::FlushRows, 90, 4)));
        assert_eq!(store(&JobKind::FlushDeltas(8)), None);
        assert_eq!(store(&JobKind::Checkpoint), None);
        assert_eq!(store_of(&view, None), None);
        let empty = MaintenanceInput { rows_age: None, deltas: Vec::new(), ..view };
        assert!(stores(&empty).is_empty(), "an empty MemRowSet has bytes, too");
    }
}
