//! Which piece of maintenance is most worth doing next. Pure.
//!
//! In this order: memory is short, so free the most; rows that an old schema left behind; what holds back the log;
//! what has grown too large; what has waited too long; rowsets that are better merged.

use std::cmp::Reverse;
use std::time::Duration;

use engine::config::TabletConfig;
use engine::replica::JobKind;
use engine::tablet::merge_policy;
use engine::tablet::rowset::RowSetId;

/// What is known of one tablet, at one moment.
#[derive(Debug, Clone, Default)]
pub struct TabletView {
    /// Bytes of rows that were never flushed.
    pub rows_bytes: u64,
    /// How long there have been such rows; `None` if there are none.
    pub rows_age: Option<Duration>,
    /// Whether some of them are frozen already and only wait to be written.
    pub frozen: bool,
    /// Changes of flushed rows that are in memory only.
    pub deltas: Vec<DeltasView>,
    /// DiskRowSets that are worth merging.
    pub merge: Option<merge_policy::Choice>,
    pub log_bytes: u64,
    /// The log's size when a checkpoint last let go of what it could.
    pub log_bytes_at_checkpoint: u64,
}

/// Unflushed changes of one DiskRowSet.
#[derive(Debug, Clone, Copy)]
pub struct DeltasView {
    pub rowset: RowSetId,
    pub bytes: u64,
    pub age: Duration,
}

/// A choice: which of the tablets, and what to do there.
pub type Choice = (usize, JobKind);

/// Picks the next job, if any is due.
pub fn choose(tablets: &[TabletView], config: &TabletConfig, memory_short: bool) -> Option<Choice> {
    memory_short
        .then(|| most_memory(tablets))
        .flatten()
        .or_else(|| first(tablets, |tablet| tablet.frozen.then_some(JobKind::FlushRows)))
        .or_else(|| first(tablets, |tablet| log_holder(tablet, config)))
        .or_else(|| too_large(tablets, config))
        .or_else(|| first(tablets, |tablet| too_old(tablet, config)))
        .or_else(|| best_merge(tablets))
}

/// The merge that saves the most lookups.
fn best_merge(tablets: &[TabletView]) -> Option<Choice> {
    let merges = tablets.iter().enumerate().filter_map(|(i, tablet)| Some((i, tablet.merge.as_ref()?)));
    let best = merges.min_by_key(|(i, merge)| (Reverse(merge.gain), *i));
    best.map(|(i, merge)| match (merge.only_changes, &merge.rowsets[..]) {
        (true, [rowset]) => (i, JobKind::MergeDeltas(*rowset)),
        (_, rowsets) => (i, JobKind::Compact(rowsets.to_vec())),
    })
}

fn first(tablets: &[TabletView], due: impl Fn(&TabletView) -> Option<JobKind>) -> Option<Choice> {
    tablets.iter().enumerate().find_map(|(i, tablet)| Some((i, due(tablet)?)))
}

/// The flush that frees the most.
fn most_memory(tablets: &[TabletView]) -> Option<Choice> {
    let flushes = tablets.iter().enumerate().flat_map(|(i, tablet)| {
        let deltas =
            tablet.deltas.iter().map(move |deltas| (deltas.bytes, i, JobKind::FlushDeltas(deltas.rowset)));
        let rows = tablet.rows_age.map(|_| (tablet.rows_bytes, i, JobKind::FlushRows));
        rows.into_iter().chain(deltas)
    });
    let most = flushes.min_by_key(|(bytes, i, _)| (Reverse(*bytes), *i));
    most.map(|(_, i, kind)| (i, kind))
}

/// What to do about a log that has grown too long: write down what is oldest in memory, or, if nothing is, say in
/// the superblock that the log may go. A checkpoint that just freed nothing is not repeated at once.
fn log_holder(tablet: &TabletView, config: &TabletConfig) -> Option<JobKind> {
    if tablet.log_bytes <= config.wal_retain_bytes {
        return None;
    }
    let oldest = tablet.deltas.iter().max_by_key(|deltas| deltas.age);
    let rows = tablet.rows_age.map(|age| (age, JobKind::FlushRows));
    let deltas = oldest.map(|deltas| (deltas.age, JobKind::FlushDeltas(deltas.rowset)));
    match rows.into_iter().chain(deltas).max_by_key(|(age, _)| *age) {
        Some((_, flush)) => Some(flush),
        None => {
            let grown = tablet.log_bytes >= tablet.log_bytes_at_checkpoint + config.wal_segment_bytes_max;
            grown.then_some(JobKind::Checkpoint)
        }
    }
}

/// The largest of those above their limits.
fn too_large(tablets: &[TabletView], config: &TabletConfig) -> Option<Choice> {
    let (rows_max, deltas_max) = (config.mrs_flush_bytes as u64, config.dms_flush_bytes as u64);
    let large = tablets.iter().enumerate().flat_map(|(i, tablet)| {
        let rows = (tablet.rows_bytes >= rows_max && tablet.rows_age.is_some()).then_some((
            tablet.rows_bytes,
            i,
            JobKind::FlushRows,
        ));
        let deltas = tablet.deltas.iter().filter(move |deltas| deltas.bytes >= deltas_max);
        let deltas = deltas.map(move |deltas| (deltas.bytes, i, JobKind::FlushDeltas(deltas.rowset)));
        rows.into_iter().chain(deltas)
    });
    let largest = large.min_by_key(|(bytes, i, _)| (Reverse(*bytes), *i));
    largest.map(|(_, i, kind)| (i, kind))
}

fn too_old(tablet: &TabletView, config: &TabletConfig) -> Option<JobKind> {
    let rows_max = Duration::from_millis(config.mrs_flush_age_ms);
    let deltas_max = Duration::from_millis(config.dms_flush_age_ms);
    if tablet.rows_age.is_some_and(|age| age >= rows_max) {
        return Some(JobKind::FlushRows);
    }
    let old = tablet.deltas.iter().find(|deltas| deltas.age >= deltas_max);
    old.map(|deltas| JobKind::FlushDeltas(deltas.rowset))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(rows_bytes: u64, age_s: u64) -> TabletView {
        TabletView { rows_bytes, rows_age: Some(Duration::from_secs(age_s)), ..TabletView::default() }
    }

    fn config() -> TabletConfig {
        TabletConfig {
            mrs_flush_bytes: 100,
            mrs_flush_age_ms: 60_000,
            dms_flush_bytes: 50,
            dms_flush_age_ms: 60_000,
            wal_retain_bytes: 1000,
            wal_segment_bytes_max: 10,
            ..TabletConfig::default()
        }
    }

    fn deltas(rowset: u64, bytes: u64, age_s: u64) -> DeltasView {
        DeltasView { rowset, bytes, age: Duration::from_secs(age_s) }
    }

    #[test]
    fn nothing_is_due_early() {
        let tablets = [view(99, 59), TabletView::default()];
        assert_eq!(choose(&tablets, &config(), false), None);
    }

    #[test]
    fn the_largest_comes_before_the_oldest() {
        let tablets = [view(1, 90), view(100, 0), view(200, 0)];
        assert_eq!(choose(&tablets, &config(), false), Some((2, JobKind::FlushRows)));
        assert_eq!(choose(&tablets[..1], &config(), false), Some((0, JobKind::FlushRows)));
    }

    #[test]
    fn deltas_are_flushed_by_size_and_age() {
        let mut tablet = view(1, 1);
        tablet.deltas = vec![deltas(7, 10, 1), deltas(8, 60, 1)];
        assert_eq!(choose(&[tablet.clone()], &config(), false), Some((0, JobKind::FlushDeltas(8))));
        tablet.deltas = vec![deltas(7, 10, 61)];
        assert_eq!(choose(&[tablet], &config(), false), Some((0, JobKind::FlushDeltas(7))));
    }

    #[test]
    fn rowsets_are_merged_when_nothing_else_is_due() {
        let merge = |rowsets: &[u64], gain| merge_policy::Choice {
            rowsets: rowsets.to_vec(),
            gain,
            only_changes: false,
        };
        let merging = |merge| TabletView { merge, ..view(99, 1) };
        let tablets = [merging(Some(merge(&[1, 2, 3], 7))), merging(Some(merge(&[1, 4], 9))), merging(None)];
        assert_eq!(choose(&tablets, &config(), false), Some((1, JobKind::Compact(vec![1, 4]))));
        let with_old_rows = TabletView { rows_age: Some(Duration::from_secs(60)), ..tablets[0].clone() };
        assert_eq!(choose(&[with_old_rows], &config(), false), Some((0, JobKind::FlushRows)));
    }

    #[test]
    fn short_memory_frees_the_most_it_can() {
        let mut tablet = view(5, 0);
        tablet.deltas = vec![deltas(3, 9, 0)];
        let tablets = [view(4, 0), tablet];
        assert_eq!(choose(&tablets, &config(), true), Some((1, JobKind::FlushDeltas(3))));
        assert_eq!(choose(&[TabletView::default()], &config(), true), None);
    }

    #[test]
    fn a_long_log_is_cut() {
        let mut tablet = view(5, 1);
        tablet.log_bytes = 1001;
        tablet.deltas = vec![deltas(3, 1, 2)];
        assert_eq!(choose(&[tablet.clone()], &config(), false), Some((0, JobKind::FlushDeltas(3))));
        tablet.deltas.clear();
        assert_eq!(choose(&[tablet.clone()], &config(), false), Some((0, JobKind::FlushRows)));
        tablet.rows_age = None;
        assert_eq!(choose(&[tablet.clone()], &config(), false), Some((0, JobKind::Checkpoint)));
        tablet.log_bytes_at_checkpoint = 1001;
        assert_eq!(choose(&[tablet], &config(), false), None, "the last one freed nothing");
    }
}
