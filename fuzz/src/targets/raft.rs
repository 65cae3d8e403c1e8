//! A randomized Raft test: the input decides the next step, and the invariants are checked after each.

use engine_testkit::group::{FaultRates, Group};

/// Limit of decisions: more take long and find no more.
const BYTES_MAX: usize = 4096;

/// Runs a group. First bytes: number of servers, and fault rates; then two bytes for each decision. Faults end after
/// the last one, and the group must agree.
pub(super) fn raft(data: &[u8]) {
    let [size, kind, decisions @ ..] = &data[..data.len().min(BYTES_MAX)] else { return };
    let (voters, spares) = [(3, 0), (3, 1), (2, 1), (1, 2)][usize::from(*size) % 4];
    let mut rates = FaultRates::usual();
    match kind % 4 {
        0 => rates.crash *= 4,
        1 => rates.change = 30,
        2 => (rates.cut, rates.step_down) = (15, 10),
        // Clocks with an understated error bound.
        _ => rates.error_micros = 5_000_000,
    }
    let mut group = Group::new(u64::from(kind / 4), voters, spares, rates);
    let decision = |pair: &[u8]| u64::from(u16::from_le_bytes([pair[0], pair[1]]));
    group.decisions = decisions.chunks_exact(2).map(decision).collect();
    while !group.decisions.is_empty() {
        group.advance();
    }
    group.heal();
}
