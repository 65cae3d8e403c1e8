//! Known tablet servers: those that have sent heartbeats to this master, whether it leads or not.
//!
//! Tablet servers send heartbeats to every master. So a newly elected leader can place tablets at once, and does not
//! take the whole cluster for failed until all servers have sent another heartbeat.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use engine::catalog::{Heartbeat, TserverContact};
use engine::ids::PeerId;
use engine::time::Instant;

/// Known tablet servers, kept as long as the master runs.
#[derive(Debug, Default)]
pub struct KnownTservers(Mutex<BTreeMap<PeerId, TserverContact>>);

impl KnownTservers {
    /// Records a heartbeat; returns false if the server must register first. A registration with an older start than
    /// the known one is accepted only if no heartbeat has arrived for longer than `patience`, because clocks may be set
    /// back.
    pub fn record_heartbeat(&self, now: Instant, heartbeat: &Heartbeat, patience: Duration) -> bool {
        let mut servers = self.servers();
        if let Some(registration) = &heartbeat.registration {
            let known = servers.get(&heartbeat.server);
            let lately = |known: &TserverContact| now.since(known.last_heartbeat) <= patience;
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
        self.0.lock().expect("no task panics while holding it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::catalog::{HostPort, TserverRegistration};
    use engine::ids::Uuid;

    fn beat(instance: i64, registering: bool) -> Heartbeat {
        let rpc = vec![HostPort { host: format!("host{instance}"), port: 7050 }];
        let registration = TserverRegistration { rpc, ..TserverRegistration::default() };
        Heartbeat {
            server: Uuid([1; 16]),
            instance,
            registration: registering.then_some(registration),
            location: None,
            report: None,
        }
    }

    #[test]
    fn a_server_introduces_itself_once_in_each_life() {
        let known = KnownTservers::default();
        let heard = |now, beat| known.record_heartbeat(now, &beat, Duration::from_nanos(10));
        assert!(!heard(Instant(1), beat(1, false)));
        assert!(heard(Instant(2), beat(1, true)));
        assert!(heard(Instant(3), beat(1, false)));
        assert!(!heard(Instant(4), beat(2, false)), "it has started anew");
        assert!(heard(Instant(5), beat(2, true)));
        assert!(heard(Instant(6), beat(1, true)), "an old message");
        let all = known.all();
        assert_eq!((all.len(), all[0].instance, all[0].last_heartbeat), (1, 2, Instant(5)));
        assert!(
            heard(Instant(15), beat(1, true)),
            "an old message, though nothing was heard of the new life lately"
        );
        assert_eq!(known.all()[0].instance, 2);
        assert!(heard(Instant(16), beat(1, true)), "its clock was set back");
        assert_eq!(known.all()[0].instance, 1);
        assert!(heard(Instant(17), beat(2, true)));
        known.forget(Uuid([1; 16]));
        assert_eq!(known.count(), 0);
        assert!(!heard(Instant(18), beat(2, false)));
    }
}
