//! Calls at short intervals to a server whose connection was lost in silence, as heartbeats are: they do not
//! wait for each other, so that some are always under way, and none is sent long after the one before.

use std::time::Duration;

use engine::time::Instant;
use futures_util::future::join_all;

use super::caller::Caller;
use super::order::Method;
use super::settings::CALLING;

/// Pause between two looks for a lost connection.
const LOOK: Duration = Duration::from_millis(100);
/// Interval of calls, the timeout of each, and how many are under way at most.
const INTERVAL: Duration = Duration::from_millis(400);
const TIMEOUT: Duration = Duration::from_secs(4);
const LANES: u32 = 11;
/// Time for which calls are sent.
const LASTS: Duration = Duration::from_secs(12);

/// Sends calls whenever a connection of the client was lost in silence, until the end of the trial's calls.
pub(super) async fn run(caller: Caller) {
    let end = caller.now().after(CALLING);
    while caller.now() < end {
        match caller.take_beats() {
            Some(server) => {
                let until = caller.now().after(LASTS).min(end);
                let lanes = (0..LANES).map(|lane| beat(&caller, server, lane, until));
                join_all(lanes).await;
            }
            None => caller.sleep(LOOK).await,
        }
    }
}

/// Sends every one of [`LANES`] calls.
async fn beat(caller: &Caller, server: usize, lane: u32, until: Instant) {
    caller.sleep(INTERVAL * lane).await;
    while caller.now() < until {
        let began = caller.now();
        caller.call_small(server, Method::Quick, TIMEOUT).await;
        let spent = caller.now().since(began);
        caller.sleep((INTERVAL * LANES).saturating_sub(spent)).await;
    }
}
