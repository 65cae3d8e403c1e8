//! `nyala debug …`: repair and inspection, mostly of a stopped server's directories.
//!
//! Commands use the server's own readers and take the lock of the directories, so a running server refuses them. They
//! change nothing unless an option says so.

mod arguments;
mod bundle;
mod cmeta;
mod fs;
mod master;
mod replica;
mod stopped;
mod wal;

use clap::{ArgMatches, Command};
use engine::error::{Error, Result};

use super::exit::ExitError;
use super::flag_options::{self, ReadFile};
use crate::config;
use crate::server::flags::Flags;
use nyala_common::env::Env;

/// A parsed command.
pub struct DebugCommand {
    matches: ArgMatches,
    /// Directories and other flags on the command line or in its file.
    flags: Flags,
    umask: Option<u32>,
}

pub(super) fn command() -> Command {
    Command::new("debug")
        .about("Inspect and repair servers, mostly stopped ones")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([
            fs::command(),
            wal::command(),
            cmeta::command(),
            replica::command(),
            master::command(),
            bundle::command(),
        ])
}

/// Returns the command in `matches` of [`command`].
pub(super) fn parse(matches: &ArgMatches, read_file: ReadFile<'_>) -> Result<DebugCommand> {
    let mut innermost = matches;
    while let Some((_, inner)) = innermost.subcommand() {
        innermost = inner;
    }
    let flags = flag_options::read(innermost, None, read_file)?;
    // A bundle is the user's file; the other commands write in directories of servers.
    let umask = match matches.subcommand_name() {
        Some("bundle") => None,
        _ => Some(config::umask(&flags)?),
    };
    Ok(DebugCommand { matches: matches.clone(), flags, umask })
}

impl DebugCommand {
    /// Returns the permissions that files of servers do not get, if the command writes such.
    pub(super) fn umask(&self) -> Option<u32> {
        self.umask
    }

    pub async fn run(self, env: &Env) -> Result<(), ExitError> {
        let (group, matches) = self.matches.subcommand().expect("clap asks for a command");
        if group != "bundle" {
            check_owners(env, &self.flags).map_err(ExitError::usage)?;
        }
        match group {
            "fs" => fs::run(env, matches, &self.flags).await,
            "wal" => wal::run(env, matches, &self.flags).await,
            "cmeta" => cmeta::run(env, matches, &self.flags).await,
            "bundle" => bundle::run(env, matches, &self.flags).await,
            "replica" => replica::run(env, matches, &self.flags).await,
            _ => master::run(env, matches, &self.flags).await,
        }
    }
}

/// Returns an error if root would write in directories of another user, whose server could not open the files.
fn check_owners(env: &Env, flags: &Flags) -> Result<()> {
    let Ok((wal, data)) = config::directories(flags) else { return Ok(()) };
    for dir in [wal].iter().chain(&data) {
        let owner = env.disks.other_owner(dir).map_err(|error| Error::io(dir, &error))?;
        if let Some(owner) = owner {
            return Err(Error::invalid(format!(
                "{dir} belongs to user {owner}, whose server could not open what root writes there; run the \
                 command as that user, such as: runuser -u {owner} -- nyala debug …"
            )));
        }
    }
    Ok(())
}
