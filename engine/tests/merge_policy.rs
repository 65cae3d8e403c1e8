//! Transcripts of the compaction policy: one rowset a line, and the choice.
//!
//! ```text
//! choose budget=100 roll=32 gain=10 many=4
//! 1 a-m 20            number, first and last key, bytes; of 100 rows; then files=n deltas=n/bytes,
//!                     ancient=n and unfolded=n
//! ----
//! height 2.31 merge 1 2 gain 0.42: 1.89 left
//! ```

use std::fmt::Write;

use datadriven::TestCase;
use engine::tablet::compaction_policy::{
    CompactionChoice, CompactionKind, CompactionLimits, RowsetSummary, WHOLE, choose, height,
};
use proptest::prelude::*;

#[test]
fn transcripts() {
    datadriven::walk("tests/merge_policy", |file| file.run(|case| run(case)));
}

fn run(case: &TestCase) -> String {
    let limits = limits(case);
    let mut rowsets: Vec<RowsetSummary> = case.input.lines().map(parse).collect();
    match case.directive.as_str() {
        "choose" => show(&rowsets, choose(&rowsets, &limits)),
        "repeat" => repeat(&mut rowsets, &limits),
        other => panic!("unknown directive {other}"),
    }
}

fn limits(case: &TestCase) -> CompactionLimits {
    let number = |name: &str, default: u64| case.args.get(name).map_or(default, |v| v[0].parse().unwrap());
    CompactionLimits {
        budget_bytes: number("budget", 128),
        roll_bytes: number("roll", 32),
        gain_min: WHOLE * number("gain", 10) as i64 / 100,
        many: number("many", 8) as usize,
        major_delta_percent: number("major", 10),
    }
}

fn parse(line: &str) -> RowsetSummary {
    let mut words = line.split_whitespace();
    let mut next = || words.next().unwrap();
    let (id, keys, bytes) = (next().parse().unwrap(), next(), next().parse().unwrap());
    let (min, max) = keys.split_once('-').unwrap();
    let mut seen = RowsetSummary {
        id,
        bytes,
        min_key: min.as_bytes().to_vec(),
        max_key: max.as_bytes().to_vec(),
        delta_files: 0,
        deltas: 0,
        delta_bytes: 0,
        rows: 100,
        ancient: 0,
        unfolded: 0,
    };
    for word in words {
        match word.split_once('=').unwrap() {
            ("files", n) => seen.delta_files = n.parse().unwrap(),
            ("deltas", n) => {
                let (count, bytes) = n.split_once('/').unwrap();
                (seen.deltas, seen.delta_bytes) = (count.parse().unwrap(), bytes.parse().unwrap());
            }
            ("ancient", n) => seen.ancient = n.parse().unwrap(),
            ("unfolded", n) => seen.unfolded = n.parse().unwrap(),
            (other, _) => panic!("unknown word {other}"),
        }
    }
    seen
}

fn lookups(parts: i64) -> String {
    format!("{:.2}", parts as f64 / WHOLE as f64)
}

fn show(rowsets: &[RowsetSummary], choice: Option<CompactionChoice>) -> String {
    let mut text = format!("height {}", lookups(height(rowsets)));
    match choice {
        None => text += ", nothing to merge",
        Some(choice) => {
            let ids: Vec<String> = choice.rowsets.iter().map(u64::to_string).collect();
            let verb = match choice.kind {
                CompactionKind::RowSets => "merge",
                CompactionKind::MajorDelta => "fold the deltas of",
                CompactionKind::MinorDelta => "merge the delta files of",
            };
            let (ids, gain, bytes) = (ids.join(" "), lookups(choice.gain), choice.bytes);
            write!(text, ", {verb} {ids} for {gain} at {bytes} bytes").unwrap();
        }
    }
    text + "\n"
}

/// Replaces the rowsets by the result of a compaction, with keys spread evenly over their range. Returns the bytes
/// written.
fn merged(rowsets: &mut Vec<RowsetSummary>, choice: &CompactionChoice, limits: &CompactionLimits) -> u64 {
    let (taken, left): (Vec<RowsetSummary>, Vec<RowsetSummary>) =
        rowsets.drain(..).partition(|seen| choice.rowsets.contains(&seen.id));
    let bytes: u64 = taken.iter().map(|seen| seen.bytes).sum();
    let number = |key: &[u8]| key.iter().chain(&[0; 4]).take(4).fold(0u64, |sum, b| sum << 8 | u64::from(*b));
    let low = taken.iter().map(|seen| number(&seen.min_key)).min().unwrap();
    let high = taken.iter().map(|seen| number(&seen.max_key)).max().unwrap();
    let next = left.iter().chain(&taken).map(|seen| seen.id).max().unwrap() + 1;
    let parts = bytes.div_ceil(limits.roll_bytes).max(1);
    let end = |part: u64| low + (high - low) * part / parts;
    rowsets.extend(left);
    rowsets.extend((0..parts).map(|part| RowsetSummary {
        id: next + part,
        bytes: bytes / parts,
        min_key: (end(part) as u32).to_be_bytes().to_vec(),
        max_key: ((end(part + 1) - u64::from(part + 1 < parts)) as u32).to_be_bytes().to_vec(),
        ..taken[0].clone()
    }));
    bytes
}

/// Compacts until the policy chooses nothing.
fn settle(rowsets: &mut Vec<RowsetSummary>, limits: &CompactionLimits) -> (usize, u64) {
    let (mut merges, mut written) = (0, 0);
    while let Some(choice) = choose(rowsets, limits) {
        assert!(choice.rowsets.len() > 1, "only overlap is left to merge here");
        written += merged(rowsets, &choice, limits);
        merges += 1;
        assert!(merges < 1000, "merging comes to an end");
    }
    (merges, written)
}

fn repeat(rowsets: &mut Vec<RowsetSummary>, limits: &CompactionLimits) -> String {
    let before = height(rowsets);
    let (merges, written) = settle(rowsets, limits);
    let (after, left) = (lookups(height(rowsets)), rowsets.len());
    format!("height {} to {after} with {merges} merges of {written} bytes, {left} left\n", lookups(before))
}

proptest! {
    #[test]
    fn choices_keep_the_budget_and_gain_and_compaction_ends(
        rows in prop::collection::vec((0u16..2000, 0u16..2000, 1u64..40), 0..40),
        budget in 40u64..200,
        gain in 1u32..60,
    ) {
        let seen = |(i, (a, b, bytes)): (usize, (u16, u16, u64))| RowsetSummary {
            id: i as u64,
            bytes,
            min_key: a.min(b).to_be_bytes().to_vec(),
            max_key: a.max(b).to_be_bytes().to_vec(),
            delta_files: 0,
            deltas: 0,
            delta_bytes: 0,
            rows: 100,
            ancient: 0,
            unfolded: 0,
        };
        let mut rowsets: Vec<RowsetSummary> = rows.into_iter().enumerate().map(seen).collect();
        let gain_min = WHOLE * i64::from(gain) / 100;
        let limits = CompactionLimits { budget_bytes: budget, roll_bytes: 32, gain_min, many: 4, major_delta_percent: 10 };
        if let Some(choice) = choose(&rowsets, &limits) {
            let of = |id: &u64| rowsets.iter().find(|seen| seen.id == *id).unwrap().bytes;
            let bytes: u64 = choice.rowsets.iter().map(of).sum();
            prop_assert!(bytes <= budget + budget / 2, "{} of {}", bytes, budget);
            prop_assert!(choice.gain >= gain_min);
            prop_assert_eq!(choose(&rowsets, &limits), Some(choice), "the same every time");
        }
        settle(&mut rowsets, &limits);
    }
}
