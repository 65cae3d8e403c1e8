//! `cargo sim`: runs plans in simulated worlds, by the thousand or one again.

use std::process::ExitCode;

/// A run makes and drops millions of small things; glibc's takes a seventh more of the CPU.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    sim::cli::main()
}
