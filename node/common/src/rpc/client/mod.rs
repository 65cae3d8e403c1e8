//! RPC client: calls over one connection, or over a proxy that connects again.

mod connection;
mod proxy;

pub use connection::{CallOptions, ClientConnection, RpcError, RpcResponse};
pub use proxy::{Proxy, ProxyTarget};
