//! Owner, comment and extra configuration of tables: what a request makes of them, and what tablets are given.

use engine::catalog::ExtraConfig;
use engine::schema::table_settings::{DISABLE_COMPACTION, HISTORY_MAX_AGE_SEC, MAINTENANCE_PRIORITY};

use super::model::{BAD_REQUEST, Extra, ModelTable, Refusal};
use crate::oracle::table_settings;

/// Valid values of each key of an extra configuration.
pub(super) const VALUES: [(&str, [&str; 4]); 3] = [
    (HISTORY_MAX_AGE_SEC, ["60", "3600", "-1", ""]),
    (MAINTENANCE_PRIORITY, ["3", "-2", "0", ""]),
    (DISABLE_COMPACTION, ["true", "FALSE", "false", ""]),
];
/// Entries that no table can have.
pub(super) const INVALID: [(&str, &str); 4] = [
    ("kudu.table.colour", "red"),
    (HISTORY_MAX_AGE_SEC, "a week"),
    (MAINTENANCE_PRIORITY, "3000000000"),
    (DISABLE_COMPACTION, "maybe"),
];

/// Returns an extra configuration after a change.
pub(super) fn changed(extra: &Extra, changes: &Extra) -> Result<Extra, Refusal> {
    let mut new = extra.clone();
    for (key, value) in changes {
        let value = value.to_lowercase();
        let is_valid = match key.as_str() {
            HISTORY_MAX_AGE_SEC | MAINTENANCE_PRIORITY => value.is_empty() || value.parse::<i32>().is_ok(),
            DISABLE_COMPACTION => ["", "true", "false"].contains(&value.as_str()),
            _ => false,
        };
        if !is_valid {
            return Err(BAD_REQUEST);
        }
        match value.is_empty() {
            true => drop(new.remove(key)),
            false => drop(new.insert(key.clone(), value)),
        }
    }
    Ok(new)
}

/// Returns true if a tablet is given the settings of its table: a rebuilt catalog has them from there.
pub(super) fn has_settings(table: &ModelTable, extra: &ExtraConfig, attributes: &Extra) -> bool {
    let wanted = attributes_of(table);
    extra.to_map() == table.extra && wanted.iter().all(|(name, value)| attributes.get(name) == Some(value))
}

/// Returns the attributes by which tablets know owner, comment and replication factor of their table.
pub(super) fn attributes_of(table: &ModelTable) -> Extra {
    table_settings::wanted(&Extra::new(), &table.owner, &table.comment, table.replicas)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extra(entries: &[(&str, &str)]) -> Extra {
        entries.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn a_change_sets_and_unsets_keys() {
        let before = extra(&[(HISTORY_MAX_AGE_SEC, "60"), (MAINTENANCE_PRIORITY, "3")]);
        let change = extra(&[(HISTORY_MAX_AGE_SEC, ""), (DISABLE_COMPACTION, "TRUE")]);
        let after = extra(&[(MAINTENANCE_PRIORITY, "3"), (DISABLE_COMPACTION, "true")]);
        assert_eq!(changed(&before, &change), Ok(after));
        for entry in INVALID {
            assert_eq!(changed(&before, &extra(&[entry])), Err(BAD_REQUEST), "{entry:?}");
        }
    }
}
