//! Log lines: filter and format, and the latest of them in memory for the web pages.

use engine::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::OnceLock;

use engine::error::{Error, Result};
use tracing::{Level, Metadata};
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

/// Format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Handle that replaces the filter of the process's log.
type FilterHandle = reload::Handle<EnvFilter, Registry>;

/// Bytes of log lines that are kept in memory.
const RECENT_BYTES_MAX: usize = 1 << 20;

/// Numbers of lines since the start of the process, by level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LineCounts {
    pub errors: u64,
    pub warnings: u64,
    pub infos: u64,
}

const NO_LINES: LineCounts = LineCounts { errors: 0, warnings: 0, infos: 0 };

/// The latest lines of the process, oldest first.
static RECENT: Mutex<RecentLog> =
    Mutex::new(RecentLog { lines: VecDeque::new(), bytes: 0, counts: NO_LINES });

/// Lines with their levels, up to [`RECENT_BYTES_MAX`].
struct RecentLog {
    lines: VecDeque<(Level, String)>,
    bytes: usize,
    counts: LineCounts,
}

impl RecentLog {
    fn push(&mut self, level: Level, line: String) {
        match level {
            Level::ERROR => self.counts.errors += 1,
            Level::WARN => self.counts.warnings += 1,
            Level::INFO => self.counts.infos += 1,
            _ => {}
        }
        self.bytes += line.len();
        self.lines.push_back((level, line));
        while self.bytes > RECENT_BYTES_MAX
            && let Some((_, oldest)) = self.lines.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }
}

fn recent_log() -> MutexGuard<'static, RecentLog> {
    RECENT.lock()
}

/// Returns the numbers of lines that the process has logged.
pub fn line_counts() -> LineCounts {
    recent_log().counts
}

/// Returns the latest lines of at least this level that contain `wanted`, without regard to case, oldest first.
pub fn recent(level: Level, wanted: &str) -> Vec<String> {
    let wanted = wanted.to_lowercase();
    let log = recent_log();
    // Severe levels are the smaller ones.
    let is_shown = |(of, line): &&(Level, String)| {
        *of <= level && (wanted.is_empty() || line.to_lowercase().contains(&wanted))
    };
    log.lines.iter().filter(is_shown).map(|(_, line)| line.clone()).collect()
}

/// Writer of the lines that are kept in memory.
struct RecentLines;

/// Writer of one line.
struct RecentLine {
    level: Level,
    bytes: Vec<u8>,
}

impl Write for RecentLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for RecentLine {
    fn drop(&mut self) {
        let line = String::from_utf8_lossy(&self.bytes).into_owned();
        recent_log().push(self.level, line);
    }
}

impl<'a> MakeWriter<'a> for RecentLines {
    type Writer = RecentLine;

    fn make_writer(&'a self) -> RecentLine {
        RecentLine { level: Level::INFO, bytes: Vec::new() }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> RecentLine {
        RecentLine { level: *meta.level(), bytes: Vec::new() }
    }
}

/// Set by [`init`]; the log belongs to the process, whose servers share it.
static FILTER: OnceLock<FilterHandle> = OnceLock::new();

fn parse(directives: &str) -> Result<EnvFilter> {
    let bad = |error| Error::invalid(format!("log_level: {directives:?} cannot be understood ({error})"));
    EnvFilter::builder().parse(directives).map_err(bad)
}

/// Writes the process's log to standard error. `directives`: a level, or finer (`info,node::tserver=debug`).
pub fn init(format: LogFormat, directives: &str) -> Result<()> {
    let (filter, handle) = reload::Layer::new(parse(directives)?);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let kept = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(RecentLines);
    let registry = tracing_subscriber::registry().with(filter).with(kept);
    let set = match format {
        LogFormat::Text => registry.with(lines.with_ansi(false)).try_init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    };
    set.map_err(|error| Error::invalid(format!("the log is set up already: {error}")))?;
    let _ = FILTER.set(handle);
    Ok(())
}

/// Changes what the log of the running process shows.
pub fn change(directives: &str) -> Result<()> {
    let filter = parse(directives)?;
    let none =
        || Error::invalid("log_level: another program has set up the log of this process; change it there");
    let handle = FILTER.get().ok_or_else(none)?;
    handle.reload(filter).map_err(|error| Error::invalid(format!("log_level: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_lines_are_kept_and_selected() {
        let mut log = RecentLog { lines: VecDeque::new(), bytes: 0, counts: NO_LINES };
        log.push(Level::INFO, "a".repeat(RECENT_BYTES_MAX));
        log.push(Level::WARN, "b".to_owned());
        assert_eq!(log.lines, [(Level::WARN, "b".to_owned())]);
        assert_eq!(log.bytes, 1);
        assert_eq!(log.counts, LineCounts { errors: 0, warnings: 1, infos: 1 });
        let mut line = RecentLines.make_writer();
        line.write_all(b"the latest LINE of this test\n").unwrap();
        drop(line);
        assert_eq!(recent(Level::INFO, "latest line of"), ["the latest LINE of this test\n"]);
        assert!(recent(Level::WARN, "latest line of").is_empty());
    }

    #[test]
    fn a_level_that_has_no_effect_is_an_error() {
        let shown = |directives| change(directives).expect_err("no log is set up here").message;
        assert!(shown("debug").starts_with("log_level: another program"));
        assert!(shown("node=loud").starts_with("log_level: \"node=loud\" cannot be understood"));
    }
}
