//! A proxy for one server: connects on the first call, and again after its connection broke.

use engine::sync::{Mutex, MutexGuard};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::time::Instant;
use prost::Message;
use tokio::sync::oneshot;

use super::super::RpcErrorCodePb;
use super::connection::{CallOptions, ClientConnection, RpcError, RpcResponse};
use crate::env::Env;
use crate::security::RpcCaller;

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyTarget {
    Addr(SocketAddr),
    /// Host name, resolved for each new connection; its addresses are tried in order.
    HostPort(String),
}

impl ProxyTarget {
    /// Returns the host, as its principal names it.
    fn host(&self) -> String {
        match self {
            ProxyTarget::Addr(addr) => addr.ip().to_string(),
            ProxyTarget::HostPort(host_port) => {
                let host = host_port.rsplit_once(':').map_or(host_port.as_str(), |(host, _)| host);
                host.trim_matches(['[', ']']).to_lowercase()
            }
        }
    }
}

impl From<SocketAddr> for ProxyTarget {
    fn from(addr: SocketAddr) -> ProxyTarget {
        ProxyTarget::Addr(addr)
    }
}

impl From<&str> for ProxyTarget {
    fn from(host_port: &str) -> ProxyTarget {
        host_port.parse().map_or_else(|_| ProxyTarget::HostPort(host_port.to_string()), ProxyTarget::Addr)
    }
}

impl From<String> for ProxyTarget {
    fn from(host_port: String) -> ProxyTarget {
        ProxyTarget::from(host_port.as_str())
    }
}

impl fmt::Display for ProxyTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProxyTarget::Addr(addr) => write!(f, "{addr}"),
            ProxyTarget::HostPort(host_port) => f.write_str(host_port),
        }
    }
}

/// A server to call, connected on demand. Cheap to clone; clones share the connection.
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<ProxyShared>,
}

struct ProxyShared {
    env: Env,
    target: ProxyTarget,
    caller: RpcCaller,
    link: Mutex<ProxyLink>,
}

type Connected = Result<Arc<ClientConnection>, RpcError>;

enum ProxyLink {
    Down,
    /// One task connects; these callers wait for it.
    Connecting(Vec<oneshot::Sender<Connected>>),
    Up(Arc<ClientConnection>),
}

/// Time limit for connecting to one address, independent of the deadlines of waiting callers. TCP retransmits a lost
/// segment after one second.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Connections to one address that are attempted, each but the last for a token that was rejected: the next one may be
/// rejected too, if it was replaced by an older one meanwhile.
const ATTEMPTS: u32 = 3;

/// Reason of the end of connections that the proxy closes.
const DISCONNECTED: &str = "closed by this side";

impl Proxy {
    /// Creates a proxy that connects as `caller`: a name, or a name with credentials.
    pub fn new(env: Env, target: impl Into<ProxyTarget>, caller: impl Into<RpcCaller>) -> Proxy {
        let shared = ProxyShared {
            env,
            target: target.into(),
            caller: caller.into(),
            link: Mutex::new(ProxyLink::Down),
        };
        Proxy { shared: Arc::new(shared) }
    }

    pub fn target(&self) -> &ProxyTarget {
        &self.shared.target
    }

    /// As [`ClientConnection::call`], over the current connection or a new one. Nothing is retried.
    pub async fn call<Req: Message, Resp: Message + Default>(
        &self,
        service: &str,
        method: &str,
        request: &Req,
        deadline: Instant,
        options: CallOptions,
    ) -> Result<RpcResponse<Resp>, RpcError> {
        let connection = self.connection(deadline).await?;
        connection.call(service, method, request, deadline, &options).await
    }

    /// As [`Proxy::call`], with request sidecars.
    pub async fn call_with_sidecars<Req: Message, Resp: Message + Default>(
        &self,
        service: &str,
        method: &str,
        request: &Req,
        sidecars: Vec<Bytes>,
        deadline: Instant,
        options: CallOptions,
    ) -> Result<RpcResponse<Resp>, RpcError> {
        let connection = self.connection(deadline).await?;
        connection.call_with_sidecars(service, method, request, sidecars, deadline, &options).await
    }

    /// Closes the connection, if any, also one that is being opened and that no call waits for. The next call opens a
    /// new one.
    pub fn disconnect(&self) {
        self.shared.disconnect();
    }

    async fn connection(&self, deadline: Instant) -> Connected {
        let connected = {
            let mut link = self.shared.link();
            let (reply, connected) = oneshot::channel();
            match &mut *link {
                ProxyLink::Up(connection) if connection.is_open() => return Ok(connection.clone()),
                ProxyLink::Connecting(waiting) => waiting.push(reply),
                ProxyLink::Up(_) | ProxyLink::Down => {
                    *link = ProxyLink::Connecting(vec![reply]);
                    let shared = self.shared.clone();
                    self.shared.env.spawn("rpc connect", async move { shared.connect().await });
                }
            }
            connected
        };
        let left = deadline.since(self.shared.env.now().mono);
        let target = &self.shared.target;
        match self.shared.env.timeout(left, connected).await {
            Some(connected) => connected.unwrap_or_else(|_| {
                Err(RpcError::network(format!("connecting to {target} was aborted"), false))
            }),
            None => Err(RpcError::TimedOut { message: format!("connecting to {target}"), sent: false }),
        }
    }
}

impl Drop for ProxyShared {
    fn drop(&mut self) {
        self.disconnect();
    }
}

impl ProxyShared {
    fn link(&self) -> MutexGuard<'_, ProxyLink> {
        self.link.lock()
    }

    fn disconnect(&self) {
        let mut link = self.link();
        match &*link {
            ProxyLink::Up(connection) => connection.close(DISCONNECTED),
            // A connection that is still awaited is for these callers.
            ProxyLink::Connecting(waiting) if waiting.iter().any(|waiter| !waiter.is_closed()) => return,
            ProxyLink::Connecting(_) | ProxyLink::Down => {}
        }
        *link = ProxyLink::Down;
    }

    async fn connect(&self) {
        let connected = self.connect_any().await;
        let mut link = self.link();
        match std::mem::replace(&mut *link, ProxyLink::Down) {
            ProxyLink::Connecting(waiting) => {
                *link = connected.clone().map_or(ProxyLink::Down, ProxyLink::Up);
                drop(link);
                for waiter in waiting {
                    let _ = waiter.send(connected.clone());
                }
            }
            // It was given up, and perhaps another attempt has succeeded since.
            newer => {
                *link = newer;
                connected.iter().for_each(|connection| connection.close(DISCONNECTED));
            }
        }
    }

    /// Forgets an authentication token that the server rejected, so that the next attempt presents the caller's own
    /// credentials; another connection that was rejected at the same time may have done so since. Returns true if a
    /// token was rejected.
    fn forget_token(&self, error: &RpcError) -> bool {
        let invalid = RpcErrorCodePb::FatalInvalidAuthenticationToken;
        let rejected = matches!(error, RpcError::Remote { code, .. } if *code == invalid);
        if rejected && let Some(security) = self.caller.security() {
            security.forget_token();
        }
        rejected
    }

    async fn connect_any(&self) -> Connected {
        let addrs = match &self.target {
            ProxyTarget::Addr(addr) => vec![*addr],
            ProxyTarget::HostPort(host_port) => self
                .env
                .net
                .resolve(host_port)
                .await
                .map_err(|error| RpcError::network(format!("resolving {host_port}: {error}"), false))?,
        };
        let host = self.target.host();
        let mut last = RpcError::network(format!("{} has no address", self.target), false);
        for addr in addrs {
            let deadline = self.env.now().mono.after(CONNECT_TIMEOUT);
            let connect =
                || ClientConnection::connect_to_host(&self.env, addr, &host, &self.caller, deadline);
            for _ in 0..ATTEMPTS {
                match connect().await {
                    Ok(connection) => return Ok(connection),
                    Err(error) => last = error,
                }
                if !self.forget_token(&last) {
                    break;
                }
            }
        }
        Err(last)
    }
}
