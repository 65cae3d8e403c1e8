//! Tablets have the settings of their table: its extra configuration, which they obey, and the attributes from which a
//! lost catalog is rebuilt.

use std::collections::BTreeMap;

use super::Violation;

const NAME: &str = "table settings";

/// Prefix of the names of attributes.
const ATTRIBUTE: &str = "nyala.";

/// Settings by name.
pub type Settings = BTreeMap<String, String>;

/// Settings that a replica has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaSettings {
    pub tablet: String,
    pub server: String,
    pub settings: Settings,
}

/// Returns the settings that tablets of a table have.
pub fn wanted(extra: &Settings, owner: &str, comment: &str, replicas: i32) -> Settings {
    let replicas = replicas.to_string();
    let attributes = [("owner", owner), ("comment", comment), ("replicas", replicas.as_str())];
    let named = attributes.map(|(name, value)| (format!("{ATTRIBUTE}table.{name}"), value.to_string()));
    extra.iter().map(|(name, value)| (name.clone(), value.clone())).chain(named).collect()
}

/// Reports replicas with other settings than `listed`, by tablet. Tablets that are not listed are left out.
pub fn check(listed: &BTreeMap<String, Settings>, replicas: &[ReplicaSettings]) -> Vec<Violation> {
    replicas.iter().filter_map(|replica| fault(listed.get(&replica.tablet)?, replica)).collect()
}

fn fault(wanted: &Settings, replica: &ReplicaSettings) -> Option<Violation> {
    // Other attributes are the masters' own.
    let is_compared =
        |entry: &(&String, &String)| wanted.contains_key(entry.0) || !entry.0.starts_with(ATTRIBUTE);
    let differ = replica.settings.iter().filter(is_compared).ne(wanted.iter());
    let ReplicaSettings { tablet, server, settings } = replica;
    differ.then(|| {
        let message = format!("tablet {tablet} has the settings {settings:?} at {server}, not {wanted:?}");
        Violation::new(NAME, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(change: impl FnOnce(&mut Settings)) -> usize {
        let extra = Settings::from([("kudu.table.disable_compaction".to_string(), "true".to_string())]);
        let listed = wanted(&extra, "ann", "", 3);
        let mut settings = listed.clone();
        settings.insert("nyala.table.created".to_string(), "17".to_string());
        change(&mut settings);
        let replica = |tablet: &str| ReplicaSettings {
            tablet: tablet.to_string(),
            server: "s".to_string(),
            settings: settings.clone(),
        };
        check(&BTreeMap::from([("t".to_string(), listed)]), &[replica("t"), replica("of no table")]).len()
    }

    #[test]
    fn other_settings_than_those_of_the_table_are_reported() {
        assert_eq!(found(|_| {}), 0);
        let set = |settings: &mut Settings, name: &str, value: &str| {
            settings.insert(name.to_string(), value.to_string());
        };
        assert_eq!(found(|settings| drop(settings.remove("kudu.table.disable_compaction"))), 1);
        assert_eq!(found(|settings| set(settings, "kudu.table.history_max_age_sec", "60")), 1);
        assert_eq!(found(|settings| set(settings, "kudu.table.disable_compaction", "false")), 1);
        assert_eq!(found(|settings| set(settings, "nyala.table.owner", "bob")), 1);
        assert_eq!(found(|settings| drop(settings.remove("nyala.table.replicas"))), 1);
    }
}
