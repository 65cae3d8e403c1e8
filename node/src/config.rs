//! From settings to what each server is told: a TOML file, the command line, and the configs of the servers.
//!
//! The file is flat: its keys are the settings of [`crate::server::flags`]. The command line overrides it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use engine::error::{Error, Result};
use engine::raft::RaftOptions;
use toml::{Spanned, Value};

use crate::dirs::ServerKind;
use crate::env::Env;
use crate::rpc::RpcConfig;
use crate::rpc::negotiate::Subnet;
use crate::server::flags::{self, Flags};
use crate::server::split_host_port;

/// Sets what a TOML file says. `Invalid` names the file, the line and what is wrong there.
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
            Error::invalid(format!("{} is neither a value nor a list of values", key.get_ref()))
        });
        value.and_then(|value| flags.set(key.get_ref(), &value)).map_err(|error| error.context(place))?;
    }
    Ok(())
}

/// A value as the command line would have it.
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

/// The ports Kudu's servers use unless told otherwise: RPC and web.
pub fn default_ports(kind: ServerKind) -> (u16, u16) {
    match kind {
        ServerKind::Master => (7051, 8051),
        ServerKind::TabletServer => (7050, 8050),
    }
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    pub rpc: SocketAddr,
    /// `host:port` names for clients, if they should use other ones.
    pub advertised: Vec<String>,
    pub web: Option<SocketAddr>,
}

/// The addresses that the settings name; hosts are looked up.
pub async fn addresses(env: &Env, flags: &Flags, kind: ServerKind) -> Result<Addresses> {
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
    Ok(Addresses { rpc, advertised, web })
}

/// A host alone gets the port.
fn with_port(text: &str, port: u16) -> String {
    if split_host_port(text).is_ok() { text.to_string() } else { format!("{text}:{port}") }
}

async fn resolve(env: &Env, host_port: &str) -> Result<SocketAddr> {
    let found = env.net.resolve(host_port).await;
    let found = found.map_err(|error| Error::io(format_args!("look up {host_port}"), &error))?;
    // Both families are usual for a name; IPv4 is what most clients are told.
    let first = found.iter().find(|addr| addr.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| Error::not_found(format!("{host_port} has no address")))
}

/// Where a server's files are: the directory of its logs, and those of its data.
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

/// `host:port` names of masters in a setting; the port may be left out.
pub fn masters(flags: &Flags, setting: &str) -> Result<Vec<String>> {
    let (port, _) = default_ports(ServerKind::Master);
    let masters: Vec<String> = flags.list(setting).iter().map(|name| with_port(name, port)).collect();
    for master in &masters {
        split_host_port(master).map_err(|error| error.context(setting))?;
    }
    Ok(masters)
}

/// The RPC layer's limits and times.
pub fn rpc(flags: &Flags) -> Result<RpcConfig> {
    let millis = |name| Duration::from_millis(flags.number(name));
    let subnets: Result<Vec<Subnet>> = flags
        .list("trusted_subnets")
        .iter()
        .map(|text| Subnet::parse(text).map_err(|why| Error::invalid(format!("trusted_subnets: {why}"))))
        .collect();
    // As given, nothing is added: loopback and private IPv6 networks are part of the default only.
    let subnets = if flags.is_given("trusted_subnets") { subnets? } else { Subnet::private() };
    Ok(RpcConfig {
        queue_length: flags.number("rpc_service_queue_length") as usize,
        concurrency: flags.number("rpc_num_service_threads") as usize,
        max_message_bytes: flags.number("rpc_max_message_size") as usize,
        keepalive: Some(millis("rpc_default_keepalive_time_ms")).filter(|time| !time.is_zero()),
        negotiation_timeout: millis("rpc_negotiation_timeout_ms"),
        negotiation_delay: millis("rpc_negotiation_inject_delay_ms"),
        trace_negotiation: flags.bool("rpc_trace_negotiation"),
        trusted_subnets: subnets,
        remember_responses: millis("remember_responses_ttl_ms"),
        remember_clients: millis("remember_clients_ttl_ms"),
        ..RpcConfig::default()
    })
}

/// How patient groups of replicas are: a profile, and what is given beside it.
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
    fn a_file_sets_what_it_names() {
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
    fn what_is_wrong_with_a_file_is_told() {
        let wrong = |text| apply(text).err().unwrap();
        let unknown = wrong("log_sync = true\nfs_wall_dir = \"/x\"\n");
        expect_test::expect![[
            r#"nyala.toml, line 2: there is no setting "fs_wall_dir"; did you mean "fs_wal_dir"?"#
        ]]
        .assert_eq(&unknown);
        expect_test::expect![[r#"nyala.toml, line 1: scanner_ttl_ms: "-5" is not a whole number from 0"#]]
            .assert_eq(&wrong("scanner_ttl_ms = -5"));
        expect_test::expect![[r#"nyala.toml, line 1: log_sync is neither a value nor a list of values"#]]
            .assert_eq(&wrong("[log_sync]\nx = 1"));
        assert!(wrong("log_sync = \n").starts_with("nyala.toml: TOML parse error at line 1, column 12"));
    }

    #[test]
    fn one_directory_serves_for_all() {
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
    fn a_profile_gives_the_times_that_are_not_given() {
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
