//! Exponential backoff with jitter: 4 ms after the first failure, doubled up to 2 s, and a random half.

use std::time::Duration;

use engine::error::{Error, ErrorKind};
use engine::time::Instant;

use nyala_common::env::Env;

const WAIT_MIN: Duration = Duration::from_millis(4);
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Retry state of one operation.
pub struct Backoff {
    deadline: Instant,
    attempts: u32,
    /// The last error that is not a timeout.
    cause: Option<Error>,
}

/// Returns the wait after `attempts` failed attempts: one half is fixed, the other half is random.
fn wait(attempts: u32, random: u64) -> Duration {
    let full = WAIT_MIN.saturating_mul(1 << attempts.saturating_sub(1).min(20)).min(WAIT_MAX);
    let half = full / 2;
    half + Duration::from_nanos(random % (half.as_nanos() as u64 + 1))
}

impl Backoff {
    /// Starts an operation that ends at `deadline`.
    pub fn new(deadline: Instant) -> Backoff {
        Backoff { deadline, attempts: 0, cause: None }
    }

    /// Returns the number of failed attempts.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Waits after a failed attempt. Returns an error for the operation `what` if the deadline comes first.
    pub async fn failed(&mut self, env: &Env, what: &str, last: Error) -> Result<(), Error> {
        self.attempts += 1;
        let wait = wait(self.attempts, env.rng.next_u64());
        let left = self.deadline.since(env.now().mono);
        if wait >= left {
            return Err(self.timed_out(what, &last));
        }
        self.remember(last);
        env.sleep(wait).await;
        Ok(())
    }

    fn remember(&mut self, error: Error) {
        if error.kind != ErrorKind::TimedOut {
            self.cause = Some(error);
        }
    }

    /// Returns the error of the operation `what`. The last attempt before a deadline often has too little time: its
    /// timeout must not hide why those before it failed.
    fn timed_out(&self, what: &str, last: &Error) -> Error {
        let (attempts, last_message) = (self.attempts, &last.message);
        let earlier = match &self.cause {
            Some(cause) if last.kind == ErrorKind::TimedOut => {
                format!("an earlier error: {}; ", cause.message)
            }
            _ => String::new(),
        };
        let message =
            format!("{what}: timed out after {attempts} attempts; {earlier}last error: {last_message}");
        Error { kind: ErrorKind::TimedOut, message, errno: last.errno }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_stay_bounded() {
        let bounds = |attempts| (wait(attempts, 0), wait(attempts, u64::MAX - 1));
        let millis = Duration::from_millis;
        assert_eq!(bounds(1).0, millis(2));
        assert_eq!(bounds(4).0, millis(16));
        assert_eq!(bounds(50).0, millis(1000));
        for attempts in 1..100 {
            let (least, most) = bounds(attempts);
            assert!(least <= most && most <= WAIT_MAX);
        }
    }

    #[test]
    fn a_timeout_does_not_hide_the_error_before_it() {
        let (refused, late) = (Error::invalid("refused"), Error::timed_out("late"));
        let mut backoff = Backoff::new(Instant::default());
        let told = |backoff: &Backoff, last| backoff.timed_out("asking", last).message;
        let start = "asking: timed out after 0 attempts; ";
        assert_eq!(told(&backoff, &late), format!("{start}last error: late"));
        backoff.remember(refused.clone());
        backoff.remember(late.clone());
        assert_eq!(told(&backoff, &late), format!("{start}an earlier error: refused; last error: late"));
        assert_eq!(told(&backoff, &refused), format!("{start}last error: refused"));
    }
}
