//! Log lines: filter and format.

use engine::error::{Error, Result};
use tracing_subscriber::filter::EnvFilter;

/// Format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Writes the process's log to standard error. `directives`: a level, or finer (`info,node::tserver=debug`).
pub fn init(format: LogFormat, directives: &str) -> Result<()> {
    let filter = EnvFilter::builder()
        .parse(directives)
        .map_err(|error| Error::invalid(format!("log_level {directives:?} cannot be understood: {error}")))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let set = match format {
        LogFormat::Text => lines.with_ansi(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    set.map_err(|error| Error::invalid(format!("the log is set up already: {error}")))
}
