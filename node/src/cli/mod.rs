//! The program `nyala`: its commands, and what they say when something is wrong.
//!
//! ```text
//! nyala up              a whole cluster in this process, for trying things out
//! nyala master          one master
//! nyala tablet-server   one tablet server
//! nyala cluster         servers of a running cluster: list them, spread replicas over them
//! nyala table           tables of a running cluster: list, create, import, export, scan, ...
//! nyala demo            load and query TPC-H data in a cluster of its own
//! ```
//!
//! Exit codes: 0 done, 1 failed, 2 the command line or a setting is wrong, 3 an address is taken, 4 a directory
//! is not this server's (another's, a newer format, damaged, in use).

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::sync::Arc;

use clap::{ArgMatches, Command};
use engine::error::{Error, ErrorKind, Result};

use crate::env::{BoxFuture, Env};
use crate::server::flags::Flags;
use crate::server::logging::LogFormat;

mod cluster;
mod demo;
mod export;
mod files;
pub mod import;
pub mod lineitem;
mod out;
pub mod queries;
mod serve;
mod settings;
mod table;
pub mod words;

/// What the command line asks for.
pub enum Invocation {
    Serve(serve::Serve),
    Table(table::TableCommand),
    Cluster(cluster::ClusterCommand),
    Demo(demo::Demo),
}

/// Everything that can be asked for.
pub fn command() -> Command {
    Command::new("nyala")
        .about("A columnar store for fast analytics on changing data that speaks Apache Kudu's protocol")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(serve::commands())
        .subcommands([table::command(), cluster::command(), demo::command()])
}

/// Arguments as `clap` likes them: Kudu's spellings of settings (`--a_b`, `-a_b=c`, `--noa_b`) become one.
pub fn normalise(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    args.map(|arg| arg.to_str().and_then(settings::normalise).map(OsString::from).unwrap_or(arg)).collect()
}

/// Reads a file that the command line names.
pub type ReadFile<'a> = &'a dyn Fn(&str) -> io::Result<Vec<u8>>;

/// What was asked for, its settings checked.
pub fn parse(matches: &ArgMatches, read_file: ReadFile<'_>) -> Result<Invocation, Failure> {
    let (name, matches) = matches.subcommand().expect("clap asks for a command");
    match name {
        "table" => Ok(Invocation::Table(table::parse(matches))),
        "cluster" => Ok(Invocation::Cluster(cluster::parse(matches))),
        "demo" => Ok(Invocation::Demo(demo::parse(matches))),
        _ => serve::parse(name, matches, read_file).map(Invocation::Serve).map_err(Failure::usage),
    }
}

/// What the process needs before anything runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSettings {
    pub log_format: LogFormat,
    pub log_level: String,
    /// `None`: a share of what the machine has.
    pub memory_limit_bytes: Option<u64>,
}

impl Invocation {
    pub fn process_settings(&self) -> ProcessSettings {
        match self {
            Invocation::Serve(serve) => process_settings(serve.flags()),
            Invocation::Table(_) | Invocation::Cluster(_) | Invocation::Demo(_) => ProcessSettings {
                log_format: LogFormat::Text,
                log_level: "warn".to_string(),
                memory_limit_bytes: None,
            },
        }
    }

    /// Runs until it is done, or in order to an end once `stop` is ready.
    pub async fn run(self, env: Env, stop: BoxFuture<'static, ()>) -> Result<(), Failure> {
        match self {
            Invocation::Serve(serve) => serve.run(env, stop).await,
            Invocation::Table(table) => unless_stopped(stop, table.run(&env)).await,
            Invocation::Cluster(cluster) => unless_stopped(stop, cluster.run(&env)).await,
            Invocation::Demo(demo) => demo.run(&env, stop).await,
        }
    }
}

/// The work's result, unless the program is told to stop before.
async fn unless_stopped(
    stop: BoxFuture<'static, ()>,
    work: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    tokio::select! {
        biased;
        done = work => done,
        () = stop => Err(Failure { code: FAILED, message: "interrupted".to_string() }),
    }
}

fn process_settings(flags: &Arc<Flags>) -> ProcessSettings {
    let format = if flags.text("log_format") == "json" { LogFormat::Json } else { LogFormat::Text };
    ProcessSettings {
        log_format: format,
        log_level: flags.text("log_level"),
        memory_limit_bytes: Some(flags.number("memory_limit_hard_bytes")).filter(|bytes| *bytes > 0),
    }
}

/// Why the program ends, and with which exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub code: u8,
    pub message: String,
}

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const ADDRESS_TAKEN: u8 = 3;
const DIRECTORY_REFUSED: u8 = 4;

impl Failure {
    /// The command line or a setting is wrong.
    pub fn usage(error: Error) -> Failure {
        Failure { code: USAGE, message: error.message }
    }

    /// A server did not start. Its settings were checked before, so what is not valid is in its directories.
    pub fn start(error: Error) -> Failure {
        let taken = Some(libc::EADDRINUSE);
        let code = match error.kind {
            _ if error.errno == taken => ADDRESS_TAKEN,
            ErrorKind::Invalid | ErrorKind::Corrupt | ErrorKind::Unsupported => DIRECTORY_REFUSED,
            _ => FAILED,
        };
        Failure { code, message: error.message }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { code: FAILED, message: error.message }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
