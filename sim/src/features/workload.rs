//! Workload: what clients asked for, with the kind of the answer.

use std::collections::BTreeSet;

use super::feature_set::{WORKLOAD, feature};
use crate::history::{CallError, CallOutcome, ClientRequest, HistoryOp, RowResult};
use crate::model_oracle::coverage;
use crate::oracle::answers;

/// Rows of an answer that count as many.
const MANY: usize = 2;

/// Returns the features of calls, of cells of the coverage table and of kinds of answers.
pub(super) fn features<'a>(
    marks: impl IntoIterator<Item = (&'a String, &'a u64)>,
    operations: &[HistoryOp],
) -> BTreeSet<u64> {
    let is_cell =
        |mark: &str| [coverage::PREFIX, answers::PREFIX].iter().any(|prefix| mark.starts_with(prefix));
    let cells = marks.into_iter().map(|(mark, _)| mark).filter(|mark| is_cell(mark));
    let mut found: BTreeSet<u64> = cells.map(|mark| feature(WORKLOAD, mark)).collect();
    operations.iter().for_each(|op| found.extend(of_call(op)));
    found
}

fn of_call(op: &HistoryOp) -> Vec<u64> {
    let answer = answer(&op.outcome);
    match &op.request {
        ClientRequest::Write { rows, .. } => {
            let results = match &op.outcome {
                CallOutcome::Written(results) => results.as_slice(),
                _ => &[],
            };
            let of_row = |(at, row): (usize, &crate::rows::RowOp)| {
                let result = results.get(at).map(result_word);
                feature(WORKLOAD, ("write", format!("{:?}", row.kind), result, &answer))
            };
            rows.iter().enumerate().map(of_row).collect()
        }
        ClientRequest::Scan(scan) => {
            let how = (format!("{:?}", scan.mode), scan.diff_from.is_some(), scan.ordered);
            vec![feature(WORKLOAD, ("scan", how, &answer))]
        }
        ClientRequest::Other(text) | ClientRequest::Operator(text) => {
            let word = text.split(' ').next().unwrap_or_default();
            vec![feature(WORKLOAD, ("other", word, &answer))]
        }
    }
}

fn result_word(result: &RowResult) -> String {
    match result {
        RowResult::At { outcome, .. } => format!("{outcome:?}"),
        RowResult::Unknown => "unknown".to_string(),
    }
}

/// Returns the kind of an answer: its numbers of rows and kinds of errors, not their texts.
fn answer(outcome: &CallOutcome) -> String {
    let kind = |error: &CallError| error.kind.map_or("none".to_string(), |kind| format!("{kind:?}"));
    match outcome {
        CallOutcome::Pending => "pending".to_string(),
        CallOutcome::Written(_) => "written".to_string(),
        CallOutcome::Rows { rows, .. } => format!("rows {}", rows.len().min(MANY)),
        CallOutcome::Done => "done".to_string(),
        CallOutcome::Failed(error) => format!("failed {}", kind(error)),
        CallOutcome::Unknown(error) => format!("unknown {}", kind(error)),
    }
}
