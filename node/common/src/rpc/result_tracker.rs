//! Result tracking for exactly-once requests: replies cached by request id, so that a retry gets the first attempt's
//! reply and nothing is executed twice. Pure.
//!
//! ```text
//! request id     first seen ──▶ in progress ──complete──▶ cached ──client is past it, or TTL──▶ dropped
//!                                  └──fail (no effect)──▶ as if never seen
//! retry             ──          attached: waits for the    cached reply                          stale
//!                               running attempt's reply
//! ```
//!
//! A client numbers its requests and sends with each its first incomplete number. A request below that number is
//! stale and rejected, because its reply may have been dropped. After a restart, or on another server,
//! [`ResultTracker::restore`] rebuilds the cache from the requests in the log.
//!
//! Invariant: a client is known while a request of it is in progress, and after one took effect. A request that failed
//! leaves nothing: a peer without any right can send many, each with another client's name.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use engine::time::Instant;

use super::RequestIdPb;
use crate::sidecars::Sidecars;

/// A reply that can be sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedReply {
    pub body: Bytes,
    pub sidecars: Sidecars,
}

impl CachedReply {
    /// Returns the size of the message and its sidecars.
    pub fn bytes(&self) -> usize {
        self.body.len() + self.sidecars.byte_size()
    }
}

/// Decision about a request. `W` is the waiter that receives the reply.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestAdmission<W> {
    /// Execute the request, then call [`ResultTracker::complete`] or [`ResultTracker::fail`].
    Execute(W),
    /// The request is in progress. The waiter is stored and returned with the result.
    Attached,
    /// The request was executed; this is the cached reply.
    Repeat(W, CachedReply),
    /// Reject the request: the client has declared it complete.
    Stale(W),
}

/// Cached replies and requests in progress, by client and request number.
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
    /// Lowest request number that is not stale.
    stale_before: i64,
    last_seen: Instant,
    /// True if a request took effect. Its number must stay stale after its reply is dropped.
    has_effects: bool,
    requests: BTreeMap<i64, Request<W>>,
}

#[derive(Debug)]
enum Request<W> {
    InProgress(Vec<W>),
    Completed { reply: CachedReply, at: Instant },
}

/// Approximate memory in bytes of an entry without its reply: map slot and allocations.
const REQUEST_BYTES: usize = 128;
const CLIENT_BYTES: usize = 256;
/// Minimum time between two checks for expired entries.
const EXPIRY_PERIOD: Duration = Duration::from_secs(1);

impl<W> ResultTracker<W> {
    /// Creates an empty tracker. `remember_responses` limits the age of a reply whose client sends no newer request.
    /// `remember_clients` limits the time for which a client without requests is known.
    pub fn new(remember_responses: Duration, remember_clients: Duration) -> ResultTracker<W> {
        let (clients, next_expiry) = (BTreeMap::new(), Instant(0));
        ResultTracker { clients, remember_responses, remember_clients, next_expiry, bytes: 0 }
    }

    /// Registers a request that arrived and decides about it.
    pub fn begin(&mut self, id: &RequestIdPb, now: Instant, waiter: W) -> RequestAdmission<W> {
        self.expire(now);
        let client = self.client(id, now);
        if id.seq_no < client.stale_before {
            self.drop_client_without_use(&id.client_id);
            return RequestAdmission::Stale(waiter);
        }
        match client.requests.get_mut(&id.seq_no) {
            Some(Request::InProgress(waiters)) => {
                waiters.push(waiter);
                RequestAdmission::Attached
            }
            Some(Request::Completed { reply, .. }) => RequestAdmission::Repeat(waiter, reply.clone()),
            None => {
                client.requests.insert(id.seq_no, Request::InProgress(Vec::new()));
                self.bytes += REQUEST_BYTES;
                RequestAdmission::Execute(waiter)
            }
        }
    }

    /// Caches the reply of a request that took effect. Returns the attached waiters.
    pub fn complete(&mut self, id: &RequestIdPb, reply: CachedReply, now: Instant) -> Vec<W> {
        let Some(client) = self.clients.get_mut(&id.client_id) else { return Vec::new() };
        let Some(request) = client.requests.get_mut(&id.seq_no) else { return Vec::new() };
        let Request::InProgress(waiters) = request else { return Vec::new() };
        let waiters = std::mem::take(waiters);
        client.has_effects = true;
        if id.seq_no < client.stale_before {
            client.requests.remove(&id.seq_no);
            self.bytes -= REQUEST_BYTES;
            return waiters;
        }
        self.bytes += reply.bytes();
        *request = Request::Completed { reply, at: now };
        waiters
    }

    /// Drops a request that had no effect; a retry may execute it. Returns the attached waiters.
    pub fn fail(&mut self, id: &RequestIdPb) -> Vec<W> {
        let Some(client) = self.clients.get_mut(&id.client_id) else { return Vec::new() };
        let Some(Request::InProgress(_)) = client.requests.get(&id.seq_no) else { return Vec::new() };
        self.bytes -= REQUEST_BYTES;
        let removed = client.requests.remove(&id.seq_no);
        self.drop_client_without_use(&id.client_id);
        match removed {
            Some(Request::InProgress(waiters)) => waiters,
            _ => Vec::new(),
        }
    }

    /// Caches the reply of a request that took effect earlier (found in a log). Returns waiters of the same request
    /// if it is in progress here.
    pub fn restore(&mut self, id: &RequestIdPb, reply: CachedReply, now: Instant) -> Vec<W> {
        let client = self.client(id, now);
        client.has_effects = true;
        if id.seq_no >= client.stale_before && !client.requests.contains_key(&id.seq_no) {
            client.requests.insert(id.seq_no, Request::InProgress(Vec::new()));
            self.bytes += REQUEST_BYTES;
        }
        self.complete(id, reply, now)
    }

    /// Returns the approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of known clients and of stored requests.
    pub fn counts(&self) -> (usize, usize) {
        (self.clients.len(), self.clients.values().map(|client| client.requests.len()).sum())
    }

    /// Drops expired replies and clients, at most once per second. Replies are checked in request order, so one may
    /// outlive its limit behind an older request that finished late.
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

    /// Drops a client without a request in progress or a request that took effect.
    fn drop_client_without_use(&mut self, client_id: &str) {
        let is_unused = |client: &Client<W>| client.requests.is_empty() && !client.has_effects;
        if self.clients.get(client_id).is_some_and(is_unused) {
            self.clients.remove(client_id);
            self.bytes -= client_bytes(client_id);
        }
    }

    /// Returns the client of `id` after applying the client's first incomplete number.
    fn client(&mut self, id: &RequestIdPb, now: Instant) -> &mut Client<W> {
        if !self.clients.contains_key(&id.client_id) {
            let (stale_before, requests) = (i64::MIN, BTreeMap::new());
            let client = Client { stale_before, last_seen: now, has_effects: false, requests };
            self.clients.insert(id.client_id.clone(), client);
            self.bytes += client_bytes(&id.client_id);
        }
        let client = self.clients.get_mut(&id.client_id).expect("inserted above if it was missing");
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
    /// Drops completed requests in ascending order while `drop` returns true. Returns the bytes freed. Requests in
    /// progress are skipped: they are few and are dropped once complete.
    fn drop_oldest(&mut self, drop: impl Fn(i64, Instant) -> bool) -> usize {
        let mut dropped = Vec::new();
        let mut freed = 0;
        for (&seq_no, request) in &self.requests {
            match request {
                Request::InProgress(_) => continue,
                Request::Completed { reply, at } if drop(seq_no, *at) => {
                    freed += REQUEST_BYTES + reply.bytes();
                    dropped.push(seq_no);
                }
                Request::Completed { .. } => break,
            }
        }
        for seq_no in dropped {
            self.requests.remove(&seq_no);
        }
        freed
    }
}

fn client_bytes(name: &str) -> usize {
    CLIENT_BYTES + name.len()
}
