//! Connections of the web port: many at once, none for long without a request.
//!
//! When there are too many, the connection that has been idle for longest ends, so that neither half-sent requests nor
//! connections kept open starve another client. A connection is idle from its begin, and from each answer, until the
//! header of the next request is complete.

use engine::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nyala_common::rpc::negotiate::client_network;
use tokio::sync::Notify;

/// Largest number of connections at once, in total and from one network.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionLimits {
    pub total: usize,
    /// Limit of an address of IPv4, or of a /64 of IPv6: one host may have all addresses of that.
    pub per_network: usize,
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        ConnectionLimits { total: 1024, per_network: 32 }
    }
}

/// Longest wait for the header of a connection's first request.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time between the headers of two requests; a response must have been read by then.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Open connections.
pub(super) struct Connections {
    limits: ConnectionLimits,
    open: Mutex<BTreeMap<u64, Arc<ConnectionState>>>,
    /// Number of the next event: the begin of a connection, or the end of an answer.
    next: Arc<AtomicU64>,
}

/// One open connection.
pub(super) struct ConnectionState {
    network: IpAddr,
    /// Number of the event since which the connection is idle, if it is.
    idle_since: AtomicU64,
    events: Arc<AtomicU64>,
    /// Headers received.
    requests: AtomicU64,
    /// Headers whose answer is complete.
    answered: AtomicU64,
    /// Notified when the connection is dropped for others.
    dropped: Notify,
}

impl ConnectionState {
    /// Records that the header of a request is complete.
    pub(super) fn request_begun(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the answer to a request is complete.
    pub(super) fn request_ended(&self) {
        self.idle_since.store(self.events.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true while an answer is being made: a profile takes as long as its reader asked for.
    pub(super) fn is_answering(&self) -> bool {
        self.answered.load(Ordering::Relaxed) < self.requests()
    }

    /// Returns the number of requests.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Waits until the connection is to be dropped.
    pub(super) async fn dropped(&self) {
        self.dropped.notified().await;
    }
}

/// Entry of a connection; dropping it frees its place.
pub(super) struct OpenConnection {
    connections: Arc<Connections>,
    id: u64,
    pub state: Arc<ConnectionState>,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.connections.open().remove(&self.id);
    }
}

impl Connections {
    pub(super) fn new(limits: ConnectionLimits) -> Arc<Connections> {
        Arc::new(Connections { limits, open: Mutex::default(), next: Arc::default() })
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<ConnectionState>>> {
        self.open.lock()
    }

    /// Enters a new connection. If there are too many, drops the one that has been idle for longest; returns `None` if
    /// none is idle.
    pub(super) fn enter(self: &Arc<Connections>, address: IpAddr) -> Option<OpenConnection> {
        let network = client_network(address);
        let mut open = self.open();
        let same = open.values().filter(|state| state.network == network).count();
        let is_crowded = same >= self.limits.per_network;
        if is_crowded || open.len() >= self.limits.total {
            let may_end =
                |state: &ConnectionState| !state.is_answering() && (!is_crowded || state.network == network);
            let idle = open.iter().filter(|(_, state)| may_end(state));
            let longest = idle.min_by_key(|(_, state)| state.idle_since.load(Ordering::Relaxed));
            let id = *longest?.0;
            if let Some(state) = open.remove(&id) {
                state.dropped.notify_one();
            }
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let state = Arc::new(ConnectionState {
            network,
            idle_since: AtomicU64::new(id),
            events: self.next.clone(),
            requests: AtomicU64::default(),
            answered: AtomicU64::default(),
            dropped: Notify::new(),
        });
        open.insert(id, state.clone());
        drop(open);
        Some(OpenConnection { connections: self.clone(), id, state })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn is_dropped(connection: &OpenConnection) -> bool {
        use futures_util::FutureExt;
        connection.state.dropped().now_or_never().is_some()
    }

    fn limited(total: usize, per_network: usize) -> Arc<Connections> {
        Connections::new(ConnectionLimits { total, per_network })
    }

    fn answer(connection: &OpenConnection) {
        connection.state.request_begun();
        connection.state.request_ended();
    }

    #[test]
    fn the_longest_idle_makes_place() {
        let connections = limited(3, 2);
        let first = connections.enter(A).unwrap();
        let second = connections.enter(A).unwrap();
        first.state.request_begun();
        let third = connections.enter(A).expect("in place of the second");
        assert!(is_dropped(&second) && !is_dropped(&first) && !is_dropped(&third));
        third.state.request_begun();
        assert!(connections.enter(A).is_none(), "both of this address are at work");
        let other = connections.enter(B).expect("another address");
        let last = connections.enter(B).expect("in place of the first of them");
        assert!(is_dropped(&other));
        drop((first, second, third, last));
        assert!(connections.open().is_empty() || connections.open().len() == 1, "of `other` nothing is left");
    }

    #[test]
    fn connections_that_are_kept_open_lock_no_client_out() {
        let connections = limited(4, 2);
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let kept: Vec<OpenConnection> =
            (1..=4).map(|last| connections.enter(address(last)).expect("a place")).collect();
        kept.iter().for_each(answer);
        // The first is answered again, so that the second is idle for longest.
        answer(&kept[0]);
        let probe = connections.enter(B).expect("in place of the second");
        assert!(is_dropped(&kept[1]) && !kept.iter().skip(2).any(is_dropped) && !is_dropped(&kept[0]));
        let next = connections.enter(address(5)).expect("in place of the third");
        assert!(is_dropped(&kept[2]) && !is_dropped(&probe) && !is_dropped(&next));
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_count_together() {
        let connections = limited(10, 2);
        let enter = |address: &str| connections.enter(address.parse().expect("an address")).expect("a place");
        let first = enter("2001:db8:0:1::1");
        let others = [enter("2001:db8:0:1:ffff::2"), enter("2001:db8:0:2::1"), enter("::ffff:10.0.0.1")];
        assert!(!is_dropped(&first));
        let third = enter("2001:db8:0:1::3");
        assert!(is_dropped(&first) && !is_dropped(&third) && !others.iter().any(is_dropped));
    }
}
