//! Checks of operations without a reply, and of refusals that masters explain by too few servers: what the plan and the
//! fault injector know is made the conditions of oracles.

use crate::cluster;
use crate::history::HistoryOp;
use crate::injector::FaultInjector;
use crate::oracle::{OracleReport, availability, creations, lost_replies, operator_calls};
use crate::workload::Workload;
use crate::world::BOOTED;
use sim_plan::Plan;

/// Memory with which a server of a plan refuses no request.
pub const AMPLE_MEMORY: u64 = 64 << 20;
/// Disk operations that a batch of a scan may need: pages of many small files, beside other clients' operations.
const BATCH_DISK_OPS: u32 = 1_000;

/// Checks the operations of a run.
pub fn check(plan: &Plan, workload: &Workload, injector: &FaultInjector, report: &mut OracleReport) {
    let conditions = conditions(plan, injector);
    let operations = workload.history().operations();
    creations::check(&operations, &conditions_of_creations(plan, injector), report);
    operator_calls::check(&operations, &conditions, report);
    availability::check(&operations, &conditions, report);
    let (events, tables) = (workload.table_history().events(), workload.model_tables());
    availability::check_tables(&events, &tables, &operations, &conditions, report);
    if !plan.may_lose_acknowledged() {
        check_calm_times(workload, &operations, &conditions, report);
    }
}

/// Checks what faults of the plan excuse where none has an effect.
fn check_calm_times(
    workload: &Workload,
    operations: &[HistoryOp],
    conditions: &availability::Conditions<'_>,
    report: &mut OracleReport,
) {
    let is_calm = conditions.calm_times(operations);
    if conditions.is_prompt {
        lost_replies::check(operations, &is_calm, report);
    }
    workload.calm_connection_faults(&is_calm).into_iter().for_each(|violation| report.add(violation));
}

fn conditions<'a>(plan: &Plan, injector: &'a FaultInjector) -> availability::Conditions<'a> {
    let is_slow = plan.cluster.rpc_timeout < plan.devices.op * BATCH_DISK_OPS;
    let is_impatient = plan.cluster.rpc_timeout < plan.cluster.raft_heartbeat * 4;
    let throttles = plan.cluster.memory < AMPLE_MEMORY;
    availability::Conditions {
        disturbances: injector.disturbances(),
        began: BOOTED.as_nanos() as u64,
        settle: cluster::recovery_time(plan),
        throttles,
        is_replicated: plan.cluster.replicas >= 3 && !plan.may_lose_acknowledged(),
        attempt: plan.cluster.rpc_timeout,
        is_slow,
        is_impatient,
        is_prompt: cluster::replies_promptly(plan) && !is_slow && !is_impatient,
        holds_history: cluster::holds_history(plan) && !is_slow && !throttles,
    }
}

fn conditions_of_creations<'a>(
    plan: &Plan,
    injector: &'a FaultInjector,
) -> creations::CreationConditions<'a> {
    creations::CreationConditions {
        disturbances: injector.disturbances(),
        began: BOOTED.as_nanos() as u64,
        boot: cluster::boot_time(plan),
        registration: cluster::registration_time(plan),
        attempt: plan.cluster.rpc_timeout,
    }
}
