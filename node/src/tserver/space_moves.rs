//! The tasks that follow the free space: one moves leadership away from a server that has too little, and ends the log
//! anchors of tablet copies there; one opens tablets again for which there was none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::ids::TabletId;
use engine::time::Instant;

use super::server::TabletServer;
use crate::hosting::tablet_entry::EntryState;

/// Pause between two transfers of one tablet: if all servers are short of space, its leadership must not circulate.
const TRANSFER_PAUSE: Duration = Duration::from_secs(60);

/// Interval between attempts to open tablets for which there was no space: each replays a log.
const REOPEN_INTERVAL: Duration = Duration::from_secs(5);

/// Runs as long as the server.
pub(super) async fn run(server: Arc<TabletServer>) {
    let mut transferred = BTreeMap::new();
    let mut was_short = false;
    loop {
        server.env.run(|| server.tablets.space().refresh()).await;
        let is_short = server.tablets.space().refuse_replicas().is_some();
        if was_short && !is_short {
            server.env.observer.mark("space: above the reserve again");
            server.copies.forget_failures();
        }
        server.env.observer.mark_if(is_short && !was_short, "space: below the reserve");
        was_short = is_short;
        if server.tablets.space().is_wal_short() {
            release_log_anchors(&server);
        }
        transfer_leaderships(&server, &mut transferred).await;
        server.env.sleep(server.tablets.space().refresh_interval()).await;
    }
}

/// Opens the tablets again that a full device kept from opening, as long as the server runs. Not in [`run`], which a
/// long log would delay.
pub(super) async fn reopen(server: Arc<TabletServer>) {
    loop {
        server.env.sleep(REOPEN_INTERVAL).await;
        if server.tablets.space().refuse_replicas().is_none() {
            server.tablets.reopen_after_full_device().await;
        }
    }
}

/// Ends the log anchors of copies from this server: a learner that finds no log can be copied again, but a full device
/// stops all tablets.
fn release_log_anchors(server: &TabletServer) {
    for entry in server.tablets.all() {
        if let EntryState::Running(replica) = entry.state()
            && replica.log_anchors().release_all()
        {
            tracing::warn!(tablet = %entry.id, "log kept for tablet copies is given up, as space is short");
        }
    }
}

/// Starts a leadership transfer for each tablet that is led here, refuses writes, and has another voter.
async fn transfer_leaderships(server: &TabletServer, transferred: &mut BTreeMap<TabletId, Instant>) {
    let now = server.env.now().mono;
    for entry in server.tablets.all() {
        if server.refuse_writes(&entry).is_none() {
            transferred.remove(&entry.id);
            continue;
        }
        let Ok(replica) = entry.running() else { continue };
        let status = replica.status();
        let lately = transferred.get(&entry.id).is_some_and(|at| now.since(*at) < TRANSFER_PAUSE);
        let stays = status.transferring || status.committed_config.voter_count() < 2;
        if lately || stays || !replica.is_leader() {
            continue;
        }
        server.env.observer.mark("space or clock: leadership transferred");
        match replica.step_down(None, false).await {
            Ok(()) => drop(transferred.insert(entry.id, now)),
            Err(error) => tracing::debug!(tablet = %entry.id, %error, "leadership is not transferred yet"),
        }
    }
}
