//! The simulator: worlds in which the node's own code runs over simulated time, network and disks.
//!
//! A run is decided by its seed: the same seed gives the same events, which [`event_log::EventLog`] hashes. A
//! [`machine::Machine`] survives crashes of the node on it.

pub mod agreement;
mod audit_checks;
pub mod cli;
pub mod cluster;
pub mod draws;
pub mod event_log;
pub mod features;
pub mod final_state;
mod given_up;
pub mod health_boards;
pub mod history;
mod idle_look;
pub mod injector;
pub mod invariants;
pub mod live_tasks;
pub mod machine;
pub mod marks;
pub mod model;
pub mod model_oracle;
pub mod net;
pub mod oracle;
pub mod output;
pub mod post_checks;
pub mod projection;
pub mod recovered_state;
pub mod reply_checks;
pub mod rows;
pub mod run;
pub mod run_observer;
mod security;
mod server_files;
pub mod server_limits;
pub mod server_usage;
pub mod study;
mod tls_primitives;
pub mod trials;
pub mod trigger;
mod tserver_gauges;
pub mod wire;
pub mod workload;
pub mod world;
