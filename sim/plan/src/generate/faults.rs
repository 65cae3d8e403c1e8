//! Faults of a plan, drawn from the kinds of its profile.

use std::time::Duration;

use crate::draws::{MS, SECOND, rounded};
use crate::fault_weights::{Generation, generation, percent_of, weighted_kinds};
use crate::faults::{
    CallPart, DiskEffect, Fault, FaultKind, HostDir, LinkDirection, MetadataKind, TimedFault, Trigger,
    TriggeredFault,
};
use crate::host::Host;
use crate::profile::{FaultProfile, PlanSize};
use crate::random_stream::RandomStream;
use crate::spec::ClusterSpec;

/// Time from the beginning of the workload to the first fault.
const CALM_START: Duration = Duration::from_millis(300);

/// Most faults of the second and of the third generation in a plan.
const SECOND_FAULTS_MAX: u64 = 4;
const THIRD_FAULTS_MAX: u64 = 2;
/// Sizes in seconds of steps of a clock.
const STEPS_S: [i64; 3] = [7, 60, 300];

pub(crate) struct FaultGenerator<'a> {
    random: &'a mut RandomStream,
    weights: Vec<(FaultKind, u32)>,
    masters: u8,
    tservers: u8,
    clients: u8,
    /// The only server that may lose or corrupt synced data.
    fragile: Option<Host>,
}

impl<'a> FaultGenerator<'a> {
    pub(super) fn new(
        random: &'a mut RandomStream,
        cluster: &ClusterSpec,
        profile: FaultProfile,
        clients: u8,
    ) -> FaultGenerator<'a> {
        let tservers = u64::from(cluster.tservers);
        let fragile = (cluster.replicas >= 3).then(|| Host::Tserver(random.below(tservers) as u8));
        FaultGenerator::of_kinds(random, cluster, profile, clients, fragile, Generation::First)
    }

    /// Creates a generator of the kinds of a generation.
    fn of_kinds(
        random: &'a mut RandomStream,
        cluster: &ClusterSpec,
        profile: FaultProfile,
        clients: u8,
        fragile: Option<Host>,
        drawn: Generation,
    ) -> FaultGenerator<'a> {
        let (masters, tservers) = (cluster.masters, cluster.tservers);
        let mut weights = Vec::new();
        for (of, kind, weight) in weighted_kinds().filter(|(_, kind, _)| generation(*kind) == drawn) {
            if random.percent(percent_of(profile, of)) && (!kind.loses_durable_data() || fragile.is_some()) {
                weights.push((kind, weight * random.pick(&[1, 3, 9])));
            }
        }
        FaultGenerator { random, weights, masters, tservers, clients, fragile }
    }

    pub(super) fn faults(&mut self, work: Duration, size: PlanSize) -> Vec<TimedFault> {
        let count = match size {
            PlanSize::Smoke if self.random.percent(30) => self.random.between(8, 20),
            PlanSize::Smoke => self.random.between(0, 8),
            PlanSize::Full => self.random.between(0, 30),
            PlanSize::Bench => 20,
        };
        if self.weights.is_empty() {
            return Vec::new();
        }
        let end = (work + SECOND).as_micros() as u64;
        let mut faults: Vec<TimedFault> = (0..count).map(|_| self.fault(end)).collect();
        faults.sort_by_key(|fault| fault.at);
        // One wipe at most: until the group evicts the old server's replica, a wipe of the new server loses a second
        // voter. Masters also wait a minute before they give up the new server.
        let mut wiped = false;
        faults.retain(|fault| {
            !matches!(fault.kind, Fault::Wipe { .. }) || !std::mem::replace(&mut wiped, true)
        });
        faults
    }

    /// Draws a few faults of the second generation, which lose no durable data.
    pub(super) fn second_faults(
        random: &'a mut RandomStream,
        cluster: &ClusterSpec,
        profile: FaultProfile,
        clients: u8,
        work: Duration,
    ) -> Vec<TimedFault> {
        let draw = FaultGenerator::of_kinds(random, cluster, profile, clients, None, Generation::Second);
        draw.few_faults(work, SECOND_FAULTS_MAX)
    }

    /// Draws a few faults of the third generation. Those that lose durable data hit the server that `earlier` ones hit.
    pub(super) fn third_faults(
        random: &'a mut RandomStream,
        cluster: &ClusterSpec,
        profile: FaultProfile,
        earlier: &[TimedFault],
        work: Duration,
    ) -> Vec<TimedFault> {
        let any = Host::Tserver(random.below(u64::from(cluster.tservers)) as u8);
        let damaging = earlier.iter().find(|fault| fault.kind.kind().loses_durable_data());
        let fragile = damaging.map_or(any, |fault| fault.target);
        let fragile = (cluster.replicas >= 3).then_some(fragile);
        let draw = FaultGenerator::of_kinds(random, cluster, profile, 1, fragile, Generation::Third);
        draw.few_faults(work, THIRD_FAULTS_MAX)
    }

    /// Draws one fault of a kind that loses no durable data, within `end`.
    pub(crate) fn one_fault(
        random: &'a mut RandomStream,
        cluster: &ClusterSpec,
        clients: u8,
        kind: FaultKind,
        end: Duration,
    ) -> TimedFault {
        let (masters, tservers, weights) = (cluster.masters, cluster.tservers, vec![(kind, 1)]);
        let mut draw = FaultGenerator { random, weights, masters, tservers, clients, fragile: None };
        draw.fault(end.as_micros() as u64)
    }

    fn few_faults(mut self, work: Duration, count_max: u64) -> Vec<TimedFault> {
        if self.weights.is_empty() {
            return Vec::new();
        }
        let end = (work + SECOND).as_micros() as u64;
        let count = self.random.between(1, count_max);
        (0..count).map(|_| self.fault(end)).collect()
    }

    fn fault(&mut self, end_micros: u64) -> TimedFault {
        let at = CALM_START + Duration::from_micros(self.random.below(end_micros));
        let at = Duration::from_millis(at.as_millis() as u64);
        let kind = self.random.weighted(&self.weights);
        let target = self.target(kind);
        TimedFault { at, target, kind: self.parameters(kind, target) }
    }

    /// Draws the server that a fault hits: the one whose data may be lost, the whole zone's first, or any.
    fn target(&mut self, kind: FaultKind) -> Host {
        match kind.disk_effect() {
            DiskEffect::SilentCorruption | DiskEffect::LosesReplicas | DiskEffect::Wipe => {
                self.fragile.expect("such a kind has a weight only with a target")
            }
            DiskEffect::None | DiskEffect::FailsReplicas if kind == FaultKind::ZonePowerCut => {
                Host::Tserver(0)
            }
            DiskEffect::None | DiskEffect::FailsReplicas => self.server(),
        }
    }

    /// Draws the parameters of a fault.
    ///
    /// Order: fields are drawn in the order in which they are written here. Plans of seeds depend on it.
    fn parameters(&mut self, kind: FaultKind, target: Host) -> Fault {
        use Fault::*;
        use FaultKind as Kind;
        match kind {
            Kind::Kill => self.process(|_, down| Kill { down }),
            Kind::PowerCut => self.process(|_, down| PowerCut { down }),
            Kind::PowerCutInDisk => {
                self.process(|draw, down| PowerCutInDisk { dir: draw.dir(), op: draw.countdown(200), down })
            }
            Kind::PowerCutAfter => self.process(|draw, down| {
                let (moment, nth) = (draw.trigger(), draw.countdown(6));
                PowerCutAfter { moment, nth, dir: draw.dir(), op: draw.countdown(25), down }
            }),
            Kind::PowerCutPages => self.process(|_, down| PowerCutPages { down }),
            Kind::RollingRestart => self.process(|draw, down| {
                let down = rounded(down / 5);
                RollingRestart { down, every: down + rounded(draw.random.span(100 * MS, 3 * SECOND)) }
            }),
            Kind::StrikeAfter => self.process(|draw, span| {
                let (moment, nth) = (draw.trigger(), draw.countdown(4));
                StrikeAfter { moment, nth, blow: draw.triggered_fault(), span }
            }),
            Kind::StrikeLeader => {
                self.process(|draw, span| StrikeLeader { blow: draw.triggered_fault(), span })
            }
            Kind::ZonePowerCut => {
                self.process(|draw, down| ZonePowerCut { others: draw.other_servers(target), down })
            }
            Kind::Pause => self.process(|_, span| Pause { span }),
            Kind::Wipe => self.process(|_, down| Wipe { down }),

            Kind::Isolate
            | Kind::CutPeers
            | Kind::CutLink
            | Kind::Swizzle
            | Kind::SlowLink
            | Kind::Loss
            | Kind::CutCall
            | Kind::Reset
            | Kind::NoConnect => self.network_parameters(kind, target),

            Kind::DiskStall
            | Kind::DiskSlow
            | Kind::DiskError
            | Kind::DiskErrorAfter
            | Kind::SyncError
            | Kind::ReadErrors
            | Kind::PowerCutInSync
            | Kind::DiskFull
            | Kind::BitRot
            | Kind::LostWrite
            | Kind::MisdirectedWrite
            | Kind::MetadataRot
            | Kind::UnreadablePages => self.disk_parameters(kind),

            Kind::ClockStep => self.node(|draw, span| draw.clock_step(span)),
            Kind::ClockJump => self.node(|draw, _| ClockJump { micros: draw.signed(20_000) }),
            Kind::ClockDrift => self.node(|draw, span| ClockDrift { ppm: draw.drift_ppm(), span }),
            Kind::ClockError => self.node(|draw, span| {
                let micros = draw.random.pick(&[100_000, 1_000_000]);
                ClockError { micros, behind: draw.random.percent(50), span }
            }),
            Kind::Memory => self.node(|draw, span| Memory { bytes: draw.memory_bytes(), span }),
            Kind::SlowCpu => self.node(|draw, span| SlowCpu { factor: draw.factor(), span }),
        }
    }

    fn disk_parameters(&mut self, kind: FaultKind) -> Fault {
        use Fault::*;
        use FaultKind as Kind;
        match kind {
            Kind::DiskStall => self.disk(|_, dir, span| DiskStall { dir, span }),
            Kind::DiskSlow => self.disk(|draw, dir, span| DiskSlow { dir, factor: draw.factor(), span }),
            Kind::DiskError => self.disk(|draw, dir, _| DiskError { dir, op: draw.countdown(200) }),
            Kind::DiskErrorAfter => self.disk(|draw, dir, _| DiskErrorAfter {
                moment: draw.trigger(),
                nth: draw.countdown(3),
                dir,
                op: draw.countdown(12),
            }),
            Kind::SyncError => self.disk(|draw, dir, _| SyncError { dir, sync: draw.countdown(60) }),
            Kind::ReadErrors => self.disk(|draw, dir, span| ReadErrors {
                dir,
                per_mille: draw.random.pick(&[5, 50, 300]),
                span,
            }),
            Kind::PowerCutInSync => {
                self.disk(|draw, dir, down| PowerCutInSync { dir, sync: draw.countdown(60), down })
            }
            Kind::DiskFull => {
                self.disk(|draw, dir, span| DiskFull { dir, free: draw.random.below(4096), span })
            }
            Kind::BitRot => self.disk(|draw, _, _| BitRot { bits: draw.countdown(4) as u8 }),
            Kind::LostWrite => self.disk(|draw, _, _| LostWrite { write: draw.countdown(100) }),
            Kind::MisdirectedWrite => self.disk(|draw, _, _| MisdirectedWrite { write: draw.countdown(100) }),
            Kind::MetadataRot => self.disk(|draw, _, _| MetadataRot {
                files: draw.random.pick(MetadataKind::ALL),
                bits: draw.countdown(4) as u8,
            }),
            Kind::UnreadablePages => {
                self.disk(|draw, _, _| UnreadablePages { pages: draw.countdown(4) as u8 })
            }
            other => unreachable!("{} is no fault of disks", other.word()),
        }
    }

    fn network_parameters(&mut self, kind: FaultKind, target: Host) -> Fault {
        use Fault::*;
        use FaultKind as Kind;
        match kind {
            Kind::Isolate => self.network(|draw, span| Isolate { way: draw.direction(), span }),
            Kind::CutPeers => self.network(|draw, span| CutPeers { way: draw.direction(), span }),
            Kind::CutLink => {
                self.network(|draw, span| CutLink { peer: draw.peer(target), way: draw.direction(), span })
            }
            Kind::Swizzle => self.network(|_, span| Swizzle { span }),
            Kind::SlowLink => self.network(|draw, span| {
                let latency = rounded(draw.random.span(MS, SECOND));
                SlowLink { peer: draw.peer(target), latency, span }
            }),
            Kind::Loss => self.network(|draw, span| Loss { percent: draw.countdown(40) as u8, span }),
            Kind::CutCall => self.network(|draw, span| CutCall {
                peer: draw.peer(target),
                part: draw.random.pick(CallPart::ALL),
                nth: draw.countdown(30),
                span,
            }),
            Kind::Reset => self.network(|draw, _| Reset { peer: draw.peer(target) }),
            Kind::NoConnect => self.network(|draw, span| NoConnect { hang: draw.random.percent(50), span }),
            other => unreachable!("{} is no fault of the network", other.word()),
        }
    }

    // Kinds are in four groups: process, network, disk, node. Order: each group first repeats the draws of the groups
    // before it, on which plans of seeds depend.

    fn process(&mut self, fault: impl FnOnce(&mut Self, Duration) -> Fault) -> Fault {
        let span = self.span();
        fault(self, span)
    }

    fn network(&mut self, fault: impl FnOnce(&mut Self, Duration) -> Fault) -> Fault {
        self.span();
        self.process(fault)
    }

    fn disk(&mut self, fault: impl FnOnce(&mut Self, HostDir, Duration) -> Fault) -> Fault {
        self.network(|draw, _| {
            let (dir, span) = (draw.dir(), draw.span());
            fault(draw, dir, span)
        })
    }

    fn node(&mut self, fault: impl FnOnce(&mut Self, Duration) -> Fault) -> Fault {
        self.disk(|draw, _, _| draw.process(fault))
    }

    fn span(&mut self) -> Duration {
        rounded(self.random.span(5 * MS, 10 * SECOND))
    }

    fn server(&mut self) -> Host {
        match self.random.below(u64::from(self.tservers) * 2 + u64::from(self.masters)) as u8 {
            number if number < self.masters => Host::Master(number),
            number => Host::Tserver((number - self.masters) / 2),
        }
    }

    fn peer(&mut self, target: Host) -> Host {
        for _ in 0..8 {
            let peer = match self.random.percent(40) {
                true => Host::Client(self.random.below(u64::from(self.clients)) as u8),
                false => self.server(),
            };
            if peer != target {
                return peer;
            }
        }
        Host::Client(0)
    }

    fn other_servers(&mut self, target: Host) -> Vec<Host> {
        let others = (0..self.tservers).map(Host::Tserver).filter(|other| *other != target);
        others.filter(|_| self.random.percent(60)).collect()
    }

    fn direction(&mut self) -> LinkDirection {
        self.random.weighted(&[(LinkDirection::Both, 2), (LinkDirection::In, 1), (LinkDirection::Out, 1)])
    }

    fn dir(&mut self) -> HostDir {
        self.random.pick(&[HostDir::Wal, HostDir::Data])
    }

    fn trigger(&mut self) -> Trigger {
        self.random.pick(Trigger::ALL)
    }

    fn triggered_fault(&mut self) -> TriggeredFault {
        self.random.pick(TriggeredFault::ALL)
    }

    fn countdown(&mut self, last: u64) -> u32 {
        self.random.between(1, last) as u32
    }

    fn factor(&mut self) -> u32 {
        self.random.pick(&[3, 10, 100])
    }

    fn memory_bytes(&mut self) -> u64 {
        self.random.pick(&[4 << 20, 16 << 20, 32 << 20])
    }

    /// Draws a step that the machine states. Written plans may have others: answers of servers are not checked then.
    fn clock_step(&mut self, span: Duration) -> Fault {
        let size = self.random.pick(&STEPS_S);
        let seconds = if self.random.percent(50) { size } else { -size };
        Fault::ClockStep { seconds, told: true, span }
    }

    /// Draws a drift that a time service corrects, or one beyond that.
    fn drift_ppm(&mut self) -> i64 {
        let most = self.random.pick(&[500, 50_000]);
        self.signed(most)
    }

    /// Draws a number from `-most` to `most`.
    fn signed(&mut self, most: u64) -> i64 {
        self.random.between(0, 2 * most) as i64 - most as i64
    }
}
