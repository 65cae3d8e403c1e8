//! Quiescing: the server transfers leadership of its tablets, also of those that it is elected for later, until
//! quiescing ends.

use std::sync::Arc;

use super::server::TabletServer;

/// Runs as long as the server. A pass costs nothing while the server is not quiescing.
pub(super) async fn run(server: Arc<TabletServer>) {
    loop {
        server.env.sleep(server.config.raft.heartbeat_interval).await;
        if server.is_quiescing() {
            transfer_leaderships(&server).await;
        }
    }
}

/// Starts a leadership transfer for each tablet that is led here and has another voter.
async fn transfer_leaderships(server: &TabletServer) {
    for entry in server.tablets.all() {
        let Ok(replica) = entry.running() else { continue };
        let status = replica.status();
        if !replica.is_leader() || status.transferring || status.committed_config.voter_count() < 2 {
            continue;
        }
        if let Err(error) = replica.step_down(None, false).await {
            tracing::debug!(tablet = %entry.id, %error, "leadership of a tablet is not transferred yet");
        }
    }
}

/// Transfers leadership before the server stops, so that clients of its tablets can continue at once. Returns when all
/// have other leaders, or after the deadline of a transfer.
pub(super) async fn leave(server: &TabletServer) {
    server.set_quiescing(true);
    let deadline = server.env.now().mono.after(server.config.raft.election_timeout());
    let mut leaving = Vec::new();
    for entry in server.tablets.all() {
        if let Ok(replica) = entry.running()
            && replica.is_leader()
            && replica.begin_transfer().await
        {
            leaving.push(replica);
        }
    }
    for replica in &leaving {
        replica.wait_transferred(deadline).await;
    }
    let retained = leaving.iter().filter(|replica| replica.is_leader()).count();
    if !leaving.is_empty() {
        tracing::info!(
            transferred = leaving.len() - retained,
            retained,
            "leadership of tablets was transferred"
        );
    }
}

/// Returns the number of tablets led here.
pub(super) fn leaders(server: &TabletServer) -> usize {
    let all = server.tablets.all();
    all.iter().filter(|entry| entry.running().is_ok_and(|replica| replica.is_leader())).count()
}
