//! The generator: from a seed, a profile and a size to a plan.
//!
//! Generation is a swarm: each kind of op and fault is in a plan with its own probability, and those that are in have
//! weights from a wide range. Runs that each lack something find more than runs that have everything. Without deletes
//! tables grow larger; without restarts logs grow longer.
//!
//! ```text
//! layout       cluster, data, devices, network, clocks
//! ops          programs of clients ◄── searches
//! faults       faults of the profile, over the time that clients work
//! scenarios    further ops and faults that belong together
//! corrections  recoverability, timing, final restart
//! ```
//!
//! Invariant: acknowledged writes stay recoverable. At most one tablet server loses or corrupts synced data, and none
//! does where tablets have a single replica.
//!
//! Order: parts draw one after the other from shared or own streams, and later parts read what earlier parts drew.

use std::time::Duration;

use crate::client_ops::{ClientOp, ClientProgram};
use crate::draws::{MS, SECOND, rounded};
use crate::faults::Fault;
use crate::plan::Plan;
use crate::profile::{FaultProfile, PlanSize};
use crate::random_stream::RandomStream;
use crate::scenarios::{add_scenarios, backups, long_trouble, unsynced_logs};
use crate::spec::FinalRestart;
use crate::tables;

pub(crate) use self::faults::FaultGenerator;
pub(crate) use self::layout::HDD_SYNC_MIN;

mod ending;
mod faults;
mod layout;
mod ops;
mod raft_batching;
mod recoverability;
mod searches;

/// Maximum of `follower_failed` in a plan with a disk wipe. The recovery phase has time to evict the lost replicas and
/// to copy them again.
const WIPED_FOLLOWER_FAILED_MAX: Duration = Duration::from_secs(15);
/// Percentage of plans of the profile `swarm` that have model tables.
const SWARM_TABLES_PERCENT: u64 = 20;
/// Disk operations and syncs of the post-run checks.
const CHECK_DISK_OPS: u32 = 5_000;
/// Latency that counts in the time of the recovery phase, and round trips of that phase.
const LONG_LATENCY: Duration = Duration::from_millis(10);
const CHECK_ROUND_TRIPS: u32 = 400;
/// Round trips for each tablet of a table that is read at one snapshot, twice.
const READ_ROUND_TRIPS: u32 = 8;
/// Tablets whose next rows and open files fit in a MiB of memory, if all of them are at one server.
const TABLETS_PER_MIB: u64 = 16;
/// Time within which a segment that was lost once arrives.
const RETRANSMITTED_WITHIN: Duration = Duration::from_millis(400);

impl Plan {
    /// Returns the plan of a seed. Equal arguments give equal plans within one version.
    pub fn generate(seed: u64, profile: FaultProfile, size: PlanSize) -> Plan {
        let mut plan = Plan::without_backups(seed, profile, size);
        tables::replace_with_metadata(&mut RandomStream::new(seed, "metadata"), &mut plan);
        tables::replace_with_paused_scans(&mut RandomStream::new(seed, "paused scans"), &mut plan);
        tables::replace_with_range_changes(&mut RandomStream::new(seed, "ranges that change"), &mut plan);
        // Order: last, because model tables replace the ops of all clients.
        backups::add(&mut RandomStream::new(seed, "backups"), &mut plan, profile, size);
        plan
    }

    fn without_backups(seed: u64, profile: FaultProfile, size: PlanSize) -> Plan {
        let stream = |name| RandomStream::new(seed, name);
        if profile == FaultProfile::Tables {
            let random = &mut stream("tables");
            let mut plan = Plan::without_tables(seed, tables::base_profile(random), size);
            tables::replace_with_table_ops(random, &mut plan);
            return plan;
        }
        let mut plan = Plan::without_tables(seed, profile, size);
        let random = &mut stream("swarm of tables");
        if profile == FaultProfile::Swarm && size != PlanSize::Bench && random.percent(SWARM_TABLES_PERCENT) {
            tables::replace_with_table_ops(random, &mut plan);
        }
        plan
    }

    /// Returns the plan of a seed without model tables.
    fn without_tables(seed: u64, profile: FaultProfile, size: PlanSize) -> Plan {
        let stream = |name| RandomStream::new(seed, name);
        let random = &mut stream("plan");
        let mut cluster = layout::cluster(random, size);
        layout::add_masters(&mut stream("five masters"), &mut cluster, size);
        layout::add_replicas(&mut stream("more replicas"), &mut cluster, size);
        let network = layout::network(random);
        let mut clients = ops::clients(random, &cluster, profile, size);
        ops::replace_with_rare_ops(&mut stream("more ops"), &mut cluster, &mut clients);
        let data = layout::data(&mut stream("data"));
        ops::replace_with_owned(&mut stream("owned"), &cluster, &mut clients, size);
        searches::replace_with_searches(&mut stream("searches"), &cluster, &mut clients);
        searches::read_before_history(&mut stream("ancient"), &data, &mut clients);
        let work = clients.iter().map(working_time).max().unwrap_or_default();
        let faults = FaultGenerator::new(random, &cluster, profile, clients.len() as u8).faults(work, size);
        let mut plan = Plan {
            seed,
            data_dirs: layout::data_dirs(&mut stream("data directories"), size),
            data,
            sending: raft_batching::raft_batching(&mut stream("sending")),
            security: layout::security(&mut stream("security"), profile, size),
            devices: layout::devices(random),
            network,
            clocks: layout::clocks(random, &cluster, profile),
            cluster,
            tables: Vec::new(),
            clients,
            faults,
            reseeds: Vec::new(),
            ending: FinalRestart::Stay,
            limit: Duration::ZERO,
            quiet: Duration::ZERO,
        };
        if size != PlanSize::Bench {
            ops::replace_with_auto_increment(&mut stream("numbered"), &mut plan.clients);
            let (random, count) = (&mut stream("late faults"), plan.clients.len() as u8);
            plan.faults.extend(FaultGenerator::second_faults(random, &plan.cluster, profile, count, work));
            let random = &mut stream("third faults");
            let third = FaultGenerator::third_faults(random, &plan.cluster, profile, &plan.faults, work);
            plan.faults.extend(third);
            plan.faults.sort_by_key(|fault| fault.at);
            add_scenarios(&mut plan, profile, work);
        }
        if size == PlanSize::Full {
            long_trouble::add(&mut stream("long trouble"), &mut plan, profile);
        }
        plan.correct_timing();
        plan.correct_memory();
        plan.keep_recoverable();
        unsynced_logs::unsync_logs(&mut stream("unsynced"), &mut plan, profile);
        plan.ending = ending::final_restart(&plan);
        plan.limit_time(work);
        plan
    }

    /// Sets the limits of clients and recovery phase. `work`: the time that clients work if nothing delays them.
    pub(crate) fn limit_time(&mut self, work: Duration) {
        self.limit = self.faults_end_at() + work * 4 + disk_time(self) + 120 * SECOND;
        self.quiet = 60 * SECOND + (self.devices.op + self.devices.sync) * CHECK_DISK_OPS;
        if self.network.latency > LONG_LATENCY {
            self.quiet += self.network.latency * 2 * CHECK_ROUND_TRIPS;
        }
    }

    /// Returns the time that clients work if nothing delays them, waits included.
    pub(crate) fn working_time(&self) -> Duration {
        let waits = |client: &ClientProgram| -> Duration {
            client
                .ops
                .iter()
                .map(|op| if let ClientOp::Wait { span } = op { *span } else { Duration::ZERO })
                .sum()
        };
        self.clients.iter().map(|client| working_time(client) + waits(client)).max().unwrap_or_default()
    }

    /// Raises a memory limit that is too low for the tablets: each reserves memory for its next rows.
    pub(crate) fn correct_memory(&mut self) {
        // The tables of the plan, the bank, and the lists.
        let tables = u64::from(self.cluster.tables) + 1 + u64::from(self.has_lists());
        let tablets = tables * u64::from(self.cluster.tablets) + u64::from(self.added_ranges());
        self.cluster.memory = self.cluster.memory.max(tablets.div_ceil(TABLETS_PER_MIB) << 20);
    }

    /// Returns the number of ranges that clients add.
    fn added_ranges(&self) -> u32 {
        let adds_range = |op: &&ClientOp| matches!(op, ClientOp::OwnRange { .. } | ClientOp::AddRange { .. });
        self.clients.iter().flat_map(|client| client.ops.iter().filter(adds_range)).count() as u32
    }

    /// Raises timeouts and retention that devices and network cannot meet.
    pub(crate) fn correct_timing(&mut self) {
        let spins = self.devices.sync >= layout::HDD_SYNC_MIN;
        // A vote is stored for every tablet. On a spinning disk that takes longer than a short election timeout.
        if spins {
            self.cluster.raft_heartbeat = self.cluster.raft_heartbeat.max(500 * MS);
        }
        // A snapshot is read twice; the second read must come before its history is dropped.
        if !self.data.history.is_zero() {
            let least = if spins { 5 } else { 2 };
            self.data.history = self.data.history.max(least * SECOND);
            let way = self.network.latency + self.network.jitter;
            if way > LONG_LATENCY {
                let tablets = u32::from(self.cluster.tablets) + self.added_ranges();
                self.data.history = self.data.history.max(rounded(way * 2 * READ_ROUND_TRIPS * tablets));
            }
        }
        // If each lost segment ends a leadership, no leader stays long enough to evict a follower.
        if self.cluster.raft_heartbeat * 3 < RETRANSMITTED_WITHIN {
            self.network.loss_per_mille = 0;
        }
        // A wiped server returns as a new server. Its tablets are re-replicated once the old server is evicted.
        if self.faults.iter().any(|fault| matches!(fault.kind, Fault::Wipe { .. })) {
            self.cluster.follower_failed = self.cluster.follower_failed.min(WIPED_FOLLOWER_FAILED_MAX);
        }
    }
}

/// Returns an upper bound on the time that a client waits for disks. An op causes its own disk operations, and may wait
/// for those of a flush or a compaction.
fn disk_time(plan: &Plan) -> Duration {
    let ops_max = plan.clients.iter().map(|client| client.ops.len()).max().unwrap_or_default();
    (plan.devices.op + plan.devices.sync) * 100 * ops_max as u32
}

/// Returns the time that a client works if nothing delays it.
fn working_time(client: &ClientProgram) -> Duration {
    let waits = client.ops.iter().map(|op| match op {
        ClientOp::Quiesce { span, .. } => *span,
        _ => Duration::ZERO,
    });
    (client.setup.pace + MS) * client.ops.len() as u32 + waits.sum::<Duration>()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fault_weights::{Generation, generation};
    use crate::spec::ClusterSpec;
    use crate::{Host, TimedFault};

    /// Hash over the text of the plans of 12 seeds, for every profile and both sizes of runs.
    const PLANS_HASH: u64 = 0xfdcb_a662_ea00_9321;

    #[test]
    fn plans_of_seeds_stay_the_same() {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for profile in FaultProfile::ALL.iter().filter(|profile| **profile != FaultProfile::Tables) {
            for size in [PlanSize::Smoke, PlanSize::Full] {
                for seed in 0..12 {
                    let text = Plan::generate(seed, *profile, size).to_string();
                    let add = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
                    hash = text.bytes().fold(hash, add);
                }
            }
        }
        assert_eq!(
            hash, PLANS_HASH,
            "plans of seeds changed: kept seeds, results and pages refer to other plans now ({hash:#018x}); \
             draw from a new stream, or accept the new hash if the change is intended"
        );
    }

    #[test]
    fn a_plan_with_model_tables_is_parsed_from_its_own_text() {
        for seed in 0..100 {
            let plan = Plan::generate(seed, FaultProfile::Tables, PlanSize::Smoke);
            assert!(!plan.tables.is_empty());
            assert!(!plan.may_lose_acknowledged());
            assert_eq!(plan.to_string().parse::<Plan>().as_ref(), Ok(&plan));
        }
    }

    #[test]
    fn every_fault_and_op_is_drawn_by_some_seed() {
        let mut seen = BTreeSet::new();
        for seed in 0..400 {
            let profile = FaultProfile::ALL[seed as usize % FaultProfile::ALL.len()];
            let plan = Plan::generate(seed, profile, PlanSize::Smoke);
            seen.extend(plan.faults.iter().map(|fault| fault.kind.word()));
            seen.extend(plan.clients.iter().flat_map(|client| &client.ops).map(ClientOp::word));
        }
        let rare =
            ["wipe", "step-down", "move", "evict", "quiesce", "bit-rot", "lost-write", "misdirected-write"];
        let words = Fault::WORDS.iter().chain(ClientOp::WORDS).filter(|word| !rare.contains(word));
        let missing: Vec<_> = words.filter(|word| !seen.contains(**word)).collect();
        assert!(missing.is_empty(), "no seed draws {missing:?}");
    }

    fn has_second(plan: &Plan) -> bool {
        plan.faults.iter().any(|fault| generation(fault.kind.kind()) == Generation::Second)
    }

    #[test]
    fn faults_of_the_second_generation_change_no_other_draw_of_a_seed() {
        for seed in 0..100 {
            let plan = Plan::generate(seed, FaultProfile::Clock, PlanSize::Smoke);
            assert!(!has_second(&plan), "no such kind is of clocks");
        }
        let plans = (0..100).map(|seed| Plan::generate(seed, FaultProfile::Network, PlanSize::Smoke));
        let with_late: Vec<Plan> = plans.filter(has_second).collect();
        assert!(with_late.len() > 30, "only {} plans cut calls", with_late.len());
        assert!(with_late.iter().all(|plan| plan.faults.is_sorted_by_key(|fault| fault.at)));
    }

    #[test]
    fn some_large_clusters_have_five_masters_or_more_replicas() {
        let clusters: Vec<ClusterSpec> =
            (0..200).map(|seed| Plan::generate(seed, FaultProfile::Swarm, PlanSize::Full).cluster).collect();
        let masters: BTreeSet<u8> = clusters.iter().map(|cluster| cluster.masters).collect();
        let replicas: BTreeSet<u8> = clusters.iter().map(|cluster| cluster.replicas).collect();
        assert_eq!(masters, BTreeSet::from([1, 3, 5]));
        assert_eq!(replicas, BTreeSet::from([1, 3, 5, 7]));
        assert!(clusters.iter().all(|cluster| cluster.tservers >= cluster.replicas));
    }

    #[test]
    fn tablet_servers_of_some_plans_have_several_data_directories() {
        let plans = (0..200).map(|seed| Plan::generate(seed, FaultProfile::Swarm, PlanSize::Smoke));
        let counts: Vec<u8> = plans.map(|plan| plan.data_dirs).collect();
        let with = |count: u8| counts.iter().filter(|of| **of == count).count();
        assert!(with(1) > 100 && with(2) > 20 && with(3) > 5, "{counts:?}");
    }

    #[test]
    fn only_one_server_of_a_plan_may_lose_durable_data() {
        for seed in 0..200 {
            let plan = Plan::generate(seed, FaultProfile::Disk, PlanSize::Full);
            let damaging = plan.faults.iter().filter(|fault| fault.kind.kind().loses_durable_data());
            let hosts: BTreeSet<_> = damaging.map(|fault| fault.target).collect();
            assert!(hosts.len() <= 1, "seed {seed}: {hosts:?}");
        }
    }

    #[test]
    fn a_seed_draws_its_own_subset() {
        let plan = |seed| Plan::generate(seed, FaultProfile::Swarm, PlanSize::Full);
        let kinds = |plan: Plan| plan.faults.iter().map(|fault| fault.kind.word()).collect::<BTreeSet<_>>();
        let sets: BTreeSet<_> = (0..20).map(|seed| kinds(plan(seed))).collect();
        assert!(sets.len() > 15, "only {} different subsets", sets.len());
        assert_eq!(plan(7), plan(7));
    }

    #[test]
    fn history_outlasts_the_reads_of_slow_networks() {
        let plan = Plan::generate(61_302_095, FaultProfile::Crash, PlanSize::Smoke);
        assert!(plan.network.latency > 100 * MS, "{plan}");
        assert!(plan.data.history > plan.network.latency * 60, "{plan}");
    }

    #[test]
    fn memory_fits_the_tablets() {
        let plan = Plan::generate(3024, FaultProfile::Swarm, PlanSize::Smoke);
        assert_eq!(plan.cluster.memory, 2 << 20, "{plan}");
    }

    #[test]
    fn a_wiped_server_is_evicted_and_replaced_within_the_recovery_phase() {
        let plans = (0..200).map(|seed| Plan::generate(seed, FaultProfile::Copy, PlanSize::Full));
        let wipes =
            |plan: &Plan| plan.faults.iter().filter(|fault| matches!(fault.kind, Fault::Wipe { .. })).count();
        let wiped: Vec<Plan> = plans.filter(|plan| wipes(plan) > 0).collect();
        assert!(wiped.iter().all(|plan| wipes(plan) == 1), "the next server is not wiped as well");
        assert!(wiped.len() > 20, "only {} plans wipe a server", wiped.len());
        assert!(wiped.iter().all(|plan| plan.cluster.follower_failed * 3 < plan.quiet));
    }

    #[test]
    fn a_wiped_master_is_replaced_by_an_operator() {
        let is_wiped =
            |fault: &TimedFault| matches!((fault.target, &fault.kind), (Host::Master(_), Fault::Wipe { .. }));
        for profile in [FaultProfile::Swarm, FaultProfile::Tables] {
            let plans = (0..600).map(|seed| Plan::generate(seed, profile, PlanSize::Smoke));
            let wiped: Vec<Plan> = plans.filter(|plan| plan.faults.iter().any(is_wiped)).collect();
            assert!(!wiped.is_empty());
            wiped.iter().for_each(|plan| assert!(plan.changes_masters(), "{plan}"));
        }
    }

    #[test]
    fn plans_with_slow_disks_have_longer_limits() {
        let plans = (0..50).map(|seed| Plan::generate(seed, FaultProfile::Calm, PlanSize::Full));
        let spinning: Vec<Plan> = plans.filter(|plan| plan.devices.sync == layout::HDD_SYNC_MIN).collect();
        assert!(!spinning.is_empty());
        for plan in spinning {
            let ops_max = plan.clients.iter().map(|client| client.ops.len()).max().expect("a client");
            assert!(plan.limit > 500 * MS * ops_max as u32, "{:?} for {ops_max} ops", plan.limit);
            assert!(plan.quiet >= 120 * SECOND);
            assert!(plan.cluster.raft_heartbeat >= 500 * MS);
        }
    }

    #[test]
    fn faults_hit_hosts_that_exist_and_end_within_the_limit() {
        for seed in 0..200 {
            let plan = Plan::generate(seed, FaultProfile::Swarm, PlanSize::Smoke);
            let hosts = plan.hosts();
            for fault in &plan.faults {
                assert!(hosts.contains(&fault.target), "{fault:?}");
            }
            assert!(plan.faults_end_at() < plan.limit);
        }
    }
}
