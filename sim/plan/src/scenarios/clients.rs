//! Clients of scenarios.

use std::time::Duration;

use crate::client_ops::{ClientOp, ClientProgram, ClientSetup, FlushMode, WriteWait};
use crate::draws::{MS, rounded};
use crate::plan::Plan;

/// Replaces the operators' ops by short waits, for scenarios whose faults allow no other changes of members.
pub(super) fn drop_operators(plan: &mut Plan) {
    for op in plan.clients.iter_mut().flat_map(|client| &mut client.ops).filter(|op| op.is_by_operator()) {
        *op = ClientOp::Wait { span: MS };
    }
}

/// Adds a client that makes one op after the other and sends each write at once.
pub(super) fn add_client(plan: &mut Plan, pace: Duration, ops: Vec<ClientOp>) {
    let (number, pace) = (plan.clients.len() as u8, rounded(pace));
    let setup =
        ClientSetup { number, flush: FlushMode::Sync, waits: WriteWait::No, pace, propagate_every: 0 };
    plan.clients.push(ClientProgram { setup, ops });
}
