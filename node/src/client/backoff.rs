//! Waiting before trying again: the first time hardly, then twice as long each time, and never quite the
//! same.

use std::time::Duration;

use engine::error::{Error, ErrorKind};
use engine::time::Instant;

use crate::env::Env;

const FIRST: Duration = Duration::from_millis(4);
const LONGEST: Duration = Duration::from_secs(2);

/// The attempts at one operation.
pub struct Backoff {
    deadline: Instant,
    attempts: u32,
}

/// The wait before attempt number `attempts` + 1: half of it sure, half of it random.
fn wait(attempts: u32, random: u64) -> Duration {
    let full = FIRST.saturating_mul(1 << attempts.saturating_sub(1).min(20)).min(LONGEST);
    let half = full / 2;
    half + Duration::from_nanos(random % (half.as_nanos() as u64 + 1))
}

impl Backoff {
    pub fn new(deadline: Instant) -> Backoff {
        Backoff { deadline, attempts: 0 }
    }

    /// Attempts that failed.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Waits after a failed attempt at `what`. If the deadline comes first, the error to give up with.
    pub async fn failed(&mut self, env: &Env, what: &str, last: Error) -> Result<(), Error> {
        self.attempts += 1;
        let wait = wait(self.attempts, env.rng.next_u64());
        let left = self.deadline.since(env.now().mono);
        if wait >= left {
            let attempts = self.attempts;
            let message =
                format!("{what}: timed out after {attempts} attempts; the last said: {}", last.message);
            return Err(Error { kind: ErrorKind::NotReady, message, errno: last.errno });
        }
        env.sleep(wait).await;
        Ok(())
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
            assert!(least <= most && most <= LONGEST);
        }
    }
}
