//! The catalog as clients see it, for the oracles of whole tables and of replicas that no master lists.

use std::collections::BTreeMap;

use crate::oracle::catalog_gauges::ToldSchema;
use crate::oracle::group_reports::GroupReports;
use crate::oracle::quiet_scans::QuietScan;
use crate::oracle::rebuild_sources::RebuildSources;
use crate::oracle::registrations::{ListedTserver, MasterList};
use crate::oracle::server_lists::{ServerLists, ToldServers};
use crate::oracle::settled_tablets::ListedTablet;
use crate::oracle::table_lookups::TableLookups;
use crate::oracle::table_settings::Settings;
use crate::oracle::tablet_traits::{TraitLists, TraitTexts};
use crate::oracle::told_sizes::ToldSizes;
use crate::oracle::unlisted_replicas::ListedReplicas;
use crate::oracle::whole_tables::TableLayout;

/// Result of reading all of the catalog once.
#[derive(Debug, Clone, Default)]
pub struct CatalogAudit {
    pub layouts: Vec<TableLayout>,
    pub replicas: ListedReplicas,
    pub tablets: BTreeMap<String, ListedTablet>,
    /// Tablets that servers list.
    pub lists: ServerLists,
    /// Tablet servers that masters list.
    pub servers: ToldServers,
    /// Tablet servers and masters with what they registered, as the leading master lists them.
    pub registered: Option<Vec<ListedTserver>>,
    pub masters: Option<MasterList>,
    /// Sizes of tables that masters tell.
    pub sizes: Vec<ToldSizes>,
    /// Schemas of tables that no alteration changes, as masters tell them.
    pub schemas: Vec<ToldSchema>,
    /// Settings that each tablet is to have.
    pub settings: BTreeMap<String, Settings>,
    /// Numbers of tables, and of dropped ones that are kept for recall.
    pub tables: usize,
    pub kept_tables: usize,
    /// Lookups of tablets, by table. Those that were not executed in time are left out, as below.
    pub lookups: Vec<TableLookups>,
    /// Questions that masters refused.
    pub refused: Vec<String>,
    /// Traits that each tablet is to have, and those that servers list.
    pub wanted: BTreeMap<String, TraitTexts>,
    pub traits: TraitLists,
    /// Replicas as servers describe them for a rebuild of the catalog, and the clusters that these tell, by host.
    pub sources: RebuildSources,
    pub clusters: BTreeMap<String, Option<String>>,
    /// Reports of replicas, where clients may ask for them.
    pub groups: GroupReports,
    /// Scans of one tablet of each table.
    pub scans: Vec<QuietScan>,
}
