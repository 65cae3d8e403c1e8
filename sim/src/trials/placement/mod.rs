//! A placement trial: moves of replicas that rebalancings and drains choose, in small clusters with and without
//! locations.
//!
//! ```text
//!   drawn cluster ──► Placement: next move, next drain ──► the best of all moves, by the trial's own cost
//!                         ▲                                    │
//!                         └────────── applied ◄────────────────┘  until none lowers the cost
//! ```
//!
//! Runs have no locations, and drain no server.
//!
//! *Not here:* the calls that make a move, and which servers can take replicas.

pub(super) mod cluster;

use std::collections::BTreeMap;

use engine::ids::{PeerId, TabletId, Uuid};
use nyala_client::rebalance::{Placement, ReplicaMove, ServerLoad, TabletVoters};
use sim_plan::RandomStream;

use self::cluster::Cluster;
use crate::oracle::Violation;

/// Name of this oracle.
const NAME: &str = "placement trial";

/// Clusters of a trial.
const CLUSTERS: u32 = 10;
/// Most servers of a cluster, servers that are drained, and tablets.
const SERVERS_MAX: u64 = 7;
const DRAINED_MAX: u64 = 2;
const TABLETS_MAX: u64 = 6;
/// Percentage of clusters with locations, and of choices during which a tablet is moving.
const LOCATIONS_PERCENT: u64 = 70;
const BUSY_PERCENT: u64 = 30;
/// Number of moves after which a rebalancing has no end.
const MOVES_MAX: u32 = 500;
/// Lines that a violation's story ends with.
const STORY: usize = 40;

/// Numbers of choices that a trial has checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Reached {
    moves: u64,
    drains: u64,
    /// Drains in clusters with locations.
    located_drains: u64,
    /// Tablets that in the end have an avoidable majority in no location.
    spread: u64,
}

struct PlacementTrial {
    cluster: Cluster,
    placement: Placement,
    drained: Vec<PeerId>,
    story: Vec<String>,
    reached: Reached,
}

/// Runs the trial of a seed; returns what it finds.
pub(super) fn run(seed: u64) -> Option<Violation> {
    let random = &mut RandomStream::new(seed, "placement trial");
    for number in 0..CLUSTERS {
        let mut trial = PlacementTrial::create(random);
        if let Err(what) = trial.play(random) {
            let message = format!("seed {seed}, cluster {number}: {what}");
            return Some(Violation::new(NAME, message).with_end_of(trial.story, STORY));
        }
    }
    None
}

fn server(number: u64) -> PeerId {
    Uuid([number as u8 + 1; 16])
}

fn tablet(number: u64) -> TabletId {
    Uuid([number as u8 + 101; 16])
}

impl PlacementTrial {
    fn create(random: &mut RandomStream) -> PlacementTrial {
        let (count, drained) = (random.between(2, SERVERS_MAX), random.between(0, DRAINED_MAX));
        let locations = if random.percent(LOCATIONS_PERCENT) { random.between(1, 4) } else { 0 };
        let servers: BTreeMap<PeerId, String> =
            (0..count).map(|at| (server(at), location(random, locations))).collect();
        let drained: Vec<PeerId> = (count..count + drained).map(server).collect();
        let all: Vec<PeerId> = servers.keys().chain(&drained).copied().collect();
        let tablets = (0..random.between(1, TABLETS_MAX)).map(|at| voters(random, at, &all)).collect();
        let cluster = Cluster { servers, tablets };
        let listed = cluster.servers.iter();
        let listed = listed.map(|(id, location)| ServerLoad { id: *id, location: location.clone() });
        let placement = Placement::new(&listed.collect::<Vec<_>>(), cluster.tablets.clone());
        let story = vec![format!("{cluster:?}, drained {drained:?}")];
        PlacementTrial { cluster, placement, drained, story, reached: Reached::default() }
    }

    fn play(&mut self, random: &mut RandomStream) -> Result<(), String> {
        self.check_counts()?;
        self.rebalance(random)?;
        for from in self.drained.clone() {
            self.drain(random, from)?;
        }
        self.rebalance(random)?;
        self.check_majorities()
    }

    /// Draws a tablet that is moving, and which no choice may move.
    fn draw_busy(&self, random: &mut RandomStream) -> Option<TabletId> {
        let at = random.below(self.cluster.tablets.len() as u64) as usize;
        random.percent(BUSY_PERCENT).then(|| self.cluster.tablets[at].id)
    }

    /// Applies moves until none lowers the cost.
    fn rebalance(&mut self, random: &mut RandomStream) -> Result<(), String> {
        for _ in 0..MOVES_MAX {
            let busy = self.draw_busy(random);
            let chosen = self.placement.next_move(|tablet| Some(tablet) != busy);
            let mut all = self.cluster.moves(|from| self.cluster.servers.contains_key(&from));
            all.retain(|step| Some(step.tablet) != busy);
            all.retain(|step| self.cluster.change(step) < (0, 0, 0));
            check_choice(&self.cluster, &all, chosen).map_err(|what| format!("a rebalancing: {what}"))?;
            match chosen {
                Some(step) => self.apply(step)?,
                None if busy.is_none() => return Ok(()),
                None => {}
            }
            self.reached.moves += u64::from(chosen.is_some());
        }
        Err(format!("a rebalancing has not ended after {MOVES_MAX} moves"))
    }

    /// Moves replicas away from a server that is not listed, until no other one lacks a tablet.
    fn drain(&mut self, random: &mut RandomStream, from: PeerId) -> Result<(), String> {
        loop {
            let busy = self.draw_busy(random);
            let chosen = self.placement.next_drain(from, |tablet| Some(tablet) != busy);
            let mut all = self.cluster.moves(|server| server == from);
            all.retain(|step| Some(step.tablet) != busy);
            check_choice(&self.cluster, &all, chosen).map_err(|what| format!("a drain: {what}"))?;
            match chosen {
                Some(step) => self.apply(step)?,
                None if busy.is_none() => return Ok(()),
                None => continue,
            }
            self.reached.drains += 1;
            self.reached.located_drains += u64::from(self.cluster.servers.values().any(|at| !at.is_empty()));
        }
    }

    fn apply(&mut self, step: ReplicaMove) -> Result<(), String> {
        self.story.push(format!("{step:?}"));
        self.placement.apply(step);
        self.cluster = self.cluster.after(&step);
        self.check_counts()
    }

    /// Checks the numbers that a placement reports about itself.
    fn check_counts(&self) -> Result<(), String> {
        let cluster = &self.cluster;
        for tablet in &cluster.tablets {
            let servers = &tablet.servers;
            if (1..servers.len()).any(|at| servers[..at].contains(&servers[at])) {
                return Err(format!("tablet {} has two replicas on one server: {servers:?}", tablet.id));
            }
        }
        let all = cluster.servers.keys().chain(&self.drained);
        let counts: Vec<usize> = all.clone().map(|server| cluster.load(*server, None)).collect();
        let told: Vec<usize> = all.map(|server| self.placement.count_replicas(*server)).collect();
        let own = cluster.servers.iter().map(|(id, at)| (*id, at.as_str(), cluster.load(*id, None)));
        let crowded = cluster.tablets.iter().filter(|tablet| cluster.excess(&tablet.servers) > 0).count();
        let same = told == counts
            && self.placement.loads().eq(own)
            && self.placement.count_overcrowded_tablets() == crowded
            && self.placement.skew() == self.skew();
        if same { Ok(()) } else { Err(format!("it tells {:?} of {cluster:?}", self.placement)) }
    }

    /// Returns the largest difference between two servers: over all tables, and of the most uneven table.
    fn skew(&self) -> (usize, usize) {
        let spread = |table: Option<&str>| {
            let loads = self.cluster.servers.keys().map(|server| self.cluster.load(*server, table));
            let loads: Vec<usize> = loads.collect();
            loads.iter().max().copied().unwrap_or_default() - loads.iter().min().copied().unwrap_or_default()
        };
        let tables = self.cluster.tablets.iter().map(|tablet| spread(Some(&tablet.table)));
        (spread(None), tables.max().unwrap_or_default())
    }

    /// Checks that no location has a majority of voters if servers elsewhere could have them.
    fn check_majorities(&mut self) -> Result<(), String> {
        let cluster = &self.cluster;
        let is_listed = |tablet: &&TabletVoters| {
            tablet.servers.iter().all(|server| cluster.servers.contains_key(server))
                && cluster.can_avoid_majority(tablet.servers.len())
        };
        for tablet in cluster.tablets.iter().filter(is_listed) {
            if cluster.has_majority(&tablet.servers) {
                return Err(format!(
                    "tablet {} has an avoidable majority in one location: {cluster:?}",
                    tablet.id
                ));
            }
            self.reached.spread += 1;
        }
        Ok(())
    }
}

fn location(random: &mut RandomStream, locations: u64) -> String {
    if locations == 0 { String::new() } else { format!("/{}", random.below(locations)) }
}

/// Draws a tablet with voters on some of the servers.
fn voters(random: &mut RandomStream, number: u64, all: &[PeerId]) -> TabletVoters {
    let most = [1, 3, 5].into_iter().filter(|count| *count <= all.len()).collect::<Vec<_>>();
    let (count, mut left, mut servers) = (random.pick(&most), all.to_vec(), Vec::new());
    while servers.len() < count {
        servers.push(left.remove(random.below(left.len() as u64) as usize));
    }
    TabletVoters { id: tablet(number), table: format!("t{}", random.below(2)), servers }
}

/// Checks that a choice is one of the best moves, and that there is one if any move is possible.
fn check_choice(cluster: &Cluster, all: &[ReplicaMove], chosen: Option<ReplicaMove>) -> Result<(), String> {
    let best = all.iter().map(|step| (cluster.change(step), step)).min_by_key(|(change, _)| *change);
    match (chosen, best) {
        (None, None) => Ok(()),
        (None, Some((change, step))) => {
            Err(format!("no move is chosen, and {step:?} would change the cost by {change:?}"))
        }
        (Some(chosen), _) if !all.contains(&chosen) => {
            Err(format!("{chosen:?} is chosen, which is not possible or does not lower the cost"))
        }
        (Some(chosen), Some((change, step))) if cluster.change(&chosen) > change => {
            Err(format!("{chosen:?} is chosen, and {step:?} is better"))
        }
        (Some(_), _) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
