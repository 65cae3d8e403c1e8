//! Exactly once: replies remembered by request id, so that a retry gets the first reply and nothing runs twice. Pure.
//!
//! ```text
//! a request id is      first seen ──▶ in progress ──complete──▶ remembered ──the client is past it, or TTL──▶ gone
//!                                        └──fail (nothing happened)──▶ as if never seen
//! a retry is           ──            attached: gets the first one's reply     repeated       stale
//! ```
//!
//! A client numbers its requests and says with each which is its first unfinished one; everything below is stale: it
//! is refused, because what became of it may be forgotten. The memory is rebuilt after a restart, or on another
//! server, by [`ResultTracker::restore`] from the requests found in the log.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use engine::time::Instant;

use super::RequestIdPb;

/// A reply that can be given again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    pub body: Bytes,
    pub sidecars: Vec<Bytes>,
}

impl Remembered {
    /// Bytes of the message and its sidecars.
    pub fn bytes(&self) -> usize {
        self.body.len() + self.sidecars.iter().map(Bytes::len).sum::<usize>()
    }
}

/// What to do with a request; `W` is whoever waits for its reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Begin<W> {
    /// Run it, then say [`ResultTracker::complete`] or [`ResultTracker::fail`].
    Execute(W),
    /// It is running; the waiter is kept and handed out with the result.
    Attached,
    /// It has run; this was the reply.
    Repeat(W, Remembered),
    /// Refuse it: the client said it was finished.
    Stale(W),
}

#[derive(Debug)]
pub struct ResultTracker<W> {
    clients: BTreeMap<String, Client<W>>,
    remember_responses: Duration,
    remember_clients: Duration,
    next_expiry: Instant,
    bytes: usize,
}

#[derive(Debug)]
struct Client<W> {
    /// Requests below are stale.
    stale_before: i64,
    last_seen: Instant,
    requests: BTreeMap<i64, Request<W>>,
}

#[derive(Debug)]
enum Request<W> {
    InProgress(Vec<W>),
    Completed { reply: Remembered, at: Instant },
}

/// What an entry costs besides its reply, roughly: its place in the map and its allocations.
const REQUEST_BYTES: usize = 128;
const CLIENT_BYTES: usize = 256;
/// How often the time limits are looked at.
const EXPIRY_PERIOD: Duration = Duration::from_secs(1);

impl<W> ResultTracker<W> {
    /// `remember_responses`: how long a reply is kept if the client never says it is past it.
    /// `remember_clients`: how long a silent client is known.
    pub fn new(remember_responses: Duration, remember_clients: Duration) -> ResultTracker<W> {
        let (clients, next_expiry) = (BTreeMap::new(), Instant(0));
        ResultTracker { clients, remember_responses, remember_clients, next_expiry, bytes: 0 }
    }

    /// A request arrived.
    pub fn begin(&mut self, id: &RequestIdPb, now: Instant, waiter: W) -> Begin<W> {
        self.expire(now);
        let client = self.client(id, now);
        if id.seq_no < client.stale_before {
            return Begin::Stale(waiter);
        }
        match client.requests.get_mut(&id.seq_no) {
            Some(Request::InProgress(waiters)) => {
                waiters.push(waiter);
                Begin::Attached
            }
            Some(Request::Completed { reply, .. }) => Begin::Repeat(waiter, reply.clone()),
            None => {
                client.requests.insert(id.seq_no, Request::InProgress(Vec::new()));
                self.bytes += REQUEST_BYTES;
                Begin::Execute(waiter)
            }
        }
    }

    /// The request took effect; gives the waiters attached meanwhile.
    pub fn complete(&mut self, id: &RequestIdPb, reply: Remembered, now: Instant) -> Vec<W> {
        let Some(client) = self.clients.get_mut(&id.client_id) else { return Vec::new() };
        let Some(request) = client.requests.get_mut(&id.seq_no) else { return Vec::new() };
        let Request::InProgress(waiters) = request else { return Vec::new() };
        let waiters = std::mem::take(waiters);
        if id.seq_no < client.stale_before {
            client.requests.remove(&id.seq_no);
            self.bytes -= REQUEST_BYTES;
            return waiters;
        }
        self.bytes += reply.bytes();
        *request = Request::Completed { reply, at: now };
        waiters
    }

    /// The request took no effect: a retry may run it. Gives the waiters attached meanwhile.
    pub fn fail(&mut self, id: &RequestIdPb) -> Vec<W> {
        let Some(client) = self.clients.get_mut(&id.client_id) else { return Vec::new() };
        let Some(Request::InProgress(_)) = client.requests.get(&id.seq_no) else { return Vec::new() };
        self.bytes -= REQUEST_BYTES;
        match client.requests.remove(&id.seq_no) {
            Some(Request::InProgress(waiters)) => waiters,
            _ => Vec::new(),
        }
    }

    /// Takes in a request that took effect before this server knew of it (found in a log). Gives waiters of the
    /// same request, if it is in progress here.
    pub fn restore(&mut self, id: &RequestIdPb, reply: Remembered, now: Instant) -> Vec<W> {
        let client = self.client(id, now);
        if id.seq_no >= client.stale_before && !client.requests.contains_key(&id.seq_no) {
            client.requests.insert(id.seq_no, Request::InProgress(Vec::new()));
            self.bytes += REQUEST_BYTES;
        }
        self.complete(id, reply, now)
    }

    /// Bytes held, roughly.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Clients known and requests held.
    pub fn counts(&self) -> (usize, usize) {
        (self.clients.len(), self.clients.values().map(|client| client.requests.len()).sum())
    }

    /// Forgets what the time limits say, at most once a second. Replies are looked at in the client's order, so one
    /// may outlive its limit behind an older request that finished late.
    pub fn expire(&mut self, now: Instant) {
        if now < self.next_expiry {
            return;
        }
        self.next_expiry = now.after(EXPIRY_PERIOD);
        let (remember_responses, remember_clients) = (self.remember_responses, self.remember_clients);
        let mut freed = 0;
        self.clients.retain(|name, client| {
            freed += client.drop_oldest(|_, at| now.since(at) >= remember_responses);
            let keep = !client.requests.is_empty() || now.since(client.last_seen) < remember_clients;
            freed += if keep { 0 } else { client_bytes(name) };
            keep
        });
        self.bytes -= freed;
    }

    /// The client of `id`, after what it said about its progress was heeded.
    fn client(&mut self, id: &RequestIdPb, now: Instant) -> &mut Client<W> {
        if !self.clients.contains_key(&id.client_id) {
            let client = Client { stale_before: i64::MIN, last_seen: now, requests: BTreeMap::new() };
            self.clients.insert(id.client_id.clone(), client);
            self.bytes += client_bytes(&id.client_id);
        }
        let client = self.clients.get_mut(&id.client_id).expect("it was put there if it was missing");
        client.last_seen = now;
        if id.first_incomplete_seq_no > client.stale_before {
            client.stale_before = id.first_incomplete_seq_no;
            let stale_before = client.stale_before;
            self.bytes -= client.drop_oldest(|seq_no, _| seq_no < stale_before);
        }
        client
    }
}

impl<W> Client<W> {
    /// Drops completed requests from the lowest number on while `drop` says so; gives the bytes freed. Requests in
    /// progress are passed over: few, and they are dropped once complete.
    fn drop_oldest(&mut self, drop: impl Fn(i64, Instant) -> bool) -> usize {
        let mut dead = Vec::new();
        let mut freed = 0;
        for (&seq_no, request) in &self.requests {
            match request {
                Request::InProgress(_) => continue,
                Request::Completed { reply, at } if drop(seq_no, *at) => {
                    freed += REQUEST_BYTES + reply.bytes();
                    dead.push(seq_no);
                }
                Request::Completed { .. } => break,
            }
        }
        for seq_no in dead {
            self.requests.remove(&seq_no);
        }
        freed
    }
}

fn client_bytes(name: &str) -> usize {
    CLIENT_BYTES + name.len()
}
