//! Configuration of a master: addresses, directories, times and limits, each with its unit.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::catalog::CatalogConfig;
use engine::config::TabletConfig;
use engine::error::Result;
use engine::raft::RaftOptions;

use super::authz::{AuthzConfig, PolicyFile};
use super::history_holds::HoldLimits;
use crate::dirs::DirectoryPaths;
use crate::hosting::copy::CopyConfig;
use crate::scrub::ScrubConfig;
use crate::server::AdvertisedNames;
use crate::server::clock_watch::ClockRule;
use crate::server::flags::Flags;
use crate::server::security::SecuritySettings;
use nyala_common::env::Env;
use nyala_common::rpc::RpcConfig;
use nyala_common::security::acl::AccessList;

/// Configuration of one master. Defaults are Kudu's; fields name Kudu's flags.
#[derive(Clone)]
pub struct MasterConfig {
    /// Address to serve RPCs at; port 0 takes a free one.
    pub rpc_addr: SocketAddr,
    /// `host:port` names that clients should use instead of [`MasterConfig::rpc_addr`]; may be empty.
    pub rpc_advertised_addrs: Vec<String>,
    /// Host that clients should use if an address is the wildcard; `None` for the loopback address.
    pub wildcard_host: Option<String>,
    /// `host:port` names of the web port instead of [`MasterConfig::web_addr`]; may be empty.
    pub web_advertised_addrs: Vec<String>,
    /// `host:port` of every master, this one included; empty for a single master (`master_addresses`).
    pub masters: Vec<String>,
    /// True if a new master asks an existing cluster to add it (`master_auto_join_cluster`).
    pub auto_join: bool,
    /// Address to serve metrics and health at, if any.
    pub web_addr: Option<SocketAddr>,
    /// The directory of the system tablet's log (`fs_wal_dir`).
    pub wal_dir: String,
    /// Directories of the system tablet's data, at least one (`fs_data_dirs`).
    pub data_dirs: Vec<String>,
    /// Data directories that are given up (`fs_lost_data_dirs`).
    pub lost_data_dirs: Vec<String>,
    /// True if a change is acknowledged only after it is synced to disk. Kudu's default is false.
    pub log_sync: bool,
    /// Largest distance of a received timestamp ahead of this server's clock (`max_clock_sync_error_usec`).
    pub max_clock_ahead_us: u64,
    /// Requirement on this machine's clock, if it is checked (`time_source`).
    pub clock_rule: Option<ClockRule>,
    /// Time for which clients may cache a table's tablet locations (`table_locations_ttl_ms`).
    pub table_locations_ttl_ms: u32,
    /// Deadline of a request to a tablet server (`master_ts_rpc_timeout_ms`).
    pub tserver_rpc_timeout: Duration,
    /// True if ConnectToMaster is offered; without it clients fall back to older calls
    /// (`master_support_connect_to_master_rpc`).
    pub support_connect_to_master: bool,
    /// True if clients may use operations that ignore errors (`master_support_ignore_operations`).
    pub support_ignore_operations: bool,
    /// True if clients may create immutable columns (`master_support_immutable_column_attribute`).
    pub support_immutable_columns: bool,
    /// True if clients may create tables without a unique key (`master_support_auto_incrementing_column`).
    pub support_auto_incrementing: bool,
    /// True if ranges may have separate hash schemas (`enable_per_range_hash_schemas`).
    pub support_range_hash: bool,
    /// Program that prints the location of its last argument, a host; empty for none (`location_mapping_cmd`).
    pub location_command: String,
    /// `ID=/LOCATION` of tablet servers; takes precedence over the program.
    pub locations: Vec<String>,
    /// True if clients are sent their location (`master_client_location_assignment_enabled`).
    pub locate_clients: bool,
    /// Delay of every location lookup, for tests (`master_inject_latency_on_tablet_lookups_ms`).
    pub lookup_delay: Duration,
    /// Timing and size limits of the masters' Raft group.
    pub raft: RaftOptions,
    /// Deadline of a call that sends entries to another master (`consensus_rpc_timeout_ms`).
    pub consensus_timeout: Duration,
    /// Limits and times of the catalog.
    pub catalog: CatalogConfig,
    /// Limits of the system tablet.
    pub tablet: TabletConfig,
    /// Limits of copies of the system tablet, from this master and to it.
    pub copy: CopyConfig,
    /// Interval of maintenance of the system tablet: flushes and log GC (`maintenance_manager_polling_interval_ms`).
    pub maintenance_interval: Duration,
    /// Capacity of the system tablet's page cache, in bytes of decoded pages.
    pub page_cache_bytes: usize,
    /// Limits and times of the RPC layer.
    pub rpc: RpcConfig,
    /// Certificates, tokens and access lists; `None`: every user may call every method, in plain text.
    pub security: Option<SecuritySettings>,
    /// Limits of holds on history.
    pub history_holds: HoldLimits,
    /// Rights on tables, and tokens that state them.
    pub authz: AuthzConfig,
    /// Verification of stored files in the background (`scrub_interval_sec`, `scrub_bytes_per_second`).
    pub scrub: ScrubConfig,
    /// Flags of the process, as GenericService lists them.
    pub flags: Arc<Flags>,
}

/// Size limit of a catalog record. The catalog refuses tables whose records would come near it.
pub(super) const RECORD_BYTES_MAX: usize = 32 << 20;

impl MasterConfig {
    /// Returns Kudu's defaults for a master at `rpc_addr` with its files in `wal_dir` and `data_dirs`.
    pub fn new(rpc_addr: SocketAddr, wal_dir: impl Into<String>, data_dirs: Vec<String>) -> MasterConfig {
        MasterConfig {
            rpc_addr,
            rpc_advertised_addrs: Vec::new(),
            wildcard_host: None,
            web_advertised_addrs: Vec::new(),
            masters: Vec::new(),
            auto_join: true,
            web_addr: None,
            wal_dir: wal_dir.into(),
            data_dirs,
            lost_data_dirs: Vec::new(),
            log_sync: true,
            max_clock_ahead_us: 10_000_000,
            clock_rule: None,
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
                // The system tablet gets few rows, and their log is replayed quickly.
                mrs_flush_age_ms: 3_600_000,
                dms_flush_age_ms: 3_600_000,
                wal_retain_bytes: 64 << 20,
                ..TabletConfig::default()
            },
            copy: CopyConfig::default(),
            maintenance_interval: Duration::from_millis(250),
            page_cache_bytes: 64 << 20,
            rpc: RpcConfig { queue_length: 100, concurrency: 10, ..RpcConfig::default() },
            security: None,
            history_holds: HoldLimits::default(),
            authz: AuthzConfig::default(),
            scrub: ScrubConfig::OFF,
            flags: Arc::new(Flags::new()),
        }
    }
}

/// Features that clients may require (`MasterFeatures`).
const FEATURES: [u32; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];

impl MasterConfig {
    /// Puts the policy file at `path` in force for all users but those of `trusted`. The file is read again at this
    /// interval.
    pub fn set_policy(
        &mut self,
        env: &Env,
        path: &str,
        trusted: AccessList,
        interval: Duration,
    ) -> Result<()> {
        self.authz.policy = Some(PolicyFile::open(env, path, interval)?);
        self.authz.trusted = trusted;
        Ok(())
    }

    pub(super) fn directories(&self) -> DirectoryPaths<'_> {
        DirectoryPaths { wal: &self.wal_dir, data: &self.data_dirs, lost: &self.lost_data_dirs }
    }

    /// Returns the names to register.
    pub(super) fn advertised(&self) -> AdvertisedNames<'_> {
        AdvertisedNames {
            rpc: &self.rpc_advertised_addrs,
            web: &self.web_advertised_addrs,
            wildcard_host: self.wildcard_host.as_deref(),
        }
    }

    /// Returns the offered features: all except those switched off.
    pub(super) fn features(&self) -> Vec<u32> {
        let offered = |feature: &u32| match feature {
            3 => self.support_connect_to_master,
            5 => self.authz.tokens && self.security.is_some(),
            7 | 9 => self.support_ignore_operations,
            8 => self.support_range_hash,
            10 => self.support_immutable_columns,
            11 => self.support_auto_incrementing,
            _ => true,
        };
        FEATURES.into_iter().filter(offered).collect()
    }
}
