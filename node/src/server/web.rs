//! The web port: its connections. The answers are in `web_routes.rs`.
//!
//! The port opens before the directories are read, so that `/startup` shows a long start. The rest is there once
//! [`WebHandle::attach`] has given it the server.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::error::Result;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::ServerContext;
use super::flags::Flags;
use super::pages::startup_progress::StartupProgress;
use super::web_access::WebAccess;
use super::web_connections::{
    ConnectionLimits, ConnectionState, Connections, HEADER_TIMEOUT, OpenConnection, REQUEST_TIMEOUT,
};
use super::web_routes::{self, WebState};
use crate::dirs::ServerKind;
use nyala_common::env::{Env, Listener, Stream, TaskHandle};

/// Largest header of a request in bytes.
const HEADER_BYTES_MAX: usize = 8 << 10;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A served web port. Dropping it stops it.
pub struct WebHandle {
    local_addr: SocketAddr,
    state: Arc<WebState>,
    tasks: [Box<dyn TaskHandle>; 2],
}

impl WebHandle {
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Gives the port the server whose pages it shows, and sets the address in the server's status.
    pub fn attach(&self, common: ServerContext) {
        common.status.set_web(self.local_addr, self.state.access.is_https());
        self.state.attach(common);
    }
}

impl Drop for WebHandle {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|task| task.abort());
    }
}

/// Opens the web port of a server that is about to start.
pub async fn open(
    env: &Env,
    addr: SocketAddr,
    kind: ServerKind,
    flags: Arc<Flags>,
    startup: Arc<StartupProgress>,
) -> Result<WebHandle> {
    let access = WebAccess::from_flags(env, &flags)?;
    let listener = super::listen(env, addr, "webserver_port").await?;
    let local_addr = listener.local_addr();
    let state = Arc::new(WebState::new(kind, flags, startup, access));
    let (of, signs_env) = (state.clone(), env.clone());
    let signs = env.spawn("signs of life", async move { of.signs.give_signs_of_life(&signs_env).await });
    let accepting = env.spawn("web accept", accept(env.clone(), listener, state.clone()));
    Ok(WebHandle { local_addr, state, tasks: [accepting, signs] })
}

/// Serves the web pages of a server that has been created.
pub async fn serve(env: &Env, addr: SocketAddr, common: ServerContext) -> Result<WebHandle> {
    let (kind, flags, startup) = (common.kind, common.flags.clone(), common.startup.clone());
    let handle = open(env, addr, kind, flags, startup).await?;
    handle.attach(common);
    Ok(handle)
}

async fn accept(env: Env, mut listener: Box<dyn Listener>, web: Arc<WebState>) {
    let connections = Connections::new(ConnectionLimits::default());
    loop {
        match listener.accept().await {
            Ok((_, remote)) if !web.access.admits(remote.ip()) => {
                tracing::debug!(%remote, "a web connection from outside webserver_trusted_subnets is closed");
            }
            Ok((stream, remote)) => match connections.enter(remote.ip()) {
                Some(open) => {
                    let task = serve_connection(env.clone(), stream, open, web.clone());
                    env.spawn("web connection", task);
                }
                None => tracing::debug!(%remote, "too many web connections; one is closed"),
            },
            Err(error) => {
                tracing::warn!(%error, "accepting a web connection failed");
                env.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(env: Env, stream: Stream, open: OpenConnection, web: Arc<WebState>) {
    tokio::select! {
        biased;
        () = answer(&env, stream, open.state.clone(), web) => {}
        () = open.state.dropped() => {}
        () = until_silent(&env, &open.state) => tracing::debug!("a web connection without a request is closed"),
    }
}

/// Waits until no request has come for too long.
async fn until_silent(env: &Env, connection: &ConnectionState) {
    let mut known = 0;
    loop {
        env.sleep(if known == 0 { HEADER_TIMEOUT } else { REQUEST_TIMEOUT }).await;
        let requests = connection.requests();
        if requests == known && !connection.is_answering() {
            return;
        }
        known = requests;
    }
}

async fn answer(env: &Env, stream: Stream, state: Arc<ConnectionState>, web: Arc<WebState>) {
    let Some(stream) = web.access.wrap(stream) else { return };
    let served = env.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        state.request_begun();
        // No page reads a body.
        let (web, env, request, state) = (web.clone(), served.clone(), request.map(drop), state.clone());
        async move {
            let answer = web_routes::respond(&web, &env, &request).await;
            state.request_ended();
            Ok::<_, Infallible>(answer)
        }
    });
    let mut http = http1::Builder::new();
    http.auto_date_header(false).max_buf_size(HEADER_BYTES_MAX);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a web connection ended early");
    }
}
