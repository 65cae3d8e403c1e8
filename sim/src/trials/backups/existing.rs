//! Restores into a table that exists: rows of the backup replace those with their keys, and others stay.

use engine::error::{Error, Result};
use nyala_backup::restore::{RestoreRequest, RestoreTarget};
use nyala_client::{FlushMode, RowOpKind, SessionConfig};

use super::columns::{self, ReadRows, Row, ValueColumn};
use super::keeper::{Keeper, TABLE, WIDTH};
use super::restoring::SETTLING;
use super::saved::Saved;

/// Most rows that are changed before a restore.
const ROWS: u64 = 20;

impl Keeper {
    /// Changes rows of a restored table, and restores the same backup over them.
    pub(super) async fn restore_over(&mut self, to_ms: u64, name: &str) -> Result<()> {
        let saved = self.backups[&to_ms].clone();
        let kept = self.spoil(&saved, name).await?;
        let request = RestoreRequest {
            table: TABLE.to_string(),
            until_ms: Some(to_ms),
            name: Some(name.to_string()),
            replicas: None,
            target: RestoreTarget::Existing,
        };
        loop {
            let attempt = self.attempt(&request).await?;
            let told = attempt.outcome.as_ref().map(|done| done.is_ok());
            self.note(format!("restore of {to_ms} over {name}: {told:?}"));
            match &attempt.outcome {
                Some(Ok(_)) => break,
                Some(Err(error)) if !attempt.may_fail_with(error) => return Err(error.clone()),
                Some(Err(_)) | None => {}
            }
            self.env.sleep(SETTLING).await;
        }
        let found = self.read(name).await?;
        let odd = wrong_row(&saved.rows, &kept, &found, |key| self.ever.contains(&key));
        odd.map_or(Ok(()), |what| {
            Err(Error::corrupt(format!("the backup at {to_ms}, restored over {name}: {what}")))
        })
    }

    /// Changes, adds and deletes rows of a restored table; returns its rows.
    async fn spoil(&mut self, saved: &Saved, name: &str) -> Result<ReadRows> {
        let (table, mut rows) = (self.client.open_table(name).await?, saved.rows.clone());
        let session = self.client.session(SessionConfig::new(FlushMode::Manual));
        let ranges: Vec<i64> = saved.ranges.iter().copied().collect();
        for _ in 0..self.random.between(1, ROWS) {
            if ranges.is_empty() {
                break;
            }
            let key = self.random.pick(&ranges) * WIDTH + self.random.below(WIDTH as u64) as i64;
            let (kind, cells) = columns::draw_op(&mut self.random, &saved.columns, rows.contains_key(&key));
            columns::apply(&session, (&table, &saved.columns), kind, (key, &cells)).await?;
            if kind == RowOpKind::Delete {
                rows.remove(&key);
            } else {
                replace(&mut rows, &saved.columns, key, &cells);
            }
        }
        match session.flush().await.pop() {
            Some(failure) => Err(failure.error),
            None => Ok(rows),
        }
    }
}

/// Writes cells of a row in place of those that it has, or of the defaults.
fn replace(rows: &mut ReadRows, columns: &[ValueColumn], key: i64, cells: &Row) {
    let new = || columns.iter().map(|column| column.default).collect();
    let row = rows.entry(key).or_insert_with(new);
    for (at, column) in columns.iter().enumerate() {
        row[at] = cells.get(&column.number).copied().unwrap_or(row[at]);
    }
}

/// Returns what is wrong with the rows of a table after a restore: `wanted` are those of the backup, `kept`
/// those before the restore. `ever`: keys that the backed-up table had once. A backup before this one may
/// have had such a row, and this one tells that it is gone.
fn wrong_row(
    wanted: &ReadRows,
    kept: &ReadRows,
    found: &ReadRows,
    ever: impl Fn(i64) -> bool,
) -> Option<String> {
    let lost = wanted.iter().find(|(key, row)| found.get(key) != Some(row));
    let is_other = |(key, row): &(&i64, &Vec<Option<i64>>)| {
        let may_be_gone = ever(**key) && !found.contains_key(key);
        !wanted.contains_key(key) && found.get(key) != Some(row) && !may_be_gone
    };
    let changed = kept.iter().find(is_other);
    let odd = found.iter().find(|(key, _)| !wanted.contains_key(key) && !kept.contains_key(key));
    let is_right = lost.is_none() && changed.is_none() && odd.is_none();
    (!is_right).then(|| {
        let kept = format!("kept row that changed: {changed:?}, row of neither: {odd:?}");
        format!("missing row of the backup: {lost:?}, {kept}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(of: &[(i64, i64)]) -> ReadRows {
        of.iter().map(|(key, value)| (*key, vec![Some(*value)])).collect()
    }

    #[test]
    fn rows_of_the_backup_replace_others_and_the_rest_stays() {
        let (wanted, kept) = (rows(&[(1, 10), (2, 20)]), rows(&[(1, 99), (3, 30), (4, 40)]));
        let wrong = |found: &[(i64, i64)]| wrong_row(&wanted, &kept, &rows(found), |key| key == 4).is_some();
        assert!(!wrong(&[(1, 10), (2, 20), (3, 30), (4, 40)]));
        assert!(!wrong(&[(1, 10), (2, 20), (3, 30)]), "the backup may know that it is gone");
        assert!(wrong(&[(1, 99), (2, 20), (3, 30), (4, 40)]), "not restored");
        assert!(wrong(&[(1, 10), (3, 30), (4, 40)]), "lost");
        assert!(wrong(&[(1, 10), (2, 20), (4, 40)]), "no backup ever had it");
        assert!(wrong(&[(1, 10), (2, 20), (3, 30), (4, 41)]), "changed");
        assert!(wrong(&[(1, 10), (2, 20), (3, 30), (5, 50)]), "from nowhere");
    }

    #[test]
    fn a_row_keeps_the_cells_that_are_not_written() {
        let columns =
            [ValueColumn::initial(), ValueColumn { number: 2, default: Some(7), ..ValueColumn::initial() }];
        let mut table = ReadRows::from([(1, vec![Some(1), Some(2)])]);
        replace(&mut table, &columns, 1, &Row::from([(1, None)]));
        replace(&mut table, &columns, 2, &Row::from([(1, Some(3))]));
        assert_eq!(table, ReadRows::from([(1, vec![None, Some(2)]), (2, vec![Some(3), Some(7)])]));
    }
}
