//! SimNet: hosts, links and connections with TCP's visible behaviour, over a clock that the caller moves.
//!
//! ```text
//!  writer ──► Pipe: window │ in flight │ unread ──► reader      one pipe for each direction
//!                          ▲           ▲
//!             latency, jitter,      rules: blocked, slower, lossy       [`rules`]
//!             bandwidth, order
//! ```
//!
//! - **Backpressure**: a write takes what fits into the window, or waits.
//! - **Loss is delay**: a lost segment is retransmitted after a time, and all later ones wait behind it. Segments held
//!   by a blocked link continue after the link is free, at the next retransmission.
//! - **A process that dies** closes its connections as its kernel would: FIN, or RST if bytes were left unread; both
//!   travel like bytes do, and wait at a blocked link.
//! - **A machine without power** sends nothing. A peer that writes to it when it is back is reset; a peer that only
//!   reads waits without end: half-open.
//! - **A silent connection** carries nothing any more, as if a router had dropped its state; new ones work.
//! - **A host may have a capacity** ([`capacity`]): a link and cores that serve what arrives in turn.
//! - **Connecting** needs both directions, and is retried each second; a port without a listener refuses.
//!
//! Not here: anything about the code on top. Times are nanoseconds, and wakers are collected for the caller, which
//! wakes them when it holds no lock.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::task::Waker;

use bytes::BufMut;

use attempt::ConnectAttempt;
use call_cuts::CallCuts;
use capacity::{CapacityUsed, HostCapacity, SEGMENT_BYTES_MAX};
use lane::Lane;
pub use lane::Side;
use pipe::{Pipe, PipeRead};
use rules::{HostId, LinkEffect, Rule, RuleId, Rules};

use crate::draws::{DrawSource, Purpose, name_word};
use sim_plan::NetworkSpec as Profile;
use sim_plan::RandomStream;
use sim_plan::faults::CallPart;

mod attempt;
pub mod call_cuts;
pub mod capacity;
mod connect;
mod lane;
pub mod pipe;
pub mod rules;
#[cfg(test)]
mod tests;

/// Latency of the loopback.
const LOOPBACK_NANOS: u64 = 5_000;
/// Delay of the first retransmission; each further one takes twice the time before.
const RETRANSMIT_NANOS: u64 = 200_000_000;
/// Longest wait for a retransmission after a blocked link is free.
const RETRANSMIT_NANOS_MAX: u64 = 3_000_000_000;
/// Connections not yet accepted; further ones get no reply.
const BACKLOG_MAX: usize = 128;
const FIRST_PORT: u16 = 32_768;

/// A connection, or the attempt to make one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(u64);

struct End {
    host: HostId,
    addr: SocketAddr,
    /// True if it is in use: neither dropped nor lost with its machine.
    open: bool,
    /// Set if the connection ended without a FIN.
    error: Option<io::ErrorKind>,
}

struct Conn {
    ends: [End; 2],
    /// `pipes[side]` is written by that side.
    pipes: [Pipe; 2],
    lane: Lane,
    /// True if the path between its ends has dropped its state: nothing arrives, and neither end is told.
    is_silent: bool,
}

struct HostState {
    name: String,
    /// The name in keys of draws.
    word: u64,
    ip: IpAddr,
    powered: bool,
    next_port: u16,
    listeners: BTreeMap<u16, Accepting>,
    capacity: Option<HostCapacity>,
}

#[derive(Default)]
struct Accepting {
    backlog: VecDeque<ConnId>,
    waker: Option<Waker>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The first segment of this side's pipe is due.
    Deliver(ConnId, Side),
    /// This side learns that its connection is gone.
    Reset(ConnId, Side),
    Syn(ConnId),
    SynAck(ConnId),
    /// The attempt is refused.
    Refused(ConnId),
}

/// All hosts and the links between them.
pub struct Network {
    hosts: Vec<HostState>,
    names: BTreeMap<String, HostId>,
    conns: BTreeMap<ConnId, Conn>,
    attempts: BTreeMap<ConnId, ConnectAttempt>,
    rules: Rules,
    /// Calls to cut.
    pub cuts: CallCuts<HostId>,
    events: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    next_conn: u64,
    profile: Profile,
    draws: DrawSource,
    /// Number of connections of each pair: who opens them, and to whom.
    lanes: BTreeMap<(HostId, HostId), u64>,
    /// Wakers of tasks for which something changed; the caller wakes them.
    pub wakes: Vec<Waker>,
    /// Counters.
    pub counts: NetCounts,
}

/// Counters of network events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetCounts {
    pub connected: u64,
    pub refused: u64,
    pub segments: u64,
    pub bytes: u64,
    pub retransmitted: u64,
    pub resets: u64,
    /// Segments that found their link blocked.
    pub stalled: u64,
}

impl Network {
    /// A network that draws from the seed's stream.
    pub fn new(seed: u64, profile: Profile) -> Network {
        Network::drawing(DrawSource::Stream(Box::new(RandomStream::new(seed, "net"))), profile)
    }

    pub fn drawing(draws: DrawSource, profile: Profile) -> Network {
        Network {
            hosts: Vec::new(),
            names: BTreeMap::new(),
            conns: BTreeMap::new(),
            attempts: BTreeMap::new(),
            rules: Rules::default(),
            cuts: CallCuts::default(),
            events: BTreeMap::new(),
            next_event: 0,
            next_conn: 0,
            profile,
            draws,
            lanes: BTreeMap::new(),
            wakes: Vec::new(),
            counts: NetCounts::default(),
        }
    }

    /// Lets latencies, losses and cuts of writes come from another seed from now on.
    pub fn reseed(&mut self, seed: u64) {
        self.draws = match self.draws {
            DrawSource::Stream(_) => DrawSource::Stream(Box::new(RandomStream::new(seed, "net"))),
            DrawSource::Keyed(_) => DrawSource::Keyed(seed),
        };
    }

    /// Returns a machine's id; adds the machine at the first call.
    pub fn host(&mut self, name: &str) -> HostId {
        if let Some(id) = self.names.get(name) {
            return *id;
        }
        let id = self.hosts.len();
        let ip = IpAddr::V4(Ipv4Addr::new(10, 0, (id >> 8) as u8, (id & 0xff) as u8 + 1));
        let listeners = BTreeMap::new();
        let name = name.to_string();
        self.names.insert(name.clone(), id);
        let (word, capacity) = (name_word(&name), None);
        let (powered, next_port) = (true, FIRST_PORT);
        self.hosts.push(HostState { name, word, ip, powered, next_port, listeners, capacity });
        id
    }

    /// Bounds a host's throughput from now on.
    pub fn set_capacity(&mut self, host: HostId, capacity: HostCapacity) {
        self.hosts[host].capacity = Some(capacity);
    }

    /// Returns the capacity that a host has used by `now`; zero if it has no bounds.
    pub fn used(&self, now: u64, host: HostId) -> CapacityUsed {
        self.hosts[host].capacity.as_ref().map_or(CapacityUsed::default(), |capacity| capacity.used(now))
    }

    pub fn ip(&self, host: HostId) -> IpAddr {
        self.hosts[host].ip
    }

    pub fn name(&self, host: HostId) -> &str {
        &self.hosts[host].name
    }

    /// Returns the address of a machine by its name.
    pub fn resolve(&self, name: &str) -> Option<IpAddr> {
        self.names.get(name).map(|id| self.hosts[*id].ip)
    }

    fn host_at(&self, ip: IpAddr, from: HostId) -> Option<HostId> {
        if ip.is_loopback() { Some(from) } else { self.hosts.iter().position(|host| host.ip == ip) }
    }

    /// Returns the time of the next event.
    pub fn next_at(&self) -> Option<u64> {
        self.events.keys().next().map(|(at, _)| *at)
    }

    /// Processes the events that are due.
    pub fn advance(&mut self, now: u64) {
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((at, _), event) = entry.remove_entry();
            match event {
                Event::Deliver(conn, side) => self.deliver(at, conn, side),
                Event::Reset(conn, side) => self.reset_arrives(at, conn, side),
                Event::Syn(attempt) => self.syn(at, attempt),
                Event::SynAck(attempt) => self.syn_ack(at, attempt),
                Event::Refused(attempt) => self.refused(at, attempt),
            }
        }
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.events.insert((at, self.next_event), event);
        self.next_event += 1;
    }

    /// Returns the place of a new connection in keys.
    fn lane(&mut self, from: HostId, to: HostId) -> Lane {
        let nth = self.lanes.entry((from, to)).or_default();
        *nth += 1;
        let pair = self.hosts[from].word.rotate_left(1) ^ self.hosts[to].word;
        Lane::new(pair, *nth)
    }

    /// Returns the latency of a segment of this size between two connected hosts.
    fn latency(&mut self, from: HostId, to: HostId, bytes: usize, key: [u64; 3]) -> u64 {
        if from == to {
            return LOOPBACK_NANOS;
        }
        let least = self.profile.latency.as_nanos() as u64;
        let jitter = self.draws.below(self.profile.jitter.as_nanos() as u64 + 1, Purpose::Jitter, key);
        let transfer = bytes as u64 * 1_000_000 / u64::from(self.profile.bytes_per_ms.max(1));
        let mut nanos = least + jitter + transfer + self.rules.delay(from, to);
        let per_mille = u64::from(self.profile.loss_per_mille) + 10 * self.rules.loss(from, to);
        let (mut retry_nanos, mut nth) = (RETRANSMIT_NANOS, 0);
        while per_mille > 0
            && retry_nanos < RETRANSMIT_NANOS_MAX
            && self.draws.draw_nth(Purpose::Loss, nth, key) % 1000 < per_mille
        {
            self.counts.retransmitted += 1;
            nanos += retry_nanos;
            retry_nanos *= 2;
            nth += 1;
        }
        nanos
    }

    /// Returns true if a segment that arrives now gets through.
    fn passes(&self, from: HostId, to: HostId) -> bool {
        self.hosts[to].powered && !self.rules.blocked(from, to)
    }

    // Streams.

    /// Writes some of `bytes`; `None` and stores the waker if nothing fits.
    pub fn write(
        &mut self,
        now: u64,
        (id, side): (ConnId, Side),
        bytes: &[u8],
        waker: &Waker,
    ) -> Option<io::Result<usize>> {
        let Some(conn) = self.conns.get_mut(&id) else {
            return Some(Err(io::ErrorKind::NotConnected.into()));
        };
        if let Some(error) = conn.ends[side].error {
            return Some(Err(error.into()));
        }
        if conn.pipes[side].finished() {
            return Some(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let free_bytes = conn.pipes[side].free_bytes();
        if free_bytes == 0 && !bytes.is_empty() {
            conn.pipes[side].writer = Some(waker.clone());
            return None;
        }
        let key = conn.lane.key(side);
        let count = self.cut(bytes.len().min(free_bytes).min(SEGMENT_BYTES_MAX), key);
        match self.is_call_cut(id, side) {
            true => self.cut_call(now, id, side, &bytes[..count]),
            false => self.send(now, id, side, Some(&bytes[..count])),
        }
        Some(Ok(count))
    }

    /// Counts a write for the calls to cut; true if this one is cut.
    fn is_call_cut(&mut self, id: ConnId, side: Side) -> bool {
        let Some(conn) = self.conns.get(&id) else { return false };
        let part = if side == 0 { CallPart::Request } else { CallPart::Answer };
        self.cuts.is_due(&conn.ends[0].host, &conn.ends[1].host, part)
    }

    /// Sends the first half of the bytes, then resets the connection. The writer is told at its next operation.
    fn cut_call(&mut self, now: u64, id: ConnId, side: Side, bytes: &[u8]) {
        let half = &bytes[..bytes.len() / 2];
        if !half.is_empty() {
            self.send(now, id, side, Some(half));
        }
        self.send_reset(now, id, 1 - side);
        self.break_end(id, side);
    }

    /// Returns a random part of a write's length, at times.
    fn cut(&mut self, length: usize, key: [u64; 3]) -> usize {
        if length > 1 && self.draws.below(u64::from(self.profile.cut_one_in), Purpose::IsCut, key) == 0 {
            return 1 + self.draws.below(length as u64 - 1, Purpose::CutLength, key) as usize;
        }
        length
    }

    /// Sends bytes, or the FIN.
    fn send(&mut self, now: u64, id: ConnId, side: Side, bytes: Option<&[u8]>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (from, to) = (conn.ends[side].host, conn.ends[1 - side].host);
        let key = conn.lane.next_segment(side);
        let size = bytes.map_or(0, <[u8]>::len);
        let mut arrives = now + self.latency(from, to, size, key);
        if let Some(capacity) = self.hosts[to].capacity.as_mut().filter(|_| size > 0) {
            arrives = capacity.serve(arrives, size);
        }
        self.counts.segments += 1;
        self.counts.bytes += size as u64;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let pipe = &mut conn.pipes[side];
        match bytes {
            Some(bytes) => pipe.send(bytes, arrives),
            None => pipe.finish(arrives),
        }
        if !pipe.scheduled && pipe.stalled_since.is_none() {
            pipe.scheduled = true;
            self.schedule(arrives, Event::Deliver(id, side));
        }
    }

    /// Reads what arrived; `None` and stores the waker if nothing did. 0 bytes: the end.
    pub fn read(
        &mut self,
        (id, side): (ConnId, Side),
        out: &mut impl BufMut,
        waker: &Waker,
    ) -> Option<io::Result<usize>> {
        let Some(conn) = self.conns.get_mut(&id) else {
            return Some(Err(io::ErrorKind::NotConnected.into()));
        };
        if let Some(error) = conn.ends[side].error {
            return Some(Err(error.into()));
        }
        let pipe = &mut conn.pipes[1 - side];
        let count = pipe.take(out);
        if count > 0 {
            self.wakes.extend(pipe.writer.take());
            return Some(Ok(count));
        }
        if pipe.at_end() {
            return Some(Ok(0));
        }
        pipe.reader = Some(waker.clone());
        None
    }

    /// Closes this side for writing.
    pub fn finish(&mut self, now: u64, (id, side): (ConnId, Side)) {
        let open = self.conns.get(&id).is_some_and(|conn| !conn.pipes[side].finished());
        if open {
            self.send(now, id, side, None);
        }
    }

    /// Drops this side: its owner closed it, or the process died.
    pub fn close(&mut self, now: u64, (id, side): (ConnId, Side)) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !std::mem::replace(&mut conn.ends[side].open, false) {
            return;
        }
        let unread = conn.pipes[1 - side].unread_bytes() > 0;
        let gone = conn.ends[side].error.is_some();
        if !conn.ends[1 - side].open {
            self.conns.remove(&id);
        } else if unread && !gone {
            self.send_reset(now, id, 1 - side);
        } else if !gone {
            self.finish(now, (id, side));
        }
    }

    fn send_reset(&mut self, now: u64, id: ConnId, to_side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (from, to) = (conn.ends[1 - to_side].host, conn.ends[to_side].host);
        let key = conn.lane.next_segment(1 - to_side);
        let at = now + self.latency(from, to, 0, key);
        self.schedule(at, Event::Reset(id, to_side));
    }

    fn deliver(&mut self, now: u64, id: ConnId, side: Side) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (from, to) = (conn.ends[side].host, conn.ends[1 - side].host);
        let passes = self.passes(from, to) && !conn.is_silent;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let sender_lives = conn.ends[side].open || self.hosts[from].powered;
        let receiver_lives = conn.ends[1 - side].open;
        let pipe = &mut conn.pipes[side];
        pipe.scheduled = false;
        if !passes {
            self.counts.stalled += 1;
            if sender_lives {
                pipe.stalled_since = Some(now)
            } else {
                pipe.lose()
            }
            return;
        }
        if !receiver_lives {
            pipe.lose();
            self.send_reset(now, id, side);
            return;
        }
        if pipe.arrive(now) == PipeRead::Something {
            self.wakes.extend(pipe.reader.take());
        }
        if let Some(due) = pipe.next_arrival() {
            pipe.scheduled = true;
            self.schedule(due, Event::Deliver(id, side));
        }
    }

    fn reset_arrives(&mut self, now: u64, id: ConnId, side: Side) {
        let Some(conn) = self.conns.get(&id) else { return };
        if conn.is_silent {
            return;
        }
        if !self.passes(conn.ends[1 - side].host, conn.ends[side].host) {
            self.schedule(now + RETRANSMIT_NANOS, Event::Reset(id, side));
            return;
        }
        self.break_end(id, side);
    }

    /// Marks one side's connection as reset.
    fn break_end(&mut self, id: ConnId, side: Side) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !conn.ends[side].open || conn.ends[side].error.is_some() {
            return;
        }
        self.counts.resets += 1;
        conn.ends[side].error = Some(io::ErrorKind::ConnectionReset);
        self.wakes.extend(conn.pipes[1 - side].reader.take());
        self.wakes.extend(conn.pipes[side].writer.take());
    }

    pub fn peer_addr(&self, (id, side): (ConnId, Side)) -> Option<SocketAddr> {
        self.conns.get(&id).map(|conn| conn.ends[1 - side].addr)
    }

    // Faults.

    /// Adds a rule that holds until it is removed.
    pub fn add_rule(&mut self, rule: Rule) -> RuleId {
        self.rules.add(rule)
    }

    /// Removes a rule; segments that it blocked continue.
    pub fn remove_rule(&mut self, now: u64, id: RuleId) {
        if self.rules.remove(id).is_some_and(|rule| rule.effect == LinkEffect::Block) {
            self.retransmit_unblocked(now);
        }
    }

    /// Retransmits what waits at links that are no longer blocked.
    fn retransmit_unblocked(&mut self, now: u64) {
        let mut retry_nanos = Vec::new();
        for (id, conn) in self.conns.iter().filter(|(_, conn)| !conn.is_silent) {
            for side in 0..2 {
                let (from, to) = (conn.ends[side].host, conn.ends[1 - side].host);
                if let Some(since) = conn.pipes[side].stalled_since
                    && self.passes(from, to)
                {
                    retry_nanos.push((*id, side, since, conn.lane.key(side)));
                }
            }
        }
        for (id, side, since, key) in retry_nanos {
            let wait_max = (now - since).min(RETRANSMIT_NANOS_MAX);
            let wait = self.draws.below(wait_max + 1, Purpose::Retransmit, key);
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            conn.pipes[side].stalled_since = None;
            conn.pipes[side].scheduled = true;
            self.counts.retransmitted += 1;
            self.schedule(now + wait, Event::Deliver(id, side));
        }
    }

    /// Resets every connection between two hosts, at both ends at once; returns their number.
    pub fn reset_between(&mut self, one: HostId, other: HostId) -> usize {
        let ids = self.between(one, other);
        for id in &ids {
            self.break_end(*id, 0);
            self.break_end(*id, 1);
        }
        ids.len()
    }

    /// Silences the connections between two hosts: all that they carry from now on is lost, ends and resets
    /// included; new ones work. Returns the number of those that were not silent before.
    pub fn silence_between(&mut self, one: HostId, other: HostId) -> usize {
        let mut silenced = 0;
        for id in self.between(one, other) {
            if let Some(conn) = self.conns.get_mut(&id) {
                silenced += usize::from(!std::mem::replace(&mut conn.is_silent, true));
            }
        }
        silenced
    }

    fn between(&self, one: HostId, other: HostId) -> Vec<ConnId> {
        let is_between = |conn: &Conn| {
            let hosts = (conn.ends[0].host, conn.ends[1].host);
            hosts == (one, other) || hosts == (other, one)
        };
        self.conns.iter().filter(|(_, conn)| is_between(conn)).map(|(id, _)| *id).collect()
    }

    /// Cuts a machine's power: its connections are gone, and no peer is told.
    pub fn power_off(&mut self, host: HostId) {
        self.hosts[host].powered = false;
        self.hosts[host].listeners.clear();
        self.attempts.retain(|_, attempt| attempt.from != host);
        for conn in self.conns.values_mut() {
            conn.ends.iter_mut().filter(|end| end.host == host).for_each(|end| end.open = false);
        }
        self.conns.retain(|_, conn| conn.ends.iter().any(|end| end.open));
    }

    /// Restores a machine's power; it knows nothing of former connections.
    pub fn power_on(&mut self, now: u64, host: HostId) {
        if !std::mem::replace(&mut self.hosts[host].powered, true) {
            self.retransmit_unblocked(now);
        }
    }
}
