//! `nyala cluster drain`, `undrain` and `decommission`: a server leaves for a while, or forever.
//!
//! Both end when it is safe to switch the server off, and can be repeated after a failure.

use std::time::Duration;

use clap::ArgMatches;
use engine::error::{Error, Result};
use engine::ids::{PeerId, TabletId};
use engine::time::Instant;
use nyala_client::Client;
use nyala_client::rebalance::ReplicaMove;
use nyala_client::replica_admin::{ServerInfo, TabletReplicas};
use nyala_common::env::Env;

use super::arguments::{find_registered_server, find_server, number};
use super::observe::{Observation, ObservedServer, VoterState, address, observe, status};

use crate::cli::options::text;
use crate::cli::output::print;

/// Interval between two looks at the server.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Time for which a drain that is not possible is looked at again before it is refused: a server may reply late.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes a server out of use: no new replicas, no leaders. Returns when every tablet can do without the server. Order:
/// a drain that cannot end is refused before anything is changed.
pub(super) async fn drain(env: &Env, client: &Client, matches: &ArgMatches) -> Result<()> {
    let server = find_registered_server(client, text(matches, "server").expect("it is required")).await?;
    let deadline = env.now().mono.after(Duration::from_secs(number(matches, "timeout")));
    check_possible(env, client, server.id, deadline).await?;
    take_out_of_use(client, &server).await?;
    print(&format!("server {} is in maintenance mode and quiescing\n", server.id));
    loop {
        let status = client.quiesce(&address(&server), None).await?;
        let seen = observe(client).await?;
        let needed = tablets(&seen).filter(|(_, tablet)| depends(&seen, tablet, server.id)).count();
        if needed == 0 && status.leaders == 0 && status.scanners == 0 {
            print(&format!("server {} can be switched off; afterwards: nyala cluster undrain\n", server.id));
            return Ok(());
        }
        if env.now().mono >= deadline {
            return Err(Error::not_ready(format!(
                "server {}: not safe to switch off yet ({} leaders, {} scanners, {needed} tablets without a majority \
                 elsewhere); run the command again, or nyala cluster undrain",
                server.id, status.leaders, status.scanners
            )));
        }
        env.sleep(LOOK_INTERVAL).await;
    }
}

/// Switches maintenance mode on and lets the server quiesce. If it does not take the second state, it does not stay in
/// the first: the masters would wait for a server that may be lost.
async fn take_out_of_use(client: &Client, server: &ServerInfo) -> Result<()> {
    client.set_maintenance(server.id, true).await?;
    let Err(error) = client.quiesce(&address(server), Some(true)).await else { return Ok(()) };
    if !server.maintenance {
        let ended = client.set_maintenance(server.id, false).await;
        ended.map_err(|failed| failed.context(&error.message))?;
    }
    Err(error)
}

/// Fails if a drain of the server cannot end.
async fn check_possible(env: &Env, client: &Client, server: PeerId, deadline: Instant) -> Result<()> {
    let last_look = deadline.min(env.now().mono.after(PATIENCE));
    while let Some(obstacle) = obstacle(&observe(client).await?, server) {
        if obstacle.is_permanent || env.now().mono >= last_look {
            return Err(obstacle.error);
        }
        env.sleep(LOOK_INTERVAL).await;
    }
    Ok(())
}

/// Reason why a drain cannot end.
struct DrainObstacle {
    error: Error,
    /// True if no other server can change that.
    is_permanent: bool,
}

/// A tablet that has no majority without a server, and gets none from the others.
struct StuckTablet {
    id: TabletId,
    /// Replicas that it should have.
    wanted: usize,
    /// Other servers that run one of its voters or take a replica.
    others: usize,
}

impl StuckTablet {
    fn majority(&self) -> usize {
        self.wanted / 2 + 1
    }

    /// Returns true if its other replicas are no majority, whatever servers there are.
    fn has_too_few_replicas(&self) -> bool {
        self.wanted.saturating_sub(1) < self.majority()
    }
}

/// Returns the reason why a drain of the server cannot end, if there is one.
fn obstacle(seen: &Observation, server: PeerId) -> Option<DrainObstacle> {
    let silent = |why: &str, is_permanent| {
        let message = format!("server {server}: it does not reply ({why}); nothing was changed");
        Some(DrainObstacle { error: Error::not_ready(message), is_permanent })
    };
    match seen.server(server).map(|found| &found.status) {
        None => return silent("the masters no longer list it", true),
        Some(Err(why)) => return silent(why, false),
        Some(Ok(status)) if status.id != server => return silent("another server is at its address", true),
        Some(Ok(_)) => {}
    }
    let stuck = stuck_tablets(seen, server);
    let is_permanent = stuck.iter().any(StuckTablet::has_too_few_replicas);
    let first = stuck.iter().find(|tablet| tablet.has_too_few_replicas() == is_permanent)?;
    let alike = stuck.iter().filter(|tablet| tablet.wanted == first.wanted).count();
    Some(DrainObstacle { error: refusal(server, alike, first), is_permanent })
}

/// Returns the error of a drain that `count` tablets like `first` hinder.
fn refusal(server: PeerId, count: usize, first: &StuckTablet) -> Error {
    let StuckTablet { id, wanted, others } = first;
    Error::not_ready(match wanted {
        1 => format!(
            "server {server}: {count} tablets have their only replica here (e.g. {id}); move them by nyala cluster \
             decommission"
        ),
        _ => format!(
            "server {server}: {count} tablets have no majority without it (e.g. {id} with {wanted} replicas, for which \
             {others} other servers are ready); start or add servers, or move the replicas by nyala cluster \
             decommission; nothing was changed"
        ),
    })
}

/// Returns all tablets, also those of dropped tables that are kept, with the replicas that each should have.
fn tablets(seen: &Observation) -> impl Iterator<Item = (usize, &TabletReplicas)> {
    let tables = seen.tables.iter().chain(&seen.kept);
    tables.flat_map(|table| table.tablets.iter().map(move |tablet| (table.wanted, tablet)))
}

/// Returns true if the tablet has no majority without the server.
fn depends(seen: &Observation, tablet: &TabletReplicas, server: PeerId) -> bool {
    let VoterState { all, running } = seen.voters(tablet);
    let others = running.iter().filter(|other| **other != server).count();
    all.contains(&server) && others < all.len() / 2 + 1
}

/// Returns the tablets that would wait for the server without end.
fn stuck_tablets(seen: &Observation, server: PeerId) -> Vec<StuckTablet> {
    let takes_replicas = |other: &ObservedServer| {
        let quiescing = other.quiescing.is_some_and(|status| status.quiescing);
        let replies = other.status.as_ref().is_ok_and(|status| status.id == other.info.id);
        replies && !other.info.maintenance && !quiescing
    };
    let stuck = |(wanted, tablet): (usize, &TabletReplicas)| {
        let helps = |other: &&ObservedServer| {
            let id = other.info.id;
            id != server && (seen.runs(id, tablet.id) || takes_replicas(other))
        };
        let others = seen.servers.iter().filter(helps).count();
        // The masters may not know yet how many replicas a dropped table has.
        let wanted = wanted.max(seen.voters(tablet).all.len());
        let stuck = StuckTablet { id: tablet.id, wanted, others };
        (stuck.has_too_few_replicas() || others < stuck.majority()).then_some(stuck)
    };
    tablets(seen).filter(|(_, tablet)| depends(seen, tablet, server)).filter_map(stuck).collect()
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
    take_out_of_use(client, &server).await?;
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

#[cfg(test)]
mod tests {
    use super::super::observed_cluster::{id, replicas, server, table};
    use super::*;

    /// Servers 1 to `servers`, of which the first `voters` have the tablet.
    fn seen(servers: u8, voters: u8, wanted: usize) -> Observation {
        let mut servers: Vec<ObservedServer> = (1..=servers).map(server).collect();
        servers.iter_mut().take(voters.into()).for_each(|server| server.replicas = replicas());
        Observation { servers, tables: vec![table(voters, wanted)], ..Observation::default() }
    }

    fn stop(seen: &mut Observation, n: usize) {
        seen.servers[n - 1].status = Err("timed out".to_string());
        seen.servers[n - 1].replicas.clear();
    }

    /// Returns the obstacle to a drain of the first server, and whether it is permanent.
    fn refused(seen: &Observation) -> Option<(String, bool)> {
        obstacle(seen, id(1)).map(|obstacle| (obstacle.error.message, obstacle.is_permanent))
    }

    #[test]
    fn a_drain_that_ends_is_not_refused() {
        assert_eq!(refused(&seen(3, 3, 3)), None);
        // Another server replaces the replica that is lost.
        let mut replaceable = seen(4, 3, 3);
        stop(&mut replaceable, 3);
        assert_eq!(refused(&replaceable), None);
        // The masters wait for a server that is drained.
        let mut again = seen(3, 3, 3);
        again.servers[0].info.maintenance = true;
        assert_eq!(refused(&again), None);
        assert_eq!(refused(&Observation { tables: Vec::new(), ..seen(1, 0, 3) }), None);
    }

    #[test]
    fn a_drain_that_cannot_end_is_refused_with_the_way_out() {
        let mut too_few = seen(4, 3, 3);
        stop(&mut too_few, 3);
        too_few.servers[3].info.maintenance = true;
        let mut silent = seen(3, 3, 3);
        stop(&mut silent, 1);
        let cases = [seen(4, 1, 1), seen(4, 2, 2), too_few, silent, seen(0, 0, 3)];
        let line = |seen: &Observation| {
            let (message, is_permanent) = refused(seen).expect("it cannot end");
            format!("{is_permanent}: {message}\n")
        };
        insta::assert_snapshot!(cases.iter().map(line).collect::<String>(), @r"
        true: server 01010101010101010101010101010101: 1 tablets have their only replica here (e.g. eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee); move them by nyala cluster decommission
        true: server 01010101010101010101010101010101: 1 tablets have no majority without it (e.g. eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee with 2 replicas, for which 3 other servers are ready); start or add servers, or move the replicas by nyala cluster decommission; nothing was changed
        false: server 01010101010101010101010101010101: 1 tablets have no majority without it (e.g. eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee with 3 replicas, for which 1 other servers are ready); start or add servers, or move the replicas by nyala cluster decommission; nothing was changed
        false: server 01010101010101010101010101010101: it does not reply (timed out); nothing was changed
        true: server 01010101010101010101010101010101: it does not reply (the masters no longer list it); nothing was changed
        ");
    }
}
