//! The simulators' side: plans, worlds, faults, workloads and what must hold in every run.
