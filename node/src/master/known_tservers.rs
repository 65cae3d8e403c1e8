//! Known tablet servers: those that have sent heartbeats to this master, whether it leads or not.
//!
//! Tablet servers send heartbeats to every master. So a newly elected leader can place tablets at once, and does not
//! take the whole cluster for failed until all servers have sent another heartbeat.

use engine::sync::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::time::Duration;

use engine::catalog::{Heartbeat, TserverContact};
use engine::ids::PeerId;
use engine::time::Instant;

/// Known tablet servers, kept as long as the master runs.
#[derive(Debug, Default)]
pub struct KnownTservers(Mutex<BTreeMap<PeerId, TserverContact>>);

impl KnownTservers {
    /// Records a heartbeat; returns false if the server must register first. A registration with an older start than
    /// the known one is accepted only if no heartbeat has arrived for longer than `silence_max`, because clocks may be
    /// set back.
    pub fn record_heartbeat(&self, now: Instant, heartbeat: &Heartbeat, silence_max: Duration) -> bool {
        let mut servers = self.servers();
        if let Some(registration) = &heartbeat.registration {
            let known = servers.get(&heartbeat.server);
            let lately = |known: &TserverContact| now.since(known.last_heartbeat) <= silence_max;
            if known.is_some_and(|known| known.instance > heartbeat.instance && lately(known)) {
                return true; // A message of an earlier life that was long under way.
            }
            let server = TserverContact {
                id: heartbeat.server,
                instance: heartbeat.instance,
                registration: registration.clone(),
                location: heartbeat.location.clone(),
                last_heartbeat: now,
            };
            servers.insert(heartbeat.server, server);
            return true;
        }
        match servers.get_mut(&heartbeat.server).filter(|known| known.instance == heartbeat.instance) {
            Some(known) => {
                known.last_heartbeat = now;
                true
            }
            None => false,
        }
    }

    /// Returns the time since a server's last heartbeat; `None` if the server is unknown.
    pub fn time_since_heartbeat(&self, now: Instant, server: PeerId) -> Option<Duration> {
        self.servers().get(&server).map(|known| now.since(known.last_heartbeat))
    }

    /// Forgets a server until it registers again.
    pub fn forget(&self, server: PeerId) {
        self.servers().remove(&server);
    }

    /// Returns all known servers, ordered by id.
    pub fn all(&self) -> Vec<TserverContact> {
        self.servers().values().cloned().collect()
    }

    pub fn count(&self) -> usize {
        self.servers().len()
    }

    fn servers(&self) -> MutexGuard<'_, BTreeMap<PeerId, TserverContact>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::catalog::{HostPort, TserverRegistration};
    use engine::ids::Uuid;

    fn heartbeat(instance: i64, registering: bool) -> Heartbeat {
        let rpc = vec![HostPort { host: format!("host{instance}"), port: 7050 }];
        let registration = TserverRegistration { rpc, ..TserverRegistration::default() };
        Heartbeat {
            registration: registering.then_some(registration),
            ..Heartbeat::of(Uuid([1; 16]), instance)
        }
    }

    #[test]
    fn a_server_registers_once_per_start() {
        let known = KnownTservers::default();
        let record = |now, heartbeat| known.record_heartbeat(now, &heartbeat, Duration::from_nanos(10));
        assert!(!record(Instant(1), heartbeat(1, false)));
        assert!(record(Instant(2), heartbeat(1, true)));
        assert!(record(Instant(3), heartbeat(1, false)));
        assert!(!record(Instant(4), heartbeat(2, false)), "it has restarted");
        assert!(record(Instant(5), heartbeat(2, true)));
        assert!(record(Instant(6), heartbeat(1, true)), "an old message");
        let all = known.all();
        assert_eq!((all.len(), all[0].instance, all[0].last_heartbeat), (1, 2, Instant(5)));
        assert!(
            record(Instant(15), heartbeat(1, true)),
            "an old message, though no heartbeat of the new start has arrived recently"
        );
        assert_eq!(known.all()[0].instance, 2);
        assert!(record(Instant(16), heartbeat(1, true)), "its clock was set back");
        assert_eq!(known.all()[0].instance, 1);
        assert!(record(Instant(17), heartbeat(2, true)));
        known.forget(Uuid([1; 16]));
        assert_eq!(known.count(), 0);
        assert!(!record(Instant(18), heartbeat(2, false)));
    }
}
