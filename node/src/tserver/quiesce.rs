//! A quiescing server leads nothing: it hands over its tablets, and those that come back to it, until it may lead
//! again.

use std::sync::Arc;

use super::server::Server;

/// Runs for as long as the server does. A look costs nothing while the server is not quiescing.
pub async fn run(server: Arc<Server>) {
    loop {
        server.env.sleep(server.config.raft.heartbeat_interval).await;
        if server.is_quiescing() {
            hand_over(&server).await;
        }
    }
}

/// Asks for a successor of each tablet that is led here and has somebody else to lead it.
async fn hand_over(server: &Server) {
    for entry in server.tablets.all() {
        let Ok(replica) = entry.running() else { continue };
        let status = replica.status();
        if !replica.is_leader() || status.transferring || status.committed_config.voter_count() < 2 {
            continue;
        }
        if let Err(error) = replica.step_down(None, false).await {
            tracing::debug!(tablet = %entry.id, %error, "a tablet is not handed over yet");
        }
    }
}

/// The server is about to stop: whoever writes to tablets that it leads is to go on at once. Returns when all have
/// other leaders, or after the time that one has to hand over.
pub async fn leave(server: &Server) {
    server.set_quiescing(true);
    let deadline = server.env.now().mono.after(server.config.raft.election_timeout());
    let mut leaving = Vec::new();
    for entry in server.tablets.all() {
        if let Ok(replica) = entry.running()
            && replica.is_leader()
            && replica.begin_hand_over().await
        {
            leaving.push(replica);
        }
    }
    for replica in &leaving {
        replica.until_handed_over(deadline).await;
    }
    let kept = leaving.iter().filter(|replica| replica.is_leader()).count();
    if !leaving.is_empty() {
        tracing::info!(handed_over = leaving.len() - kept, kept, "tablets were handed over");
    }
}

/// How many tablets are led here.
pub fn leaders(server: &Server) -> usize {
    let all = server.tablets.all();
    all.iter().filter(|entry| entry.running().is_ok_and(|replica| replica.is_leader())).count()
}
