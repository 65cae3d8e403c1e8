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
        let report = heartbeat.report.as_ref().and_then(|report| report.number);
        if let Some(registration) = &heartbeat.registration {
            let known = servers.get(&heartbeat.server);
            let lately = |known: &TserverContact| now.since(known.last_heartbeat) <= silence_max;
            if known.is_some_and(|known| known.instance > heartbeat.instance && lately(known)) {
                return true; // A message of an earlier life that was long under way.
            }
            let same_run = known.filter(|known| known.instance == heartbeat.instance);
            let server = TserverContact {
                id: heartbeat.server,
                instance: heartbeat.instance,
                registration: registration.clone(),
                location: heartbeat.location.clone(),
                cluster: heartbeat.cluster,
                last_heartbeat: now,
                last_report: report.or(same_run.and_then(|known| known.last_report)),
            };
            servers.insert(heartbeat.server, server);
            return true;
        }
        match servers.get_mut(&heartbeat.server).filter(|known| known.instance == heartbeat.instance) {
            Some(known) => {
                known.last_heartbeat = now;
                known.cluster = heartbeat.cluster;
                known.last_report = report.or(known.last_report);
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
    use engine::catalog::{HostPort, TabletReport, TserverRegistration};
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

    /// A master that leads again compares the first report with the last that it received.
    #[test]
    fn the_last_reports_number_is_kept_through_a_run() {
        let known = KnownTservers::default();
        let record = |instance, registering, number| {
            let report = TabletReport { number, ..TabletReport::default() };
            let report = number.map(|_| report);
            let heartbeat = Heartbeat { report, ..heartbeat(instance, registering) };
            assert!(known.record_heartbeat(Instant(1), &heartbeat, Duration::from_nanos(10)));
            known.all()[0].last_report
        };
        assert_eq!(record(1, true, Some(7)), Some(7));
        assert_eq!(record(1, false, Some(8)), Some(8));
        assert_eq!(record(1, false, None), Some(8));
        assert_eq!(record(1, true, None), Some(8));
        assert_eq!(record(2, true, None), None, "it has restarted, and begins to count again");
    }

    /// A new leader leaves out servers of another cluster, which a master that does not lead does not refuse.
    #[test]
    fn the_cluster_of_the_last_heartbeat_is_kept() {
        let known = KnownTservers::default();
        let record = |registering, cluster| {
            let heartbeat = Heartbeat { cluster, ..heartbeat(1, registering) };
            assert!(known.record_heartbeat(Instant(1), &heartbeat, Duration::from_nanos(10)));
            known.all()[0].cluster
        };
        let cluster = Some(Uuid([9; 16]));
        assert_eq!(record(true, None), None);
        assert_eq!(record(false, cluster), cluster);
        assert_eq!(record(true, cluster), cluster);
    }
}
