//! Compaction policy: chooses the DiskRowSets whose compaction saves the most lookups within a budget of bytes.
//!
//! ```text
//!   keys    a·········b····c·····d······e·····f      by share of the rows, not by letters
//!           [────────────────────]                   widths 0.6
//!                     [──────────────────]                  0.5
//!           [─────────]                                     0.3   a key is in 1.4 of their ranges, on average
//!   merged  [────────────────────────────]                  0.9   0.5 lookups saved
//! ```
//!
//! A key is looked up in every rowset whose range covers it. So the sum of the widths (the rowset height) is the
//! expected number of lookups of a random key. A compaction replaces the widths of its inputs by the width of their
//! span.
//!
//! The choice is a knapsack. The value of a rowset is its width, its weight the bytes that are read and rewritten, and
//! the budget the bytes that one compaction may write. The best filling is computed for each left and each right end of
//! the span. Rowsets below the target size get a small bonus, because every scan opens each of them.
//!
//! A compaction that gains less than [`CompactionLimits::gain_min`] is not chosen, and none includes a rowset that is
//! worth less than its bytes. So compactions terminate.
//!
//! A rowset with many delta files gets a delta compaction. While its deltas are few beside its rows, they are merged
//! into one file (minor), which costs their own bytes; once they are many, they are folded into the base (major).
//!
//! A major delta compaction leaves the deltas that do not fit the base: those of columns that the rowset lacks, and
//! those of reinserted rows. Once these are many, the rowset is rewritten, because each further major delta compaction
//! would copy them.
//!
//! Source: the Kudu paper, sections 4.9 and 4.10.

use std::cmp::Reverse;
use std::sync::Arc;

use super::diskrowset::{DiskRowSet, RewrittenDeltas};
use super::diskrowset_writer::RowSetMeta;
use super::rowset::RowSetId;
use crate::config::TabletConfig;
use crate::time::Timestamp;

/// The width of all keys; widths and lookups are fractions of it.
pub const WHOLE: i64 = 1 << 20;
/// Rowsets that the knapsack considers: those with the highest value per byte.
const CANDIDATES_MAX: usize = 64;
/// Units that the budget is divided into. Weights are rounded down, so a choice may exceed the budget a little.
const UNITS: usize = 128;
/// Rows per ancient delta at or below which a rowset is rewritten to drop ancient history; the same for unfoldable
/// deltas.
const REWRITTEN_PER_ROWS: u64 = 4;

/// Properties of a DiskRowSet that the policy uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowsetSummary {
    pub id: RowSetId,
    pub bytes: u64,
    /// Encoded keys of the first and the last row.
    pub min_key: Vec<u8>,
    pub max_key: Vec<u8>,
    pub delta_files: usize,
    /// Deltas in the delta files, and the bytes of those files.
    pub deltas: u64,
    pub delta_bytes: u64,
    pub rows: u64,
    /// Deltas older than the ancient history mark.
    pub ancient: u64,
    /// Deltas that a major delta compaction has left and a rewrite of the rowset would fold.
    pub unfolded: u64,
}

impl RowsetSummary {
    /// Returns true if there are so few rows beside these deltas that the rowset is rewritten for them.
    fn is_rewritten_for(&self, deltas: u64) -> bool {
        deltas > 0 && deltas * REWRITTEN_PER_ROWS >= self.rows
    }
}

/// Costs that a compaction may have, and the gain it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactionLimits {
    /// Bytes of the rowsets of one compaction.
    pub budget_bytes: u64,
    /// Bytes at which the output continues in another rowset.
    pub roll_bytes: u64,
    /// Least gain of a compaction, in fractions of [`WHOLE`].
    pub gain_min: i64,
    /// Number of adjacent small rowsets that is worth a compaction, and of delta files of one rowset.
    pub many: usize,
    /// Deltas per 100 rows from which a delta compaction is a major one.
    pub major_delta_percent: u64,
}

impl From<&TabletConfig> for CompactionLimits {
    fn from(config: &TabletConfig) -> CompactionLimits {
        CompactionLimits {
            budget_bytes: config.compaction_budget_bytes,
            roll_bytes: config.rowset_roll_bytes.max(1),
            gain_min: WHOLE * i64::from(config.merge_gain_min_percent) / 100,
            many: config.merge_min.max(2),
            major_delta_percent: config.major_delta_percent.into(),
        }
    }
}

/// Kind of a chosen compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompactionKind {
    /// A compaction of the rowsets.
    RowSets,
    /// A major delta compaction of the one rowset is enough.
    MajorDelta,
    /// A minor delta compaction of the one rowset is enough.
    MinorDelta,
}

/// A chosen compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompactionChoice {
    pub kind: CompactionKind,
    /// Inputs, in key order.
    pub rowsets: Vec<RowSetId>,
    /// Expected lookups of a random key that are saved, in fractions of [`WHOLE`].
    pub gain: i64,
    /// Bytes that are read; about as many are written.
    pub bytes: u64,
}

/// Result of the last evaluation of a tablet. It is valid until a rowset is replaced or gets new metadata; most
/// evaluations find no change.
#[derive(Default)]
pub(super) struct LastEvaluation {
    /// Each rowset's metadata, and the deltas that a rewrite would drop or fold.
    rowsets: Vec<(Arc<RowSetMeta>, RewrittenDeltas)>,
    choice: Option<CompactionChoice>,
}

impl LastEvaluation {
    /// Returns the compaction to run on `disk`. No snapshot before `mark` is read any more.
    pub(super) fn choice(
        &mut self,
        disk: &[Arc<DiskRowSet>],
        mark: Timestamp,
        limits: &CompactionLimits,
    ) -> Option<CompactionChoice> {
        let same = |(rowset, last): (&Arc<DiskRowSet>, &(Arc<RowSetMeta>, RewrittenDeltas))| {
            let (meta, deltas) = rowset.meta_and_rewritten(mark);
            Arc::ptr_eq(&meta, &last.0) && deltas == last.1
        };
        if disk.len() != self.rowsets.len() || !disk.iter().zip(&self.rowsets).all(same) {
            self.rowsets = disk.iter().map(|rowset| rowset.meta_and_rewritten(mark)).collect();
            let summaries: Vec<RowsetSummary> =
                self.rowsets.iter().map(|(meta, deltas)| summarize(meta, *deltas)).collect();
            self.choice = choose(&summaries, limits);
        }
        self.choice.clone()
    }
}

fn summarize(meta: &RowSetMeta, rewritten: RewrittenDeltas) -> RowsetSummary {
    RowsetSummary {
        id: meta.id,
        bytes: meta.bytes,
        min_key: meta.min_key.clone(),
        max_key: meta.max_key.clone(),
        delta_files: meta.delta_files.len(),
        deltas: meta.delta_files.iter().map(|file| file.deltas.count).sum(),
        delta_bytes: meta.delta_files.iter().map(|file| file.bytes).sum(),
        rows: meta.rows.into(),
        ancient: rewritten.ancient,
        unfolded: rewritten.unfolded,
    }
}

/// Place of a DiskRowSet in a tablet's key space.
#[derive(Debug, Clone)]
pub struct RowsetPlace {
    pub meta: Arc<RowSetMeta>,
    /// Ends of its keys as fractions of the tablet's bytes, from 0 to 1.
    pub low: f64,
    pub high: f64,
}

/// Returns the places of rowsets, and their height: the rowsets that cover a key, on average.
pub fn places(metas: Vec<Arc<RowSetMeta>>) -> (Vec<RowsetPlace>, f64) {
    let summaries: Vec<RowsetSummary> =
        metas.iter().map(|meta| summarize(meta, RewrittenDeltas::default())).collect();
    let share = |at: i64| at as f64 / WHOLE as f64;
    let place = |(meta, span): (_, Span)| RowsetPlace { meta, low: share(span.low), high: share(span.high) };
    let places = metas.into_iter().zip(spans(&summaries)).map(place).collect();
    (places, share(height(&summaries)))
}

/// Returns the compaction with the highest gain, or else the rewrite of one rowset with many deltas or much ancient
/// history.
pub fn choose(rowsets: &[RowsetSummary], limits: &CompactionLimits) -> Option<CompactionChoice> {
    let spans = spans(rowsets);
    best_compaction(rowsets, &spans, limits).or_else(|| best_rewrite(rowsets, &spans, limits))
}

/// Returns the rowset height: the average number of rowsets whose range covers a key, in fractions of [`WHOLE`].
pub fn height(rowsets: &[RowsetSummary]) -> i64 {
    spans(rowsets).iter().map(|span| span.width()).sum()
}

/// A range of keys; each end is the fraction of all rows below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    low: i64,
    high: i64,
}

impl Span {
    fn width(self) -> i64 {
        self.high - self.low
    }
}

/// Returns the span of each rowset among all rows. A rowset's rows are assumed to be evenly distributed between its
/// ends.
fn spans(rowsets: &[RowsetSummary]) -> Vec<Span> {
    let mut ends: Vec<&[u8]> =
        rowsets.iter().flat_map(|rowset| [&rowset.min_key[..], &rowset.max_key[..]]).collect();
    ends.sort_unstable();
    ends.dedup();
    // Bytes below each end: a share of the rowsets that reach beyond it, and all bytes of those that end before it.
    let (mut below, mut ended) = (vec![0u128; ends.len()], vec![0u128; ends.len() + 1]);
    for rowset in rowsets {
        let end_index = |key: &[u8]| ends.partition_point(|end| *end < key);
        let (first, last) = (end_index(&rowset.min_key), end_index(&rowset.max_key));
        for at in first + 1..=last {
            below[at] += share(rowset, ends[at]);
        }
        ended[last + 1] += u128::from(rowset.bytes);
    }
    let mut before = 0;
    for (below, ended) in below.iter_mut().zip(ended) {
        before += ended;
        *below += before;
    }
    let total = below.last().copied().unwrap_or(0).max(1);
    let at = |key: &[u8]| {
        let below = below[ends.partition_point(|end| *end < key)];
        (below * WHOLE as u128 / total) as i64
    };
    rowsets.iter().map(|rowset| Span { low: at(&rowset.min_key), high: at(&rowset.max_key) }).collect()
}

/// Estimates the bytes of a rowset below `key`, which is between its ends. Keys are interpolated as integers after the
/// common prefix of the ends.
fn share(rowset: &RowsetSummary, key: &[u8]) -> u128 {
    let common = rowset.min_key.iter().zip(&rowset.max_key).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8]| {
        let mut bytes = [0; 8];
        let tail = key.get(common..).unwrap_or_default();
        let len = tail.len().min(8);
        bytes[..len].copy_from_slice(&tail[..len]);
        u128::from(u64::from_be_bytes(bytes))
    };
    let (low, high) = (number(&rowset.min_key), number(&rowset.max_key));
    match high.saturating_sub(low) {
        0 => u128::from(rowset.bytes),
        width => u128::from(rowset.bytes) * number(key).saturating_sub(low).min(width) / width,
    }
}

/// A rowset as an item of the knapsack.
#[derive(Clone, Copy)]
struct Item {
    at: usize,
    span: Span,
    value: i64,
    units: usize,
}

/// Returns the value of one rowset less. `many` small rowsets together reach the least gain.
fn rowset_removal_value(limits: &CompactionLimits) -> i64 {
    (limits.gain_min as u64).div_ceil(limits.many as u64 - 1).max(1) as i64
}

/// Returns the least gain of rewriting `bytes`: `gain_min` scaled by the share of the budget.
fn min_gain_for(bytes: u64, limits: &CompactionLimits) -> i64 {
    let budget = u128::from(limits.budget_bytes.max(1));
    (u128::from(bytes) * limits.gain_min as u128 / budget).min(WHOLE as u128) as i64
}

/// Returns the rowsets whose value exceeds the cost of their bytes, by first key.
fn candidates(rowsets: &[RowsetSummary], spans: &[Span], limits: &CompactionLimits) -> Vec<Item> {
    let item = |(at, rowset): (usize, &RowsetSummary)| {
        let missing_bytes = limits.roll_bytes.saturating_sub(rowset.bytes);
        let small_bonus = (i128::from(rowset_removal_value(limits)) * i128::from(missing_bytes)
            / i128::from(limits.roll_bytes)) as i64;
        let budget = limits.budget_bytes.max(1);
        let units = rowset.bytes.saturating_mul(UNITS as u64) / budget;
        let value = spans[at].width() + small_bonus - min_gain_for(rowset.bytes, limits);
        Item { at, span: spans[at], value, units: units.clamp(1, UNITS as u64 + 1) as usize }
    };
    let mut items: Vec<Item> = rowsets.iter().enumerate().map(item).collect();
    items.retain(|item| item.value > 0 && item.units <= UNITS);
    if items.len() > CANDIDATES_MAX {
        items.sort_by_key(|item| (Reverse(item.value / item.units as i64), item.at));
        items.truncate(CANDIDATES_MAX);
    }
    items.sort_by_key(|item| (item.span.low, item.at));
    items
}

/// Returns the set of rowsets within the budget with the highest gain, if the gain is large enough.
fn best_compaction(
    rowsets: &[RowsetSummary],
    spans: &[Span],
    limits: &CompactionLimits,
) -> Option<CompactionChoice> {
    // Upper bound of any gain: all overlap, and all rowsets that could go away. Most tablets are below the limit and
    // return here.
    let overlap = spans.iter().map(|span| span.width()).sum::<i64>() - WHOLE;
    let small = rowsets.iter().filter(|rowset| rowset.bytes < limits.roll_bytes).count() as i64;
    if overlap.saturating_add(small.saturating_mul(rowset_removal_value(limits))) < limits.gain_min {
        return None;
    }
    let items = candidates(rowsets, spans, limits);
    let mut best: Option<(i64, u64)> = None;
    for (first, left) in items.iter().enumerate() {
        // In the order of right ends, so each item in turn is the last one of the span.
        let mut within: Vec<(usize, &Item)> = items.iter().enumerate().skip(first).collect();
        within.sort_by_key(|(_, item)| item.span.high);
        // For each weight the most valuable filling: its value, and its items as bits.
        let mut filled = [(0i64, 0u64); UNITS + 1];
        for (number, item) in within {
            for weight in (item.units..=UNITS).rev() {
                let (value, chosen) = filled[weight - item.units];
                if value + item.value > filled[weight].0 {
                    filled[weight] = (value + item.value, chosen | 1 << number);
                }
            }
            let (value, chosen) = filled[UNITS];
            let gain = value - (item.span.high - left.span.low);
            if chosen.count_ones() > 1 && best.is_none_or(|(most, _)| gain > most) {
                best = Some((gain, chosen));
            }
        }
    }
    let (_, chosen) = best?;
    let chosen: Vec<&Item> =
        items.iter().enumerate().filter(|(i, _)| chosen >> i & 1 == 1).map(|(_, item)| item).collect();
    let gain = gain_of(&chosen, rowsets, limits);
    (gain >= limits.gain_min).then(|| CompactionChoice {
        kind: CompactionKind::RowSets,
        rowsets: chosen.iter().map(|item| rowsets[item.at].id).collect(),
        gain,
        bytes: chosen.iter().map(|item| rowsets[item.at].bytes).sum(),
    })
}

/// Returns the lookups saved, plus the bonus for each rowset less.
fn gain_of(chosen: &[&Item], rowsets: &[RowsetSummary], limits: &CompactionLimits) -> i64 {
    let widths: i64 = chosen.iter().map(|item| item.span.width()).sum();
    let low = chosen.iter().map(|item| item.span.low).min().unwrap_or(0);
    let high = chosen.iter().map(|item| item.span.high).max().unwrap_or(0);
    let bytes: u64 = chosen.iter().map(|item| rowsets[item.at].bytes).sum();
    let after = bytes.div_ceil(limits.roll_bytes).max(1) as i64;
    let removed = (chosen.len() as i64 - after).max(0);
    widths - (high - low) + removed * rowset_removal_value(limits)
}

/// Returns the rowset with the most delta files, as every read of it searches each of them. Otherwise returns a rowset
/// with many deltas that do not fit its base, or one of which a large part is ancient history, to be rewritten.
fn best_rewrite(
    rowsets: &[RowsetSummary],
    spans: &[Span],
    limits: &CompactionLimits,
) -> Option<CompactionChoice> {
    let with_delta_files = rowsets.iter().zip(spans).filter(|(rowset, _)| rowset.delta_files >= limits.many);
    if let Some((rowset, span)) = with_delta_files.max_by_key(|(rowset, _)| rowset.delta_files) {
        return Some(delta_compaction(rowset, *span, limits));
    }
    let unfolded = rowsets.iter().filter(|rowset| rowset.is_rewritten_for(rowset.unfolded));
    let ancient = rowsets.iter().filter(|rowset| rowset.is_rewritten_for(rowset.ancient));
    let rewritten = unfolded.max_by_key(|rowset| rowset.unfolded);
    let rewritten = rewritten.or_else(|| ancient.max_by_key(|rowset| rowset.ancient))?;
    let (rowsets, bytes) = (vec![rewritten.id], rewritten.bytes);
    Some(CompactionChoice { kind: CompactionKind::RowSets, rowsets, gain: limits.gain_min, bytes })
}

/// Returns the delta compaction of a rowset with many delta files, or a rewrite where a major one would copy many
/// deltas once more.
fn delta_compaction(rowset: &RowsetSummary, span: Span, limits: &CompactionLimits) -> CompactionChoice {
    let is_major = rowset.deltas * 100 >= rowset.rows * limits.major_delta_percent;
    let (kind, bytes) = match is_major {
        true if rowset.is_rewritten_for(rowset.unfolded) => (CompactionKind::RowSets, rowset.bytes),
        true => (CompactionKind::MajorDelta, rowset.bytes),
        false => (CompactionKind::MinorDelta, rowset.delta_bytes),
    };
    let files = span.width().saturating_mul(rowset.delta_files as i64);
    CompactionChoice { kind, rowsets: vec![rowset.id], gain: files.max(limits.gain_min), bytes }
}
