//! Checks of a tablet server's health.

use std::sync::Arc;
use std::time::Duration;

use super::server::TabletServer;
use crate::server::health::{CheckResult, HealthCheck};

/// Heartbeat intervals after which a master that has not accepted a heartbeat counts as lost.
const INTERVALS_MAX: u32 = 10;
const CONTACT_AGE_MIN: Duration = Duration::from_secs(10);

/// Registers the checks of `server`.
pub fn register(server: &Arc<TabletServer>) {
    let weak = Arc::downgrade(server);
    server.common.checks.register(move |checks| {
        if let Some(server) = weak.upgrade() {
            checks.extend([masters(&server), bootstraps(&server), quiescing(&server)]);
            checks.extend([tablets(&server), space(&server)]);
        }
    });
}

fn masters(server: &TabletServer) -> HealthCheck {
    let interval = Duration::from_millis(server.config.heartbeat_interval_ms);
    let age = CONTACT_AGE_MIN.max(interval * INTERVALS_MAX);
    let leader = server.master_contacts.leader(server.env.now().mono, age);
    let result = match leader {
        Some(master) => CheckResult::Ok(format!("registered with {master}")),
        None => CheckResult::Failed("no leading master has accepted a heartbeat lately".to_string()),
    };
    HealthCheck::new("masters", result)
}

/// Returns the check of the start's bootstraps: a rolling restart must not stop the next server before the replicas of
/// this one count in their majorities again.
fn bootstraps(server: &TabletServer) -> HealthCheck {
    let counts = server.tablets.bootstraps();
    let (left, all) = (counts.left(), counts.all);
    let result = match left {
        0 => CheckResult::Ok(format!("all {all} bootstraps of the start have ended")),
        _ => CheckResult::Failed(format!("{left} of {all} tablets still replay their logs")),
    };
    HealthCheck::new("bootstraps", result)
}

fn quiescing(server: &TabletServer) -> HealthCheck {
    let result = match server.is_quiescing() {
        true => CheckResult::Failed("quiescing".to_string()),
        false => CheckResult::Ok("takes scans and leadership".to_string()),
    };
    HealthCheck::new("quiescing", result)
}

fn tablets(server: &TabletServer) -> HealthCheck {
    let all = server.tablets.all();
    let failed: Vec<_> =
        all.iter().filter_map(|entry| entry.failure().map(|error| (entry.id, error))).collect();
    let result = match failed.first() {
        None => CheckResult::Ok(format!("{} tablets, none failed", all.len())),
        Some((id, error)) => {
            let (failed, all) = (failed.len(), all.len());
            CheckResult::Warning(format!("{failed} of {all} tablets failed, the first {id}: {error}"))
        }
    };
    HealthCheck::new("tablets", result)
}

fn space(server: &TabletServer) -> HealthCheck {
    let space = server.tablets.space();
    let refused = server.tablets.dirs().data.iter().find_map(|dir| space.refuse_writes(&dir.path));
    let result = match refused {
        Some(why) => CheckResult::Warning(format!("{why}; writes are refused")),
        None => CheckResult::Ok("all directories are above their reserves".to_string()),
    };
    HealthCheck::new("space", result)
}
