//! A server by its name: connected when there is something to call, and again after its connection broke.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use engine::time::Instant;
use prost::Message;
use tokio::sync::oneshot;

use super::client::{CallOptions, Connection, Response, RpcError};
use crate::env::Env;

/// Whom to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Addr(SocketAddr),
    /// Looked up for each new connection; its addresses are tried in order.
    HostPort(String),
}

impl From<SocketAddr> for Target {
    fn from(addr: SocketAddr) -> Target {
        Target::Addr(addr)
    }
}

impl From<&str> for Target {
    fn from(host_port: &str) -> Target {
        host_port.parse().map_or_else(|_| Target::HostPort(host_port.to_string()), Target::Addr)
    }
}

impl From<String> for Target {
    fn from(host_port: String) -> Target {
        Target::from(host_port.as_str())
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Addr(addr) => write!(f, "{addr}"),
            Target::HostPort(host_port) => f.write_str(host_port),
        }
    }
}

/// A server to call, connected when needed. Cheap to clone; clones share the connection.
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<ProxyShared>,
}

struct ProxyShared {
    env: Env,
    target: Target,
    user: String,
    link: Mutex<Link>,
}

type Connected = Result<Arc<Connection>, RpcError>;

enum Link {
    Down,
    /// One task connects; these wait for it.
    Connecting(Vec<oneshot::Sender<Connected>>),
    Up(Arc<Connection>),
}

/// How long connecting to one address may take, whoever waits for it: a lost segment is sent again after a second.
const CONNECT_TIME: Duration = Duration::from_secs(3);

impl Proxy {
    pub fn new(env: Env, target: impl Into<Target>, user: &str) -> Proxy {
        let shared =
            ProxyShared { env, target: target.into(), user: user.to_string(), link: Mutex::new(Link::Down) };
        Proxy { shared: Arc::new(shared) }
    }

    pub fn target(&self) -> &Target {
        &self.shared.target
    }

    /// As [`Connection::call`], over the connection there is or a new one. Nothing is retried.
    pub async fn call<Req: Message, Resp: Message + Default>(
        &self,
        service: &str,
        method: &str,
        request: &Req,
        deadline: Instant,
        options: CallOptions,
    ) -> Result<Response<Resp>, RpcError> {
        let connection = self.connection(deadline).await?;
        connection.call(service, method, request, deadline, &options).await
    }

    /// As [`Proxy::call`], with bytes beside the request.
    pub async fn call_with_sidecars<Req: Message, Resp: Message + Default>(
        &self,
        service: &str,
        method: &str,
        request: &Req,
        sidecars: Vec<Bytes>,
        deadline: Instant,
    ) -> Result<Response<Resp>, RpcError> {
        let connection = self.connection(deadline).await?;
        let options = CallOptions::default();
        connection.call_with_sidecars(service, method, request, sidecars, deadline, &options).await
    }

    /// Closes the connection, if there is one; the next call makes a new one.
    pub fn disconnect(&self) {
        self.shared.disconnect();
    }

    async fn connection(&self, deadline: Instant) -> Connected {
        let connected = {
            let mut link = self.shared.link();
            let (reply, connected) = oneshot::channel();
            match &mut *link {
                Link::Up(connection) if connection.is_open() => return Ok(connection.clone()),
                Link::Connecting(waiting) => waiting.push(reply),
                Link::Up(_) | Link::Down => {
                    *link = Link::Connecting(vec![reply]);
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
                Err(RpcError::network(format!("connecting to {target} was given up"), false))
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
    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().expect("no one panics holding this lock")
    }

    fn disconnect(&self) {
        let mut link = self.link();
        if let Link::Up(connection) = &*link {
            connection.close("closed by this side");
            *link = Link::Down;
        }
    }

    async fn connect(&self) {
        let connected = self.connect_any().await;
        let link = match &connected {
            Ok(connection) => Link::Up(connection.clone()),
            Err(_) => Link::Down,
        };
        let before = std::mem::replace(&mut *self.link(), link);
        if let Link::Connecting(waiting) = before {
            for waiter in waiting {
                let _ = waiter.send(connected.clone());
            }
        }
    }

    async fn connect_any(&self) -> Connected {
        let addrs = match &self.target {
            Target::Addr(addr) => vec![*addr],
            Target::HostPort(host_port) => self
                .env
                .net
                .resolve(host_port)
                .await
                .map_err(|error| RpcError::network(format!("looking up {host_port}: {error}"), false))?,
        };
        let mut last = RpcError::network(format!("{} has no address", self.target), false);
        for addr in addrs {
            let deadline = self.env.now().mono.after(CONNECT_TIME);
            match Connection::connect(&self.env, addr, &self.user, deadline).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}
