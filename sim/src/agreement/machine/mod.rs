//! A determined plan on the machine: real time, sockets on loopback, files in a temporary directory.
//!
//! ```text
//! this process   clients of the plan, the reads at the end     [`host_env`]
//!   └─ serve     one process for each server of the plan       [`servers`]
//! ```
//!
//! Servers run the program of the simulated worlds ([`crate::cluster`]): a run differs by its environment only. A kill
//! is SIGKILL and a pause is SIGSTOP; a power cut is a kill, which loses less. Connections are in plain text. Kudu's
//! tool may check the cluster at the end ([`ksck`]).

mod host_env;
mod ksck;
mod servers;

use std::future::pending;
use std::io;
use std::path::Path;
use std::time::Duration;

use engine::error::Error;
use futures_util::future::join_all;
use nyala_common::env::Env;
use sim_plan::{Fault, FinalRestart, Host, Plan};
use tokio::runtime::{Builder, Runtime};

use self::host_env::Loopback;
use self::ksck::Ksck;
use self::servers::Servers;
use super::conclude;
use crate::cluster;
use crate::final_state::FinalState;
use crate::server_usage::RunningServers;
use crate::workload::Workload;

/// Threads of each process: more than one, so that tasks run at the same time.
const THREADS: usize = 2;
/// Host whose environment all clients have.
const CLIENTS: Host = Host::Client(0);

/// A step of a fault of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Kill(Host),
    Start(Host),
    Pause(Host),
    Resume(Host),
}

/// Runs the plan. `kudu`: the folder of the real tool, which checks the cluster at the end. The error is one of this
/// machine.
pub fn run(plan: &Plan, kudu: Option<&Path>) -> io::Result<FinalState> {
    let dir = tempfile::tempdir()?;
    let network = std::process::id();
    let mut servers = Servers::new(plan, dir.path(), network)?;
    plan.servers().into_iter().try_for_each(|host| servers.start(host))?;
    runtime()?.block_on(async {
        let network = Loopback::new(network);
        let env = host_env::env(network, CLIENTS, dir.path(), plan.cluster.memory)?;
        let check = kudu.map(|kudu| Ksck::new(kudu, plan, network));
        phases(plan, &env, &mut servers, check.as_ref()).await
    })
}

/// Runs a server of a plan in this process, until it is killed or its program ends.
pub fn serve(plan: &Plan, host: Host, dir: &Path, network: u32) -> Result<(), String> {
    let loopback = Loopback::new(network);
    let program = cluster::server_at(plan, host, &RunningServers::default(), &|host, port| {
        loopback.address(host, port).to_string()
    });
    let program = program.ok_or_else(|| format!("{host} is no server"))?;
    let runtime = runtime().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let env = host_env::env(loopback, host, dir, plan.cluster.memory);
        program(env.map_err(|error| error.to_string())?).await.map_err(|error| error.to_string())
    })
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()
}

async fn phases(
    plan: &Plan,
    env: &Env,
    servers: &mut Servers,
    check: Option<&Ksck>,
) -> io::Result<FinalState> {
    let workload = Workload::determined(plan);
    let mut state = FinalState::default();
    match env.timeout(plan.limit, work(plan, env, &workload, servers)).await {
        Some(Ok(())) => {
            state = conclude::read(&workload, env).await;
            if let Some(check) = check {
                state.failures.extend(check.run(env).await);
            }
        }
        Some(Err(error)) => state.failures.push(format!("creating the tables: {error}")),
        None => state.failures.push(format!("the clients have not ended after {:?}", plan.limit)),
    }
    state.faults = servers.faults;
    state.failures.append(&mut servers.end()?);
    conclude::complete(&workload, &mut state);
    Ok(state)
}

/// Runs the clients while faults begin and end, then restarts all servers if the plan does.
async fn work(plan: &Plan, env: &Env, workload: &Workload, servers: &mut Servers) -> Result<(), Error> {
    workload.prepare(env).await?;
    let clients = join_all((0..plan.clients.len()).map(|index| workload.run_client(env, index)));
    let failed = tokio::select! {
        biased;
        _ = clients => Ok(()),
        failed = inject(plan, env, servers) => failed,
    };
    let restarted = failed.and_then(|()| servers.end_faults()).and_then(|()| match plan.ending {
        FinalRestart::Stay => Ok(()),
        FinalRestart::Kill | FinalRestart::PowerCut => servers.restart_all(),
    });
    restarted.map_err(|error| Error::io("a server's process", &error))
}

/// Takes the steps of the plan's faults in time; returns only if one fails.
async fn inject(plan: &Plan, env: &Env, servers: &mut Servers) -> io::Result<()> {
    let begun = env.now().mono;
    for (at, step) in steps(plan) {
        env.clock.sleep_until(begun.after(at)).await;
        match step {
            Step::Kill(host) => servers.kill(host)?,
            Step::Start(host) => servers.start(host)?,
            Step::Pause(host) => servers.pause(host)?,
            Step::Resume(host) => servers.resume(host)?,
        }
    }
    pending().await
}

/// Returns the steps of the plan's faults in the order of their times.
fn steps(plan: &Plan) -> Vec<(Duration, Step)> {
    let mut steps = Vec::new();
    for fault in &plan.faults {
        let (target, end) = (fault.target, fault.at + fault.kind.span());
        match fault.kind {
            Fault::Kill { .. } | Fault::PowerCut { .. } => {
                steps.extend([(fault.at, Step::Kill(target)), (end, Step::Start(target))]);
            }
            Fault::Pause { .. } => {
                steps.extend([(fault.at, Step::Pause(target)), (end, Step::Resume(target))])
            }
            // Determined plans have no others.
            _ => {}
        }
    }
    steps.sort_by_key(|(at, _)| *at);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_in_the_order_of_time() {
        let mut plan = Plan::determined(1);
        let ms = Duration::from_millis;
        let fault = |at, kind| sim_plan::TimedFault { at: ms(at), target: Host::Tserver(0), kind };
        plan.faults = vec![fault(10, Fault::Kill { down: ms(30) }), fault(20, Fault::Pause { span: ms(5) })];
        let t0 = Host::Tserver(0);
        let want = [
            (ms(10), Step::Kill(t0)),
            (ms(20), Step::Pause(t0)),
            (ms(25), Step::Resume(t0)),
            (ms(40), Step::Start(t0)),
        ];
        assert_eq!(steps(&plan), want);
    }
}
