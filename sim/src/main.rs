//! `cargo sim`: runs plans in simulated worlds, thousands of them or one again.

use std::process::ExitCode;

/// A run makes and drops millions of small objects; glibc's allocator uses a seventh more CPU.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    sim::cli::main()
}
