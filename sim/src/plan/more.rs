//! What was added to plans later: each draws from a stream of its own, so that what else a seed draws stays as it was.

use std::time::Duration;

use super::deposed::deposed;
use super::duels::duels;
use super::faults::Fault;
use super::generate::{Profile, Size, read_at, replicas, rounded};
use super::heavy::heavy;
use super::laggard::laggard;
use super::masters::masters;
use super::members::{bereft, members};
use super::ops::{Asked, ClientProgram, Flush, Op, ReadAt, TestKind, Waits, Wanted};
use super::retries::retries;
use super::slow::slow_scans;
use super::spread::spread;
use super::{Cluster, Data, Ending, Host, Plan, Sending, TimedFault};
use crate::draw::Draw;

const SECOND: Duration = Duration::from_secs(1);
/// Small plans have no more ops than these.
pub(super) const SMALL_OPS: usize = 250;
/// Clients below this number have ranges for themselves, if any has.
const RANGE_OWNERS: u8 = 2;

/// How much leaders send at once, in some plans one entry: what a batch brings together can be had in part then.
pub fn sending(draw: &mut Draw) -> Sending {
    match draw.weighted(&[(0, 3), (1, 1), (2, 1)]) {
        0 => Sending::default(),
        1 => Sending { batch: draw.pick(&[1, 200, 2_000]), inflight: draw.pick(&[1, 2, 4]) },
        _ => Sending { batch: 1, inflight: 1 },
    }
}

/// What is made of several faults and ops that belong together.
pub fn scenes(plan: &mut Plan, profile: Profile, work: Duration) {
    let seed = plan.seed;
    numbered(&mut Draw::new(seed, "numbered"), &mut plan.clients);
    heavy(&mut Draw::new(seed, "heavy"), plan, profile);
    waits(&mut Draw::new(seed, "waits"), plan, profile);
    duels(&mut Draw::new(seed, "duels"), plan, profile, work);
    members(&mut Draw::new(seed, "members"), plan, profile, work);
    bereft(&mut Draw::new(seed, "bereft"), plan, profile);
    retries(&mut Draw::new(seed, "retries"), plan, profile, work);
    slow_scans(&mut Draw::new(seed, "slow scans"), plan, profile, work);
    spread(&mut Draw::new(seed, "spread"), plan, profile, work);
    laggard(&mut Draw::new(seed, "laggard"), plan, profile);
    deposed(&mut Draw::new(seed, "deposed"), plan, profile);
    masters(&mut Draw::new(seed, "masters"), plan, profile, work);
}

/// In some plans one client takes a write for done when its time has surely passed, unless some clock is so unsure of
/// itself that nothing would get done.
fn waits(draw: &mut Draw, plan: &mut Plan, profile: Profile) {
    let unsure = plan.faults.iter().any(|fault| matches!(fault.kind, Fault::ClockError { .. }));
    if unsure || !draw.percent(if profile == Profile::Clock { 50 } else { 15 }) {
        return;
    }
    let at = draw.below(plan.clients.len() as u64) as usize;
    if plan.clients[at].setup.flush == Flush::Sync {
        plan.clients[at].setup.waits = Waits::Commit;
    }
}

/// Lists in some plans, quiescing servers in some, looks at memory in some, in the place of other ops. Who is looked at
/// may have little memory.
pub fn ops(draw: &mut Draw, cluster: &mut Cluster, clients: &mut [ClientProgram]) {
    let mut kinds = Vec::new();
    if draw.percent(25) {
        kinds.extend([("link", 16), ("walk", 4)]);
    }
    if cluster.replicas > 1 && draw.percent(15) {
        kinds.push(("quiesce", 1));
    }
    if cluster.replicas > 1 && draw.percent(15) {
        kinds.push(("evict", 1));
    }
    if draw.percent(25) {
        kinds.push(("inspect", 2));
        // What is kept of every open file must fit, and large plans have many.
        let ops: usize = clients.iter().map(|client| client.ops.len()).sum();
        let least = if ops > SMALL_OPS { 4 << 20 } else { 1 << 20 };
        cluster.memory = draw.pick(&[least, 4 << 20, cluster.memory]);
    }
    if kinds.is_empty() {
        return;
    }
    kinds.push(("keep", draw.pick(&[50, 100, 200])));
    // Whether a session is flushed is for the others to say.
    let ops = clients.iter_mut().flat_map(|client| &mut client.ops).filter(|op| **op != Op::Flush {});
    for op in ops {
        if let Some(more) = other_op(draw, cluster, &kinds) {
            *op = more;
        }
    }
}

/// Rows that the servers number, in some plans, in the place of other ops.
fn numbered(draw: &mut Draw, clients: &mut [ClientProgram]) {
    if !draw.percent(20) {
        return;
    }
    let percent = draw.pick(&[5, 15, 30]);
    let ops = clients.iter_mut().flat_map(|client| &mut client.ops).filter(|op| **op != Op::Flush {});
    for op in ops {
        if draw.percent(percent) {
            *op = Op::Numbered { step: draw.below(16) as u8 };
        }
    }
}

fn other_op(draw: &mut Draw, cluster: &Cluster, kinds: &[(&'static str, u32)]) -> Option<Op> {
    let server = draw.below(u64::from(cluster.tservers)) as u8;
    Some(match draw.weighted(kinds) {
        "link" => Op::Link {},
        "walk" => {
            let back = if draw.percent(50) {
                rounded(draw.span(Duration::from_millis(1), 3 * SECOND))
            } else {
                Duration::ZERO
            };
            Op::Walk { back, from: replicas(draw) }
        }
        "quiesce" => Op::Quiesce { server, span: rounded(draw.span(Duration::from_millis(10), 3 * SECOND)) },
        "inspect" => Op::Inspect { server },
        "evict" => {
            let (table, tablet) =
                (draw.below(u64::from(cluster.tables)), draw.below(u64::from(cluster.tablets)));
            Op::Evict { table: table as u8, tablet: tablet as u8, asked: Asked::Leader }
        }
        _ => return None,
    })
}

/// Most runs end with a restart of everything: whatever was not stored, or cannot be read again, is missed then.
pub fn ending(draw: &mut Draw, cluster: &Cluster) -> Ending {
    match draw.weighted(&[(Ending::Stay, 1), (Ending::Kill, 2), (Ending::PowerCut, 2)]) {
        // What nobody waited to be synced may be gone.
        Ending::PowerCut if !cluster.log_sync => Ending::Kill,
        ending => ending,
    }
}

/// How tables are laid out, and how long they remember.
pub fn data(draw: &mut Draw) -> Data {
    let encodings = if draw.percent(75) { draw.between(1, 1_000_000) as u32 } else { 0 };
    let few = draw.percent(60);
    let history = if draw.percent(30) { draw.pick(&[1, 2, 3, 5]) * SECOND } else { Duration::ZERO };
    Data { encodings, few, history }
}

/// Where history is short, some reads of the past ask for what is forgotten by then.
pub fn ancient(draw: &mut Draw, data: &Data, clients: &mut [ClientProgram]) {
    if data.history.is_zero() {
        return;
    }
    for op in clients.iter_mut().flat_map(|client| &mut client.ops) {
        let (Op::Scan { at, back, .. } | Op::Find { at, back, .. }) = op else { continue };
        if *at == ReadAt::Snapshot && !back.is_zero() && draw.percent(40) {
            *back = data.history + rounded(draw.span(Duration::from_millis(1), 4 * SECOND));
        }
    }
}

/// Columns and ranges that clients have for themselves in some plans, in the place of other ops.
pub fn owned(draw: &mut Draw, cluster: &Cluster, clients: &mut [ClientProgram], size: Size) {
    // What figures are measured with has so many tablets and no more.
    let (columns, ranges) = (draw.percent(30), draw.percent(20) && size != Size::Bench);
    let one_in = draw.pick(&[6, 12, 30]);
    if !columns && !ranges {
        return;
    }
    for client in clients {
        // Each range is some tablets more: two clients make enough of them.
        let ranges = ranges && client.setup.number < RANGE_OWNERS;
        for op in client.ops.iter_mut().filter(|op| **op != Op::Flush {}) {
            let (table, step) = (draw.below(u64::from(cluster.tables)) as u8, draw.below(200) as u8);
            let of_columns = columns && (!ranges || draw.percent(60));
            if draw.below(one_in) > 0 || !of_columns && !ranges {
                continue;
            }
            *op = if of_columns { Op::OwnColumn { table, step } } else { Op::OwnRange { table, step } };
        }
    }
}

/// Searches in most plans, in the place of other ops.
pub fn searches(draw: &mut Draw, cluster: &Cluster, clients: &mut [ClientProgram]) {
    if draw.percent(30) {
        return;
    }
    let one_in = draw.pick(&[8, 20, 60]);
    let keys = u64::from(keys_written(clients));
    let ops = clients.iter_mut().flat_map(|client| &mut client.ops).filter(|op| **op != Op::Flush {});
    for op in ops {
        if draw.below(one_in) == 0 {
            *op = search(draw, cluster, keys);
        }
    }
}

/// Rows lie below this key.
fn keys_written(clients: &[ClientProgram]) -> u32 {
    let key = |op: &Op| if let Op::Write { key, .. } = op { Some(*key + 1) } else { None };
    clients.iter().flat_map(|client| &client.ops).filter_map(key).max().unwrap_or(1)
}

fn search(draw: &mut Draw, cluster: &Cluster, keys: u64) -> Op {
    let at = read_at(draw);
    let back = if at == ReadAt::Snapshot && draw.percent(50) {
        rounded(draw.span(Duration::from_millis(1), 8 * SECOND))
    } else {
        Duration::ZERO
    };
    let column = draw.weighted(&[(0, 1), (1, 2), (2, 2), (3, 2)]);
    let tests: &[TestKind] = match column {
        // The key is never NULL, and a wide range of it is a scan.
        0 => &[TestKind::Equal, TestKind::Between, TestKind::OneOf],
        _ => TestKind::ALL,
    };
    Op::Find {
        table: draw.below(u64::from(cluster.tables)) as u8,
        column,
        test: draw.pick(tests),
        value: draw.below(keys) as u32,
        at,
        back,
        columns: draw.pick(&[0b111, 0b111, 0b001, 0b010, 0b100, 0b110]),
        wanted: draw.weighted(&[(Wanted::Rows, 3), (Wanted::Count, 2), (Wanted::Few, 1)]),
        from: replicas(draw),
    }
}

/// What the disk does to bytes that it took; reads find it, if ever.
const ROTS: [&str; 3] = ["bit-rot", "lost-write", "misdirected-write"];
/// What makes a replica fail, so that it is made anew from another one.
const FAILS_REPLICAS: [&str; 4] = ["disk-error", "disk-full", "sync-error", "read-errors"];

impl Plan {
    /// Where bytes rot on one server, or its disks come back empty, replicas fail on that one only: of three replicas
    /// two must be sound. A leader that evicts a failed one while another was just lost has nobody left to agree.
    pub(super) fn fail_where_it_rots(&mut self) {
        let rots = |fault: &&TimedFault| ROTS.contains(&fault.kind.word()) || fault.kind.word() == "wipe";
        let Some(frail) = self.faults.iter().find(rots).map(|fault| fault.target) else { return };
        for fault in &mut self.faults {
            if FAILS_REPLICAS.contains(&fault.kind.word()) && matches!(fault.target, Host::Tserver(_)) {
                fault.target = frail;
            }
        }
        self.move_nothing_off_sound_servers();
    }

    /// A wiped server is still a member by its old name for a while: with a replica moved there from a sound server,
    /// what rots there is lost to two members of three.
    fn move_nothing_off_sound_servers(&mut self) {
        let any = |words: &[&str]| self.faults.iter().any(|fault| words.contains(&fault.kind.word()));
        if !any(&["wipe"]) || !any(&ROTS) {
            return;
        }
        for op in self.clients.iter_mut().flat_map(|client| &mut client.ops) {
            if let Op::Move { table, tablet, .. } = *op {
                *op = Op::StepDown { table, tablet };
            }
        }
    }
}
