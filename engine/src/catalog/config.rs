//! Limits and timeouts of the catalog. Defaults are Kudu's, except where noted.

use std::time::Duration;

use crate::format_level::LevelRange;

/// Settings of the catalog, each with its Kudu flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogConfig {
    /// Columns of a table (`max_num_columns`).
    pub columns_max: usize,
    /// Bytes in the name of a table or column (`max_identifier_length`).
    pub identifier_bytes_max: usize,
    /// Bytes in the comment of a table or column (`max_table_comment_length`, `max_column_comment_length`).
    pub comment_bytes_max: usize,
    /// Bytes in an owner's name (`max_owner_length`).
    pub owner_bytes_max: usize,
    /// Default replication factor (`default_num_replicas`).
    pub replicas_default: i32,
    /// Smallest replication factor (`min_num_replicas`).
    pub replicas_min: i32,
    /// Largest replication factor (`max_num_replicas`).
    pub replicas_max: i32,
    /// True if replication factors may be even (`allow_unsafe_replication_factor`).
    pub replicas_even: bool,
    /// True if tables can be created with fewer live servers than replicas, as long as a majority lives
    /// (`allow_creating_under_replicated_tables`).
    pub create_under_replicated: bool,
    /// Replicas that a new table may have per live tablet server, for replication factors above 1; 0 for no limit
    /// (`max_create_tablets_per_ts`).
    pub create_replicas_per_server_max: usize,
    /// Time after which a tablet that is still being created is replaced (`tablet_creation_timeout_ms`).
    pub tablet_creation_timeout: Duration,
    /// Silence after which a tablet server is unresponsive and gets no new replicas
    /// (`tserver_unresponsive_timeout_ms`).
    pub server_unresponsive_after: Duration,
    /// Default time for which a deleted table can be recalled; zero deletes at once
    /// (`default_deleted_table_reserve_seconds`).
    pub deleted_table_reserve: Duration,
    /// Time for which records of a deleted table and its tablets are kept after every replica is removed
    /// (`metadata_for_deleted_table_and_tablet_reserved_secs`).
    pub deleted_metadata_kept: Duration,
    /// True if tables may limit their rows and bytes (`enable_table_write_limit`).
    pub table_write_limits: bool,
    /// True if evicted replicas are removed (`master_tombstone_evicted_tablet_replicas`).
    pub remove_evicted: bool,
    /// True if replicas are added and evicted to keep tables at their replication factors
    /// (`master_add_server_when_underreplicated`).
    pub repair: bool,
    /// Delay of deleting the other replicas of a deleted tablet, unless its leader's replica is removed earlier.
    pub delete_head_start: Duration,
    /// Format levels of this program; a new cluster begins with the newest.
    pub levels: LevelRange,
    /// First backoff before a request to a tablet server is retried; it doubles up to `retry_wait_max`.
    pub retry_wait_min: Duration,
    pub retry_wait_max: Duration,
}

impl Default for CatalogConfig {
    fn default() -> CatalogConfig {
        CatalogConfig {
            columns_max: 300,
            identifier_bytes_max: 256,
            comment_bytes_max: 256,
            owner_bytes_max: 128,
            replicas_default: 3,
            replicas_min: 1,
            replicas_max: 7,
            replicas_even: false,
            create_under_replicated: false,
            create_replicas_per_server_max: 60,
            tablet_creation_timeout: Duration::from_secs(30),
            server_unresponsive_after: Duration::from_secs(60),
            deleted_table_reserve: Duration::ZERO,
            deleted_metadata_kept: Duration::from_secs(3600),
            table_write_limits: false,
            remove_evicted: true,
            repair: true,
            delete_head_start: Duration::from_secs(1),
            levels: LevelRange::PROGRAM,
            retry_wait_min: Duration::from_millis(50),
            retry_wait_max: Duration::from_secs(10),
        }
    }
}
