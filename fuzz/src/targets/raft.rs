//! A randomized Raft test: the input decides the next step, and the invariants are checked after each.

use engine_testkit::group::{Group, Weather};

/// Limit of decisions: more take long and find no more.
const BYTES_MAX: usize = 4096;

/// Runs a group. First bytes: number of servers, and fault rates; then two bytes for each decision. Faults end after
/// the last one, and the group must agree.
pub(super) fn raft(data: &[u8]) {
    let [size, weather, decisions @ ..] = &data[..data.len().min(BYTES_MAX)] else { return };
    let (voters, spares) = [(3, 0), (3, 1), (2, 1), (1, 2)][usize::from(*size) % 4];
    let mut weather_of = Weather::stormy();
    match weather % 4 {
        0 => weather_of.crash *= 4,
        1 => weather_of.change = 30,
        2 => (weather_of.cut, weather_of.step_down) = (15, 10),
        // Clocks with an understated error bound.
        _ => weather_of.error_micros = 5_000_000,
    }
    let mut group = Group::new(u64::from(weather / 4), voters, spares, weather_of);
    let decision = |pair: &[u8]| u64::from(u16::from_le_bytes([pair[0], pair[1]]));
    group.decisions = decisions.chunks_exact(2).map(decision).collect();
    while !group.decisions.is_empty() {
        group.advance();
    }
    group.heal();
}
