//! The README's shell blocks, run as a newcomer would: in order, in one folder, each line checked.
//!
//! ```text
//!   ```sh          a script; the first command that fails ends the step
//!   ```sh server   a program that stays up until the last block has run
//! ```
//!
//! Two lines stand for what runs already: `cargo ci` is this very command, and `cargo run --release --` is the release
//! program that the step has built.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::command::{CommandLine, cargo, target_dir};
use crate::tools::kerberos_feature;

/// Text that `nyala up` prints once clients can connect.
const READY: &str = "Connect Kudu clients to the master ";

/// One fenced block.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    line: usize,
    server: bool,
    script: String,
}

/// Runs every shell block of README.md in an empty folder.
pub(crate) fn check(root: &Path) -> Result<()> {
    // With the features of the other steps, which have built it: the blocks need none of them.
    let words = ["build", "--quiet", "--release", "--package", "node"];
    cargo(root, &[&words, kerberos_feature()].concat())?;
    let text = std::fs::read_to_string(root.join("README.md")).context("reading README.md")?;
    let blocks = blocks(&text);
    ensure!(!blocks.is_empty(), "README.md has no shell block");
    let dir = tempfile::tempdir()?;
    let release = dir.path().join("target/release");
    std::fs::create_dir_all(&release)?;
    std::fs::copy(target_dir()?.join("release/nyala"), release.join("nyala"))?;
    let mut servers = Servers::default();
    for block in &blocks {
        println!("README.md:{}", block.line);
        let run = if block.server { servers.start(block, dir.path()) } else { script(block, dir.path()) };
        run.with_context(|| format!("the shell block at README.md:{}", block.line))?;
    }
    servers.stop()
}

/// Returns the blocks with the info string `sh` or `sh server`.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in (1..).zip(text.lines()) {
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.script.push_str(&format!("{}\n", command(line))),
            (None, Some(info @ ("sh" | "sh server"))) => {
                open = Some(Block { line: number, server: info == "sh server", script: String::new() });
            }
            (None, _) => {}
        }
    }
    blocks
}

/// Returns a line as it is run here.
fn command(line: &str) -> String {
    let bare = line.split(" #").next().unwrap_or_default().trim_end();
    match bare.strip_prefix("cargo run --release -- ") {
        Some(words) => format!("target/release/nyala {words}"),
        None if bare == "cargo ci" || bare.starts_with("cargo ci ") => String::new(),
        None => bare.to_owned(),
    }
}

fn script(block: &Block, dir: &Path) -> Result<()> {
    let text = format!("set -eu\nshopt -s expand_aliases\n{}", block.script);
    CommandLine::new("bash").args(["-c", &text]).dir(dir).run()
}

/// Programs that stay up; dropped, they are killed.
#[derive(Default)]
struct Servers(Vec<Child>);

impl Servers {
    /// Starts the block's program and waits until clients can connect.
    fn start(&mut self, block: &Block, dir: &Path) -> Result<()> {
        let mut child = Command::new("bash")
            .args(["-c", &format!("exec {}", block.script.trim())])
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(dir.join("server.log"))?)
            .spawn()?;
        let stdout = child.stdout.take().context("its output is piped")?;
        self.0.push(child);
        let mut lines = BufReader::new(stdout).lines();
        loop {
            match lines.next().transpose()? {
                Some(line) if line.contains(READY) => return Ok(()),
                Some(_) => {}
                None => bail!("it ended early:\n{}", std::fs::read_to_string(dir.join("server.log"))?),
            }
        }
    }

    /// Stops them as Ctrl-C does; each must exit successfully.
    fn stop(&mut self) -> Result<()> {
        for mut child in self.0.drain(..) {
            CommandLine::new("kill").args(["-INT", &child.id().to_string()]).run()?;
            let status = child.wait()?;
            ensure!(status.success(), "a server ended with {status}");
        }
        Ok(())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail only for an ended process.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_blocks_are_found_with_their_kind_and_line() {
        let text = "a\n```sh\none   # why\n```\n```text\nno\n```\n```sh server\nup\n```\n";
        let block = |line, server, script: &str| Block { line, server, script: script.to_owned() };
        assert_eq!(blocks(text), [block(2, false, "one\n"), block(8, true, "up\n")]);
    }

    #[test]
    fn the_program_and_this_command_are_replaced() {
        assert_eq!(command("cargo run --release -- demo   # prints"), "target/release/nyala demo");
        assert_eq!(command("cargo ci      # all"), "");
        assert_eq!(command("cargo cinema"), "cargo cinema");
    }
}
