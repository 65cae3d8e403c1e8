//! Plans: all that a simulated run does, as data. Every world runs the same plan.
//!
//! ```text
//! seed ──generate──► Plan ◄──parse/print──► sim/plans/NAME.plan
//!                     │ cluster   counts, limits, memory, timing, devices, network, clocks   [`spec`]
//!                     │ clients   the program of each client, op by op                       [`client_ops`]
//!                     │ faults    injected failures: time, host, kind, duration              [`faults`]
//! ```
//!
//! A plan does not fix everything. Its `seed` also decides, during the run: the order of tasks, latencies within the
//! network's range, and the unsynced bytes that survive a crash. A plan without some of its ops and faults still runs;
//! shrinking depends on this.
//!
//! Invariant: within one version a seed, a profile and a size always give the same plan, byte for byte. Kept seeds,
//! kept plans and the pages of results refer to plans by seed. So stream names, the order of draws, weights and the
//! plan text stay as they are, and new draws take a new [`RandomStream`] of their own.
//!
//! | to read | go to |
//! |---|---|
//! | from a seed to a plan | [`generate`]: cluster, client ops, faults, corrections |
//! | plans whose rows at the end do not depend on the world | [`determined`] |
//! | ops and faults that belong together | `scenarios` |
//! | which profile draws which fault, and its weight | [`fault_weights`] |
//! | tables of any shape, and ops on them | [`tables`] |
//! | children of a plan, for guided search | [`mutate`] |
//! | the text of a plan | [`line_format`]: one line; `text`: the whole plan |
//!
//! To add a fault:
//! 1. Add a variant to [`Fault`] with the word of its line. [`FaultKind`] gets the kind from it.
//! 2. Follow the compiler through the exhaustive matches: duration ([`Fault::span`]), effects on the disk
//!    ([`FaultKind::disk_effect`]), weights ([`fault_weights`]), parameters (`generate/faults.rs`).
//! 3. Apply it in the fault injector (`sim/src/injector`).
//!
//! A fault with weights changes the plans of existing seeds, because each kind takes a draw. To keep them, leave the
//! weights empty and draw the fault in a scenario.
//!
//! To add a scenario: write `scenarios/NAME.rs` with `percent` (of the plans of each profile) and `add`, and call `add`
//! at the end of `scenarios/mod.rs` with a stream name that no other draw uses.
//!
//! Not here: worlds, the fault injector, the execution of ops, oracles. They are in the crate `sim`.

pub mod client_ops;
pub mod determined;
mod draws;
pub mod fault_weights;
pub mod faults;
pub mod generate;
pub mod host;
pub mod line_format;
pub mod mutate;
pub mod plan;
pub mod profile;
pub mod random_stream;
mod scenarios;
pub mod spec;
pub mod tables;
mod text;

pub use client_ops::{ClientOp, ClientProgram};
pub use faults::{Fault, FaultKind, LinkDirection, TimedFault};
pub use host::Host;
pub use plan::Plan;
pub use profile::{FaultProfile, PlanSize};
pub use random_stream::RandomStream;
pub use spec::{
    ClockSkew, ClusterSpec, DataSpec, DeviceSpec, EngineLimits, FinalRestart, NetworkSpec, RaftBatching,
    Reseed, SecuritySpec,
};
