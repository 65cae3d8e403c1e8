//! Time that a statement has, from its beginning until its last row is sent.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use nyala_common::env::Env;

use super::super::error::{SqlError, SqlResult, state};

/// Timer of one statement. Without a limit it never ends.
pub(super) struct StatementTimer {
    limit: Duration,
    end: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl StatementTimer {
    /// Starts a timer.
    pub(super) fn start(env: &Env, limit: Option<Duration>) -> StatementTimer {
        let end = limit.map(|limit| env.clock.sleep_until(env.now().mono.after(limit)));
        StatementTimer { limit: limit.unwrap_or_default(), end }
    }

    /// Runs a part of the statement, which is dropped when the time is over.
    pub(super) async fn run<T>(&mut self, part: impl Future<Output = T>) -> SqlResult<T> {
        let limit = self.limit;
        let Some(end) = &mut self.end else { return Ok(part.await) };
        tokio::select! {
            biased;
            done = part => Ok(done),
            () = end => Err(exceeded(limit)),
        }
    }

    /// Polls the end of the time, for a result that is read in parts.
    pub(super) fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<SqlError> {
        match &mut self.end {
            Some(end) => end.as_mut().poll(context).map(|()| exceeded(self.limit)),
            None => Poll::Pending,
        }
    }
}

fn exceeded(limit: Duration) -> SqlError {
    let what = format!("the statement was canceled: it took more than {limit:?} (statement_timeout)");
    SqlError::with_state(state::TIMED_OUT, what)
}
