//! nyala's servers and client: async at the edge, everything they know of the world behind [`env::Env`].

pub mod dirs;
pub mod env;
pub mod mailbox;
#[rustfmt::skip]
#[allow(clippy::all, rustdoc::all)]
pub mod proto;
pub mod server_clock;
pub mod tserver;
pub mod wire;
pub mod rpc;
