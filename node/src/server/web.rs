//! The web port: metrics for Prometheus, health for monitoring, flags and memory for operators.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::error::Result;
use engine::memory::MemUsage;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::sync::Semaphore;

use super::{ServerContext, ServerHealth, VERSION};
use nyala_common::env::{Env, Listener, Stream, TaskHandle};
use nyala_common::metrics::definition::MetricLevel;
use nyala_common::metrics::json;
use nyala_common::metrics::prometheus::{self, Naming};
use nyala_common::metrics::query::MetricQuery;

/// Largest number of connections served at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// Longest life of a connection, so that none is held forever.
const CONNECTION_LIFE: Duration = Duration::from_secs(60);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A served web port. Dropping it stops it.
pub struct WebHandle {
    local_addr: SocketAddr,
    accepting: Box<dyn TaskHandle>,
}

impl WebHandle {
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }
}

impl Drop for WebHandle {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Serves a server's web pages at `addr`, and sets the address in its status.
pub async fn serve(env: &Env, addr: SocketAddr, common: ServerContext) -> Result<WebHandle> {
    let listener = super::listen(env, addr, "webserver_port").await?;
    let local_addr = listener.local_addr();
    common.status.set_web(local_addr);
    let accepting = env.spawn("web accept", accept(env.clone(), listener, Arc::new(common)));
    Ok(WebHandle { local_addr, accepting })
}

async fn accept(env: Env, mut listener: Box<dyn Listener>, common: Arc<ServerContext>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _remote)) => {
                let (env, common) = (env.clone(), common.clone());
                env.clone().spawn("web connection", async move {
                    env.timeout(CONNECTION_LIFE, connection(stream, common)).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a web connection failed");
                env.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: Stream, common: Arc<ServerContext>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let response = respond(&common, &request);
        async move { Ok::<_, Infallible>(response) }
    });
    let served =
        http1::Builder::new().auto_date_header(false).serve_connection(TokioIo::new(stream), service).await;
    if let Err(error) = served {
        tracing::debug!(%error, "a web connection ended early");
    }
}

fn respond<B>(common: &ServerContext, request: &Request<B>) -> Response<Full<Bytes>> {
    let (method, path) = (request.method(), request.uri().path());
    if method != Method::GET && method != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".to_string());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/" => text(StatusCode::OK, index(common)),
        "/metrics" | "/jsonmetricz" | "/metrics_prometheus" => metrics(common, request),
        "/healthz" => match common.status.health() {
            ServerHealth::Healthy => text(StatusCode::OK, "ok\n".to_string()),
            ServerHealth::Starting => text(StatusCode::SERVICE_UNAVAILABLE, "starting\n".to_string()),
            ServerHealth::Failed(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("failed: {why}\n")),
        },
        "/varz" => text(StatusCode::OK, settings(common)),
        "/mem-trackers" => {
            let mut page = String::new();
            memory(&common.memory.usage(), 0, &mut page);
            text(StatusCode::OK, page)
        }
        _ => text(StatusCode::NOT_FOUND, format!("{path}: not found; / lists the pages\n")),
    }
}

/// Returns the metrics: Prometheus' text on its own path and for clients that ask for text, as its scraper does; JSON
/// otherwise.
fn metrics<B>(common: &ServerContext, request: &Request<B>) -> Response<Full<Bytes>> {
    let query = match MetricQuery::parse(request.uri().query().unwrap_or_default()) {
        Ok(query) => query,
        Err(message) => return text(StatusCode::BAD_REQUEST, message + "\n"),
    };
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let wants_text = accept.contains("text/plain") || accept.contains("openmetrics");
    let snapshot = common.metrics.snapshot();
    let (body, kind) = match request.uri().path() {
        "/metrics" | "/jsonmetricz" if !wants_text => (json::render(snapshot, &query), JSON),
        _ => (prometheus::render(snapshot, &query.or_level(MetricLevel::Info), Naming::ByRole), PROMETHEUS),
    };
    let mut response = text(StatusCode::OK, body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

const JSON: &str = "application/json";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn index(common: &ServerContext) -> String {
    format!(
        "{VERSION}, {} {}, RPC at {}\n\n\
         /metrics       numbers, as JSON in Kudu's form\n\
         /metrics_prometheus  the same for Prometheus\n\
         /healthz       200 if this server does its work\n\
         /varz          settings\n\
         /mem-trackers  where the memory is\n",
        common.kind.name(),
        common.status.uuid(),
        common.status.rpc_addresses().join(", "),
    )
}

fn settings(common: &ServerContext) -> String {
    let line = |current: super::flags::FlagState| {
        let mark = if current.is_default() { ' ' } else { '*' };
        let effect = if current.spec.has_effect() { "" } else { "  (inert)" };
        format!("{mark} --{}={}{effect}\n", current.spec.name, current.value)
    };
    let all = common.flags.all();
    let lines: String = all.into_iter().map(line).collect();
    format!("* differs from the default; (inert): taken as Kudu's, without effect here\n\n{lines}")
}

fn memory(usage: &MemUsage, depth: usize, page: &mut String) {
    let limit = usage.limit.map_or("none".to_string(), |limit| limit.to_string());
    let indent = "  ".repeat(depth);
    let line =
        format!("{indent}{}  bytes={} peak={} limit={limit}\n", usage.id, usage.bytes, usage.peak_bytes);
    page.push_str(&line);
    usage.children.iter().for_each(|child| memory(child, depth + 1, page));
}
