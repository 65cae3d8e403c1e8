//! A group of Raft cores in lockstep: the input decides what happens next, the invariants are checked after each step.

use crate::raft_group::{Group, Weather};

/// More decisions than this take long and find what fewer do.
const BYTES_MAX: usize = 4096;

/// First bytes: how many servers, and the weather; then two bytes for each decision. When they have run out, faults
/// end, and the group must agree.
pub fn raft(data: &[u8]) {
    let [size, weather, decisions @ ..] = &data[..data.len().min(BYTES_MAX)] else { return };
    let (voters, spares) = [(3, 0), (3, 1), (2, 1), (1, 2)][usize::from(*size) % 4];
    let mut weather_of = Weather::stormy();
    match weather % 4 {
        0 => weather_of.crash *= 4,
        1 => weather_of.change = 30,
        2 => (weather_of.cut, weather_of.step_down) = (15, 10),
        // Clocks that do not know how wrong they are.
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
