//! Determined plans: the rows at the end follow from the plan alone, not from time, the order of tasks or faults.
//!
//! - Each key, and each model table, is written by one client, whose writes are in order.
//! - Every op has a reply: timeouts are longer than any fault, and masters stay up while clients alter tables.
//! - Faults keep what was written: kills, power cuts with synced logs, pauses.
//!
//! So every world that runs such a plan must end with the same rows.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::client_ops::{
    ClientOp, ClientProgram, ClientSetup, FlushMode, LARGE_VALUE_MIN, ReadMode, ReplicaChoice, WriteKind,
    WriteWait,
};
use crate::draws::{MS, SECOND, read_mode, replica_choice};
use crate::faults::{Fault, TimedFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::random_stream::RandomStream;
use crate::spec::{ClusterSpec, DataSpec, DeviceSpec, EngineLimits, FinalRestart, NetworkSpec, RaftBatching};
use crate::tables::{TableOps, draw};

/// Least timeout of an operation. It is not reached: its outcome would be unknown.
const OP_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of an attempt: longer than any pause of a server.
const RPC_TIMEOUT: Duration = Duration::from_secs(3);
/// Keys that each client writes in a table, so that rows are changed several times.
const KEYS_OF_CLIENT: u64 = 12;
const FAULTS_MAX: u64 = 4;
/// Percentage of plans that alter tables; in the others masters fail too.
const ALTERS_PERCENT: u64 = 70;
/// Estimated time of an op besides the client's pause.
const OP_TIME: Duration = Duration::from_millis(4);

impl Plan {
    /// Returns the determined plan of a seed.
    pub fn determined(seed: u64) -> Plan {
        let random = &mut RandomStream::new(seed, "determined");
        let cluster = cluster(random);
        let alters = random.percent(ALTERS_PERCENT);
        let tables = (0..random.between(1, 2)).map(|number| draw::table(random, number as u8)).collect();
        let mut plan = Plan {
            seed,
            reseeds: Vec::new(),
            cluster,
            data_dirs: 1,
            data: DataSpec {
                encodings: random.below(1_000_000) as u32,
                few: random.percent(50),
                ..DataSpec::default()
            },
            sending: RaftBatching::default(),
            security: None,
            devices: devices(random),
            network: network(random),
            clocks: Vec::new(),
            tables,
            clients: Vec::new(),
            faults: Vec::new(),
            ending: random.pick(&[FinalRestart::Stay, FinalRestart::Kill, FinalRestart::PowerCut]),
            limit: OP_TIMEOUT * 4,
            quiet: OP_TIMEOUT,
        };
        plan.clients = clients(random, &plan, alters);
        plan.faults = faults(random, &plan, alters);
        plan
    }
}

fn cluster(random: &mut RandomStream) -> ClusterSpec {
    let (tservers, replicas) = random.weighted(&[((1, 1), 1), ((2, 1), 1), ((3, 3), 5), ((4, 3), 2)]);
    let limits =
        random.weighted(&[(EngineLimits::Tiny, 6), (EngineLimits::LongLog, 2), (EngineLimits::Normal, 1)]);
    ClusterSpec {
        masters: random.pick(&[1, 1, 3]),
        tservers,
        replicas,
        tables: random.between(1, 2) as u8,
        tablets: random.between(1, 3) as u8,
        limits,
        log_sync: true,
        memory: 1 << 30,
        raft_heartbeat: random.pick(&[50, 100]) * MS,
        heartbeat: random.pick(&[100, 200]) * MS,
        follower_failed: 300 * SECOND,
        maintenance: random.pick(&[20, 100, 250]) * MS,
        rpc_timeout: RPC_TIMEOUT,
        op_timeout: OP_TIMEOUT,
    }
}

fn devices(random: &mut RandomStream) -> DeviceSpec {
    let (op, kib, sync) = random.pick(&[(80_000, 2_000, 1_000_000), (10_000, 300, 60_000)]);
    let [op, kib, sync] = [op, kib, sync].map(Duration::from_nanos);
    DeviceSpec { op, kib, sync }
}

fn network(random: &mut RandomStream) -> NetworkSpec {
    let latency = random.span(Duration::from_micros(20), MS);
    NetworkSpec {
        latency,
        jitter: latency,
        bytes_per_ms: 125_000,
        window: random.pick(&[16 << 10, 64 << 10]),
        loss_per_mille: 0,
        cut_one_in: random.pick(&[2, 8, 64]),
    }
}

fn clients(random: &mut RandomStream, plan: &Plan, alters: bool) -> Vec<ClientProgram> {
    let count = random.between(1, 3) as u8;
    let ops = TableOps::new(random, 1, plan.cluster.replicas > 1);
    let client = |number: u8| {
        let setup = ClientSetup {
            number,
            // In the background, batches of one key may overtake each other.
            flush: random.pick(&[FlushMode::Sync, FlushMode::Manual]),
            waits: WriteWait::No,
            pace: random.pick(&[0, 1, 5, 20]) * MS,
            propagate_every: random.pick(&[0, 3]),
        };
        let owned: Vec<u8> =
            (0..plan.tables.len() as u8).filter(|table| table % count == number % count).collect();
        let program = (0..random.between(15, 50)).map(|_| {
            let of_model = !owned.is_empty() && random.percent(60);
            let op = if of_model { model_op(random, &ops, &owned) } else { None };
            op.filter(|op| alters || !matches!(op, ClientOp::TableAlter { .. }))
                .unwrap_or_else(|| row_op(random, &plan.cluster, number, count))
        });
        ClientProgram { setup, ops: program.collect() }
    };
    (0..count).map(client).collect()
}

/// Draws an op on one of the client's own model tables.
fn model_op(random: &mut RandomStream, ops: &TableOps, owned: &[u8]) -> Option<ClientOp> {
    let mut op = ops.op(random);
    if let ClientOp::TableWrite { table, .. }
    | ClientOp::TableScan { table, .. }
    | ClientOp::TableDiff { table, .. }
    | ClientOp::TableAlter { table, .. }
    | ClientOp::TableElect { table, .. } = &mut op
    {
        *table = random.pick(owned);
        return Some(op);
    }
    None
}

/// Draws an op on the tables that all clients write: a write of one of this client's keys, or a read of any.
fn row_op(random: &mut RandomStream, cluster: &ClusterSpec, number: u8, count: u8) -> ClientOp {
    let table = random.below(u64::from(cluster.tables)) as u8;
    let key = (random.below(KEYS_OF_CLIENT) * u64::from(count) + u64::from(number)) as u32;
    match random.below(20) {
        0 => ClientOp::Flush {},
        1 | 2 => {
            let at = read_mode(random);
            let from = if at == ReadMode::Latest { ReplicaChoice::Leader } else { replica_choice(random) };
            ClientOp::Get { table, key, at, from }
        }
        3 => {
            let (at, high) = (ReadMode::Snapshot, key + 20);
            let (back, ordered, from) = (Duration::ZERO, random.percent(50), replica_choice(random));
            ClientOp::Scan { table, low: key, high, at, back, ordered, from }
        }
        _ => {
            let long = if random.percent(3) { LARGE_VALUE_MIN } else { 0 };
            let kind = if random.percent(40) { WriteKind::Upsert } else { random.pick(WriteKind::ALL) };
            ClientOp::Write { kind, table, key, value: random.below(1_000) as u32 + long }
        }
    }
}

/// Draws faults over the time in which clients work.
fn faults(random: &mut RandomStream, plan: &Plan, alters: bool) -> Vec<TimedFault> {
    let time = |client: &ClientProgram| (client.setup.pace + OP_TIME) * client.ops.len() as u32;
    let work = plan.clients.iter().map(time).max().unwrap_or_default();
    let tservers = (0..plan.cluster.tservers).map(Host::Tserver);
    let masters = (0..if alters { 0 } else { plan.cluster.masters }).map(Host::Master);
    let hosts: Vec<Host> = tservers.chain(masters).collect();
    let count = random.between(0, FAULTS_MAX);
    let one = |_| {
        let down = random.between(20, 500);
        let down = Duration::from_millis(down);
        let kind = match random.below(8) {
            0 => Fault::Pause { span: down },
            1 | 2 => Fault::PowerCut { down },
            _ => Fault::Kill { down },
        };
        TimedFault {
            at: Duration::from_millis(random.below(work.as_millis() as u64)),
            target: random.pick(&hosts),
            kind,
        }
    };
    let mut faults: Vec<TimedFault> = (0..count).map(one).collect();
    faults.sort_by_key(|fault| fault.at);
    faults
}

/// Returns why the rows at the end of a plan may depend on the world; `None` for a determined plan.
pub fn undetermined(plan: &Plan) -> Option<String> {
    if !plan.cluster.log_sync || plan.cluster.op_timeout < OP_TIMEOUT || plan.security.is_some() {
        return Some("logs are not synced, operations end early, or connections are secured".to_string());
    }
    let keeps = |fault: &&TimedFault| {
        matches!(fault.kind, Fault::Kill { .. } | Fault::PowerCut { .. } | Fault::Pause { .. })
    };
    if let Some(fault) = plan.faults.iter().find(|fault| !keeps(fault)) {
        return Some(format!("a fault of kind {}", fault.kind.word()));
    }
    let alters = plan.any_op(|op| matches!(op, ClientOp::TableAlter { .. }));
    if alters && plan.faults.iter().any(|fault| matches!(fault.target, Host::Master(_))) {
        return Some("masters fail and tables are altered".to_string());
    }
    let mut writers = BTreeMap::new();
    plan.clients.iter().find_map(|client| {
        if client.setup.flush == FlushMode::Background {
            return Some(format!("client {} writes in the background", client.setup.number));
        }
        client.ops.iter().find_map(|op| shared(op, client.setup.number, &mut writers))
    })
}

/// Returns why an op makes a plan undetermined. `writers`: client by table and key; a model table is one key.
fn shared(op: &ClientOp, client: u8, writers: &mut BTreeMap<(bool, u8, u32), u8>) -> Option<String> {
    let what = match op {
        ClientOp::Write { table, key, .. } => (false, *table, *key),
        ClientOp::TableWrite { table, .. } | ClientOp::TableAlter { table, .. } => (true, *table, 0),
        ClientOp::Flush {}
        | ClientOp::Get { .. }
        | ClientOp::Scan { .. }
        | ClientOp::TableScan { .. }
        | ClientOp::TableDiff { .. }
        | ClientOp::TableMetadata { .. }
        | ClientOp::TablePausedScan { .. }
        | ClientOp::TableElect { .. }
        | ClientOp::Wait { .. } => return None,
        other => return Some(format!("an op {}", other.word())),
    };
    let writer = *writers.entry(what).or_insert(client);
    (writer != client).then(|| format!("clients {writer} and {client} both write {what:?}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::profile::{FaultProfile, PlanSize};

    #[test]
    fn plans_of_seeds_are_determined_and_parsed_from_their_own_text() {
        for seed in 0..300 {
            let plan = Plan::determined(seed);
            assert_eq!(undetermined(&plan), None, "seed {seed}");
            assert_eq!(plan.to_string().parse::<Plan>().as_ref(), Ok(&plan));
            assert_eq!(plan, Plan::determined(seed));
        }
    }

    #[test]
    fn plans_have_every_kind_of_fault_on_both_roles_and_alter_tables() {
        let plans: Vec<Plan> = (0..200).map(Plan::determined).collect();
        let kinds: BTreeSet<_> = plans
            .iter()
            .flat_map(|plan| &plan.faults)
            .map(|fault| (fault.kind.word(), matches!(fault.target, Host::Master(_))))
            .collect();
        assert_eq!(kinds.len(), 6, "{kinds:?}");
        let alters = |plan: &&Plan| plan.any_op(|op| matches!(op, ClientOp::TableAlter { .. }));
        assert!(plans.iter().filter(alters).count() > 40);
    }

    #[test]
    fn a_shared_key_and_other_ops_are_undetermined() {
        let mut plan = Plan::determined(1);
        let write = ClientOp::Write { kind: WriteKind::Upsert, table: 0, key: 7_000, value: 1 };
        let other = ClientProgram {
            setup: ClientSetup { number: 9, ..plan.clients[0].setup.clone() },
            ops: vec![write.clone()],
        };
        plan.clients[0].ops.push(write);
        assert_eq!(undetermined(&plan), None);
        plan.clients.push(other);
        assert!(undetermined(&plan).is_some_and(|why| why.contains("both write")));
        let swarm = (0..20).map(|seed| Plan::generate(seed, FaultProfile::Swarm, PlanSize::Full));
        assert!(swarm.into_iter().all(|plan| undetermined(&plan).is_some()));
    }
}
