//! A determined plan in a simulated world.

use std::sync::Arc;

use engine::sync::Mutex;
use sim_plan::Plan;

use super::conclude;
use crate::event_log::EventLog;
use crate::final_state::FinalState;
use crate::run::{Run, WorldKind, world};
use crate::run_observer::RunObserver;
use crate::workload::Workload;
use crate::world::HostProgram;

/// Runs the plan. The error says how to get the world.
pub fn run(plan: &Plan, kind: WorldKind) -> Result<FinalState, String> {
    let log = EventLog::new(false);
    let mut world = world(kind, plan, &log)?;
    let (workload, observer) = (Workload::determined(plan), RunObserver::new(plan, None));
    let mut run = Run::new(world.as_mut(), &workload, plan, &observer);
    let read = Arc::new(Mutex::new(FinalState::default()));
    let mut faults = 0;
    if let Some((mut injector, worked)) = run.work() {
        if worked {
            run.start_client("reader", reader(&workload, &read));
            run.pass(&mut injector, plan.quiet * 2, "the reads at the end");
        }
        faults = injector.fired.values().sum();
    }
    let mut state = std::mem::take(&mut *read.lock());
    state.faults = faults;
    state.failures.extend(run.failures.iter().map(|found| format!("{}: {}", found.oracle, found.message)));
    conclude::complete(&workload, &mut state);
    // Dropping a world drops its tasks one by one; the process ends soon anyway.
    std::mem::forget(world);
    Ok(state)
}

fn reader(workload: &Workload, read: &Arc<Mutex<FinalState>>) -> HostProgram {
    let (workload, read) = (workload.clone(), read.clone());
    Arc::new(move |env| {
        let (workload, read) = (workload.clone(), read.clone());
        Box::pin(async move {
            let state = conclude::read(&workload, &env).await;
            *read.lock() = state;
            Ok(())
        })
    })
}
