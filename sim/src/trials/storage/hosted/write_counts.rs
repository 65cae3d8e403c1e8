//! Counts in the reply to a write: those of its rows, by the kind of their operation.
//!
//! A row that takes effect is counted as done, and one without effect as ignored. A change of which immutable cells are
//! left out may be counted as both, so that such rows bound the counts only. Rows with an error count as neither.

use std::ops::RangeInclusive;

use nyala_proto::kudu::tserver::{ResourceMetricsPb, WriteResponsePb};
use sim_plan::client_ops::WriteKind;

use crate::model::{RowAnswer, RowWrite};

/// Kinds of operations that are counted together, and their counts: rows that are done, and rows that are ignored.
type CountsOfKind = ([WriteKind; 2], i64, i64);

/// Returns what is wrong with the counts in a reply; `answers`: those that each row may have.
pub(super) fn wrong_counts(
    rows: &[RowWrite],
    answers: &[Vec<RowAnswer>],
    reply: &WriteResponsePb,
) -> Option<String> {
    let has_error = |row: usize| reply.per_row_errors.iter().any(|error| error.row_index as usize == row);
    let accepted: Vec<(WriteKind, &[RowAnswer])> = rows
        .iter()
        .zip(answers)
        .enumerate()
        .filter(|(at, _)| !has_error(*at))
        .map(|(_, (row, answers))| (row.kind, answers.as_slice()))
        .collect();
    let all = counts(&reply.resource_metrics.unwrap_or_default());
    all.into_iter().find_map(|of_kind| wrong_count(&accepted, of_kind))
}

fn wrong_count(
    accepted: &[(WriteKind, &[RowAnswer])],
    (kinds, done, ignored): CountsOfKind,
) -> Option<String> {
    let own = accepted.iter().filter(|(kind, _)| kinds.contains(kind));
    let own: Vec<&[RowAnswer]> = own.map(|(_, answers)| *answers).collect();
    let counted = [("done", done, RowAnswer::Done), ("ignored", ignored, RowAnswer::Ignored)];
    counted.into_iter().find_map(|(what, count, answer)| {
        let possible = possible_count(&own, answer);
        let kind = kinds[0].word();
        (!possible.contains(&count))
            .then(|| format!("{count} rows of the kind {kind} are counted as {what}, and not {possible:?}"))
    })
}

/// Returns the possible numbers of rows with this answer.
fn possible_count(rows: &[&[RowAnswer]], answer: RowAnswer) -> RangeInclusive<i64> {
    let (mut least, mut most) = (0, 0);
    for answers in rows {
        let is_possible = |own: &RowAnswer| *own == answer || *own == RowAnswer::Accepted;
        least += i64::from(answers.iter().all(|own| *own == answer));
        most += i64::from(answers.iter().any(is_possible));
    }
    least..=most
}

fn counts(sums: &ResourceMetricsPb) -> [CountsOfKind; 4] {
    use WriteKind::*;
    [
        ([Insert, InsertIgnore], sums.successful_inserts(), sums.insert_ignore_errors()),
        ([Upsert, UpsertIgnore], sums.successful_upserts(), sums.upsert_ignore_errors()),
        ([Update, UpdateIgnore], sums.successful_updates(), sums.update_ignore_errors()),
        ([Delete, DeleteIgnore], sums.successful_deletes(), sums.delete_ignore_errors()),
    ]
}

#[cfg(test)]
mod tests {
    use nyala_proto::kudu::tserver::write_response_pb::PerRowErrorPb;

    use super::*;
    use crate::model::RowCells;

    /// Returns true if the counts of these rows fit. The last row has an error.
    fn fit(change: impl FnOnce(&mut ResourceMetricsPb)) -> bool {
        use RowAnswer::*;
        let rows: [(WriteKind, &[RowAnswer]); 6] = [
            (WriteKind::Insert, &[Done]),
            (WriteKind::InsertIgnore, &[Ignored]),
            (WriteKind::UpdateIgnore, &[Done, Ignored]),
            (WriteKind::Delete, &[Done]),
            (WriteKind::DeleteIgnore, &[Done]),
            (WriteKind::Upsert, &[Immutable]),
        ];
        let write = |(kind, _): &(WriteKind, &[RowAnswer])| RowWrite { kind: *kind, cells: RowCells::new() };
        let written: Vec<RowWrite> = rows.iter().map(write).collect();
        let answers: Vec<Vec<RowAnswer>> = rows.iter().map(|(_, answers)| answers.to_vec()).collect();
        let mut sums = ResourceMetricsPb {
            successful_inserts: Some(1),
            insert_ignore_errors: Some(1),
            successful_updates: Some(1),
            update_ignore_errors: Some(1),
            successful_deletes: Some(2),
            ..Default::default()
        };
        change(&mut sums);
        let error = PerRowErrorPb { row_index: 5, ..Default::default() };
        let reply = WriteResponsePb {
            per_row_errors: vec![error],
            resource_metrics: Some(sums),
            ..Default::default()
        };
        wrong_counts(&written, &answers, &reply).is_none()
    }

    #[test]
    fn counts_of_other_rows_are_reported() {
        assert!(fit(|_| {}));
        assert!(fit(|sums| sums.update_ignore_errors = None), "a row may count once");
        assert!(!fit(|sums| *sums = ResourceMetricsPb::default()), "the counts are lost");
        assert!(!fit(|sums| std::mem::swap(&mut sums.successful_inserts, &mut sums.successful_upserts)));
        assert!(!fit(|sums| sums.insert_ignore_errors = Some(2)));
        assert!(!fit(|sums| sums.successful_updates = Some(2)));
        assert!(!fit(|sums| sums.successful_upserts = Some(1)), "the row has an error");
        assert!(!fit(|sums| sums.delete_ignore_errors = Some(1)));
    }
}
