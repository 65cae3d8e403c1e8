//! Writes the trace of a group of Raft cores in a storm: `cargo run -p engine --example raft_trace -- SEED [STEPS]`.
//! The file's format is told in `spec/README.md`; TLC says whether the specification allows it.

#[path = "../tests/support/group/mod.rs"]
mod group;

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use group::Group;

fn main() -> io::Result<()> {
    // An example reads its arguments as a program does; the bans are for the engine itself.
    #[allow(clippy::disallowed_methods)]
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let (seed, steps) = (numbers.first().copied().unwrap_or(1), numbers.get(1).copied().unwrap_or(1_000));
    write_trace(seed, steps, &mut io::stdout().lock())
}

/// The group's own checks are not asked, and what they would have stopped may end in a panic: the trace is written up
/// to there, for the specification to judge alone.
fn write_trace(seed: u64, steps: u64, out: &mut impl Write) -> io::Result<()> {
    let mut group = Group::storm(seed);
    group.lenient = true;
    let storm = AssertUnwindSafe(|| (0..steps).for_each(|_| group.advance()));
    if catch_unwind(storm).is_err() {
        writeln!(io::stderr(), "seed {seed}: ended by a panic")?;
    }
    out.write_all(group.trace.finish().as_bytes())
}
