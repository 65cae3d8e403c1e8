//! Which DiskRowSets to merge: the ones that save the most lookups for the bytes that may be written.
//!
//! ```text
//!   keys    a·········b····c·····d······e·····f      by share of the rows, not by letters
//!           [────────────────────]                   widths 0.6
//!                     [──────────────────]                  0.5
//!           [─────────]                                     0.3   a key lies in 1.4 of them, on average
//!   merged  [────────────────────────────]                  0.9   0.5 lookups saved
//! ```
//!
//! A key is looked up in every rowset whose range covers it, so the sum of the widths is the lookups that a random key
//! costs. Merging replaces the widths of some by the width of what they span. Which ones is a knapsack: the value of a
//! rowset is its width, its weight the bytes that are read and written again, the budget what one merge may write, and
//! for each left and each right end of the span the best filling is sought. Rowsets that are smaller than they might be
//! count a little more: every scan opens each of them. A merge that gains less than [`Limits::gain_min`] is not made,
//! and none carries a rowset along that is not worth its bytes. So merges come to an end.
//!
//! Source: the Kudu paper, section 4.10.

use std::cmp::Reverse;
use std::sync::Arc;

use super::Tablet;
use super::diskrowset::DiskRowSet;
use super::rowset::RowSetId;
use super::rowset_writer::RowSetMeta;
use crate::config::TabletConfig;
use crate::time::Timestamp;

/// All keys; widths and lookups are counted in parts of it.
pub const WHOLE: i64 = 1 << 20;
/// Rowsets that the knapsack chooses from: those that are worth the most for their bytes.
const CANDIDATES_MAX: usize = 64;
/// Parts of the budget that rowsets are weighed in. Weights are rounded down, so a choice may go over it by a little.
const UNITS: usize = 128;
/// A rowset is rewritten for its ancient history if there is one ancient change for so many rows.
const ANCIENT_PER_ROWS: u64 = 4;

/// What there is to know of a DiskRowSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub id: RowSetId,
    pub bytes: u64,
    /// Encoded keys of its first and last row.
    pub min_key: Vec<u8>,
    pub max_key: Vec<u8>,
    pub delta_files: usize,
    pub rows: u64,
    /// Changes that are older than the history that is kept.
    pub ancient: u64,
}

/// What a merge may cost and has to gain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the rowsets that are merged at once.
    pub budget_bytes: u64,
    /// Bytes at which the result is cut into several rowsets.
    pub roll_bytes: u64,
    /// The least gain for which a merge is made, in parts of [`WHOLE`].
    pub gain_min: i64,
    /// So many small rowsets side by side are worth merging, and so many files of changes of one rowset.
    pub many: usize,
}

impl From<&TabletConfig> for Limits {
    fn from(config: &TabletConfig) -> Limits {
        Limits {
            budget_bytes: config.merge_budget_bytes,
            roll_bytes: config.rowset_roll_bytes.max(1),
            gain_min: WHOLE * i64::from(config.merge_gain_min_percent) / 100,
            many: config.merge_min.max(2),
        }
    }
}

/// Rowsets to merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// By key.
    pub rowsets: Vec<RowSetId>,
    /// Lookups that a random key will cost less, in parts of [`WHOLE`].
    pub gain: i64,
    /// What is read for it, and about what is written.
    pub bytes: u64,
    /// Whether it is enough to take the one rowset's files of changes into the columns that they changed.
    pub only_changes: bool,
}

/// What the last look at a tablet came to. It holds until one of the rowsets is another, or has changed: most looks
/// find all as it was.
#[derive(Default)]
pub(super) struct LastLook {
    /// Each with its changes that are older than the history that is kept.
    rowsets: Vec<(Arc<RowSetMeta>, u64)>,
    choice: Option<Choice>,
}

impl LastLook {
    /// What is worth merging of `disk`, of which nothing before `mark` is read any more.
    fn choice(&mut self, disk: &[Arc<DiskRowSet>], mark: Timestamp, limits: &Limits) -> Option<Choice> {
        let same = |(rowset, last): (&Arc<DiskRowSet>, &(Arc<RowSetMeta>, u64))| {
            let (meta, ancient) = rowset.meta_and_ancient(mark);
            Arc::ptr_eq(&meta, &last.0) && ancient == last.1
        };
        if disk.len() != self.rowsets.len() || !disk.iter().zip(&self.rowsets).all(same) {
            self.rowsets = disk.iter().map(|rowset| rowset.meta_and_ancient(mark)).collect();
            let seen: Vec<Seen> = self.rowsets.iter().map(|(meta, ancient)| seen(meta, *ancient)).collect();
            self.choice = choose(&seen, limits);
        }
        self.choice.clone()
    }
}

fn seen(meta: &RowSetMeta, ancient: u64) -> Seen {
    Seen {
        id: meta.id,
        bytes: meta.bytes,
        min_key: meta.min_key.clone(),
        max_key: meta.max_key.clone(),
        delta_files: meta.delta_files.len(),
        rows: meta.rows.into(),
        ancient,
    }
}

impl Tablet {
    /// DiskRowSets whose merging does the most good; `None` if it would do little.
    pub fn worth_merging(&self) -> Option<Choice> {
        let (state, mark) = (self.state(), self.history_mark());
        let mut last = self.last_look.lock().expect("no holder of the lock panics");
        last.choice(&state.disk, mark, &Limits::from(self.config()))
    }
}

/// The merge that gains the most, else the rewriting of one rowset that has gathered changes or dead history.
pub fn choose(rowsets: &[Seen], limits: &Limits) -> Option<Choice> {
    let spans = spans(rowsets);
    best_merge(rowsets, &spans, limits).or_else(|| best_rewrite(rowsets, &spans, limits))
}

/// Lookups that a random key costs: the average number of rowsets whose range covers it, in parts of [`WHOLE`].
pub fn height(rowsets: &[Seen]) -> i64 {
    spans(rowsets).iter().map(|span| span.width()).sum()
}

/// A range of keys, as the parts of all rows that lie below its ends.
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

/// Where each rowset lies among the rows of all: a rowset's rows are taken to lie evenly between its ends.
fn spans(rowsets: &[Seen]) -> Vec<Span> {
    let mut ends: Vec<&[u8]> =
        rowsets.iter().flat_map(|seen| [&seen.min_key[..], &seen.max_key[..]]).collect();
    ends.sort_unstable();
    ends.dedup();
    // Bytes below each of the ends: of rowsets that reach beyond it, and, summed up, of those that end before.
    let (mut below, mut ended) = (vec![0u128; ends.len()], vec![0u128; ends.len() + 1]);
    for seen in rowsets {
        let place = |key: &[u8]| ends.partition_point(|end| *end < key);
        let (first, last) = (place(&seen.min_key), place(&seen.max_key));
        for at in first + 1..=last {
            below[at] += share(seen, ends[at]);
        }
        ended[last + 1] += u128::from(seen.bytes);
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
    rowsets.iter().map(|seen| Span { low: at(&seen.min_key), high: at(&seen.max_key) }).collect()
}

/// About how many of a rowset's bytes lie below `key`, which is between its ends: keys are numbers after what the
/// ends have in common.
fn share(seen: &Seen, key: &[u8]) -> u128 {
    let common = seen.min_key.iter().zip(&seen.max_key).take_while(|(a, b)| a == b).count();
    let number = |key: &[u8]| {
        let mut bytes = [0; 8];
        let tail = key.get(common..).unwrap_or_default();
        let len = tail.len().min(8);
        bytes[..len].copy_from_slice(&tail[..len]);
        u128::from(u64::from_be_bytes(bytes))
    };
    let (low, high) = (number(&seen.min_key), number(&seen.max_key));
    match high.saturating_sub(low) {
        0 => u128::from(seen.bytes),
        width => u128::from(seen.bytes) * number(key).saturating_sub(low).min(width) / width,
    }
}

/// A rowset as the knapsack sees it.
#[derive(Clone, Copy)]
struct Item {
    at: usize,
    span: Span,
    value: i64,
    units: usize,
}

/// What one rowset less is worth: `many` of them in one make a merge worth while.
fn rowset_worth(limits: &Limits) -> i64 {
    (limits.gain_min as u64).div_ceil(limits.many as u64 - 1).max(1) as i64
}

/// What of `budget_bytes` these bytes are, in parts of `gain`: the least that rewriting them must gain.
fn price(bytes: u64, limits: &Limits) -> i64 {
    let budget = u128::from(limits.budget_bytes.max(1));
    (u128::from(bytes) * limits.gain_min as u128 / budget).min(WHOLE as u128) as i64
}

/// Rowsets that are worth more than their bytes, by their first key.
fn candidates(rowsets: &[Seen], spans: &[Span], limits: &Limits) -> Vec<Item> {
    let item = |(at, seen): (usize, &Seen)| {
        let missing = limits.roll_bytes.saturating_sub(seen.bytes);
        let small =
            (i128::from(rowset_worth(limits)) * i128::from(missing) / i128::from(limits.roll_bytes)) as i64;
        let budget = limits.budget_bytes.max(1);
        let units = seen.bytes.saturating_mul(UNITS as u64) / budget;
        let value = spans[at].width() + small - price(seen.bytes, limits);
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

/// The set of rowsets within the budget that gains the most, if that is enough.
fn best_merge(rowsets: &[Seen], spans: &[Span], limits: &Limits) -> Option<Choice> {
    // All overlap there is, and all rowsets that could be fewer: most tablets are in order, and not looked at further.
    let overlap = spans.iter().map(|span| span.width()).sum::<i64>() - WHOLE;
    let small = rowsets.iter().filter(|seen| seen.bytes < limits.roll_bytes).count() as i64;
    if overlap.saturating_add(small.saturating_mul(rowset_worth(limits))) < limits.gain_min {
        return None;
    }
    let items = candidates(rowsets, spans, limits);
    let mut best: Option<(i64, u64)> = None;
    for (first, left) in items.iter().enumerate() {
        // By their right ends, so that each of them in turn is the last one that the span takes in.
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
    (gain >= limits.gain_min).then(|| Choice {
        rowsets: chosen.iter().map(|item| rowsets[item.at].id).collect(),
        gain,
        bytes: chosen.iter().map(|item| rowsets[item.at].bytes).sum(),
        only_changes: false,
    })
}

/// Lookups saved, and a little for each rowset less.
fn gain_of(chosen: &[&Item], rowsets: &[Seen], limits: &Limits) -> i64 {
    let widths: i64 = chosen.iter().map(|item| item.span.width()).sum();
    let low = chosen.iter().map(|item| item.span.low).min().unwrap_or(0);
    let high = chosen.iter().map(|item| item.span.high).max().unwrap_or(0);
    let bytes: u64 = chosen.iter().map(|item| rowsets[item.at].bytes).sum();
    let after = bytes.div_ceil(limits.roll_bytes).max(1) as i64;
    let fewer = (chosen.len() as i64 - after).max(0);
    widths - (high - low) + fewer * rowset_worth(limits)
}

/// One rowset whose files of changes are better taken in, as a read of it looks into each of them; or one to be written
/// anew because much of it is history that nothing may read any more.
fn best_rewrite(rowsets: &[Seen], spans: &[Span], limits: &Limits) -> Option<Choice> {
    let gathered = rowsets.iter().zip(spans).filter(|(seen, _)| seen.delta_files >= limits.many);
    if let Some((seen, span)) = gathered.max_by_key(|(seen, _)| seen.delta_files) {
        let files = span.width().saturating_mul(seen.delta_files as i64);
        let gain = files.max(limits.gain_min);
        return Some(Choice { rowsets: vec![seen.id], gain, bytes: seen.bytes, only_changes: true });
    }
    let worth = |seen: &&Seen| seen.ancient > 0 && seen.ancient * ANCIENT_PER_ROWS >= seen.rows;
    let ancient = rowsets.iter().filter(worth).max_by_key(|seen| seen.ancient)?;
    let (rowsets, bytes) = (vec![ancient.id], ancient.bytes);
    Some(Choice { rowsets, gain: limits.gain_min, bytes, only_changes: false })
}
