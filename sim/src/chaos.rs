//! Makes a plan's faults happen, and heals them.
//!
//! Each fault begins with what it does to the world and leaves behind what must be done later to undo it. A fault
//! that finds nothing to do, a kill of a server that is down for one, is not counted.

mod blows;
mod node;
mod silence;

use std::collections::BTreeMap;
use std::time::Duration;

use engine::disk::mem::{Damage, MemDisk, OpKind};

use crate::cluster::{DATA_DIR, WAL_DIR, device_cost};
use crate::draw::Draw;
use crate::fuse::{Charge, Fuse};
use crate::net::rules::Effect;
use crate::plan::faults::Dir;
use crate::plan::{Ending, Fault, Host, Plan, Way};
use crate::world::{LinkRule, LinkRuleId, World};
use silence::Links;

/// How long a supervisor waits before it starts a process again that ended by itself.
const SUPERVISOR_PAUSE: Duration = Duration::from_millis(500);
/// How often somebody looks whether a server must be started again, once faults of its disks have begun: one may wait
/// long for the operation that it strikes.
const OPERATOR_PAUSE: Duration = Duration::from_secs(2);
/// What fits on a disk that is not full.
const DISK_FREE: u64 = 1 << 40;

/// Something that is to be done at a time.
#[derive(Debug, Clone)]
enum Action {
    /// The plan's fault of this number begins.
    Begin(usize),
    /// The host starts again, if it has not since that many starts.
    Start(Host, u64),
    Resume(Host),
    AddRule(LinkRule, Duration),
    RemoveRule(LinkRuleId),
    DiskSpeed(Host, Dir),
    DiskSpace(Host, Dir),
    ReadErrors(Host, Dir),
    ClockDrift(Host, i64),
    /// The clock knows its error again, and is no longer ahead by so much, or behind.
    ClockSure {
        host: Host,
        error_us: u64,
        ahead_us: i64,
    },
    Memory(Host),
    Cpu(Host),
    /// Somebody looks whether the server's disks failed, and goes on looking.
    Look(Host),
}

/// Kinds of faults that wait for an operation of a device, with what the device counts when they strike.
pub const STRIKES: &[(&str, &str)] = &[
    ("bit-rot", "disk: bits flipped"),
    ("disk-error", "disk: operations failed"),
    ("disk-full", "disk: full"),
    ("lost-write", "disk: writes never made"),
    ("misdirected-write", "disk: writes misdirected"),
    ("power-cut", "disk: names lost"),
    ("power-cut", "disk: writes lost"),
    ("power-cut", "disk: writes torn"),
    ("power-cut-in-sync", "disk: power cuts in sync"),
    ("sync-error", "disk: syncs failed"),
];

/// Who is up for so long has what its tablets made while it was away.
const CAUGHT_UP: Duration = Duration::from_secs(1);

/// How a server is.
#[derive(Debug, Clone, Default)]
struct State {
    down: bool,
    paused: bool,
    /// Since when it is up, down or paused; zero if it has always been up.
    since: Duration,
    starts: u64,
    /// A power cut within a disk operation that has not come yet: its kind, and how long it lasts.
    fuse: Option<(&'static str, Duration)>,
    /// Operations of its disks that had failed when it was started last.
    failed_before: u64,
    /// What its disks hold was damaged.
    damaged: bool,
    /// Somebody looks after its disks.
    looked_after: bool,
    /// Its clock says that it knows little, and is ahead.
    unsure: bool,
}

/// The faults of one run.
pub struct Chaos {
    plan: Plan,
    draw: Draw,
    /// By time since the run began.
    due: BTreeMap<(Duration, u64), Action>,
    next: u64,
    hosts: BTreeMap<Host, State>,
    links: Links,
    /// Nothing goes wrong any more.
    healed: bool,
    /// How often each kind of fault struck.
    pub fired: BTreeMap<String, u64>,
}

impl Chaos {
    /// `start`: the time since the run began from which the plan counts.
    pub fn new(plan: &Plan, start: Duration) -> Chaos {
        let hosts = plan.servers().into_iter().map(|host| (host, State::default())).collect();
        let mut chaos = Chaos {
            plan: plan.clone(),
            draw: Draw::new(plan.seed, "chaos"),
            due: BTreeMap::new(),
            next: 0,
            hosts,
            links: Links::default(),
            healed: false,
            fired: BTreeMap::new(),
        };
        for (number, fault) in plan.faults.iter().enumerate() {
            chaos.at(start + fault.at, Action::Begin(number));
        }
        chaos
    }

    fn at(&mut self, at: Duration, action: Action) {
        self.due.insert((at, self.next), action);
        self.next += 1;
    }

    /// When something is next to be done.
    pub fn next_at(&self) -> Option<Duration> {
        self.due.keys().next().map(|(at, _)| *at)
    }

    /// Does what is due.
    pub fn act(&mut self, world: &mut dyn World) {
        while let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= world.now()) {
            let action = entry.remove();
            self.perform(world, action);
        }
    }

    /// Servers that do nothing or are cut off, and since when nobody can hear from them: what they sent before may lie
    /// on a link that lets nothing through, for as long as it does not.
    pub fn silent(&self) -> BTreeMap<Host, Duration> {
        let since = |host: Host, state: &State| {
            if state.down || state.paused {
                return self.links.clear(&host.name()).map(|clear| clear.max(state.since));
            }
            let others = self.hosts.keys().filter(|other| **other != host).map(|other| other.name());
            self.links.cut_off(&host.name(), others)
        };
        let silent = self.hosts.iter().filter_map(|(host, state)| Some((*host, since(*host, state)?)));
        silent.collect()
    }

    /// Whether every other server has been up for so long that it has what was made while it was away. Of a tablet's
    /// three replicas one may not be there yet: losing another one then would leave no majority for ever.
    fn all_others_up(&self, now: Duration, target: Host) -> bool {
        self.hosts.iter().filter(|(host, _)| **host != target).all(|(_, state)| {
            !state.down
                && !state.paused
                && (state.since.is_zero() || now.saturating_sub(state.since) > CAUGHT_UP)
        })
    }

    fn count(&mut self, what: &str) {
        *self.fired.entry(what.to_string()).or_default() += 1;
    }

    fn state(&mut self, host: Host) -> &mut State {
        self.hosts.entry(host).or_default()
    }

    fn perform(&mut self, world: &mut dyn World, action: Action) {
        let true_micros = world.true_micros();
        match action {
            Action::Begin(number) => self.begin(world, number),
            Action::Start(host, starts) => {
                if self.state(host).starts == starts && self.state(host).down {
                    self.start(world, host);
                }
            }
            Action::Resume(host) => {
                if std::mem::take(&mut self.state(host).paused) {
                    self.state(host).since = world.now();
                    world.resume(&host.name());
                }
            }
            Action::AddRule(rule, until) => self.rule(world, rule, until),
            Action::RemoveRule(id) => {
                if self.links.remove(id, world.now()) {
                    world.remove_rule(id);
                }
            }
            Action::DiskSpeed(host, dir) => world.machine(&host.name()).slow_disk(name(dir), 1),
            Action::DiskSpace(host, dir) => world.machine(&host.name()).disk(name(dir)).set_free(DISK_FREE),
            Action::ReadErrors(host, dir) => {
                world.machine(&host.name()).disk(name(dir)).fail_some(OpKind::Read, 0, EIO);
            }
            Action::ClockDrift(host, ppm) => world.machine(&host.name()).drift_clock(ppm, true_micros),
            Action::ClockSure { host, error_us, ahead_us } => {
                self.state(host).unsure = false;
                let machine = world.machine(&host.name());
                machine.jump_clock(-ahead_us);
                machine.set_clock_error(error_us);
            }
            Action::Memory(host) => world.machine(&host.name()).set_memory_bytes(self.plan.cluster.memory),
            Action::Cpu(host) => world.machine(&host.name()).slow_cpu(1),
            Action::Look(host) => self.look(world, host),
        }
    }

    /// What failed once is given up by a server until someone starts it anew, as its operator does here.
    fn look(&mut self, world: &mut dyn World, host: Host) {
        if disk_failures(world, host) > self.state(host).failed_before {
            self.take_down(world, host, SUPERVISOR_PAUSE, |world, host| world.kill(host));
        }
        self.at(world.now() + OPERATOR_PAUSE, Action::Look(host));
    }

    fn look_after(&mut self, host: Host, from: Duration) {
        if !std::mem::replace(&mut self.state(host).looked_after, true) {
            self.at(from, Action::Look(host));
        }
    }

    fn start(&mut self, world: &mut dyn World, host: Host) {
        let (failed_before, now) = (disk_failures(world, host), world.now());
        let state = self.state(host);
        state.since = now;
        (state.down, state.paused, state.failed_before) = (false, false, failed_before);
        state.starts += 1;
        world.restart(&host.name());
    }

    /// Takes a server down, if it is up, and has it started again after `down`.
    fn take_down(
        &mut self,
        world: &mut dyn World,
        host: Host,
        down: Duration,
        how: impl FnOnce(&mut dyn World, &str),
    ) -> bool {
        let state = self.state(host);
        if state.down {
            return false;
        }
        (state.down, state.paused, state.fuse, state.since) = (true, false, None, world.now());
        let starts = state.starts;
        world.machine(&host.name()).fuses().clear();
        how(world, &host.name());
        self.at(world.now() + down, Action::Start(host, starts));
        true
    }

    fn begin(&mut self, world: &mut dyn World, number: usize) {
        let fault = self.plan.faults[number].clone();
        let (target, kind) = (fault.target, &fault.kind);
        let (now, text) = (world.now(), crate::plan::record::Record::line(kind));
        world.log().moment(now.as_nanos() as u64, &target.name(), "fault", &text);
        if let Fault::StrikeLeader { blow, span } = kind {
            let leader = self.likely_leader(world, target);
            return self.befall(world, leader, *blow, *span, kind.word());
        }
        let struck = self.at_moment(world, target, kind, number)
            || self.process(world, target, kind)
            || self.network(world, target, kind)
            || self.disk(world, target, kind)
            || self.node(world, target, kind);
        if struck {
            self.count(kind.word());
        }
    }

    fn process(&mut self, world: &mut dyn World, target: Host, kind: &Fault) -> bool {
        match kind {
            Fault::Kill { down } => self.take_down(world, target, *down, |world, host| world.kill(host)),
            Fault::PowerCut { down } => {
                self.take_down(world, target, *down, |world, host| world.cut_power(host))
            }
            Fault::ZonePowerCut { others, down } => {
                let mut struck = 0;
                for host in others.iter().copied().chain([target]) {
                    let cut = self.take_down(world, host, *down, |world, host| world.cut_power(host));
                    struck += u32::from(cut);
                }
                struck > 0
            }
            Fault::Wipe { down } => {
                let whole = self.all_others_up(world.now(), target);
                let struck = self.take_down(world, target, *down, |world, host| {
                    world.cut_power(host);
                    if whole {
                        world.machine(host).wipe_disks();
                    }
                });
                if struck && !whole {
                    self.count("power-cut");
                }
                struck && whole
            }
            Fault::PowerCutInDisk { dir, op, down } => {
                if !self.state(target).down {
                    self.cut_to_come(world, target, kind, *down, *dir).cut_power_at(u64::from(*op));
                }
                // Counted when it strikes.
                false
            }
            Fault::PowerCutAfter { moment, nth, dir, op, down } => {
                if !self.state(target).down {
                    self.state(target).fuse = Some((kind.word(), *down));
                    let machine = world.machine(&target.name());
                    let disk = machine.disk(name(*dir));
                    let charge = Charge::PowerCut(disk, *op);
                    machine.fuses().lay(Fuse { moment: *moment, nth: *nth, charge });
                }
                // Counted when it strikes.
                false
            }
            Fault::PowerCutInSync { dir, sync, down } => {
                if !self.state(target).down {
                    let disk = self.cut_to_come(world, target, kind, *down, *dir);
                    disk.cut_power_at_nth(OpKind::Sync, u64::from(*sync));
                }
                // Counted when it strikes.
                false
            }
            Fault::Pause { span } => {
                let state = self.state(target);
                if state.down || std::mem::replace(&mut state.paused, true) {
                    return false;
                }
                state.since = world.now();
                world.pause(&target.name());
                self.at(world.now() + *span, Action::Resume(target));
                true
            }
            _ => false,
        }
    }

    /// The disk within one of whose operations the target's power is to go.
    fn cut_to_come(
        &mut self,
        world: &mut dyn World,
        target: Host,
        kind: &Fault,
        down: Duration,
        dir: Dir,
    ) -> MemDisk {
        self.state(target).fuse = Some((kind.word(), down));
        let machine = world.machine(&target.name());
        machine.fuses().expect_cut();
        machine.disk(name(dir))
    }

    /// A host's power failed within a disk operation.
    pub fn lost_power(&mut self, world: &mut dyn World, host: &str) {
        let Some(host) = self.host(host) else { return };
        let (kind, down) = self.state(host).fuse.take().unwrap_or(("power-cut-in-disk", SUPERVISOR_PAUSE));
        if self.take_down(world, host, down, |world, host| world.cut_power(host)) {
            self.count(kind);
        }
    }

    /// A server's process ended by itself: a supervisor starts it again. False if it was taken down before.
    pub fn exited(&mut self, world: &mut dyn World, host: &str, error: Option<&str>) -> bool {
        let now = world.now().as_nanos() as u64;
        world.log().moment(now, host, "exit", error.unwrap_or("in order"));
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

    fn rule(&mut self, world: &mut dyn World, rule: LinkRule, until: Duration) {
        let id = world.add_rule(rule.clone());
        self.links.add(id, rule, world.now());
        self.at(until, Action::RemoveRule(id));
    }

    /// Rules for what passes between a host and one other, or any other.
    fn rules_between(
        &mut self,
        world: &mut dyn World,
        target: Host,
        peer: Option<Host>,
        way: Way,
        effect: Effect,
        span: Duration,
    ) {
        let (target, peer) = (Some(target.name()), peer.map(Host::name));
        let until = world.now() + span;
        if way != Way::In {
            self.rule(world, LinkRule { from: target.clone(), to: peer.clone(), effect }, until);
        }
        if way != Way::Out {
            self.rule(world, LinkRule { from: peer, to: target, effect }, until);
        }
    }

    fn network(&mut self, world: &mut dyn World, target: Host, kind: &Fault) -> bool {
        match kind {
            Fault::Isolate { way, span } => {
                self.rules_between(world, target, None, *way, Effect::Block, *span);
            }
            Fault::CutLink { peer, way, span } => {
                self.rules_between(world, target, Some(*peer), *way, Effect::Block, *span);
            }
            Fault::CutPeers { way, span } => {
                for peer in self.plan.servers().into_iter().filter(|peer| *peer != target) {
                    self.rules_between(world, target, Some(peer), *way, Effect::Block, *span);
                }
            }
            Fault::SlowLink { peer, latency, span } => {
                let effect = Effect::Delay(latency.as_nanos() as u64);
                self.rules_between(world, target, Some(*peer), Way::Both, effect, *span);
            }
            Fault::Loss { percent, span } => {
                self.rules_between(world, target, None, Way::Both, Effect::Lose(*percent), *span);
            }
            Fault::NoConnect { hang, span } => {
                let effect = if *hang { Effect::Ignore } else { Effect::Refuse };
                self.rules_between(world, target, None, Way::In, effect, *span);
            }
            Fault::Swizzle { span } => self.swizzle(world, target, *span),
            Fault::Reset { peer } => return world.reset_between(&target.name(), &peer.name()) > 0,
            _ => return false,
        }
        true
    }

    /// Clogs the links one after the other, and unclogs them in another order.
    fn swizzle(&mut self, world: &mut dyn World, target: Host, span: Duration) {
        let (now, half) = (world.now(), span.as_micros() as u64 / 2);
        for peer in self.plan.hosts().into_iter().filter(|peer| *peer != target) {
            let begin = now + Duration::from_micros(self.draw.below(half + 1));
            let end = now + Duration::from_micros(half + self.draw.below(half + 1));
            for (from, to) in [(target, peer), (peer, target)] {
                let (from, to) = (Some(from.name()), Some(to.name()));
                self.at(begin, Action::AddRule(LinkRule { from, to, effect: Effect::Block }, end));
            }
        }
    }

    fn disk(&mut self, world: &mut dyn World, target: Host, kind: &Fault) -> bool {
        let (now, mono) = (world.now(), world.mono());
        let machine = world.machine(&target.name());
        match kind {
            Fault::DiskStall { dir, span } => machine.stall(name(*dir), mono.after(*span)),
            Fault::DiskSlow { dir, factor, span } => {
                machine.slow_disk(name(*dir), *factor);
                self.at(now + *span, Action::DiskSpeed(target, *dir));
            }
            Fault::DiskError { dir, op } => {
                machine.disk(name(*dir)).fail_op(u64::from(*op), EIO);
                self.look_after(target, now + OPERATOR_PAUSE);
            }
            Fault::DiskFull { dir, free, span } => {
                machine.disk(name(*dir)).set_free(*free);
                self.at(now + *span, Action::DiskSpace(target, *dir));
                self.look_after(target, now + *span);
            }
            Fault::SyncError { dir, sync } => {
                machine.disk(name(*dir)).fail_nth(OpKind::Sync, u64::from(*sync), EIO);
                self.look_after(target, now + OPERATOR_PAUSE);
            }
            Fault::ReadErrors { dir, per_mille, span } => {
                machine.disk(name(*dir)).fail_some(OpKind::Read, *per_mille, EIO);
                self.at(now + *span, Action::ReadErrors(target, *dir));
                self.look_after(target, now + *span);
            }
            Fault::BitRot { bits } => {
                self.state(target).damaged = true;
                return machine.disk(DATA_DIR).rot_bits(u64::from(*bits)) > 0;
            }
            Fault::LostWrite { write } => {
                machine.disk(DATA_DIR).damage_append(u64::from(*write), Damage::Lost);
                self.state(target).damaged = true;
            }
            Fault::MisdirectedWrite { write } => {
                machine.disk(DATA_DIR).damage_append(u64::from(*write), Damage::Misdirected);
                self.state(target).damaged = true;
            }
            _ => return false,
        }
        true
    }

    /// All servers die at once, and start again.
    pub fn end(&mut self, world: &mut dyn World) {
        let cut = self.plan.ending == Ending::PowerCut;
        if self.plan.ending == Ending::Stay {
            return;
        }
        let note = format!("all servers at once: {}", self.plan.ending.word());
        world.log().moment(world.now().as_nanos() as u64, "network", "fault", &note);
        let hosts: Vec<Host> = self.hosts.keys().copied().collect();
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

    /// Undoes all that is still wrong: links, disks, clocks, memory. Who is down or hurt is started again.
    pub fn heal(&mut self, world: &mut dyn World) {
        self.healed = true;
        for (_, action) in std::mem::take(&mut self.due) {
            let begins = matches!(
                action,
                Action::Begin(_) | Action::AddRule(..) | Action::Start(..) | Action::Look(..)
            );
            if !begins {
                self.perform(world, action);
            }
        }
        let hosts: Vec<Host> = self.hosts.keys().copied().collect();
        for host in hosts {
            let machine = world.machine(&host.name());
            [WAL_DIR, DATA_DIR].iter().for_each(|dir| machine.disk(dir).heal());
            machine.fuses().clear();
            machine.set_cost(device_cost(&self.plan));
            let failures = disk_failures(world, host);
            let state = self.state(host);
            state.fuse = None;
            if (failures > state.failed_before || state.damaged) && !state.down {
                state.down = true;
                world.kill(&host.name());
            }
            if self.state(host).down {
                self.start(world, host);
            }
        }
        let note = "all faults have healed";
        world.log().moment(world.now().as_nanos() as u64, "network", "world", note);
    }
}

/// The operating system's number of an input/output error.
const EIO: i32 = 5;

/// Operations of a host's disks that have failed so far.
fn disk_failures(world: &mut dyn World, host: Host) -> u64 {
    let counts = world.machine(&host.name()).fault_counts();
    counts.iter().map(|counts| counts.ops_failed + counts.syncs_failed + counts.full).sum()
}

fn name(dir: Dir) -> &'static str {
    match dir {
        Dir::Wal => WAL_DIR,
        Dir::Data => DATA_DIR,
    }
}
