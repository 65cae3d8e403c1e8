//! The span log: spans of sampled and slow requests as lines of OTLP JSON, in files that are rotated.
//!
//! ```text
//!   calls ──▶ SpanRecorder (bounded) ──▶ task: a line for many spans ──▶ DIR/<server>.<number>.jsonl
//! ```
//!
//! A collector of OpenTelemetry reads the files (`otlpjsonfile`). A call never waits for them, and spans that cannot be
//! written are lost: they are no record of what happened, as the audit log is.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use engine::error::{Error, Result};
use engine::ids::Uuid;
use tokio::sync::Notify;

use super::flags::Flags;
use super::line_files::{LineFiles, LineFilesConfig};
use crate::dirs::ServerKind;
use nyala_common::env::{Env, TaskHandle};
use nyala_common::spans::otlp::{self, SpanResource};
use nyala_common::spans::{CallSpan, SpanRecorder};

/// Spans in one line.
const LINE_SPANS_MAX: usize = 512;
/// Time for which spans wait to share a line.
const LINE_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for the last spans when the server stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The running span log of one server, or of one command.
pub(crate) struct SpanLog {
    env: Env,
    closing: Arc<Notify>,
    task: Box<dyn TaskHandle>,
}

/// Files of a command's spans.
const COMMAND_FILES: LineFilesConfig = LineFilesConfig { bytes_max: 64 << 20, files_max: 4, sync: false };

impl SpanLog {
    /// Switches the spans of `env` on and starts their task, if the flags ask for it.
    pub(crate) async fn open(
        env: &mut Env,
        kind: ServerKind,
        server: Uuid,
        flags: &Flags,
    ) -> Result<Option<SpanLog>> {
        let dir = flags.text("trace_dir");
        if dir.is_empty() {
            return Ok(None);
        }
        let config = LineFilesConfig {
            bytes_max: flags.number("trace_file_size_mb") << 20,
            files_max: usize::try_from(flags.number("trace_files_max")).unwrap_or(usize::MAX),
            sync: false,
        };
        let resource = SpanResource {
            service: format!("nyala-{}", kind.name().replace(' ', "-")),
            instance: server.to_string(),
            version: env!("CARGO_PKG_VERSION"),
        };
        let ratio = flags.number("trace_sampled_per_million") as f64 / 1e6;
        let log = SpanLog::start(env, &dir, "trace_dir", config, resource, |env| {
            env.spans = SpanRecorder::new(env.rng.next_u64(), ratio);
        });
        log.await.map(Some)
    }

    /// Records one command with all its calls in `dir`. Returns the command's own span.
    pub(crate) async fn of_command(env: &mut Env, dir: &str) -> Result<(SpanLog, CallSpan)> {
        let instance = env.random_uuid().to_string();
        let resource =
            SpanResource { service: "nyala".to_owned(), instance, version: env!("CARGO_PKG_VERSION") };
        let mut command = None;
        let log = SpanLog::start(env, dir, "--trace-dir", COMMAND_FILES, resource, |env| {
            let (recorder, span) = SpanRecorder::of_program(env.rng.next_u64());
            (env.spans, command) = (recorder, Some(span));
        });
        let log = log.await?;
        Ok((log, command.expect("it is switched on")))
    }

    /// Opens the files, switches the spans on, and starts the task.
    async fn start(
        env: &mut Env,
        dir: &str,
        setting: &str,
        config: LineFilesConfig,
        resource: SpanResource,
        switch_on: impl FnOnce(&mut Env),
    ) -> Result<SpanLog> {
        let open = || LineFiles::open(env, dir, resource.instance.clone(), config);
        let opened = env.run(open).await;
        let files =
            opened.map_err(|error| Error::io(format_args!("open the span log ({setting})"), &error))?;
        switch_on(env);
        let closing = Arc::<Notify>::default();
        let writer = SpanWriter { env: env.clone(), files, resource, is_failing: false, lost: 0 };
        let task = env.spawn("span log", writer.run(closing.clone()));
        Ok(SpanLog { env: env.clone(), closing, task })
    }

    /// Writes the last spans and ends the task.
    pub(crate) async fn close(&self) {
        self.closing.notify_one();
        let ended = async {
            while !self.task.is_finished() {
                self.env.sleep(Duration::from_millis(1)).await;
            }
        };
        if self.env.timeout(CLOSE_TIMEOUT, ended).await.is_none() {
            tracing::warn!("the last spans could not be written");
            self.task.abort();
        }
    }
}

/// Task that writes the spans.
struct SpanWriter {
    env: Env,
    files: LineFiles,
    resource: SpanResource,
    /// True after a write that failed, so that only the first of several is logged.
    is_failing: bool,
    /// Lost spans that are logged.
    lost: u64,
}

impl SpanWriter {
    async fn run(mut self, closing: Arc<Notify>) {
        let env = self.env.clone();
        let due = || async {
            env.spans.wait().await;
            env.sleep(LINE_INTERVAL).await;
        };
        loop {
            let is_last = tokio::select! {
                biased;
                () = closing.notified() => true,
                () = due() => false,
            };
            self.write_all().await;
            if is_last {
                return;
            }
        }
    }

    /// Writes all spans that wait.
    async fn write_all(&mut self) {
        loop {
            let spans = self.env.spans.take(LINE_SPANS_MAX);
            if spans.is_empty() {
                break;
            }
            let line = otlp::line(&self.resource, &spans);
            let (env, files) = (self.env.clone(), &mut self.files);
            let written = env.run(|| files.append(line.as_bytes())).await;
            self.report(written, spans.len());
        }
        let lost = self.env.spans.lost();
        if lost > self.lost {
            tracing::warn!(spans = lost - self.lost, "more spans than the span log can take; they are lost");
            self.lost = lost;
        }
    }

    fn report(&mut self, written: io::Result<()>, spans: usize) {
        match written {
            Ok(()) if self.is_failing => tracing::info!("the span log can be written again"),
            Ok(()) => {}
            Err(_) if self.is_failing => return,
            Err(error) => {
                tracing::warn!(%error, spans, "the span log cannot be written; spans are lost");
                self.is_failing = true;
                return;
            }
        }
        self.is_failing = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use engine::disk::mem::{DiskOpKind, MemDisk};
    use engine::disk::{Disk, read_file};
    use nyala_common::env::testing::MemDisks;
    use nyala_common::env::{Rng, mem_net};
    use nyala_common::spans::{Span, SpanKind};

    use super::*;

    const SERVER: Uuid = Uuid([7; 16]);

    /// Randomness that counts what is drawn.
    #[derive(Default)]
    struct CountedRng(AtomicU64);

    impl Rng for CountedRng {
        fn next_u64(&self) -> u64 {
            self.0.fetch_add(1, Ordering::Relaxed)
        }
    }

    struct World {
        env: Env,
        disks: Arc<MemDisks>,
        rng: Arc<CountedRng>,
        log: Option<SpanLog>,
    }

    impl World {
        async fn new(flags: &[(&str, &str)]) -> World {
            let (disks, rng) = (Arc::<MemDisks>::default(), Arc::<CountedRng>::default());
            let mut env = Env { disks: disks.clone(), rng: rng.clone(), ..mem_net::env() };
            let given = Flags::new();
            flags.iter().for_each(|(name, value)| given.set(name, value).expect("a flag"));
            let log =
                SpanLog::open(&mut env, ServerKind::TabletServer, SERVER, &given).await.expect("opened");
            World { env, disks, rng, log }
        }

        fn record(&self, name: &str) {
            let span = self.env.spans.late_root().expect("it is on");
            self.env.spans.record(Span {
                span,
                name: name.to_owned(),
                kind: SpanKind::Internal,
                start_nanos: 1,
                end_nanos: 2,
                attributes: Vec::new(),
                events: Vec::new(),
                error: None,
            });
        }

        fn disk(&self) -> MemDisk {
            self.disks.disk("spans")
        }

        /// Returns the names of the spans of each file.
        fn names(&self) -> Vec<Vec<String>> {
            let disk = self.disk();
            let of_file = |name: &String| {
                let lines = String::from_utf8(read_file(&disk, name).expect("a file")).expect("text");
                lines.lines().flat_map(names_of_line).collect()
            };
            disk.list("").expect("files").iter().map(of_file).collect()
        }
    }

    fn names_of_line(line: &str) -> Vec<String> {
        let object: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let spans = &object["resourceSpans"][0]["scopeSpans"][0]["spans"];
        let spans = spans.as_array().expect("spans").iter();
        spans.map(|span| span["name"].as_str().expect("a name").to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn spans_share_a_line_and_the_last_ones_are_written_at_the_end() {
        let world = World::new(&[("trace_dir", "spans")]).await;
        assert_eq!(world.rng.0.load(Ordering::Relaxed), 1, "one number for the seed");
        world.record("a");
        world.record("b");
        world.env.sleep(LINE_INTERVAL * 2).await;
        assert_eq!(world.names(), [["a", "b"]]);
        world.record("c");
        world.log.as_ref().expect("it is on").close().await;
        assert_eq!(world.names(), [["a", "b", "c"]]);
        let name = world.disk().list("").expect("files").remove(0);
        assert_eq!(name, format!("{SERVER}.00000001.jsonl"));
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_directory_there_are_no_spans_and_no_draws() {
        let world = World::new(&[]).await;
        assert!(world.log.is_none() && !world.env.spans.is_on());
        assert_eq!(world.rng.0.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_disk_loses_spans_and_nothing_else() {
        let world = World::new(&[("trace_dir", "spans")]).await;
        world.disk().fail_nth(DiskOpKind::Append, 1, 5);
        world.record("lost");
        world.env.sleep(LINE_INTERVAL * 2).await;
        world.record("kept");
        world.log.as_ref().expect("it is on").close().await;
        assert_eq!(world.names(), [["kept"]]);
    }
}
