//! `cargo ci overload`: a server under more writes than it can take, and a folder with charts of the run.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;

use crate::command::CommandLine;

#[derive(Args)]
pub(crate) struct OverloadOptions {
    /// Duration of the run, in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Memory budget of the tablet server, in MiB
    #[arg(long, default_value_t = 192)]
    memory_mib: u64,
    /// Concurrent clients
    #[arg(long, default_value_t = 16)]
    clients: u64,
    /// Rows of each write
    #[arg(long, default_value_t = 20)]
    batch: u64,
    /// The folder of the report
    #[arg(long, default_value = "target/overload")]
    out: PathBuf,
}

pub(crate) fn run(root: &Path, options: &OverloadOptions) -> Result<()> {
    let numbers = [
        ("--seconds", options.seconds),
        ("--memory-mib", options.memory_mib),
        ("--clients", options.clients),
        ("--batch", options.batch),
    ];
    let words = numbers.iter().flat_map(|(name, number)| [name.to_string(), number.to_string()]);
    CommandLine::cargo(root)
        .args(["bench", "--quiet", "--package", "benches", "--bench", "overload", "--"])
        .args(words)
        .args(["--out"])
        .args([root.join(&options.out)])
        .run()
}
