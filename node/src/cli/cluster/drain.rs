//! `nyala cluster drain`, `undrain` and `decommission`: a server leaves for a while, or forever.
//!
//! Both end when it is safe to switch the server off, and can be repeated after a failure.

use std::time::Duration;

use clap::ArgMatches;
use engine::error::{Error, Result};
use engine::ids::{PeerId, TabletId};
use nyala_client::Client;
use nyala_client::rebalance::ReplicaMove;
use nyala_client::replica_admin::ServerInfo;
use nyala_common::env::Env;

use super::arguments::{find_registered_server, find_server, number};
use super::observe::{Observation, address, observe, status};

use crate::cli::options::text;
use crate::cli::output::print;

/// Interval between two looks at the server.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Takes a server out of use: no new replicas, no leaders. Returns when every tablet can do without the server.
pub(super) async fn drain(env: &Env, client: &Client, matches: &ArgMatches) -> Result<()> {
    let server = find_registered_server(client, text(matches, "server").expect("it is required")).await?;
    let deadline = env.now().mono.after(Duration::from_secs(number(matches, "timeout")));
    client.set_maintenance(server.id, true).await?;
    client.quiesce(&address(&server), Some(true)).await?;
    print(&format!("server {} is in maintenance mode and quiescing\n", server.id));
    loop {
        let status = client.quiesce(&address(&server), None).await?;
        let seen = observe(client).await?;
        let needed = dependents(&seen, server.id);
        if needed.is_empty() && status.leaders == 0 && status.scanners == 0 {
            print(&format!("server {} can be switched off; afterwards: nyala cluster undrain\n", server.id));
            return Ok(());
        }
        let alone: Vec<&TabletId> =
            needed.iter().filter(|(_, voters)| *voters == 1).map(|(id, _)| id).collect();
        if !alone.is_empty() && alone.len() == needed.len() && status.leaders as usize <= alone.len() {
            return Err(Error::not_ready(format!(
                "server {}: {} tablets have their only replica here (e.g. {}); move them by nyala cluster decommission",
                server.id,
                alone.len(),
                alone[0]
            )));
        }
        if env.now().mono >= deadline {
            return Err(Error::not_ready(format!(
                "server {}: not safe to switch off yet ({} leaders, {} scanners, {} tablets without a majority \
                 elsewhere); run the command again",
                server.id,
                status.leaders,
                status.scanners,
                needed.len()
            )));
        }
        env.sleep(LOOK_INTERVAL).await;
    }
}

/// Returns the tablets that would have no majority without the server, with their number of voters.
fn dependents(seen: &Observation, server: PeerId) -> Vec<(TabletId, usize)> {
    let tablets = seen.tables.iter().chain(&seen.kept).flat_map(|table| &table.tablets);
    let needs = |tablet: &nyala_client::replica_admin::TabletReplicas| {
        let voters: Vec<PeerId> =
            tablet.replicas.iter().filter(|replica| replica.voter).map(|replica| replica.server).collect();
        let others = voters.iter().filter(|other| **other != server && seen.runs(**other, tablet.id)).count();
        let needed = voters.contains(&server) && others < voters.len() / 2 + 1;
        needed.then_some((tablet.id, voters.len()))
    };
    tablets.filter_map(needs).collect()
}

/// Puts a drained server back into use. One that has not registered yet does not quiesce after its start.
pub(super) async fn undrain(client: &Client, matches: &ArgMatches) -> Result<()> {
    let server = find_server(client, text(matches, "server").expect("it is required")).await?;
    if server.is_registered() {
        client.quiesce(&address(&server), Some(false)).await?;
    }
    client.set_maintenance(server.id, false).await?;
    print(&format!("server {} is in use again\n", server.id));
    Ok(())
}

/// Moves every replica to other servers. Returns when the server holds none.
pub(super) async fn decommission(env: &Env, client: &Client, matches: &ArgMatches) -> Result<()> {
    let server = find_server(client, text(matches, "server").expect("it is required")).await?;
    check_enough(client, &server).await?;
    check_replies(client, &server).await?;
    client.set_maintenance(server.id, true).await?;
    client.quiesce(&address(&server), Some(true)).await?;
    let (at_once, patience) = (number(matches, "at-once") as usize, number(matches, "move-timeout"));
    let patience = Duration::from_secs(patience);
    let on_move = |ReplicaMove { tablet, to, .. }| print(&format!("moved tablet {tablet} to {to}\n"));
    let moved = client.drain_server(server.id, at_once, patience, on_move).await?;
    let deadline = env.now().mono.after(patience);
    loop {
        let replicas = client.local_replicas(&address(&server)).await?;
        let left = replicas.iter().filter(|replica| !replica.tombstoned).count();
        if left == 0 {
            break;
        }
        if env.now().mono >= deadline {
            let message = format!("server {}: {left} replicas are left; run the command again", server.id);
            return Err(Error::not_ready(message));
        }
        env.sleep(LOOK_INTERVAL).await;
    }
    print(&format!(
        "moved {moved} replicas; server {} holds none and can be switched off for good; \
         afterwards: nyala cluster remove-server\n",
        server.id
    ));
    Ok(())
}

/// Fails, with what to do, if the server does not reply: a server that is down cannot give anything away. Masters do
/// not replace the replicas of a server in maintenance mode, which an earlier run may have entered.
async fn check_replies(client: &Client, server: &ServerInfo) -> Result<()> {
    let id = server.id;
    status(client, server).await.map(drop).map_err(|error| {
        let first = match server.maintenance {
            true => format!("end its maintenance mode with nyala cluster maintenance {id} off, then "),
            false => String::new(),
        };
        Error::not_ready(format!(
            "server {id}: it does not reply ({error}); {first}the masters replace its replicas by themselves: wait \
             with nyala cluster check --wait 3600 --down {id}, then nyala cluster remove-server"
        ))
    })
}

/// Fails if a table would have fewer servers left than replicas wanted.
async fn check_enough(client: &Client, server: &ServerInfo) -> Result<()> {
    let (usable, _) = client.usable_servers().await?;
    let left = usable.iter().filter(|other| other.id != server.id).count();
    for table in client.tables_with_replicas().await? {
        let wanted = table.replicas.unwrap_or_default().max(0) as usize;
        if wanted > left {
            return Err(Error::invalid(format!(
                "server {}: table {} wants {wanted} replicas ({left} usable servers would be left); add a server",
                server.id, table.name
            )));
        }
    }
    Ok(())
}
