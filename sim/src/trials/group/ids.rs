//! Ids of a group trial's tablet and servers.

use engine::ids::{PeerId, TableId, TabletId, Uuid};
use engine::raft::Peer;

pub(super) const TABLET: TabletId = Uuid([7; 16]);
pub(super) const TABLE: TableId = Uuid([9; 16]);

/// Returns the id of a server.
pub(super) fn id_of(server: usize) -> PeerId {
    Uuid([b'a' + server as u8; 16])
}

pub(super) fn server_of(id: PeerId) -> usize {
    usize::from(id.0[0] - b'a')
}

pub(super) fn peer_of(server: usize) -> Peer {
    Peer::voter(id_of(server), format!("host{server}"), 7050)
}
