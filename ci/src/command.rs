//! Child processes: command lines, and errors that name the failed command.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Bytes of a command line that an error repeats.
const WORDS_BYTES_MAX: usize = 200;

/// A command line under construction.
pub(crate) struct CommandLine {
    name: String,
    command: Command,
}

/// Captured output of a command.
pub(crate) struct Output {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

impl CommandLine {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        let program = program.as_ref();
        let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
        CommandLine { name, command: Command::new(program) }
    }

    /// Returns the cargo that runs this program, in the workspace's folder.
    pub(crate) fn cargo(root: &Path) -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        CommandLine::new(cargo).dir(root)
    }

    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Runs the command with this program's stdout and stderr; an unsuccessful exit is an error.
    pub(crate) fn run(mut self) -> Result<()> {
        let status = self.command.stdin(Stdio::null()).status().with_context(|| self.starting())?;
        if !status.success() {
            bail!("{} ended with {status}", self.words());
        }
        Ok(())
    }

    /// Runs the command and returns its output, also of an unsuccessful exit.
    pub(crate) fn output(mut self) -> Result<Output> {
        let output = self.command.stdin(Stdio::null()).output().with_context(|| self.starting())?;
        Ok(Output {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    fn starting(&self) -> String {
        format!("starting {}; is it installed?", self.name)
    }

    fn words(&self) -> String {
        let mut words = self.name.clone();
        for arg in self.command.get_args() {
            words.push(' ');
            words.push_str(&arg.to_string_lossy());
            if words.len() > WORDS_BYTES_MAX {
                return words + " …";
            }
        }
        words
    }
}

/// Compiler of the workspace's own crates in a build for tests. Libraries are rustc's in both cases, and shared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compiler {
    Rustc,
    /// Compiles as rustc does, and denies clippy's warnings: one build for the lints and for the tests.
    Clippy,
}

impl Compiler {
    /// Runs cargo with these arguments.
    pub(crate) fn cargo(self, root: &Path, words: &[&str]) -> Result<()> {
        let cargo = CommandLine::cargo(root).args(words);
        match self {
            Compiler::Rustc => cargo,
            // As `cargo clippy -- --deny warnings` sets them.
            Compiler::Clippy => cargo
                .env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
                .env("CLIPPY_ARGS", "--deny__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__"),
        }
        .run()
    }
}

/// Runs cargo with these arguments.
pub(crate) fn cargo(root: &Path, words: &[&str]) -> Result<()> {
    CommandLine::cargo(root).args(words).run()
}

/// Returns cargo's target folder: this program is in its `debug`.
pub(crate) fn target_dir() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.parent().and_then(Path::parent).context("this program lies in no target folder")?;
    Ok(target.to_path_buf())
}
