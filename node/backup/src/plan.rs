//! The backups that restore a table by its name.
//!
//! Invariant: a newer backup of the table that cannot be read, or whose base is missing, refuses the restore. It never
//! falls back to an older state, or to another table of the same name, unless the caller asks for an earlier time.

use engine::error::{Error, Result};

use super::chain::{orphans, restore_chain};
use super::manifest::time_text;
use super::store::{StoreListing, StoredBackup, escape_name};

/// Returns the backups that restore a table, oldest first: of the newest table that had this name until `until_ms`.
pub fn plan(listing: &StoreListing, table: &str, until_ms: Option<u64>) -> Result<Vec<StoredBackup>> {
    let until = until_ms.unwrap_or(u64::MAX);
    let chains = listing.table_ids().into_iter().filter_map(|id| {
        let chain = chain_of(listing, id, until)?;
        (chain.last()?.manifest.table_name == table).then_some(chain)
    });
    let chain = chains.max_by_key(|chain| end_of(chain)).unwrap_or_default();
    if let Some(error) = newer_obstacle(listing, table, &chain, until) {
        return Err(match chain.is_empty() {
            true => error.context(format!("no backup of table {table:?} can be read")),
            false => {
                let whole = time_text(end_of(&chain));
                let what =
                    format!("{}; --until {whole} restores the newest state that is whole", error.message);
                Error { message: what, ..error }
            }
        });
    }
    if chain.is_empty() {
        let when = if until_ms.is_some() { " until this time" } else { "" };
        let message = format!("no backup of table {table:?}{when}; 'nyala backup list' shows all");
        return Err(Error::not_found(message));
    }
    Ok(chain)
}

/// Returns the newest state of a backup's table before that backup, in milliseconds.
pub fn state_before(listing: &StoreListing, backup: &StoredBackup) -> Option<u64> {
    let before = backup.manifest.to_ms.checked_sub(1)?;
    chain_of(listing, &backup.manifest.table_id, before).map(|chain| end_of(&chain))
}

fn end_of(chain: &[StoredBackup]) -> u64 {
    chain.last().map_or(0, |last| last.manifest.to_ms)
}

fn chain_of(listing: &StoreListing, id: &str, until: u64) -> Option<Vec<StoredBackup>> {
    let all = listing.of_table(id);
    let spans: Vec<_> = all.iter().map(|backup| backup.manifest.span()).collect();
    Some(restore_chain(&spans, until)?.into_iter().map(|i| all[i].clone()).collect())
}

/// Returns the reason that a backup newer than the chain cannot be read, if there is one.
fn newer_obstacle(listing: &StoreListing, table: &str, chain: &[StoredBackup], until: u64) -> Option<Error> {
    let id = chain.last().map(|last| last.manifest.table_id.as_str());
    let is_newer = |to_ms: u64| end_of(chain) < to_ms && to_ms <= until;
    let escaped = escape_name(table);
    let unreadable = listing.unreadable.iter().find(|unreadable| {
        let of_table = Some(unreadable.table_id.as_str()) == id || unreadable.escaped_name == escaped;
        of_table && is_newer(unreadable.to_ms)
    });
    if let Some(unreadable) = unreadable {
        return Some(unreadable.error.clone());
    }
    let orphan = listing.orphans().into_iter().find(|orphan| {
        let of_table = Some(orphan.manifest.table_id.as_str()) == id || orphan.manifest.table_name == table;
        of_table && is_newer(orphan.manifest.to_ms)
    })?;
    Some(missing_base(orphan))
}

/// Returns the error of a backup whose base is missing.
pub fn missing_base(orphan: &StoredBackup) -> Error {
    let since = time_text(orphan.manifest.from_ms);
    Error::corrupt(format!("{}: its base, a backup of the state of {since}, is missing", orphan.dir))
}

impl StoreListing {
    /// Returns the identifiers of all tables with backups.
    pub fn table_ids(&self) -> Vec<&str> {
        let mut ids: Vec<&str> =
            self.backups.iter().map(|backup| backup.manifest.table_id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Returns the backups of a table.
    pub fn of_table(&self, id: &str) -> Vec<&StoredBackup> {
        self.backups.iter().filter(|backup| backup.manifest.table_id == id).collect()
    }

    /// Returns the backups whose base is missing.
    pub fn orphans(&self) -> Vec<&StoredBackup> {
        let of_table = |id: &str| {
            let all = self.of_table(id);
            let spans: Vec<_> = all.iter().map(|backup| backup.manifest.span()).collect();
            orphans(&spans).into_iter().map(|i| all[i]).collect::<Vec<_>>()
        };
        self.table_ids().into_iter().flat_map(of_table).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;
    use crate::store::UnreadableBackup;

    fn backup(table: (&str, &str), span: (u64, u64)) -> StoredBackup {
        let dir = format!("{}-{}/{}", table.0, table.1, span.1);
        StoredBackup { dir, manifest: Manifest::example(table, span) }
    }

    fn unreadable((id, name): (&str, &str), to_ms: u64) -> UnreadableBackup {
        UnreadableBackup {
            dir: format!("{id}-{name}/{to_ms}"),
            table_id: id.to_string(),
            escaped_name: escape_name(name),
            to_ms,
            error: Error::corrupt(format!("{id}-{name}/{to_ms} is damaged")),
        }
    }

    fn shown(listing: &StoreListing, table: &str, until_ms: Option<u64>) -> String {
        let until = until_ms.map_or_else(|| "newest".to_string(), |ms| format!("until {ms}"));
        let found = match plan(listing, table, until_ms) {
            Ok(chain) => chain.iter().map(|backup| backup.dir.as_str()).collect::<Vec<_>>().join(", "),
            Err(error) => error.message,
        };
        format!("{table} {until}: {found}")
    }

    #[test]
    fn a_newer_backup_that_cannot_be_read_refuses_the_restore() {
        let (old, new, other) = (("1", "a b"), ("2", "a b"), ("3", "c"));
        let backups = vec![
            backup(old, (0, 10)),
            backup(old, (10, 20)),
            backup(new, (0, 50)),
            backup(new, (60, 70)),
            backup(other, (0, 15)),
            backup(("4", "d"), (5, 9)),
        ];
        let unreadable = vec![unreadable(old, 15), unreadable(new, 40), unreadable(other, 90)];
        let listing = StoreListing { backups, unreadable, ..Default::default() };
        let cases = [
            ("a b", None),
            ("a b", Some(69)),
            ("a b", Some(45)),
            ("a b", Some(39)),
            ("a b", Some(20)),
            ("a b", Some(19)),
            ("a b", Some(14)),
            ("a b", Some(9)),
            ("c", None),
            ("c", Some(89)),
            ("d", None),
            ("e", None),
        ];
        let text = cases.map(|(table, until)| shown(&listing, table, until)).join("\n");
        // Lines stay short without the day.
        insta::assert_snapshot!(text.replace("1970-01-01T00:00:", "").replace("; --until", "\n  --until"), @r#"
        a b newest: 2-a b/70: its base, a backup of the state of 00.060000Z, is missing
          --until 00.050000Z restores the newest state that is whole
        a b until 69: 2-a b/50
        a b until 45: 2-a b/40 is damaged
          --until 00.020000Z restores the newest state that is whole
        a b until 39: 1-a b/10, 1-a b/20
        a b until 20: 1-a b/10, 1-a b/20
        a b until 19: 1-a b/15 is damaged
          --until 00.010000Z restores the newest state that is whole
        a b until 14: 1-a b/10
        a b until 9: no backup of table "a b" until this time; 'nyala backup list' shows all
        c newest: 3-c/90 is damaged
          --until 00.015000Z restores the newest state that is whole
        c until 89: 3-c/15
        d newest: no backup of table "d" can be read: 4-d/9: its base, a backup of the state of 00.005000Z, is missing
        e newest: no backup of table "e"; 'nyala backup list' shows all
        "#);
    }

    #[test]
    fn a_renamed_table_is_found_by_its_last_name() {
        let backups = vec![backup(("1", "a"), (0, 10)), backup(("1", "b"), (10, 20))];
        let listing = StoreListing { backups, ..Default::default() };
        let cases = [("b", None), ("a", None), ("a", Some(19)), ("b", Some(19))];
        insta::assert_snapshot!(cases.map(|(table, until)| shown(&listing, table, until)).join("\n"), @r#"
        b newest: 1-a/10, 1-b/20
        a newest: no backup of table "a"; 'nyala backup list' shows all
        a until 19: 1-a/10
        b until 19: no backup of table "b" until this time; 'nyala backup list' shows all
        "#);
    }
}
