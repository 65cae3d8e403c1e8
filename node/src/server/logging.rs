//! Log lines: what is written, and how.

use engine::error::{Error, Result};
use tracing_subscriber::filter::EnvFilter;

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Sends the process's log to standard error. `directives`: a level, or finer (`info,node::rpc=debug`).
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
