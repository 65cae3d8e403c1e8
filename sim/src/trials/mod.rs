//! Trials at the end of a run: parts of the system alone, where each step is checked and nothing else happens.
//!
//! ```text
//! seed ──┬─► [`storage`]  one replica with a made-up leader: jobs, crashes and rot against any scan at any snapshot
//!        ├─► [`group`]    replicas of one tablet with elections, copies, deletions and changes of members
//!        │        both: tables of `draw`, operations of `shape`, the model's rows in `rows`, scans of `scans`, which
//!        │        `aggregates` compares with aggregations of the engine
//!        ├─► [`hosting`]  whole tablet servers with one tablet: orders to delete and to copy, disks that fail in them
//!        ├─► [`directories`]  a tablet server whose data directories are lost, given up, brought back, reordered
//!        ├─► [`serving`]  tablet servers with many tablets and made-up masters: reports, full directories, transfers
//!        ├─► [`access`]   a tablet server that checks tokens: any call with any privileges and tokens
//!        ├─► [`catalog`]  the masters' catalog with made-up tablet servers and clients: requests, repair, failovers
//!        ├─► [`masters`]  real masters with made-up tablet servers: failovers, tokens, policies, drains
//!        ├─► [`backups`]  backups and restores of one table, given up and resumed
//!        ├─► [`holds`]    holds on history, masters that lead in turn and servers' marks, without calls and disks
//!        ├─► [`rpc`]      calls of a made-up service: any size and time, narrow links, retries, full queues
//!        ├─► [`placement`] moves that rebalancings and drains choose, against all moves there are, by locations
//!        ├─► [`tokens`]   keys that are rotated, and tokens at servers that start: hours without calls
//!        └─► [`client`]   the client with made-up masters and servers: retries, caches, scans, changes of ranges
//! ```
//!
//! The tables of a run have few rows, and its faults strike where clients and timers leave them a chance. The trials of
//! the engine have no network and no time: a hundred operations and as many maintenance steps take milliseconds. So
//! they reach what needs a certain order of writes, jobs, messages and crashes, any projection at any snapshot, and
//! values next to each other.
//!
//! *Not here:* whole clusters, which the runs are for.

mod access;
mod aggregates;
mod backups;
mod catalog;
mod client;
mod directories;
mod draw;
mod fleet;
mod group;
mod holds;
mod hosting;
mod masters;
mod pass;
mod placement;
#[cfg(test)]
mod reached;
mod reboots;
mod requests;
mod rot;
mod rows;
mod rpc;
mod scans;
mod serving;
mod shape;
mod storage;
mod tokens;

use crate::oracle::Violation;

/// A kind of trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TrialKind {
    Storage,
    Group,
    Hosting,
    Directories,
    Serving,
    Access,
    Catalog,
    Client,
    Holds,
    Rpc,
    Tokens,
    Backups,
    Placement,
    Masters,
}

const ALL: [TrialKind; 14] = [
    TrialKind::Storage,
    TrialKind::Group,
    TrialKind::Hosting,
    TrialKind::Directories,
    TrialKind::Serving,
    TrialKind::Access,
    TrialKind::Catalog,
    TrialKind::Client,
    TrialKind::Holds,
    TrialKind::Rpc,
    TrialKind::Tokens,
    TrialKind::Backups,
    TrialKind::Placement,
    TrialKind::Masters,
];

/// Trials that are repeated with other seeds, as they take little time: each of them finds as much as a run.
const REPEATED: [TrialKind; 4] = [TrialKind::Storage, TrialKind::Group, TrialKind::Catalog, TrialKind::Holds];
/// Repetitions, and the distance of their seeds.
const REPETITIONS: u64 = 3;
const SEEDS_APART: u64 = 1_000_000_000_000;
/// Trials of one seed in [`RARE_EVERY`] only, as they take as long as a small run.
const RARE: [TrialKind; 1] = [TrialKind::Masters];
const RARE_EVERY: u64 = 4;

/// Runs the trials of a seed; returns what they find. `once`: without repetitions.
pub fn run(seed: u64, once: bool) -> Vec<Violation> {
    let repetitions = if once { 0 } else { REPETITIONS };
    let seeds = (1..=repetitions).map(|number| seed.wrapping_add(number * SEEDS_APART));
    let repeated = seeds.flat_map(|seed| REPEATED.map(|kind| (kind, seed)));
    let is_due = |kind: &TrialKind| !RARE.contains(kind) || seed.is_multiple_of(RARE_EVERY);
    let trials = ALL.into_iter().filter(is_due).map(|kind| (kind, seed)).chain(repeated);
    trials.filter_map(|(kind, seed)| run_one(kind, seed)).collect()
}

/// Runs one trial of a seed; returns what it finds.
pub fn run_one(kind: TrialKind, seed: u64) -> Option<Violation> {
    match kind {
        TrialKind::Storage => storage::run(seed),
        TrialKind::Group => group::run(seed),
        TrialKind::Hosting => hosting::run(seed),
        TrialKind::Directories => directories::run(seed),
        TrialKind::Serving => serving::run(seed),
        TrialKind::Access => access::run(seed),
        TrialKind::Catalog => catalog::run(seed),
        TrialKind::Client => client::run(seed),
        TrialKind::Holds => holds::run(seed),
        TrialKind::Rpc => rpc::run(seed),
        TrialKind::Tokens => tokens::run(seed),
        TrialKind::Backups => backups::run(seed),
        TrialKind::Placement => placement::run(seed),
        TrialKind::Masters => masters::run(seed),
    }
}
