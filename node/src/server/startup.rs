//! Start of a server of either kind from its flags.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::config::TabletConfig;
use engine::disk;
use engine::error::{Error, Result};
use prost::Message;

use super::ServerStatus;
use super::clock_watch::{self, ClockRule, ClockTrust, TimeSource};
use super::flags::Flags;
use super::format_support::FormatSupport;
use super::ntp::{self, NtpConfig};
use super::security;
use super::startup_warnings;
use super::web_access;
use crate::config::{self, ServerAddresses};
use crate::dirs::ServerKind;
use crate::hosting::copy::CopyConfig;
use crate::hosting::space::{SpaceReserve, SpaceReserves};
use crate::master::{self, AuthzConfig, HoldLimits, MasterConfig, PolicyFile, RunningMaster};
use crate::scrub::ScrubConfig;
use crate::tserver::{self, RunningTserver, TserverConfig};
use nyala_common::env::Env;
use nyala_common::security::acl::AccessList;
use nyala_proto::kudu::HostPortPb;

/// A running server of either kind.
pub enum RunningServer {
    Master(Box<RunningMaster>),
    TabletServer(Box<RunningTserver>),
}

impl RunningServer {
    pub fn rpc_addr(&self) -> SocketAddr {
        match self {
            RunningServer::Master(master) => master.rpc_addr,
            RunningServer::TabletServer(server) => server.rpc_addr,
        }
    }

    pub fn web_addr(&self) -> Option<SocketAddr> {
        match self {
            RunningServer::Master(master) => master.web_addr,
            RunningServer::TabletServer(server) => server.web_addr,
        }
    }

    /// Returns the URL of the web port.
    pub fn web_url(&self) -> Option<String> {
        let scheme = if self.status().registration().https_enabled() { "https" } else { "http" };
        Some(format!("{scheme}://{}", self.web_addr()?))
    }

    /// Stops in order: running calls finish, logs are closed.
    pub async fn shutdown(&self) {
        match self {
            RunningServer::Master(master) => master.shutdown().await,
            RunningServer::TabletServer(server) => server.shutdown().await,
        }
    }

    /// Waits until the server can do its work, as far as that depends on no other server: a single master leads. Fails
    /// if it never can.
    pub async fn until_ready(&self) -> Result<()> {
        let RunningServer::Master(master) = self else { return Ok(()) };
        tokio::select! {
            biased;
            ready = master.until_ready() => ready,
            error = self.failed() => Err(error),
        }
    }

    /// Waits until the server cannot do its work any more and returns the reason; it should be stopped then. A tablet
    /// server continues with its other tablets, a master needs its catalog.
    pub async fn failed(&self) -> Error {
        let (clock, formats, ended) = (self.clock().lost(), self.formats().lost(), async {
            match self {
                RunningServer::Master(master) => master.catalog_ended().await,
                RunningServer::TabletServer(_) => std::future::pending().await,
            }
        });
        tokio::select! {
            biased;
            error = clock => return error,
            error = formats => return error,
            () = ended => {}
        }
        if let RunningServer::Master(master) = self
            && let Some(error) = master.failure()
        {
            return error.context("the master cannot go on");
        }
        match self.status().health() {
            super::ServerHealth::Failed(why) => Error::aborted(format!("the master cannot go on: {why}")),
            _ => Error::aborted("the master cannot go on: its catalog has stopped"),
        }
    }

    /// Returns the number of tablet servers known to this master; 0 for a tablet server.
    pub async fn tablet_servers(&self) -> Result<usize> {
        match self {
            RunningServer::Master(master) => match master.catalog() {
                // Tables can be created once the leader's catalog has the tablet servers.
                Ok(catalog) => catalog.read(|catalog, now| catalog.servers(now.mono).count()).await,
                Err(_) => Ok(master.known_tservers.count()),
            },
            RunningServer::TabletServer(_) => Ok(0),
        }
    }

    /// Returns true for the leading master.
    pub fn leads(&self) -> bool {
        matches!(self, RunningServer::Master(master) if master.leads())
    }

    /// Returns the trust in this server's clock.
    pub fn clock(&self) -> &ClockTrust {
        match self {
            RunningServer::Master(master) => &master.common.clock,
            RunningServer::TabletServer(server) => &server.server.common.clock,
        }
    }

    /// Returns the format levels of this server's program.
    pub fn formats(&self) -> &FormatSupport {
        &self.status().formats
    }

    fn status(&self) -> &ServerStatus {
        match self {
            RunningServer::Master(master) => &master.common.status,
            RunningServer::TabletServer(server) => &server.server.common.status,
        }
    }
}

/// Checks the flags without starting anything.
pub async fn check(env: &Env, kind: ServerKind, flags: &Arc<Flags>) -> Result<()> {
    web_access::WebAccess::from_flags(env, flags)?;
    match kind {
        ServerKind::Master => master_config(env, flags).await.map(drop),
        ServerKind::TabletServer => tserver_config(env, flags).await.map(drop),
    }
}

/// Starts a server with the given flags. It serves, and continues its start in the background:
/// [`RunningServer::until_ready`] waits for that.
pub async fn start(env: &Env, kind: ServerKind, flags: Arc<Flags>) -> Result<RunningServer> {
    let running = match kind {
        ServerKind::Master => {
            let config = master_config(env, &flags).await?;
            RunningServer::Master(Box::new(master::start(env.clone(), config).await?))
        }
        ServerKind::TabletServer => {
            let config = tserver_config(env, &flags).await?;
            let running = tserver::run(env.clone(), config).await?;
            let capacity = running.server.tablets.cache_capacity();
            startup_warnings::log(startup_warnings::small_page_cache(&flags, capacity));
            RunningServer::TabletServer(Box::new(running))
        }
    };
    let path = flags.text("server_dump_info_path");
    if !path.is_empty()
        && let Err(error) =
            dump_info(env, &path, &flags.text("server_dump_info_format"), running.status()).await
    {
        running.shutdown().await;
        return Err(error);
    }
    Ok(running)
}

/// Returns the configuration of a tablet server.
pub async fn tserver_config(env: &Env, flags: &Arc<Flags>) -> Result<TserverConfig> {
    let masters = tserver_masters(flags)?;
    let addresses = config::addresses(env, flags, ServerKind::TabletServer, &masters).await?;
    let (wal_dir, data_dirs) = config::directories(flags)?;
    let clock_rule = clock_rule(flags, &addresses, &masters)?;
    let config = TserverConfig::new(addresses.rpc, wal_dir, data_dirs);
    Ok(TserverConfig {
        rpc_advertised_addrs: addresses.advertised,
        wildcard_host: addresses.wildcard_host,
        web_advertised_addrs: addresses.web_advertised,
        web_addr: addresses.web,
        masters,
        reserves: reserves(flags)?,
        lost_data_dirs: flags.list("fs_lost_data_dirs"),
        log_sync: flags.bool("log_sync"),
        max_clock_ahead_us: flags.number("max_clock_sync_error_usec"),
        clock_rule,
        scanner_ttl_ms: flags.number("scanner_ttl_ms"),
        scanner_check_interval_ms: flags.number("scanner_gc_check_interval_us").div_ceil(1000),
        scanner_max_wait_ms: flags.number("scanner_max_wait_ms"),
        scan_batch_bytes_default: flags.number("scanner_default_batch_size_bytes") as usize,
        scan_batch_bytes_max: flags.number("scanner_max_batch_size_bytes") as usize,
        history_max_age_s: flags.number("tablet_history_max_age_sec"),
        heartbeat_interval_ms: flags.number("heartbeat_interval_ms"),
        heartbeat_timeout_ms: flags.number("heartbeat_rpc_timeout_ms"),
        raft: config::raft(flags),
        consensus_timeout_ms: flags.number("consensus_rpc_timeout_ms"),
        opening_max: flags.number("num_tablets_to_open_simultaneously") as usize,
        copy: copy(flags),
        tablet_stats_interval_ms: flags.number("update_tablet_stats_interval_ms"),
        maintenance_interval_ms: flags.number("maintenance_manager_polling_interval_ms"),
        page_cache_bytes: mebibytes(flags, "block_cache_capacity_mb"),
        memory_soft_percent: flags.number("memory_limit_soft_percentage"),
        tablet: tablet(flags, config.tablet),
        rpc: config::rpc(flags)?,
        security: Some(security::settings(env, flags)?),
        scrub: ScrubConfig::of(flags),
        flags: flags.clone(),
        ..config
    })
}

/// Returns the requirement on the clock of a server with these addresses and masters.
fn clock_rule(flags: &Flags, addresses: &ServerAddresses, masters: &[String]) -> Result<Option<ClockRule>> {
    let own = match addresses.advertised.as_slice() {
        [] => vec![addresses.rpc.to_string()],
        advertised => advertised.to_vec(),
    };
    let all: Vec<String> = own.iter().chain(masters).cloned().collect();
    Ok(TimeSource::of(flags)?.rule(&all, flags.number("max_clock_sync_error_usec")))
}

/// Returns `env` with the clock that `time_source` names. Only a clock of the server's own differs from the machine's.
pub fn with_time_source(env: &Env, flags: &Flags) -> Result<Env> {
    match TimeSource::of(flags)? {
        TimeSource::Builtin => Ok(ntp::start(env, NtpConfig::of(flags)?)),
        TimeSource::Auto | TimeSource::System | TimeSource::SystemUnsync => Ok(env.clone()),
    }
}

/// Waits until the machine's clock is what the flags require.
pub async fn wait_clock(env: &Env, kind: ServerKind, flags: &Arc<Flags>) -> Result<()> {
    let rule = match kind {
        ServerKind::Master => {
            let config = master_config(env, flags).await?;
            startup_warnings::log(startup_warnings::unnamed_master(&config, TimeSource::of(flags)?));
            config.clock_rule
        }
        ServerKind::TabletServer => tserver_config(env, flags).await?.clock_rule,
    };
    let Some(rule) = rule else { return Ok(()) };
    let patience = Duration::from_secs(flags.number("ntp_initial_sync_wait_secs"));
    clock_watch::wait_synchronised(env, rule, patience).await
}

fn reserves(flags: &Flags) -> Result<SpaceReserves> {
    let reserve = |name| SpaceReserve::parse(&flags.text(name)).map_err(|error| error.context(name));
    Ok(SpaceReserves {
        wal: reserve("fs_wal_dir_reserved_bytes")?,
        data: reserve("fs_data_dirs_reserved_bytes")?,
    })
}

fn tserver_masters(flags: &Flags) -> Result<Vec<String>> {
    let masters = config::masters(flags, "tserver_master_addrs")?;
    match masters.is_empty() {
        true => Err(Error::invalid("tserver_master_addrs: a tablet server needs at least one master")),
        false => Ok(masters),
    }
}

/// Returns the configuration of a master.
pub async fn master_config(env: &Env, flags: &Arc<Flags>) -> Result<MasterConfig> {
    flags.check_replication_factors()?;
    let masters = config::masters(flags, "master_addresses")?;
    let addresses = config::addresses(env, flags, ServerKind::Master, &masters).await?;
    let (wal_dir, data_dirs) = config::directories(flags)?;
    let clock_rule = clock_rule(flags, &addresses, &masters)?;
    let config = MasterConfig::new(addresses.rpc, wal_dir, data_dirs);
    let mut catalog = config.catalog.clone();
    catalog.columns_max = flags.number("max_num_columns") as usize;
    catalog.identifier_bytes_max = flags.number("max_identifier_length") as usize;
    catalog.create_replicas_per_server_max = flags.number("max_create_tablets_per_ts") as usize;
    catalog.server_unresponsive_after = millis(flags, "tserver_unresponsive_timeout_ms");
    catalog.tablet_creation_timeout = millis(flags, "tablet_creation_timeout_ms");
    let reserve = flags.number("default_deleted_table_reserve_seconds");
    catalog.deleted_table_reserve = Duration::from_secs(reserve);
    catalog.replicas_default = flags.number("default_num_replicas") as i32;
    catalog.replicas_max = flags.number("max_num_replicas") as i32;
    catalog.replicas_min = flags.number("min_num_replicas") as i32;
    catalog.replicas_even = flags.bool("allow_unsafe_replication_factor");
    catalog.create_under_replicated = flags.bool("allow_creating_under_replicated_tables");
    catalog.repair = flags.bool("master_add_server_when_underreplicated");
    catalog.remove_evicted = flags.bool("master_tombstone_evicted_tablet_replicas");
    let locations_ttl = flags.number("table_locations_ttl_ms");
    Ok(MasterConfig {
        rpc_advertised_addrs: addresses.advertised,
        wildcard_host: addresses.wildcard_host,
        web_advertised_addrs: addresses.web_advertised,
        web_addr: addresses.web,
        masters,
        lost_data_dirs: flags.list("fs_lost_data_dirs"),
        auto_join: flags.bool("master_auto_join_cluster"),
        log_sync: flags.bool("log_sync"),
        max_clock_ahead_us: flags.number("max_clock_sync_error_usec"),
        clock_rule,
        table_locations_ttl_ms: u32::try_from(locations_ttl).unwrap_or(u32::MAX),
        raft: config::raft(flags),
        consensus_timeout: millis(flags, "consensus_rpc_timeout_ms"),
        tserver_rpc_timeout: millis(flags, "master_ts_rpc_timeout_ms"),
        support_connect_to_master: flags.bool("master_support_connect_to_master_rpc"),
        support_ignore_operations: flags.bool("master_support_ignore_operations"),
        support_immutable_columns: flags.bool("master_support_immutable_column_attribute"),
        support_auto_incrementing: flags.bool("master_support_auto_incrementing_column"),
        support_range_hash: flags.bool("enable_per_range_hash_schemas"),
        location_command: flags.text("location_mapping_cmd"),
        locations: flags.list("location_mapping_by_uuid"),
        locate_clients: flags.bool("master_client_location_assignment_enabled"),
        lookup_delay: millis(flags, "master_inject_latency_on_tablet_lookups_ms"),
        catalog,
        // The limits of users' tablets do not apply: its cells are records of whole tables, and its rows are few.
        tablet: with_log_flags(flags, config.tablet),
        copy: copy(flags),
        rpc: config::rpc(flags)?,
        security: Some(security::settings(env, flags)?),
        history_holds: HoldLimits {
            lease: millis(flags, "history_hold_lease_ms"),
            max_age: Duration::from_secs(flags.number("history_hold_max_sec")),
        },
        authz: authz(env, flags)?,
        scrub: ScrubConfig::of(flags),
        flags: flags.clone(),
        ..config
    })
}

/// Returns the rights on tables. Reads the policy file.
fn authz(env: &Env, flags: &Flags) -> Result<AuthzConfig> {
    let path = flags.text("authz_policy_file");
    let interval = Duration::from_secs(flags.number("authz_policy_reload_interval_seconds"));
    let policy = (!path.is_empty()).then(|| PolicyFile::open(env, &path, interval)).transpose()?;
    let trusted = AccessList::parse(&flags.text("trusted_user_acl"));
    let trusted = trusted.map_err(|error| error.context("trusted_user_acl"))?;
    if policy.is_some() && trusted == AccessList::Everyone {
        return Err(Error::invalid(
            "trusted_user_acl: authz_policy_file would apply to no user (given *); name users, or leave it out",
        ));
    }
    Ok(AuthzConfig { policy, trusted, tokens: flags.bool("master_support_authz_tokens") })
}

/// Returns the limits of a tablet server's tablets.
fn tablet(flags: &Flags, defaults: TabletConfig) -> TabletConfig {
    TabletConfig {
        cell_bytes_max: flags.number("max_cell_size_bytes") as usize,
        key_bytes_max: flags.number("max_encoded_key_size_bytes") as usize,
        mrs_flush_bytes: mebibytes(flags, "flush_threshold_mb"),
        mrs_flush_age_ms: flags.number("flush_threshold_secs").saturating_mul(1000),
        wal_retain_bytes: mebibytes(flags, "log_target_replay_size_mb") as u64,
        ..with_log_flags(flags, defaults)
    }
}

/// Returns `config` with the form of the log that the flags of both kinds of servers give.
fn with_log_flags(flags: &Flags, config: TabletConfig) -> TabletConfig {
    TabletConfig {
        wal_segment_bytes_max: mebibytes(flags, "log_segment_size_mb") as u64,
        wal_preallocate: flags.bool("log_preallocate_segments"),
        wal_compress: flags.text("log_compression_codec") == "LZ4",
        ..config
    }
}

/// Returns limits and times of tablet copies.
fn copy(flags: &Flags) -> CopyConfig {
    CopyConfig {
        sessions_max: flags.number("tablet_copy_sessions_max") as usize,
        idle_timeout: Duration::from_secs(flags.number("tablet_copy_idle_timeout_sec")),
        expiry_interval: Duration::from_millis(flags.number("tablet_copy_timeout_poll_period_ms")),
        chunk_bytes: flags.number("tablet_copy_transfer_chunk_size_bytes") as usize,
        bytes_per_second: flags.number("tablet_copy_bytes_per_second"),
        copies_max: flags.number("num_tablets_to_copy_simultaneously") as usize,
        ..CopyConfig::default()
    }
}

fn millis(flags: &Flags, name: &str) -> Duration {
    Duration::from_millis(flags.number(name))
}

fn mebibytes(flags: &Flags, name: &str) -> usize {
    usize::try_from(flags.number(name)).unwrap_or(usize::MAX).saturating_mul(1 << 20)
}

/// Writes a server's status to a file, so that the process that started it learns its ports.
async fn dump_info(env: &Env, path: &str, format: &str, status: &ServerStatus) -> Result<()> {
    let bytes = match format {
        "pb" => status.to_pb().encode_to_vec(),
        _ => status_json(status).into_bytes(),
    };
    let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
    let dir = if dir.is_empty() { "/" } else { dir };
    let write = || disk::replace_file(&*env.disks.open(dir)?, name, &bytes);
    env.run(write)
        .await
        .map_err(|error| Error::io(format_args!("write the server's status to {path}"), &error))
}

fn status_json(status: &ServerStatus) -> String {
    let pb = status.to_pb();
    let address = |addr: &HostPortPb| serde_json::json!({ "host": addr.host, "port": addr.port });
    let addresses = |all: &[HostPortPb]| all.iter().map(address).collect::<Vec<_>>();
    let json = serde_json::json!({
        "node_instance": {
            "permanent_uuid": status.uuid().to_string(),
            "instance_seqno": pb.node_instance.instance_seqno,
        },
        "bound_rpc_addresses": addresses(&pb.bound_rpc_addresses),
        "bound_http_addresses": addresses(&pb.bound_http_addresses),
        "version_info": { "version_string": super::SOFTWARE_VERSION },
    });
    json.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nyala_common::env::mem_net;
    use nyala_common::env::os::{OsEnv, OsOptions};

    #[tokio::test]
    async fn a_policy_that_applies_to_no_user_is_refused() {
        let env = OsEnv::new(&OsOptions::default()).expect("this machine");
        let policy = tempfile::NamedTempFile::new().expect("a temporary file");
        let flags = Flags::new();
        flags.set("trusted_user_acl", "*").expect("a flag");
        assert!(authz(&env, &flags).is_ok(), "there is no policy");
        flags.set("authz_policy_file", policy.path().to_str().expect("UTF-8")).expect("a flag");
        let error = authz(&env, &flags).err().expect("a policy without users");
        assert!(error.message.contains("would apply to no user"), "{error}");
        flags.set("trusted_user_acl", "ann").expect("a flag");
        assert!(authz(&env, &flags).is_ok());
    }

    /// Returns the configuration of a master whose other flags have these values.
    async fn master(given: &[(&str, &str)]) -> MasterConfig {
        let flags = Flags::new();
        for (name, value) in [("fs_wal_dir", "wal"), ("rpc_bind_addresses", "127.0.0.1:7051")] {
            flags.set(name, value).expect("a valid flag");
        }
        given.iter().for_each(|(name, value)| flags.set(name, value).expect("a valid flag"));
        master_config(&mem_net::env(), &Arc::new(flags)).await.expect("valid flags")
    }

    #[tokio::test]
    async fn a_master_keeps_the_limits_of_its_own_tablet() {
        let config = master(&[]).await;
        let own = MasterConfig::new(config.rpc_addr, "wal", vec!["wal".to_string()]).tablet;
        // The form of its log is that of all logs.
        let own = TabletConfig { wal_compress: true, ..own };
        assert_eq!(config.tablet, own);
        // `up` gives flags of tablet servers to masters, too.
        let given =
            [("flush_threshold_secs", "1"), ("log_target_replay_size_mb", "1"), ("log_segment_size_mb", "3")];
        let config = master(&given).await;
        assert_eq!(config.tablet, TabletConfig { wal_segment_bytes_max: 3 << 20, ..own });
    }

    #[tokio::test]
    async fn a_masters_copies_have_the_limits_of_the_flags() {
        assert_eq!(master(&[]).await.copy, CopyConfig::default());
        let given = [("tablet_copy_bytes_per_second", "7"), ("tablet_copy_idle_timeout_sec", "8")];
        let config = master(&given).await;
        let idle_timeout = Duration::from_secs(8);
        assert_eq!(config.copy, CopyConfig { bytes_per_second: 7, idle_timeout, ..CopyConfig::default() });
    }
}
