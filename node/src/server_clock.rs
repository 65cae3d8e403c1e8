//! One server's hybrid clock, shared by everything in it that gives or sees timestamps.
//!
//! The arithmetic is the engine's [`HybridClock`]; this adds the reading of the node's clock and a lock. Safe time
//! (see `spec/SafeTime.tla`) rests on one rule kept by those who use it: a timestamp that is shown to anyone
//! has been *taken* with [`ServerClock::now`], so that no later operation can get it or one below.

use std::sync::{Arc, Mutex, MutexGuard};

use engine::error::Result;
use engine::time::{HybridClock, Now, Timestamp};

use crate::env::{Clock, Env};

/// Cheap to clone; all clones are one clock.
#[derive(Clone)]
pub struct ServerClock {
    source: Arc<dyn Clock>,
    hybrid: Arc<Mutex<HybridClock>>,
}

impl ServerClock {
    /// `max_ahead_micros`: how far ahead of this server's clock a timestamp from elsewhere may be.
    pub fn new(env: &Env, max_ahead_micros: u64) -> ServerClock {
        let hybrid = Arc::new(Mutex::new(HybridClock::new(max_ahead_micros)));
        ServerClock { source: env.clock.clone(), hybrid }
    }

    /// Takes a timestamp: greater than every one taken or seen before.
    pub fn now(&self) -> Timestamp {
        let wall = self.source.now().wall;
        self.hybrid().now(wall)
    }

    /// What [`ServerClock::now`] would give, without taking it.
    pub fn peek(&self) -> Timestamp {
        let wall = self.source.now().wall;
        self.hybrid().peek(wall)
    }

    /// Moves past a timestamp seen elsewhere; `Invalid` if it is too far in the future to be believed.
    pub fn update(&self, seen: Timestamp) -> Result<()> {
        let wall = self.source.now().wall;
        self.hybrid().update(seen, wall)
    }

    /// Moves past a timestamp found in this server's own data, however far ahead it is.
    pub fn pass(&self, seen: Timestamp) {
        self.hybrid().pass(seen);
    }

    /// Both readings of the node's clock, as they are.
    pub fn reading(&self) -> Now {
        self.source.now()
    }

    fn hybrid(&self) -> MutexGuard<'_, HybridClock> {
        self.hybrid.lock().expect("nobody panics while holding the clock")
    }
}
