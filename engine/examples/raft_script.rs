//! Drives groups of Raft cores along scripts: `cargo run -p engine --example raft_script -- FILE...`.
//! `cargo ci spec --directed` generates the scripts from behaviours of the specification's models.

use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> io::Result<ExitCode> {
    // An example reads its arguments and files as a program does; the lints are for the engine itself.
    #[allow(clippy::disallowed_methods)]
    let files: Vec<String> = std::env::args().skip(1).collect();
    let (mut out, mut failed) = (io::stdout().lock(), false);
    for file in files {
        #[allow(clippy::disallowed_methods)]
        let text = std::fs::read_to_string(&file)?;
        match engine_testkit::group::script::follow(&text) {
            Ok(steps) => writeln!(out, "{file}: {steps} steps")?,
            Err(why) => {
                failed = true;
                writeln!(out, "{file}: {why}")?;
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
