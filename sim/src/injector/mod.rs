//! The fault injector: applies a plan's faults and ends them.
//!
//! Each fault changes the world when it begins and schedules the action that undoes it. A fault that does not apply,
//! such as a kill of a server that is down, is not counted.

mod cut_links;
mod disk_faults;
pub mod disturbances;
mod machine_faults;
mod metadata_rot;
mod network_faults;
mod reseeds;
mod triggers;

use std::collections::BTreeMap;
use std::time::Duration;

use engine::disk::mem::{DiskOpKind, MemDisk};
use engine::time::Instant;

use crate::cluster::{WAL_DIR, data_dirs, device_cost};
use crate::net::call_cuts::CallCutId;
use crate::trigger::{ArmedTrigger, EIO, TriggerAction};
use crate::world::{BOOTED, LinkRule, LinkRuleId, World};
use cut_links::CutLinks;
use disturbances::{DOWN, Disturbance, Disturbances};
use sim_plan::RandomStream;
use sim_plan::faults::HostDir;
use sim_plan::{Fault, FaultKind, FinalRestart, Host, Plan};

/// Time until a supervisor restarts a process that ended by itself.
const SUPERVISOR_PAUSE: Duration = Duration::from_millis(500);
/// Interval at which the operator checks if a server must be restarted, once faults of its disks have begun: a fault
/// may wait long for the operation that it hits.
const OPERATOR_PAUSE: Duration = Duration::from_secs(2);
/// Kind of a disturbance: clients and jobs ask more of a server's devices than they can do.
const OVERLOAD: &str = "overload";
/// Free bytes of a disk that is not full.
const DISK_FREE: u64 = 1 << 40;

/// An action that is due at a time.
#[derive(Debug, Clone)]
enum ScheduledAction {
    /// The plan's fault of this number begins.
    Begin(usize),
    /// The host is restarted, unless it has been since that many starts.
    Start(Host, u64),
    Resume(Host),
    AddRule(LinkRule, Duration),
    RemoveRule(LinkRuleId),
    /// A call to cut is not awaited any longer.
    DisarmCallCut(CallCutId),
    /// A server is killed, and restarts after this time.
    Kill(Host, Duration),
    DiskSpeed(Host, HostDir),
    DiskSpace(Host, HostDir),
    ReadErrors(Host, HostDir),
    ClockDrift(Host, i64),
    /// The clock's stated error is correct again, and the clock is no longer ahead, or behind, by this much.
    ClockSure {
        host: Host,
        error_us: u64,
        ahead_us: i64,
    },
    Memory(Host),
    Cpu(Host),
    /// The operator checks if the server's disks failed, and schedules the next check.
    HealthCheck(Host),
    /// Machines, network and injector draw from another seed.
    Reseed(u64),
}

/// Counter of calls that were cut.
pub const CALLS_CUT: &str = "net: calls cut";

/// Kinds of faults that wait for an operation of a device, with the device's counter of them.
pub const FAULT_COUNTERS: &[(&str, &str)] = &[
    ("bit-rot", "disk: bits flipped"),
    ("disk-error", "disk: operations failed"),
    ("disk-error-after", "disk: operations failed"),
    ("disk-full", "disk: full"),
    ("cut-call", CALLS_CUT),
    ("lost-write", "disk: writes never made"),
    ("metadata-rot", "disk: bits flipped"),
    ("unreadable-pages", "disk: pages unreadable"),
    ("misdirected-write", "disk: writes misdirected"),
    ("power-cut", "disk: names lost"),
    ("power-cut", "disk: writes lost"),
    ("power-cut", "disk: writes torn"),
    ("power-cut-pages", "disk: pages lost"),
    ("power-cut-in-sync", "disk: power cuts in sync"),
    ("sync-error", "disk: syncs failed"),
];

/// Uptime after which a server has the tablets that were created while it was away.
const CAUGHT_UP_AFTER: Duration = Duration::from_secs(1);

/// The state of a server.
#[derive(Debug, Clone, Default)]
struct HostState {
    down: bool,
    paused: bool,
    /// Time since which it is up, down or paused; zero if it has always been up.
    since: Duration,
    starts: u64,
    /// An armed power cut within a disk operation: its kind and duration.
    armed_power_cut: Option<(&'static str, Duration)>,
    /// Failed operations of its disks at its last start.
    failed_before: u64,
    /// True if data on its disks was damaged.
    damaged: bool,
    /// True if the operator checks its disks.
    health_checked: bool,
    /// True if its clock states a large error and is ahead.
    clock_error_raised: bool,
}

/// The fault injector of one run.
pub struct FaultInjector {
    plan: Plan,
    draw: RandomStream,
    /// Actions by time since the run began.
    due: BTreeMap<(Duration, u64), ScheduledAction>,
    next: u64,
    /// Servers, and clients that back up tables.
    hosts: BTreeMap<Host, HostState>,
    links: CutLinks,
    disturbances: Disturbances,
    /// True if no more faults may begin.
    faults_ended: bool,
    /// Number of applied faults by kind.
    pub fired: BTreeMap<String, u64>,
}

impl FaultInjector {
    /// `start`: the time since the run began from which the plan counts.
    pub fn new(plan: &Plan, start: Duration) -> FaultInjector {
        let hosts = plan.servers().into_iter().chain(plan.backup_hosts());
        let hosts = hosts.map(|host| (host, HostState::default())).collect();
        let mut injector = FaultInjector {
            plan: plan.clone(),
            draw: RandomStream::new(plan.seed, "chaos"),
            due: BTreeMap::new(),
            next: 0,
            hosts,
            links: CutLinks::default(),
            disturbances: Disturbances::default(),
            faults_ended: false,
            fired: BTreeMap::new(),
        };
        for (number, fault) in plan.faults.iter().enumerate() {
            injector.at(start + fault.at, ScheduledAction::Begin(number));
        }
        for reseed in &plan.reseeds {
            injector.at(start + reseed.at, ScheduledAction::Reseed(reseed.seed));
        }
        injector
    }

    fn at(&mut self, at: Duration, action: ScheduledAction) {
        self.due.insert((at, self.next), action);
        self.next += 1;
    }

    /// Returns the time of the next action.
    pub fn next_at(&self) -> Option<Duration> {
        self.due.keys().next().map(|(at, _)| *at)
    }

    /// Performs the actions that are due.
    pub fn run_due(&mut self, world: &mut dyn World) {
        while let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= world.now()) {
            let action = entry.remove();
            self.perform(world, action);
        }
    }

    fn servers(&self) -> impl Iterator<Item = (&Host, &HostState)> {
        self.hosts.iter().filter(|(host, _)| !matches!(host, Host::Client(_)))
    }

    /// Returns the servers that are stopped or cut off, with the time since which no message of theirs arrives. Earlier
    /// messages may be delayed by a blocked link, for as long as it is blocked.
    pub fn silent_hosts(&self) -> BTreeMap<Host, Duration> {
        let since = |host: Host, state: &HostState| {
            if state.down || state.paused {
                return self.links.clear(&host.name()).map(|clear| clear.max(state.since));
            }
            let others = self.servers().filter(|(other, _)| **other != host).map(|(other, _)| other.name());
            self.links.cut_off(&host.name(), others)
        };
        let silent = self.servers().filter_map(|(host, state)| Some((*host, since(*host, state)?)));
        silent.collect()
    }

    /// Returns true if every other server has been up long enough to have the tablets created while it was away. Of a
    /// tablet's three replicas one may not exist yet: losing another then would leave no majority.
    fn all_others_up(&self, now: Duration, target: Host) -> bool {
        self.servers().filter(|(host, _)| **host != target).all(|(_, state)| {
            !state.down
                && !state.paused
                && (state.since.is_zero() || now.saturating_sub(state.since) > CAUGHT_UP_AFTER)
        })
    }

    /// Adds the spans in which the servers' devices had more to do than they can, as slow ones have from load alone.
    pub fn note_overloads(&mut self, world: &mut dyn World) {
        let hosts: Vec<Host> = self.servers().map(|(host, _)| *host).collect();
        for host in hosts {
            for (from, to) in world.machine(&host.name()).overloads() {
                let (from, to) = (from.since(Instant(0)), to.since(Instant(0)));
                self.disturbances.span(vec![host], OVERLOAD, from - BOOTED, to - BOOTED);
            }
        }
    }

    /// Returns what was wrong with which hosts.
    pub fn disturbances(&self) -> &[Disturbance] {
        self.disturbances.all()
    }

    fn count(&mut self, what: &str) {
        *self.fired.entry(what.to_string()).or_default() += 1;
    }

    fn state(&mut self, host: Host) -> &mut HostState {
        self.hosts.entry(host).or_default()
    }

    fn perform(&mut self, world: &mut dyn World, action: ScheduledAction) {
        let true_micros = world.true_micros();
        match action {
            ScheduledAction::Begin(number) => self.begin(world, number),
            ScheduledAction::Start(host, starts) => {
                if self.state(host).starts == starts && self.state(host).down {
                    self.start(world, host);
                }
            }
            ScheduledAction::Resume(host) => {
                if std::mem::take(&mut self.state(host).paused) {
                    self.state(host).since = world.now();
                    world.resume(&host.name());
                }
            }
            ScheduledAction::AddRule(rule, until) => self.rule(world, rule, until),
            ScheduledAction::RemoveRule(id) => {
                if self.links.remove(id, world.now()) {
                    world.remove_rule(id);
                }
            }
            ScheduledAction::DisarmCallCut(id) => world.disarm_call_cut(id),
            ScheduledAction::Kill(host, down) => {
                self.take_down(world, host, down, |world, host| world.kill(host));
            }
            ScheduledAction::DiskSpeed(host, dir) => {
                let machine = world.machine(&host.name());
                self.directories(host, dir).iter().for_each(|dir| machine.slow_disk(dir, 1));
            }
            ScheduledAction::DiskSpace(host, dir) => {
                let machine = world.machine(&host.name());
                self.directories(host, dir).iter().for_each(|dir| machine.disk(dir).set_free(DISK_FREE));
            }
            ScheduledAction::ReadErrors(host, dir) => {
                let machine = world.machine(&host.name());
                let end = |dir: &&str| machine.disk(dir).fail_some(DiskOpKind::Read, 0, EIO);
                self.directories(host, dir).iter().for_each(end);
            }
            ScheduledAction::ClockDrift(host, ppm) => {
                world.machine(&host.name()).drift_clock(ppm, true_micros)
            }
            ScheduledAction::ClockSure { host, error_us, ahead_us } => {
                self.state(host).clock_error_raised = false;
                let machine = world.machine(&host.name());
                machine.jump_clock(-ahead_us);
                machine.set_clock_error(error_us, world.now());
            }
            ScheduledAction::Memory(host) => {
                world.machine(&host.name()).set_memory_bytes(self.plan.cluster.memory)
            }
            ScheduledAction::Cpu(host) => world.machine(&host.name()).slow_cpu(1),
            ScheduledAction::HealthCheck(host) => self.restart_if_failed(world, host),
            ScheduledAction::Reseed(seed) => self.reseed(world, seed),
        }
    }

    /// Restarts a server with failed disk operations: it stays failed until its operator restarts it.
    fn restart_if_failed(&mut self, world: &mut dyn World, host: Host) {
        if disk_failures(world, host) > self.state(host).failed_before {
            self.take_down(world, host, SUPERVISOR_PAUSE, |world, host| world.kill(host));
        }
        self.at(world.now() + OPERATOR_PAUSE, ScheduledAction::HealthCheck(host));
    }

    fn schedule_health_check(&mut self, host: Host, from: Duration) {
        let Some(state) = self.hosts.get_mut(&host) else { return };
        if !std::mem::replace(&mut state.health_checked, true) {
            self.at(from, ScheduledAction::HealthCheck(host));
        }
    }

    fn start(&mut self, world: &mut dyn World, host: Host) {
        let (failed_before, now) = (disk_failures(world, host), world.now());
        self.disturbances.end(host, DOWN, now);
        let state = self.state(host);
        state.since = now;
        (state.down, state.paused, state.failed_before) = (false, false, failed_before);
        state.starts += 1;
        world.restart(&host.name());
    }

    /// Takes a host down, if it is up, and schedules its restart after `down`.
    fn take_down(
        &mut self,
        world: &mut dyn World,
        host: Host,
        down: Duration,
        how: impl FnOnce(&mut dyn World, &str),
    ) -> bool {
        // Only a process that restarts can be stopped: other clients cannot.
        let Some(state) = self.hosts.get_mut(&host).filter(|state| !state.down) else { return false };
        (state.down, state.paused, state.armed_power_cut, state.since) = (true, false, None, world.now());
        let starts = state.starts;
        self.disturbances.begin(host, DOWN, world.now());
        world.machine(&host.name()).triggers().clear();
        how(world, &host.name());
        self.at(world.now() + down, ScheduledAction::Start(host, starts));
        true
    }

    fn begin(&mut self, world: &mut dyn World, number: usize) {
        let fault = self.plan.faults[number].clone();
        let (target, kind) = (fault.target, &fault.kind);
        let (now, text) = (world.now(), sim_plan::line_format::LineRecord::line(kind));
        world.log().record_timeline(now.as_nanos() as u64, &target.name(), "fault", &text);
        if world.draws_by_key() {
            // By what the fault is: its number is another one if one before it is left out.
            self.draw = RandomStream::new(self.plan.seed, &sim_plan::line_format::LineRecord::line(&fault));
        }
        if let Fault::StrikeLeader { blow, span } = kind {
            let leader = self.likely_leader(world, target);
            return self.apply_to_host(world, leader, *blow, *span, kind.word());
        }
        self.disturbances.of_device(target, kind, now);
        self.arm_trigger(world, target, kind, number);
        if self.apply(world, target, kind) {
            self.count(kind.word());
        }
    }

    /// Applies a fault in the function of its group; false if it did not apply, or is counted when it fires.
    fn apply(&mut self, world: &mut dyn World, target: Host, kind: &Fault) -> bool {
        use FaultKind::*;
        match kind.kind() {
            Kill | PowerCut | PowerCutInDisk | PowerCutAfter | PowerCutInSync | PowerCutPages
            | RollingRestart | ZonePowerCut | Wipe | Pause => self.apply_process_fault(world, target, kind),
            Isolate | CutLink | CutPeers | Swizzle | SlowLink | Loss | Reset | CutCall | NoConnect => {
                self.apply_network_fault(world, target, kind)
            }
            DiskStall | DiskSlow | DiskError | DiskErrorAfter | DiskFull | SyncError | ReadErrors
            | BitRot | LostWrite | MisdirectedWrite | MetadataRot | UnreadablePages => {
                self.apply_disk_fault(world, target, kind)
            }
            ClockJump | ClockDrift | ClockError | ClockStep | Memory | SlowCpu => {
                self.apply_machine_fault(world, target, kind)
            }
            // A trigger applies another fault later.
            StrikeAfter | StrikeLeader => false,
        }
    }

    fn apply_process_fault(&mut self, world: &mut dyn World, target: Host, kind: &Fault) -> bool {
        match kind {
            Fault::Kill { down } => self.take_down(world, target, *down, |world, host| world.kill(host)),
            Fault::PowerCut { down } => {
                self.take_down(world, target, *down, |world, host| world.cut_power(host))
            }
            Fault::PowerCutPages { down } => {
                let data = self.directories(target, HostDir::Data);
                self.take_down(world, target, *down, |world, host| {
                    let machine = world.machine(host);
                    [WAL_DIR].iter().chain(data).for_each(|dir| machine.disk(dir).scatter_unsynced());
                    world.cut_power(host);
                })
            }
            Fault::RollingRestart { down, every } => {
                let now = world.now();
                for (number, host) in (1_u32..).zip(self.role_after(target)) {
                    self.at(now + *every * number, ScheduledAction::Kill(host, *down));
                }
                self.take_down(world, target, *down, |world, host| world.kill(host))
            }
            Fault::ZonePowerCut { others, down } => {
                let mut applied = 0;
                for host in others.iter().copied().chain([target]) {
                    let cut = self.take_down(world, host, *down, |world, host| world.cut_power(host));
                    applied += u32::from(cut);
                }
                applied > 0
            }
            Fault::Wipe { down } => {
                let whole = self.all_others_up(world.now(), target);
                let applied = self.take_down(world, target, *down, |world, host| {
                    world.cut_power(host);
                    if whole {
                        world.machine(host).wipe_disks();
                    }
                });
                self.disturbances.begin(target, kind.word(), world.now());
                if applied && !whole {
                    self.count("power-cut");
                }
                applied && whole
            }
            Fault::PowerCutInDisk { .. } | Fault::PowerCutAfter { .. } | Fault::PowerCutInSync { .. } => {
                self.arm_power_cut(world, target, kind);
                // Counted when it fires.
                false
            }
            Fault::Pause { span } => {
                let state = self.state(target);
                if state.down || std::mem::replace(&mut state.paused, true) {
                    return false;
                }
                state.since = world.now();
                self.disturbances.span(vec![target], kind.word(), world.now(), world.now() + *span);
                world.pause(&target.name());
                self.at(world.now() + *span, ScheduledAction::Resume(target));
                true
            }
            other => unreachable!("{} is no fault of a process", other.word()),
        }
    }

    /// Arms a loss of power within a later operation of a disk; a host that is down has none.
    fn arm_power_cut(&mut self, world: &mut dyn World, target: Host, kind: &Fault) {
        if self.state(target).down {
            return;
        }
        match kind {
            Fault::PowerCutInDisk { dir, op, down } => {
                self.power_cut_disk(world, target, kind, *down, *dir).cut_power_at(u64::from(*op));
            }
            Fault::PowerCutAfter { moment, nth, dir, op, down } => {
                self.state(target).armed_power_cut = Some((kind.word(), *down));
                let machine = world.machine(&target.name());
                let disk = machine.disk(self.directory(target, *dir));
                let charge = TriggerAction::PowerCut(disk, *op);
                machine.triggers().arm(ArmedTrigger { trigger: *moment, nth: *nth, action: charge });
            }
            Fault::PowerCutInSync { dir, sync, down } => {
                let disk = self.power_cut_disk(world, target, kind, *down, *dir);
                disk.cut_power_at_nth(DiskOpKind::Sync, u64::from(*sync));
            }
            other => unreachable!("{} is no loss of power in a disk", other.word()),
        }
    }

    /// Returns the disk within one of whose operations the target loses power.
    fn power_cut_disk(
        &mut self,
        world: &mut dyn World,
        target: Host,
        kind: &Fault,
        down: Duration,
        dir: HostDir,
    ) -> MemDisk {
        self.state(target).armed_power_cut = Some((kind.word(), down));
        let machine = world.machine(&target.name());
        machine.triggers().expect_cut();
        machine.disk(self.directory(target, dir))
    }

    /// Returns the directories of a host that a fault may mean.
    fn directories(&self, host: Host, dir: HostDir) -> &'static [&'static str] {
        match dir {
            HostDir::Wal => &[WAL_DIR],
            HostDir::Data => data_dirs(&self.plan, host),
        }
    }

    /// Draws the directory of a host that a fault hits.
    fn directory(&mut self, host: Host, dir: HostDir) -> &'static str {
        let all = self.directories(host, dir);
        // Hosts with one directory draw nothing: other draws of their faults stay as they were.
        if all.len() == 1 { all[0] } else { self.draw.pick(all) }
    }

    /// Handles the power loss of a host within a disk operation.
    pub fn on_power_loss(&mut self, world: &mut dyn World, host: &str) {
        let Some(host) = self.host(host) else { return };
        let (kind, down) =
            self.state(host).armed_power_cut.take().unwrap_or(("power-cut-in-disk", SUPERVISOR_PAUSE));
        if self.take_down(world, host, down, |world, host| world.cut_power(host)) {
            self.count(kind);
        }
    }

    /// Handles a server process that ended by itself: a supervisor restarts it. False if it was taken down before.
    pub fn on_exit(&mut self, world: &mut dyn World, host: &str, error: Option<&str>) -> bool {
        let now = world.now().as_nanos() as u64;
        world.log().record_timeline(now, host, "exit", error.unwrap_or("in order"));
        let Some(host) = self.host(host) else { return false };
        let was_up = self.take_down(world, host, SUPERVISOR_PAUSE, |world, host| world.kill(host));
        if was_up {
            self.count("exit");
        }
        was_up
    }

    fn host(&self, name: &str) -> Option<Host> {
        self.hosts.keys().copied().find(|host| host.name() == name)
    }

    /// Takes down all servers at once and restarts them.
    pub fn final_restart(&mut self, world: &mut dyn World) {
        let cut = self.plan.ending == FinalRestart::PowerCut;
        if self.plan.ending == FinalRestart::Stay {
            return;
        }
        let note = format!("all servers at once: {}", self.plan.ending.word());
        world.log().record_timeline(world.now().as_nanos() as u64, "network", "fault", &note);
        let hosts: Vec<Host> = self.servers().map(|(host, _)| *host).collect();
        for host in &hosts {
            let how = |world: &mut dyn World, host: &str| match cut {
                true => world.cut_power(host),
                false => world.kill(host),
            };
            self.take_down(world, *host, Duration::ZERO, how);
        }
        hosts.into_iter().for_each(|host| self.start(world, host));
        self.count(if cut { "ending: power cut" } else { "ending: kill" });
    }

    /// Ends all faults of links, disks, clocks and memory. Restarts servers that are down, failed or damaged.
    pub fn end_faults(&mut self, world: &mut dyn World) {
        self.faults_ended = true;
        self.disturbances.end_all(world.now());
        for (_, action) in std::mem::take(&mut self.due) {
            let begins = matches!(
                action,
                ScheduledAction::Begin(_)
                    | ScheduledAction::AddRule(..)
                    | ScheduledAction::Start(..)
                    | ScheduledAction::Kill(..)
                    | ScheduledAction::HealthCheck(..)
            );
            if !begins {
                self.perform(world, action);
            }
        }
        let hosts: Vec<Host> = self.hosts.keys().copied().collect();
        for host in hosts {
            let machine = world.machine(&host.name());
            let data = self.directories(host, HostDir::Data);
            [WAL_DIR].iter().chain(data).for_each(|dir| machine.disk(dir).end_faults());
            machine.triggers().clear();
            machine.set_cost(device_cost(&self.plan));
            let failures = disk_failures(world, host);
            let state = self.state(host);
            state.armed_power_cut = None;
            // Without the operator's checks only errors have begun that none notices.
            let is_noticed = state.health_checked && failures > state.failed_before;
            if (is_noticed || state.damaged) && !state.down {
                state.down = true;
                world.kill(&host.name());
            }
            if self.state(host).down {
                self.start(world, host);
            }
        }
        let note = "all faults have ended";
        world.log().record_timeline(world.now().as_nanos() as u64, "network", "world", note);
    }
}

/// Returns the number of failed operations of a host's disks. Not those for which there was no space: no server needs a
/// restart for them.
fn disk_failures(world: &mut dyn World, host: Host) -> u64 {
    let counts = world.machine(&host.name()).fault_counts();
    counts.iter().map(|counts| counts.ops_failed + counts.syncs_failed).sum()
}
