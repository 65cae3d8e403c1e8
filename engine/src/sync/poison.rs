//! Poison: a lock whose holder panicked is not used again.

/// Message of the panic of a thread that meets what another thread's panic left.
pub(super) const POISONED: &str = "a thread panicked while it held this lock";
