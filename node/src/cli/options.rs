//! Options that several commands share, the cluster they name and the table they open.

use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};
use engine::error::{Error, ErrorKind, Result};

use super::exit::ExitError;
use nyala_client::definitions;
use nyala_client::security::{EncryptionPolicy, SecretText, SecurityConfig};
use nyala_client::{Client, ClientConfig, ScanSpec, Table};
use nyala_common::env::Env;
use nyala_common::security::RpcCaller;

/// Longest wait for a cluster that may not run.
const PATIENCE: Duration = Duration::from_secs(5);

/// Errors of a cluster that is not there yet.
const ABSENT: [ErrorKind; 3] = [ErrorKind::Io, ErrorKind::NotReady, ErrorKind::TimedOut];

/// Returns a command that talks to a cluster.
pub(super) fn base(name: &'static str, about: &'static str) -> Command {
    let masters = Arg::new("masters")
        .long("masters")
        .value_name("HOST:PORT,...")
        .default_value("127.0.0.1:7051")
        .help("Addresses of the masters");
    with_security(Command::new(name).about(about).arg(masters))
}

/// Adds the options that a secured cluster needs.
pub(super) fn with_security(command: Command) -> Command {
    command
        .arg(option("ca-cert", "FILE", "PEM file of the CAs that servers' certificates must chain to"))
        .arg(option("jwt-file", "FILE", "File of a JSON Web Token that proves your name; needs --ca-cert"))
        .arg(option(
            "sasl-protocol-name",
            "NAME",
            "First component of the servers' Kerberos principals; kudu if left out",
        ))
        .arg(
            Arg::new("require-encryption")
                .long("require-encryption")
                .action(ArgAction::SetTrue)
                .help("Refuses servers without TLS, and encrypts within this machine, too"),
        )
}

/// Returns a command about one table.
pub(super) fn named(name: &'static str, about: &'static str) -> Command {
    base(name, about).arg(Arg::new("table").value_name("TABLE").required(true).help("Name of the table"))
}

pub(super) fn option(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

/// Returns an option that may be repeated.
pub(super) fn many(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    option(name, value, help).action(ArgAction::Append)
}

/// Connects to the cluster named on the command line.
pub(super) async fn connect(env: &Env, matches: &ArgMatches) -> Result<Client, ExitError> {
    let config = client_config(env, matches)?;
    Ok(connect_within(env, &config, PATIENCE).await?)
}

/// As [`connect`], for a command that waits longer: it says so after a while.
pub(super) async fn connect_patiently(
    env: &Env,
    matches: &ArgMatches,
    limit: Duration,
) -> Result<Client, ExitError> {
    let config = client_config(env, matches)?;
    let first = connect_within(env, &config, PATIENCE.min(limit)).await;
    match first {
        Err(error) if limit > PATIENCE && ABSENT.contains(&error.kind) => {
            let (masters, seconds) = (config.masters.join(","), limit.as_secs());
            eprintln!("nyala: no leading master at {masters} yet; waiting up to {seconds} s (--timeout)");
            Ok(connect_within(env, &config, limit - PATIENCE).await?)
        }
        first => Ok(first?),
    }
}

/// Returns the options of the client; the error of a file that is missing is one of the command line.
fn client_config(env: &Env, matches: &ArgMatches) -> Result<ClientConfig, ExitError> {
    let masters = text(matches, "masters").expect("it has a default");
    Ok(ClientConfig {
        user: user(env)?,
        security: security(env, matches)?,
        ..ClientConfig::new(definitions::names(masters))
    })
}

async fn connect_within(env: &Env, config: &ClientConfig, limit: Duration) -> Result<Client> {
    let config = ClientConfig { connect_timeout: limit, ..config.clone() };
    let masters = config.masters.join(",");
    let hint = |error: Error| {
        let message = format!("{}\nIs there a cluster at {masters}? 'nyala up' starts one.", error.message);
        Error { message, ..error }
    };
    Client::connect(env.clone(), config).await.map_err(hint)
}

fn user(env: &Env) -> Result<String> {
    env.disks.process_user().map_err(|error| Error::io("look up your user name", &error))
}

/// Returns the caller of the servers that a command with [`with_security`] calls without a [`Client`].
pub(super) fn caller(env: &Env, matches: &ArgMatches) -> Result<RpcCaller, ExitError> {
    Ok(security(env, matches)?.caller(env, &user(env)?)?)
}

/// Reads the file that an option names, if it is given.
pub(super) fn read_named(env: &Env, matches: &ArgMatches, name: &str) -> Result<Option<Vec<u8>>> {
    let Some(path) = text(matches, name) else { return Ok(None) };
    let bytes = env.disks.read_file(path);
    bytes.map(Some).map_err(|error| Error::io(format_args!("--{name}: read {path}"), &error))
}

/// Returns the security settings on the command line.
fn security(env: &Env, matches: &ArgMatches) -> Result<SecurityConfig, ExitError> {
    read_security(env, matches).map_err(ExitError::flags)
}

fn read_security(env: &Env, matches: &ArgMatches) -> Result<SecurityConfig> {
    let read = |name: &str| read_named(env, matches, name);
    let token = |bytes: Vec<u8>| {
        let text =
            String::from_utf8(bytes).map_err(|_| Error::invalid("--jwt-file: not a JSON Web Token"))?;
        Ok::<_, Error>(SecretText::new(text.trim().to_string()))
    };
    let encryption = match matches.get_flag("require-encryption") {
        true => EncryptionPolicy::Required,
        false => EncryptionPolicy::Optional,
    };
    Ok(SecurityConfig {
        encryption,
        ca_certificates: read("ca-cert")?,
        jwt: read("jwt-file")?.map(token).transpose()?,
        require_authentication: false,
        sasl_protocol_name: text(matches, "sasl-protocol-name").map(str::to_string),
    })
}

pub(super) fn text<'a>(matches: &'a ArgMatches, name: &str) -> Option<&'a str> {
    matches.get_one::<String>(name).map(String::as_str)
}

pub(super) fn texts<'a>(matches: &'a ArgMatches, name: &str) -> impl Iterator<Item = &'a str> {
    matches.get_many::<String>(name).into_iter().flatten().map(String::as_str)
}

/// Opens the table named on the command line.
pub(super) async fn open(client: &Client, matches: &ArgMatches) -> Result<Table> {
    client.open_table(text(matches, "table").expect("it is required")).await
}

/// Returns the scan of `--columns`, `--where` and `--limit`. One whose conditions no row can satisfy has the limit 0.
pub(super) fn spec(table: &Table, matches: &ArgMatches) -> Result<ScanSpec> {
    let columns = text(matches, "columns").map(definitions::names);
    for name in columns.iter().flatten() {
        definitions::find(table.schema(), name, table.name())?;
    }
    let mut predicates = Vec::new();
    let mut limit = matches.get_one::<u64>("limit").copied();
    for condition in texts(matches, "where") {
        match definitions::condition(condition, table)? {
            Some(predicate) => predicates.push(predicate),
            None => limit = Some(0),
        }
    }
    Ok(ScanSpec { columns, predicates, limit, ..ScanSpec::default() })
}
