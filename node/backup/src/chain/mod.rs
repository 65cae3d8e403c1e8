//! Chains of backups of one table: a full backup, and incremental ones that each begin where another ends.
//!
//! ```text
//! full 0─►10   10─►20   20─►30        restore until 25 reads 0─►10, 10─►20
//!              10─────────────►40     the next incremental backup begins at 40
//! ```
//!
//! Pure: backups are given by their times, results are indices.

use std::collections::{BTreeMap, BTreeSet};

/// Times that a backup covers, in milliseconds: changes since `from_ms`, state at `to_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackupSpan {
    /// 0 for a full backup.
    pub from_ms: u64,
    pub to_ms: u64,
}

impl BackupSpan {
    pub fn is_full(&self) -> bool {
        self.from_ms == 0
    }
}

/// Returns the shortest chain that ends at each time, oldest backup first. Backups without a base are left out.
fn chains(spans: &[BackupSpan]) -> BTreeMap<u64, Vec<usize>> {
    let mut order: Vec<usize> = (0..spans.len()).filter(|i| spans[*i].from_ms < spans[*i].to_ms).collect();
    // Order: a base ends before the backups on it do.
    order.sort_by_key(|i| spans[*i].to_ms);
    let mut chains: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for i in order {
        let span = spans[i];
        let base = if span.is_full() { Some(Vec::new()) } else { chains.get(&span.from_ms).cloned() };
        let Some(mut chain) = base else { continue };
        chain.push(i);
        if chains.get(&span.to_ms).is_none_or(|known| chain.len() < known.len()) {
            chains.insert(span.to_ms, chain);
        }
    }
    chains
}

/// Returns the backups that a restore of the newest state until `until_ms` reads, oldest first.
pub fn restore_chain(spans: &[BackupSpan], until_ms: u64) -> Option<Vec<usize>> {
    chains(spans).range(..=until_ms).next_back().map(|(_, chain)| chain.clone())
}

/// Returns the time at which the next incremental backup begins; `None` if it needs to be full.
pub fn next_base(spans: &[BackupSpan]) -> Option<u64> {
    chains(spans).last_key_value().map(|(to_ms, _)| *to_ms)
}

/// Returns the incremental backups whose base is missing: no restore can read them.
pub fn orphans(spans: &[BackupSpan]) -> Vec<usize> {
    let chains = chains(spans);
    let has_base = |span: &BackupSpan| span.is_full() || chains.contains_key(&span.from_ms);
    (0..spans.len()).filter(|i| !has_base(&spans[*i])).collect()
}

/// Returns the backups that no restore until `cutoff_ms` or later reads, newest first: removed in this order, no
/// backup loses its base.
pub fn prunable(spans: &[BackupSpan], cutoff_ms: u64) -> Vec<usize> {
    let chains = chains(spans);
    // If all are older, the newest stays.
    let at_cutoff = chains.range(..=cutoff_ms).next_back();
    let later = chains.range(cutoff_ms..);
    let needed: BTreeSet<usize> =
        at_cutoff.into_iter().chain(later).flat_map(|(_, chain)| chain.clone()).collect();
    // A backup without a base may be on one that is missing just now: age alone decides.
    let expired = |i: &usize| spans[*i].to_ms < cutoff_ms && !needed.contains(i);
    let mut prunable: Vec<usize> = (0..spans.len()).filter(expired).collect();
    prunable.sort_by_key(|i| std::cmp::Reverse(spans[*i]));
    prunable
}

#[cfg(test)]
mod tests;
