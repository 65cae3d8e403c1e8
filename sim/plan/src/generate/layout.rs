//! Cluster, data, devices, network and clocks of a plan.

use std::time::Duration;

use crate::draws::{MS, SECOND};
use crate::host::Host;
use crate::profile::{FaultProfile, PlanSize};
use crate::random_stream::RandomStream;
use crate::spec::{ClockSkew, ClusterSpec, DataSpec, DeviceSpec, EngineLimits, NetworkSpec, SecuritySpec};

/// Time of a sync on a spinning disk.
pub(crate) const HDD_SYNC_MIN: Duration = Duration::from_millis(8);
/// Plans with required security, per mille. A handshake costs half a millisecond of CPU.
const SECURE_PER_MILLE: u64 = 20;

/// Percentage of large plans of several masters that have five.
const FIVE_MASTERS_PERCENT: u64 = 15;
/// Percentage of large plans of three replicas that have five or seven.
const MORE_REPLICAS_PERCENT: u64 = 10;

pub(super) fn cluster(random: &mut RandomStream, size: PlanSize) -> ClusterSpec {
    let (masters, tservers) = match size {
        PlanSize::Bench => (3, 4),
        PlanSize::Full => (random.pick(&[1, 3]), random.between(1, 5) as u8),
        // Most plans have three replicas: a group of one replica has no elections.
        PlanSize::Smoke => {
            (random.pick(&[1, 1, 3]), random.weighted(&[(1, 2), (2, 1), (3, 4), (4, 4), (5, 1)]))
        }
    };
    let replicas = if tservers < 3 || size != PlanSize::Bench && random.percent(20) { 1 } else { 3 };
    let tables = if size == PlanSize::Bench { 2 } else { random.between(1, 2) as u8 };
    let tablets = if size == PlanSize::Bench { 3 } else { random.between(2, 4) as u8 };
    ClusterSpec {
        masters,
        tservers,
        replicas,
        tables,
        tablets,
        limits: random.weighted(&[
            (EngineLimits::Tiny, 6),
            (EngineLimits::LongLog, 2),
            (EngineLimits::Normal, 2),
        ]),
        log_sync: random.percent(80),
        memory: random.pick(&[64 << 20, 256 << 20, 1 << 30]),
        raft_heartbeat: random.pick(&[50, 100, 500]) * MS,
        heartbeat: random.pick(&[100, 500, 1_000]) * MS,
        follower_failed: random.pick(&[3, 15, 300]) * SECOND,
        maintenance: random.pick(&[20, 100, 250]) * MS,
        rpc_timeout: random.pick(&[500, 1_000, 3_000]) * MS,
        op_timeout: random.pick(&[5, 15, 30]) * SECOND,
    }
}

/// Gives some large clusters of three masters two more.
pub(super) fn add_masters(random: &mut RandomStream, cluster: &mut ClusterSpec, size: PlanSize) {
    if size == PlanSize::Full && cluster.masters == 3 && random.percent(FIVE_MASTERS_PERCENT) {
        cluster.masters = 5;
    }
}

/// Gives tablets of some large clusters five or seven replicas, and the servers for them.
pub(super) fn add_replicas(random: &mut RandomStream, cluster: &mut ClusterSpec, size: PlanSize) {
    if size == PlanSize::Full && cluster.replicas == 3 && random.percent(MORE_REPLICAS_PERCENT) {
        cluster.replicas = random.pick(&[5, 5, 7]);
        cluster.tservers = cluster.replicas + random.below(2) as u8;
    }
}

/// Draws the number of data directories of each tablet server. A broken creation or copy in one of them may be followed
/// by one in another.
pub(super) fn data_dirs(random: &mut RandomStream, size: PlanSize) -> u8 {
    match size {
        PlanSize::Bench => 1,
        PlanSize::Smoke | PlanSize::Full => random.weighted(&[(1, 7), (2, 2), (3, 1)]),
    }
}

/// Draws the encodings of columns and the retention of history.
pub(super) fn data(random: &mut RandomStream) -> DataSpec {
    let encodings = if random.percent(75) { random.between(1, 1_000_000) as u32 } else { 0 };
    let few = random.percent(60);
    let history = if random.percent(30) { random.pick(&[1, 2, 3, 5]) * SECOND } else { Duration::ZERO };
    DataSpec { encodings, few, history }
}

/// Draws a spinning disk, a solid-state disk or a persistent memory.
pub(super) fn devices(random: &mut RandomStream) -> DeviceSpec {
    let (op, kib, sync) = random.weighted(&[
        ((4_000_000, 6_000, HDD_SYNC_MIN.as_nanos() as u64), 1),
        ((80_000, 2_000, 1_000_000), 3),
        ((10_000, 300, 60_000), 3),
    ]);
    let [op, kib, sync] = [op, kib, sync].map(Duration::from_nanos);
    DeviceSpec { op, kib, sync }
}

pub(super) fn network(random: &mut RandomStream) -> NetworkSpec {
    let latency = random.span(Duration::from_micros(20), 5 * MS);
    NetworkSpec {
        latency,
        jitter: random.pick(&[latency / 4, latency, latency * 4]),
        bytes_per_ms: random.pick(&[12_500, 125_000, 1_250_000]),
        window: random.pick(&[16 << 10, 64 << 10, 1 << 20]),
        loss_per_mille: random.pick(&[0, 0, 1, 10]),
        cut_one_in: random.pick(&[2, 8, 64]),
    }
}

/// Draws required security for a few plans, with tokens and keys that expire several times within a run.
pub(super) fn security(
    random: &mut RandomStream,
    profile: FaultProfile,
    size: PlanSize,
) -> Option<SecuritySpec> {
    let per_mille = match profile {
        _ if size == PlanSize::Bench => 0,
        FaultProfile::Swarm | FaultProfile::Crash | FaultProfile::Clock | FaultProfile::Network => {
            SECURE_PER_MILLE
        }
        _ => 0,
    };
    if random.below(1_000) >= per_mille {
        return None;
    }
    let authn = random.pick(&[3, 5, 10, 30]) * SECOND;
    let authz = random.pick(&[2, 5, 10]) * SECOND;
    let rotation = random.pick(&[2, 5, 20]) * SECOND;
    Some(SecuritySpec { authn, authz, rotation })
}

/// Draws clock errors for all servers, or for none.
pub(super) fn clocks(
    random: &mut RandomStream,
    cluster: &ClusterSpec,
    profile: FaultProfile,
) -> Vec<ClockSkew> {
    let percent = match profile {
        FaultProfile::Clock => 100,
        FaultProfile::Swarm => 50,
        _ => 10,
    };
    if !random.percent(percent) {
        return Vec::new();
    }
    let servers = (0..cluster.masters).map(Host::Master).chain((0..cluster.tservers).map(Host::Tserver));
    let mut clock = |host| {
        let error_us = random.pick(&[500, 5_000, 50_000]);
        let offset_us = random.between(0, 2 * error_us) as i64 - error_us as i64;
        ClockSkew { host, offset_us, drift_ppm: random.between(0, 200) as i64 - 100, error_us }
    };
    servers.map(&mut clock).collect()
}
