//! Checks of the running servers of a run, as `/readyz` shows them.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use engine::sync::Mutex;
use node::server::health::HealthBoard;
use node::server::{ServerContext, ServerStatus};

use crate::oracle::readiness::ServerCheck;
use sim_plan::Host;

/// Sources of the checks of masters and tablet servers. Clones share them.
#[derive(Clone, Default)]
pub struct HealthBoards {
    sources: Arc<Mutex<BTreeMap<Host, HealthSources>>>,
}

/// Sources of one server's checks.
struct HealthSources {
    status: Weak<ServerStatus>,
    board: Weak<HealthBoard>,
}

impl HealthBoards {
    /// Adds a server that has started; it replaces the former process of its host.
    pub fn add(&self, host: Host, common: &ServerContext) {
        let (status, board) = (Arc::downgrade(&common.status), Arc::downgrade(&common.checks));
        self.sources.lock().insert(host, HealthSources { status, board });
    }

    /// Returns the servers that have started.
    pub fn hosts(&self) -> Vec<Host> {
        self.sources.lock().keys().copied().collect()
    }

    /// Returns the checks of all servers that run.
    pub fn checks(&self) -> Vec<ServerCheck> {
        let mut found = Vec::new();
        for (host, sources) in self.sources.lock().iter() {
            let status = sources.status.upgrade().map(|status| status.check());
            let of_board = sources.board.upgrade().map(|board| board.checks()).unwrap_or_default();
            found.extend(status.iter().chain(&of_board).map(|check| {
                let (word, text) = check.parts();
                ServerCheck { server: host.name(), name: check.name, word, text: text.to_string() }
            }));
        }
        found
    }
}
