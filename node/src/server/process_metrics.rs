//! Metrics of the process: CPU time, threads, memory, files, and the threads that run tasks.

use std::time::Duration;

use nyala_common::env::{Env, ProcessStats, WorkerStats};
use nyala_common::metrics::{Entity, MetricRegistry, MetricSnapshot, table};

/// Registers the metrics of the process, as far as the environment has one.
pub(super) fn register(metrics: &MetricRegistry, env: &Env) {
    let (memory, tasks) = (env.memory.clone(), env.tasks.clone());
    metrics.register(move |out: &mut MetricSnapshot| {
        if let Some(workers) = tasks.workers() {
            collect_workers(&workers, &mut out.server);
        }
        if let Some(process) = memory.process() {
            collect_process(process, &mut out.server);
        }
    });
}

/// Adds what the operating system counts for the process.
fn collect_process(process: ProcessStats, server: &mut Entity) {
    server.gauge(&table::CPU_UTIME, process.user_ms);
    server.gauge(&table::CPU_STIME, process.system_ms);
    server.gauge(&table::THREADS_RUNNING, process.threads);
    server.gauge(&table::VOLUNTARY_CONTEXT_SWITCHES, process.voluntary_switches);
    server.gauge(&table::INVOLUNTARY_CONTEXT_SWITCHES, process.involuntary_switches);
    server.gauge(&table::PROCESS_RESIDENT_MEMORY, process.resident_bytes);
    server.gauge(&table::PROCESS_OPEN_FDS, process.open_files);
    server.gauge(&table::PROCESS_MAX_FDS, process.open_files_max);
}

fn collect_workers(workers: &WorkerStats, server: &mut Entity) {
    server.gauge(&table::WORKERS, workers.busy.len() as u64);
    let busy: Duration = workers.busy.iter().sum();
    server.counter(&table::WORKERS_BUSY, u64::try_from(busy.as_micros()).unwrap_or(u64::MAX));
    server.gauge(&table::TASKS, workers.tasks);
}
