//! Faults drawn at random from a seed. The same seed draws the same rounds.

use std::fmt;

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

use crate::interop::daemon::Role;
use crate::interop::proxies::Node;

pub(super) const MASTERS: usize = 3;
pub(super) const TABLET_SERVERS: usize = 5;
/// Data directories of each tablet server.
pub(super) const DATA_DIRS: usize = 2;
/// The tablet server whose disk is small.
pub(super) const SMALL_DISK_TSERVER: usize = 2;

/// One round in how many, of those that can, has a second fault at the same time.
const SECOND_FAULT_EVERY: u64 = 3;
const FAULT_SECONDS: [u64; 2] = [2, 12];
const REST_SECONDS: [u64; 2] = [1, 6];

/// A stream of random numbers.
pub(super) struct Dice(ChaCha12Rng);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(ChaCha12Rng::seed_from_u64(seed))
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }

    fn within(&mut self, [first, last]: [u64; 2]) -> u64 {
        first + self.below(last - first + 1)
    }

    fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    fn node(&mut self) -> Node {
        match self.index(MASTERS + TABLET_SERVERS) {
            index if index < MASTERS => (Role::Master, index),
            index => (Role::TabletServer, index - MASTERS),
        }
    }

    /// Returns two servers; the first is a tablet server, as masters alone hardly talk.
    fn pair(&mut self) -> (Node, Node) {
        let one = (Role::TabletServer, self.index(TABLET_SERVERS));
        loop {
            let other = self.node();
            if other != one {
                return (one, other);
            }
        }
    }

    /// Draws the next round.
    pub(super) fn round(&mut self) -> Round {
        let first = self.fault();
        let mut faults = vec![first];
        if !first.is_alone() && self.below(SECOND_FAULT_EVERY) == 0 {
            let second = self.fault();
            faults.extend((!second.is_alone() && !second.touches_servers_of(&first)).then_some(second));
        }
        Round { faults, seconds: self.within(FAULT_SECONDS), rest: self.within(REST_SECONDS) }
    }

    fn fault(&mut self) -> Fault {
        let all: u64 = FAULTS.iter().map(|(weight, _)| weight).sum();
        let mut at = self.below(all);
        for (weight, draw) in FAULTS {
            if at < weight {
                return draw(self);
            }
            at -= weight;
        }
        unreachable!("the number is below the sum of the weights")
    }
}

/// Faults at the same time, for `seconds`, and the rest after them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Round {
    pub faults: Vec<Fault>,
    pub seconds: u64,
    pub rest: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Kill(Node),
    Pause(Node),
    /// No connection between a server and any other.
    Isolate(Node),
    Cut(Node, Node),
    /// Delay of what the first sends to the second.
    Hold(Node, Node),
    Reset,
    FullDisk,
    /// No fault, but an operator's act under load: servers that were away long have no replicas.
    Rebalance,
    /// Kill of all servers.
    PowerCut,
    ClockAhead {
        tserver: usize,
        seconds: u64,
    },
    DeadDataDir {
        tserver: usize,
        dir: usize,
    },
    LostServer(usize),
    LostMaster(usize),
    /// A flipped byte in the log; `at` chooses the file.
    DamagedLog {
        tserver: usize,
        at: u64,
    },
    DamagedData {
        tserver: usize,
        at: u64,
    },
}

type Draw = fn(&mut Dice) -> Fault;

fn tserver(dice: &mut Dice) -> usize {
    dice.index(TABLET_SERVERS)
}

/// All faults with their weights.
const FAULTS: [(u64, Draw); 15] = [
    (8, |dice| Fault::Kill(dice.node())),
    (6, |dice| Fault::Pause(dice.node())),
    (3, |dice| Fault::Isolate(dice.node())),
    (3, |dice| {
        let (one, other) = dice.pair();
        Fault::Cut(one, other)
    }),
    (4, |dice| {
        let (one, other) = dice.pair();
        if dice.below(2) == 0 { Fault::Hold(one, other) } else { Fault::Hold(other, one) }
    }),
    (2, |_| Fault::Reset),
    (3, |_| Fault::FullDisk),
    (4, |_| Fault::Rebalance),
    (1, |_| Fault::PowerCut),
    (2, |dice| Fault::ClockAhead { tserver: tserver(dice), seconds: [2, 3600][dice.index(2)] }),
    (2, |dice| Fault::DeadDataDir { tserver: tserver(dice), dir: dice.index(DATA_DIRS) }),
    (2, |dice| Fault::LostServer(tserver(dice))),
    (2, |dice| Fault::LostMaster(dice.index(MASTERS))),
    (1, |dice| Fault::DamagedLog { tserver: tserver(dice), at: dice.below(1 << 32) }),
    (1, |dice| Fault::DamagedData { tserver: tserver(dice), at: dice.below(1 << 32) }),
];

impl Fault {
    /// Returns true if the cluster must be healthy before it and again after it: the fault loses data of one server, or
    /// needs all others.
    pub(super) fn is_alone(&self) -> bool {
        !matches!(
            self,
            Fault::Kill(_)
                | Fault::Pause(_)
                | Fault::Isolate(_)
                | Fault::Cut(..)
                | Fault::Hold(..)
                | Fault::Reset
                | Fault::FullDisk
        )
    }

    /// Returns the word under which the summary counts it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Fault::Kill(_) => "kill -9",
            Fault::Pause(_) => "pause",
            Fault::Isolate(_) => "isolated server",
            Fault::Cut(..) => "cut link",
            Fault::Hold(..) => "delayed link",
            Fault::Reset => "reset connections",
            Fault::FullDisk => "full disk",
            Fault::Rebalance => "rebalance",
            Fault::PowerCut => "power cut",
            Fault::ClockAhead { .. } => "bad clock",
            Fault::DeadDataDir { .. } => "dead data directory",
            Fault::LostServer(_) => "lost tablet server",
            Fault::LostMaster(_) => "lost master",
            Fault::DamagedLog { .. } => "damaged log",
            Fault::DamagedData { .. } => "damaged data file",
        }
    }

    /// Returns true if it would undo a part of `other`.
    fn touches_servers_of(&self, other: &Fault) -> bool {
        let mine = self.servers();
        other.servers().iter().any(|server| mine.contains(server))
    }

    fn servers(&self) -> Vec<Node> {
        match *self {
            Fault::Kill(node) | Fault::Pause(node) | Fault::Isolate(node) => vec![node],
            Fault::Cut(one, other) | Fault::Hold(one, other) => vec![one, other],
            Fault::FullDisk => vec![(Role::TabletServer, SMALL_DISK_TSERVER)],
            _ => Vec::new(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        match *self {
            Fault::Kill(node) | Fault::Pause(node) | Fault::Isolate(node) => {
                write!(out, "{kind}: {}", name(node))
            }
            Fault::Cut(one, other) => write!(out, "{kind}: {} and {}", name(one), name(other)),
            Fault::Hold(one, other) => write!(out, "{kind}: {} to {}", name(one), name(other)),
            Fault::Reset | Fault::FullDisk | Fault::Rebalance | Fault::PowerCut => write!(out, "{kind}"),
            Fault::ClockAhead { tserver, seconds } => {
                write!(out, "{kind}: tablet server {tserver}, {seconds} s ahead")
            }
            Fault::DeadDataDir { tserver, dir } => write!(out, "{kind}: {dir} of tablet server {tserver}"),
            Fault::LostServer(server) => write!(out, "{kind}: {server}"),
            Fault::LostMaster(master) => write!(out, "{kind}: {master}"),
            Fault::DamagedLog { tserver, .. } | Fault::DamagedData { tserver, .. } => {
                write!(out, "{kind}: tablet server {tserver}")
            }
        }
    }
}

fn name((role, index): Node) -> String {
    match role {
        Role::Master => format!("master {index}"),
        Role::TabletServer => format!("tablet server {index}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn rounds(seed: u64, count: usize) -> Vec<Round> {
        let mut dice = Dice::new(seed);
        (0..count).map(|_| dice.round()).collect()
    }

    #[test]
    fn a_seed_draws_the_same_rounds_again_and_another_others() {
        assert_eq!(rounds(7, 50), rounds(7, 50));
        assert_ne!(rounds(7, 50), rounds(8, 50));
    }

    #[test]
    fn all_kinds_are_drawn_within_their_limits() {
        let rounds = rounds(1, 2000);
        let faults = rounds.iter().flat_map(|round| &round.faults);
        let kinds: BTreeSet<&str> = faults.clone().map(Fault::kind).collect();
        assert_eq!(kinds.len(), FAULTS.len());
        let in_range = |(role, index): &Node| match role {
            Role::Master => *index < MASTERS,
            Role::TabletServer => *index < TABLET_SERVERS,
        };
        assert!(faults.clone().flat_map(Fault::servers).all(|server| in_range(&server)));
        let seconds: BTreeSet<u64> = rounds.iter().map(|round| round.seconds).collect();
        assert_eq!(seconds, (FAULT_SECONDS[0]..=FAULT_SECONDS[1]).collect());
    }

    #[test]
    fn what_loses_data_comes_alone_and_other_pairs_share_no_server() {
        let rounds = rounds(2, 2000);
        let pairs = rounds.iter().filter(|round| round.faults.len() > 1);
        assert!(pairs.clone().count() > 100);
        for round in pairs {
            let [one, other] = round.faults[..] else { panic!("{round:?}") };
            assert!(!one.is_alone() && !other.is_alone() && !one.touches_servers_of(&other), "{round:?}");
        }
    }
}
