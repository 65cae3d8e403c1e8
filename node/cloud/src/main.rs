//! The program `nyala-backup`: the commands of `nyala backup` and `nyala restore`, also for object stores.

use std::process::ExitCode;
use std::time::Duration;

use node::cli::ExitError;
use node::cli::backup::{BackupCommand, parse_program, program};
use nyala_backup_cloud::location::opener;
use nyala_common::env::BoxFuture;
use nyala_common::env::os::{OsEnv, OsOptions};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

/// Longest wait at the end for requests that were interrupted.
const LEFTOVERS: Duration = Duration::from_secs(5);
/// Threads that send requests, and threads that run the command.
const THREADS: usize = 2;

fn main() -> ExitCode {
    let matches = program("nyala-backup").version(env!("CARGO_PKG_VERSION")).get_matches();
    let runtimes = runtime().and_then(|requests| Ok((requests, runtime()?)));
    let (requests, commands) = match runtimes {
        Ok(runtimes) => runtimes,
        Err(error) => return fail(1, &format!("start the runtime: {error}")),
    };
    let command = parse_program(&matches, opener(requests.handle().clone()));
    let result = commands.block_on(run(command));
    commands.shutdown_timeout(LEFTOVERS);
    requests.shutdown_timeout(LEFTOVERS);
    result.map_or_else(|error| fail(error.code, &error.message), |()| ExitCode::SUCCESS)
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()
}

fn fail(code: u8, message: &str) -> ExitCode {
    eprintln!("nyala-backup: {message}");
    ExitCode::from(code)
}

async fn run(command: BackupCommand) -> Result<(), ExitError> {
    let failed = |message: String| ExitError { code: 1, message };
    let env = OsEnv::new(&OsOptions::default());
    let env = env.map_err(|error| failed(format!("read the properties of this machine: {error}")))?;
    let stop = on_signal().map_err(|error| failed(format!("listen for signals: {error}")))?;
    command.run_until(&env, stop).await
}

/// Returns a future that is ready at the first SIGINT or SIGTERM.
fn on_signal() -> std::io::Result<BoxFuture<'static, ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(Box::pin(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }))
}
