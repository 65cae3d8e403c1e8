//! Fuzz targets as plain functions: for any input, none may panic, hang, or exceed its memory limit.
//!
//! ```text
//!             harness/ (libFuzzer, nightly)  ◀── cargo ci fuzz
//!                      │
//! corpus/<target>/ ──▶ replay() ──▶ memory_guard: bytes held ──▶ targets::*
//!        ▲             ▲
//!   seeds::*           └── cargo test, on stable; the program `fuzz`
//! ```
//!
//! A target checks more than its decoder: decoded input encodes to the same bytes, or keeps the order that the
//! encoding guarantees, or agrees with a model. Targets that would reject nearly all inputs take theirs through
//! [`arbitrary`].

pub mod memory_guard;
pub mod seeds;
pub mod targets;

pub use targets::{TARGETS, Target};

/// Returns the target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Runs a target on an input. Panics if the target fails or exceeds its memory limit.
pub fn replay(target: &Target, input: &[u8]) {
    let peak = memory_guard::peak_of(|| (target.run)(input));
    let most = target.memory.most(input.len());
    let (name, len) = (target.name, input.len());
    assert!(peak <= most, "{name} held {peak} bytes for an input of {len}; at most {most} are allowed");
}

#[cfg(test)]
mod tests;
