//! Places of connections: of clients that have proved who they are, and of those that still may.
//!
//! ```text
//!   accept ──▶ unproved (at most UNPROVED_MAX) ── proof ──▶ client (at most connections_max)
//!                 └── one too many: of the network with the most, the oldest ends
//! ```
//!
//! Invariant: a connection whose client proves nothing takes no client's place.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use nyala_common::rpc::negotiate::client_network;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard, Notify};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Connections at a time whose clients have not proved yet who they are.
const UNPROVED_MAX: usize = 100;

/// Places of all connections of a server.
pub(super) struct Places {
    clients_max: usize,
    /// Cancelled when the server stops.
    stopped: CancellationToken,
    open: Mutex<OpenPlaces>,
    /// Notified when a place is dropped.
    freed: Notify,
}

#[derive(Default)]
struct OpenPlaces {
    next: u64,
    /// Connections by number: the first is the oldest.
    unproved: BTreeMap<u64, UnprovedConnection>,
    clients: BTreeSet<u64>,
}

struct UnprovedConnection {
    network: IpAddr,
    ended: CancellationToken,
}

/// Place of a connection, until it is dropped: after the connection's statements, and its last bytes to the client.
pub(super) struct ConnectionPlace {
    places: Arc<Places>,
    id: u64,
    /// Cancelled when the connection must end.
    ended: CancellationToken,
    /// Held while a secret of the client is checked.
    check: AsyncMutex<()>,
}

impl Places {
    /// Creates the places of a server whose end cancels `stopped`.
    pub(super) fn new(clients_max: usize, stopped: CancellationToken) -> Arc<Places> {
        Arc::new(Places { clients_max, stopped, open: Mutex::default(), freed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, OpenPlaces> {
        self.open.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// Returns the number of connections.
    pub(super) fn len(&self) -> usize {
        let open = self.lock();
        open.unproved.len() + open.clients.len()
    }

    /// Waits until no connection is left.
    pub(super) async fn wait_until_empty(&self) {
        loop {
            let freed = self.freed.notified();
            if self.len() == 0 {
                return;
            }
            freed.await;
        }
    }

    /// Takes a place for a new connection. If too many are unproved, one of those ends.
    pub(super) fn enter(self: &Arc<Places>, address: IpAddr) -> Arc<ConnectionPlace> {
        let mut open = self.lock();
        if open.unproved.len() >= UNPROVED_MAX {
            open.displace();
        }
        let id = open.next;
        open.next += 1;
        let ended = self.stopped.child_token();
        let network = client_network(address);
        open.unproved.insert(id, UnprovedConnection { network, ended: ended.clone() });
        Arc::new(ConnectionPlace { places: self.clone(), id, ended, check: AsyncMutex::default() })
    }
}

impl OpenPlaces {
    /// Ends the oldest unproved connection of the network that has the most of them.
    fn displace(&mut self) {
        let mut counts = BTreeMap::<IpAddr, usize>::new();
        self.unproved.values().for_each(|connection| *counts.entry(connection.network).or_default() += 1);
        let Some((crowded, _)) = counts.into_iter().max_by_key(|(_, count)| *count) else { return };
        let oldest = self.unproved.iter().find(|(_, connection)| connection.network == crowded);
        let oldest = oldest.map(|(id, _)| *id);
        if let Some(connection) = oldest.and_then(|id| self.unproved.remove(&id)) {
            connection.ended.cancel();
        }
    }
}

impl ConnectionPlace {
    /// Takes a client's place for a client that has proved who it is. Returns false if none is left.
    pub(super) fn prove(&self) -> bool {
        let mut open = self.places.lock();
        if open.clients.contains(&self.id) {
            return true;
        }
        let is_full = open.clients.len() >= self.places.clients_max;
        // A connection that was displaced meanwhile has no place any more.
        !is_full && open.unproved.remove(&self.id).is_some() && open.clients.insert(self.id)
    }

    /// Ends the connection unless its client has proved who it is.
    pub(super) fn end_unproved(&self) {
        let mut open = self.places.lock();
        if !open.clients.contains(&self.id) {
            open.unproved.remove(&self.id);
            self.ended.cancel();
        }
    }

    /// Waits until no other secret of the client is checked, so that a connection cannot take all checks.
    pub(super) async fn check_alone(&self) -> AsyncMutexGuard<'_, ()> {
        self.check.lock().await
    }

    /// Returns true if no client's place is left for this connection.
    pub(super) fn is_full(&self) -> bool {
        let open = self.places.lock();
        open.clients.len() >= self.places.clients_max && !open.clients.contains(&self.id)
    }

    /// Returns the reason for a refusal, for the client.
    pub(super) fn refusal(&self) -> String {
        format!("too many connections (limit {}); try again later", self.places.clients_max)
    }

    /// Waits until the connection must end: the server stops, or its place is needed.
    pub(super) fn ended(&self) -> WaitForCancellationFutureOwned {
        self.ended.clone().cancelled_owned()
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut open = self.places.lock();
        open.unproved.remove(&self.id);
        open.clients.remove(&self.id);
        drop(open);
        self.places.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    fn places(clients_max: usize) -> Arc<Places> {
        Places::new(clients_max, CancellationToken::new())
    }

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn connections_that_prove_nothing_take_no_clients_place() {
        let places = places(2);
        let silent: Vec<_> = (0..3 * UNPROVED_MAX).map(|_| places.enter(address(1))).collect();
        assert_eq!(places.len(), UNPROVED_MAX);
        let is_ended = |place: &Arc<ConnectionPlace>| place.ended.is_cancelled();
        let (displaced, kept) = silent.split_at(2 * UNPROVED_MAX);
        assert!(displaced.iter().all(is_ended) && !kept.iter().any(is_ended), "the oldest end");
        assert!(!silent[0].prove(), "a connection that was displaced has no place");
        // A client of another network is not displaced by the flood, however slow it is.
        let clients = [2, 3].map(|last| places.enter(address(last)));
        let flood: Vec<_> = (0..UNPROVED_MAX).map(|_| places.enter(address(1))).collect();
        assert!(clients.iter().all(|client| !client.is_full() && client.prove() && client.prove()));
        assert!(flood[0].is_full() && !flood[0].prove(), "both places are taken");
        assert!(!clients.iter().any(is_ended) && !clients[0].is_full());
        drop(clients);
        assert!(flood[UNPROVED_MAX - 1].prove(), "a free place");
        drop((silent, flood));
        assert_eq!(places.len(), 0);
    }

    #[test]
    fn only_a_connection_without_proof_is_ended() {
        let places = places(1);
        let (client, unproved) = (places.enter(address(1)), places.enter(address(2)));
        assert!(client.prove());
        client.end_unproved();
        unproved.end_unproved();
        assert!(!client.ended.is_cancelled() && unproved.ended.is_cancelled());
        drop(client);
        assert!(!unproved.prove(), "it has no place any more");
        assert_eq!(places.len(), 0);
    }

    #[tokio::test]
    async fn the_last_connection_to_end_leaves_no_place() {
        let places = places(1);
        let (client, unproved) = (places.enter(address(1)), places.enter(address(2)));
        assert!(client.prove());
        let mut empty = pin!(places.wait_until_empty());
        assert!(empty.as_mut().now_or_never().is_none());
        drop(unproved);
        assert!(empty.as_mut().now_or_never().is_none(), "the client is connected");
        drop(client);
        empty.await;
    }

    #[test]
    fn all_connections_end_with_the_server() {
        let places = places(1);
        let (client, unproved) = (places.enter(address(1)), places.enter(address(2)));
        assert!(client.prove());
        places.stopped.cancel();
        assert!(client.ended.is_cancelled() && unproved.ended.is_cancelled());
    }
}
