//! nyala's servers and command line: masters and tablet servers with Kudu's wire protocol, around the `engine` crate.
//!
//! ```text
//!   main ── cli ──▶ server::startup ──┬──▶ master    catalog_loop ──▶ system tablet (a replica)
//!            │       config, dirs     └──▶ tserver   │                 │
//!            └── nyala_client                │       └─────────────────┴──▶ hosting ──▶ engine::replica, raft, wal
//!                                            └──▶ nyala_common: env (clock, disks, network, tasks), rpc, wire, metrics
//! ```
//!
//! Path of a write:
//! 1. `tserver/write.rs` decodes the Write call, binds the client's columns and reserves memory.
//! 2. `hosting/replica` posts the operation to the replica's event loop.
//! 3. The loop steps the engine's `Replica`, which assigns a timestamp and appends the entry.
//! 4. The entry leaves for the peers (`hosting/raft_transport`) and for the log (`hosting/log_writer.rs`).
//! 5. Peers append, sync and reply (`hosting/consensus_service.rs`).
//! 6. With a majority durable, Raft advances the commit index.
//! 7. The loop applies the operation to the tablet.
//! 8. The call's reply leaves, and is cached for retries of the same request id.
//!
//! Rules:
//! - Clock, disks, network, tasks, memory budget and randomness are reached only through [`nyala_common::env::Env`].
//! - One task owns each state machine: an event loop per replica, one loop per catalog. Other tasks send it messages.
//! - The engine is synchronous and decides; this crate is asynchronous and carries out the effects.
//! - A panic is a broken invariant and ends the process; an error fails one tablet or one call.
//!
//! *Not here:* the client (`nyala-client`), RPC, environment and metrics (`nyala-common`), protobuf (`nyala-proto`),
//! storage and consensus (`engine`).

pub mod changed_flag;
pub mod cli;
pub mod config;
pub mod dirs;
pub mod hosting;
pub mod master;
pub mod scrub;
pub mod server;
pub mod server_clock;
pub mod tserver;
