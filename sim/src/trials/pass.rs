//! Time of a trial in the keyed world.

use std::time::Duration;

use crate::world::keyed::KeyedWorld;
use crate::world::{StopReason, World};

/// Lets time pass until `at`, or until all clients have ended. The error is a failure of the world.
pub(super) fn until(world: &mut KeyedWorld, at: Duration) -> Result<(), String> {
    loop {
        match world.run_until(at) {
            Ok(StopReason::Reached | StopReason::ClientsEnded) => return Ok(()),
            Ok(_) => {}
            Err(failure) => return Err(failure.to_string()),
        }
    }
}
