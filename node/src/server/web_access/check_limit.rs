//! Limit on the checks of passwords: each takes a processor for a while, and any peer can cause them.

use tokio::sync::Semaphore;

/// Checks at a time, and so processors that peers can keep busy with them.
pub(super) const CHECKS_MAX: usize = 2;
/// Checks that run or wait. One address may have fewer connections, so it alone cannot take all places.
pub(super) const PLACES_MAX: usize = 64;

/// Checks that run, and those that wait for their turn.
#[derive(Debug)]
pub(super) struct CheckLimit {
    places: Semaphore,
    running: Semaphore,
}

impl Default for CheckLimit {
    fn default() -> CheckLimit {
        CheckLimit { places: Semaphore::new(PLACES_MAX), running: Semaphore::new(CHECKS_MAX) }
    }
}

impl CheckLimit {
    /// Runs a check when its turn comes. Returns `None` if too many wait already.
    pub(super) async fn run<T>(&self, check: impl Future<Output = T>) -> Option<T> {
        let _place = self.places.try_acquire().ok()?;
        let _turn = self.running.acquire().await.ok()?;
        Some(check.await)
    }
}
