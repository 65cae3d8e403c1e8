//! Disturbances: what was wrong with which hosts, and when. Oracles excuse no failure of an operation without one.

use std::collections::BTreeMap;
use std::time::Duration;

use sim_plan::faults::FaultKind;
use sim_plan::{Fault, Host};

/// Kind of the disturbance by a server that does not run.
pub const DOWN: &str = "down";

/// A span in which something is wrong with some hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disturbance {
    /// Hosts that may be unreachable, slow or failed meanwhile.
    pub hosts: Vec<Host>,
    /// The fault's word, or what happened to the process.
    pub kind: &'static str,
    pub from: Duration,
    /// `None` if its effects may last until all faults have ended.
    pub to: Option<Duration>,
}

impl std::fmt::Display for Disturbance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(|host| host.name()).collect();
        let to = self.to.map_or("the end of all faults".to_string(), |to| format!("{to:?}"));
        write!(f, "{} of {} from {:?} to {to}", self.kind, hosts.join(", "), self.from)
    }
}

/// The disturbances of a run.
#[derive(Debug, Default)]
pub(super) struct Disturbances {
    all: Vec<Disturbance>,
}

impl Disturbances {
    /// Adds a disturbance with a known end.
    pub(super) fn span(&mut self, hosts: Vec<Host>, kind: &'static str, from: Duration, to: Duration) {
        self.all.push(Disturbance { hosts, kind, from, to: Some(to) });
    }

    /// Adds a disturbance that lasts until [`Disturbances::end`] of its kind and host, or of all.
    pub(super) fn begin(&mut self, host: Host, kind: &'static str, from: Duration) {
        self.all.push(Disturbance { hosts: vec![host], kind, from, to: None });
    }

    /// Adds the disturbance of a fault of a host's disks, clock, memory or processor.
    pub(super) fn of_device(&mut self, host: Host, fault: &Fault, now: Duration) {
        use FaultKind::*;
        match fault.kind() {
            // What waited for space continues by itself once there is some.
            DiskStall | DiskSlow | DiskFull | ClockJump | ClockDrift | ClockError | Memory | SlowCpu => {
                self.span(vec![host], fault.word(), now, now + fault.span());
            }
            // Timestamps of a clock that was ahead stay ahead until all clocks have reached them.
            ClockStep => self.begin(host, fault.word(), now),
            // The operation that fails may come late, and what it breaks is repaired later still.
            DiskError | DiskErrorAfter | SyncError | ReadErrors | BitRot | LostWrite | MisdirectedWrite
            | MetadataRot | UnreadablePages => self.begin(host, fault.word(), now),
            // Recorded where they are applied, with the hosts that they affect.
            Kill | PowerCut | PowerCutInDisk | PowerCutAfter | PowerCutInSync | PowerCutPages
            | RollingRestart | ZonePowerCut | Wipe | Pause | StrikeAfter | StrikeLeader | Isolate
            | CutLink | CutPeers | Swizzle | SlowLink | Loss | Reset | CutCall | NoConnect => {}
        }
    }

    /// Ends the open disturbances of this kind and host.
    pub(super) fn end(&mut self, host: Host, kind: &str, now: Duration) {
        let open = self.all.iter_mut().filter(|one| one.to.is_none() && one.kind == kind);
        open.filter(|one| one.hosts == [host]).for_each(|one| one.to = Some(now));
    }

    /// Ends all: no fault has an effect any more but on what must recover from it.
    pub(super) fn end_all(&mut self, now: Duration) {
        self.all.iter_mut().for_each(|one| one.to = Some(one.to.map_or(now, |to| to.min(now).max(one.from))));
    }

    pub(super) fn all(&self) -> &[Disturbance] {
        &self.all
    }
}

/// Returns the end of the last disturbance of each host; the far future if it is open.
pub fn last_ends(disturbances: &[Disturbance]) -> BTreeMap<Host, Duration> {
    let mut ends: BTreeMap<Host, Duration> = BTreeMap::new();
    for one in disturbances {
        for host in &one.hosts {
            let end = ends.entry(*host).or_default();
            *end = (*end).max(one.to.unwrap_or(Duration::MAX));
        }
    }
    ends
}

#[cfg(test)]
mod tests {
    use sim_plan::faults::HostDir;

    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_full_device_disturbs_while_it_is_full_and_a_failed_one_until_faults_end() {
        let (host, dir) = (Host::Tserver(1), HostDir::Wal);
        let mut disturbances = Disturbances::default();
        disturbances.of_device(host, &Fault::DiskFull { dir, free: 9, span: at(2) }, at(1));
        disturbances.of_device(host, &Fault::DiskError { dir, op: 1 }, at(1));
        let ends: Vec<_> = disturbances.all().iter().map(|one| one.to).collect();
        assert_eq!(ends, [Some(at(3)), None]);
    }

    #[test]
    fn open_disturbances_end_with_their_host_or_with_all() {
        let (one, other) = (Host::Tserver(1), Host::Tserver(2));
        let mut disturbances = Disturbances::default();
        disturbances.begin(one, "down", at(1));
        disturbances.begin(other, "down", at(2));
        disturbances.span(vec![one], "pause", at(3), at(30));
        disturbances.end(one, "down", at(4));
        disturbances.end_all(at(9));
        let ends: Vec<_> = disturbances.all().iter().map(|one| one.to).collect();
        assert_eq!(ends, [Some(at(4)), Some(at(9)), Some(at(9))]);
        assert_eq!(last_ends(disturbances.all()), BTreeMap::from([(one, at(9)), (other, at(9))]));
        let text = "down of t1 from 1s to 4s";
        assert_eq!(disturbances.all()[0].to_string(), text);
    }
}
