//! The program `nyala-sql`: command line, connection, exit code.

mod options;

use std::io::{IsTerminal, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use nyala_client::security::{EncryptionPolicy, SecretText, SecurityConfig};
use nyala_client::{Client, ClientConfig, closing};
use nyala_common::env::Env;
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_sql::embedded::EmbeddedCluster;
use nyala_sql::serve::{
    ClusterAccess, Encryption, Passwords, ServeConfig, SqlServer, requires_authentication,
};
use nyala_sql::{Format, STACK_BYTES, Shell, interactive, to_stdout};
use options::{Mode, Options, ServeOptions};
use tokio::signal::unix::{SignalKind, signal};

/// Exit code after Ctrl-C, as shells give it.
const INTERRUPTED: u8 = 130;

/// Longest wait for tasks at the end.
const LEFTOVERS: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(Mode::Document(document)) = &options.mode {
        return exit_code(document.write());
    }
    let script = match script(&options) {
        Ok(script) => script,
        Err(message) => return fail(&message),
    };
    // Expressions are planned recursively, and generated ones are deep.
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = match builder.enable_all().thread_stack_size(STACK_BYTES).build() {
            Ok(runtime) => runtime,
            Err(error) => return fail(&format!("start the runtime: {error}")),
        };
        let code = runtime.block_on(run(&options, script));
        runtime.shutdown_timeout(LEFTOVERS);
        code
    });
    match thread.map(|thread| thread.join()) {
        Ok(Ok(code)) => code,
        Ok(Err(_)) => ExitCode::FAILURE,
        Err(error) => fail(&format!("start a thread: {error}")),
    }
}

fn fail(message: &str) -> ExitCode {
    eprintln!("nyala-sql: {message}");
    ExitCode::FAILURE
}

async fn run(options: &Options, script: Option<String>) -> ExitCode {
    let env = match OsEnv::new(&OsOptions::default()) {
        Ok(env) => env,
        Err(error) => return fail(&format!("read this machine: {error}")),
    };
    let (env, closes) = closing::watch(&env);
    let embedded = match &options.dir {
        None => None,
        Some(dir) => match EmbeddedCluster::start(&env, options.nyala.as_deref(), dir).await {
            Ok(embedded) => Some(embedded),
            Err(error) => return fail(&error.to_string()),
        },
    };
    let masters = embedded.as_ref().map_or(options.master.as_str(), EmbeddedCluster::masters);
    let code = run_mode(options, &env, masters, script).await;
    closes.wait(&env).await;
    match embedded {
        None => code,
        Some(embedded) => embedded.stop().await.map_or_else(|error| fail(&error.to_string()), |()| code),
    }
}

async fn run_mode(options: &Options, env: &Env, masters: &str, script: Option<String>) -> ExitCode {
    match (&options.mode, script) {
        (Some(Mode::Serve(serve_options)), _) => exit_code(serve(options, serve_options, env, masters).await),
        // The shell handles Ctrl-C, which cancels a statement there.
        (_, None) => exit_code(interact(options, env, masters).await),
        (_, Some(script)) => tokio::select! {
            result = run_script(options, env, masters, &script) => exit_code(result),
            _ = tokio::signal::ctrl_c() => ExitCode::from(INTERRUPTED),
        },
    }
}

fn exit_code(result: Result<(), String>) -> ExitCode {
    result.map_or_else(|message| fail(&message), |()| ExitCode::SUCCESS)
}

fn shell(client: Client, options: &Options) -> Shell {
    Shell::new(client, options.format)
        .fault_tolerant(options.fault_tolerant)
        .server_aggregation(!options.no_server_aggregation)
}

async fn run_script(options: &Options, env: &Env, masters: &str, script: &str) -> Result<(), String> {
    let client = connect(options, env, masters).await?;
    let shell = shell(client, options);
    let mut print = to_stdout;
    shell.run(script, &mut print).await.map_err(|error| error.to_string())
}

async fn interact(options: &Options, env: &Env, masters: &str) -> Result<(), String> {
    let client = connect(options, env, masters).await?;
    let history = std::env::home_dir().map(|home| home.join(".nyala_sql_history"));
    let shell = shell(client, options);
    interactive::interact(shell, history).await.map_err(|error| error.to_string())
}

/// Serves until a signal.
async fn serve(options: &Options, serve: &ServeOptions, env: &Env, masters: &str) -> Result<(), String> {
    let mut terminate =
        signal(SignalKind::terminate()).map_err(|error| format!("listen for signals: {error}"))?;
    let config = serve_config(options, serve, env)?;
    let cluster = cluster_access(options, serve, env, masters).await?;
    let server = SqlServer::start(cluster, config).await.map_err(|error| error.to_string())?;
    let (ip, port) = (server.address().ip(), server.address().port());
    println!("serving the Postgres protocol at {ip}:{port}, for example\n  psql -h {ip} -p {port}");
    if let Some(address) = server.flight_address() {
        let scheme = if serve.tls_cert_file.is_some() { "grpc+tls" } else { "grpc" };
        println!("serving Arrow Flight SQL at {scheme}://{address}");
    }
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    server.stop().await;
    Ok(())
}

fn serve_config(options: &Options, serve: &ServeOptions, env: &Env) -> Result<ServeConfig, String> {
    let passwords = serve.password_file.as_ref().map(|path| passwords(env, path)).transpose()?;
    let encryption = match (&serve.tls_cert_file, &serve.tls_key_file) {
        (Some(certificate), Some(key)) => {
            check_private("--tls-key-file", key)?;
            let failed = |error| format!("--tls-cert-file: {error}");
            Some(Encryption::from_files(env, certificate, key).map_err(failed)?)
        }
        _ => None,
    };
    Ok(ServeConfig {
        listen: serve.listen,
        flight_listen: serve.flight_listen,
        connections_max: serve.connections_max,
        message_bytes_max: serve.message_bytes_max,
        memory_bytes_max: serve.memory_bytes_max,
        statement_timeout: Some(Duration::from_secs(serve.statement_timeout.into()))
            .filter(|limit| !limit.is_zero()),
        passwords: passwords.map(Arc::new),
        encryption,
        allow_plaintext: serve.allow_plaintext,
        fault_tolerant: options.fault_tolerant,
        server_aggregation: !options.no_server_aggregation,
    })
}

/// Decides whose rights clients have. In a cluster that authenticates users no client gets the rights of this program's
/// user unless the operator says so.
async fn cluster_access(
    options: &Options,
    serve: &ServeOptions,
    env: &Env,
    masters: &str,
) -> Result<ClusterAccess, String> {
    let config = client_config(options, env, masters)?;
    if serve.jwt_clients {
        return Ok(ClusterAccess::EachUser { env: env.clone(), config: Box::new(config) });
    }
    let client = connect(options, env, masters).await?;
    if !serve.one_user && requires_authentication(env, &config).await {
        return Err(format!(
            "the cluster at {masters} authenticates users, and all clients would act as {}; give --jwt-clients for \
             clients with JSON Web Tokens of their own, or --one-user if that is wanted",
            config.user
        ));
    }
    Ok(ClusterAccess::OneUser(client))
}

/// Refuses a file that other users can read.
fn check_private(option: &str, path: &str) -> Result<(), String> {
    let failed = |error: String| format!("{option} {path}: {error}");
    let metadata = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    let mode = metadata.permissions().mode() & 0o777;
    match mode & 0o077 {
        0 => Ok(()),
        _ => Err(failed(format!("other users can read it (mode {mode:o}); run chmod 600 {path}"))),
    }
}

/// Reads a file of passwords, which other users must not be able to read.
fn passwords(env: &Env, path: &str) -> Result<Passwords, String> {
    let failed = |error: String| format!("--password-file {path}: {error}");
    check_private("--password-file", path)?;
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    Passwords::parse(env, &text).map_err(failed)
}

/// Returns the statements to run; `None` for a shell in a terminal, or a server.
fn script(options: &Options) -> Result<Option<String>, String> {
    if options.mode.is_some() {
        let has_script = !options.command.is_empty() || options.file.is_some();
        return match has_script {
            true => Err("serve: clients send the statements; leave -c and -f out".to_string()),
            false => Ok(None),
        };
    }
    if options.format == Format::Parquet && std::io::stdout().is_terminal() {
        return Err("--format parquet: standard output is a terminal; redirect it to a file".to_string());
    }
    if !options.command.is_empty() {
        return Ok(Some(options.command.join(";\n")));
    }
    if let Some(path) = &options.file {
        let read = std::fs::read_to_string(path);
        return read.map(Some).map_err(|error| format!("--file: read {path}: {error}"));
    }
    if std::io::stdin().is_terminal() {
        return Ok(None);
    }
    let mut script = String::new();
    let read = std::io::stdin().read_to_string(&mut script);
    read.map(|_| Some(script)).map_err(|error| format!("read standard input: {error}"))
}

fn client_config(options: &Options, env: &Env, masters: &str) -> Result<ClientConfig, String> {
    let user = env.disks.process_user().map_err(|error| format!("look up your user name: {error}"))?;
    let addresses = masters.split(',').map(str::trim);
    Ok(ClientConfig { user, security: security(options)?, ..ClientConfig::new(addresses) })
}

async fn connect(options: &Options, env: &Env, masters: &str) -> Result<Client, String> {
    let hint = |error| format!("{error}\nIs there a cluster at {masters}? 'nyala up' starts one.");
    Client::connect(env.clone(), client_config(options, env, masters)?).await.map_err(hint)
}

fn security(options: &Options) -> Result<SecurityConfig, String> {
    let read = |option: &str, path: &Option<String>| {
        let Some(path) = path else { return Ok(None) };
        std::fs::read(path).map(Some).map_err(|error| format!("{option}: read {path}: {error}"))
    };
    let token = |bytes: Vec<u8>| {
        let text = String::from_utf8(bytes).map_err(|_| "--jwt-file: not a JSON Web Token".to_string())?;
        Ok::<_, String>(SecretText::new(text.trim().to_string()))
    };
    Ok(SecurityConfig {
        encryption: match options.require_encryption {
            true => EncryptionPolicy::Required,
            false => EncryptionPolicy::Optional,
        },
        ca_certificates: read("--ca-cert", &options.ca_cert)?,
        jwt: read("--jwt-file", &options.jwt_file)?.map(token).transpose()?,
        require_authentication: false,
        sasl_protocol_name: None,
    })
}
