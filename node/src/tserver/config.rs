//! Configuration of a tablet server: addresses, directories, times and sizes, each with its unit.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::config::TabletConfig;
use engine::format_level::LevelRange;
use engine::raft::RaftOptions;

use crate::hosting::copy::CopyConfig;
use crate::hosting::space::SpaceReserves;
use crate::hosting::tablet_manager::TabletManagerConfig;
use crate::scrub::ScrubConfig;
use crate::server::AdvertisedNames;
use crate::server::clock_watch::ClockRule;
use crate::server::flags::{Flags, follower_failed_after};
use crate::server::security::SecuritySettings;
use nyala_common::rpc::RpcConfig;
use nyala_common::security::RpcCaller;

/// Configuration of one tablet server. Defaults are Kudu's, except [`TserverConfig::log_sync`]. A field whose name
/// differs from Kudu's flag names the flag.
#[derive(Clone)]
pub struct TserverConfig {
    /// Address to serve RPCs at; port 0 takes a free one.
    pub rpc_addr: SocketAddr,
    /// `host:port` names that clients should use instead of [`TserverConfig::rpc_addr`]; may be empty.
    pub rpc_advertised_addrs: Vec<String>,
    /// Host that clients should use if an address is the wildcard; `None` for the loopback address.
    pub wildcard_host: Option<String>,
    /// `host:port` names of the web port instead of [`TserverConfig::web_addr`]; may be empty.
    pub web_advertised_addrs: Vec<String>,
    /// Address to serve metrics and health at, if any.
    pub web_addr: Option<SocketAddr>,
    /// `host:port` of every master.
    pub masters: Vec<String>,
    /// The directory of the write-ahead logs (`fs_wal_dir`).
    pub wal_dir: String,
    /// Directories of tablet data, at least one (`fs_data_dirs`).
    pub data_dirs: Vec<String>,
    /// Data directories that are given up (`fs_lost_data_dirs`).
    pub lost_data_dirs: Vec<String>,
    /// Format levels of the program; tests have programs of other levels.
    pub levels: LevelRange,
    /// Space that stays free (`fs_wal_dir_reserved_bytes`, `fs_data_dirs_reserved_bytes`).
    pub reserves: SpaceReserves,
    /// True if a write is acknowledged only after it is synced to disk. Kudu's default is false.
    pub log_sync: bool,
    /// Largest distance of a client's timestamp ahead of this server's clock (`max_clock_sync_error_usec`).
    pub max_clock_ahead_us: u64,
    /// Requirement on this machine's clock, if it is checked (`time_source`).
    pub clock_rule: Option<ClockRule>,
    /// Idle time after which a scanner expires (`scanner_ttl_ms`).
    pub scanner_ttl_ms: u64,
    /// Interval between searches for expired scanners (`scanner_gc_check_interval_us`).
    pub scanner_check_interval_ms: u64,
    /// Longest wait of a scan for its snapshot to be complete (`scanner_max_wait_ms`).
    pub scanner_max_wait_ms: u64,
    /// Size of a scan's response if the client names none (`scanner_default_batch_size_bytes`).
    pub scan_batch_bytes_default: usize,
    /// Upper limit of a scan response's size, even if the client asks for more (`scanner_max_batch_size_bytes`).
    pub scan_batch_bytes_max: usize,
    /// Time after which a scan response is sent, full or not (Kudu fixes it at 500 ms).
    pub scan_batch_time_ms: u64,
    /// Age above which snapshots are rejected, unless the table has its own limit (`tablet_history_max_age_sec`).
    pub history_max_age_s: u64,
    /// Interval between heartbeats to each master (`heartbeat_interval_ms`).
    pub heartbeat_interval_ms: u64,
    /// Deadline of a heartbeat call (`heartbeat_rpc_timeout_ms`).
    pub heartbeat_timeout_ms: u64,
    /// Timing and size limits of the tablets' Raft groups.
    pub raft: RaftOptions,
    /// Deadline of a call that sends entries to another replica (`consensus_rpc_timeout_ms`).
    pub consensus_timeout_ms: u64,
    /// Interval between updates of row counts and sizes for tablet reports (`update_tablet_stats_interval_ms`).
    pub tablet_stats_interval_ms: u64,
    /// Interval at which the maintenance loop searches for work (`maintenance_manager_polling_interval_ms`).
    pub maintenance_interval_ms: u64,
    /// Bytes of writes that one replica may have pending before it rejects more as throttled.
    pub replica_pending_bytes_max: usize,
    /// Capacity of the page cache, in bytes of decoded pages (`block_cache_capacity_mb`).
    pub page_cache_bytes: usize,
    /// Percentage of the memory budget above which memory is flushed first and writes begin to be rejected
    /// (`memory_limit_soft_percentage`).
    pub memory_soft_percent: u64,
    /// Number of tablets bootstrapped at once (`num_tablets_to_open_simultaneously`).
    pub opening_max: usize,
    /// Limits of tablet copies, from this server and to it.
    pub copy: CopyConfig,
    /// Limits of each tablet.
    pub tablet: TabletConfig,
    /// Limits and times of the RPC layer.
    pub rpc: RpcConfig,
    /// Certificates, tokens and access lists; `None`: every user may call every method, in plain text.
    pub security: Option<SecuritySettings>,
    /// Verification of stored files in the background (`scrub_interval_sec`, `scrub_bytes_per_second`).
    pub scrub: ScrubConfig,
    /// Flags of the process, as tools list them.
    pub flags: Arc<Flags>,
}

impl TserverConfig {
    /// Returns Kudu's defaults for a server at `rpc_addr` with its files in `wal_dir` and `data_dirs`.
    pub fn new(rpc_addr: SocketAddr, wal_dir: impl Into<String>, data_dirs: Vec<String>) -> TserverConfig {
        TserverConfig {
            rpc_addr,
            rpc_advertised_addrs: Vec::new(),
            wildcard_host: None,
            web_advertised_addrs: Vec::new(),
            web_addr: None,
            masters: Vec::new(),
            wal_dir: wal_dir.into(),
            data_dirs,
            lost_data_dirs: Vec::new(),
            levels: LevelRange::PROGRAM,
            reserves: SpaceReserves::default(),
            log_sync: true,
            max_clock_ahead_us: 10_000_000,
            clock_rule: None,
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
            security: None,
            scrub: ScrubConfig::OFF,
            flags: Arc::new(Flags::new()),
        }
    }

    /// Returns the names to register.
    pub(super) fn advertised(&self) -> AdvertisedNames<'_> {
        AdvertisedNames {
            rpc: &self.rpc_advertised_addrs,
            web: &self.web_advertised_addrs,
            wildcard_host: self.wildcard_host.as_deref(),
        }
    }

    /// Returns the configuration of the server's replicas, which call others as `caller`.
    pub(super) fn tablets(&self, caller: RpcCaller) -> TabletManagerConfig {
        TabletManagerConfig {
            caller,
            follower_failed_after: follower_failed_after(&self.raft, &self.flags),
            raft: self.raft.clone(),
            tablet: self.tablet.clone(),
            consensus_timeout: Duration::from_millis(self.consensus_timeout_ms),
            log_sync: self.log_sync,
            replica_pending_bytes_max: self.replica_pending_bytes_max,
            frame_bytes_max: self.rpc.max_message_bytes,
            page_cache_bytes: self.page_cache_bytes,
            memory_soft_percent: self.memory_soft_percent,
            reserves: self.reserves,
        }
    }
}
