//! Code shared by servers and the client: the environment `Env`, RPC, and conversion between protobuf and engine types.
//!
//! ```text
//!     node (servers)        nyala-client
//!           └──────────┬──────────┘
//!                      ▼
//!     rpc ── wire ── mailbox ── metrics      nyala-proto: protobuf messages
//!      └── security     │         │
//!              └────────┴─────────┘
//!                   env ── spans             clock, disks, net, tasks, memory, randomness
//! ```
//!
//! Invariant: only `env::os` reaches the operating system. All other code takes an [`env::Env`], so that the same
//! code runs on a machine and in a simulator.

pub mod env;
pub mod error_text;
pub mod mailbox;
pub mod metrics;
pub mod nearest;
pub mod number_text;
pub mod rpc;
pub mod security;
pub mod sidecars;
pub mod spans;
pub mod wire;
