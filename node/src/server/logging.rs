//! Log lines: filter and format.

use std::sync::OnceLock;

use engine::error::{Error, Result};
use tracing_subscriber::filter::EnvFilter;
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
    let registry = tracing_subscriber::registry().with(filter);
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
    fn a_level_that_has_no_effect_is_an_error() {
        let shown = |directives| change(directives).expect_err("no log is set up here").message;
        assert!(shown("debug").starts_with("log_level: another program"));
        assert!(shown("node=loud").starts_with("log_level: \"node=loud\" cannot be understood"));
    }
}
