//! Members that have told their leader that they have no replica any more. From then on the leader may take for
//! replicated there only what another replica has: responses of the lost one may still be on their way.

use std::collections::BTreeMap;

/// For leaders and members: what was told last.
#[derive(Default)]
pub(super) struct Ghosts(pub(super) BTreeMap<(usize, usize), Told>);

/// A report that a member has no replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Told {
    /// Life of the leader that was told.
    pub(super) life: u64,
    /// Number of the member's replicas that were deleted until then.
    pub(super) deleted: u64,
}
