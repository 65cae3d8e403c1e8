//! A cluster that requires encryption, also within one host: the real tool works, a client without TLS is refused.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::cluster::{Cluster, ClusterPlan};
use super::daemon::{Role, ServerKind};
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

/// The usual wait for readiness uses plain text, so the servers only have to listen here; the tool waits for the rest.
fn start(server: &ServerKind, dir: &Path) -> Result<Cluster> {
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
    let mut cluster = Cluster::new(server.clone(), dir, &plan)?;
    cluster.start_daemon(Role::Master, 0)?;
    (0..TABLET_SERVERS).try_for_each(|index| cluster.start_daemon(Role::TabletServer, index))?;
    Ok(cluster)
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
