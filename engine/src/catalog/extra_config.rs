//! A table's extra configuration, between its text form and [`ExtraConfig`].

use std::collections::BTreeMap;

use super::error::{CatalogError, CatalogResult};
use super::record::ExtraConfig;
use crate::schema::table_settings::{
    DISABLE_COMPACTION as NO_COMPACTION, HISTORY_MAX_AGE_SEC as HISTORY, MAINTENANCE_PRIORITY as PRIORITY,
};

impl ExtraConfig {
    /// Returns this configuration with `changes` applied; an empty value unsets its key.
    pub(super) fn changed(&self, changes: &BTreeMap<String, String>) -> CatalogResult<ExtraConfig> {
        let mut config = self.clone();
        for (key, text) in changes {
            match key.as_str() {
                HISTORY => config.history_max_age_sec = number(key, text)?,
                PRIORITY => config.maintenance_priority = number(key, text)?,
                NO_COMPACTION => config.disable_compaction = flag(key, text)?,
                _ => {
                    return Err(CatalogError::invalid(format!(
                        "{key:?} is not a table setting; there are {HISTORY}, {PRIORITY} and {NO_COMPACTION}"
                    )));
                }
            }
        }
        Ok(config)
    }

    /// The keys that are set, as clients see them.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        let mut map = BTreeMap::new();
        let mut put = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                map.insert(key.to_string(), value);
            }
        };
        put(HISTORY, self.history_max_age_sec.map(|seconds| seconds.to_string()));
        put(PRIORITY, self.maintenance_priority.map(|priority| priority.to_string()));
        put(NO_COMPACTION, self.disable_compaction.map(|disabled| disabled.to_string()));
        map
    }
}

fn number(key: &str, text: &str) -> CatalogResult<Option<i32>> {
    if text.is_empty() {
        return Ok(None);
    }
    let number = text.parse();
    number.map(Some).map_err(|_| CatalogError::invalid(format!("{key} needs a 32-bit number, not {text:?}")))
}

fn flag(key: &str, text: &str) -> CatalogResult<Option<bool>> {
    match text.to_ascii_lowercase().as_str() {
        "" => Ok(None),
        "true" => Ok(Some(true)),
        "false" => Ok(Some(false)),
        _ => Err(CatalogError::invalid(format!("{key} needs true or false, not {text:?}"))),
    }
}
