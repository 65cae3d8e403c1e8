//! What a tablet server can be told: addresses, directories, times and sizes, each with its unit.

use std::net::SocketAddr;
use std::sync::Arc;

use engine::config::TabletConfig;
use engine::raft::RaftOptions;

use super::copy::CopyConfig;
use crate::rpc::RpcConfig;
use crate::server::flags::Flags;

/// Defaults are Kudu's, named by its flags where they differ from ours, except [`TserverConfig::log_sync`].
#[derive(Clone)]
pub struct TserverConfig {
    /// Where to serve RPCs; port 0 takes a free one.
    pub rpc_addr: SocketAddr,
    /// `host:port` names that clients should use instead of [`TserverConfig::rpc_addr`]; may be empty.
    pub rpc_advertised_addrs: Vec<String>,
    /// Where to serve metrics and health, if at all.
    pub web_addr: Option<SocketAddr>,
    /// `host:port` of every master.
    pub masters: Vec<String>,
    /// The directory of the write-ahead logs (`fs_wal_dir`).
    pub wal_dir: String,
    /// Directories of tablet data, at least one (`fs_data_dirs`).
    pub data_dirs: Vec<String>,
    /// Acknowledge a write only after it is synced to disk. Kudu's default is not to.
    pub log_sync: bool,
    /// How far ahead of this server's clock a client's timestamp may be (`max_clock_sync_error_usec`).
    pub max_clock_ahead_us: u64,
    /// How long an idle scanner is kept (`scanner_ttl_ms`).
    pub scanner_ttl_ms: u64,
    /// How often expired scanners are looked for (`scanner_gc_check_interval_us`).
    pub scanner_check_interval_ms: u64,
    /// How long a scan may wait for its snapshot to be complete (`scanner_max_wait_ms`).
    pub scanner_max_wait_ms: u64,
    /// Size of a scan's reply when the client names none (`scanner_default_batch_size_bytes`).
    pub scan_batch_bytes_default: usize,
    /// No reply is filled further than this, whatever the client names (`scanner_max_batch_size_bytes`).
    pub scan_batch_bytes_max: usize,
    /// A reply is sent after so much work, full or not (`scanner_batch...`; Kudu fixes it at 500 ms).
    pub scan_batch_time_ms: u64,
    /// Snapshots older than this are refused, unless the table says otherwise (`tablet_history_max_age_sec`).
    pub history_max_age_s: u64,
    /// How often each master hears from this server (`heartbeat_interval_ms`).
    pub heartbeat_interval_ms: u64,
    /// How long a master may take to answer (`heartbeat_rpc_timeout_ms`).
    pub heartbeat_timeout_ms: u64,
    /// Times and sizes of the groups that tablets' replicas form.
    pub raft: RaftOptions,
    /// How long another replica may take to answer entries (`consensus_rpc_timeout_ms`).
    pub consensus_timeout_ms: u64,
    /// How often row counts and sizes are looked at for the next report (`update_tablet_stats_interval_ms`).
    pub tablet_stats_interval_ms: u64,
    /// How often the maintenance loop looks for work (`maintenance_manager_polling_interval_ms`).
    pub maintenance_interval_ms: u64,
    /// Bytes of writes one replica holds before it answers "too busy".
    pub replica_pending_bytes_max: usize,
    /// Bytes of decoded pages kept in memory (`block_cache_capacity_mb`).
    pub page_cache_bytes: usize,
    /// Share of the memory budget above which memory is flushed first and writes begin to be refused
    /// (`memory_limit_soft_percentage`).
    pub memory_soft_percent: u64,
    /// Tablets whose logs are replayed at once (`num_tablets_to_open_simultaneously`).
    pub opening_max: usize,
    /// Copies of tablets, from here and to here.
    pub copy: CopyConfig,
    /// Limits of each tablet.
    pub tablet: TabletConfig,
    /// Limits and times of the RPC layer.
    pub rpc: RpcConfig,
    /// The settings as tools see them.
    pub flags: Arc<Flags>,
}

impl TserverConfig {
    /// Kudu's defaults for a server at `rpc_addr` with its files in `wal_dir` and `data_dirs`.
    pub fn new(rpc_addr: SocketAddr, wal_dir: impl Into<String>, data_dirs: Vec<String>) -> TserverConfig {
        TserverConfig {
            rpc_addr,
            rpc_advertised_addrs: Vec::new(),
            web_addr: None,
            masters: Vec::new(),
            wal_dir: wal_dir.into(),
            data_dirs,
            log_sync: true,
            max_clock_ahead_us: 10_000_000,
            scanner_ttl_ms: 60_000,
            scanner_check_interval_ms: 5_000,
            scanner_max_wait_ms: 1_000,
            scan_batch_bytes_default: 1 << 20,
            scan_batch_bytes_max: 8 << 20,
            scan_batch_time_ms: 500,
            history_max_age_s: 7 * 24 * 3600,
            heartbeat_interval_ms: 1_000,
            heartbeat_timeout_ms: 15_000,
            raft: RaftOptions::default(),
            consensus_timeout_ms: 30_000,
            tablet_stats_interval_ms: 5_000,
            maintenance_interval_ms: 250,
            replica_pending_bytes_max: 64 << 20,
            page_cache_bytes: 512 << 20,
            memory_soft_percent: 80,
            opening_max: 4,
            copy: CopyConfig::default(),
            tablet: TabletConfig::default(),
            rpc: RpcConfig::default(),
            flags: Arc::new(Flags::new()),
        }
    }
}
