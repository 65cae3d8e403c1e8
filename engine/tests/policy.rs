//! Transcripts of the maintenance policy: one tablet a line, and the chosen job.
//!
//! ```text
//! choose short                            memory pressure; also: rows, changes, age, retain, segment as limits
//! a rows=90/30s@7 3=10/5s@9 log=50        rows: bytes/age@first operation; deltas of rowset 3; retained log
//! b frozen log=1200/800/1100 merge=1,2:500/64     log: all/anchored by memory/at the last checkpoint
//! c major=4:250/32                        compactions: rowsets:lookups saved per thousand keys/bytes read and written
//! d priority=-2                           the table's priority
//! ----
//! a: flush the rows
//! ```
//!
//! With `until-idle` each chosen job is treated as done and the next one is chosen, until none is left.

use std::time::Duration;

use datadriven::TestCase;
use engine::config::TabletConfig;
use engine::replica::JobKind;
use engine::replica::maintenance_policy::{DeltaInput, MaintenanceInput, choose};
use engine::tablet::compaction_policy::{CompactionChoice, CompactionKind, WHOLE};

#[test]
fn transcripts() {
    datadriven::walk("tests/policy", |file| file.run(|case| run(case)));
}

fn run(case: &TestCase) -> String {
    let number = |name: &str, default: u64| case.args.get(name).map_or(default, |v| v[0].parse().unwrap());
    let config = TabletConfig {
        mrs_flush_bytes: number("rows", 100) as usize,
        mrs_flush_age_ms: number("age", 120) * 1000,
        dms_flush_bytes: number("changes", 50) as usize,
        dms_flush_age_ms: number("age", 120) * 1000,
        wal_retain_bytes: number("retain", 1000),
        wal_segment_bytes_max: number("segment", 100),
        ..TabletConfig::default()
    };
    let short = case.args.contains_key("short");
    let (names, mut tablets): (Vec<String>, Vec<MaintenanceInput>) = case.input.lines().map(parse).unzip();
    let mut text = String::new();
    loop {
        let Some((i, kind)) = choose(&tablets, &config, short) else { return text + "nothing\n" };
        text += &format!("{}: {}\n", names[i], words(&kind));
        if case.directive != "until-idle" {
            return text;
        }
        done(&mut tablets[i], &kind);
    }
}

fn parse(line: &str) -> (String, MaintenanceInput) {
    let mut words = line.split_whitespace();
    let name = words.next().unwrap().to_string();
    let mut view = MaintenanceInput::default();
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("frozen", _) => view.frozen = true,
            ("rows", held) => {
                let (bytes, age, from) = parse_held(held);
                (view.rows_bytes, view.rows_age, view.rows_from) = (bytes, Some(age), from);
            }
            ("log", sizes) => {
                let sizes: Vec<u64> = sizes.split('/').map(|size| size.parse().unwrap()).collect();
                view.log_bytes = sizes[0];
                view.log_held_bytes = sizes.get(1).copied().unwrap_or(sizes[0]);
                view.log_bytes_at_checkpoint = sizes.get(2).copied().unwrap_or(0);
            }
            ("priority", priority) => view.priority = priority.parse().unwrap(),
            ("merge", merge) => view.merge = Some(parse_merge(merge, CompactionKind::RowSets)),
            ("major", merge) => view.merge = Some(parse_merge(merge, CompactionKind::MajorDelta)),
            ("minor", merge) => view.merge = Some(parse_merge(merge, CompactionKind::MinorDelta)),
            (rowset, held) => {
                let (bytes, age, from) = parse_held(held);
                view.deltas.push(DeltaInput { rowset: rowset.parse().unwrap(), bytes, age, from });
            }
        }
    }
    (name, view)
}

/// Parses `bytes/age@from`.
fn parse_held(held: &str) -> (u64, Duration, u64) {
    let (held, from) = held.split_once('@').unwrap_or((held, "1"));
    let (bytes, age) = held.split_once('/').unwrap_or((held, "1s"));
    let age = Duration::from_secs(age.trim_end_matches('s').parse().unwrap());
    (bytes.parse().unwrap(), age, from.parse().unwrap())
}

/// Parses `rowsets:gain/bytes`.
fn parse_merge(merge: &str, kind: CompactionKind) -> CompactionChoice {
    let (rowsets, cost) = merge.split_once(':').unwrap();
    let (gain, bytes) = cost.split_once('/').unwrap();
    CompactionChoice {
        kind,
        rowsets: rowsets.split(',').map(|id| id.parse().unwrap()).collect(),
        gain: gain.parse::<i64>().unwrap() * WHOLE / 1000,
        bytes: bytes.parse().unwrap(),
    }
}

fn words(kind: &JobKind) -> String {
    match kind {
        JobKind::FlushRows => "flush the rows".into(),
        JobKind::FlushDeltas(rowset) => format!("flush the changes of {rowset}"),
        JobKind::Compact(rowsets) => format!("merge {rowsets:?}"),
        JobKind::MajorDeltaCompaction(rowset) => format!("fold the deltas of {rowset}"),
        JobKind::MinorDeltaCompaction(rowset) => format!("merge the delta files of {rowset}"),
        JobKind::Checkpoint => "checkpoint".into(),
    }
}

/// Updates a tablet after a job: of its log, the part that nothing in memory anchors is deleted.
fn done(view: &mut MaintenanceInput, kind: &JobKind) {
    match kind {
        JobKind::FlushRows => (view.rows_bytes, view.rows_age, view.frozen) = (0, None, false),
        JobKind::FlushDeltas(rowset) => view.deltas.retain(|deltas| deltas.rowset != *rowset),
        JobKind::Compact(_) | JobKind::MajorDeltaCompaction(_) | JobKind::MinorDeltaCompaction(_) => {
            view.merge = None;
        }
        JobKind::Checkpoint => {}
    }
    if view.rows_age.is_none() && view.deltas.is_empty() {
        view.log_bytes -= view.log_held_bytes;
        view.log_held_bytes = 0;
    }
    view.log_bytes_at_checkpoint = view.log_bytes;
}
