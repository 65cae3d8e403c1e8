//! `cargo sim`: runs plans in simulated worlds, by the thousand or one again.

use std::process::ExitCode;

fn main() -> ExitCode {
    sim::cli::main()
}
