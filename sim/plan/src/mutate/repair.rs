//! Repair of a mutated plan: what the generator and its scenarios guarantee is so again.

use std::collections::BTreeSet;

use crate::client_ops::WriteWait;
use crate::faults::{Fault, FaultKind, TimedFault};
use crate::host::Host;
use crate::plan::Plan;
use crate::scenarios::master_changes;
use crate::spec::FinalRestart;

/// Memory with which settings of batches, windows and limits are free.
const AMPLE_MEMORY: u64 = 64 << 20;
/// Most faults of a child: runs with more take long and find nothing else.
const FAULTS_MAX: usize = 40;

impl Plan {
    /// Makes a child of `parent` valid.
    pub(super) fn repair(&mut self, parent: &Plan) {
        self.drop_unsuitable_faults(parent);
        self.point_at_hosts();
        self.faults.sort_by_key(|fault| fault.at);
        self.faults.truncate(FAULTS_MAX.max(parent.faults.len()));
        self.keep_settings_that_belong_together(parent);
        self.sync_logs_where_power_is_cut();
        self.correct_timing();
        self.correct_memory();
        self.keep_recoverable();
        self.ending = master_changes::final_restart(self, self.ending);
        if self.ending == FinalRestart::PowerCut && !self.cluster.log_sync {
            self.ending = FinalRestart::Kill;
        }
        self.set_limits(parent);
    }

    /// Removes faults that the parent's scenario or settings exclude. The parent's own faults are none of them.
    fn drop_unsuitable_faults(&mut self, parent: &Plan) {
        let changes_masters = self.changes_masters();
        let waits = self.clients.iter().any(|client| client.setup.waits == WriteWait::Commit);
        let has_clocks = !self.clocks.is_empty();
        let is_new = |fault: &TimedFault| !parent.faults.contains(fault);
        self.faults.retain(|fault| {
            let of_clock = matches!(
                fault.kind.kind(),
                FaultKind::ClockJump | FaultKind::ClockDrift | FaultKind::ClockError | FaultKind::ClockStep
            );
            let excluded = of_clock && (waits || has_clocks)
                || changes_masters && master_changes::restarts_master(fault)
                || fault.kind.kind() == FaultKind::Memory && self.cluster.memory < AMPLE_MEMORY;
            !(is_new(fault) && excluded)
        });
    }

    /// Replaces hosts that this cluster does not have, and removes faults between a host and itself.
    fn point_at_hosts(&mut self) {
        let (masters, tservers, clients) =
            (self.cluster.masters, self.cluster.tservers, self.clients.len() as u8);
        let near = |host: Host| match host {
            Host::Master(number) => Host::Master(number % masters.max(1)),
            Host::Tserver(number) => Host::Tserver(number % tservers.max(1)),
            Host::Client(number) => Host::Client(number % clients.max(1)),
        };
        for fault in &mut self.faults {
            fault.target = near(fault.target);
            let target = fault.target;
            match &mut fault.kind {
                Fault::CutLink { peer, .. }
                | Fault::SlowLink { peer, .. }
                | Fault::Reset { peer }
                | Fault::CutCall { peer, .. } => *peer = near(*peer),
                Fault::ZonePowerCut { others, .. } => {
                    let hosts: BTreeSet<Host> = others.iter().map(|host| near(*host)).collect();
                    *others = hosts.into_iter().filter(|host| *host != target).collect();
                }
                _ => {}
            }
        }
        self.faults.retain(|fault| match &fault.kind {
            Fault::CutLink { peer, .. }
            | Fault::SlowLink { peer, .. }
            | Fault::Reset { peer }
            | Fault::CutCall { peer, .. } => *peer != fault.target,
            _ => true,
        });
    }

    fn keep_settings_that_belong_together(&mut self, parent: &Plan) {
        if self.cluster.memory < AMPLE_MEMORY {
            self.sending = parent.sending.clone();
            self.network = parent.network.clone();
        }
        // Tablet copies and elections of few milliseconds do not fit to slow devices or networks.
        if self.devices != parent.devices || self.network != parent.network {
            self.cluster.raft_heartbeat = self.cluster.raft_heartbeat.max(parent.cluster.raft_heartbeat);
            self.cluster.rpc_timeout = self.cluster.rpc_timeout.max(parent.cluster.rpc_timeout);
        }
        // A history that is read again must outlast what delays the reads.
        if !self.data.history.is_zero() {
            (self.devices, self.network) = (parent.devices.clone(), parent.network.clone());
        }
    }

    /// Turns log sync on where a power cut would lose what a majority acknowledged, as `unsynced_logs` does. Masters of
    /// plans without it keep their power.
    fn sync_logs_where_power_is_cut(&mut self) {
        if self.cluster.log_sync || !self.faults.iter().any(|fault| fault.kind.cuts_power()) {
            return;
        }
        self.cluster.log_sync = self.cluster.replicas > 1 || !self.tables.is_empty();
        if self.cluster.log_sync {
            return;
        }
        let tservers = self.cluster.tservers;
        for fault in self.faults.iter_mut().filter(|fault| fault.kind.cuts_power()) {
            if let Host::Master(number) = fault.target {
                fault.target = Host::Tserver(number % tservers);
            }
            if let Fault::ZonePowerCut { others, .. } = &mut fault.kind {
                others.retain(|host| matches!(host, Host::Tserver(_)));
            }
        }
    }

    /// Gives the child the time that its faults, devices and waits need; never less than the parent's.
    fn set_limits(&mut self, parent: &Plan) {
        self.limit_time(self.working_time());
        (self.limit, self.quiet) = (self.limit.max(parent.limit), self.quiet.max(parent.quiet));
    }
}
