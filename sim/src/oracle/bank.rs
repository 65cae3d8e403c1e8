//! The bank: no snapshot shows money appear or vanish.
//!
//! Transfers change two accounts of one client in one call to one tablet, so every snapshot has both changes or none.

use super::{OracleReport, Violation};
use crate::history::{CallOutcome, ClientNo, ClientRequest, HistoryOp, ScannedRow, TableNo};

const NAME: &str = "bank";

/// The table of accounts.
pub const BANK: TableNo = 200;
/// Accounts of each client, and the initial balance of each.
pub const ACCOUNTS: i64 = 8;
pub const BALANCE: i64 = 1_000;

/// Returns the first account of a client and the one after its last.
pub fn accounts(client: ClientNo) -> (i64, i64) {
    let first = i64::from(client) * ACCOUNTS;
    (first, first + ACCOUNTS)
}

/// Checks the sum of each client's accounts in every snapshot of them all.
pub fn check(operations: &[HistoryOp], report: &mut OracleReport) {
    for (index, operation) in operations.iter().enumerate() {
        let ClientRequest::Scan(scan) = &operation.request else { continue };
        let CallOutcome::Rows { at: Some(at), rows } = &operation.outcome else { continue };
        if scan.table != BANK || scan.diff_from.is_some() {
            continue;
        }
        let clients = scan.keys.0.div_euclid(ACCOUNTS)..scan.keys.1.div_euclid(ACCOUNTS);
        for client in clients.filter_map(|client| ClientNo::try_from(client).ok()) {
            let (first, end) = accounts(client);
            let own: Vec<&ScannedRow> = rows.iter().filter(|seen| (first..end).contains(&seen.key)).collect();
            if own.is_empty() {
                continue;
            }
            report.checked += 1;
            let sum: i64 = own.iter().filter_map(|seen| seen.row.as_ref()?.first().copied().flatten()).sum();
            if sum != ACCOUNTS * BALANCE {
                let show = |seen: &&ScannedRow| format!("{}: {:?}", seen.key, seen.row);
                let message = format!("op {index} at {at}: the accounts of client {client} sum to {sum}");
                let story = own.iter().map(show).collect();
                report.add(Violation { oracle: NAME, message, story });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{ScanMode, ScanRequest};
    use crate::projection::WHOLE;

    #[test]
    fn money_may_move_but_not_vanish() {
        let seen = |balances: [i64; 8]| -> Vec<HistoryOp> {
            let row = |(key, balance): (usize, &i64)| ScannedRow {
                key: key as i64,
                row: Some(vec![Some(*balance)]),
            };
            let rows = balances.iter().enumerate().map(row).collect();
            let keys = accounts(0);
            let scan = ScanRequest {
                table: BANK,
                keys,
                mode: ScanMode::Snapshot,
                diff_from: None,
                ordered: false,
                view: WHOLE,
            };
            let (request, outcome) = (ClientRequest::Scan(scan), CallOutcome::Rows { at: Some(9), rows });
            vec![HistoryOp { client: 0, invoked: 1, returned: Some(2), after: 0, request, outcome }]
        };
        let is_valid = |balances| {
            let mut report = OracleReport::default();
            check(&seen(balances), &mut report);
            assert_eq!(report.checked, 1);
            report.is_clean()
        };
        assert!(is_valid([1_000; 8]));
        assert!(is_valid([900, 1_100, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000]));
        assert!(!is_valid([900, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000]));
    }
}
