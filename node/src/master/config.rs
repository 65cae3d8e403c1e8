//! What a master can be told: addresses, directories, times and limits, each with its unit.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::catalog::CatalogConfig;
use engine::config::TabletConfig;
use engine::raft::RaftOptions;

use crate::rpc::RpcConfig;
use crate::server::flags::Flags;

/// Defaults are Kudu's, named by its flags, except where said.
#[derive(Clone)]
pub struct MasterConfig {
    /// Where to serve RPCs; port 0 takes a free one.
    pub rpc_addr: SocketAddr,
    /// `host:port` names that clients should use instead of [`MasterConfig::rpc_addr`]; may be empty.
    pub rpc_advertised_addrs: Vec<String>,
    /// `host:port` of every master, this one included; empty for a master alone (`master_addresses`).
    pub masters: Vec<String>,
    /// Whether a new master of a cluster that is there has itself added (`master_auto_join_cluster`).
    pub auto_join: bool,
    /// Where to serve metrics and health, if at all.
    pub web_addr: Option<SocketAddr>,
    /// The directory of the system tablet's log (`fs_wal_dir`).
    pub wal_dir: String,
    /// Directories of the system tablet's data, at least one (`fs_data_dirs`).
    pub data_dirs: Vec<String>,
    /// Answer a change only after it is synced to disk. Kudu's default is not to.
    pub log_sync: bool,
    /// How far ahead of this server's clock a timestamp seen elsewhere may be (`max_clock_sync_error_usec`).
    pub max_clock_ahead_us: u64,
    /// How long clients may keep what they learned of a table's tablets (`table_locations_ttl_ms`).
    pub table_locations_ttl_ms: u32,
    /// Time a tablet server has to answer a request of this master (`master_ts_rpc_timeout_ms`).
    pub tserver_rpc_timeout: Duration,
    /// Whether ConnectToMaster is offered; without it clients fall back to older calls
    /// (`master_support_connect_to_master_rpc`).
    pub support_connect_to_master: bool,
    /// Whether clients may rely on operations that ignore errors (`master_support_ignore_operations`).
    pub support_ignore_operations: bool,
    /// Whether clients may make immutable columns (`master_support_immutable_column_attribute`).
    pub support_immutable_columns: bool,
    /// Whether clients may make tables without a unique key (`master_support_auto_incrementing_column`).
    pub support_auto_incrementing: bool,
    /// Whether ranges may have hash buckets of their own (`enable_per_range_hash_schemas`).
    pub support_range_hash: bool,
    /// A program that prints the location of the host given to it; empty for none (`location_mapping_cmd`).
    pub location_command: String,
    /// `ID=/LOCATION` of tablet servers; goes before the program.
    pub locations: Vec<String>,
    /// Whether clients are told their location (`master_client_location_assignment_enabled`).
    pub locate_clients: bool,
    /// For tests: time every lookup of locations takes (`master_inject_latency_on_tablet_lookups_ms`).
    pub lookup_delay: Duration,
    /// Times and sizes of the masters' agreement.
    pub raft: RaftOptions,
    /// How long another master may take for a message of some length (`consensus_rpc_timeout_ms`).
    pub consensus_timeout: Duration,
    /// Limits and times of the catalog.
    pub catalog: CatalogConfig,
    /// Limits of the system tablet.
    pub tablet: TabletConfig,
    /// How often the system tablet is looked after: flushed, and its log cut
    /// (`maintenance_manager_polling_interval_ms`).
    pub maintenance_interval: Duration,
    /// Bytes of the system tablet's decoded pages kept in memory.
    pub page_cache_bytes: usize,
    /// Limits and times of the RPC layer.
    pub rpc: RpcConfig,
    /// The settings as GenericService shows them.
    pub flags: Arc<Flags>,
}

/// The largest record of the catalog: that of a table with the most columns, the longest names and defaults.
const RECORD_BYTES_MAX: usize = 32 << 20;

impl MasterConfig {
    /// Kudu's defaults for a master at `rpc_addr` with its files in `wal_dir` and `data_dirs`.
    pub fn new(rpc_addr: SocketAddr, wal_dir: impl Into<String>, data_dirs: Vec<String>) -> MasterConfig {
        MasterConfig {
            rpc_addr,
            rpc_advertised_addrs: Vec::new(),
            masters: Vec::new(),
            auto_join: true,
            web_addr: None,
            wal_dir: wal_dir.into(),
            data_dirs,
            log_sync: true,
            max_clock_ahead_us: 10_000_000,
            table_locations_ttl_ms: 300_000,
            tserver_rpc_timeout: Duration::from_secs(30),
            support_connect_to_master: true,
            support_ignore_operations: true,
            support_immutable_columns: true,
            support_auto_incrementing: true,
            support_range_hash: true,
            location_command: String::new(),
            locations: Vec::new(),
            locate_clients: false,
            lookup_delay: Duration::ZERO,
            raft: RaftOptions::default(),
            consensus_timeout: Duration::from_secs(30),
            catalog: CatalogConfig::default(),
            tablet: TabletConfig {
                cell_bytes_max: RECORD_BYTES_MAX,
                // Few rows come, so there is no hurry; their log is soon replayed.
                mrs_flush_age_ms: 3_600_000,
                dms_flush_age_ms: 3_600_000,
                wal_retain_bytes: 64 << 20,
                ..TabletConfig::default()
            },
            maintenance_interval: Duration::from_millis(250),
            page_cache_bytes: 64 << 20,
            rpc: RpcConfig { queue_length: 100, concurrency: 10, ..RpcConfig::default() },
            flags: Arc::new(Flags::new()),
        }
    }
}

/// The features that clients may require (`MasterFeatures`). Not among them: GENERATE_AUTHZ_TOKEN (5), as tablet
/// servers ask for no tokens.
const FEATURES: [u32; 10] = [1, 2, 3, 4, 6, 7, 8, 9, 10, 11];

impl MasterConfig {
    /// The features that this master offers: all there are, without those that are switched off.
    pub(super) fn features(&self) -> Vec<u32> {
        let offered = |feature: &u32| match feature {
            3 => self.support_connect_to_master,
            7 | 9 => self.support_ignore_operations,
            8 => self.support_range_hash,
            10 => self.support_immutable_columns,
            11 => self.support_auto_incrementing,
            _ => true,
        };
        FEATURES.into_iter().filter(offered).collect()
    }
}
