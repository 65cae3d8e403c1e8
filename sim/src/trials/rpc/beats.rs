//! Calls at short intervals, as heartbeats are, which must find a connection that was lost in silence.
//!
//! ```text
//!   after a loss, on the shared connection    ────────      some are always in flight
//!                                                ────────
//!   all the time, on a connection of its own  ─── ─── ───   one after the other, with short timeouts
//! ```

use std::time::Duration;

use engine::time::Instant;
use futures_util::future::join_all;

use super::caller::Caller;
use super::settings::{CALLING, SERVERS};

/// Pause between two looks for a lost connection.
const LOOK: Duration = Duration::from_millis(100);
/// Interval of calls that do not wait for each other, the timeout of each, and the most of them in flight.
const INTERVAL: Duration = Duration::from_millis(400);
const TIMEOUT: Duration = Duration::from_secs(4);
const LANES: u32 = 11;
/// Time for which they are sent.
const LASTS: Duration = Duration::from_secs(12);
/// Interval and timeout of calls that follow each other. The timeout is below the silence of 3 s after which
/// a client replaces a connection.
const TURN_INTERVAL: Duration = Duration::from_secs(1);
const TURN_TIMEOUT: Duration = Duration::from_millis(2_500);

/// Sends calls whenever a connection of the client was lost in silence, until the end of the trial's calls.
pub(super) async fn run(caller: Caller) {
    let end = caller.now().after(CALLING);
    while caller.now() < end {
        match caller.take_beats() {
            Some(server) => {
                let until = caller.now().after(LASTS).min(end);
                let lanes = (0..LANES).map(|lane| run_lane(&caller, server, lane, until));
                join_all(lanes).await;
            }
            None => caller.sleep(LOOK).await,
        }
    }
}

/// Sends one call after the other to each server, until the end of the trial's calls.
pub(super) async fn run_in_turn(caller: Caller) {
    let end = caller.now().after(CALLING);
    let beats = |server| beat(&caller, server, (TURN_INTERVAL, TURN_TIMEOUT), end);
    join_all((0..SERVERS).map(beats)).await;
}

/// Sends every one of [`LANES`] calls.
async fn run_lane(caller: &Caller, server: usize, lane: u32, until: Instant) {
    caller.sleep(INTERVAL * lane).await;
    beat(caller, server, (INTERVAL * LANES, TIMEOUT), until).await;
}

/// Sends a call at each interval, or as soon as the one before has ended.
async fn beat(caller: &Caller, server: usize, (interval, timeout): (Duration, Duration), until: Instant) {
    while caller.now() < until {
        let began = caller.now();
        caller.make_quick_call(server, timeout).await;
        let spent = caller.now().since(began);
        caller.sleep(interval.saturating_sub(spent)).await;
    }
}
