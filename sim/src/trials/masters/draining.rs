//! Draining of a server, as `nyala` drains one: in maintenance mode, all its replicas move to others.
//!
//! It must become empty, since each tablet has a server that can take the replica, and no location may get a majority
//! of a tablet that another choice avoids.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::ids::Uuid;
use nyala_client::{Client, ClientConfig};

use super::script::Script;
use super::settings::{CALL, MASTERS, SERVERS, TRUSTED, location, master_address};
use super::state::State;
use crate::trials::placement::cluster::Cluster;

/// Moves at once, and the time limit of each.
const AT_ONCE: usize = 2;
const PATIENCE: Duration = Duration::from_secs(20);
/// Attempts while another master comes to lead, and the pause between them.
const ATTEMPTS: usize = 4;
const PAUSE: Duration = Duration::from_secs(1);

/// Voters of the tablets that have one on the server.
type Voters = BTreeMap<Uuid, BTreeSet<Uuid>>;

/// Drains a server, perhaps while masters change.
pub(super) async fn drain(script: &mut Script, changes: bool) -> Result<(), String> {
    let number = script.random.below(SERVERS as u64) as usize;
    let from = script.state.lock().servers[number].id();
    let mut entered = false;
    for _ in 0..ATTEMPTS {
        entered = entered || script.set_maintenance(from, true).await?;
    }
    if !entered {
        return Err(format!("{from} does not enter maintenance mode, without faults"));
    }
    let before = voters_with(&script.state.lock(), from);
    let mut drained = try_drain(script, from).await;
    for _ in 1..ATTEMPTS {
        if drained.is_ok() || !changes {
            break;
        }
        script.links.env.sleep(PAUSE).await;
        drained = try_drain(script, from).await;
    }
    let tablets = before.len();
    let what = format!("server {from} with {tablets} tablets");
    let moved = drained.map_err(|error| format!("{what} does not drain: {error}"))?;
    script.note(format!("{what} drains by {moved} moves"));
    check_drained(&script.state.lock(), from, &before)?;
    script.set_maintenance(from, false).await.map(drop)
}

async fn try_drain(script: &Script, from: Uuid) -> Result<usize, String> {
    let config = ClientConfig::new((0..MASTERS).map(master_address));
    let config = ClientConfig { rpc_timeout: CALL, user: TRUSTED.to_string(), ..config };
    let client =
        Client::connect(script.links.env.clone(), config).await.map_err(|error| error.to_string())?;
    client.drain_server(from, AT_ONCE, PATIENCE, |_| ()).await.map_err(|error| error.to_string())
}

fn voters_with(state: &State, server: Uuid) -> Voters {
    let has = state.groups.iter().filter(|(id, group)| group.has_voter(server) && is_live(state, id));
    has.map(|(id, group)| (*id, group.voters().map(|voter| voter.id).collect())).collect()
}

/// Returns true if a tablet has replicas: those of a table that was dropped are deleted.
fn is_live(state: &State, tablet: &Uuid) -> bool {
    state.servers.iter().any(|server| server.replicas.contains_key(tablet))
}

fn check_drained(state: &State, from: Uuid, before: &Voters) -> Result<(), String> {
    if let Some((tablet, _)) = voters_with(state, from).first_key_value() {
        return Err(format!("{from} is drained, and is still a voter of {tablet}"));
    }
    let others = state.servers.iter().filter(|server| server.id() != from);
    let servers = others.map(|server| (server.id(), location(server.number).to_string())).collect();
    let cluster = Cluster { servers, tablets: Vec::new() };
    for (tablet, voters) in before {
        let after: Vec<Uuid> = state.groups[tablet].voters().map(|voter| voter.id).collect();
        let stay: Vec<Uuid> = voters.iter().copied().filter(|voter| *voter != from).collect();
        let with = |to: &Uuid| stay.iter().copied().chain([*to]).collect::<Vec<Uuid>>();
        let choices = cluster.servers.keys().filter(|to| !stay.contains(to)).map(with);
        let least = choices.map(|choice| cluster.excess(&choice)).min().unwrap_or_default();
        if after.len() != voters.len() || cluster.excess(&after) > least {
            return Err(format!(
                "{tablet} moves from {voters:?} to {after:?}, more than {least} above the limit of a location"
            ));
        }
    }
    Ok(())
}
