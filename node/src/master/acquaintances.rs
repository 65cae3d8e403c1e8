//! The tablet servers that this master has heard of, whether it leads or not.
//!
//! Tablet servers beat to every master. One that is elected can so place tablets at once, and does not take a whole
//! cluster for dead until it has heard of everybody anew.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use engine::catalog::{Heartbeat, KnownServer};
use engine::ids::PeerId;
use engine::time::Instant;

/// See the module. Kept for as long as the master runs.
#[derive(Debug, Default)]
pub struct Acquaintances(Mutex<BTreeMap<PeerId, KnownServer>>);

impl Acquaintances {
    /// Takes in a heartbeat; `false` if the server has to introduce itself first. A life that is said to have begun
    /// before the one that is known is believed once that one has been silent for longer than `patience`: clocks are
    /// set back.
    pub fn heard(&self, now: Instant, heartbeat: &Heartbeat, patience: Duration) -> bool {
        let mut servers = self.servers();
        if let Some(registration) = &heartbeat.registration {
            let known = servers.get(&heartbeat.server);
            let lately = |known: &KnownServer| now.since(known.last_heartbeat) <= patience;
            if known.is_some_and(|known| known.instance > heartbeat.instance && lately(known)) {
                return true; // A message of an earlier life that was long under way.
            }
            let server = KnownServer {
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

    /// How long a server has not been heard of; `None` if it is not known.
    pub fn silence(&self, now: Instant, server: PeerId) -> Option<Duration> {
        self.servers().get(&server).map(|known| now.since(known.last_heartbeat))
    }

    /// Forgets a server until it introduces itself again.
    pub fn forget(&self, server: PeerId) {
        self.servers().remove(&server);
    }

    /// Everybody, in the order of their ids.
    pub fn all(&self) -> Vec<KnownServer> {
        self.servers().values().cloned().collect()
    }

    pub fn count(&self) -> usize {
        self.servers().len()
    }

    fn servers(&self) -> MutexGuard<'_, BTreeMap<PeerId, KnownServer>> {
        self.0.lock().expect("nobody panics while holding it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::catalog::{HostPort, Registration};
    use engine::ids::Uuid;

    fn beat(instance: i64, registering: bool) -> Heartbeat {
        let rpc = vec![HostPort { host: format!("host{instance}"), port: 7050 }];
        let registration = Registration { rpc, ..Registration::default() };
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
        let known = Acquaintances::default();
        let heard = |now, beat| known.heard(now, &beat, Duration::from_nanos(10));
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
