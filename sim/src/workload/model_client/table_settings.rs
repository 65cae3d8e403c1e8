//! Settings of model tables in requests, and as masters report them.

use nyala_proto::kudu::master::{AlterTableRequestPb, GetTableSchemaResponsePb};

use crate::model::TableSettings;

/// Adds the differences between two settings to an alteration; a key with an empty value is unset.
pub(super) fn add_changes(request: &mut AlterTableRequestPb, before: &TableSettings, after: &TableSettings) {
    let changed = |before: &String, after: &String| (before != after).then(|| after.clone());
    request.new_table_owner = changed(&before.owner, &after.owner);
    request.new_table_comment = changed(&before.comment, &after.comment);
    let gone = before.extra.keys().filter(|key| !after.extra.contains_key(*key));
    let unset = gone.map(|key| (key.clone(), String::new()));
    let set = after.extra.iter().filter(|(key, value)| before.extra.get(*key) != Some(*value));
    request.new_extra_configs = unset.chain(set.map(|(key, value)| (key.clone(), value.clone()))).collect();
}

/// Returns what a reply has that a table has not.
pub(super) fn fault(
    settings: &TableSettings,
    replicas: i32,
    found: &GetTableSchemaResponsePb,
) -> Option<String> {
    if found.num_replicas != Some(replicas) {
        return Some(format!("it has {:?} replicas, not {replicas}", found.num_replicas));
    }
    let told = TableSettings {
        owner: found.owner().to_string(),
        comment: found.comment().to_string(),
        extra: found.extra_configs.clone(),
    };
    (told != *settings).then(|| format!("it has the settings {told:?}, not {settings:?}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn settings(extra: &[(&str, &str)]) -> TableSettings {
        let extra = extra.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        TableSettings { owner: "ann".to_string(), comment: "new".to_string(), extra }
    }

    #[test]
    fn a_request_has_what_differs() {
        let (before, after) = (settings(&[("a", "1"), ("b", "2")]), settings(&[("b", "3"), ("c", "4")]));
        let mut request = AlterTableRequestPb::default();
        add_changes(&mut request, &before, &TableSettings { owner: "bob".to_string(), ..after });
        assert_eq!((request.new_table_owner(), request.new_table_comment.as_deref()), ("bob", None));
        let wanted =
            [("a", ""), ("b", "3"), ("c", "4")].map(|(key, value)| (key.to_string(), value.to_string()));
        assert_eq!(request.new_extra_configs, BTreeMap::from(wanted));
    }

    #[test]
    fn a_reply_with_other_settings_is_reported() {
        let settings = settings(&[("a", "1")]);
        let sound = GetTableSchemaResponsePb {
            num_replicas: Some(3),
            owner: Some("ann".to_string()),
            comment: Some("new".to_string()),
            extra_configs: settings.extra.clone(),
            ..Default::default()
        };
        assert_eq!(fault(&settings, 3, &sound), None);
        let wrong = [
            GetTableSchemaResponsePb { num_replicas: Some(1), ..sound.clone() },
            GetTableSchemaResponsePb { owner: Some("bob".to_string()), ..sound.clone() },
            GetTableSchemaResponsePb { comment: None, ..sound.clone() },
            GetTableSchemaResponsePb { extra_configs: BTreeMap::new(), ..sound },
        ];
        assert!(wrong.iter().all(|found| fault(&settings, 3, found).is_some()));
    }
}
