//! A plan's workload against a cluster in turmoil's world: the clients' history must have no violations.

use std::time::Duration;

use engine::config::TabletConfig;
use node::master::{self, MasterConfig};
use node::tserver::{self, TserverConfig};
use nyala_common::env::Env;
use sim::event_log::EventLog;
use sim::workload::{MASTER_PORT, TSERVER_PORT, Workload};
use sim::world::turmoil::{TurmoilResult, TurmoilWorld};
use sim_plan::{FaultProfile, Plan, PlanSize};

fn dirs() -> (String, Vec<String>) {
    ("wal".to_string(), vec!["data".to_string()])
}

async fn serve_master(env: Env) -> TurmoilResult {
    let (wal, data) = dirs();
    let mut config = MasterConfig::new(format!("0.0.0.0:{MASTER_PORT}").parse()?, wal, data);
    config.masters = vec![format!("m0:{MASTER_PORT}")];
    config.catalog.replicas_default = 1;
    let _master = master::run(env, config).await?;
    std::future::pending().await
}

async fn serve_tablets(env: Env) -> TurmoilResult {
    let (wal, data) = dirs();
    let mut config = TserverConfig::new(format!("0.0.0.0:{TSERVER_PORT}").parse()?, wal, data);
    config.masters = vec![format!("m0:{MASTER_PORT}")];
    config.heartbeat_interval_ms = 100;
    config.maintenance_interval_ms = 20;
    config.tablet = TabletConfig { cell_bytes_max: 64 << 10, ..TabletConfig::tiny() };
    let _tserver = tserver::run(env, config).await?;
    std::future::pending().await
}

async fn work(env: Env, workload: Workload) -> TurmoilResult {
    workload.prepare(&env).await?;
    let clients = workload.plan().clients.len();
    let tasks: Vec<_> = (0..clients)
        .map(|index| {
            let (workload, env) = (workload.clone(), env.clone());
            env.clone().spawn("client", async move { workload.run_client(&env, index).await })
        })
        .collect();
    while !tasks.iter().all(|task| task.is_finished()) {
        env.sleep(Duration::from_millis(20)).await;
    }
    workload.check_recovery(&env).await;
    Ok(())
}

fn run(seed: u64, faults: bool) -> Workload {
    let plan = Plan::generate(seed, FaultProfile::Calm, PlanSize::Smoke);
    let workload = Workload::new(&plan);
    let mut world = TurmoilWorld::new(seed, Duration::from_secs(900), EventLog::new(false));
    world.host("m0", serve_master);
    let tservers: Vec<String> = (0..plan.cluster.tservers).map(|number| format!("t{number}")).collect();
    tservers.iter().for_each(|name| world.host(name, serve_tablets));
    let doing = workload.clone();
    world.client("c0", move |env| work(env, doing));
    let mut number = 0;
    let mut ended = world.run_for(Duration::from_millis(1_200)).expect("no client fails");
    while !ended {
        if faults && number < 6 {
            let victim = &tservers[number % tservers.len()];
            if number.is_multiple_of(2) {
                world.kill(victim)
            } else {
                world.cut_power(victim)
            }
            world.run_for(Duration::from_millis(200)).expect("no client fails");
            world.restart(victim);
            number += 1;
        }
        ended = world.run_for(Duration::from_millis(400)).expect("no client fails");
    }
    workload
}

fn assert_clean(seed: u64, workload: &Workload) {
    let report = workload.report();
    let said: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    assert!(said.is_empty(), "seed {seed}:\n{}", said.join("\n"));
    assert!(report.checked > 100, "only {} facts", report.checked);
    let counts = workload.counts();
    assert!(counts.answered > 20, "{counts:?}");
    println!("seed {seed}: {counts:?}, {} facts, {} undecided", report.checked, report.undecided);
}

#[test]
fn calm_plans_are_clean() {
    for seed in 2..6 {
        assert_clean(seed, &run(seed, false));
    }
}

#[test]
fn acknowledged_rows_survive_kills_and_power_cuts() {
    for seed in 100..104 {
        assert_clean(seed, &run(seed, true));
    }
}
