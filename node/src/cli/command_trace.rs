//! Spans of a command (`--trace-dir`): the command is the first span, and all its calls to servers are below.
//!
//! ```text
//!   nyala table insert ─┬─ GetTableSchema ──▶ master        each side writes its own files, with one trace id
//!                       └─ Write ──▶ tablet server ──▶ followers
//! ```

use clap::{Arg, ArgMatches, Command};
use engine::error::Result;
use engine::time::ClockReading;
use nyala_common::env::Env;
use nyala_common::spans::{CallSpan, Span, SpanKind, since_1970};

use super::exit::ExitError;
use super::options::text;
use crate::server::span_log::SpanLog;

const NAME: &str = "trace-dir";
const VARIABLE: &str = "NYALA_TRACE_DIR";

/// Adds the option to a command and to all below it.
pub(super) fn option(command: Command) -> Command {
    command.arg(
        Arg::new(NAME)
            .long(NAME)
            .value_name("DIR")
            .env(VARIABLE)
            .hide_env_values(true)
            .global(true)
            .help("Directory for the spans of this command and its calls, as OTLP JSON"),
    )
}

/// Returns the words of the command after `nyala`, without its arguments.
fn words(mut matches: &ArgMatches) -> Vec<String> {
    let mut words = Vec::new();
    while let Some((word, below)) = matches.subcommand() {
        words.push(word.to_owned());
        matches = below;
    }
    words
}

/// The running trace of one command; does nothing without the option.
pub(super) struct CommandTrace(Option<RunningTrace>);

struct RunningTrace {
    env: Env,
    log: SpanLog,
    span: CallSpan,
    name: String,
    began: ClockReading,
}

impl CommandTrace {
    /// Switches the spans of `env` on, if the command asks for it.
    pub(super) async fn begin(env: &mut Env, (name, matches): (&str, &ArgMatches)) -> Result<CommandTrace> {
        let Some(dir) = text(matches, NAME).filter(|dir| !dir.is_empty()) else {
            return Ok(CommandTrace(None));
        };
        let (log, span) = SpanLog::of_command(env, dir).await?;
        let name = ["nyala", name].into_iter().map(str::to_owned).chain(words(matches));
        let name = name.collect::<Vec<_>>().join(" ");
        let began = env.now();
        Ok(CommandTrace(Some(RunningTrace { env: env.clone(), log, span, name, began })))
    }

    /// Records the command's own span, writes all spans, and returns the command's result.
    pub(super) async fn end(self, done: Result<(), ExitError>) -> Result<(), ExitError> {
        let Some(trace) = self.0 else { return done };
        let ended = trace.env.now();
        trace.env.spans.record(Span {
            span: trace.span,
            name: trace.name,
            kind: SpanKind::Internal,
            start_nanos: since_1970(ended, trace.began.mono),
            end_nanos: since_1970(ended, ended.mono),
            attributes: Vec::new(),
            events: Vec::new(),
            error: done.as_ref().err().map(|failure| failure.message.clone()),
        });
        trace.log.close().await;
        done
    }
}
