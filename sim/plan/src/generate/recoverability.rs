//! Corrections that keep acknowledged writes recoverable.

use crate::client_ops::ClientOp;
use crate::faults::{DiskEffect, FaultKind, TimedFault};
use crate::host::Host;
use crate::plan::Plan;

impl Plan {
    /// Removes ops and moves faults that together could lose the majority of a tablet.
    pub(crate) fn keep_recoverable(&mut self) {
        // Evictions leave two replicas, and one of them must be sound: no eviction where a server may lose its data.
        if self.faults.iter().any(|fault| fault.kind.kind().loses_durable_data()) {
            self.replace_with_step_down(|op| matches!(op, ClientOp::Evict { .. }));
        }
        self.spare_changing_masters();
        self.confine_failures_to_damaged_server();
    }

    /// Leaves masters sound that clients remove and add again. A master whose catalog cannot be opened ends at once: it
    /// cannot be added until an operator has removed its files.
    fn spare_changing_masters(&mut self) {
        if self.changes_masters() {
            let rots = |fault: &TimedFault| fault.kind.kind().disk_effect() == DiskEffect::SilentCorruption;
            self.faults.retain(|fault| !matches!(fault.target, Host::Master(_)) || !rots(fault));
        }
    }

    /// Moves disk failures of tablet servers to the server that loses durable data, if there is one.
    ///
    /// Two of three replicas must be sound. A leader that evicts a failed replica after another was lost has no
    /// majority left.
    fn confine_failures_to_damaged_server(&mut self) {
        let Some(damage) = self.faults.iter().find(|fault| fault.kind.kind().loses_durable_data()) else {
            return;
        };
        let damaged = damage.target;
        for fault in &mut self.faults {
            let fails = fault.kind.kind().disk_effect() == DiskEffect::FailsReplicas;
            if fails && matches!(fault.target, Host::Tserver(_)) {
                fault.target = damaged;
            }
        }
        // After a wipe the server's old id is still a member for some time. If a replica moves from a sound server to
        // the new one and its data is corrupted there, two members of three are lost.
        let has = |of: fn(FaultKind) -> bool| self.faults.iter().any(|fault| of(fault.kind.kind()));
        let corrupts = |kind: FaultKind| {
            matches!(kind.disk_effect(), DiskEffect::SilentCorruption | DiskEffect::LosesReplicas)
        };
        if has(|kind| kind == FaultKind::Wipe) && has(corrupts) {
            self.replace_with_step_down(|op| matches!(op, ClientOp::Move { .. }));
        }
    }

    /// Replaces configuration changes for which `replaced` is true.
    fn replace_with_step_down(&mut self, replaced: fn(&ClientOp) -> bool) {
        for op in self.clients.iter_mut().flat_map(|client| &mut client.ops).filter(|op| replaced(op)) {
            if let ClientOp::Evict { table, tablet, .. } | ClientOp::Move { table, tablet, .. } = *op {
                *op = ClientOp::StepDown { table, tablet };
            }
        }
    }
}
