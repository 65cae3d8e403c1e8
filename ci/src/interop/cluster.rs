//! A cluster of daemons on loopback, each a separate process.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::daemon::{Daemon, DaemonSpec, Role, ServerKind, free_addresses};
use super::kdc::{self, Kdc};
use super::proxies::{LinkProxies, Node};
use super::rpc;
use crate::command::CommandLine;
use nyala_proto::kudu::master::{ListTabletServersRequestPb, ListTabletServersResponsePb};
use nyala_proto::kudu::server::set_flag_response_pb::Code;
use nyala_proto::kudu::server::{SetFlagRequestPb, SetFlagResponsePb};

const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Shape of a cluster.
#[derive(Clone, Default)]
pub(crate) struct ClusterPlan {
    pub masters: usize,
    pub tablet_servers: usize,
    pub master_gflags: Vec<String>,
    pub tserver_gflags: Vec<String>,
    /// [`DaemonSpec::heard`] of all daemons.
    pub heard: bool,
    /// True if servers are reached through proxies.
    pub doors: bool,
    /// Data directories of each server beside the first.
    pub more_data_dirs: usize,
}

pub(crate) struct Cluster {
    /// Program of daemons that are started from now on.
    pub server: ServerKind,
    /// The proxies, if there are any.
    pub links: Option<LinkProxies>,
    pub masters: Vec<Daemon>,
    pub tservers: Vec<Daemon>,
    /// Realm and service of servers that require tickets.
    kerberos: Option<(Arc<Kdc>, String)>,
}

impl Cluster {
    /// Plans a cluster with data under `dir`; starts nothing.
    pub(crate) fn new(server: ServerKind, dir: &Path, plan: &ClusterPlan) -> Result<Cluster> {
        let addresses = free_addresses(2 * (plan.masters + plan.tablet_servers))?;
        let links = plan.doors.then(LinkProxies::default);
        let mut pairs = addresses.chunks(2);
        let mut daemons = |role, name: &str, count, gflags: &Vec<String>| -> Result<Vec<Daemon>> {
            let spec = |(index, pair): (usize, &[SocketAddr])| {
                let dir = dir.join(format!("{name}-{index}"));
                let spec = DaemonSpec {
                    role,
                    disk: dir.clone(),
                    data_dirs: 1 + plan.more_data_dirs,
                    clock_ahead: 0,
                    dir,
                    rpc: pair[0],
                    advertised: advertised(links.as_ref(), (role, index), pair[0])?,
                    web: pair[1],
                    masters: Vec::new(),
                    gflags: gflags.clone(),
                    env: Vec::new(),
                    heard: plan.heard,
                };
                Ok(Daemon::new(spec))
            };
            pairs.by_ref().take(count).enumerate().map(spec).collect()
        };
        let mut masters = daemons(Role::Master, "master", plan.masters, &plan.master_gflags)?;
        let mut tservers = daemons(Role::TabletServer, "tserver", plan.tablet_servers, &plan.tserver_gflags)?;
        let addresses: Vec<SocketAddr> = masters.iter().map(|master| master.spec.address()).collect();
        for daemon in masters.iter_mut().chain(&mut tservers) {
            daemon.spec.masters = addresses.clone();
        }
        Ok(Cluster { server, links, masters, tservers, kerberos: None })
    }

    /// Gives every planned daemon a keytab of `kdc` and the flags that require tickets, before its own flags.
    pub(crate) fn use_kerberos(&mut self, kdc: &Arc<Kdc>, service: &str) -> Result<()> {
        for daemon in self.masters.iter_mut().chain(&mut self.tservers) {
            let principal = format!("{service}/{}", daemon.spec.address().ip());
            let keytab = kdc.keytab(&principal)?;
            let flags = [
                format!("--keytab_file={}", keytab.display()),
                format!("--principal={principal}"),
                "--rpc_authentication=required".to_owned(),
                format!("--superuser_acl={}", kdc::ADMIN),
                format!("--user_acl={}", kdc::USER),
            ];
            daemon.spec.gflags.splice(0..0, flags);
            daemon.spec.env = kdc.env().to_vec();
        }
        self.kerberos = Some((kdc.clone(), service.to_owned()));
        Ok(())
    }

    /// Requires TLS of every connection, also within one host, and tickets, of the planned daemons.
    pub(crate) fn require_security(&mut self, kdc: &Arc<Kdc>) -> Result<()> {
        for daemon in self.masters.iter_mut().chain(&mut self.tservers) {
            // The last flag is experimental in Kudu, which is unlocked for all.
            let flags = ["--rpc_encryption=required", "--rpc_encrypt_loopback_connections=true"];
            daemon.spec.gflags.extend(flags.map(str::to_owned));
        }
        self.use_kerberos(kdc, "kudu")
    }

    /// Starts a planned cluster and waits until it is ready.
    pub(crate) fn started(server: ServerKind, dir: &Path, plan: &ClusterPlan) -> Result<Cluster> {
        let mut cluster = Cluster::new(server, dir, plan)?;
        cluster.start()?;
        Ok(cluster)
    }

    /// Starts every stopped daemon and waits until the leading master knows every tablet server.
    pub(crate) fn start(&mut self) -> Result<()> {
        let of = |role, count| (0..count).map(move |index| (role, index));
        let masters = of(Role::Master, self.masters.len());
        for (role, index) in masters.chain(of(Role::TabletServer, self.tservers.len())) {
            self.launch(role, index)?;
        }
        self.wait_ready()
    }

    /// Starts one daemon and waits for nothing.
    pub(crate) fn launch(&mut self, role: Role, index: usize) -> Result<()> {
        let server = self.server.clone();
        let daemon = self.daemon(role, index)?;
        daemon.start(&server)?;
        let process = daemon.pid();
        if let (Some(links), Some(process)) = (&self.links, process) {
            links.runs((role, index), process);
        }
        Ok(())
    }

    /// Gives a stopped daemon other addresses.
    pub(crate) fn move_daemon(&mut self, role: Role, index: usize) -> Result<()> {
        let addresses = free_addresses(2)?;
        let advertised = advertised(self.links.as_ref(), (role, index), addresses[0])?;
        let spec = &mut self.daemon(role, index)?.spec;
        (spec.rpc, spec.web, spec.advertised) = (addresses[0], addresses[1], advertised);
        Ok(())
    }

    /// Starts one daemon and waits until its server replies.
    pub(crate) fn start_daemon(&mut self, role: Role, index: usize) -> Result<()> {
        self.launch(role, index)?;
        let addr = self.daemon(role, index)?.spec.rpc;
        wait(|| {
            self.check_all_run()?;
            Ok(std::net::TcpStream::connect(addr).map(drop).map_err(|error| format!("{addr}: {error}")))
        })
    }

    /// Kills every process at once; the data stays.
    pub(crate) fn kill_all(&mut self) {
        self.masters.iter_mut().chain(&mut self.tservers).for_each(Daemon::kill);
    }

    pub(crate) fn daemon(&mut self, role: Role, index: usize) -> Result<&mut Daemon> {
        let daemons = match role {
            Role::Master => &mut self.masters,
            Role::TabletServer => &mut self.tservers,
        };
        daemons.get_mut(index).with_context(|| format!("there is no {role:?} {index}"))
    }

    /// Returns the addresses that clients connect to.
    pub(crate) fn master_addresses(&self) -> String {
        self.masters.iter().map(|master| master.spec.address().to_string()).collect::<Vec<_>>().join(",")
    }

    /// Changes a flag of a running daemon. One that nyala reads only at its start gets the effect by a restart.
    pub(crate) fn set_flag(&mut self, role: Role, index: usize, flag: &str, value: &str) -> Result<()> {
        let addr = self.daemon(role, index)?.spec.rpc;
        if self.kerberos.is_some() {
            let asked = self.nyala(&["set-flag", &addr.to_string(), flag, value, "--force"]);
            return asked.map(drop).or_else(|refusal| self.restart_with(role, index, flag, value, &refusal));
        }
        let request = SetFlagRequestPb {
            flag: flag.to_owned(),
            value: value.to_owned(),
            force: Some(true),
            run_consistency_check: None,
        };
        let reply: SetFlagResponsePb = rpc::call(addr, "kudu.server.GenericService", "SetFlag", &request)?;
        let refusal = || anyhow!("setting {flag} to {value} at {addr}: {:?} {}", reply.result(), reply.msg());
        match reply.result() {
            Code::Success => Ok(()),
            Code::NotSafe => self.restart_with(role, index, flag, value, &refusal()),
            _ => Err(refusal()),
        }
    }

    /// Restarts a daemon with one flag more: one that is read at the start, or one that makes every new client refuse
    /// the server, this one included. Kudu's own mini cluster then still has the connection that it made before.
    fn restart_with(
        &mut self,
        role: Role,
        index: usize,
        flag: &str,
        value: &str,
        refusal: &anyhow::Error,
    ) -> Result<()> {
        eprintln!("mini_cluster: {role:?} {index} is restarted for {flag}={value}: {refusal:#}");
        let daemon = self.daemon(role, index)?;
        daemon.kill();
        daemon.spec.gflags.push(format!("--{flag}={value}"));
        self.start_daemon(role, index)
    }

    /// Waits until the leading master knows every started tablet server.
    pub(crate) fn wait_ready(&mut self) -> Result<()> {
        let expected = self.tservers.iter().filter(|tserver| tserver.pid().is_some()).count();
        wait(|| {
            self.check_all_run()?;
            Ok(self.registered().and_then(|registered| {
                if registered >= expected {
                    Ok(())
                } else {
                    Err(format!("{registered} of {expected} tservers"))
                }
            }))
        })
    }

    /// Returns the smallest number of tablet servers that a running master knows. Only a leader's reply counts for
    /// tablet servers, but all must reply.
    fn registered(&self) -> Result<usize, String> {
        if self.kerberos.is_some() {
            let list = self.listed().map_err(|error| format!("{error:#}"))?;
            let known =
                self.tservers.iter().filter(|server| list.contains(&server.spec.address().to_string()));
            return Ok(known.count());
        }
        let mut leaders = Vec::new();
        for master in self.masters.iter().filter(|master| master.pid().is_some()) {
            let addr = master.spec.rpc;
            let request = ListTabletServersRequestPb { include_states: None };
            let reply: ListTabletServersResponsePb =
                rpc::call(addr, "kudu.master.MasterService", "ListTabletServers", &request)
                    .map_err(|error| format!("{error:#}"))?;
            if reply.error.is_none() {
                leaders.push(reply.servers.len());
            }
        }
        leaders.into_iter().min().ok_or_else(|| "no master leads".to_owned())
    }

    /// Returns a list of the tablet servers that the leading master knows, asked for with a ticket.
    fn listed(&self) -> Result<String> {
        let ServerKind::Kudu(program, env) = &self.server else { return self.nyala(&["servers"]) };
        let (kdc, _) = self.kerberos.as_ref().context("the servers require no tickets")?;
        let env = env.iter().cloned().chain(kdc.admin_env()?);
        let tool = env.fold(CommandLine::new(program), |tool, (name, value)| tool.env(name, value));
        let masters = self.master_addresses();
        let output = tool.args(["tserver", "list", &masters, "--columns=rpc-addresses"]).output()?;
        ensure!(output.success, "kudu tserver list: {}", output.stderr);
        Ok(output.stdout)
    }

    /// Runs `nyala cluster` as the administrator, with a ticket.
    fn nyala(&self, words: &[&str]) -> Result<String> {
        let (kdc, service) = self.kerberos.as_ref().context("the servers require no tickets")?;
        let ServerKind::Nyala(program) = &self.server else { bail!("this is a command for nyala's servers") };
        let env = kdc.admin_env()?;
        let tool = env.iter().fold(CommandLine::new(program), |tool, (name, value)| tool.env(name, value));
        let masters = self.master_addresses();
        let fixed = ["--masters", masters.as_str(), "--sasl-protocol-name", service];
        let output = tool.args(["cluster"]).args(words).args(fixed).output()?;
        ensure!(output.success, "nyala cluster {words:?}: {}", output.stderr);
        Ok(output.stdout)
    }

    /// Fails, with the end of its log, if a started process has ended by itself.
    pub(crate) fn check_all_run(&mut self) -> Result<()> {
        self.masters.iter_mut().chain(&mut self.tservers).try_for_each(Daemon::check_runs)
    }
}

/// Returns the address that a server bound to `rpc` advertises.
fn advertised(links: Option<&LinkProxies>, node: Node, rpc: SocketAddr) -> Result<Option<SocketAddr>> {
    Ok(links.map(|links| links.door(node, rpc)).transpose()?)
}

/// Polls until `ready` succeeds; an outer error of `ready` ends the wait.
fn wait(mut ready: impl FnMut() -> Result<Result<(), String>>) -> Result<()> {
    let start = Instant::now();
    loop {
        match ready()? {
            Ok(()) => return Ok(()),
            Err(why) if start.elapsed() > READY_TIMEOUT => {
                bail!("not ready after {} s: {why}", READY_TIMEOUT.as_secs())
            }
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}
