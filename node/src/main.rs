//! The program `nyala`: command line, log, runtime, signals, exit code.
//!
//! Besides `nyala_common::env::os`, this is the only place that may name tokio's runtime and signals, or end the
//! process.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use engine::error::Error;
use node::cli::{self, ExitError, Invocation, ServiceState};
use node::server::logging;
use nyala_common::env::BoxFuture;
use nyala_common::env::os::{OsEnv, OsOptions, decline_huge_pages};
use nyala_common::env::permissions::set_umask;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Configuration of jemalloc. Long-lived rows are allocated among many short-lived objects, on all threads. An arena
/// per processor and small thread caches let pages fill up; empty pages are returned after 1 second.
#[cfg(feature = "jemalloc")]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static ALLOCATION: &[u8; 73] =
    b"percpu_arena:percpu,tcache_max:4096,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

/// Longest wait at the end for tasks that ignore the shutdown.
const LEFTOVERS: Duration = Duration::from_secs(5);

/// Exit code after a second signal, as shells give it for Ctrl-C.
const INTERRUPTED: i32 = 130;

fn main() -> ExitCode {
    end_on_panic();
    decline_huge_pages();
    if let Some(failure) = start_sql_program() {
        eprintln!("nyala: {failure}");
        return ExitCode::FAILURE;
    }
    let matches = cli::command().get_matches_from(cli::normalise(std::env::args_os()));
    #[allow(clippy::disallowed_methods, reason = "flags are read before the environment exists")]
    let read_file = |path: &str| std::fs::read(path);
    match cli::parse(&matches, &read_file).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("nyala: {failure}");
            ExitCode::from(failure.code)
        }
    }
}

/// For `nyala sql …`, replaces this process by the program `nyala-sql` beside it, as git does with its subcommands.
/// Returns why that failed, and `None` for other commands.
fn start_sql_program() -> Option<String> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != "sql" {
        return None;
    }
    let program = match std::env::current_exe() {
        Ok(this) => this.with_file_name("nyala-sql"),
        Err(error) => return Some(format!("sql: find the directory of this program: {error}")),
    };
    let error = Command::new(&program).args(arguments).exec();
    let hint = "'cargo build --release -p nyala-sql' builds it; install it beside 'nyala'";
    Some(format!("sql: run {}: {error}\n{hint}", program.display()))
}

/// Aborts the process on a panic in any thread. A panic is a broken invariant; the runtime would drop the task and let
/// others wait for it forever. A stopped server is restarted, a hanging one is not. On the main thread a panic ends the
/// process anyway.
fn end_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        if std::thread::current().name() != Some("main") {
            std::process::abort();
        }
    }));
}

fn run(invocation: Invocation) -> Result<(), ExitError> {
    let settings = invocation.process_settings();
    if let Some(umask) = settings.umask {
        set_umask(umask);
    }
    logging::init(settings.log_format, &settings.log_level).map_err(ExitError::usage)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::io("start the runtime", &error))?;
    let result = runtime.block_on(async {
        let options = OsOptions { memory_limit_bytes: settings.memory_limit_bytes, ..OsOptions::default() };
        let env =
            OsEnv::new(&options).map_err(|error| Error::io("read the properties of this machine", &error))?;
        let mut stop = on_signal().map_err(|error| Error::io("listen for signals", &error))?;
        if invocation.stops_at_eof() {
            stop = first_of(stop, end_of_input());
        }
        feed_watchdog();
        invocation.run(env, stop, &notify_manager).await
    });
    runtime.shutdown_timeout(LEFTOVERS);
    result
}

/// Tells systemd the state of the service, if it started this process as one of type `notify`.
fn notify_manager(state: ServiceState) {
    let state = match state {
        ServiceState::Ready => NotifyState::Ready,
        ServiceState::Stopping => NotifyState::Stopping,
    };
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}

/// Notifies systemd's watchdog, if it waits for that, from a task: tasks that no longer run end the process.
#[allow(
    clippy::disallowed_methods,
    reason = "the watchdog watches the process's own tasks, not the node's time"
)]
fn feed_watchdog() {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    tokio::spawn(async move {
        let mut interval = tokio::time::interval(limit / 3);
        loop {
            interval.tick().await;
            if let Err(error) = sd_notify::notify(&[NotifyState::Watchdog]) {
                tracing::warn!("cannot notify the watchdog of the service manager: {error}");
            }
        }
    });
}

fn first_of(mut one: BoxFuture<'static, ()>, mut other: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        tokio::select! {
            biased;
            () = &mut one => {}
            () = &mut other => {}
        }
    })
}

/// Returns a future that is ready when standard input ends. A thread of its own waits for that; what it reads is
/// ignored.
#[allow(
    clippy::disallowed_methods,
    reason = "the end of the process does not wait for this thread, as the runtime's would"
)]
fn end_of_input() -> BoxFuture<'static, ()> {
    let (ended, end) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        // If the receiver has gone, the program is already ending.
        let _ = ended.send(());
    });
    Box::pin(async move {
        let _ = end.await;
    })
}

/// Returns a future that is ready at the first SIGINT or SIGTERM. The second signal ends the process at once.
#[allow(clippy::disallowed_methods, reason = "signals are the process's, not the node's")]
fn on_signal() -> std::io::Result<BoxFuture<'static, ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (first, stop) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut first = Some(first);
        loop {
            tokio::select! {
                biased;
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            match first.take() {
                // If the receiver has gone, the program is already ending.
                Some(first) => drop(first.send(())),
                None => std::process::exit(INTERRUPTED),
            }
        }
    });
    Ok(Box::pin(async move {
        if stop.await.is_err() {
            std::future::pending::<()>().await;
        }
    }))
}
