//! Agreement of worlds: a determined plan ends with the same rows in every simulated world and on the machine.
//!
//! ```text
//! plan ──► simulated   each simulated world: its time, disks and network ────┐
//!     └──► machine     processes, sockets on loopback, files ─────────────────┴─► FinalState ──► compare
//!                      rows of the model: expected ◄── history of the clients
//! ```
//!
//! What differs is a mistake of nyala that depends on the world, or an assumption of the simulator that does not hold.
//! Plans are [`sim_plan::determined`]. Not here: the reads at the end, which are the workload's.

pub mod compare;
mod conclude;
mod expected;
pub mod machine;
pub mod simulated;
