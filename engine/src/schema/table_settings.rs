//! Names of the entries of a table's extra configuration.

pub const HISTORY_MAX_AGE_SEC: &str = "kudu.table.history_max_age_sec";
pub const MAINTENANCE_PRIORITY: &str = "kudu.table.maintenance_priority";
pub const DISABLE_COMPACTION: &str = "kudu.table.disable_compaction";
