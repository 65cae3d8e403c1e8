//! The last client of a run: reads the final state and adds what the model and the oracles say of the history.

use nyala_common::env::Env;

use super::expected;
use crate::final_state::FinalState;
use crate::workload::Workload;

/// Reads the final state. What cannot be read is a failure of it.
pub(super) async fn read(workload: &Workload, env: &Env) -> FinalState {
    let mut state = FinalState::default();
    match workload.read_final_state(env).await {
        Ok(tables) => state.tables = tables,
        Err(error) => state.failures.push(format!("the tables cannot be read at the end: {error}")),
    }
    state
}

/// Adds the model's rows, and the failures of a run whose clients have ended.
pub(super) fn complete(workload: &Workload, state: &mut FinalState) {
    state.model = expected::rows(workload);
    state.written = workload.counts().rows_written;
    state.failures.extend(workload.undetermined());
    let violations = workload.report().violations;
    state.failures.extend(violations.iter().map(|found| format!("{}: {}", found.oracle, found.message)));
}
