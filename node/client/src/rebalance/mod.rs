//! Rebalancing: the placement of replicas on tablet servers, and moves that even it out.

mod placement;

use std::collections::BTreeSet;
use std::time::Duration;

use engine::error::{Error, ErrorKind, Result};
use engine::ids::{PeerId, TabletId};
use futures_util::future::join_all;

use super::Client;
use super::replica_admin::{ServerInfo, TabletReplicas};
pub use placement::{Placement, ReplicaMove, ServerLoad, TabletVoters};

/// Time without a heartbeat after which a server gets no replicas.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A tablet server that takes no replicas, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExcludedServer {
    pub server: ServerInfo,
    pub reason: String,
    /// False for a server that is meant to be out of use: in maintenance mode, or quiescing.
    pub down: bool,
}

/// Options of a rebalancing.
#[derive(Debug, Clone)]
pub struct Rebalance {
    /// Names of the tables whose replicas may move; empty for all tables.
    pub tables: Vec<String>,
    /// Maximum number of moves at the same time.
    pub at_once: usize,
    /// Time limit of one move.
    pub patience: Duration,
}

impl Client {
    /// Moves replicas until no move improves the placement. Returns the number of moves; calls `on_move` after each.
    ///
    /// The first failed move ends the rebalancing. Completed moves stay, and moves in progress continue.
    pub async fn rebalance(
        &self,
        options: &Rebalance,
        mut on_move: impl FnMut(ReplicaMove),
    ) -> Result<usize> {
        let mut moved = 0;
        loop {
            let moves = next_moves(self.layout(&options.tables).await?, options.at_once);
            if moves.is_empty() {
                return Ok(moved);
            }
            moved += self.run_moves(&moves, options.patience, &mut on_move).await?;
        }
    }

    /// Separates the tablet servers that can take replicas from those that cannot. Each is asked, because a server that
    /// has just died is still in the masters' list.
    pub async fn usable_servers(&self) -> Result<(Vec<ServerInfo>, Vec<ExcludedServer>)> {
        let servers = self.servers().await?;
        let probes = join_all(servers.iter().map(|server| self.exclusion(server, &servers))).await;
        let (mut usable, mut excluded) = (Vec::new(), Vec::new());
        for (server, exclusion) in servers.into_iter().zip(probes) {
            match exclusion {
                None => usable.push(server),
                Some((reason, down)) => excluded.push(ExcludedServer { server, reason, down }),
            }
        }
        Ok((usable, excluded))
    }

    /// Returns why a server takes no replicas, and whether it is down.
    async fn exclusion(&self, server: &ServerInfo, all: &[ServerInfo]) -> Option<(String, bool)> {
        let address = format!("{}:{}", server.host, server.port);
        if server.maintenance {
            return Some(("maintenance mode".to_string(), false));
        }
        if server.silent_for > SILENCE_MAX {
            return Some((format!("no heartbeat for {} s", server.silent_for.as_secs()), true));
        }
        if has_lost_address(server, all) {
            return Some((format!("another server is at {address} now"), true));
        }
        match self.quiesce(&address, None).await {
            Err(error) => Some((error.message, true)),
            Ok(status) if status.quiescing => Some(("quiescing".to_string(), false)),
            Ok(_) => None,
        }
    }

    /// Moves all replicas away from a server that [`Client::usable_servers`] excludes. Returns the number of moves;
    /// calls `on_move` after each. Stops at the first move that fails, or when no server can take a replica.
    pub async fn drain_server(
        &self,
        from: PeerId,
        at_once: usize,
        patience: Duration,
        mut on_move: impl FnMut(ReplicaMove),
    ) -> Result<usize> {
        let mut moved = 0;
        loop {
            let mut layout = self.layout(&[]).await?;
            let left = layout.count_replicas(from);
            if left == 0 {
                return Ok(moved);
            }
            let (mut moves, mut moving): (Vec<ReplicaMove>, BTreeSet<TabletId>) = Default::default();
            while moves.len() < at_once
                && let Some(next) = layout.next_drain(from, |tablet| !moving.contains(&tablet))
            {
                layout.apply(next);
                moving.insert(next.tablet);
                moves.push(next);
            }
            if moves.is_empty() {
                return Err(Error::not_ready(format!(
                    "server {from}: {left} replicas cannot move (no other usable server lacks one); add a server"
                )));
            }
            moved += self.run_moves(&moves, patience, &mut on_move).await?;
        }
    }

    /// Runs moves at the same time. All end before the first failure is returned.
    async fn run_moves(
        &self,
        moves: &[ReplicaMove],
        patience: Duration,
        on_move: &mut impl FnMut(ReplicaMove),
    ) -> Result<usize> {
        let go = |m: &ReplicaMove| self.move_replica(m.tablet, m.from, m.to, patience);
        for (done, result) in moves.iter().zip(join_all(moves.iter().map(go)).await) {
            let ReplicaMove { tablet, from, to } = done;
            result.map_err(|error| error.context(format!("move of tablet {tablet} from {from} to {to}")))?;
            on_move(*done);
        }
        Ok(moves.len())
    }

    /// Returns the placement of the replicas of these tables (empty: all tables, and those that are kept after a drop)
    /// on the usable servers.
    pub async fn layout(&self, names: &[String]) -> Result<Placement> {
        let servers: Vec<ServerLoad> = self
            .usable_servers()
            .await?
            .0
            .into_iter()
            .map(|server| ServerLoad { id: server.id, location: server.location.unwrap_or_default() })
            .collect();
        let mut tablets = Vec::new();
        for table in self.tables_with_replicas().await? {
            if !names.is_empty() && !names.contains(&table.name) {
                continue;
            }
            let found = match self.replicas(&table.name).await {
                // A table that was removed since it was listed has no replicas.
                Err(error) if error.kind == ErrorKind::NotFound => continue,
                found => found?,
            };
            for tablet in found {
                tablets.push(TabletVoters {
                    id: tablet.id,
                    table: table.name.clone(),
                    servers: voters(&tablet)?,
                });
            }
        }
        Ok(Placement::new(&servers, tablets))
    }
}

/// Returns true if a later heartbeat came from another server at the same address: one that lost its disks comes back
/// as another server, which would reply in the place of the old one.
fn has_lost_address(server: &ServerInfo, all: &[ServerInfo]) -> bool {
    let is_there = |other: &&ServerInfo| (&other.host, other.port) == (&server.host, server.port);
    let mut there = all.iter().filter(|other| other.id != server.id).filter(is_there);
    there.any(|other| other.silent_for < server.silent_for)
}

/// Returns the best moves, at most one per tablet.
fn next_moves(mut layout: Placement, at_once: usize) -> Vec<ReplicaMove> {
    let (mut moves, mut moving): (Vec<ReplicaMove>, BTreeSet<TabletId>) = Default::default();
    while moves.len() < at_once
        && let Some(next) = layout.next_move(|tablet| !moving.contains(&tablet))
    {
        layout.apply(next);
        moving.insert(next.tablet);
        moves.push(next);
    }
    moves
}

fn voters(tablet: &TabletReplicas) -> Result<Vec<PeerId>> {
    let voters: Vec<_> =
        tablet.replicas.iter().filter(|replica| replica.voter).map(|replica| replica.server).collect();
    match voters.is_empty() {
        true => Err(Error::not_ready(format!("tablet {} has no voter", tablet.id))),
        false => Ok(voters),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::ids::Uuid;

    fn server(id: u8, port: u16, silent_s: u64) -> ServerInfo {
        ServerInfo {
            id: Uuid([id; 16]),
            host: "a".to_string(),
            port,
            https: false,
            location: None,
            silent_for: Duration::from_secs(silent_s),
            maintenance: false,
        }
    }

    /// Masters list a server for some time after another one has taken its address.
    #[test]
    fn a_server_whose_address_another_one_has_is_not_usable() {
        let all = [server(1, 7050, 20), server(2, 7050, 1), server(3, 7051, 30)];
        let lost: Vec<bool> = all.iter().map(|server| has_lost_address(server, &all)).collect();
        assert_eq!(lost, [true, false, false]);
    }
}
