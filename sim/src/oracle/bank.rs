//! The bank: no snapshot shows money appear or vanish.
//!
//! Transfers change two accounts of one client in one call to one tablet, so every snapshot has both changes or none.

use super::{Finding, Report};
use crate::history::{ClientNo, Operation, Outcome, Request, Seen, TableNo};

const NAME: &str = "bank";

/// The table of accounts.
pub const BANK: TableNo = 200;
/// Accounts of each client, and what each begins with.
pub const ACCOUNTS: i64 = 8;
pub const BALANCE: i64 = 1_000;

/// First account of a client, and the one after its last.
pub fn accounts(client: ClientNo) -> (i64, i64) {
    let first = i64::from(client) * ACCOUNTS;
    (first, first + ACCOUNTS)
}

/// Checks the sum of each client's accounts in every snapshot of them all.
pub fn check(operations: &[Operation], report: &mut Report) {
    for (index, operation) in operations.iter().enumerate() {
        let Request::Scan(scan) = &operation.request else { continue };
        let Outcome::Rows { at: Some(at), rows } = &operation.outcome else { continue };
        if scan.table != BANK || scan.diff_from.is_some() {
            continue;
        }
        let clients = scan.keys.0.div_euclid(ACCOUNTS)..scan.keys.1.div_euclid(ACCOUNTS);
        for client in clients.filter_map(|client| ClientNo::try_from(client).ok()) {
            let (first, end) = accounts(client);
            let own: Vec<&Seen> = rows.iter().filter(|seen| (first..end).contains(&seen.key)).collect();
            if own.is_empty() {
                continue;
            }
            report.checked += 1;
            let sum: i64 = own.iter().filter_map(|seen| seen.row.as_ref()?.first().copied().flatten()).sum();
            if sum != ACCOUNTS * BALANCE {
                let show = |seen: &&Seen| format!("{}: {:?}", seen.key, seen.row);
                let message = format!("op {index} at {at}: the accounts of client {client} sum to {sum}");
                let story = own.iter().map(show).collect();
                report.add(Finding { oracle: NAME, message, story });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Mode, Scan};
    use crate::view::WHOLE;

    #[test]
    fn money_may_move_but_not_vanish() {
        let seen = |balances: [i64; 8]| -> Vec<Operation> {
            let row =
                |(key, balance): (usize, &i64)| Seen { key: key as i64, row: Some(vec![Some(*balance)]) };
            let rows = balances.iter().enumerate().map(row).collect();
            let keys = accounts(0);
            let scan = Scan {
                table: BANK,
                keys,
                mode: Mode::Snapshot,
                diff_from: None,
                ordered: false,
                view: WHOLE,
            };
            let (request, outcome) = (Request::Scan(scan), Outcome::Rows { at: Some(9), rows });
            vec![Operation { client: 0, invoked: 1, returned: Some(2), after: 0, request, outcome }]
        };
        let judge = |balances| {
            let mut report = Report::default();
            check(&seen(balances), &mut report);
            assert_eq!(report.checked, 1);
            report.is_clean()
        };
        assert!(judge([1_000; 8]));
        assert!(judge([900, 1_100, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000]));
        assert!(!judge([900, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000]));
    }
}
