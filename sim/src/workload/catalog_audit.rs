//! The catalog as clients see it, for the oracles of whole tables and of replicas that no master lists.

use std::collections::BTreeMap;

use crate::oracle::settled_tablets::ListedTablet;
use crate::oracle::table_settings::Settings;
use crate::oracle::unlisted_replicas::ListedReplicas;
use crate::oracle::whole_tables::TableLayout;

/// Result of reading all of the catalog once.
#[derive(Debug, Clone, Default)]
pub struct CatalogAudit {
    pub layouts: Vec<TableLayout>,
    pub replicas: ListedReplicas,
    pub tablets: BTreeMap<String, ListedTablet>,
    /// Sizes that servers list, by host and tablet.
    pub sizes: BTreeMap<(String, String), u64>,
    /// Settings that each tablet is to have.
    pub settings: BTreeMap<String, Settings>,
}
