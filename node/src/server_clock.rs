//! Hybrid clock of one server, shared by all parts that issue or observe timestamps.
//!
//! The arithmetic is the engine's [`HybridClock`]; this adds the reading of the node's clock and a lock.
//!
//! Invariant, for safe time (`spec/SafeTime.tla`): a timestamp that leaves the server has been *taken* with
//! [`ServerClock::now`], so that no later operation gets it or a lower one.

use engine::sync::{Mutex, MutexGuard};
use std::sync::Arc;

use engine::error::Result;
use engine::time::{ClockReading, HybridClock, Timestamp};

use nyala_common::env::{Clock, Env};

/// Hybrid clock. Cheap to clone; all clones share one state.
#[derive(Clone)]
pub struct ServerClock {
    source: Arc<dyn Clock>,
    hybrid: Arc<Mutex<HybridClock>>,
}

impl ServerClock {
    /// Creates a clock; `max_ahead_micros` limits how far ahead of this server's clock a received timestamp may be.
    pub fn new(env: &Env, max_ahead_micros: u64) -> ServerClock {
        let hybrid = Arc::new(Mutex::new(HybridClock::new(max_ahead_micros)));
        ServerClock { source: env.clock.clone(), hybrid }
    }

    /// Takes a timestamp greater than all taken or observed before.
    pub fn now(&self) -> Timestamp {
        let wall = self.source.now().wall;
        self.hybrid().now(wall)
    }

    /// Returns the timestamp that [`ServerClock::now`] would take, without taking it.
    pub fn peek(&self) -> Timestamp {
        let wall = self.source.now().wall;
        self.hybrid().peek(wall)
    }

    /// Advances past a received timestamp; `Invalid` if it is too far ahead of this server's clock.
    pub fn update(&self, seen: Timestamp) -> Result<()> {
        let wall = self.source.now().wall;
        self.hybrid().update(seen, wall)
    }

    /// Advances past a timestamp found in this server's own data, without a limit.
    pub fn pass(&self, seen: Timestamp) {
        self.hybrid().pass(seen);
    }

    /// Returns the raw readings of the node's clocks.
    pub fn reading(&self) -> ClockReading {
        self.source.now()
    }

    fn hybrid(&self) -> MutexGuard<'_, HybridClock> {
        self.hybrid.lock()
    }
}
