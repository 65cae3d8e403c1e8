//! Conditions of the double's servers, and since when they explain what a client could not do.

/// Condition of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Fine,
    /// Refuses some calls: the same server serves them a little later.
    Busy,
    /// Accepts calls and never replies.
    Silent,
    /// Executes calls late, or replies late.
    Slow,
    /// Executes calls and loses some replies.
    Deaf,
    /// Forgets its scanners, and has no running replica for some calls.
    Starting,
    /// Its process is gone.
    Down,
}

impl Condition {
    /// Returns true if a call may go unanswered, or a scanner be lost.
    pub(super) fn is_hard(self) -> bool {
        !matches!(self, Condition::Fine | Condition::Busy)
    }
}

/// Times, in nanoseconds of the world, that explain failures.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Disturbances {
    /// Until then some call could get no answer.
    pub hard: u64,
    /// Until then some leader did not serve.
    pub unserved: u64,
    /// Until then some server was not in order.
    pub any: u64,
}
