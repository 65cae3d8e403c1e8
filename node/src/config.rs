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
use crate::server::flags::{self, Class, FOLLOWER_FAILED_SEC, FlagSpec, Flags};
use crate::server::{is_local_address, join_host_port, split_host_port};
use nyala_common::env::Env;
use nyala_common::rpc::RpcConfig;
use nyala_common::rpc::negotiate::Subnet;
use nyala_common::security::SecurityLevel;

/// Sets the flags of a TOML file for a server of `kind`, or for a process that runs both kinds. `Invalid` names the
/// file, the line and the fault.
pub fn apply_file(flags: &Flags, kind: Option<ServerKind>, path: &str, text: &str) -> Result<()> {
    let table: BTreeMap<Spanned<String>, Spanned<Value>> = toml::from_str(text)
        .map_err(|error| Error::invalid(format!("{path}: {}", error.to_string().trim_end())))?;
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for (key, value) in table {
        let line = text[..key.span().start].matches('\n').count() + 1;
        let place = format_args!("{path}, line {line}");
        let spec = flags::spec(key.get_ref());
        let spec = spec.ok_or_else(|| flags::unknown(key.get_ref()).context(place))?;
        // TOML refuses a repeated key, but takes two spellings for two keys.
        if let Some(other) = lines.insert(spec.name, line) {
            let name = spec.name;
            let twice =
                format!("{name}: given twice, also in line {other} (- and _ are equal); leave one out");
            return Err(Error::invalid(twice).context(place));
        }
        if matches!(spec.class, Class::Safeguard) {
            check_kind(spec, kind).map_err(|error| error.context(place))?;
        }
        let value = flatten(value.get_ref()).ok_or_else(|| {
            Error::invalid(format!("{}: neither a value nor a list of values", key.get_ref()))
        });
        value.and_then(|value| flags.set(key.get_ref(), &value)).map_err(|error| error.context(place))?;
    }
    Ok(())
}

/// Returns `Invalid` for a flag of the other kind of server: it would have no effect here. A file that both kinds share
/// may have one, unless it is to protect something.
fn check_kind(spec: &FlagSpec, kind: Option<ServerKind>) -> Result<()> {
    match kind.and_then(|kind| spec.refusal(kind)) {
        Some(refusal) => Err(Error::invalid(format!("{refusal}; leave it out"))),
        None => Ok(()),
    }
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
    /// Host that is advertised instead of a wildcard address; `None` for the loopback address.
    pub wildcard_host: Option<String>,
    pub web: Option<SocketAddr>,
    /// `host:port` names of the web port, if they differ from the bound address.
    pub web_advertised: Vec<String>,
}

/// Returns the addresses in the flags of a server that knows `masters`; resolves host names.
pub async fn addresses(
    env: &Env,
    flags: &Flags,
    kind: ServerKind,
    masters: &[String],
) -> Result<ServerAddresses> {
    let (rpc_port, web_port) = default_ports(kind);
    let (rpc, rpc_host) = rpc_address(env, flags, rpc_port).await?;
    let port =
        if flags.is_given("webserver_port") { flags.number("webserver_port") as u16 } else { web_port };
    let web = if flags.bool("webserver_enabled") {
        let host = Some(flags.text("webserver_interface")).filter(|host| !host.is_empty());
        let addr = resolve(env, &join_host_port(&host.unwrap_or(rpc_host), port)).await;
        Some(addr.map_err(|error| error.context("webserver_interface"))?)
    } else {
        None
    };
    let advertised = advertised_names(flags, "rpc_advertised_addresses", rpc.port())?;
    let wildcard_host = match rpc.ip().is_unspecified() && advertised.is_empty() {
        true => host_of_wildcard(env, rpc, masters).await?,
        false => None,
    };
    let web_advertised = advertised_names(flags, "webserver_advertised_addresses", port)?;
    Ok(ServerAddresses { rpc, advertised, wildcard_host, web, web_advertised })
}

/// Returns the address of the RPC port, and its host as it was given.
async fn rpc_address(env: &Env, flags: &Flags, rpc_port: u16) -> Result<(SocketAddr, String)> {
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
    Ok((rpc, rpc_host))
}

/// Returns the `host:port` names in a flag; the port may be missing there.
fn advertised_names(flags: &Flags, setting: &str, port: u16) -> Result<Vec<String>> {
    let names: Vec<String> = flags.list(setting).iter().map(|name| with_port(name, port)).collect();
    for name in &names {
        split_host_port(name).map_err(|error| error.context(setting))?;
    }
    Ok(names)
}

/// Returns the host by which others reach a server that is bound to all addresses: none but the loopback address if all
/// masters are on this machine, else the name of this host, as the masters' addresses spell it if they have it.
///
/// A server that knows no masters is a single master. Its name must be known here, because a cluster of one machine
/// uses it, too.
async fn host_of_wildcard(env: &Env, rpc: SocketAddr, masters: &[String]) -> Result<Option<String>> {
    let name = host_name(env);
    if masters.is_empty() {
        let Ok(name) = name else { return Ok(None) };
        let known = env.net.resolve(&join_host_port(&name, rpc.port())).await.is_ok();
        return Ok(known.then_some(name));
    }
    if masters.iter().all(|master| is_local_address(master)) {
        return Ok(None);
    }
    let mut hosts = masters.iter().filter_map(|master| split_host_port(master).ok()).map(|(host, _)| host);
    let host = name.map(|name| hosts.find(|host| host.split('.').next() == Some(&*name)).unwrap_or(name));
    let is_known = async |host: &str| env.net.resolve(&join_host_port(host, rpc.port())).await.is_ok();
    if are_of_this_machine(env, masters).await {
        return match host {
            Ok(host) if is_known(&host).await => Ok(Some(host)),
            _ => Ok(None),
        };
    }
    let nameless = |why: &str| {
        format!(
            "rpc_advertised_addresses: servers on other machines need a name of this one, which is bound to all \
             addresses ({rpc}), and {why}; give one"
        )
    };
    let host = host.map_err(|why| Error::invalid(nameless(&why)))?;
    if !is_known(&host).await {
        // It may have one once the resolver is back.
        return Err(Error::not_ready(nameless(&format!("the name {host:?} has no address"))));
    }
    Ok(Some(host))
}

/// Returns true if all masters have addresses of this machine: a port can be bound there.
async fn are_of_this_machine(env: &Env, masters: &[String]) -> bool {
    for master in masters {
        let Ok(address) = resolve(env, master).await else { return false };
        if env.net.listen(SocketAddr::new(address.ip(), 0)).await.is_err() {
            return false;
        }
    }
    true
}

/// Returns the name of this host, or the reason that it has none for other machines.
fn host_name(env: &Env) -> Result<String, String> {
    let name = env.net.host_name().map_err(|error| format!("this host's name is not known ({error})"))?;
    match name.is_empty() || name == "localhost" || name.starts_with("localhost.") {
        true => Err(format!("this host's name is {name:?}")),
        false => Ok(name),
    }
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
    first.copied().ok_or_else(|| Error::not_ready(format!("{host_port} has no address")))
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

/// Returns the permissions that files and directories of a process with servers do not get. The owner's are not among
/// them: a server reads its own files.
pub fn umask(flags: &Flags) -> Result<u32> {
    let text = flags.text("umask");
    let mask = u32::from_str_radix(&text, 8).ok().filter(|mask| *mask <= 0o077);
    mask.ok_or_else(|| {
        Error::invalid(format!(
            "umask: not an octal number from 000 to 077 (given {text:?}); leave it out for 077"
        ))
    })
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
        connections_max: flags.number("rpc_connections_max") as usize,
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
    options.follower_failed_after = Duration::from_secs(flags.number(FOLLOWER_FAILED_SEC));
    options.batch_bytes_max = flags.number("consensus_max_batch_size_bytes") as usize;
    options
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use engine::time::Instant;
    use nyala_common::env::{BoxFuture, Listener, Net, Stream, mem_net};

    use super::*;

    fn apply(text: &str) -> Result<Flags, String> {
        apply_for(None, text)
    }

    fn apply_for(kind: Option<ServerKind>, text: &str) -> Result<Flags, String> {
        let flags = Flags::new();
        apply_file(&flags, kind, "nyala.toml", text).map_err(|error| error.message)?;
        Ok(flags)
    }

    #[test]
    fn a_umask_leaves_the_owner_its_files() {
        let umask = |text: &str| {
            let flags = Flags::new();
            flags.set("umask", text).expect("a text");
            umask(&flags).ok()
        };
        assert_eq!(super::umask(&Flags::new()).ok(), Some(0o077));
        assert_eq!(["077", "27", "0022", "0"].map(umask), [Some(0o077), Some(0o027), Some(0o022), Some(0)]);
        assert_eq!(["", "9", "0x3f", "-1", "100", "777"].map(umask), [None; 6]);
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
        expect_test::expect![[
            r#"nyala.toml, line 1: log_sync: given twice, also in line 3 (- and _ are equal); leave one out"#
        ]]
        .assert_eq(&wrong("log_sync = true\nscanner_ttl_ms = 5\nlog-sync = false\n"));
        assert!(wrong("log_sync = \n").starts_with("nyala.toml: TOML parse error at line 1, column 12"));
    }

    #[test]
    fn a_flag_of_the_other_kind_of_server_is_rejected_in_a_file() {
        let text = "log_sync = true\ntserver_enforce_access_control = true\n";
        let error = apply_for(Some(ServerKind::Master), text).err().unwrap();
        expect_test::expect![[r#"nyala.toml, line 2: tserver_enforce_access_control: not a flag of this kind of server (a flag of a tablet server, given to a master); leave it out"#]]
            .assert_eq(&error);
        assert!(apply_for(Some(ServerKind::TabletServer), text).is_ok());
        // It protects nothing, and both kinds may share a file.
        assert!(apply_for(Some(ServerKind::TabletServer), "master_addresses = \"a\"").is_ok());
        // A process that runs both kinds, or a tool.
        assert!(apply("master_addresses = \"a\"\ntserver_master_addrs = \"a\"").is_ok());
    }

    /// A network whose host has this name.
    struct NamedNet {
        inner: Arc<dyn Net>,
        name: &'static str,
        resolves: bool,
    }

    impl Net for NamedNet {
        fn listen(&self, addr: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
            self.inner.listen(addr)
        }

        fn connect(&self, addr: SocketAddr, deadline: Instant) -> BoxFuture<'_, io::Result<Stream>> {
            self.inner.connect(addr, deadline)
        }

        fn resolve<'a>(&'a self, host_port: &'a str) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
            if !self.resolves || !host_port.starts_with(self.name) {
                return self.inner.resolve(host_port);
            }
            let found: io::Result<Vec<SocketAddr>> = Ok(vec![SocketAddr::from(([127, 0, 1, 1], 7051))]);
            Box::pin(std::future::ready(found))
        }

        fn host_name(&self) -> io::Result<String> {
            Ok(self.name.to_string())
        }
    }

    /// Returns the environment of a host with a name.
    fn named(name: &'static str, resolves: bool) -> Env {
        let env = mem_net::env();
        Env { net: Arc::new(NamedNet { inner: env.net.clone(), name, resolves }), ..env }
    }

    /// Returns the host that a tablet server on all addresses registers with these masters; empty for the loopback
    /// address.
    async fn wildcard_host(env: &Env, masters: &[&str]) -> Result<String, String> {
        let masters: Vec<String> = masters.iter().map(|master| master.to_string()).collect();
        let found = addresses(env, &Flags::new(), ServerKind::TabletServer, &masters).await;
        found.map(|found| found.wildcard_host.unwrap_or_default()).map_err(|error| error.message)
    }

    #[tokio::test]
    async fn a_server_on_all_addresses_is_known_by_its_host() {
        let env = named("db3", true);
        let cases: [(&[&str], &str); 5] = [
            (&["db1:7051", "10.0.0.2:7051"], "db3"),
            (&["127.0.0.1:7051", "db3.example.com:7051"], "db3.example.com"),
            // A cluster of one machine.
            (&["127.0.0.1:7051", "localhost:7151", "0.0.0.0:7251"], ""),
            // The same by other addresses of this machine.
            (&["10.0.0.2:7051"], "db3"),
            // A single master.
            (&[], "db3"),
        ];
        for (masters, host) in cases {
            assert_eq!(wildcard_host(&env, masters).await.unwrap(), host, "{masters:?}");
        }
        assert_eq!(wildcard_host(&named("db3", false), &[]).await.unwrap(), "", "of no use on this machine");
    }

    #[tokio::test]
    async fn a_machine_without_a_name_is_a_cluster_of_its_own() {
        // All addresses can be bound in this network.
        let masters = ["10.0.0.2:7051"];
        assert_eq!(wildcard_host(&named("localhost", true), &masters).await.unwrap(), "");
        assert_eq!(wildcard_host(&named("db3", false), &masters).await.unwrap(), "");
        let error = wildcard_host(&named("db3", false), &["db1:7051"]).await.unwrap_err();
        assert!(error.contains("the name \"db3\" has no address"), "{error}");
    }

    #[tokio::test]
    async fn a_host_without_a_name_needs_an_advertised_one() {
        for env in [named("localhost", true), mem_net::env()] {
            assert_eq!(wildcard_host(&env, &["127.0.0.1:7051"]).await.unwrap(), "");
            assert_eq!(wildcard_host(&env, &[]).await.unwrap(), "");
            let error = wildcard_host(&env, &["db1:7051"]).await.unwrap_err();
            assert!(error.starts_with("rpc_advertised_addresses: servers on other machines need"), "{error}");
        }
        let flags = apply(
            "rpc_advertised_addresses = [\"db3\"]\nwebserver_advertised_addresses = [\"db3\", \"proxy:80\"]\n",
        )
        .unwrap();
        let masters = ["db1:7051".to_string()];
        let found = addresses(&mem_net::env(), &flags, ServerKind::TabletServer, &masters).await.unwrap();
        assert_eq!(found.advertised, ["db3:7050"]);
        assert_eq!(found.web_advertised, ["db3:8050", "proxy:80"]);
        assert_eq!(found.wildcard_host, None);
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
    fn the_longest_election_timeout_can_be_computed() {
        let text = "raft_heartbeat_interval_ms = 1099511627776\nleader_failure_max_missed_heartbeat_periods = 100000\n";
        let timeout = raft(&apply(text).unwrap()).election_timeout();
        // After lost elections it is up to 2^16 / 3 times as long.
        assert!(timeout.mul_f64(65_536.0 / 3.0) > timeout);
    }

    #[test]
    fn defaults_are_those_of_the_rpc_layer() {
        assert_eq!(rpc(&Flags::new()).unwrap(), RpcConfig::default());
    }
}
