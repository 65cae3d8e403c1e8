//! Writes the trace of a randomized Raft test: `cargo run -p engine --example raft_trace -- SEED [STEPS]`.
//! `spec/README.md` describes the format. TLC checks that the specification allows the trace.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use engine_testkit::group::Group;

fn main() -> io::Result<()> {
    // An example reads its arguments as a program does; the lints are for the engine itself.
    #[allow(clippy::disallowed_methods)]
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let (seed, steps) = (numbers.first().copied().unwrap_or(1), numbers.get(1).copied().unwrap_or(1_000));
    write_trace(seed, steps, &mut io::stdout().lock())
}

/// Writes a trace with the group's own invariant checks off, so that only the specification checks it. A step that the
/// checks would have stopped may panic: the trace is written up to there.
fn write_trace(seed: u64, steps: u64, out: &mut impl Write) -> io::Result<()> {
    let mut group = Group::from_seed(seed);
    group.lenient = true;
    let run = AssertUnwindSafe(|| (0..steps).for_each(|_| group.advance()));
    if catch_unwind(run).is_err() {
        writeln!(io::stderr(), "seed {seed}: ended by a panic")?;
    }
    out.write_all(group.trace.finish().as_bytes())
}
