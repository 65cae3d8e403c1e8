//! Settings of a table: owner, comment and extra configuration. None of them changes a row.

use std::collections::BTreeMap;

use sim_plan::RandomStream;

/// Values of each key of an extra configuration. History is kept for longer than any run, so that scans of the past
/// find theirs.
const EXTRA: [(&str, [&str; 3]); 3] = [
    ("kudu.table.history_max_age_sec", ["86400", "1000000", "-1"]),
    ("kudu.table.maintenance_priority", ["-3", "0", "2"]),
    ("kudu.table.disable_compaction", ["false", "false", "true"]),
];
/// Percentage of keys that a table sets, and of settings that a change concerns.
const SET_PERCENT: u64 = 40;
/// Percentage of changed keys that are unset.
const UNSET_PERCENT: u64 = 30;

/// Owner, comment and extra configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableSettings {
    pub owner: String,
    pub comment: String,
    pub extra: BTreeMap<String, String>,
}

impl TableSettings {
    /// Draws the settings of a new table.
    pub fn drawn(random: &mut RandomStream) -> TableSettings {
        let created = TableSettings {
            owner: "owner".to_string(),
            comment: "as created".to_string(),
            extra: BTreeMap::new(),
        };
        created.changed(random)
    }

    /// Returns these settings after a drawn change.
    #[must_use]
    pub fn changed(&self, random: &mut RandomStream) -> TableSettings {
        let mut new = self.clone();
        if random.percent(SET_PERCENT) {
            new.owner = format!("owner-{}", random.below(3));
        }
        if random.percent(SET_PERCENT) {
            new.comment = format!("comment {}", random.below(3));
        }
        for (key, values) in EXTRA {
            let (value, unset) = (random.pick(&values), random.percent(UNSET_PERCENT));
            match (random.percent(SET_PERCENT), unset) {
                (false, _) => {}
                (true, true) => drop(new.extra.remove(key)),
                (true, false) => drop(new.extra.insert(key.to_string(), value.to_string())),
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_set_unset_and_keep_keys() {
        let random = &mut RandomStream::new(1, "settings");
        let (mut set, mut unset, mut kept) = (0, 0, 0);
        let mut settings = TableSettings::drawn(random);
        for _ in 0..60 {
            let next = settings.changed(random);
            set += next.extra.iter().filter(|(key, value)| settings.extra.get(*key) != Some(*value)).count();
            unset += settings.extra.keys().filter(|key| !next.extra.contains_key(*key)).count();
            kept += settings.extra.iter().filter(|(key, value)| next.extra.get(*key) == Some(*value)).count();
            settings = next;
        }
        assert!(set > 10 && unset > 5 && kept > 10, "{set} {unset} {kept}");
    }
}
