//! The program `nyala-sql`: command line, connection, exit code.

use std::io::{IsTerminal, Read};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use nyala_client::security::{EncryptionPolicy, SecretText, SecurityConfig};
use nyala_client::{Client, ClientConfig, closing};
use nyala_common::env::Env;
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_sql::{Format, Shell, interactive, to_stdout};

/// Exit code after Ctrl-C, as shells give it.
const INTERRUPTED: u8 = 130;

/// Runs SQL statements against a cluster: those of -c, of -f, or of standard input. In a terminal it is a shell
#[derive(Parser)]
#[command(name = "nyala-sql", version)]
struct Options {
    /// Addresses of the masters
    #[arg(long, visible_alias = "masters", value_name = "HOST:PORT,...", default_value = "127.0.0.1:7051")]
    master: String,
    /// Statements to run; may be given several times
    #[arg(short, long, value_name = "SQL")]
    command: Vec<String>,
    /// File of statements to run
    #[arg(short, long, value_name = "FILE", conflicts_with = "command")]
    file: Option<String>,
    /// Format of results
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
    /// Continues scans at another replica when a server is lost; slower
    #[arg(long)]
    fault_tolerant: bool,
    /// PEM file of the CAs that servers' certificates must chain to
    #[arg(long, value_name = "FILE")]
    ca_cert: Option<String>,
    /// File of a JSON Web Token that proves your name; needs --ca-cert
    #[arg(long, value_name = "FILE")]
    jwt_file: Option<String>,
    /// Refuses servers without TLS, and encrypts within this machine, too
    #[arg(long)]
    require_encryption: bool,
}

/// Size of the stack of each thread. The system provides the pages that are used.
const STACK_BYTES: usize = 64 << 20;

/// Longest wait for tasks at the end.
const LEFTOVERS: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let options = Options::parse();
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
    let code = match script {
        // The shell handles Ctrl-C, which cancels a statement there.
        None => exit_code(interact(options, &env).await),
        Some(script) => tokio::select! {
            result = run_script(options, &env, &script) => exit_code(result),
            _ = tokio::signal::ctrl_c() => ExitCode::from(INTERRUPTED),
        },
    };
    closes.wait(&env).await;
    code
}

fn exit_code(result: Result<(), String>) -> ExitCode {
    result.map_or_else(|message| fail(&message), |()| ExitCode::SUCCESS)
}

async fn run_script(options: &Options, env: &Env, script: &str) -> Result<(), String> {
    let client = connect(options, env).await?;
    let shell = Shell::new(client, options.format).fault_tolerant(options.fault_tolerant);
    let mut print = to_stdout;
    shell.run(script, &mut print).await.map_err(|error| error.to_string())
}

async fn interact(options: &Options, env: &Env) -> Result<(), String> {
    let client = connect(options, env).await?;
    let history = std::env::home_dir().map(|home| home.join(".nyala_sql_history"));
    let shell = Shell::new(client, options.format).fault_tolerant(options.fault_tolerant);
    interactive::interact(shell, history).await.map_err(|error| error.to_string())
}

/// Returns the statements to run; `None` for a shell in a terminal.
fn script(options: &Options) -> Result<Option<String>, String> {
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

async fn connect(options: &Options, env: &Env) -> Result<Client, String> {
    let user = env.disks.process_user().map_err(|error| format!("look up your user name: {error}"))?;
    let masters = options.master.split(',').map(str::trim);
    let config = ClientConfig { user, security: security(options)?, ..ClientConfig::new(masters) };
    let hint = |error| format!("{error}\nIs there a cluster at {}? 'nyala up' starts one.", options.master);
    Client::connect(env.clone(), config).await.map_err(hint)
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
