//! A randomized test of a group of Raft cores: messages in flight, one queue of writes per server, and a seed that
//! chooses each step. Faults are loss, duplication, reordering, cut links, crashes that lose unsynced data and skewed
//! clocks; steps include configuration changes, tablet copies and tombstones. Invariants are checked after every step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use bytes::Bytes;
use engine::ids::PeerId;
use engine::note::raft::RaftTrace;
use engine::raft::interface::{PeerStatus, UpdateErrorKind, UpdateResponse};
use engine::raft::{
    ConfigChange, ConfigChangePart, ConsensusMeta, MemberKind, Peer, PeerHealth, RaftConfig, RaftEvent,
    RaftMessage, RaftOptions, RaftReply,
};
use engine::time::{ClockReading, Instant, WallTime};

mod hibernation;
mod ids;
pub mod invariants;
pub mod node;
mod replica_store;
pub mod script;
pub mod server_disk;
mod tablet_copy;

pub use ids::{TABLET, id};
use invariants::Checks;
use node::Node;
use server_disk::Disk;

/// Rates of faults, per mille of the steps.
#[derive(Debug, Clone)]
pub struct FaultRates {
    pub lose: u64,
    pub duplicate: u64,
    pub crash: u64,
    pub cut: u64,
    pub change: u64,
    pub step_down: u64,
    /// Rate at which a disk write is delayed instead of done.
    pub slow_disk: u64,
    pub error_micros: u64,
}

impl FaultRates {
    pub fn usual() -> FaultRates {
        FaultRates {
            lose: 60,
            duplicate: 30,
            crash: 4,
            cut: 4,
            change: 8,
            step_down: 3,
            slow_disk: 500,
            error_micros: 2_000,
        }
    }

    pub fn zero() -> FaultRates {
        FaultRates {
            lose: 0,
            duplicate: 0,
            crash: 0,
            cut: 0,
            change: 0,
            step_down: 0,
            slow_disk: 0,
            error_micros: 500,
        }
    }
}

/// A message in flight.
#[derive(Debug, Clone)]
pub enum InFlight {
    Request {
        from: PeerId,
        life: u64,
        to: PeerId,
        message: RaftMessage,
    },
    /// A reply to the life of the server that sent the request.
    Answer {
        to: PeerId,
        life: u64,
        event: RaftEvent,
    },
}

/// Receiver of the reply to a ticket.
pub struct PendingReply {
    from: PeerId,
    life: u64,
    request: RequestKind,
}

enum RequestKind {
    Update { sent: u64 },
    Vote { term: u64, is_pre_vote: bool },
}

pub struct Group {
    pub nodes: BTreeMap<PeerId, Node>,
    pub in_flight: Vec<InFlight>,
    pub now: Instant,
    pub rates: FaultRates,
    pub checks: Checks,
    /// True if the test continues after a violation, so that the specification can check the trace.
    pub lenient: bool,
    pub trace: RaftTrace,
    /// Ordered pairs of servers whose link is cut.
    pub cuts: BTreeSet<(PeerId, PeerId)>,
    tickets: BTreeMap<(PeerId, u64), PendingReply>,
    next_ticket: u64,
    /// Numbers that are drawn before those of the seed.
    pub decisions: VecDeque<u64>,
    rand: u64,
    proposed: u64,
}

impl Group {
    /// Creates `voters` servers with a replica, and `spares` without one.
    pub fn new(seed: u64, voters: u8, spares: u8, rates: FaultRates) -> Group {
        let peers = (1..=voters).map(|n| Peer::voter(id(n), format!("s{n}"), 7050)).collect();
        let meta = ConsensusMeta::new(TABLET, RaftConfig::initial(peers));
        let mut group = Group {
            nodes: BTreeMap::new(),
            in_flight: Vec::new(),
            now: Instant(1_000_000_000),
            checks: Checks::new(meta.committed.clone()),
            lenient: false,
            trace: RaftTrace::new(TABLET, &format!("random group seed {seed}")),
            rates,
            cuts: BTreeSet::new(),
            tickets: BTreeMap::new(),
            next_ticket: 1,
            decisions: VecDeque::new(),
            rand: seed,
            proposed: 0,
        };
        for n in 1..=voters + spares {
            let disk = if n <= voters { Disk::with(meta.clone()) } else { Disk::default() };
            let error = group.rates.error_micros.max(1);
            let skew = group.below(2 * error) as i64 - error as i64;
            group.nodes.insert(id(n), Node::new(id(n), disk, skew));
        }
        for n in 1..=voters {
            group.start(id(n), true);
        }
        group
    }

    /// Creates a group whose size and fault rates come from the seed.
    pub fn from_seed(seed: u64) -> Group {
        let (voters, spares) = [(3, 0), (3, 2), (5, 0), (1, 3), (2, 1), (4, 1)][seed as usize % 6];
        let mut rates = FaultRates::usual();
        if seed % 4 == 3 {
            // Clocks do not know their true error.
            rates.error_micros = 5_000_000;
        }
        match seed % 5 {
            0 => rates.crash *= 4,
            1 => rates.slow_disk = 950,
            2 => (rates.cut, rates.step_down) = (15, 10),
            3 => rates.change = 30,
            _ => (rates.lose, rates.duplicate) = (200, 100),
        }
        let mut group = Group::new(seed, voters, spares, rates);
        for node in group.nodes.values_mut() {
            node.deferred.defers = seed % 2 == 1;
        }
        group
    }

    /// Returns the number of events that a hibernated core need not have processed, by whether its server deferred it.
    pub fn deferrable_events(&self) -> [u64; 2] {
        let seen = |keeps| self.nodes.values().filter(move |node| node.deferred.defers == keeps);
        [false, true].map(|keeps| seen(keeps).map(|node| node.deferred.seen).sum())
    }

    pub fn random(&mut self) -> u64 {
        if let Some(drawn) = self.decisions.pop_front() {
            return drawn;
        }
        self.rand = self.rand.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rand;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.random() % limit.max(1)
    }

    fn chance(&mut self, of_thousand: u64) -> bool {
        self.below(1000) < of_thousand
    }

    fn any_node(&mut self) -> PeerId {
        let at = self.below(self.nodes.len() as u64) as usize;
        *self.nodes.keys().nth(at).expect("it is below their number")
    }

    pub fn reading(&self, node: &Node) -> ClockReading {
        let micros = (self.now.0 / 1000) as i64 + 1_000_000 + node.skew;
        let wall = WallTime { micros: micros as u64, error_micros: self.rates.error_micros };
        ClockReading { mono: self.now, wall }
    }

    /// Boots the replica on a server's disk.
    pub fn start(&mut self, at: PeerId, fresh: bool) {
        let seed = self.random();
        let commit = self.random();
        let now = self.reading(&self.nodes[&at]);
        let node = self.nodes.get_mut(&at).expect("a server");
        let Some(boot) = node.boot(seed, commit, fresh) else { return };
        node.start(now, boot, options());
        self.settle(at);
    }

    pub fn step(&mut self, at: PeerId, event: RaftEvent) {
        let now = self.reading(&self.nodes[&at]);
        let node = self.nodes.get_mut(&at).expect("a server");
        if node.step(now, event) {
            self.settle(at);
        }
    }

    /// Distributes the output of a step of `at`, and checks all invariants.
    fn settle(&mut self, at: PeerId) {
        let node = self.nodes.get_mut(&at).expect("a server");
        let output = node.take_output();
        for note in &output.notes {
            self.trace.push(at, note);
        }
        let checked = catch_unwind(AssertUnwindSafe(|| self.checks.step(&self.nodes, at, &output)));
        if let (Err(cause), false) = (checked, self.lenient) {
            resume_unwind(cause);
        }
        let life = self.nodes[&at].life;
        for (to, message) in output.messages {
            self.in_flight.push(InFlight::Request { from: at, life, to: to.id, message });
        }
        for (ticket, reply) in output.replies {
            let Some(pending) = self.tickets.remove(&(at, ticket)) else { continue };
            let event = answer(at, pending.request, reply);
            self.in_flight.push(InFlight::Answer { to: pending.from, life: pending.life, event });
        }
        for read in output.read_log {
            let node = &self.nodes[&at];
            let event = RaftEvent::LogRead {
                peer: read.peer,
                from: read.from,
                result: node.disk.read(read.from, read.max_bytes),
            };
            self.in_flight.push(InFlight::Answer { to: at, life, event });
        }
    }

    /// Runs one random step.
    pub fn advance(&mut self) {
        match self.below(1000) {
            0..400 => self.deliver_random(),
            400..700 => self.write_random(),
            700..800 => self.propose(),
            800..900 => self.pass_time(),
            900..920 => self.gc_random(),
            _ => self.inject_fault(),
        }
    }

    fn inject_fault(&mut self) {
        let FaultRates { crash, cut, change, step_down, .. } = self.rates;
        // This is reached in about one of twelve steps.
        if self.chance(12 * crash) {
            let at = self.any_node();
            self.crash(at);
        }
        // Most servers are up most of the time, or nothing would happen.
        let at = self.any_node();
        if self.nodes[&at].is_down() && self.chance(150) {
            self.start(at, false);
        }
        if self.chance(12 * cut) {
            let pair = (self.any_node(), self.any_node());
            self.cuts.insert(pair);
        }
        if self.chance(120) {
            self.cuts.pop_first();
        }
        if self.chance(12 * change) {
            self.change_members();
        }
        if self.chance(12 * step_down)
            && let Some(leader) = self.leader()
        {
            let to = self.any_node();
            let (to, abrupt) = (self.chance(500).then_some(to), self.chance(300));
            self.step(leader, RaftEvent::StepDown { ticket: 0, to, abrupt });
        }
    }

    /// Returns the leader of the newest term, if any server is one.
    pub fn leader(&self) -> Option<PeerId> {
        let leads = |node: &&Node| node.raft().is_some_and(|raft| raft.is_leader());
        self.nodes.values().filter(leads).max_by_key(|node| node.raft().map(|raft| raft.term())).map(|n| n.id)
    }

    /// Delivers a random message once, twice or not at all.
    fn deliver_random(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let at = if self.chance(700) { 0 } else { self.below(self.in_flight.len() as u64) as usize };
        let message = self.in_flight.remove(at);
        if self.chance(self.rates.duplicate) {
            self.in_flight.push(message.clone());
        }
        let lost = self.chance(self.rates.lose);
        self.deliver(message, lost);
    }

    pub fn deliver(&mut self, message: InFlight, lost: bool) {
        match message {
            InFlight::Answer { to, life, event } => {
                if self.nodes[&to].life != life || !self.nodes[&to].is_up() {
                    return;
                }
                let event = if lost { lose(event) } else { event };
                self.step(to, event);
            }
            InFlight::Request { from, life, to, message } => {
                let cut = self.cuts.contains(&(from, to));
                if lost || cut || !self.nodes.contains_key(&to) || self.nodes[&to].is_down() {
                    if let Some(event) = unanswered(to, &message) {
                        self.in_flight.push(InFlight::Answer { to: from, life, event });
                    }
                    return;
                }
                self.receive(from, life, to, message);
            }
        }
    }

    fn receive(&mut self, from: PeerId, life: u64, to: PeerId, message: RaftMessage) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let up = self.nodes[&to].is_up();
        match message {
            RaftMessage::Update(mut request) | RaftMessage::Heartbeat(mut request) => {
                let sent = std::mem::take(&mut request.sent);
                if !up {
                    let message = "no replica".to_string();
                    let rejection = UpdateResponse::refusal(to, 0, UpdateErrorKind::TabletNotFound, message);
                    let event = RaftEvent::Updated { peer: to, sent, result: Ok(rejection) };
                    return self.in_flight.push(InFlight::Answer { to: from, life, event });
                }
                self.tickets
                    .insert((to, ticket), PendingReply { from, life, request: RequestKind::Update { sent } });
                self.step(to, RaftEvent::Update { ticket, request });
            }
            RaftMessage::Vote(request) => {
                let (term, is_pre_vote) = (request.term, request.is_pre_vote);
                if up {
                    let kind = RequestKind::Vote { term, is_pre_vote };
                    self.tickets.insert((to, ticket), PendingReply { from, life, request: kind });
                    return self.step(to, RaftEvent::Vote { ticket, request });
                }
                let response = self.tombstone_votes(to, &request);
                let event = RaftEvent::Voted { peer: to, term, is_pre_vote, result: Ok(response) };
                self.in_flight.push(InFlight::Answer { to: from, life, event });
            }
            RaftMessage::RunElection => self.step(to, RaftEvent::Elect { ignore_live_leader: true }),
            RaftMessage::StartCopy { source, term } => {
                let result = self.copy(source.id, to, term);
                let event = RaftEvent::CopyStarted { peer: to, result };
                self.in_flight.push(InFlight::Answer { to: from, life, event });
            }
        }
    }

    /// Lets a server's disk do some of its pending writes.
    fn write_random(&mut self) {
        let at = self.any_node();
        if self.chance(self.rates.slow_disk) {
            return;
        }
        let pick = self.random();
        if self.nodes[&at].is_copying() {
            return self.end_copy(at, pick);
        }
        let Some(event) = self.nodes.get_mut(&at).expect("a server").write(pick) else { return };
        self.step(at, event);
    }

    fn gc_random(&mut self) {
        let at = self.any_node();
        // The policy lets at most one replica fall behind the retained logs.
        let behind = self.chance(100) && self.checks.newest_config().voter_count() > 2;
        let replicas = self.nodes.values().filter(|node| !node.has_no_replica());
        let mut lengths: Vec<u64> = replicas.map(|node| node.disk.log.len() as u64).collect();
        lengths.sort_unstable();
        let second = lengths.get(1).copied().unwrap_or(0);
        let node = self.nodes.get_mut(&at).expect("a server");
        if let Some(raft) = node.raft() {
            let upto = if behind { second } else { raft.log_keep_from() };
            node.disk.gc_before = node.disk.gc_before.max(upto.min(node.disk.committed));
        }
    }

    pub fn propose(&mut self) {
        let Some(at) = self.leader() else { return };
        // Sometimes the proposal goes to a deposed leader that does not know it yet.
        let at = if self.chance(100) { self.any_node() } else { at };
        self.propose_at(at);
    }

    fn propose_at(&mut self, at: PeerId) -> bool {
        self.proposed += 1;
        let now = self.reading(&self.nodes[&at]);
        let payload = Bytes::from(format!("{}-{}", self.proposed, "x".repeat((self.proposed % 13) as usize)));
        let taken = self.nodes.get_mut(&at).expect("a server").propose(now, payload);
        if taken {
            self.settle(at);
        }
        taken
    }

    fn pass_time(&mut self) {
        let step = 1 + self.below(4_000_000);
        self.now = self.now.after(Duration::from_nanos(step));
        let due: Vec<PeerId> =
            self.nodes.values().filter(|node| node.deadline() <= self.now).map(|n| n.id).collect();
        for at in due {
            self.step(at, RaftEvent::Tick);
        }
    }

    /// Lets the master add, remove and promote members, and delete removed replicas.
    fn change_members(&mut self) {
        let newest = self.checks.newest_config().clone();
        let at = self.any_node();
        let member = newest.peer(at).is_some();
        if !member && self.nodes[&at].is_up() && self.chance(500) {
            return self.tombstone(at, newest.opid_index.map(|index| index as i64));
        }
        let Some(leader) = self.leader() else { return };
        let part = match (member, self.below(4)) {
            // With fewer voters, a crash of the leader before the copy would leave no electable server.
            (false, 0) if newest.voter_count() > 2 => ConfigChangePart::Add(Peer::voter(at, "s", 1)),
            (false, _) => {
                let peer = Peer { member: MemberKind::NonVoter, promote: true, ..Peer::voter(at, "s", 1) };
                ConfigChangePart::Add(peer)
            }
            (true, 0) => {
                ConfigChangePart::Modify { id: at, member: None, promote: None, replace: Some(true) }
            }
            (true, 1) => ConfigChangePart::Modify {
                id: at,
                member: Some(MemberKind::Voter),
                promote: None,
                replace: None,
            },
            (true, _) => ConfigChangePart::Remove(at),
        };
        let cas = self.chance(500).then(|| newest.kudu_index());
        self.step(
            leader,
            RaftEvent::ChangeConfig {
                ticket: 0,
                change: ConfigChange { parts: vec![part], cas_opid_index: cas },
            },
        );
    }

    pub fn crash(&mut self, at: PeerId) {
        if !self.nodes[&at].is_up() {
            return;
        }
        let luck = self.random();
        self.nodes.get_mut(&at).expect("a server").crash(luck);
        let lost: Vec<_> = self.tickets.extract_if(.., |(to, _), _| *to == at).collect();
        for ((to, _), pending) in lost {
            let event = match pending.request {
                RequestKind::Update { sent } => {
                    RaftEvent::Updated { peer: to, sent, result: Err(unreachable_error()) }
                }
                RequestKind::Vote { term, is_pre_vote } => {
                    RaftEvent::Voted { peer: to, term, is_pre_vote, result: Err(unreachable_error()) }
                }
            };
            self.in_flight.push(InFlight::Answer { to: pending.from, life: pending.life, event });
        }
    }

    /// Ends all faults. After that a leader must be elected and commit a proposal. Returns its index.
    pub fn heal(&mut self) -> u64 {
        self.rates = FaultRates { error_micros: self.rates.error_micros, ..FaultRates::zero() };
        self.cuts.clear();
        for at in self.nodes.keys().copied().collect::<Vec<_>>() {
            if self.nodes[&at].is_down() {
                self.start(at, false);
            }
        }
        let mut goal = None;
        for turn in 0..60_000 {
            match self.below(10) {
                0..5 => self.deliver_random(),
                5..8 => self.write_random(),
                _ => self.pass_time(),
            }
            // A leader that is deposed meanwhile loses its proposal: it is repeated now and then.
            if (goal.is_none() || u64::is_multiple_of(turn, 5_000))
                && let Some(at) = self.leader()
                && self.propose_at(at)
            {
                goal = self.nodes[&at].raft().map(|raft| raft.last().index);
            }
            if goal.is_some_and(|goal| self.committed_everywhere() >= goal) {
                return goal.unwrap_or(0);
            }
        }
        let show = |node: &Node| {
            node.raft().map_or("-".into(), |raft| format!("{:?}", raft.status(self.reading(node))))
        };
        let states: Vec<String> = self.nodes.values().map(|n| format!("{}: {}", n.id, show(n))).collect();
        panic!("no commit after all faults ended: {states:#?}\nnewest {}", self.checks.newest_config());
    }

    /// Returns the index up to which every voter of the newest configuration knows the commit; voters that the leader
    /// reports as unrecoverable are left out.
    fn committed_everywhere(&self) -> u64 {
        let status =
            self.leader().map(|at| self.nodes[&at].raft().unwrap().status(self.reading(&self.nodes[&at])));
        let lost = |id: PeerId| {
            let lost = |peer: &PeerStatus| peer.id == id && peer.health == PeerHealth::FailedUnrecoverable;
            status.as_ref().is_some_and(|status| status.peers.iter().any(lost))
        };
        let committed = |peer: &Peer| self.nodes[&peer.id].raft().map_or(0, |raft| raft.committed().index);
        self.checks.newest_config().voters().filter(|peer| !lost(peer.id)).map(committed).min().unwrap_or(0)
    }
}

fn unreachable_error() -> engine::error::Error {
    engine::error::Error::not_ready("the peer cannot be reached")
}

/// Returns the sender's event for a lost request.
fn unanswered(to: PeerId, message: &RaftMessage) -> Option<RaftEvent> {
    match message {
        RaftMessage::Update(request) | RaftMessage::Heartbeat(request) => {
            Some(RaftEvent::Updated { peer: to, sent: request.sent, result: Err(unreachable_error()) })
        }
        RaftMessage::Vote(request) => Some(RaftEvent::Voted {
            peer: to,
            term: request.term,
            is_pre_vote: request.is_pre_vote,
            result: Err(unreachable_error()),
        }),
        RaftMessage::StartCopy { .. } => {
            Some(RaftEvent::CopyStarted { peer: to, result: Err(unreachable_error()) })
        }
        RaftMessage::RunElection => None,
    }
}

fn lose(event: RaftEvent) -> RaftEvent {
    match event {
        RaftEvent::Updated { peer, sent, .. } => {
            RaftEvent::Updated { peer, sent, result: Err(unreachable_error()) }
        }
        RaftEvent::Voted { peer, term, is_pre_vote, .. } => {
            RaftEvent::Voted { peer, term, is_pre_vote, result: Err(unreachable_error()) }
        }
        other => other,
    }
}

fn answer(at: PeerId, request: RequestKind, reply: RaftReply) -> RaftEvent {
    match (request, reply) {
        (RequestKind::Update { sent }, RaftReply::Update(response)) => {
            RaftEvent::Updated { peer: at, sent, result: Ok(response) }
        }
        (RequestKind::Vote { term, is_pre_vote }, RaftReply::Vote(response)) => {
            RaftEvent::Voted { peer: at, term, is_pre_vote, result: Ok(response) }
        }
        (_, reply) => panic!("{reply:?} is the reply to another request"),
    }
}

pub fn options() -> RaftOptions {
    RaftOptions { follower_failed_after: Duration::from_millis(300), ..RaftOptions::tiny() }
}
