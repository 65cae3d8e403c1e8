//! Clusters that require encryption, also within one host, and tickets: the real tool works, and a client without TLS
//! or without a ticket is refused.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use super::cluster::{Cluster, ClusterPlan};
use super::daemon::{Role, ServerKind};
use super::kdc::{Kdc, TicketLife};
use super::packages::Packages;
use super::{rpc, tool};
use crate::steps::Steps;
use nyala_proto::kudu::master::{ListTabletServersRequestPb, ListTabletServersResponsePb};

const TABLET_SERVERS: usize = 3;

/// Runs all checks against one fresh cluster with its data under `target`.
pub(super) fn check_all(target: &Path, packages: &Packages, server: &ServerKind, steps: &mut Steps) {
    let mut started = None;
    steps.run(&format!("interop: start {} with encryption required", server.name()), || {
        let dir = tempfile::tempdir_in(target)?;
        started = Some((start(server, dir.path())?, dir));
        Ok(())
    });
    let Some((mut cluster, _dir)) = started else { return };
    tool::check_encrypted(packages, &cluster.master_addresses(), steps);
    steps.run("a client without TLS is refused", || plain_client_is_refused(&cluster));
    cluster.kill_all();
}

/// Runs the real tool with and without tickets against one fresh cluster.
pub(super) fn check_kerberos(target: &Path, packages: &Packages, server: &ServerKind, steps: &mut Steps) {
    let mut started = None;
    steps.run(&format!("interop: start {} with tickets required", server.name()), || {
        let dir = tempfile::tempdir_in(target)?;
        let kdc = Arc::new(Kdc::start(&dir.path().join("kdc"), &TicketLife::default())?);
        let mut cluster = planned(server, dir.path())?;
        cluster.use_kerberos(&kdc, "kudu")?;
        start_all(&mut cluster)?;
        started = Some((cluster, kdc, dir));
        Ok(())
    });
    let Some((mut cluster, kdc, _dir)) = started else { return };
    let masters = cluster.master_addresses();
    for check in tool::KERBEROS_CHECKS {
        steps.run(&format!("kudu {}", check.name), || tool::run(packages, &masters, check, &kdc.env()));
    }
    steps.run("another user is refused", || {
        kdc.kinit("joe-interloper")?;
        refused(packages, &masters, &kdc, "unauthorized access to method: ConnectToMaster")
    });
    steps.run("without a ticket the tool is refused", || {
        kdc.kdestroy()?;
        let why = "server requires authentication, but client does not have Kerberos credentials available";
        refused(packages, &masters, &kdc, why)
    });
    cluster.kill_all();
}

fn refused(packages: &Packages, masters: &str, kdc: &Kdc, why: &str) -> Result<()> {
    let tool = kdc.env().iter().fold(packages.kudu_tool(), |tool, (name, value)| tool.env(name, value));
    let output = tool.args(["table", "list", masters, "--timeout_ms=5000"]).output()?;
    ensure!(!output.success, "it was served: {}", output.stdout);
    ensure!(output.stderr.contains(why), "another refusal: {}", output.stderr);
    Ok(())
}

/// The usual wait for readiness uses plain text, so the servers only have to listen here; the tool waits for the rest.
fn start(server: &ServerKind, dir: &Path) -> Result<Cluster> {
    let mut cluster = planned(server, dir)?;
    start_all(&mut cluster)?;
    Ok(cluster)
}

fn start_all(cluster: &mut Cluster) -> Result<()> {
    cluster.start_daemon(Role::Master, 0)?;
    (0..TABLET_SERVERS).try_for_each(|index| cluster.start_daemon(Role::TabletServer, index))
}

fn planned(server: &ServerKind, dir: &Path) -> Result<Cluster> {
    // The last flag is experimental in Kudu.
    let gflags: Vec<String> = [
        "--rpc_encryption=required",
        "--unlock_experimental_flags",
        "--rpc_encrypt_loopback_connections=true",
    ]
    .map(str::to_owned)
    .to_vec();
    let plan = ClusterPlan {
        masters: 1,
        tablet_servers: TABLET_SERVERS,
        master_gflags: gflags.clone(),
        tserver_gflags: gflags,
        ..ClusterPlan::default()
    };
    Cluster::new(server.clone(), dir, &plan)
}

fn plain_client_is_refused(cluster: &Cluster) -> Result<()> {
    let master = cluster.masters.first().context("there is a master")?.spec.rpc;
    let request = ListTabletServersRequestPb { include_states: None };
    let reply: Result<ListTabletServersResponsePb> =
        rpc::call(master, "kudu.master.MasterService", "ListTabletServers", &request);
    let error = format!("{:#}", reply.err().context("it was served in plain text")?);
    ensure!(error.contains("client does not support required TLS encryption"), "another refusal: {error}");
    Ok(())
}
