//! Rebalancing: the placement of replicas on tablet servers, and moves that even it out.

mod placement;

use std::collections::BTreeSet;
use std::time::Duration;

use engine::error::{Error, Result};
use engine::ids::TabletId;
use futures_util::future::join_all;

use super::Client;
use super::replica_admin::{ServerInfo, TabletReplicas};
pub use placement::{Placement, ReplicaMove, ServerLoad, TabletVoters};

/// Time without a heartbeat after which a server gets no replicas.
const SILENCE_MAX: Duration = Duration::from_secs(60);

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
            let go = |m: &ReplicaMove| self.move_replica(m.tablet, m.from, m.to, options.patience);
            for (done, result) in moves.iter().zip(join_all(moves.iter().map(go)).await) {
                let ReplicaMove { tablet, from, to } = done;
                result
                    .map_err(|error| error.context(format!("move of tablet {tablet} from {from} to {to}")))?;
                on_move(*done);
                moved += 1;
            }
        }
    }

    /// Returns the placement of the replicas of these tables (empty: all tables) on the live servers.
    pub async fn layout(&self, tables: &[String]) -> Result<Placement> {
        let alive = |server: &ServerInfo| server.silent_for <= SILENCE_MAX && !server.maintenance;
        let servers: Vec<ServerLoad> = self
            .servers()
            .await?
            .into_iter()
            .filter(alive)
            .map(|server| ServerLoad { id: server.id, location: server.location.unwrap_or_default() })
            .collect();
        let mut tablets = Vec::new();
        for table in self.list_tables(None).await? {
            if !tables.is_empty() && !tables.contains(&table.name) {
                continue;
            }
            for tablet in self.replicas(&table.name).await? {
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

fn voters(tablet: &TabletReplicas) -> Result<Vec<engine::ids::PeerId>> {
    let voters: Vec<_> =
        tablet.replicas.iter().filter(|replica| replica.voter).map(|replica| replica.server).collect();
    match voters.is_empty() {
        true => Err(Error::not_ready(format!("tablet {} has no voter", tablet.id))),
        false => Ok(voters),
    }
}
