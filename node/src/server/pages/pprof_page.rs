//! Pages `/pprof/…` for pprof: a profile of the CPU time, and the command line. Off unless `enable_pprof` is set.
//!
//! ```text
//!   go tool pprof http://HOST:8050/pprof/profile?seconds=10
//! ```
//!
//! A profile names its functions itself, so `/pprof/symbol` has nothing to add.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nyala_common::env::{BoxFuture, Env};

use super::options::PageOptions;
use super::registry::{PageBody, PageError, PageErrorKind, PageRegistry, PageResult};
use crate::server::flags::{Flags, is_secret};

/// Path of these pages, without the last part.
pub const PATH: &str = "/pprof/<id>";
/// Length of a profile in seconds: Kudu's default, and the largest.
const SECONDS_DEFAULT: u64 = 30;
const SECONDS_MAX: u64 = 300;

const PROTOBUF: &str = "application/octet-stream";
const TEXT: &str = "text/plain; charset=utf-8";

/// Registers the pages.
pub fn register(pages: &PageRegistry, env: &Env, flags: &Arc<Flags>) {
    let (env, flags) = (env.clone(), flags.clone());
    let source = move |options: PageOptions| -> BoxFuture<'static, PageResult> {
        let (env, flags) = (env.clone(), flags.clone());
        Box::pin(async move { page(&env, &flags, &options).await })
    };
    pages.register(PATH, None, Arc::new(source));
}

async fn page(env: &Env, flags: &Flags, options: &PageOptions) -> PageResult {
    if !flags.bool("enable_pprof") {
        let message = "pprof: switched off; set --enable_pprof=true, at start or with set_flag";
        return Err(PageError::new(PageErrorKind::Forbidden, message));
    }
    match options.param("id").unwrap_or_default() {
        "profile" => profile(env, seconds(options)?).await,
        "cmdline" => command_line(env),
        other => Err(PageError::new(PageErrorKind::NotFound, absent(other))),
    }
}

/// Returns what to use instead of a page of Kudu's that is not here.
fn absent(page: &str) -> String {
    match page {
        "heap" | "growth" => {
            "pprof: the allocator is built without its profiler, which would slow every allocation; /memz and \
             /mem-trackers show what has the memory"
        }
        "contention" => "pprof: locks are not profiled; /stacks shows the tasks that wait, and how long",
        "symbol" => "pprof: /pprof/profile has the names of its functions; nothing has to be looked up",
        _ => return format!("pprof: no page {page:?}; there are /pprof/profile and /pprof/cmdline"),
    }
    .to_owned()
}

/// Returns the length of the profile that is asked for.
fn seconds(options: &PageOptions) -> Result<Duration, PageError> {
    let given = options.param("seconds");
    let seconds = given.map_or(Some(SECONDS_DEFAULT), |text| text.parse().ok());
    match seconds.filter(|seconds| (1..=SECONDS_MAX).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => {
            let given = given.unwrap_or_default();
            let message = format!("seconds: out of range ({given:?}, 1 to {SECONDS_MAX})");
            Err(PageError::new(PageErrorKind::BadRequest, message))
        }
    }
}

async fn profile(env: &Env, time: Duration) -> PageResult {
    let made = env.tasks.cpu_profile(time).await;
    made.map(|bytes| PageBody::File(PROTOBUF, bytes)).map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::Unsupported => PageErrorKind::NotFound,
            _ => PageErrorKind::NotReady,
        };
        PageError::new(kind, format!("pprof: {error}"))
    })
}

/// Returns the words of the command line, one a line, without secrets.
fn command_line(env: &Env) -> PageResult {
    let words = env.disks.read_file("/proc/self/cmdline").map_err(|error| {
        PageError::new(PageErrorKind::NotFound, format!("pprof: read the command line: {error}"))
    })?;
    Ok(PageBody::File(TEXT, redacted(&words).into_bytes()))
}

/// Returns the words, which end with 0, as lines; values of secret flags are replaced.
fn redacted(words: &[u8]) -> String {
    let mut lines = String::new();
    let mut hides_next = false;
    for word in words.split(|byte| *byte == 0).filter(|word| !word.is_empty()) {
        let word = String::from_utf8_lossy(word);
        let (name, value) = word.split_once('=').map_or((&*word, None), |(name, value)| (name, Some(value)));
        let hidden = std::mem::take(&mut hides_next);
        let is_secret = name.starts_with('-') && is_secret(&name.trim_start_matches('-').replace('-', "_"));
        match value {
            _ if hidden => lines.push_str("[redacted]"),
            Some(_) if is_secret => lines.push_str(&format!("{name}=[redacted]")),
            _ => {
                hides_next = is_secret;
                lines.push_str(&word);
            }
        }
        lines.push('\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use nyala_common::env::{TaskHandle, Tasks, mem_net};

    use super::*;

    /// Tasks of an environment without a profiler.
    struct PlainTasks(Arc<dyn Tasks>);

    impl Tasks for PlainTasks {
        fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn TaskHandle> {
            self.0.spawn(name, future)
        }

        fn run<'a>(&'a self, work: &'a mut (dyn FnMut() + Send)) -> BoxFuture<'a, ()> {
            self.0.run(work)
        }
    }

    async fn get(flags: &Flags, page: &str, query: &str) -> PageResult {
        let mut options = PageOptions::parse(query).expect("a legal query");
        options.params.insert(0, ("id".to_owned(), page.to_owned()));
        let env = mem_net::env();
        let env = Env { tasks: Arc::new(PlainTasks(env.tasks.clone())), ..env };
        super::page(&env, flags, &options).await
    }

    async fn refused(flags: &Flags, page: &str, query: &str) -> (PageErrorKind, String) {
        let error = get(flags, page, query).await.expect_err("no page");
        (error.kind, error.message)
    }

    #[tokio::test]
    async fn pages_are_forbidden_unless_they_are_switched_on() {
        let flags = Flags::new();
        for page in ["profile", "cmdline", "heap", "nothing"] {
            let (kind, message) = refused(&flags, page, "").await;
            assert!(
                kind == PageErrorKind::Forbidden && message.contains("enable_pprof"),
                "{page}: {message}"
            );
        }
        flags.change("enable_pprof", "true", false).expect("at run time");
        for (page, instead) in
            [("heap", "/memz"), ("contention", "/stacks"), ("symbol", "profile"), ("x", "profile")]
        {
            let (kind, message) = refused(&flags, page, "").await;
            assert!(kind == PageErrorKind::NotFound && message.contains(instead), "{page}: {message}");
        }
        let (kind, message) = refused(&flags, "profile", "seconds=1").await;
        assert!(kind == PageErrorKind::NotFound && message.contains("built without"), "{message}");
        for seconds in ["0", "301", "x", "-1", ""] {
            let (kind, message) = refused(&flags, "profile", &format!("seconds={seconds}")).await;
            assert!(kind == PageErrorKind::BadRequest && message.contains("1 to 300"), "{message}");
        }
    }

    #[test]
    fn secrets_of_the_command_line_are_hidden() {
        let words = b"nyala\0tablet-server\0--webserver-private-key-password-cmd=echo x\0--log_level\0info\0\
                      --webserver_private_key_password_cmd\0echo y\0-v\0";
        let shown = "nyala\ntablet-server\n--webserver-private-key-password-cmd=[redacted]\n--log_level\ninfo\n\
                     --webserver_private_key_password_cmd\n[redacted]\n-v\n";
        assert_eq!(redacted(words), shown);
    }
}
