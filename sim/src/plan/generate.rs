//! Plans from seeds: a swarm, in which each seed draws its own subset of ops and faults, and their weights.
//!
//! What runs everywhere in all its variety finds less than many runs that each lack something: a run without
//! deletes grows larger tables, a run without restarts has longer logs. So each kind of op and fault is in a plan
//! with its own probability, and those that are in have weights from a wide range.
//!
//! A plan must leave what was acknowledged recoverable: one tablet server at most, of those that hold copies, ever
//! loses or damages what was synced, and none does where there is a single copy.

use std::time::Duration;

use super::faults::{Blow, Dir, Fault, Host, Moment, TimedFault, Way};
use super::kinds::{KINDS, LOSES_DATA, percent_of};
use super::ops::{Asked, ClientProgram, ClientSetup, Flush, Op, ReadAt, Replicas, Waits, WriteKind};
use super::record::words;
use super::{ClockError, Cluster, Devices, Ending, Limits, Network, Plan};
use crate::draw::Draw;

words! {
    /// Which faults a plan draws from.
    pub enum Profile {
        /// Any.
        Swarm = "swarm",
        Disk = "disk",
        Network = "network",
        /// Kills, power cuts and pauses.
        Crash = "crash",
        Clock = "clock",
        Memory = "memory",
        /// Servers that come back empty, replicas that move.
        Copy = "copy",
        /// None.
        Calm = "calm",
    }
}

words! {
    /// How large a plan is.
    pub enum Size {
        /// A second of CPU, debug assertions and all.
        Smoke = "smoke",
        Full = "full",
        /// What the figures are measured with: 3 masters, 4 tablet servers, 6 tablets, 2,000 ops, 20 faults.
        Bench = "bench",
    }
}

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// When the workload begins to be disturbed, after its own beginning.
const CALM_START: Duration = Duration::from_millis(300);
/// A quiet phase leaves time to give a server up that was silent for so long, and to copy what it had.
const REPAIRED_WITHIN: Duration = Duration::from_secs(15);
/// A sync of a disk that turns takes so long.
const SPINNING: Duration = Duration::from_millis(8);
/// What looking at the healed cluster asks of a disk, in operations and syncs.
const LOOKING_OPS: u32 = 5_000;
/// What the network loses once comes this late, with some time for the way.
const RETRANSMITTED_WITHIN: Duration = Duration::from_millis(400);
const KEYS_MAX: u64 = 2_000;

impl Plan {
    /// The plan of a seed. Equal for equal arguments, for ever within one version.
    pub fn generate(seed: u64, profile: Profile, size: Size) -> Plan {
        let draw = &mut Draw::new(seed, "plan");
        let mut cluster = cluster(draw, size);
        let network = network(draw);
        let mut clients = clients(draw, &cluster, profile, size);
        super::more::ops(&mut Draw::new(seed, "more ops"), &mut cluster, &mut clients);
        let data = super::more::data(&mut Draw::new(seed, "data"));
        super::more::owned(&mut Draw::new(seed, "owned"), &cluster, &mut clients, size);
        super::more::searches(&mut Draw::new(seed, "searches"), &cluster, &mut clients);
        super::more::ancient(&mut Draw::new(seed, "ancient"), &data, &mut clients);
        let work = clients.iter().map(working_time).max().unwrap_or_default();
        let faults = FaultDraw::new(draw, &cluster, profile, clients.len() as u8).faults(work, size);
        let mut plan = Plan {
            seed,
            data,
            sending: super::more::sending(&mut Draw::new(seed, "sending")),
            devices: devices(draw),
            network,
            clocks: clocks(draw, &cluster, profile),
            cluster,
            clients,
            faults,
            ending: Ending::Stay,
            limit: Duration::ZERO,
            quiet: Duration::ZERO,
        };
        if size != Size::Bench {
            super::more::scenes(&mut plan, profile, work);
        }
        // Who must store a vote, for every tablet, on a disk that turns cannot be elected within a few of its turns.
        if plan.devices.sync >= SPINNING {
            plan.cluster.raft_heartbeat = plan.cluster.raft_heartbeat.max(500 * MS);
        }
        // What is read of a moment is read twice before it is forgotten.
        if !plan.data.history.is_zero() {
            let least = if plan.devices.sync >= SPINNING { 5 } else { 2 };
            plan.data.history = plan.data.history.max(least * SECOND);
        }
        // A leader that a lost segment takes down again and again never leads for long enough to give anyone up.
        if plan.cluster.raft_heartbeat * 3 < RETRANSMITTED_WITHIN {
            plan.network.loss_per_mille = 0;
        }
        // A server with empty disks is another server: its tablets are whole again once the old one is given up.
        if plan.faults.iter().any(|fault| matches!(fault.kind, Fault::Wipe { .. })) {
            plan.cluster.follower_failed = plan.cluster.follower_failed.min(REPAIRED_WITHIN);
        }
        // Of two copies one must be sound: who may lose what it has must not be one of too few.
        if plan.faults.iter().any(|fault| LOSES_DATA.contains(&fault.kind.word())) {
            plan.keep_everyone();
        }
        plan.fail_where_it_rots();
        super::unsynced::unsynced(&mut Draw::new(seed, "unsynced"), &mut plan, profile);
        let ending = super::more::ending(&mut Draw::new(seed, "ending"), &plan.cluster);
        plan.ending = super::masters::ending(&plan, ending);
        plan.limit = plan.healed_at() + work * 4 + disk_time(&plan) + 120 * SECOND;
        plan.quiet = 60 * SECOND + (plan.devices.op + plan.devices.sync) * LOOKING_OPS;
        plan
    }
}

impl Plan {
    /// Nobody takes replicas away.
    fn keep_everyone(&mut self) {
        for op in self.clients.iter_mut().flat_map(|client| &mut client.ops) {
            if let Op::Evict { table, tablet, .. } = *op {
                *op = Op::StepDown { table, tablet };
            }
        }
    }
}

/// What clients may wait for disks in all: every op for its own work there, and for a flush or a merge before it.
fn disk_time(plan: &Plan) -> Duration {
    let most = plan.clients.iter().map(|client| client.ops.len()).max().unwrap_or_default();
    (plan.devices.op + plan.devices.sync) * 100 * most as u32
}

/// How long a client is at work if nothing holds it up.
fn working_time(client: &ClientProgram) -> Duration {
    let waits = client.ops.iter().map(|op| match op {
        Op::Quiesce { span, .. } => *span,
        _ => Duration::ZERO,
    });
    (client.setup.pace + MS) * client.ops.len() as u32 + waits.sum::<Duration>()
}

fn cluster(draw: &mut Draw, size: Size) -> Cluster {
    let (masters, tservers) = match size {
        Size::Bench => (3, 4),
        Size::Full => (draw.pick(&[1, 3]), draw.between(1, 5) as u8),
        // Most have groups of three: who never elects anybody tries little.
        Size::Smoke => (draw.pick(&[1, 1, 3]), draw.weighted(&[(1, 2), (2, 1), (3, 4), (4, 4), (5, 1)])),
    };
    let replicas = if tservers < 3 || size != Size::Bench && draw.percent(20) { 1 } else { 3 };
    let tables = if size == Size::Bench { 2 } else { draw.between(1, 2) as u8 };
    let tablets = if size == Size::Bench { 3 } else { draw.between(2, 4) as u8 };
    Cluster {
        masters,
        tservers,
        replicas,
        tables,
        tablets,
        limits: draw.weighted(&[(Limits::Tiny, 6), (Limits::LongLog, 2), (Limits::Normal, 2)]),
        log_sync: draw.percent(80),
        memory: draw.pick(&[64 << 20, 256 << 20, 1 << 30]),
        raft_heartbeat: draw.pick(&[50, 100, 500]) * MS,
        heartbeat: draw.pick(&[100, 500, 1_000]) * MS,
        follower_failed: draw.pick(&[3, 15, 300]) * SECOND,
        maintenance: draw.pick(&[20, 100, 250]) * MS,
        rpc_timeout: draw.pick(&[500, 1_000, 3_000]) * MS,
        op_timeout: draw.pick(&[5, 15, 30]) * SECOND,
    }
}

/// A spinning disk, a solid one, one without a bus between.
fn devices(draw: &mut Draw) -> Devices {
    let (op, kib, sync) = draw.weighted(&[
        ((4_000_000, 6_000, SPINNING.as_nanos() as u64), 1),
        ((80_000, 2_000, 1_000_000), 3),
        ((10_000, 300, 60_000), 3),
    ]);
    let [op, kib, sync] = [op, kib, sync].map(Duration::from_nanos);
    Devices { op, kib, sync }
}

fn network(draw: &mut Draw) -> Network {
    let latency = draw.span(Duration::from_micros(20), 5 * MS);
    Network {
        latency,
        jitter: draw.pick(&[latency / 4, latency, latency * 4]),
        bytes_per_ms: draw.pick(&[12_500, 125_000, 1_250_000]),
        window: draw.pick(&[16 << 10, 64 << 10, 1 << 20]),
        loss_per_mille: draw.pick(&[0, 0, 1, 10]),
        cut_one_in: draw.pick(&[2, 8, 64]),
    }
}

fn clocks(draw: &mut Draw, cluster: &Cluster, profile: Profile) -> Vec<ClockError> {
    let percent = match profile {
        Profile::Clock => 100,
        Profile::Swarm => 50,
        _ => 10,
    };
    if !draw.percent(percent) {
        return Vec::new();
    }
    let servers = (0..cluster.masters).map(Host::Master).chain((0..cluster.tservers).map(Host::Tserver));
    let mut clock = |host| {
        let error_us = draw.pick(&[500, 5_000, 50_000]);
        let offset_us = draw.between(0, 2 * error_us) as i64 - error_us as i64;
        ClockError { host, offset_us, drift_ppm: draw.between(0, 200) as i64 - 100, error_us }
    };
    servers.map(&mut clock).collect()
}

/// How often each kind of op is drawn; those that this seed does not use are missing.
struct OpDraw {
    weights: Vec<(&'static str, u32)>,
    writes: Vec<(WriteKind, u32)>,
    tables: u8,
    tablets: u8,
    keys: u64,
    /// Of writes, so many in a hundred are to a tenth of the keys.
    hot_percent: u64,
}

impl OpDraw {
    fn new(draw: &mut Draw, cluster: &Cluster, profile: Profile) -> OpDraw {
        let mut weights = vec![("write", 40)];
        let usual = [("get", 15), ("scan", 6), ("transfer", 6), ("wait", 2), ("diff", 2)];
        let rare =
            [("add-column", 1), ("drop-column", 1), ("add-range", 1), ("drop-range", 1), ("short-table", 1)];
        let moves = [("step-down", 1), ("move", 1)];
        let mut keep = |draw: &mut Draw, kinds: &[(&'static str, u32)], percent| {
            for (kind, weight) in kinds {
                if draw.percent(percent) {
                    weights.push((kind, weight * draw.pick(&[1, 2, 4])));
                }
            }
        };
        keep(draw, &usual, 70);
        keep(draw, &rare, 25);
        if cluster.replicas > 1 {
            keep(draw, &moves, if profile == Profile::Copy { 100 } else { 40 });
        }
        let mut writes = vec![(WriteKind::Upsert, 4)];
        for kind in WriteKind::ALL {
            if draw.percent(70) {
                writes.push((*kind, draw.pick(&[1, 4, 10])));
            }
        }
        let keys = draw.pick(&[16, 100, KEYS_MAX]);
        let (tables, tablets) = (cluster.tables, cluster.tablets);
        OpDraw { weights, writes, tables, tablets, keys, hot_percent: draw.pick(&[0, 50, 90]) }
    }

    fn key(&self, draw: &mut Draw) -> u32 {
        let hot = draw.percent(self.hot_percent);
        draw.below(if hot { self.keys.div_ceil(10) } else { self.keys }) as u32
    }

    fn op(&self, draw: &mut Draw) -> Op {
        let table = draw.below(u64::from(self.tables)) as u8;
        let tablet = draw.below(u64::from(self.tablets)) as u8;
        let small = draw.between(0, 3) as u8;
        match draw.weighted(&self.weights) {
            "get" => Op::Get { table, key: self.key(draw), at: read_at(draw), from: replicas(draw) },
            "scan" => self.scan(draw, table),
            "transfer" => Op::Transfer {
                table,
                debit: self.key(draw),
                credit: self.key(draw),
                amount: draw.between(1, 100) as u32,
            },
            "wait" => Op::Wait { span: draw.span(MS, SECOND) },
            "diff" => Op::Diff { table, back: draw.span(10 * MS, 5 * SECOND) },
            "add-column" => Op::AddColumn { table, column: small },
            "drop-column" => Op::DropColumn { table, column: small },
            "add-range" => Op::AddRange { table, range: small },
            "drop-range" => Op::DropRange { table, range: small },
            "short-table" => Op::ShortTable { number: small, rows: draw.between(1, 20) as u32 },
            "step-down" => Op::StepDown { table, tablet },
            "move" => Op::Move { table, tablet, asked: Asked::Leader },
            _ => {
                let (kind, key) = (draw.weighted(&self.writes), self.key(draw));
                Op::Write { kind, table, key, value: draw.below(1_000_000) as u32 }
            }
        }
    }

    fn scan(&self, draw: &mut Draw, table: u8) -> Op {
        let whole = draw.percent(30);
        let low = if whole { 0 } else { self.key(draw) };
        let high = if whole { u32::MAX } else { low + draw.between(1, 50) as u32 };
        let at = read_at(draw);
        let back = if at == ReadAt::Snapshot && draw.percent(50) {
            draw.span(MS, 3 * SECOND)
        } else {
            Duration::ZERO
        };
        Op::Scan { table, low, high, at, back, ordered: draw.percent(50), from: replicas(draw) }
    }
}

pub(super) fn read_at(draw: &mut Draw) -> ReadAt {
    draw.weighted(&[(ReadAt::Latest, 2), (ReadAt::Snapshot, 3), (ReadAt::YourWrites, 2)])
}

pub(super) fn replicas(draw: &mut Draw) -> Replicas {
    draw.weighted(&[(Replicas::Leader, 3), (Replicas::Any, 1)])
}

fn clients(draw: &mut Draw, cluster: &Cluster, profile: Profile, size: Size) -> Vec<ClientProgram> {
    let (count, ops) = match size {
        Size::Smoke => (draw.between(1, 3), draw.between(40, 200)),
        Size::Full => (draw.between(1, 8), draw.between(200, 2_000)),
        Size::Bench => (8, 2_000),
    };
    let kinds = OpDraw::new(draw, cluster, profile);
    // In a hurry much happens in little time; otherwise there is time for elections between two ops.
    let pace = if draw.percent(40) { draw.span(MS, 40 * MS) } else { draw.span(20 * MS, 200 * MS) };
    (0..count).map(|number| client(draw, &kinds, number as u8, ops / count, pace)).collect()
}

fn client(draw: &mut Draw, kinds: &OpDraw, number: u8, ops: u64, pace: Duration) -> ClientProgram {
    let flush = draw.weighted(&[(Flush::Sync, 3), (Flush::Manual, 2), (Flush::Background, 1)]);
    let setup =
        ClientSetup { number, flush, waits: Waits::No, pace, propagate_every: draw.pick(&[0, 1, 10]) };
    let batch = draw.between(2, 30);
    let mut ops: Vec<Op> = (0..ops).map(|_| kinds.op(draw)).collect();
    if flush != Flush::Sync {
        let flush_at = |(number, op): (usize, &mut Op)| {
            if (number as u64).is_multiple_of(batch) {
                *op = Op::Flush {};
            }
        };
        ops.iter_mut().enumerate().skip(1).for_each(flush_at);
        ops.push(Op::Flush {});
    }
    ClientProgram { setup, ops }
}

struct FaultDraw<'a> {
    draw: &'a mut Draw,
    weights: Vec<(&'static str, u32)>,
    masters: u8,
    tservers: u8,
    clients: u8,
    /// The one server that may lose what was synced.
    frail: Option<Host>,
}

impl<'a> FaultDraw<'a> {
    fn new(draw: &'a mut Draw, cluster: &Cluster, profile: Profile, clients: u8) -> FaultDraw<'a> {
        let (masters, tservers) = (cluster.masters, cluster.tservers);
        let frail = (cluster.replicas >= 3).then(|| Host::Tserver(draw.below(u64::from(tservers)) as u8));
        let mut weights = Vec::new();
        for (of, kinds) in KINDS {
            let percent = percent_of(profile, of);
            for (kind, weight) in kinds {
                if draw.percent(percent) && (!LOSES_DATA.contains(kind) || frail.is_some()) {
                    weights.push((*kind, weight * draw.pick(&[1, 3, 9])));
                }
            }
        }
        FaultDraw { draw, weights, masters, tservers, clients, frail }
    }

    fn faults(&mut self, work: Duration, size: Size) -> Vec<TimedFault> {
        let count = match size {
            Size::Smoke if self.draw.percent(30) => self.draw.between(8, 20),
            Size::Smoke => self.draw.between(0, 8),
            Size::Full => self.draw.between(0, 30),
            Size::Bench => 20,
        };
        if self.weights.is_empty() {
            return Vec::new();
        }
        let end = (work + SECOND).as_micros() as u64;
        let mut faults: Vec<TimedFault> = (0..count).map(|_| self.fault(end)).collect();
        faults.sort_by_key(|fault| fault.at);
        // Until the group has let the first lost server go, losing its successor loses two of its voters; and masters
        // believe in a successor that was lost as well for a minute.
        let mut wiped = false;
        faults.retain(|fault| {
            !matches!(fault.kind, Fault::Wipe { .. }) || !std::mem::replace(&mut wiped, true)
        });
        faults
    }

    fn fault(&mut self, end_micros: u64) -> TimedFault {
        let at = CALM_START + Duration::from_micros(self.draw.below(end_micros));
        let at = Duration::from_millis(at.as_millis() as u64);
        let word = self.draw.weighted(&self.weights);
        let target = match word {
            word if LOSES_DATA.contains(&word) => self.frail.expect("it is drawn only if one may lose data"),
            "zone-power-cut" => Host::Tserver(0),
            _ => self.server(),
        };
        let kind = self
            .process(word, target)
            .or_else(|| self.net(word, target))
            .or_else(|| self.disk(word))
            .unwrap_or_else(|| self.node(word));
        TimedFault { at, target, kind }
    }

    fn server(&mut self) -> Host {
        match self.draw.below(u64::from(self.tservers) * 2 + u64::from(self.masters)) as u8 {
            number if number < self.masters => Host::Master(number),
            number => Host::Tserver((number - self.masters) / 2),
        }
    }

    fn peer(&mut self, target: Host) -> Host {
        for _ in 0..8 {
            let peer = match self.draw.percent(40) {
                true => Host::Client(self.draw.below(u64::from(self.clients)) as u8),
                false => self.server(),
            };
            if peer != target {
                return peer;
            }
        }
        Host::Client(0)
    }

    fn brief(&mut self) -> Duration {
        rounded(self.draw.span(5 * MS, 10 * SECOND))
    }

    fn way(&mut self) -> Way {
        self.draw.weighted(&[(Way::Both, 2), (Way::In, 1), (Way::Out, 1)])
    }

    fn dir(&mut self) -> Dir {
        self.draw.pick(&[Dir::Wal, Dir::Data])
    }

    fn process(&mut self, word: &str, target: Host) -> Option<Fault> {
        let down = self.brief();
        Some(match word {
            "kill" => Fault::Kill { down },
            "power-cut" => Fault::PowerCut { down },
            "power-cut-in-disk" => {
                Fault::PowerCutInDisk { dir: self.dir(), op: self.draw.between(1, 200) as u32, down }
            }
            "power-cut-after" => {
                let (moment, nth) = (self.draw.pick(Moment::ALL), self.draw.between(1, 6) as u32);
                Fault::PowerCutAfter {
                    moment,
                    nth,
                    dir: self.dir(),
                    op: self.draw.between(1, 25) as u32,
                    down,
                }
            }
            "strike-after" => Fault::StrikeAfter {
                moment: self.draw.pick(Moment::ALL),
                nth: self.draw.between(1, 4) as u32,
                blow: self.draw.pick(Blow::ALL),
                span: down,
            },
            "strike-leader" => Fault::StrikeLeader { blow: self.draw.pick(Blow::ALL), span: down },
            "zone-power-cut" => {
                let others = (0..self.tservers).map(Host::Tserver).filter(|other| *other != target);
                let others = others.filter(|_| self.draw.percent(60)).collect();
                Fault::ZonePowerCut { others, down }
            }
            "pause" => Fault::Pause { span: down },
            "wipe" => Fault::Wipe { down },
            _ => return None,
        })
    }

    fn net(&mut self, word: &str, target: Host) -> Option<Fault> {
        let span = self.brief();
        Some(match word {
            "isolate" => Fault::Isolate { way: self.way(), span },
            "cut-peers" => Fault::CutPeers { way: self.way(), span },
            "cut-link" => Fault::CutLink { peer: self.peer(target), way: self.way(), span },
            "swizzle" => Fault::Swizzle { span },
            "slow-link" => {
                let latency = rounded(self.draw.span(MS, SECOND));
                Fault::SlowLink { peer: self.peer(target), latency, span }
            }
            "loss" => Fault::Loss { percent: self.draw.between(1, 40) as u8, span },
            "reset" => Fault::Reset { peer: self.peer(target) },
            "no-connect" => Fault::NoConnect { hang: self.draw.percent(50), span },
            _ => return None,
        })
    }

    fn disk(&mut self, word: &str) -> Option<Fault> {
        let (dir, span) = (self.dir(), self.brief());
        Some(match word {
            "disk-stall" => Fault::DiskStall { dir, span },
            "disk-slow" => Fault::DiskSlow { dir, factor: self.draw.pick(&[3, 10, 100]), span },
            "disk-error" => Fault::DiskError { dir, op: self.draw.between(1, 200) as u32 },
            "sync-error" => Fault::SyncError { dir, sync: self.draw.between(1, 60) as u32 },
            "read-errors" => Fault::ReadErrors { dir, per_mille: self.draw.pick(&[5, 50, 300]), span },
            "power-cut-in-sync" => {
                Fault::PowerCutInSync { dir, sync: self.draw.between(1, 60) as u32, down: span }
            }
            "bit-rot" => Fault::BitRot { bits: self.draw.between(1, 4) as u8 },
            "lost-write" => Fault::LostWrite { write: self.draw.between(1, 100) as u32 },
            "misdirected-write" => Fault::MisdirectedWrite { write: self.draw.between(1, 100) as u32 },
            "disk-full" => Fault::DiskFull { dir, free: self.draw.below(4096), span },
            _ => return None,
        })
    }

    fn node(&mut self, word: &str) -> Fault {
        let span = self.brief();
        let signed = |draw: &mut Draw, most: u64| draw.between(0, 2 * most) as i64 - most as i64;
        match word {
            // What a time service corrects, and a machine that is far off.
            "clock-drift" => {
                let most = self.draw.pick(&[500, 50_000]);
                Fault::ClockDrift { ppm: signed(self.draw, most), span }
            }
            "clock-error" => {
                let micros = self.draw.pick(&[100_000, 1_000_000]);
                Fault::ClockError { micros, behind: self.draw.percent(50), span }
            }
            "memory" => Fault::Memory { bytes: self.draw.pick(&[4 << 20, 16 << 20, 32 << 20]), span },
            "slow-cpu" => Fault::SlowCpu { factor: self.draw.pick(&[3, 10, 100]), span },
            _ => Fault::ClockJump { micros: signed(self.draw, 20_000) },
        }
    }
}

/// In whole milliseconds, at least one: what can be read.
pub(super) fn rounded(span: Duration) -> Duration {
    Duration::from_millis((span.as_millis() as u64).max(1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_fault_and_op_is_drawn_by_some_seed() {
        let mut seen = BTreeSet::new();
        for seed in 0..400 {
            let plan = Plan::generate(seed, Profile::ALL[seed as usize % Profile::ALL.len()], Size::Smoke);
            seen.extend(plan.faults.iter().map(|fault| fault.kind.word()));
            seen.extend(plan.clients.iter().flat_map(|client| &client.ops).map(Op::word));
        }
        let copies_only =
            ["wipe", "step-down", "move", "evict", "quiesce", "bit-rot", "lost-write", "misdirected-write"];
        let words = Fault::WORDS.iter().chain(Op::WORDS).filter(|word| !copies_only.contains(word));
        let missing: Vec<_> = words.filter(|word| !seen.contains(**word)).collect();
        assert!(missing.is_empty(), "no seed draws {missing:?}");
    }

    #[test]
    fn a_seed_draws_its_own_subset() {
        let plan = |seed| Plan::generate(seed, Profile::Swarm, Size::Full);
        let kinds = |plan: Plan| plan.faults.iter().map(|fault| fault.kind.word()).collect::<BTreeSet<_>>();
        let sets: BTreeSet<_> = (0..20).map(|seed| kinds(plan(seed))).collect();
        assert!(sets.len() > 15, "only {} different subsets", sets.len());
        assert_eq!(plan(7), plan(7));
    }

    #[test]
    fn a_server_with_empty_disks_is_given_up_and_replaced_while_the_healed_cluster_is_looked_at() {
        let plans = (0..200).map(|seed| Plan::generate(seed, Profile::Copy, Size::Full));
        let wipes =
            |plan: &Plan| plan.faults.iter().filter(|fault| matches!(fault.kind, Fault::Wipe { .. })).count();
        let wiped: Vec<Plan> = plans.filter(|plan| wipes(plan) > 0).collect();
        assert!(wiped.iter().all(|plan| wipes(plan) == 1), "its successor is not lost as well");
        assert!(wiped.len() > 20, "only {} plans wipe a server", wiped.len());
        assert!(wiped.iter().all(|plan| plan.cluster.follower_failed * 3 < plan.quiet));
    }

    #[test]
    fn slow_disks_have_their_time() {
        let plans = (0..50).map(|seed| Plan::generate(seed, Profile::Calm, Size::Full));
        let spinning: Vec<Plan> = plans.filter(|plan| plan.devices.sync == SPINNING).collect();
        assert!(!spinning.is_empty());
        for plan in spinning {
            let most = plan.clients.iter().map(|client| client.ops.len()).max().expect("a client");
            assert!(plan.limit > 500 * MS * most as u32, "{:?} for {most} ops", plan.limit);
            assert!(plan.quiet >= 120 * SECOND);
            assert!(plan.cluster.raft_heartbeat >= 500 * MS);
        }
    }

    #[test]
    fn faults_strike_hosts_that_exist_and_heal_within_the_limit() {
        for seed in 0..200 {
            let plan = Plan::generate(seed, Profile::Swarm, Size::Smoke);
            let hosts = plan.hosts();
            for fault in &plan.faults {
                assert!(hosts.contains(&fault.target), "{fault:?}");
            }
            assert!(plan.healed_at() < plan.limit);
        }
    }
}
