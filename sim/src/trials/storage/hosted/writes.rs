//! Writes of rows, whose answers must be those of the model.

use nyala_common::rpc::RequestIdPb;
use nyala_proto::kudu::tserver::{WriteRequestPb, WriteResponsePb};

use super::write_counts::wrong_counts;
use super::{HostedTrial, TABLET, view};
use crate::model::{RowAnswer, RowWrite};
use crate::trials::{draw, requests};
use crate::wire::client::text_of;

/// Most rows of a write.
const ROWS: u64 = 10;

impl HostedTrial {
    /// Writes some rows.
    pub(super) fn write(&mut self) {
        let rows = self.draw_rows();
        let id = self.next_request();
        self.write_rows(&rows, &id);
    }

    /// Draws rows in the columns of the client.
    pub(super) fn draw_rows(&mut self) -> Vec<RowWrite> {
        let count = self.random.between(1, ROWS);
        draw::rows(&mut self.random, &self.view, &self.rows, count)
    }

    /// Writes rows, and compares the reply with the model and with the counters of the server; returns it if they were
    /// executed.
    pub(super) fn write_rows(&mut self, rows: &[RowWrite], id: &RequestIdPb) -> Option<WriteResponsePb> {
        let before = self.metrics_before_write();
        let reply = self.write_until_answered(&self.write_request(rows), id)?;
        let refused = reply.error.as_ref().map(|error| text_of(&error.status));
        match (view::translated(&self.view, &self.table.shape, rows), refused) {
            (Some(rows), None) => {
                self.fleet.note(format!("{} rows are written", rows.len()));
                self.apply(&rows, &reply);
                if let Some(before) = before {
                    self.check_counters(&before, &reply);
                }
                return Some(reply);
            }
            (None, Some(_)) => self.fleet.note("a write of columns that the table does not take is refused"),
            (None, None) => {
                self.fleet.report("a write of columns that the table does not take is executed".to_string());
            }
            (Some(_), Some(why)) => {
                self.fleet.report(format!("a write of columns that the table takes is refused: {why}"));
            }
        }
        None
    }

    pub(super) fn write_request(&self, rows: &[RowWrite]) -> WriteRequestPb {
        requests::write(TABLET, &self.view, rows)
    }

    /// Applies rows to the model, and compares the answers.
    pub(super) fn apply(&mut self, rows: &[RowWrite], reply: &WriteResponsePb) {
        let Some(at) = reply.timestamp else {
            return self.fleet.report("a write has no timestamp".to_string());
        };
        if at <= self.last {
            let last = self.last;
            self.fleet.report(format!("a write at {at} follows what happened at {last}"));
        }
        self.first = if self.first == 0 { at } else { self.first };
        self.last = at;
        let answers = self.rows.apply(&self.table.shape, rows, at);
        for (row, answers) in answers.iter().enumerate() {
            let error = reply.per_row_errors.iter().find(|error| error.row_index as usize == row);
            let told = error.map(|error| error.error.code);
            if !is_answer(answers, told) {
                let why = error.map(|error| text_of(&error.error));
                let row = &rows[row];
                self.fleet.report(format!("{row} at {at} has the error {why:?} instead of {answers:?}"));
            }
        }
        if let Some(what) = wrong_counts(rows, &answers, reply) {
            self.fleet.report(format!("in the reply to a write at {at} {what}"));
        }
    }
}

/// Returns true if the status of a row, or none, is one of the model's answers.
fn is_answer(answers: &[RowAnswer], told: Option<i32>) -> bool {
    let is_done =
        |answer: &RowAnswer| matches!(answer, RowAnswer::Done | RowAnswer::Ignored | RowAnswer::Accepted);
    match told {
        None => answers.iter().any(is_done),
        Some(code) => RowAnswer::of_status(code).is_some_and(|answer| answers.contains(&answer)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVALID_ARGUMENT: i32 = 4;
    const ALREADY_PRESENT: i32 = 6;

    #[test]
    fn the_status_of_a_row_is_its_answer() {
        assert!(is_answer(&[RowAnswer::Done], None));
        assert!(is_answer(&[RowAnswer::Refused, RowAnswer::Ignored], Some(INVALID_ARGUMENT)));
        assert!(is_answer(&[RowAnswer::AlreadyPresent], Some(ALREADY_PRESENT)));
        assert!(!is_answer(&[RowAnswer::AlreadyPresent], None));
        assert!(!is_answer(&[RowAnswer::Done], Some(ALREADY_PRESENT)), "it took effect twice");
        assert!(!is_answer(&[RowAnswer::NotFound], Some(7)));
    }
}
