//! Connections of the web port: many at once, none for long without a request.
//!
//! A connection that has not finished a request's header is dropped first when there are too many, the oldest before
//! others, so that half-sent requests starve no other client.

use engine::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// Largest number of connections at once, in total and from one address.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectionLimits {
    pub total: usize,
    pub per_address: usize,
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        ConnectionLimits { total: 1024, per_address: 32 }
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
    next: AtomicU64,
}

/// One open connection.
pub(super) struct ConnectionState {
    address: IpAddr,
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
        Arc::new(Connections { limits, open: Mutex::default(), next: AtomicU64::new(0) })
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<ConnectionState>>> {
        self.open.lock()
    }

    /// Enters a new connection. If there are too many, drops the oldest without a request; `None` if there is none.
    pub(super) fn enter(self: &Arc<Connections>, address: IpAddr) -> Option<OpenConnection> {
        let mut open = self.open();
        let same = open.values().filter(|state| state.address == address).count();
        let crowded = if same >= self.limits.per_address {
            Some(Some(address))
        } else if open.len() >= self.limits.total {
            Some(None)
        } else {
            None
        };
        if let Some(of) = crowded {
            let idle = |(_, state): &(&u64, &Arc<ConnectionState>)| {
                state.requests() == 0 && of.is_none_or(|address| state.address == address)
            };
            // Ids grow, so the first is the oldest.
            let oldest = open.iter().find(idle).map(|(id, _)| *id)?;
            if let Some(state) = open.remove(&oldest) {
                state.dropped.notify_one();
            }
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let none = || AtomicU64::new(0);
        let state =
            Arc::new(ConnectionState { address, requests: none(), answered: none(), dropped: Notify::new() });
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

    #[test]
    fn the_oldest_without_a_request_makes_place() {
        let connections = Connections::new(ConnectionLimits { total: 3, per_address: 2 });
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
}
