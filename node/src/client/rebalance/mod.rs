//! For tools: how replicas lie on the servers, and spreading them evenly.

mod layout;

use std::collections::BTreeSet;
use std::time::Duration;

use engine::error::{Error, Result};
use engine::ids::TabletId;
use futures_util::future::join_all;

use super::Client;
use super::replicas::{ServerInfo, TabletReplicas};
pub use layout::{Layout, Move, Server, Tablet};

/// A server silent for longer is given no replicas.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What is to be spread, and how.
#[derive(Debug, Clone)]
pub struct Rebalance {
    /// Names of the tables whose replicas may move; every table's if there is none.
    pub tables: Vec<String>,
    /// Replicas that move at the same time.
    pub at_once: usize,
    /// How long one move may take.
    pub patience: Duration,
}

impl Client {
    /// Moves replicas until nothing gets better; how many. `told` hears of each that moved.
    ///
    /// It ends with the first move that fails: what moved stays, and what was begun goes on.
    pub async fn rebalance(&self, wanted: &Rebalance, mut told: impl FnMut(Move)) -> Result<usize> {
        let mut moved = 0;
        loop {
            let moves = next_moves(self.layout(&wanted.tables).await?, wanted.at_once);
            if moves.is_empty() {
                return Ok(moved);
            }
            let go = |m: &Move| self.move_replica(m.tablet, m.from, m.to, wanted.patience);
            for (done, result) in moves.iter().zip(join_all(moves.iter().map(go)).await) {
                let Move { tablet, from, to } = done;
                result
                    .map_err(|error| error.context(format!("move of tablet {tablet} from {from} to {to}")))?;
                told(*done);
                moved += 1;
            }
        }
    }

    /// How the replicas of these tables (all, if none is named) lie on the servers that live.
    pub async fn layout(&self, tables: &[String]) -> Result<Layout> {
        let alive = |server: &ServerInfo| server.silent_for <= SILENCE_MAX && !server.maintenance;
        let servers: Vec<Server> = self
            .servers()
            .await?
            .into_iter()
            .filter(alive)
            .map(|server| Server { id: server.id, location: server.location.unwrap_or_default() })
            .collect();
        let mut tablets = Vec::new();
        for table in self.list_tables(None).await? {
            if !tables.is_empty() && !tables.contains(&table.name) {
                continue;
            }
            for tablet in self.replicas(&table.name).await? {
                tablets.push(Tablet { id: tablet.id, table: table.name.clone(), servers: voters(&tablet)? });
            }
        }
        Ok(Layout::new(&servers, tablets))
    }
}

/// The best moves, one of each tablet at most.
fn next_moves(mut layout: Layout, at_once: usize) -> Vec<Move> {
    let (mut moves, mut moving): (Vec<Move>, BTreeSet<TabletId>) = Default::default();
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
