//! The two choices that a plan is drawn from besides its seed: a fault profile and a size.

use crate::line_format::words;

/// Ops of the largest plan that counts as small: larger plans have more open files and need more memory.
pub(crate) const SMALL_PLAN_OPS_MAX: usize = 250;

words! {
    /// Faults that a plan draws from.
    pub enum FaultProfile {
        /// All faults.
        Swarm = "swarm",
        Disk = "disk",
        Network = "network",
        /// Kills, power cuts and pauses.
        Crash = "crash",
        Clock = "clock",
        Memory = "memory",
        /// Disk wipes, tablet copies and moves of replicas.
        Copy = "copy",
        /// No fault.
        Calm = "calm",
        /// Tables of any shape and ops on them, with the faults of another profile.
        Tables = "tables",
    }
}

words! {
    /// Size of a plan.
    pub enum PlanSize {
        /// About one second of CPU with debug assertions on.
        Smoke = "smoke",
        Full = "full",
        /// Size for measurements: 3 masters, 4 tablet servers, 6 tablets, 2,000 ops, 20 faults.
        Bench = "bench",
    }
}
