//! Identities of the group's tablet and servers.

use engine::ids::{PeerId, TabletId, Uuid};

pub const TABLET: TabletId = Uuid([7; 16]);

pub fn id(number: u8) -> PeerId {
    Uuid([number; 16])
}
