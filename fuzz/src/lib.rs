//! Fuzz targets as plain functions: any bytes at all, and none may panic, hang, or allocate without bound.
//!
//! ```text
//!             harness/ (libFuzzer, nightly)  ◀── cargo ci fuzz
//!                      │
//! corpus/<target>/ ──▶ replay() ──▶ guard: how much is allocated ──▶ targets::*
//!        ▲             ▲
//!   seeds::*           └── cargo test, on stable; the program `fuzz`
//! ```
//!
//! A target does more than call its decoder: what decodes must encode again to the same, or obey the order the encoding
//! promises, or agree with a model. Those that would turn nearly all bytes away take their input through
//! [`arbitrary`].

// The simulator's plans without its worlds, which are large.
#[allow(dead_code)]
#[path = "../../sim/src/draw.rs"]
mod draw;
pub mod guard;
#[path = "../../engine/tests/support/model.rs"]
mod model;
#[path = "../../engine/tests/support/one_server.rs"]
mod one_server;
#[allow(dead_code, unused_imports)]
#[path = "../../sim/src/plan/mod.rs"]
mod plan;
#[path = "../../engine/tests/support/group/mod.rs"]
mod raft_group;
pub mod seeds;
#[path = "../../engine/tests/support/mod.rs"]
mod support;
pub mod targets;

pub use targets::{TARGETS, Target};

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Runs a target on an input. Panics if it finds something, or if it held more memory than it may.
pub fn replay(target: &Target, input: &[u8]) {
    let peak = guard::peak_of(|| (target.run)(input));
    let most = target.memory.most(input.len());
    let (name, len) = (target.name, input.len());
    assert!(peak <= most, "{name} held {peak} bytes for an input of {len}; at most {most} are allowed");
}

#[cfg(test)]
mod tests;
