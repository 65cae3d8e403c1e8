//! Conversion of flags to the servers' configurations: a TOML file, the command line, and the config structs.
//!
//! The file is flat: its keys are the flags of [`crate::server::flags`]. The command line overrides it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use engine::error::{Error, Result};
use engine::raft::RaftOptions;
use toml::{Spanned, Value};

use crate::dirs::ServerKind;
use crate::server::flags::{self, Flags};
use crate::server::split_host_port;
use nyala_common::env::Env;
use nyala_common::rpc::RpcConfig;
use nyala_common::rpc::negotiate::Subnet;
use nyala_common::security::SecurityLevel;

/// Sets the flags of a TOML file. `Invalid` names the file, the line and the fault.
pub fn apply_file(flags: &Flags, path: &str, text: &str) -> Result<()> {
    let table: BTreeMap<Spanned<String>, Spanned<Value>> = toml::from_str(text)
        .map_err(|error| Error::invalid(format!("{path}: {}", error.to_string().trim_end())))?;
    for (key, value) in table {
        let line = text[..key.span().start].matches('\n').count() + 1;
        let place = format_args!("{path}, line {line}");
        if flags::spec(key.get_ref()).is_none() {
            return Err(flags::unknown(key.get_ref()).context(place));
        }
        let value = flatten(value.get_ref()).ok_or_else(|| {
            Error::invalid(format!("{}: neither a value nor a list of values", key.get_ref()))
        });
        value.and_then(|value| flags.set(key.get_ref(), &value)).map_err(|error| error.context(place))?;
    }
    Ok(())
}

/// Returns a TOML value as text of the command line.
fn flatten(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(bool) => Some(bool.to_string()),
        Value::Array(values) => Some(values.iter().map(flatten).collect::<Option<Vec<_>>>()?.join(",")),
        Value::Datetime(_) | Value::Table(_) => None,
    }
}

/// Returns Kudu's default ports: RPC and web.
pub fn default_ports(kind: ServerKind) -> (u16, u16) {
    match kind {
        ServerKind::Master => (7051, 8051),
        ServerKind::TabletServer => (7050, 8050),
    }
}

/// Addresses at which a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerAddresses {
    pub rpc: SocketAddr,
    /// `host:port` names for clients, if they differ from the bound address.
    pub advertised: Vec<String>,
    pub web: Option<SocketAddr>,
}

/// Returns the addresses in the flags; resolves host names.
pub async fn addresses(env: &Env, flags: &Flags, kind: ServerKind) -> Result<ServerAddresses> {
    let (rpc_port, web_port) = default_ports(kind);
    let bind = match flags.list("rpc_bind_addresses").as_slice() {
        [] => format!("0.0.0.0:{rpc_port}"),
        [one] => with_port(one, rpc_port),
        _ => {
            return Err(Error::invalid(
                "rpc_bind_addresses: a server binds one address; use 0.0.0.0 for all",
            ));
        }
    };
    let (rpc_host, _) = split_host_port(&bind).map_err(|error| error.context("rpc_bind_addresses"))?;
    let rpc = resolve(env, &bind).await.map_err(|error| error.context("rpc_bind_addresses"))?;
    let web = if flags.bool("webserver_enabled") {
        let host =
            Some(flags.text("webserver_interface")).filter(|host| !host.is_empty()).unwrap_or(rpc_host);
        let port =
            if flags.is_given("webserver_port") { flags.number("webserver_port") } else { web_port.into() };
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let addr = resolve(env, &format!("{host}:{port}")).await;
        Some(addr.map_err(|error| error.context("webserver_interface"))?)
    } else {
        None
    };
    let advertised: Vec<String> =
        flags.list("rpc_advertised_addresses").iter().map(|name| with_port(name, rpc.port())).collect();
    Ok(ServerAddresses { rpc, advertised, web })
}

/// Adds the port to a host without one.
fn with_port(text: &str, port: u16) -> String {
    if split_host_port(text).is_ok() { text.to_string() } else { format!("{text}:{port}") }
}

async fn resolve(env: &Env, host_port: &str) -> Result<SocketAddr> {
    let found = env.net.resolve(host_port).await;
    let found = found.map_err(|error| Error::io(format_args!("look up {host_port}"), &error))?;
    // A name usually has addresses of both families; most clients use IPv4.
    let first = found.iter().find(|addr| addr.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| Error::not_found(format!("{host_port} has no address")))
}

/// Returns a server's directories: that of its logs, and those of its data.
pub fn directories(flags: &Flags) -> Result<(String, Vec<String>)> {
    let (wal, data) = (flags.text("fs_wal_dir"), flags.list("fs_data_dirs"));
    match (wal.is_empty(), data.is_empty()) {
        (true, true) => Err(Error::invalid(
            "no directory is configured; name one with --fs-wal-dir (and --fs-data-dirs for the data)",
        )),
        (true, false) => Ok((data[0].clone(), data)),
        (false, true) => Ok((wal.clone(), vec![wal])),
        (false, false) => Ok((wal, data)),
    }
}

/// Returns the `host:port` names of masters in a flag; the port may be missing there.
pub fn masters(flags: &Flags, setting: &str) -> Result<Vec<String>> {
    let (port, _) = default_ports(ServerKind::Master);
    let masters: Vec<String> = flags.list(setting).iter().map(|name| with_port(name, port)).collect();
    for master in &masters {
        split_host_port(master).map_err(|error| error.context(setting))?;
    }
    Ok(masters)
}

/// Returns limits and times of the RPC layer.
pub fn rpc(flags: &Flags) -> Result<RpcConfig> {
    let millis = |name| Duration::from_millis(flags.number(name));
    let level = |name| SecurityLevel::parse(&flags.text(name)).unwrap_or_default();
    let subnets: Result<Vec<Subnet>> = flags
        .list("trusted_subnets")
        .iter()
        .map(|text| Subnet::parse(text).map_err(|why| Error::invalid(format!("trusted_subnets: {why}"))))
        .collect();
    // A given list replaces the default, including the loopback and private IPv6 networks.
    let subnets = if flags.is_given("trusted_subnets") { subnets? } else { Subnet::private() };
    Ok(RpcConfig {
        queue_length: flags.number("rpc_service_queue_length") as usize,
        concurrency: flags.number("rpc_num_service_threads") as usize,
        max_message_bytes: flags.number("rpc_max_message_size") as usize,
        keepalive: Some(millis("rpc_default_keepalive_time_ms")).filter(|time| !time.is_zero()),
        negotiation_timeout: millis("rpc_negotiation_timeout_ms"),
        negotiation_delay: millis("rpc_negotiation_inject_delay_ms"),
        trace_negotiation: flags.bool("rpc_trace_negotiation"),
        authentication: level("rpc_authentication"),
        encryption: level("rpc_encryption"),
        encrypt_loopback: flags.bool("rpc_encrypt_loopback_connections"),
        trusted_subnets: subnets,
        remember_responses: millis("remember_responses_ttl_ms"),
        remember_clients: millis("remember_clients_ttl_ms"),
        ..RpcConfig::default()
    })
}

/// Returns the Raft timing: a profile, overridden by the flags that are given.
pub fn raft(flags: &Flags) -> RaftOptions {
    let mut options = match flags.text("raft_profile").as_str() {
        "fast" => RaftOptions::fast(),
        _ => RaftOptions::default(),
    };
    if flags.is_given("raft_heartbeat_interval_ms") {
        options.heartbeat_interval = Duration::from_millis(flags.number("raft_heartbeat_interval_ms"));
    }
    if flags.is_given("leader_failure_max_missed_heartbeat_periods") {
        options.missed_heartbeats_max = flags.fraction("leader_failure_max_missed_heartbeat_periods");
    }
    options.follower_failed_after =
        Duration::from_secs(flags.number("follower_unavailable_considered_failed_sec"));
    options.batch_bytes_max = flags.number("consensus_max_batch_size_bytes") as usize;
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(text: &str) -> Result<Flags, String> {
        let flags = Flags::new();
        apply_file(&flags, "nyala.toml", text).map_err(|error| error.message)?;
        Ok(flags)
    }

    #[test]
    fn a_file_sets_the_flags_it_names() {
        let flags = apply(
            "# a comment\nfs_wal_dir = \"/wal\"\nfs-data-dirs = [\"/a\", \"/b\"]\nlog_sync = false\n\
             scanner_ttl_ms = 5\n",
        )
        .unwrap();
        assert_eq!(
            directories(&flags).unwrap(),
            ("/wal".to_string(), vec!["/a".to_string(), "/b".to_string()])
        );
        assert!(!flags.bool("log_sync"));
        assert_eq!(flags.number("scanner_ttl_ms"), 5);
        assert!(flags.is_given("scanner_ttl_ms") && !flags.is_given("webserver_port"));
    }

    #[test]
    fn a_fault_in_a_file_is_reported_with_its_line() {
        let wrong = |text| apply(text).err().unwrap();
        let unknown = wrong("log_sync = true\nfs_wall_dir = \"/x\"\n");
        expect_test::expect![[
            r#"nyala.toml, line 2: there is no setting "fs_wall_dir"; did you mean "fs_wal_dir"?"#
        ]]
        .assert_eq(&unknown);
        expect_test::expect![[r#"nyala.toml, line 1: scanner_ttl_ms: "-5" is not a whole number from 0"#]]
            .assert_eq(&wrong("scanner_ttl_ms = -5"));
        expect_test::expect![[r#"nyala.toml, line 1: log_sync: neither a value nor a list of values"#]]
            .assert_eq(&wrong("[log_sync]\nx = 1"));
        assert!(wrong("log_sync = \n").starts_with("nyala.toml: TOML parse error at line 1, column 12"));
    }

    #[test]
    fn one_directory_holds_logs_and_data() {
        let flags = apply("fs_wal_dir = \"/wal\"").unwrap();
        assert_eq!(directories(&flags).unwrap(), ("/wal".to_string(), vec!["/wal".to_string()]));
        assert!(directories(&Flags::new()).is_err());
    }

    #[test]
    fn masters_get_the_default_port() {
        let flags = apply("tserver_master_addrs = [\"a\", \"b:7\"]").unwrap();
        assert_eq!(masters(&flags, "tserver_master_addrs").unwrap(), ["a:7051", "b:7"]);
    }

    #[test]
    fn a_profile_sets_the_times_that_are_not_given() {
        assert_eq!(raft(&Flags::new()), RaftOptions::default());
        let flags = apply("raft_profile = \"fast\"\nraft_heartbeat_interval_ms = 70").unwrap();
        let heartbeat_interval = Duration::from_millis(70);
        assert_eq!(raft(&flags), RaftOptions { heartbeat_interval, ..RaftOptions::fast() });
    }

    #[test]
    fn defaults_are_those_of_the_rpc_layer() {
        assert_eq!(rpc(&Flags::new()).unwrap(), RpcConfig::default());
    }
}
