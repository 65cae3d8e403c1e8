//! nyala's servers and client: async at the edge, everything they know of the world behind [`env::Env`].

pub mod cli;
pub mod client;
pub mod config;
pub mod dirs;
pub mod env;
pub mod mailbox;
pub mod master;
pub mod metrics;
#[rustfmt::skip]
#[allow(clippy::all, rustdoc::all)]
pub mod proto;
pub mod rpc;
pub mod server;
pub mod server_clock;
pub mod tserver;
pub mod wire;
