//! The command line of `nyala`: its commands, errors and exit codes.
//!
//! ```text
//! nyala up              a whole cluster in this process, for trying things out
//! nyala master          one master
//! nyala tablet-server   one tablet server
//! nyala cluster         a running cluster: check, drain and decommission servers, rebalance replicas
//! nyala table           tables of a running cluster: list, create, alter, import, export, scan, ...
//! nyala backup          tables to a directory of Parquet files; nyala restore: back
//! nyala debug           inspect and repair stopped servers, rebuild a lost catalog
//! nyala demo            start a cluster, load TPC-H data, run queries
//! nyala sql             SQL statements, by the program nyala-sql; main.rs starts it
//! nyala completions     the completion script of a shell; nyala man: manual pages; nyala reference: Markdown
//! ```
//!
//! Exit codes: 0 success, 1 failure, 2 wrong command line or flag, 3 an address is in use, 4 a directory is not usable
//! (another server's, of a newer format, corrupted, in use, missing), 5 a device failed, 6 the clock is not
//! synchronised, 7 an import ended, but rows were rejected, 8 the cluster's format level is not supported, 130 a signal
//! interrupted the command. A command whose output cannot be written fails, even if its work is done.

use std::ffi::OsString;
use std::sync::Arc;

use clap::{ArgMatches, Command};

use crate::server::flags::Flags;
use crate::server::logging::LogFormat;
use nyala_common::env::{BoxFuture, Env};

pub mod backup;
mod cluster;
mod command_trace;
mod debug;
mod demo;
mod documents;
mod exit;
mod export;
mod flag_options;
pub mod import;
pub mod lineitem;
mod options;
mod output;
pub mod queries;
mod reference;
mod serve;
mod service_state;
mod stream;
mod table;
mod table_changes;

use command_trace::CommandTrace;
pub use exit::ExitError;
use exit::until_interrupted;
pub use flag_options::ReadFile;
use output::printed;
pub use service_state::{ReportState, ServiceState};

/// A parsed command line.
pub enum Invocation {
    Serve(serve::Serve),
    Table(table::TableCommand),
    Backup(backup::BackupCommand),
    Cluster(cluster::ClusterCommand),
    Debug(debug::DebugCommand),
    Demo(demo::Demo),
    Document(documents::Document),
}

/// Returns the definition of all commands.
pub fn command() -> Command {
    Command::new("nyala")
        .about("A columnar store for fast analytics on changing data that speaks Apache Kudu's protocol")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help("'nyala sql' runs SQL statements: it starts the program nyala-sql beside this one.")
        .subcommands(serve::commands())
        .subcommands([table::command(), cluster::command()].map(command_trace::option))
        .subcommands([debug::command(), demo::command()])
        .subcommands(backup::commands().map(command_trace::option))
        .subcommands(documents::commands())
}

/// Converts Kudu's spellings of flags (`--a_b`, `-a_b=c`, `--noa_b`) to one that `clap` accepts.
pub fn normalise(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    args.map(|arg| arg.to_str().and_then(flag_options::normalise).map(OsString::from).unwrap_or(arg))
        .collect()
}

/// Parses the command line and checks its flags.
pub fn parse(matches: &ArgMatches, read_file: ReadFile<'_>) -> Result<Invocation, ExitError> {
    let (name, matches) = matches.subcommand().expect("clap asks for a command");
    match name {
        "table" => Ok(Invocation::Table(table::parse(matches))),
        "backup" | "restore" => Ok(Invocation::Backup(backup::parse(name, matches))),
        "cluster" => Ok(Invocation::Cluster(cluster::parse(matches))),
        "debug" => debug::parse(matches, read_file).map(Invocation::Debug).map_err(ExitError::usage),
        "demo" => Ok(Invocation::Demo(demo::parse(matches))),
        "completions" | "man" | "reference" => Ok(Invocation::Document(documents::parse(name, matches))),
        _ => serve::parse(name, matches, read_file).map(Invocation::Serve).map_err(ExitError::usage),
    }
}

/// Settings of the process, which take effect before any command runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessSettings {
    pub log_format: LogFormat,
    pub log_level: String,
    /// Memory budget; `None`: a share of the machine's memory.
    pub memory_limit_bytes: Option<u64>,
    /// Permissions that files of servers do not get; `None` for a command whose files are its user's.
    pub umask: Option<u32>,
}

impl Invocation {
    pub fn process_settings(&self) -> ProcessSettings {
        match self {
            Invocation::Serve(serve) => server_settings(serve.flags(), serve.umask()),
            Invocation::Demo(_) => command_settings(Some(demo::UMASK)),
            Invocation::Debug(debug) => command_settings(debug.umask()),
            Invocation::Table(_)
            | Invocation::Backup(_)
            | Invocation::Cluster(_)
            | Invocation::Document(_) => command_settings(None),
        }
    }

    /// Returns true if the command also stops when standard input ends.
    pub fn stops_at_eof(&self) -> bool {
        matches!(self, Invocation::Serve(serve) if serve.stops_at_eof())
    }

    /// Runs the command to its end; once `stop` is ready it shuts down in order. A server reports its states.
    ///
    /// The future is boxed here, so that its code is compiled with this crate and not again with each program.
    pub fn run<'a>(
        self,
        env: Env,
        stop: BoxFuture<'static, ()>,
        report: &'a ReportState,
    ) -> BoxFuture<'a, Result<(), ExitError>> {
        Box::pin(async move { printed(self.run_to_end(env, stop, report).await) })
    }

    async fn run_to_end(
        self,
        mut env: Env,
        stop: BoxFuture<'static, ()>,
        report: &ReportState,
    ) -> Result<(), ExitError> {
        match self {
            Invocation::Serve(serve) => serve.run(env, stop, report).await,
            Invocation::Table(table) => {
                let trace = CommandTrace::begin(&mut env, table.words()).await?;
                let (watched, closes) = nyala_client::closing::watch(&env);
                let done = until_interrupted(stop, table.run(&watched)).await;
                closes.wait(&env).await;
                trace.end(done).await
            }
            Invocation::Backup(backup) => {
                let trace = CommandTrace::begin(&mut env, backup.words()).await?;
                trace.end(backup.run_until(&env, stop).await).await
            }
            Invocation::Cluster(cluster) => {
                let trace = CommandTrace::begin(&mut env, cluster.words()).await?;
                trace.end(until_interrupted(stop, cluster.run(&env)).await).await
            }
            Invocation::Debug(debug) => until_interrupted(stop, debug.run(&env)).await,
            Invocation::Demo(demo) => demo.run(&env, stop).await,
            Invocation::Document(document) => document.write(command()),
        }
    }
}

fn command_settings(umask: Option<u32>) -> ProcessSettings {
    ProcessSettings {
        log_format: LogFormat::Text,
        log_level: "warn".to_string(),
        memory_limit_bytes: None,
        umask,
    }
}

fn server_settings(flags: &Arc<Flags>, umask: u32) -> ProcessSettings {
    let format = if flags.text("log_format") == "json" { LogFormat::Json } else { LogFormat::Text };
    ProcessSettings {
        log_format: format,
        log_level: flags.text("log_level"),
        memory_limit_bytes: Some(flags.number("memory_limit_hard_bytes")).filter(|bytes| *bytes > 0),
        umask: Some(umask),
    }
}
