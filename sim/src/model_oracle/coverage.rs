//! Cells of the generator-coverage table that a run reached, by name.

use std::collections::{BTreeMap, BTreeSet};

use sim_plan::client_ops::{MetadataQuery, ScanPause, TableStep, WriteKind};
use sim_plan::tables::{ModelTable, RangeSpec, TypeWord};

use super::history::{ReadCall, ReadOutcome, TableCall, TableEvent, WriteOutcome};
use crate::model::{Condition, Incarnation, RowAnswer};
use crate::wire::scan::ScanTime;

/// Prefix of the names, among a run's marks.
pub const PREFIX: &str = "cell: ";

/// Words of conditions.
const CONDITIONS: [&str; 8] = ["equal", "range", "at-most", "above", "in", "null", "not-null", "bloom"];
/// Most conditions of one scan.
const CONDITIONS_MAX: usize = 4;

/// Returns how often a run reached each cell.
pub fn cells(tables: &[Incarnation], events: &[TableEvent]) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut count = |name: String| *found.entry(format!("{PREFIX}{name}")).or_default() += 1;
    for table in tables {
        shape_cells(&table.versions[0].table).into_iter().for_each(&mut count);
    }
    for event in events {
        let Some(table) = tables.get(event.table) else { continue };
        match &event.call {
            TableCall::Write { rows, outcome: WriteOutcome::Applied { answers, .. } } => {
                for (row, answer) in rows.iter().zip(answers) {
                    count(format!("op {} {answer:?}", row.kind.word()));
                }
            }
            TableCall::Read { call, outcome: ReadOutcome::Rows { .. } } => {
                read_cells(table, call).into_iter().for_each(&mut count);
                let versions = table.possible(event.invoked..=event.returned).count();
                (versions > 1).then(|| count("scan while altered".to_string()));
            }
            TableCall::Metadata { answer, .. } => count(format!("metadata {}", answer.word())),
            TableCall::Write { .. } | TableCall::Read { .. } => {}
        }
    }
    found
}

fn shape_cells(table: &ModelTable) -> Vec<String> {
    let mut found = Vec::new();
    for (at, column) in table.columns.iter().enumerate() {
        let role = if at < usize::from(table.spec.keys) { "key" } else { "value" };
        found.push(format!("type {} {role}", column.kind.word.word()));
        found.extend(column.immutable.then(|| "column immutable".to_string()));
        let (null, default) = (column.nullable, column.read.is_some());
        found.extend((role == "value").then(|| format!("column null={null} default={default}")));
    }
    found.extend(table.auto_increment().map(|_| "auto-increment column".to_string()));
    let all = table.columns.len() == usize::from(table.spec.keys);
    found.extend(all.then(|| "all columns in the key".to_string()));
    found.push(format!("keys {}", table.spec.keys));
    found.push(format!("hash levels {}", table.spec.hash.len()));
    found.extend(
        table
            .spec
            .hash
            .iter()
            .any(|level| level.columns.len() > 1)
            .then(|| "hash of two columns".to_string()),
    );
    found.extend(table.spec.hash.iter().any(|level| level.seed != 0).then(|| "hash with a seed".to_string()));
    found.push(format!("range columns {}", table.spec.range.len()));
    let own = table.ranges.iter().any(|range| !range.hash.is_empty());
    found.extend(own.then(|| "range with its own hash".to_string()));
    let has_other_columns = |range: &RangeSpec| {
        range.hash.iter().zip(&table.spec.hash).any(|(own, of)| own.columns != of.columns)
    };
    let other = table.ranges.iter().any(has_other_columns);
    found.extend(other.then(|| "range hashed by other columns".to_string()));
    let open = table.ranges.iter().any(|range| range.low.is_empty() || range.high.is_empty());
    found.extend(open.then(|| "range without a bound".to_string()));
    found
}

fn read_cells(table: &Incarnation, call: &ReadCall) -> Vec<String> {
    let kind = match (call.since.is_some(), call.ordered, call.columns.is_empty()) {
        (true, ..) => "diff",
        (_, true, _) => "ordered",
        (.., true) => "count",
        _ => "unordered",
    };
    let mut found = vec![format!("scan {kind} conditions {}", call.conditions.len().min(CONDITIONS_MAX))];
    for (number, condition) in &call.conditions {
        let Some(column) = table.columns.get(number) else { continue };
        let role = if usize::from(*number) < table.key_count() { "key" } else { "value" };
        found.push(format!("condition {} {} {role}", condition.word(), column.kind.word.word()));
        found.extend(rare_forms(condition).into_iter().map(ToString::to_string));
    }
    let time = match call.time {
        ScanTime::Latest => "latest",
        ScanTime::Chosen => "chosen",
        ScanTime::YourWrites => "your-writes",
        ScanTime::Named(_) => "named",
    };
    found.push(format!("scan at {time}"));
    found.extend(call.limit.map(|_| format!("scan {kind} limit")));
    found.extend(call.lower.as_ref().map(|_| format!("scan {kind} bounds")));
    found
}

/// Returns the rare forms that a condition has.
fn rare_forms(condition: &Condition) -> Vec<&'static str> {
    match condition {
        Condition::In(values) if values.is_empty() => vec!["list without values"],
        Condition::InSet(_) => vec!["list of very many values"],
        Condition::Bloom { filters, low, high } => {
            let several = (filters.len() > 1).then_some("several Bloom filters");
            let bounded = (low.is_some() || high.is_some()).then_some("Bloom filter with bounds");
            several.into_iter().chain(bounded).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the cells that runs should reach.
pub fn wanted() -> BTreeSet<String> {
    let mut wanted = BTreeSet::new();
    for word in TypeWord::ALL {
        let key = sim_plan::tables::ColumnKind::plain(*word).may_be_key();
        for role in ["value", "key"].into_iter().filter(|role| key || *role == "value") {
            wanted.insert(format!("type {} {role}", word.word()));
            let conditions = CONDITIONS.iter().filter(|condition| role == "value" || **condition != "null");
            wanted
                .extend(conditions.map(|condition| format!("condition {condition} {} {role}", word.word())));
        }
    }
    for kind in ["unordered", "ordered", "diff", "count"] {
        let most = if kind == "diff" { 2 } else { CONDITIONS_MAX };
        wanted.extend((0..=most).map(|count| format!("scan {kind} conditions {count}")));
    }
    wanted.extend(["latest", "chosen", "your-writes", "named"].map(|time| format!("scan at {time}")));
    for kind in ["unordered", "ordered", "count"] {
        wanted.extend([format!("scan {kind} limit"), format!("scan {kind} bounds")]);
    }
    wanted.extend(op_cells());
    wanted.extend((1..=3).map(|keys| format!("keys {keys}")));
    wanted.extend((0..=2).map(|levels| format!("hash levels {levels}")));
    wanted.extend((0..=3).map(|columns| format!("range columns {columns}")));
    for null in [true, false] {
        wanted.extend([true, false].map(|default| format!("column null={null} default={default}")));
    }
    wanted.extend(TableStep::ALL.iter().map(|step| format!("alter {}", step.word())));
    wanted.extend(MetadataQuery::ALL.iter().map(|query| format!("metadata {}", query.word())));
    wanted.extend(ScanPause::ALL.iter().map(|pause| format!("scan pause {}", pause.word())));
    let others = [
        "column immutable",
        "auto-increment column",
        "hash of two columns",
        "hash with a seed",
        "range with its own hash",
        "range hashed by other columns",
        "list without values",
        "list of very many values",
        "several Bloom filters",
        "Bloom filter with bounds",
        "range without a bound",
        "scan while altered",
        "scan by the client",
        "scan by tokens",
        "write by the client",
        "write of several tablets by the client",
        "scan by the client of a new or old tablet",
        "alter refused as a whole",
        "alter settings",
        "all columns in the key",
        "metadata statistics at rest",
        "metadata scanner expired",
        "metadata scanner alive",
        "backup full",
        "backup incremental",
        "restore",
    ];
    wanted.extend(others.map(ToString::to_string));
    wanted.into_iter().map(|name| format!("{PREFIX}{name}")).collect()
}

fn op_cells() -> Vec<String> {
    use RowAnswer::*;
    let answers: [(WriteKind, &[RowAnswer]); 8] = [
        (WriteKind::Insert, &[Done, AlreadyPresent, Refused]),
        (WriteKind::InsertIgnore, &[Done, Ignored, Accepted, Refused]),
        (WriteKind::Upsert, &[Done, Immutable, Refused]),
        (WriteKind::UpsertIgnore, &[Done, Accepted, Refused]),
        (WriteKind::Update, &[Done, NotFound, Immutable]),
        (WriteKind::UpdateIgnore, &[Done, Ignored, Accepted]),
        (WriteKind::Delete, &[Done, NotFound]),
        (WriteKind::DeleteIgnore, &[Done, Ignored, Accepted]),
    ];
    let cell = |(kind, answers): (WriteKind, &[RowAnswer])| -> Vec<String> {
        answers.iter().map(|answer| format!("op {} {answer:?}", kind.word())).collect()
    };
    answers.into_iter().flat_map(cell).collect()
}
