//! What a tablet keeps of its table: name, schema, extra configuration and the masters' attributes.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::catalog::{CreateTabletCall, ExtraConfig};
use engine::schema::Schema;

/// A table as its tablet knows it, as of a version.
#[derive(Debug, Clone)]
pub(super) struct Definition {
    pub(super) name: String,
    pub(super) schema: Arc<Schema>,
    pub(super) extra: BTreeMap<String, String>,
}

impl Definition {
    pub(super) fn new(
        name: &str,
        schema: &Arc<Schema>,
        extra: &ExtraConfig,
        attributes: &BTreeMap<String, String>,
    ) -> Definition {
        let mut all = extra.to_map();
        all.extend(attributes.iter().map(|(name, value)| (name.clone(), value.clone())));
        Definition { name: name.to_string(), schema: schema.clone(), extra: all }
    }

    pub(super) fn of(call: &CreateTabletCall) -> Definition {
        Definition::new(&call.table_name, &call.schema, &call.extra, &call.attributes)
    }
}
