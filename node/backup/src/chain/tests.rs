use proptest::prelude::*;

use super::*;

fn spans(times: &[(u64, u64)]) -> Vec<BackupSpan> {
    times.iter().map(|(from_ms, to_ms)| BackupSpan { from_ms: *from_ms, to_ms: *to_ms }).collect()
}

/// Shows backups as `from-to`.
fn shown(spans: &[BackupSpan], picked: &[usize]) -> String {
    let one = |i: &usize| format!("{}-{}", spans[*i].from_ms, spans[*i].to_ms);
    picked.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_restore_reads_the_shortest_chain_to_the_newest_state() {
    let spans = spans(&[(20, 30), (0, 10), (10, 20), (10, 40), (35, 60), (0, 30)]);
    let until = |ms| match restore_chain(&spans, ms) {
        Some(chain) => format!("until {ms}: {}", shown(&spans, &chain)),
        None => format!("until {ms}: nothing"),
    };
    insta::assert_snapshot!([5, 10, 25, 30, 39, 40, 99].map(until).join("\n"), @r"
    until 5: nothing
    until 10: 0-10
    until 25: 0-10 10-20
    until 30: 0-30
    until 39: 0-30
    until 40: 0-10 10-40
    until 99: 0-10 10-40
    ");
    assert_eq!(next_base(&spans), Some(40));
    assert_eq!(shown(&spans, &orphans(&spans)), "35-60");
    assert_eq!(next_base(&spans[..1]), None);
}

#[test]
fn what_a_later_restore_reads_stays() {
    let spans = spans(&[(0, 10), (10, 20), (20, 30), (0, 40), (40, 50), (3, 7)]);
    let at = |ms| format!("keep since {ms}: {}", shown(&spans, &prunable(&spans, ms)));
    insta::assert_snapshot!([5, 10, 25, 30, 45, 99].map(at).join("\n"), @r"
    keep since 5: 
    keep since 10: 3-7
    keep since 25: 3-7
    keep since 30: 3-7
    keep since 45: 20-30 10-20 3-7 0-10
    keep since 99: 20-30 10-20 3-7 0-10
    ");
}

/// Returns true if a chain of the backups leads from nothing to `to`: the definition, by search.
fn is_reachable(spans: &[BackupSpan], to: u64) -> bool {
    let ends = |span: &&BackupSpan| span.to_ms == to && span.from_ms < to;
    spans.iter().filter(ends).any(|span| span.from_ms == 0 || is_reachable(spans, span.from_ms))
}

fn newest(spans: &[BackupSpan], until: u64) -> Option<u64> {
    (0..=until).rev().find(|at| is_reachable(spans, *at))
}

proptest! {
    #[test]
    fn chains_agree_with_a_search_and_survive_pruning(
        times in prop::collection::vec((0u64..9, 1u64..12), 0..10),
        until in 0u64..14,
        cutoff in 0u64..14,
    ) {
        let spans = spans(&times);
        let chain = restore_chain(&spans, until);
        prop_assert_eq!(chain.as_ref().map(|chain| spans[chain[chain.len() - 1]].to_ms), newest(&spans, until));
        for pair in chain.iter().flat_map(|chain| chain.windows(2)) {
            prop_assert_eq!(spans[pair[0]].to_ms, spans[pair[1]].from_ms);
        }
        prop_assert!(chain.is_none_or(|chain| spans[chain[0]].is_full()));
        for i in orphans(&spans) {
            prop_assert!(spans[i].from_ms > 0 && !is_reachable(&spans, spans[i].from_ms));
        }
        // Interrupted after any removal, a restore until the cutoff or later gives what it gave before.
        let prunable = prunable(&spans, cutoff);
        for removed in 0..=prunable.len() {
            let left = |(i, _): &(usize, &BackupSpan)| !prunable[..removed].contains(i);
            let left: Vec<BackupSpan> = spans.iter().enumerate().filter(left).map(|(_, span)| *span).collect();
            for until in cutoff..14 {
                prop_assert_eq!(newest(&left, until), newest(&spans, until));
            }
        }
    }
}
